"""14, 15, 29 to 32, 41 to 43: offsets in queues, and locks of queues."""

from __future__ import annotations

from txmq.errors import InternalError, NotFound
from txmq.limits import YOUNG_LOG_BYTES
from txmq.protocol.bodies import ConsumerOffsets, LockedQueues, LockRequest
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import (
    OffsetAnswer,
    OffsetByTime,
    OffsetCommit,
    OffsetQuery,
    QueueHeader,
    TimestampAnswer,
)
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.core.clients import check_client_id, check_consumer_group
from txmq_broker.core.topics import check_name
from txmq_broker.parts import ReadParts
from txmq_broker.services.slices import LongAnswers, Steps, table_answer
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["OffsetHandlers", "offset_by_time"]


class OffsetHandlers:
    """Serves consumer offsets, the bounds of queues, and locks."""

    def __init__(self, parts: ReadParts) -> None:
        self._topics = parts.topics
        self._offsets = parts.offsets
        self._locks = parts.locks
        self._store = parts.store
        self._clock = parts.clock
        self._long = LongAnswers(parts.clock)

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        every = RequestCode.GET_ALL_CONSUMER_OFFSET
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.committed,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
            RequestCode.GET_MAX_OFFSET: self.newest,
            RequestCode.GET_MIN_OFFSET: self.oldest,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            every: self._long.handler(
                every, self.all_committed, lambda: len(self._offsets.pairs())
            ),
        }

    def committed(self, _: Connection, request: Command) -> bytes:
        """14: a group's offset; a new group starts a young queue at offset 0."""
        header = request.read(OffsetQuery)
        found = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if found is None:
            queue = self._store.find_queue(header.topic, header.queue_id)
            if header.set_zero_if_not_found is False or not self._is_young(queue):
                raise NotFound("not found, maybe this group consumes for the first time")
            found = 0
        return answer(request, 0, OffsetAnswer(found))

    def _is_young(self, queue: ConsumeQueue | None) -> bool:
        if queue is None or queue.max_offset == 0:
            return True
        first = queue.read(0, 1) if queue.min_offset == 0 else []
        return bool(first) and self._store.log.end - first[0][0] <= YOUNG_LOG_BYTES

    def commit(self, _: Connection, request: Command) -> bytes:
        """15: a group commits its offset."""
        header = request.read(OffsetCommit)
        check_consumer_group(header.consumer_group)
        check_name(header.topic)
        # The Node client sends -1 before it has consumed anything; that is not an error.
        if header.commit_offset >= 0:
            self._offsets.put(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        return answer(request)

    def by_time(self, _: Connection, request: Command) -> bytes:
        """29: the offset of the message stored at a time, by the given boundary."""
        header = request.read(OffsetByTime)
        queue = self._queue(header.topic, header.queue_id)
        found = offset_by_time(self._store, queue, header.timestamp, header.boundary_type)
        return answer(request, 0, OffsetAnswer(found))

    def newest(self, _: Connection, request: Command) -> bytes:
        """30: the offset after the last message."""
        header = request.read(QueueHeader)
        queue = self._queue(header.topic, header.queue_id)
        return answer(request, 0, OffsetAnswer(queue.max_offset))

    def oldest(self, _: Connection, request: Command) -> bytes:
        """31: the offset of the first message."""
        header = request.read(QueueHeader)
        queue = self._queue(header.topic, header.queue_id)
        return answer(request, 0, OffsetAnswer(queue.min_offset))

    def earliest_time(self, _: Connection, request: Command) -> bytes:
        """32: the store time of the first message."""
        header = request.read(QueueHeader)
        queue = self._queue(header.topic, header.queue_id)
        found = self._store.stored_ms(queue, queue.min_offset)
        return answer(request, 0, TimestampAnswer(-1 if found is None else found))

    def _queue(self, topic: str, number: int) -> ConsumeQueue:
        known = self._topics.get(topic)
        if not 0 <= number < len(known.queues):
            raise InternalError(f"topic {topic} has no queue {number}")
        return known.queues[number]

    def lock(self, _: Connection, request: Command) -> bytes:
        """41: a consumer locks queues."""
        wanted = LockRequest.read(request.body)
        check_consumer_group(wanted.consumer_group)
        check_client_id(wanted.client_id)
        owned = self._locks.lock(
            wanted.consumer_group, wanted.client_id, wanted.mq_set, self._clock.monotonic()
        )
        return answer(request, body=LockedQueues(owned).write())

    def unlock(self, _: Connection, request: Command) -> bytes:
        """42: a consumer unlocks queues."""
        given = LockRequest.read(request.body)
        self._locks.unlock(given.consumer_group, given.client_id, given.mq_set)
        return answer(request)

    def all_committed(self, request: Command) -> Steps:
        """43: all groups' offsets, for replicas and tools."""
        return (yield from table_answer(request, ConsumerOffsets(), self._offsets.rows()))


def offset_by_time(
    store: MessageStore, queue: ConsumeQueue, when_ms: int, boundary: str | None
) -> int:
    """The offset of the message stored nearest to a time.

    Without a boundary RocketMQ 4.9's rule applies: the nearer neighbour, or the earlier one if both
    are equally near; for any later time, the last message. ``lower`` gives the first message at or
    after the time, ``upper`` the last one at or before it.
    """
    low, high = queue.min_offset, queue.max_offset
    end = high
    while low < high:
        middle = (low + high) // 2
        kept = queue.next_kept(middle)
        stored = store.stored_ms(queue, kept) if kept < high else when_ms
        if stored is None or stored < when_ms:
            low = kept + 1
        else:
            high = middle
    first = queue.min_offset
    low = queue.next_kept(low)
    at_or_after = store.stored_ms(queue, low) if low < end else None
    kind = (boundary or "").lower()
    if kind == "lower":
        return low
    if at_or_after == when_ms:
        return _last_equal(store, queue, low, end, when_ms) if kind == "upper" else low
    if kind == "upper":
        return max(low - 1, first)
    if first in (low, end):
        return first
    before = store.stored_ms(queue, low - 1)
    if at_or_after is None or before is None:
        return low - 1
    return low - 1 if when_ms - before <= at_or_after - when_ms else low


def _last_equal(store: MessageStore, queue: ConsumeQueue, low: int, high: int, when_ms: int) -> int:
    while low + 1 < high:
        middle = (low + high) // 2
        stored = store.stored_ms(queue, middle)
        if stored is not None and stored <= when_ms:
            low = middle
        else:
            high = middle
    return low
