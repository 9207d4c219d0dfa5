"""222, 223, 307, 309, 324, 325: requests relayed to a client over the client's connection.

A handler here returns nothing; a task waits for the client and answers later. The number of tasks
is limited. When the broker stops, it cancels them, and the requesters see their connections close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Final

import msgspec

from txmq.errors import (
    BrokerBusy,
    BrokerRefused,
    ConnectionLost,
    ConsumerOffline,
    ConsumeTimeout,
    InternalError,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotFound,
    TransportError,
    TxmqError,
)
from txmq.limits import RELAYED_MAX
from txmq.protocol import properties
from txmq.protocol.bodies import MessageQueue, queue_map, read_queue_map, with_queue_map
from txmq.protocol.codes import SUCCESS, RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import (
    ConsumeDirectly,
    ConsumerStatusQuery,
    ReplyPush,
    ResetOffset,
    SendMessage,
    SendMessageV2,
    TopicAndGroup,
)
from txmq.protocol.record import position_in
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.core.clients import Member
from txmq_broker.core.topics import Topic
from txmq_broker.handlers.offsets import offset_by_time
from txmq_broker.parts import Parts
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["RelayHandlers"]

log = logging.getLogger(__name__)

CALL_S: Final = 10.0
"""The time limit for a client to serve an operator's request, or to accept a reply."""

STATUS_S: Final = 5.0
"""The time limit for a client to report its offsets."""

_KNOWS_OFFSETS: Final = 28
_KNOWS_CALLS: Final = 62
"""The first client versions that know 220 and 221, and 307 and 309."""

_CPP: Final = "CPP"


class RelayHandlers:
    """Relays requests and replies to connected clients."""

    def __init__(self, parts: Parts) -> None:
        self._identity = parts.identity
        self._topics = parts.topics
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._store = parts.store
        self._clock = parts.clock
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._refused = 0

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply_v2,
        }

    @property
    def pending(self) -> int:
        """The number of requests that wait for a client."""
        return len(self._tasks)

    def figures(self) -> dict[str, int]:
        """What the broker keeps for clients, and what it refused them since the start."""
        return {
            "requests_relayed": len(self._tasks),
            "relays_refused": self._refused,
        }

    async def stop(self) -> None:
        """Cancel the requests that clients have not answered."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Answers that come later

    def _later(
        self, connection: Connection, request: Command, work: Coroutine[Any, Any, bytes]
    ) -> None:
        if len(self._tasks) >= RELAYED_MAX:
            work.close()
            self._refused += 1
            raise BrokerBusy(
                f"{len(self._tasks)} requests wait for clients to answer, which is the limit; this "
                "one was not relayed; try again later"
            )
        task = asyncio.create_task(self._answer(connection, request, work), name="relay")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _answer(
        self, connection: Connection, request: Command, work: Coroutine[Any, Any, bytes]
    ) -> None:
        try:
            found = await work
        except TxmqError as error:
            code = error.code if isinstance(error, BrokerRefused) else InternalError.code
            found = answer(request, code, remark=str(error))
        except Exception as error:
            # As in Dispatcher: the requester gets an answer for any error.
            log.exception("request %d of %s failed", request.code, connection.address)
            remark = f"{type(error).__name__}: {error}"
            found = answer(request, InternalError.code, remark=remark)
        if not request.is_oneway:
            connection.send(found)

    # 307, 309

    def running_info(self, connection: Connection, request: Command) -> None:
        """307: a consumer's state."""
        header = request.read(ConsumeDirectly)
        member = self._consumer(header)
        self._later(connection, request, _call(member, request, request.field_map()))

    def consume_directly(self, connection: Connection, request: Command) -> None:
        """309: make one consumer handle one stored message now."""
        header = request.read(ConsumeDirectly)
        member = self._consumer(header)
        position = position_in(header.msg_id or "")
        data = self._store.record_bytes(position)
        if data is None:
            raise InternalError(f"this broker does not have the message {header.msg_id} here")
        fields = {**request.field_map(), "brokerName": self._identity.name}
        self._later(connection, request, _call(member, request, fields, data))

    def _consumer(self, header: ConsumeDirectly) -> Member[Connection]:
        group, client = header.consumer_group, header.client_id
        member = self._clients.consumer(group, client)
        if member is None:
            raise InternalError(f"The Consumer <{group}> <{client}> not online")
        if member.version < _KNOWS_CALLS:
            raise InternalError(f"The Consumer <{client}> is too old to be asked")
        return member

    # 223

    def status(self, connection: Connection, request: Command) -> None:
        """223: the offsets that a group's clients report."""
        header = request.read(ConsumerStatusQuery)
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise InternalError(f"No Any Consumer online in the consumer group: [{header.group}]")
        members = [
            member
            for member in group.members.values()
            if header.client_addr in (None, "", member.client_id)
        ]
        _refuse_old(members)
        self._later(connection, request, self._statuses(request, header, members))

    async def _statuses(
        self, request: Command, header: ConsumerStatusQuery, members: list[Member[Connection]]
    ) -> bytes:
        query = TopicAndGroup(header.topic, header.group)
        found = await asyncio.gather(*[_status(member, query) for member in members])
        table = {
            member.client_id: msgspec.Raw(queue_map(offsets))
            for member, offsets in zip(members, found, strict=True)
            if offsets is not None
        }
        body = {"consumerTable": table, "messageQueueTable": {}}
        return answer(request, body=msgspec.json.encode(body))

    # 222

    def reset_offset(self, _: Connection, request: Command) -> bytes:
        """222: reset a connected group's offsets; its clients are notified and commit them."""
        header = request.read(ResetOffset)
        topic = self._topics.by_name.get(header.topic)
        if topic is None:
            raise InternalError(f"[reset-offset] no topic {header.topic} in this broker")
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise ConsumerOffline(
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}"
            )
        targets = {
            MessageQueue(self._identity.name, queue.number, topic.name): self._target(header, queue)
            for queue in _meant(topic, header.queue_id)
        }
        members = list(group.members.values())
        _refuse_old(members)
        reset = ResetOffset(header.topic, header.group, header.timestamp, header.is_force)
        for member in members:
            is_list = _CPP in (member.language, request.client_language)
            body = _as_list(targets) if is_list else with_queue_map("offsetTable", targets)
            try:
                member.connection.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, body=body)
            except ConnectionLost:
                continue  # The lost connection is handled elsewhere.
        return answer(request, body=with_queue_map("offsetTable", targets))

    def _target(self, header: ResetOffset, queue: ConsumeQueue) -> int:
        now = self._offsets.get(header.group, queue.topic, queue.number)
        if now is None:
            raise InternalError(f"The consumer group <{header.group}> not exist")
        if header.offset is not None and header.offset >= 0 and (header.queue_id or 0) >= 0:
            low, high = queue.min_offset, queue.max_offset
            if not low <= header.offset <= high:
                raise InternalError(
                    f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
                )
            return header.offset
        if header.timestamp < 0:
            target = queue.max_offset
        else:
            target = offset_by_time(self._store, queue, header.timestamp, "lower")
        return target if header.is_force else min(target, now)

    # 324, 325

    def reply(self, connection: Connection, request: Command) -> None:
        """324: pass a reply to the producer that waits for it; the header has long names."""
        self._reply(connection, request, request.read(SendMessage))

    def reply_v2(self, connection: Connection, request: Command) -> None:
        """325: like 324, but the header's names are single letters."""
        self._reply(connection, request, request.read(SendMessageV2))

    def _reply(self, connection: Connection, request: Command, header: SendMessage) -> None:
        topic = self._topics.for_sending(header.topic)
        if topic is None:
            raise TopicNotFound(f"topic[{header.topic}] not exist, apply first please!")
        text = header.properties or ""
        asker = properties.find(text, properties.REPLY_TO_CLIENT)
        if asker is None:
            raise InternalError("reply message properties[REPLY_TO_CLIENT] is null")
        to = self._clients.find_client(asker)
        if to is None:
            raise InternalError(f"push reply message fail, channel of <{asker}> not found.")
        now_ms = self._clock.wall_ms()
        push = ReplyPush(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp,
            header.flag,
            connection.address,
            self._identity.address,
            now_ms,
            properties.join(text, f"PUSH_REPLY_TIME\x01{now_ms}\x02"),
            header.reconsume_times,
            header.unit_mode,
        )
        self._later(connection, request, _push(to, request, push, asker))


async def _call(
    member: Member[Connection], request: Command, fields: dict[str, str], body: bytes = b""
) -> bytes:
    try:
        found = await member.connection.ask(request.code, fields, body=body, timeout_s=CALL_S)
    except RequestTimeout as error:
        raise ConsumeTimeout(f"consumer <{member.client_id}> Timeout: {error}") from error
    except TransportError as error:
        raise InternalError(f"consumer <{member.client_id}> is lost: {error}") from error
    return answer(request, found.code, found.field_map(), body=found.body, remark=found.remark)


async def _status(
    member: Member[Connection], query: TopicAndGroup
) -> dict[MessageQueue, int] | None:
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    try:
        found = await member.connection.request(code, query, timeout_s=STATUS_S)
        return read_queue_map(found.body, "messageQueueTable", int)
    except (TransportError, BrokerRefused, RemoteProtocolError) as error:
        log.warning("%s did not report its offsets: %s", member.client_id, error)
        return None


async def _push(to: Connection, request: Command, push: ReplyPush, asker: str) -> bytes:
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    try:
        found = await to.ask(code, push, body=request.body, timeout_s=CALL_S)
    except TransportError as error:
        raise InternalError(f"push reply message to {asker} fail: {error}") from error
    if found.code != SUCCESS:
        raise InternalError(f"push reply message to {asker} fail: {found.remark or found.code}")
    # The reply is pushed and not stored, so it has no position in the log.
    fields = {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": "0",
        "queueId": str(max(0, push.queue_id)),
        "queueOffset": "0",
    }
    return answer(request, SUCCESS, fields)


def _refuse_old(members: Iterable[Member[Connection]]) -> None:
    for member in members:
        if member.version < _KNOWS_OFFSETS:
            raise InternalError(f"the client {member.client_id} does not support this feature")


def _meant(topic: Topic, number: int | None) -> list[ConsumeQueue]:
    if number is None or number < 0:
        return topic.queues[: topic.config.write_queue_nums]
    if number >= len(topic.queues):
        raise InternalError(f"topic {topic.name} has no queue {number}")
    return [topic.queues[number]]


def _as_list(targets: dict[MessageQueue, int]) -> bytes:
    """The offsets as a list, for clients whose JSON does not support objects as keys."""
    rows = [
        {
            "brokerName": queue.broker_name,
            "offset": offset,
            "queueId": queue.queue_id,
            "topic": queue.topic,
        }
        for queue, offset in targets.items()
    ]
    return msgspec.json.encode({"offsetTable": rows})
