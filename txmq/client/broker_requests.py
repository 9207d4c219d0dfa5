"""The requests that brokers send to a client: 39, 40, 220, 221, 307, 309, 326.

A request is answered at once, or by a task of the client if a handler of the application has to run
first.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from txmq.client.received_message import received
from txmq.client.replies import Replies
from txmq.errors import InternalError, RequestNotSupported
from txmq.limits import RELAYED_MAX
from txmq.message import Queue, QueueOffset, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.bodies import (
    ConsumedDirectly,
    HeldQueue,
    MessageQueue,
    SubscriptionData,
    queue_map,
    read_queue_map,
    with_queue_map,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import (
    CheckState,
    ConsumeDirectly,
    GroupHeader,
    ReplyPush,
    ResetOffset,
    TopicAndGroup,
)
from txmq.protocol.record import Record, host_bytes, unpack
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.clock import Clock
from txmq.runtime.tasks import Tasks

__all__ = ["BrokerRequests", "Consuming", "Home", "TransactionOwner"]

log = logging.getLogger(__name__)

_SUCCESS: Final = "CR_SUCCESS"
_LATER: Final = "CR_LATER"
_RAISED: Final = "CR_THROW_EXCEPTION"


@runtime_checkable
class TransactionOwner(Protocol):
    """A producer that can report the state of its transactions."""

    def check(self, connection: Connection, header: CheckState, message: ReceivedMessage) -> None:
        """Handle a broker's check of a half message; the answer, if any, is an END."""
        ...


@runtime_checkable
class Consuming(Protocol):
    """A consumer that brokers can inspect and move."""

    @property
    def is_orderly(self) -> bool:
        """Whether it consumes each queue in order."""
        ...

    def positions(self) -> Mapping[Queue, QueueOffset]:
        """The consumed offset of each queue that it holds."""
        ...

    def held(self) -> Mapping[Queue, HeldQueue]:
        """The queues that it holds, for operators."""
        ...

    def subscribed(self) -> Sequence[SubscriptionData]:
        """Its subscriptions."""
        ...

    async def move(self, offsets: Mapping[Queue, int]) -> None:
        """Move to other offsets in queues that it holds."""
        ...

    async def handle(self, message: ReceivedMessage) -> object:
        """Handle one message outside its queue; ``None`` if it is consumed."""
        ...


class Home(Protocol):
    """The client that the groups belong to."""

    @property
    def tasks(self) -> Tasks:
        """Its background tasks."""
        ...

    def producer(self, group: str) -> object | None:
        """The member that produces for a group."""
        ...

    def consumer(self, group: str) -> object | None:
        """The member that consumes for a group."""
        ...

    def rebalance_soon(self, group: str | None = None) -> None:
        """Make consumers rebalance soon."""
        ...

    @property
    def replies(self) -> Replies:
        """The awaited replies."""
        ...


class BrokerRequests:
    """Answers brokers' requests for a client's groups."""

    def __init__(self, home: Home, clock: Clock, names: str) -> None:
        self._home = home
        self._clock = clock
        self._names = names
        self._started_ms = clock.wall_ms()

    def table(self) -> dict[int, Handler]:
        """The method for each request code."""
        return {
            RequestCode.CHECK_TRANSACTION_STATE: self.check,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.reply,
        }

    # Producers

    def check(self, connection: Connection, request: Command) -> None:
        """39: check a half message. For an unknown group, the next check may find a member."""
        header = request.read(CheckState)
        message = received(unpack(request.body)[0], "")
        group = message.properties.get(properties.PRODUCER_GROUP, "")
        producer = self._home.producer(group)
        check = getattr(
            producer, "check", None
        )  # An isinstance check of a protocol takes as long as a send.
        if check is not None:
            check(connection, header, message)
        else:
            log.warning("no producer here knows the transaction %s of %s", message.id, group)

    def reply(self, connection: Connection, request: Command) -> bytes:
        """326: the answer to a request that was sent as a message."""
        del connection
        header = request.read(ReplyPush)
        text = header.properties or ""
        message = received(_record(header, request.body, text), "")
        correlation = properties.find(text, properties.CORRELATION_ID) or ""
        if not self._home.replies.came(correlation, message):
            log.info("a reply to %s came too late", header.producer_group)
        return answer(request)

    # Consumers

    def members_changed(self, connection: Connection, request: Command) -> None:
        """40: a member joined or left a group."""
        del connection
        self._home.rebalance_soon(request.read(GroupHeader).consumer_group)

    def reset(self, connection: Connection, request: Command) -> None:
        """220: move to other offsets."""
        del connection
        header = request.read(ResetOffset)
        consumer = self._consumer(header.group)
        table = read_queue_map(request.body, "offsetTable", int)
        offsets = {Queue(q.topic, q.broker_name, q.queue_id): at for q, at in table.items()}
        self._start(consumer.move(offsets), f"offset reset of {header.group}")

    def status(self, connection: Connection, request: Command) -> bytes:
        """221: report the consumed offset of each queue."""
        del connection
        header = request.read(TopicAndGroup)
        positions = self._consumer(header.group).positions()
        table = {_named(q): int(at) for q, at in positions.items() if q.topic == header.topic}
        return answer(request, body=with_queue_map("messageQueueTable", table))

    def running_info(self, connection: Connection, request: Command) -> bytes:
        """307: report this consumer's status."""
        del connection
        consumer = self._consumer(request.read(ConsumeDirectly).consumer_group)
        held = {
            _named(q): msgspec.to_builtins(held_queue) for q, held_queue in consumer.held().items()
        }
        about = {
            "PROP_NAMESERVER_ADDR": self._names,
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": "true" if consumer.is_orderly else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CLIENT_VERSION": "V4_9_8",
        }
        body = {
            "properties": about,
            "subscriptionSet": list(consumer.subscribed()),
            "mqTable": msgspec.Raw(queue_map(held)),
            "mqPopTable": {},
            "statusTable": {},
            "jstack": None,
        }
        return answer(request, body=msgspec.json.encode(body))

    def consume(self, connection: Connection, request: Command) -> None:
        """309: handle this one message now."""
        header = request.read(ConsumeDirectly)
        consumer = self._consumer(header.consumer_group)
        broker = request.field_map().get("brokerName", "")
        message = received(unpack(request.body)[0], broker)
        self._start(self._consume(connection, request, consumer, message), "one message by hand")

    async def _consume(
        self,
        connection: Connection,
        request: Command,
        consumer: Consuming,
        message: ReceivedMessage,
    ) -> None:
        since = self._clock.monotonic()
        result, remark = _SUCCESS, ""
        try:
            if await consumer.handle(message) is not None:
                result = _LATER
        except Exception as error:
            # The operator receives the error; the message keeps its place.
            log.exception("a handler failed with message %s", message.id)
            result, remark = _RAISED, f"{type(error).__name__}: {error}"
        spent_ms = int((self._clock.monotonic() - since) * 1000)
        consumed = ConsumedDirectly(consumer.is_orderly, True, result, remark, spent_ms)
        connection.send(answer(request, body=consumed.write()))

    def _consumer(self, group: str) -> Consuming:
        consumer = self._home.consumer(group)
        if consumer is None:
            raise InternalError(f"The Consumer Group <{group}> not exist in this client")
        if not isinstance(consumer, Consuming):
            raise RequestNotSupported(f"the consumer of {group} handles no messages by itself")
        return consumer

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if len(self._home.tasks) >= RELAYED_MAX:
            work.close()
            raise InternalError("too many requests of brokers are being worked on")
        self._home.tasks.start(work, name)


def _named(queue: Queue) -> MessageQueue:
    return MessageQueue(queue.broker, queue.number, queue.topic)


def _record(header: ReplyPush, body: bytes, text: str) -> Record:
    def host(address: str) -> bytes:
        name, _, port = address.lstrip("/").rpartition(":")
        try:
            return host_bytes(name.strip("[]"), int(port))
        except ValueError:
            return bytes(8)

    return Record(
        queue_id=header.queue_id, flag=header.flag, queue_offset=0, position=0,
        sys_flag=header.sys_flag, born_ms=header.born_timestamp, born_host=host(header.born_host),
        stored_ms=header.store_timestamp, store_host=host(header.store_host),
        attempts=header.reconsume_times or 0, prepared_position=0, body=body,
        topic=header.topic, properties=text,
    )  # fmt: skip
