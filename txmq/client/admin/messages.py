"""Send, recall and pull messages, one request at a time.

These calls never retry: the error's ``effect`` says whether the message may be stored. Producers
that retry and consumers that share queues build on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from txmq.client.received_message import opened
from txmq.client.routes import TEMPLATE, TEMPLATE_QUEUES_MAX, Route
from txmq.client.send_request import Envelope, bundled, common_topic, result_of, results_of, sealed
from txmq.client.session import Session
from txmq.client.values import PulledBatch, PullOutcome, SendResult, StoredBatch
from txmq.errors import (
    ConnectFailed,
    IllegalOperation,
    InternalError,
    InvalidParameter,
    LimitExceeded,
    NoPermission,
    PullRetryImmediately,
    TopicNotFound,
    TxmqError,
    UsageError,
    refusal,
)
from txmq.limits import MESSAGE_BODY_BYTES_MAX, PULL_MESSAGES_MAX
from txmq.message import Message, Queue, QueueOffset, ReceivedMessage
from txmq.protocol import recall
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import PullAnswer, PullMessage, RecallAnswer, RecallMessage
from txmq.protocol.recall import RecallHandle
from txmq.protocol.record import split, unpack_all
from txmq.protocol.templates import SendHeaderTemplate
from txmq.protocol.topics import DLQ
from txmq.remoting.connection import PendingResponse

__all__ = ["ANY_TAG", "MessageCalls"]

ANY_TAG: Final = "*"
"""The expression that matches every message."""

PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
CONSUMER_GROUP: Final = "TOOLS_CONSUMER"

HOLD_GRACE_S: Final = 10.0
"""How much longer than a hold an answer may take: brokers end holds up to 5 s late."""

_OUTCOMES: Final = {
    0: PullOutcome.FOUND,
    19: PullOutcome.EMPTY,
    20: PullOutcome.NONE_MATCHED,
    21: PullOutcome.MOVED,
}
_ROUTE_IS_WRONG: Final = (ConnectFailed, NoPermission, InvalidParameter)


class MessageCalls:
    """Sends and pulls over a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def send(
        self, message: Message, queue: Queue | None = None, *, group: str = PRODUCER_GROUP
    ) -> SendResult:
        """Send a message to ``queue``, or by default to the next queue in rotation.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large.
            TransportError: No answer came; the subclass says whether it may be stored.
            BrokerRefused: The broker refused; the subclass says whether it stored the message
                anyway.
        """
        envelope = sealed(message, self._session.ids.next())
        return (await self._deliver(envelope, queue, group))[0]

    async def send_batch(
        self,
        messages: Sequence[Message],
        queue: Queue | None = None,
        *,
        group: str = PRODUCER_GROUP,
    ) -> list[SendResult]:
        """Send messages of one topic in one request; they are stored together, without a gap.

        Raises:
            LocalProtocolError: The protocol cannot carry these messages as one batch.
            LimitExceeded: They are too large together.
            TransportError: No answer came; the subclass says whether they may be stored.
            BrokerRefused: The broker refused; the subclass says whether it stored them anyway.
        """
        common_topic(messages)
        ids = self._session.ids
        envelope = bundled([sealed(message, ids.next(), compress=False) for message in messages])
        if len(envelope.body) > MESSAGE_BODY_BYTES_MAX:
            raise LimitExceeded("the size of a batch", MESSAGE_BODY_BYTES_MAX, len(envelope.body))
        return await self._deliver(envelope, queue, group)

    async def _deliver(
        self, envelope: Envelope, queue: Queue | None, group: str
    ) -> list[SendResult]:
        topic, session = envelope.topic, self._session
        if queue is None:
            queue, address = await session.queue_to_write(topic)
        elif queue.topic != topic:
            raise UsageError(f"a message for {topic} cannot go to a queue of {queue.topic}")
        else:
            address = await session.address_of(queue)
        form = SendHeaderTemplate(
            group, topic, TEMPLATE, TEMPLATE_QUEUES_MAX, queue.broker, session.credentials
        )
        try:
            connection = await session.connection(address)
            future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
            opaque = connection.number()
            head = form.head(
                opaque, queue.number, envelope.sys_flag, session.clock.wall_ms(), envelope.flag,
                envelope.properties, envelope.body, is_batch=bool(envelope.ids),
            )  # fmt: skip
            deadline = session.clock.monotonic() + session.answer_s
            connection.post(opaque, PendingResponse(future), deadline, head, envelope.body)
            try:
                answer = await future
            finally:
                connection.break_off(opaque)
            if envelope.ids:
                return results_of(answer, queue, envelope.ids)
            return [result_of(answer, queue, envelope.id)]
        except TxmqError as error:
            self._doubt_route(topic, queue.broker, error)
            raise

    async def recall(self, topic: str, handle: str | None, *, group: str = PRODUCER_GROUP) -> str:
        """Cancel a delayed message before it becomes visible.

        Args:
            topic: Its topic.
            handle: Its :attr:`SendResult.recall_handle`; only a delayed message has one.
            group: The producer group in whose name the message is recalled.

        Returns:
            The message's id.

        Raises:
            IllegalOperation: The handle is invalid, or the message is already visible.
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came; the subclass says whether it may be recalled.
            BrokerRefused: The broker refuses for another reason, or cannot recall messages.
            RemoteProtocolError: The answer does not name the message.
        """
        if handle is None:
            raise IllegalOperation(
                "this message has no recall handle: only a delayed one has, from a broker that "
                "recalls messages"
            )
        wanted = recall.decode(handle)
        if wanted.topic != topic:
            raise IllegalOperation(f"the handle is of a message for {wanted.topic}, not {topic}")
        session = self._session
        header = RecallMessage(topic, handle, group, wanted.broker)
        try:
            address = await self._where_it_waits(wanted)
            answer = await session.request(address, RequestCode.RECALL_MESSAGE, header)
        except TxmqError as error:
            self._doubt_route(topic, wanted.broker, error)
            raise
        return answer.read(RecallAnswer).msg_id

    async def _where_it_waits(self, handle: RecallHandle) -> str:
        try:
            return await self._session.address_of(Queue(handle.topic, handle.broker, 0))
        except TopicNotFound:
            # Name servers may not know the topic yet if this message created it.
            return (await self._session.route_to_write(handle.topic)).master(handle.broker)

    async def pull(
        self,
        queue: Queue,
        offset: int,
        count: int = PULL_MESSAGES_MAX,
        group: str = CONSUMER_GROUP,
        hold_ms: int = 0,
        *,
        tags: str = ANY_TAG,
        on_damage: Callable[[str], None] | None = None,
    ) -> PulledBatch:
        """Fetch messages of a queue, starting at an offset.

        Args:
            queue: The queue.
            offset: The offset of the first message.
            count: The maximum number of messages; a broker may return fewer.
            group: The consumer group; its offsets do not change.
            hold_ms: How long the broker waits for messages if the queue has none.
            tags: The accepted tags, separated by ``||``.
            on_damage: Called with the broker's text if the message at ``offset`` is damaged; the
                result is then empty and goes on behind the message.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refused for another reason than that it has no messages. The
                message at ``offset`` is damaged, say, and ``on_damage`` is not given.
            RemoteProtocolError: The answer is not a valid batch of messages.
        """
        try:
            answer = await self._pull(queue, offset, count, group, hold_ms, tags)
            if on_damage is not None and _is_about_damage(answer):
                on_damage(answer.remark or "")
                answer.code = PullRetryImmediately.code
            return _pulled(answer, queue.broker, tags)
        except TxmqError as error:
            self._doubt_route(queue.topic, queue.broker, error)
            raise

    async def pull_stored(
        self, queue: Queue, offset: int, count: int = PULL_MESSAGES_MAX
    ) -> StoredBatch:
        """Fetch the records of a queue as they are stored, for readers of whole logs.

        Args:
            queue: The queue; it may belong to a topic of the broker's own.
            offset: The offset of the first record.
            count: The maximum number of records; a broker may return fewer.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refused for another reason than that it has no records.
            RemoteProtocolError: The answer is not a valid batch of records.
        """
        try:
            answer = await self._pull(queue, offset, count)
            outcome, bounds = _bounds_in(answer)
            data = answer.body if outcome is PullOutcome.FOUND else b""
            return StoredBatch(outcome, tuple(split(data)), QueueOffset(bounds.next_begin_offset))
        except TxmqError as error:
            self._doubt_route(queue.topic, queue.broker, error)
            raise

    async def readable_queues(self, route: Route) -> tuple[tuple[Queue, ...], tuple[str, ...]]:
        """The queues of a topic that may be read, and the brokers that let nobody read theirs.

        The topics of dead letters permit writing only. txmq's brokers let them be read by name;
        RocketMQ's do not.

        Raises:
            TransportError: No answer came.
            BrokerRefused: The broker refused for another reason than the permission.
        """
        readable = {queue.broker for queue in route.readable}
        for broker in sorted({queue.broker for queue in route.dead}):
            try:
                await self.pull(next(queue for queue in route.dead if queue.broker == broker), 0, 1)
            except NoPermission:
                continue
            readable.add(broker)
        return (
            tuple(queue for queue in route.queues_to_read if queue.broker in readable),
            tuple(broker for broker in route.brokers if broker not in readable),
        )

    async def _pull(
        self,
        queue: Queue,
        offset: int,
        count: int,
        group: str = CONSUMER_GROUP,
        hold_ms: int = 0,
        tags: str = ANY_TAG,
    ) -> Command:
        address = await self._session.address_of(queue, reading=True)
        flags = PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if hold_ms > 0 else 0)
        header = PullMessage(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.number,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=int(flags),
            commit_offset=0,
            suspend_timeout_millis=hold_ms,
            sub_version=0,
            subscription=tags,
            expression_type="TAG",
            dead_letters=queue.topic.startswith(DLQ) or None,
        )
        timeout_s = hold_ms / 1000 + HOLD_GRACE_S
        connection = await self._session.connection(address)
        return await connection.ask(RequestCode.PULL_MESSAGE, header, timeout_s=timeout_s)

    def _doubt_route(self, topic: str, broker: str, error: TxmqError) -> None:
        if isinstance(error, TopicNotFound):
            self._session.remove(topic, broker)
        elif isinstance(error, _ROUTE_IS_WRONG):
            self._session.forget(topic)


def _is_about_damage(answer: Command) -> bool:
    """Whether txmq's broker refused a pull that begins with a damaged message."""
    return answer.code == InternalError.code and "nextBeginOffset" in answer.field_map()


def _bounds_in(answer: Command) -> tuple[PullOutcome, PullAnswer]:
    outcome = _OUTCOMES.get(answer.code)
    if outcome is None:
        raise refusal(answer.code, answer.remark or "")
    return outcome, answer.read(PullAnswer)


def _pulled(answer: Command, broker: str, tags: str) -> PulledBatch:
    outcome, bounds = _bounds_in(answer)
    messages: list[ReceivedMessage] = []
    if outcome is PullOutcome.FOUND:
        messages = [opened(record, broker) for record in unpack_all(answer.body)]
        if tags != ANY_TAG:
            # Brokers filter tags by hash; compare the text here.
            wanted = {word.strip() for word in tags.split("||")}
            messages = [message for message in messages if message.tags in wanted]
    return PulledBatch(
        outcome,
        tuple(messages),
        QueueOffset(bounds.next_begin_offset),
        QueueOffset(bounds.min_offset),
        QueueOffset(bounds.max_offset),
    )
