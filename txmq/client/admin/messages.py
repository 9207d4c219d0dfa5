"""Send, recall, pull and look up messages, one request at a time.

These calls never retry: the error's ``effect`` says whether the message may be stored. Producers
that retry and consumers that share queues build on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from txmq.client.admin.cluster import ClusterCalls
from txmq.client.observe.trace_records import DecisionRecord, SendRecord, TraceRecord, decode
from txmq.client.received_message import opened
from txmq.client.routes import TEMPLATE, TEMPLATE_QUEUES_MAX, Route
from txmq.client.send_request import Envelope, bundled, common_topic, result_of, results_of, sealed
from txmq.client.session import Fields
from txmq.client.values import BrokerInfo, PulledBatch, PullOutcome, SendResult, StoredBatch
from txmq.errors import (
    BrokerRefused,
    ConnectFailed,
    IllegalOperation,
    InternalError,
    InvalidParameter,
    LimitExceeded,
    LocalProtocolError,
    NoPermission,
    NotFound,
    PullRetryImmediately,
    RemoteProtocolError,
    TopicNotFound,
    TxmqError,
    UsageError,
    refusal,
)
from txmq.limits import MESSAGE_BODY_BYTES_MAX, PULL_MESSAGES_MAX
from txmq.message import Message, Queue, QueueOffset, ReceivedMessage
from txmq.protocol import recall
from txmq.protocol.bodies import QueueEntries
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.command import Command, fields_of
from txmq.protocol.headers import (
    MessagePosition,
    MessageQuery,
    OffsetAnswer,
    PullAnswer,
    PullMessage,
    QueueEntriesQuery,
    QueueHeader,
    RecallAnswer,
    RecallMessage,
)
from txmq.protocol.recall import RecallHandle
from txmq.protocol.record import split, split_offset_id, unpack, unpack_all
from txmq.protocol.templates import SendHeaderTemplate
from txmq.protocol.topics import DLQ, TRACES
from txmq.remoting.connection import PendingResponse
from txmq.settings.units import DurationLike, seconds

__all__ = ["ANY_TAG", "MessageCalls"]

ANY_TAG: Final = "*"
"""The expression that matches every message."""
PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
CONSUMER_GROUP: Final = "TOOLS_CONSUMER"
TIME_MAX: Final = 2**63 - 1
HOLD_GRACE_S: Final = 10.0
"""Extra time for an answer after the hold time: brokers end holds up to 5 s late."""

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""The field that marks the key as a message id."""
_UNIQUE_KEY_HITS: Final = 32
"""How many messages with one id to fetch; a producer may have sent its message several times."""
_VIEWS_AT_ONCE: Final = 8
"""How many records of an index to request concurrently."""
_OUTCOMES: Final = {
    0: PullOutcome.FOUND,
    19: PullOutcome.EMPTY,
    20: PullOutcome.NONE_MATCHED,
    21: PullOutcome.MOVED,
}
_ROUTE_IS_WRONG: Final = (ConnectFailed, NoPermission, InvalidParameter)


class MessageCalls(ClusterCalls):
    """Requests about messages."""

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
                envelope.properties, envelope.body, code=envelope.code,
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
            TransportError: No answer came; the subclass says whether the message may have been
                recalled.
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
        header = RecallMessage(topic, handle, group, wanted.broker)
        try:
            address = await self._where_it_waits(wanted)
            answer = await self._session.request(address, RequestCode.RECALL_MESSAGE, header)
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
        *,
        hold: DurationLike = 0.0,
        tags: str = ANY_TAG,
        on_damage: Callable[[str], None] | None = None,
    ) -> PulledBatch:
        """Fetch messages of a queue, starting at an offset.

        Args:
            queue: The queue.
            offset: The offset of the first message.
            count: The maximum number of messages; a broker may return fewer.
            group: The consumer group; its offsets do not change.
            hold: How long the broker waits for messages if the queue has none.
            tags: The accepted tags, separated by ``||``.
            on_damage: Called with the broker's text if the message at ``offset`` is damaged; the
                result is then empty and continues after the message.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refused for a reason other than having no messages; for
                instance, the message at ``offset`` is damaged and ``on_damage`` is missing.
            RemoteProtocolError: The answer is not a valid batch of messages.
        """
        try:
            hold_ms = int(seconds("hold", hold) * 1000)
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
        """Fetch a queue's records in their stored form, for readers of whole logs.

        Args:
            queue: The queue; it may belong to one of the broker's internal topics.
            offset: The offset of the first record.
            count: The maximum number of records; a broker may return fewer.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refused for a reason other than having no records.
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
        """The readable queues of a topic, and the brokers whose queues are not readable.

        Dead letter topics are write-only. txmq brokers still serve pulls that ask for dead letters;
        RocketMQ's do not.

        Raises:
            TransportError: No answer came.
            BrokerRefused: The broker refused for a reason other than the permission.
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
        """Forget a topic's route after an error that an outdated route would explain."""
        if isinstance(error, TopicNotFound):
            self._session.remove(topic, broker)
        elif isinstance(error, _ROUTE_IS_WRONG):
            self._session.forget(topic)

    async def view(self, offset_id: str) -> ReceivedMessage:
        """The message that an offset id points to.

        Raises:
            LocalProtocolError: The offset id is invalid.
            TransportError: The broker it names does not answer.
            BrokerRefused: No message is stored at that place.
        """
        try:
            address, position = split_offset_id(offset_id)
        except RemoteProtocolError as error:
            raise LocalProtocolError(str(error)) from error
        record = unpack(await self._record_at(address, position))[0]
        holders = [info.name for info in await self.cluster() if address in info.addresses.values()]
        return opened(record, holders[0] if holders else "")

    async def query(
        self, topic: str, key: str, *, count: int = 64, begin_ms: int = 0, end_ms: int = TIME_MAX
    ) -> list[ReceivedMessage]:
        """The messages of a topic that carry a key, oldest first.

        Args:
            topic: The topic.
            key: The key.
            count: The maximum number of messages from each broker.
            begin_ms: Stored at this time or later.
            end_ms: Stored at this time or earlier.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found = await self._query(topic, MessageQuery(topic, key, count, begin_ms, end_ms))
        # Brokers look up by hash; drop messages whose key only has the same hash.
        return [message for message in found if key in message.keys]

    async def find(self, topic: str, message_id: str) -> ReceivedMessage:
        """The message with a producer's id; the first one if it was sent twice.

        Raises:
            NotFound: No broker has it.
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found = await self._sent_as(topic, message_id)
        if not found:
            raise NotFound(f"topic {topic} has no message {message_id}")
        return found[0]

    async def traces(
        self, topic: str, message_id: str, *, trace_topic: str = TRACES
    ) -> list[TraceRecord]:
        """The trace records of a message, the oldest first.

        Raises:
            TopicNotFound: No broker has the topic of the traces.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found = await self.query(trace_topic, message_id)
        records = [record for message in found for record in decode(message.body)]
        wanted = [record for record in records if _is_about(record, topic, message_id)]
        # A trace message exists twice if its producer received no answer to the first send.
        return sorted(dict.fromkeys(wanted), key=lambda record: record.at_ms)

    async def search(
        self, topic: str, text: str, brokers: Iterable[BrokerInfo], *, count: int = 32
    ) -> list[ReceivedMessage]:
        """The messages of a topic whose id, or one of whose keys, equals a text, oldest first.

        It asks the brokers directly, so that a search of thousands of topics queries no name server
        and caches no routes.

        Args:
            topic: The topic; brokers without it have no such message.
            text: A whole key, or a producer's id.
            brokers: The brokers to ask, from :meth:`cluster`.
            count: The maximum number of messages from each broker.

        Raises:
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        header = MessageQuery(topic, text, count, 0, TIME_MAX)
        addresses = {broker.name: broker.addresses[min(broker.addresses)] for broker in brokers}
        found = await self._query_at(addresses, header, (NotFound, TopicNotFound))
        # Brokers look up by hash; drop messages whose key only has the same hash.
        return [message for message in found if text in message.keys or text == message.id]

    async def index_bounds(self, queue: Queue) -> tuple[QueueOffset, QueueOffset]:
        """The offsets of a queue's oldest record, and of its next one.

        The name servers need not know the topic, as for :meth:`read_index`.

        Raises:
            ConfigError: The broker is unknown.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        address = await self._master(queue.broker)
        return await self._bounds_at(address, queue)

    async def read_index(
        self, queue: Queue, offset: int, count: int = PULL_MESSAGES_MAX
    ) -> StoredBatch:
        """Fetch the records of a queue that cannot be pulled, as they are stored.

        Apache RocketMQ before version 5 has no settings for the topic of its op messages: name
        servers do not know it, and pulls are refused. Its brokers do return the entries of the
        queue's index, and then each record by its position, in one request per record.

        Args:
            queue: The queue.
            offset: The offset of the first record.
            count: The maximum number of records; fewer may be returned.

        Returns:
            The records. The outcome is ``MOVED`` without records if the first one was deleted.

        Raises:
            ConfigError: The broker is unknown.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
            RemoteProtocolError: An answer is invalid, or the index names another record.
        """
        address = await self._master(queue.broker)
        header = QueueEntriesQuery(queue.topic, queue.number, offset, min(count, PULL_MESSAGES_MAX))
        answer = await self._session.request(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        # For an offset without an entry, RocketMQ sends no body.
        entries = QueueEntries.read(answer.body).queue_data[: header.count] if answer.body else []
        if not entries:
            low, high = await self._bounds_at(address, queue)
            nearest = QueueOffset(min(max(offset, low), high))
            outcome = PullOutcome.EMPTY if nearest == offset else PullOutcome.MOVED
            return StoredBatch(outcome, (), nearest)
        records: list[bytes] = []
        for start in range(0, len(entries), _VIEWS_AT_ONCE):
            some = enumerate(entries[start : start + _VIEWS_AT_ONCE], offset + start)
            found = await asyncio.gather(
                *[self._indexed(address, queue, at, entry.physic_offset) for at, entry in some]
            )
            kept = list(takewhile(bool, found))
            records += kept
            if len(kept) < len(found):
                break
        outcome = PullOutcome.FOUND if records else PullOutcome.MOVED
        return StoredBatch(outcome, tuple(records), QueueOffset(offset + max(1, len(records))))

    async def _indexed(self, address: str, queue: Queue, offset: int, position: int) -> bytes:
        """The record at a position that the index names; empty if it was deleted since."""
        try:
            stored = await self._record_at(address, position)
        except InternalError:
            return b""
        record = unpack(stored, errors="replace")[0]
        found = Queue(record.topic, queue.broker, record.queue_id)
        if (found, record.queue_offset) != (queue, offset):
            raise RemoteProtocolError(
                f"the index of {queue} names position {position} for its message {offset}; "
                f"message {record.queue_offset} of {found} is there"
            )
        return stored

    async def _record_at(self, address: str, position: int) -> bytes:
        code, header = RequestCode.VIEW_MESSAGE_BY_ID, MessagePosition(position)
        return (await self._session.request(address, code, header)).body

    async def _bounds_at(self, address: str, queue: Queue) -> tuple[QueueOffset, QueueOffset]:
        header = QueueHeader(queue.topic, queue.number)
        high = await self._session.request(address, RequestCode.GET_MAX_OFFSET, header)
        low = await self._session.request(address, RequestCode.GET_MIN_OFFSET, header)
        oldest, following = low.read(OffsetAnswer).offset, high.read(OffsetAnswer).offset
        return QueueOffset(oldest), QueueOffset(following)

    async def _sent_as(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """The messages with a producer's id, oldest first."""
        header = fields_of(MessageQuery(topic, message_id, _UNIQUE_KEY_HITS, 0, TIME_MAX))
        found = await self._query(topic, header | {_UNIQUE_KEY_QUERY: "true"})
        return [message for message in found if message.id == message_id]

    async def _query(self, topic: str, header: Fields) -> list[ReceivedMessage]:
        route = await self._session.route(topic)
        addresses = {broker: route.reader(broker) for broker in route.brokers}
        return await self._query_at(addresses, header, NotFound)

    async def _query_at(
        self,
        addresses: Mapping[str, str],
        header: Fields,
        unless: type[BrokerRefused] | tuple[type[BrokerRefused], ...],
    ) -> list[ReceivedMessage]:
        """The messages that brokers find, by name and address, oldest first."""
        found: list[ReceivedMessage] = []
        for broker, address in addresses.items():
            try:
                answer = await self._session.request(address, RequestCode.QUERY_MESSAGE, header)
            except unless:
                continue
            found += [opened(record, broker) for record in unpack_all(answer.body)]
        return sorted(found, key=lambda message: (message.stored_ms, message.queue, message.offset))


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


def _is_about(record: TraceRecord, topic: str, message_id: str) -> bool:
    if isinstance(record, SendRecord | DecisionRecord) and record.topic != topic:
        return False
    return record.id == message_id
