"""Messages that wait a moment for others, to travel with them in one request.

A lane holds what goes the same way: the messages of one topic whose queue is chosen by turn, or
those for one queue. Batches of the first kind are on their way side by side, each to the queue
whose turn it is; of the second kind there is one at a time, so that a queue gets its messages in
the order they were given, also where an attempt fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from txmq.client.delivery import Delivery, retold
from txmq.client.envelope import Envelope, Packing, compressed
from txmq.client.parcel import STORED_BYTES, Parcel, bundled, packed_size
from txmq.client.post import Post
from txmq.client.values import SendResult
from txmq.errors import Effect, TxmqError, UsageError
from txmq.limits import BATCH_MESSAGES_MAX, SPAN_BYTES_MAX
from txmq.message import Queue

__all__ = ["Gathering"]


class _Item(NamedTuple):
    envelope: Envelope
    future: asyncio.Future[SendResult]
    size: int


class _Lane:
    """What goes one way."""

    __slots__ = ("bytes", "full", "is_busy", "items", "queue", "timer", "topic")

    def __init__(self, topic: str, queue: Queue | None) -> None:
        self.topic = topic
        self.queue = queue
        self.items: list[_Item] = []
        self.bytes = 0
        self.full: deque[list[_Item]] = deque()
        self.timer: asyncio.TimerHandle | None = None
        self.is_busy = False


class Gathering:
    """The lanes of one producer.

    Args:
        post: Who carries what was gathered.
        packing: How a message is made ready that travels alone after all.
    """

    def __init__(self, post: Post, packing: Packing) -> None:
        settings = post.settings
        self._post = post
        self._packing = packing
        self._linger_s = settings.linger_s
        self._bytes_max = min(settings.linger_bytes, settings.body_bytes_max)
        # What many small messages take in a broker's log has a bound of its own.
        stored = max(1, (SPAN_BYTES_MAX - self._bytes_max) // STORED_BYTES)
        self._count_max = min(settings.linger_messages, BATCH_MESSAGES_MAX, stored)
        self._lanes: dict[tuple[str, Queue | None], _Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, envelope: Envelope, queue: Queue | None, size: int) -> asyncio.Future[SendResult]:
        """Let a message wait for others.

        Args:
            envelope: The message, not compressed; such as may travel in a batch.
            queue: Its queue; by turn where it is ``None``.
            size: The bytes it counts for; they are counted already.

        Raises:
            LocalProtocolError: No batch can hold it.
        """
        packed = packed_size(envelope)
        future: asyncio.Future[SendResult] = self._post.loop.create_future()
        where = envelope.topic, queue
        lane = self._lanes.get(where)
        if lane is not None and lane.items and lane.bytes + packed > self._bytes_max:
            self._flush(lane)
            lane = self._lanes.get(where)  # An empty one is gone.
        if lane is None:
            lane = self._lanes[where] = _Lane(envelope.topic, queue)
        lane.items.append(_Item(envelope, future, size))
        lane.bytes += packed
        if lane.bytes >= self._bytes_max or len(lane.items) >= self._count_max:
            self._flush(lane)
        elif lane.timer is None:
            lane.timer = self._post.loop.call_later(self._linger_s, self._flush, lane)
        return future

    def flush(self) -> None:
        """Let nobody wait any longer."""
        for lane in list(self._lanes.values()):
            self._flush(lane)

    def _flush(self, lane: _Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        if lane.items:
            lane.full.append(lane.items)
            lane.items, lane.bytes = [], 0
        self._go_on(lane)

    def _go_on(self, lane: _Lane) -> None:
        while lane.full and not lane.is_busy:
            self._send(lane, lane.full.popleft())
        if not lane.full and not lane.items and not lane.is_busy:
            self._lanes.pop((lane.topic, lane.queue), None)

    def _send(self, lane: _Lane, items: list[_Item]) -> None:
        wanted = [each for each in items if not each.future.done()]
        size = sum([each.size for each in wanted])
        if len(wanted) < len(items):
            # Cancelled before anything was sent.
            self._post.release(sum([each.size for each in items]) - size)
        if not wanted:
            return
        envelopes = [each.envelope for each in wanted]
        try:
            parcel = (
                Parcel(compressed(envelopes[0], self._packing))
                if len(wanted) == 1
                else bundled(envelopes)
            )
        except TxmqError as problem:
            self._post.release(size)
            _tell_all(wanted, problem)
            return
        retries = self._post.settings.retries if lane.queue is None else 0
        delivery = Delivery(self._post, parcel, lane.queue, retries, size, is_single=False)
        lane.is_busy = lane.queue is not None
        delivery.future.add_done_callback(lambda done: self._arrived(lane, wanted, done))
        self._post.start(delivery)

    def _arrived(
        self, lane: _Lane, items: list[_Item], done: asyncio.Future[list[SendResult]]
    ) -> None:
        problem = done.exception()
        if problem is None:
            for item, result in zip(items, done.result(), strict=True):
                if not item.future.done():
                    item.future.set_result(result)
        else:
            assert isinstance(problem, TxmqError), "deliveries fail with errors of ours"
            _tell_all(items, problem)
        if lane.is_busy:
            lane.is_busy = False
            self._go_on(lane)

    def close(self, reason: str) -> None:
        """Give up what has not been sent."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            if lane.timer is not None:
                lane.timer.cancel()
            left = [*(item for batch in lane.full for item in batch), *lane.items]
            lane.full.clear()
            lane.items = []
            self._post.release(sum([each.size for each in left]))
            _tell_all(left, UsageError(reason))


def _tell_all(items: list[_Item], problem: TxmqError) -> None:
    effect: Effect = problem.effect
    for item in items:
        if not item.future.done():
            # An error of its own for each: what raises it writes its traceback into it.
            own = retold(problem, str(problem), effect)
            own.__cause__ = problem.__cause__
            item.future.set_exception(own)
