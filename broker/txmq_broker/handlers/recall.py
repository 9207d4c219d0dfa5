"""370, and 7721 and 7722 of txmq: delayed messages are listed and recalled."""

from __future__ import annotations

from txmq.errors import IllegalOperation, InvalidParameter
from txmq.protocol import recall
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import RecallAnswer, RecallMessage
from txmq.protocol.operations import ListDelayed, RecallDelayed
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.parts import Parts

__all__ = ["RecallHandlers"]


class RecallHandlers:
    """Lists and recalls delayed messages."""

    def __init__(self, parts: Parts) -> None:
        self._identity = parts.identity
        self._topics = parts.topics
        self._schedule = parts.schedule
        self._flusher = parts.flusher

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.RECALL_MESSAGE: self.recall,
            RequestCode.LIST_DELAYED: self.list_waiting,
            RequestCode.RECALL_DELAYED: self.recall_by_hand,
        }

    def list_waiting(self, connection: Connection, request: Command) -> bytes:
        """7721: messages that wait for their time, in order of their times, a page at a time."""
        del connection
        page = self._schedule.page(self._identity.name, request.read(ListDelayed))
        return answer(request, body=page.write())

    def recall_by_hand(self, connection: Connection, request: Command) -> None:
        """7722: an operator recalls a delayed message, which the audit keeps with the reason."""
        header = request.read(RecallDelayed)
        if not header.operator.strip() or not header.reason.strip():
            raise InvalidParameter("operator and reason must not be empty")
        self._recall(connection, request, header.topic, header.recall_handle)

    def recall(self, connection: Connection, request: Command) -> None:
        """370: recall a delayed message; the answer comes once the recall is durable."""
        header = request.read(RecallMessage)
        self._recall(connection, request, header.topic, header.recall_handle)

    def _recall(self, connection: Connection, request: Command, topic: str, text: str) -> None:
        self._topics.get(topic)
        handle = recall.decode(text)
        if handle.topic != topic or handle.broker != self._identity.name:
            raise IllegalOperation(
                f"the handle is for {handle.topic} at {handle.broker}, not for {topic} here"
            )
        found = self._schedule.find(handle.topic, handle.message_id)
        now_ms = self._flusher.turn_ms()
        host = self._identity.store_host
        flags = SysFlag.STORE_HOST_V6 | SysFlag.BORN_HOST_V6 if len(host) > 8 else 0
        self._schedule.recall(found, (int(flags), now_ms, host, now_ms, host, 0, 0))
        if not request.is_oneway:
            recalled = answer(request, 0, RecallAnswer(handle.message_id))
            self._flusher.follow(connection, [request], [recalled])
