"""Collects messages for a short time, so that several of them share a request."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import compress
from typing import Any

from txmq.client.send.pending_sends import PendingSend, PendingSends, copy_error
from txmq.client.send_request import (
    STORED_BYTES,
    Envelope,
    Packing,
    bundled,
    compressed,
    packed_size,
)
from txmq.client.values import SendResult
from txmq.errors import TxmqError, UsageError
from txmq.limits import BATCH_MESSAGES_MAX, SPAN_BYTES_MAX
from txmq.message import Queue

__all__ = ["Accumulator"]


class _Batch:
    """Messages that share a request, and the future of each."""

    __slots__ = ("bytes", "envelopes", "futures", "packed")

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.bytes = 0
        """The size of their bodies, which counts as in flight."""
        self.packed = 0
        """Their encoded size in a batch."""

    def drop_cancelled(self) -> int:
        """Drop the messages whose callers were cancelled; returns the size of their bodies."""
        before, wanted = self.bytes, [not future.done() for future in self.futures]
        self.envelopes = list(compress(self.envelopes, wanted))
        self.futures = list(compress(self.futures, wanted))
        self.bytes = sum([len(envelope.body) for envelope in self.envelopes])
        return before - self.bytes


class _BatchLine:
    """The filling batch, and the queue of full ones."""

    __slots__ = ("batch", "full", "is_busy", "queue", "timer", "topic")

    def __init__(self, topic: str, queue: Queue | None) -> None:
        self.topic = topic
        self.queue = queue
        self.batch = _Batch()
        self.full: deque[_Batch] = deque()
        self.timer: asyncio.TimerHandle | None = None
        self.is_busy = False


class Accumulator:
    """The batches of one producer.

    Args:
        pending: Takes full batches to brokers.
        packing: Options for encoding a message that is sent alone after all.
    """

    def __init__(self, pending: PendingSends, packing: Packing) -> None:
        settings = pending.settings
        self._pending = pending
        self._packing = packing
        self._linger_s = settings.linger
        self._bytes_max = min(settings.linger_size, settings.body_size_max)
        # Many small messages may reach another limit: that of a batch's size in a broker's log.
        stored = max(1, (SPAN_BYTES_MAX - self._bytes_max) // STORED_BYTES)
        self._count_max = min(settings.linger_messages, BATCH_MESSAGES_MAX, stored)
        self._lines: dict[tuple[str, Queue | None], _BatchLine] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, envelope: Envelope, queue: Queue | None) -> asyncio.Future[SendResult]:
        """Add a message to a batch.

        Args:
            envelope: The uncompressed message, which may be in a batch. Its bytes already count as
                in flight.
            queue: Its queue; ``None`` lets the rotation choose one.
        """
        size, packed = len(envelope.body), packed_size(envelope)
        line = self._lines.get((envelope.topic, queue))
        if line is None or line.batch.packed + packed > self._bytes_max:
            line = self._line_with_room(envelope.topic, queue, line)
        batch = line.batch
        future: asyncio.Future[SendResult] = self._pending.loop.create_future()
        batch.envelopes.append(envelope)
        batch.futures.append(future)
        batch.bytes += size
        batch.packed += packed
        if batch.packed >= self._bytes_max or len(batch.futures) >= self._count_max:
            self._flush(line)
        elif line.timer is None:
            line.timer = self._pending.loop.call_later(self._linger_s, self._flush, line)
        return future

    def _line_with_room(
        self, topic: str, queue: Queue | None, line: _BatchLine | None
    ) -> _BatchLine:
        if line is not None and line.batch.futures:
            self._flush(line)
            line = self._lines.get((topic, queue))  # The flush removes a line that is empty.
        if line is None:
            line = self._lines[topic, queue] = _BatchLine(topic, queue)
        return line

    def flush(self) -> None:
        """Send all batches now."""
        for line in list(self._lines.values()):
            self._flush(line)

    def _flush(self, line: _BatchLine) -> None:
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if line.batch.futures:
            line.full.append(line.batch)
            line.batch = _Batch()
        self._send_full(line)

    def _send_full(self, line: _BatchLine) -> None:
        while line.full and not line.is_busy:
            self._send(line, line.full.popleft())
        if not line.full and not line.batch.futures and not line.is_busy:
            self._lines.pop((line.topic, line.queue), None)

    def _send(self, line: _BatchLine, batch: _Batch) -> None:
        pending = self._pending
        if any(future.done() for future in batch.futures):
            # Some or all callers were cancelled before the send.
            pending.release(batch.drop_cancelled())
            if not batch.futures:
                return
        envelopes = batch.envelopes
        try:
            envelope = (
                compressed(envelopes[0], self._packing)
                if len(envelopes) == 1
                else bundled(envelopes)
            )
        except TxmqError as error:
            pending.release(batch.bytes)
            _fail_all(batch.futures, error)
            return
        batch.envelopes = []  # The new envelope holds their bytes now.
        retries = pending.settings.retries if line.queue is None else 0
        line.is_busy = line.queue is not None
        futures, future = batch.futures, pending.loop.create_future()
        pending.advance(PendingSend(pending, envelope, line.queue, retries, batch.bytes, future))
        future.add_done_callback(lambda done: self._arrived(line, futures, done))

    def _arrived(
        self,
        line: _BatchLine,
        futures: list[asyncio.Future[SendResult]],
        done: asyncio.Future[Any],
    ) -> None:
        error = done.exception()
        if error is None:
            results = done.result()
            if isinstance(results, SendResult):  # A message that was sent alone.
                results = [results]
            for future, result in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(result)
        else:
            assert isinstance(error, TxmqError), "pending sends fail with errors of ours"
            _fail_all(futures, error)
        if line.is_busy:
            line.is_busy = False
            self._send_full(line)

    def close(self, reason: str) -> None:
        """Fail the messages that were not sent."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.timer is not None:
                line.timer.cancel()
            left = [*line.full, line.batch]
            line.full.clear()
            line.batch = _Batch()
            for batch in left:
                self._pending.release(batch.bytes)
                _fail_all(batch.futures, UsageError(reason))


def _fail_all(futures: list[asyncio.Future[SendResult]], error: TxmqError) -> None:
    for future in futures:
        if not future.done():
            # Each future raises a copy: raising writes a traceback into an error.
            own = copy_error(error, str(error), error.effect)
            own.__cause__ = error.__cause__
            future.set_exception(own)
