"""Look up stored messages: by place in a log or an index, by key, by the producer's id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from txmq.client.admin.cluster import ClusterCalls
from txmq.client.observe.trace_records import DecisionRecord, SendRecord, TraceRecord, decode
from txmq.client.received_message import opened
from txmq.client.values import BrokerInfo, PullOutcome, StoredBatch
from txmq.errors import (
    InternalError,
    LocalProtocolError,
    NotFound,
    RemoteProtocolError,
    TopicNotFound,
)
from txmq.limits import PULL_MESSAGES_MAX
from txmq.message import Queue, QueueOffset, ReceivedMessage
from txmq.protocol.bodies import QueueEntries
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import fields_of
from txmq.protocol.headers import (
    MessagePosition,
    MessageQuery,
    OffsetAnswer,
    QueueEntriesQuery,
    QueueHeader,
)
from txmq.protocol.record import split_offset_id, unpack, unpack_all
from txmq.protocol.topics import TRACES

__all__ = ["LookupCalls"]

TIME_MAX: Final = 2**63 - 1

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""The field that marks the key as a message's id."""

UNIQUE_KEY_HITS: Final = 32
"""The maximum number of messages for one id, since a message may be sent again."""

_VIEWS_AT_ONCE: Final = 8
"""Requests for single records that one reader of an index has open."""


class LookupCalls(ClusterCalls):
    """Requests about single messages."""

    async def view(self, offset_id: str) -> ReceivedMessage:
        """The message at the place that an offset id names.

        Raises:
            LocalProtocolError: The offset id is invalid.
            TransportError: The broker it names does not answer.
            BrokerRefused: No message is stored at that place.
        """
        try:
            address, position = split_offset_id(offset_id)
        except RemoteProtocolError as error:
            raise LocalProtocolError(str(error)) from error
        answer = await self._session.request(
            address, RequestCode.VIEW_MESSAGE_BY_ID, MessagePosition(position)
        )
        holders = [info.name for info in await self.cluster() if address in info.addresses.values()]
        return opened(unpack(answer.body)[0], holders[0] if holders else "")

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
        header = fields_of(MessageQuery(topic, key, count, begin_ms, end_ms))
        found = await self._query(topic, header)
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
        header = fields_of(MessageQuery(topic, message_id, UNIQUE_KEY_HITS, 0, TIME_MAX))
        header[UNIQUE_KEY_QUERY] = "true"
        for message in await self._query(topic, header):
            if message.id == message_id:
                return message
        raise NotFound(f"topic {topic} has no message {message_id}")

    async def traces(
        self, topic: str, message_id: str, *, trace_topic: str = TRACES
    ) -> list[TraceRecord]:
        """What traced clients have recorded about a message, the oldest first.

        Raises:
            TopicNotFound: No broker has the topic of the traces.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found = await self.query(trace_topic, message_id)
        records = [record for message in found for record in decode(message.body)]
        wanted = [record for record in records if _is_about(record, topic, message_id)]
        # A trace message exists twice if its producer had no answer to the first send.
        return sorted(dict.fromkeys(wanted), key=lambda record: record.at_ms)

    async def search(
        self, topic: str, text: str, brokers: Iterable[BrokerInfo], *, count: int = 32
    ) -> list[ReceivedMessage]:
        """The messages of a topic that have a text as a key or as their id, oldest first.

        It asks the brokers without looking for the topic's route, so a search of very many topics
        neither asks name servers nor keeps their routes.

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
        found: list[ReceivedMessage] = []
        for broker in brokers:
            address = broker.addresses[min(broker.addresses)]
            try:
                answer = await self._session.request(address, RequestCode.QUERY_MESSAGE, header)
            except (NotFound, TopicNotFound):
                continue
            # Brokers look up by hash; drop messages whose key only has the same hash.
            found += [
                message
                for message in (opened(record, broker.name) for record in unpack_all(answer.body))
                if text in message.keys or text == message.id
            ]
        return sorted(found, key=lambda message: message.stored_ms)

    async def index_bounds(self, queue: Queue) -> tuple[QueueOffset, QueueOffset]:
        """The offsets of a queue's oldest record, and of its next one.

        The name servers need not know the topic, as for :meth:`read_index`.

        Raises:
            ConfigError: The broker is unknown.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        (address,) = (await self._masters(broker=queue.broker)).values()
        return await self._bounds_at(address, queue)

    async def read_index(
        self, queue: Queue, offset: int, count: int = PULL_MESSAGES_MAX
    ) -> StoredBatch:
        """Fetch the records of a queue that cannot be pulled, as they are stored.

        Apache RocketMQ before version 5 has no settings for the topic of its op messages: name
        servers do not know it, and pulls are refused. Its brokers do show the entries of the
        queue's index, and then each record by its position, with one request for each.

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
        (address,) = (await self._masters(broker=queue.broker)).values()
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
        header = MessagePosition(position)
        try:
            answer = await self._session.request(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except InternalError:
            return b""
        record = unpack(answer.body, errors="replace")[0]
        found = Queue(record.topic, queue.broker, record.queue_id)
        if (found, record.queue_offset) != (queue, offset):
            raise RemoteProtocolError(
                f"the index of {queue} names position {position} for its message {offset}; "
                f"message {record.queue_offset} of {found} is there"
            )
        return answer.body

    async def _bounds_at(self, address: str, queue: Queue) -> tuple[QueueOffset, QueueOffset]:
        header = QueueHeader(queue.topic, queue.number)
        high = await self._session.request(address, RequestCode.GET_MAX_OFFSET, header)
        low = await self._session.request(address, RequestCode.GET_MIN_OFFSET, header)
        oldest, following = low.read(OffsetAnswer).offset, high.read(OffsetAnswer).offset
        return QueueOffset(oldest), QueueOffset(following)

    async def _query(self, topic: str, header: dict[str, str]) -> list[ReceivedMessage]:
        route = await self._session.route(topic)
        found: list[ReceivedMessage] = []
        for broker in route.brokers:
            address = route.reader(broker)
            try:
                answer = await self._session.request(address, RequestCode.QUERY_MESSAGE, header)
            except NotFound:
                continue
            found += [opened(record, broker) for record in unpack_all(answer.body)]
        return sorted(found, key=lambda message: (message.stored_ms, message.queue, message.offset))


def _is_about(record: TraceRecord, topic: str, message_id: str) -> bool:
    if isinstance(record, SendRecord | DecisionRecord) and record.topic != topic:
        return False
    return record.id == message_id
