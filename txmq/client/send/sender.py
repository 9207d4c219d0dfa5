"""The work of an open producer: encode messages, wait for room, send them alone or in batches.

A :class:`~txmq.client.send.producer.Producer` is the public class; this module does the work, in as
few steps for each message as possible.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import compress
from typing import Final

from txmq.client.names import check_name
from txmq.client.routes import Route
from txmq.client.send.pending_sends import PendingSends, copy_error
from txmq.client.send.request_reply import Reply, Requester
from txmq.client.send_request import (
    STORED_BYTES,
    Envelope,
    Packing,
    bundled,
    common_topic,
    compressed,
    packed_size,
    sealed,
    split,
    travels_alone,
)
from txmq.client.settings import ProducerSettings
from txmq.client.values import SendResult
from txmq.errors import (
    BatchCutShort,
    Effect,
    LimitExceeded,
    LocalProtocolError,
    RequestTimeout,
    TxmqError,
    UsageError,
)
from txmq.limits import BATCH_MESSAGES_MAX, SPAN_BYTES_MAX
from txmq.message import Message, Queue
from txmq.protocol.codes import SysFlag
from txmq.text import quantity

__all__ = ["Accumulator", "Sender", "check_kind"]

log = logging.getLogger(__name__)

_PREPARED: Final = int(SysFlag.PREPARED)
_CLOSED = "this producer was closed before the message was sent"


class Sender:
    """The sends of one open producer.

    Args:
        pending: Takes requests to brokers.
        group: The producer group.
        requester: Sends replies.
    """

    def __init__(self, pending: PendingSends, group: str, requester: Requester) -> None:
        self.pending = pending
        self.settings: ProducerSettings
        self.settings = chosen = pending.settings
        self._session = pending.session
        self._ids = pending.session.ids
        self._group = group
        self._requester = requester
        self._packing = Packing(chosen.body_size_max, chosen.compress_from, chosen.compression)
        self.accumulator: Accumulator | None = (
            Accumulator(pending, self._packing) if chosen.linger > 0 else None
        )
        self._is_closed = False

    async def close(self) -> None:
        """Send the batches, wait for answers as long as a send may take, and end."""
        self._is_closed = True
        pending, accumulator = self.pending, self.accumulator
        try:
            pending.refuse_waiting()
            async with asyncio.timeout(self.settings.timeout):
                while len(pending) or accumulator:
                    if accumulator is not None:
                        accumulator.flush()
                    await pending.drain()
                    await asyncio.sleep(0)  # Let the callers of the last answers run.
        except TimeoutError:
            sends = quantity(len(pending), "send")
            log.warning("group %s closes without the answers of %s", self._group, sends)
        finally:
            if accumulator is not None:
                accumulator.close(_CLOSED)
            await pending.close()

    # One message

    async def send(self, message: Message, queue: Queue | None) -> SendResult:
        """See :meth:`txmq.client.send.producer.Producer.send`."""
        if type(message) is not Message or queue is not None:
            if type(message) is Reply:
                return await self._requester.reply(message, self._sealed(message))
            _check_queue(message, queue)
        pending, accumulator = self.pending, self.accumulator
        if accumulator is not None and not travels_alone(message):
            envelope = self._sealed(message, compress=False)
            size = len(envelope.body)
            if not pending.take(size):
                await self._wait_for_room(size)
            return await accumulator.add(envelope, queue)
        envelope = sealed(message, self._ids.next(), self._packing)
        size = len(message.body)
        if not pending.take(size):
            await self._wait_for_room(size)
        retries = self.settings.retries if queue is None else 0
        send = pending.start(envelope, queue, retries, size)
        try:
            result: SendResult = await send.future
        except asyncio.CancelledError:
            send.drop()
            raise
        return result

    async def send_half(
        self, message: Message, queue: Queue | None, xid: str = "", marks: str = ""
    ) -> SendResult:
        """Send a half message, retried only while it is certain that no broker stored it.

        A stock broker would store a second half message with the same id as a second message.

        Args:
            message: The message, with its id and marks unless the next arguments give them.
            queue: Its queue; ``None`` lets each attempt take the next queue in rotation.
            xid: Its id.
            marks: The properties that make it a half message, as text; see :func:`sealed`.

        Raises:
            TxmqError: As for :meth:`send`.
        """
        if queue is not None:
            _check_queue(message, queue)
        pending, size = self.pending, len(message.body)
        envelope = sealed(message, xid, self._packing, sys_flag=_PREPARED, marks=marks)
        if not pending.take(size):
            await self._wait_for_room(size)
        retries = self.settings.retries if queue is None else 0
        send = pending.start(envelope, queue, retries, size, is_once=True)
        try:
            result: SendResult = await send.future
        except asyncio.CancelledError:
            send.drop()
            raise
        return result

    def send_nowait(self, message: Message, queue: Queue | None) -> asyncio.Future[SendResult]:
        """See :meth:`txmq.client.send.producer.Producer.send_nowait`."""
        if type(message) is not Message or queue is not None:
            _check_queue(message, queue)
        pending, accumulator = self.pending, self.accumulator
        if accumulator is not None and not travels_alone(message):
            envelope = self._sealed(message, compress=False)
            if not pending.take(len(envelope.body)):
                raise self._no_room(len(envelope.body))
            return accumulator.add(envelope, queue)
        envelope = sealed(message, self._ids.next(), self._packing)
        size = len(message.body)
        if not pending.take(size):
            raise self._no_room(size)
        retries = self.settings.retries_nowait
        return pending.start(envelope, queue, retries, size, is_nowait=True).future

    async def send_oneway(self, message: Message, queue: Queue | None) -> None:
        """See :meth:`txmq.client.send.producer.Producer.send_oneway`."""
        pending, session = self.pending, self._session
        _check_queue(message, queue)
        envelope = self._sealed(message)
        async with _limited(self.settings.timeout):
            route = await self._route(message.topic)
            queue = queue or pending.next_queue(route)
            address = route.master(queue.broker)
            connection = session.pool.ready(address) or await session.connection(address)
            if connection.is_backed_up:
                await connection.writable()
        head = pending.form(queue).head(
            connection.number(), queue.number, envelope.sys_flag, session.clock.wall_ms(),
            envelope.flag, envelope.properties, envelope.body, is_oneway=True,
        )  # fmt: skip
        connection.post(0, None, 0.0, head, envelope.body)

    # Several

    async def send_batch(
        self, messages: Sequence[Message], queue: Queue | None
    ) -> list[SendResult]:
        """See :meth:`txmq.client.send.producer.Producer.send_batch`."""
        common_topic(messages)
        _check_queue(messages[0], queue)
        most = self.settings.body_size_max
        packing, fresh_ids = self._packing, self._ids.several(len(messages))
        parts = split(
            [
                sealed(message, fresh_id, packing, compress=False)
                for message, fresh_id in zip(messages, fresh_ids, strict=True)
            ],
            most,
        )
        for part in parts:
            if len(part) == 1 and (packed := packed_size(part[0])) > most:
                raise LimitExceeded("the size of a message in a batch", most, packed)
        results: list[SendResult] = []
        for part in parts:
            try:
                results += await self._send_part(part, queue)
            except TxmqError as error:
                if not results:
                    raise
                raise BatchCutShort(results, len(messages), error) from error
        return results

    async def _send_part(self, part: list[Envelope], queue: Queue | None) -> list[SendResult]:
        pending, envelope = self.pending, bundled(part)
        size = len(envelope.body)
        if not pending.take(size):
            await self._wait_for_room(size)
        retries = self.settings.retries if queue is None else 0
        send = pending.start(envelope, queue, retries, size, is_single=False)
        try:
            results: list[SendResult] = await send.future
        except asyncio.CancelledError:
            send.drop()
            raise
        return results

    # Parts of a batch

    async def writable(self, topic: str) -> Sequence[Queue]:
        """The writable queues of a topic; queries an unknown route.

        Raises:
            RequestTimeout: No answer came within the time for sending.
            BrokerRefused: The topic does not exist.
        """
        check_name("topic", topic)
        async with _limited(self.settings.timeout):
            return (await self._route(topic)).queues_to_write()

    async def _route(self, topic: str) -> Route:
        session, new_queues = self._session, self.settings.queues_of_new_topics
        route = session.known_route_to_write(topic)
        return route or await session.route_to_write(topic, new_queues)

    def _sealed(self, message: Message, *, compress: bool = True) -> Envelope:
        return sealed(message, self._ids.next(), self._packing, compress=compress)

    def _no_room(self, size: int) -> LimitExceeded:
        most = self.settings.in_flight_max
        return LimitExceeded("bytes in flight", most, self.pending.bytes_in_flight + size)

    async def _wait_for_room(self, size: int) -> None:
        await self.pending.take_later(size)
        if self._is_closed:
            self.pending.release(size)
            raise UsageError(_CLOSED)


@asynccontextmanager
async def _limited(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        late = RequestTimeout("there was no way to a broker within the time for sending")
        late.effect = Effect.NONE  # The message was not sent.
        raise late from error


def _check_queue(message: Message, queue: Queue | None) -> None:
    if type(message) is not Message:
        check_kind(message)
    if queue is not None and queue.topic != message.topic:
        raise UsageError(f"a message for {message.topic} cannot go to a queue of {queue.topic}")


def check_kind(message: object) -> None:
    """Reject objects that are not messages.

    Raises:
        UsageError: It is a reply, which goes to one client.
        LocalProtocolError: It is not a message.
    """
    if isinstance(message, Reply):
        raise UsageError("a reply goes to the one who asked; send it by Producer.send")
    if not isinstance(message, Message):
        hint = "; write send_batch(messages)" if isinstance(message, list | tuple) else ""
        raise LocalProtocolError(f"a Message is sent, not a {type(message).__name__}{hint}")


class _Batch:
    """Messages that share a request, and the future of each."""

    __slots__ = ("bytes", "envelopes", "futures", "packed")

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.bytes = 0
        """The size of their bodies, which counts as in flight."""
        self.packed = 0
        """The bytes they take in a batch."""

    def drop_cancelled(self) -> int:
        """Drop the messages whose callers were cancelled; returns the bytes of these."""
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
        # The size of many small messages in a broker's log has a separate limit.
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
            queue: Its queue; ``None`` lets the rotation choose.
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
            # All callers were cancelled before the send.
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
        batch.envelopes = []  # The batch holds their bytes now.
        retries = pending.settings.retries if line.queue is None else 0
        line.is_busy = line.queue is not None
        futures = batch.futures
        send = pending.start(envelope, line.queue, retries, batch.bytes, is_single=False)
        send.future.add_done_callback(lambda done: self._arrived(line, futures, done))

    def _arrived(
        self,
        line: _BatchLine,
        futures: list[asyncio.Future[SendResult]],
        done: asyncio.Future[list[SendResult]],
    ) -> None:
        error = done.exception()
        if error is None:
            for future, result in zip(futures, done.result(), strict=True):
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
