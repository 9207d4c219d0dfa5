"""Messages that wait a moment for others, to travel with them in one request.

A lane holds what goes the same way: the messages of one topic whose queue is chosen by turn, or
those for one queue. Batches of the first kind are on their way side by side, each to the queue
whose turn it is; of the second kind there is one at a time, so that a queue gets its messages in
the order they were given, also where an attempt fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import compress

from txmq.client.envelope import Envelope, Packing, compressed
from txmq.client.send.pending_sends import PendingSend, PendingSends, retold
from txmq.client.send_request import STORED_BYTES, SendRequest, bundled, packed_size
from txmq.client.values import SendResult
from txmq.errors import Effect, TxmqError, UsageError
from txmq.limits import BATCH_MESSAGES_MAX, SPAN_BYTES_MAX
from txmq.message import Queue

__all__ = ["Accumulator"]


class _Load:
    """Messages that travel together, and who waits for what becomes of each."""

    __slots__ = ("bytes", "envelopes", "futures", "packed")

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.bytes = 0
        """The bytes they count for: their bodies."""
        self.packed = 0
        """The bytes they take in a batch."""

    def leave_out_cancelled(self) -> int:
        """Keep those that somebody waits for; returns the bytes of the others."""
        before, wanted = self.bytes, [not each.done() for each in self.futures]
        self.envelopes = list(compress(self.envelopes, wanted))
        self.futures = list(compress(self.futures, wanted))
        self.bytes = sum([len(each.body) for each in self.envelopes])
        return before - self.bytes


class _Lane:
    """What goes one way."""

    __slots__ = ("full", "is_busy", "load", "queue", "timer", "topic")

    def __init__(self, topic: str, queue: Queue | None) -> None:
        self.topic = topic
        self.queue = queue
        self.load = _Load()
        self.full: deque[_Load] = deque()
        self.timer: asyncio.TimerHandle | None = None
        self.is_busy = False


class Accumulator:
    """The lanes of one producer.

    Args:
        post: Who carries what was gathered.
        packing: How a message is made ready that travels alone after all.
    """

    def __init__(self, post: PendingSends, packing: Packing) -> None:
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

    def add(self, envelope: Envelope, queue: Queue | None) -> asyncio.Future[SendResult]:
        """Let a message wait for others.

        Args:
            envelope: The message, not compressed; such as may travel in a batch. Its bytes are
                counted already.
            queue: Its queue; by turn where it is ``None``.

        Raises:
            LocalProtocolError: No batch can hold it; its bytes are counted no more.
        """
        size = len(envelope.body)
        try:
            packed = packed_size(envelope)
        except TxmqError:
            self._post.release(size)
            raise
        lane = self._lanes.get((envelope.topic, queue))
        if lane is None or lane.load.packed + packed > self._bytes_max:
            lane = self._lane_with_room(envelope.topic, queue, lane)
        load = lane.load
        future: asyncio.Future[SendResult] = self._post.loop.create_future()
        load.envelopes.append(envelope)
        load.futures.append(future)
        load.bytes += size
        load.packed += packed
        if load.packed >= self._bytes_max or len(load.futures) >= self._count_max:
            self._flush(lane)
        elif lane.timer is None:
            lane.timer = self._post.loop.call_later(self._linger_s, self._flush, lane)
        return future

    def _lane_with_room(self, topic: str, queue: Queue | None, lane: _Lane | None) -> _Lane:
        if lane is not None and lane.load.futures:
            self._flush(lane)
            lane = self._lanes.get((topic, queue))  # An empty one is gone.
        if lane is None:
            lane = self._lanes[topic, queue] = _Lane(topic, queue)
        return lane

    def flush(self) -> None:
        """Let nobody wait any longer."""
        for lane in list(self._lanes.values()):
            self._flush(lane)

    def _flush(self, lane: _Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        if lane.load.futures:
            lane.full.append(lane.load)
            lane.load = _Load()
        self._go_on(lane)

    def _go_on(self, lane: _Lane) -> None:
        while lane.full and not lane.is_busy:
            self._send(lane, lane.full.popleft())
        if not lane.full and not lane.load.futures and not lane.is_busy:
            self._lanes.pop((lane.topic, lane.queue), None)

    def _send(self, lane: _Lane, load: _Load) -> None:
        post = self._post
        if any(each.done() for each in load.futures):
            # Cancelled before anything was sent.
            post.release(load.leave_out_cancelled())
            if not load.futures:
                return
        envelopes = load.envelopes
        try:
            parcel = (
                SendRequest(compressed(envelopes[0], self._packing))
                if len(envelopes) == 1
                else bundled(envelopes)
            )
        except TxmqError as problem:
            post.release(load.bytes)
            _tell_all(load.futures, problem)
            return
        load.envelopes = []  # What they hold is in the parcel.
        retries = post.settings.retries if lane.queue is None else 0
        delivery = PendingSend(post, parcel, lane.queue, retries, load.bytes, is_single=False)
        lane.is_busy = lane.queue is not None
        futures = load.futures
        delivery.future.add_done_callback(lambda done: self._arrived(lane, futures, done))
        post.start(delivery)

    def _arrived(
        self,
        lane: _Lane,
        futures: list[asyncio.Future[SendResult]],
        done: asyncio.Future[list[SendResult]],
    ) -> None:
        problem = done.exception()
        if problem is None:
            for future, result in zip(futures, done.result(), strict=True):
                if not future.done():
                    future.set_result(result)
        else:
            assert isinstance(problem, TxmqError), "deliveries fail with errors of ours"
            _tell_all(futures, problem)
        if lane.is_busy:
            lane.is_busy = False
            self._go_on(lane)

    def close(self, reason: str) -> None:
        """Give up what has not been sent."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            if lane.timer is not None:
                lane.timer.cancel()
            left = [*lane.full, lane.load]
            lane.full.clear()
            lane.load = _Load()
            for load in left:
                self._post.release(load.bytes)
                _tell_all(load.futures, UsageError(reason))


def _tell_all(futures: list[asyncio.Future[SendResult]], problem: TxmqError) -> None:
    effect: Effect = problem.effect
    for future in futures:
        if not future.done():
            # An error of its own for each: what raises it writes its traceback into it.
            own = retold(problem, str(problem), effect)
            own.__cause__ = problem.__cause__
            future.set_exception(own)
