"""370: recall a delayed message."""

from __future__ import annotations

from txmq.errors import IllegalOperation
from txmq.protocol import recall
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import RecallAnswer, RecallMessage
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.parts import Parts

__all__ = ["RecallHandlers"]


class RecallHandlers:
    """Recalls delayed messages."""

    def __init__(self, parts: Parts) -> None:
        self._identity = parts.identity
        self._topics = parts.topics
        self._schedule = parts.schedule
        self._flusher = parts.flusher

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, connection: Connection, request: Command) -> None:
        """370: recall a delayed message; the answer comes once the recall is durable."""
        header = request.read(RecallMessage)
        self._topics.get(header.topic)
        handle = recall.decode(header.recall_handle)
        if handle.topic != header.topic or handle.broker != self._identity.name:
            raise IllegalOperation(
                f"the handle is for {handle.topic} at {handle.broker}, not for {header.topic} here"
            )
        found = self._schedule.find(handle.topic, handle.message_id)
        now_ms = self._flusher.turn_ms()
        host = self._identity.store_host
        flags = SysFlag.STORE_HOST_V6 | SysFlag.BORN_HOST_V6 if len(host) > 8 else 0
        is_news = self._schedule.recall(found, (int(flags), now_ms, host, now_ms, host, 0, 0))
        if not request.is_oneway:
            give = self._flusher.staged if is_news else self._flusher.follow
            give(connection, request, answer(request, 0, RecallAnswer(handle.message_id)))
