"""Sends messages: waits for answers or not, tries again elsewhere, and lets messages travel
together.

What it does and what it leaves to the broker's answer is that of stock producers; the differences
are named where they are. It keeps to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from txmq.client.asking import Asking, Reply
from txmq.client.choice import queue_of_key
from txmq.client.client import Client
from txmq.client.delivery import Delivery
from txmq.client.envelope import Envelope, Packing, check_name, sealed
from txmq.client.gathering import Gathering
from txmq.client.parcel import Parcel, bundled, common_topic, packed_size, split, travels_alone
from txmq.client.post import Post
from txmq.client.routes import Route
from txmq.client.settings import ProducerSettings
from txmq.client.tracer import TRACE_SETTINGS, Tracer, trace_group
from txmq.client.tracing import SendTrace
from txmq.client.values import SendResult
from txmq.client.watch import SendWatch, SendWatches
from txmq.errors import BatchCutShort, Effect, LimitExceeded, RequestTimeout, TxmqError, UsageError
from txmq.limits import GROUP_CHARS_MAX
from txmq.message import Message, Queue, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.bodies import ProducerRegistration
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network

__all__ = ["Producer"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSED = "this producer was closed before the message was sent"


class Producer:
    """A member of a producer group; ``async with`` makes it ready and takes it away again.

    Leaving sends what still lingers, and waits for the answers of what is on its way, for
    ``timeout_s`` at most.

    Args:
        group: The producer group.
        names: The name servers, ``host:port`` separated by ``;``, or a client to share.
        settings: How it sends.
        network: Where streams come from; a client that is shared has its own.
        clock: Where the time comes from, likewise.
        entropy: Where chance comes from, likewise.

    Raises:
        ConfigError: ``names`` names no server, or one in a way that is no address.
        LocalProtocolError: The group's name holds what names may not hold.
        LimitExceeded: The group's name is too long.
    """

    def __init__(
        self,
        group: str,
        names: str | Client,
        settings: ProducerSettings | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        check_name("producer group", group, GROUP_CHARS_MAX)
        self.settings = chosen = settings or ProducerSettings()
        self._group = group
        self._is_own = isinstance(names, str)
        self.client = (
            Client(names, None, network, clock, entropy) if isinstance(names, str) else names
        )
        self._packing = Packing(chosen.body_bytes_max, chosen.compress_from, chosen.compression)
        self._opened: Post | None = None
        self._gathering: Gathering | None = None
        self._asking = Asking(self.client, group, chosen)
        self._watches: SendWatches | None = None
        self._tracer: Tracer | None = None

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise UsageError("this producer is open already")
        async with AsyncExitStack() as undo:
            if self._is_own:
                await self.client.__aenter__()
                undo.push_async_callback(self.client.__aexit__, None, None, None)
            undo.push_async_callback(self.client.leave, self)
            await self.client.join(self)
            post = Post(self.client.session, self._group, self.settings)
            await self._open_watches(post)
            undo.pop_all()
        self._opened = post
        if self.settings.linger_s > 0:
            self._gathering = Gathering(self._opened, self._packing)
        return self

    async def _open_watches(self, post: Post) -> None:
        watches: list[SendWatch] = []
        if self.settings.is_traced:
            inner = Producer(trace_group(self._group, "PRODUCE"), self.client, TRACE_SETTINGS)
            tracer = Tracer(inner, self.settings.trace_topic, post.clock)
            await tracer.open()
            trace = SendTrace(tracer, self._group, post.session)
            self._tracer, post.heard = tracer, trace.heard
            watches.append(trace)
        telemetry = self.client.settings.telemetry
        if telemetry is not None and self.settings is not TRACE_SETTINGS:
            watches.append(telemetry.of_producer(self._group, self.client.id))
        self._watches = SendWatches(watches) if watches else None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        post, self._opened = self._opened, None
        gathering, self._gathering = self._gathering, None
        tracer, self._tracer, self._watches = self._tracer, None, None
        async with AsyncExitStack() as at_last:
            # These are seen to also where what follows is cut short.
            if self._is_own:
                at_last.push_async_callback(self.client.__aexit__, kind, problem, trace)
            at_last.push_async_callback(self.client.leave, self)
            if tracer is not None:
                at_last.push_async_callback(tracer.close)
            at_last.callback(self._asking.close)
            if post is not None:
                await self._finish(post, gathering)

    async def _finish(self, post: Post, gathering: Gathering | None) -> None:
        try:
            post.send_away()
            async with asyncio.timeout(self.settings.timeout_s):
                while len(post) or gathering:
                    if gathering is not None:
                        gathering.flush()
                    await post.drain()
                    await asyncio.sleep(0)  # What arrived last has its turn to be told.
        except TimeoutError:
            log.warning("group %s leaves without the answers of %d sends", self._group, len(post))
        finally:
            if gathering is not None:
                gathering.close(_CLOSED)
            await post.close()

    # A member of its group

    @property
    def group(self) -> str:
        """The producer group."""
        return self._group

    def registration(self) -> ProducerRegistration:
        """What brokers are told of it."""
        return ProducerRegistration(self._group)

    def rebalance_soon(self) -> None:
        """Nothing changes for a producer."""

    @property
    def bytes_in_flight(self) -> int:
        """The bodies that are on their way or linger, in bytes."""
        return 0 if self._opened is None else self._opened.bytes_in_flight

    # Sending

    async def send(self, message: Message, queue: Queue | None = None) -> SendResult:
        """Send a message and return what the broker says of it.

        Where no answer comes, or one that another broker might not give, it is tried again at
        another broker, under the same id, as long as ``timeout_s`` allows; a message for a chosen
        queue is not. While ``in_flight_bytes_max`` is on its way, it waits for its turn first.
        With ``linger_s`` it may travel with others of its topic. What
        :func:`~txmq.client.asking.reply_to` made goes to the client that asked.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large.
            TransportError: No answer came; the error's effect says whether it may be stored.
            BrokerRefused: The broker refused; likewise.
            UsageError: The producer is not open, or the queue is one of another topic.
        """
        if self._watches is not None:
            return await self._watches.send(self._send, message, queue)
        return await self._send(message, queue)

    async def _send(self, message: Message, queue: Queue | None) -> SendResult:
        post = self._post()
        if type(message) is Reply:
            return await self._asking.reply(message, self._sealed(message))
        _check_queue(message, queue)
        size = len(message.body)
        if self._gathering is not None and not travels_alone(message):
            envelope = self._sealed(message, compress=False)
            if post.has_room(size):
                post.take(size)
            else:
                await self._wait_for_room(post, size)
            return await self._gather(envelope, queue, size)
        parcel = Parcel(self._sealed(message))
        if post.has_room(size):
            post.take(size)
        else:
            await self._wait_for_room(post, size)
        retries = self.settings.retries if queue is None else 0
        delivery = Delivery(post, parcel, queue, retries, size)
        post.start(delivery)
        try:
            result: SendResult = await delivery.future
        except asyncio.CancelledError:
            delivery.drop()
            raise
        return result

    def send_nowait(
        self, message: Message, queue: Queue | None = None
    ) -> asyncio.Future[SendResult]:
        """Send a message and return at once; the future tells what :meth:`send` would.

        It is tried again where no answer came, ``retries_nowait`` times, at the same queue; what a
        broker answers stands. With ``linger_s`` it is tried again as by :meth:`send`.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large, or ``in_flight_bytes_max`` is on its way already.
            UsageError: The producer is not open, or the queue is one of another topic.
        """
        if self._watches is not None:
            return self._watches.send_nowait(self._send_nowait, message, queue)
        return self._send_nowait(message, queue)

    def _send_nowait(self, message: Message, queue: Queue | None) -> asyncio.Future[SendResult]:
        post = self._post()
        _check_queue(message, queue)
        size = len(message.body)
        is_gathered = self._gathering is not None and not travels_alone(message)
        envelope = self._sealed(message, compress=not is_gathered)
        if not post.has_room(size):
            most = self.settings.in_flight_bytes_max
            raise LimitExceeded("bytes in flight", most, post.bytes_in_flight + size)
        if is_gathered:
            post.take(size)
            return self._gather(envelope, queue, size)
        parcel = Parcel(envelope)
        post.take(size)
        delivery = Delivery(post, parcel, queue, self.settings.retries_nowait, size, is_nowait=True)
        post.start(delivery)
        return delivery.future

    async def send_oneway(self, message: Message, queue: Queue | None = None) -> None:
        """Send a message that nobody answers: it is tried once, and may be lost without a word.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large.
            TransportError: There is no way to a broker; nothing was sent.
            BrokerRefused: There is no such topic, or it cannot be written to.
            UsageError: The producer is not open, or the queue is one of another topic.
        """
        if self._watches is not None:
            await self._watches.send_oneway(self._send_oneway, message, queue)
        else:
            await self._send_oneway(message, queue)

    async def _send_oneway(self, message: Message, queue: Queue | None) -> None:
        post, session = self._post(), self.client.session
        _check_queue(message, queue)
        parcel = Parcel(self._sealed(message))
        async with _limited(self.settings.timeout_s):
            route = await self._route(message.topic)
            queue = queue or post.next_queue(route)
            address = route.master(queue.broker)
            connection = session.ready(address) or await session.connection(address)
            if connection.is_backed_up:
                await connection.writable()
        head = parcel.head(
            post.form(queue), connection.number(), queue.number, session.clock.wall_ms(),
            is_oneway=True,
        )  # fmt: skip
        connection.post_oneway(head, parcel.body)

    async def send_batch(
        self, messages: Sequence[Message], queue: Queue | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in as few requests as hold them, one after the other.

        Each request goes as by :meth:`send`; its messages are stored together, without a gap.
        Bodies are not compressed.

        Returns:
            What the broker says of each, in their order.

        Raises:
            LocalProtocolError: The protocol cannot carry one of them, or not in a batch.
            LimitExceeded: One of them is too large; nothing was sent.
            BatchCutShort: A request failed after others were answered; it carries their results.
            TransportError: No answer came to the first; the effect says whether it may be stored.
            BrokerRefused: The broker refused the first.
            UsageError: The producer is not open, or the queue is one of another topic.
        """
        if self._watches is not None:
            return await self._watches.send_batch(self._send_batch, messages, queue)
        return await self._send_batch(messages, queue)

    async def _send_batch(
        self, messages: Sequence[Message], queue: Queue | None
    ) -> list[SendResult]:
        post = self._post()
        common_topic(messages)
        _check_queue(messages[0], queue)
        most = self.settings.body_bytes_max
        envelopes = [self._sealed(each, compress=False) for each in messages]
        for each in envelopes:
            packed = packed_size(each)
            if packed > most:
                raise LimitExceeded("the size of a message in a batch", most, packed)
        results: list[SendResult] = []
        for part in split(envelopes, most):
            try:
                results += await self._send_part(post, part, queue)
            except TxmqError as problem:
                if not results:
                    raise
                raise BatchCutShort(results, len(messages), problem) from problem
        return results

    async def _send_part(
        self, post: Post, part: list[Envelope], queue: Queue | None
    ) -> list[SendResult]:
        parcel = bundled(part)
        size = len(parcel.body)
        if post.has_room(size):
            post.take(size)
        else:
            await self._wait_for_room(post, size)
        retries = self.settings.retries if queue is None else 0
        delivery = Delivery(post, parcel, queue, retries, size, is_single=False)
        post.start(delivery)
        try:
            results: list[SendResult] = await delivery.future
        except asyncio.CancelledError:
            delivery.drop()
            raise
        return results

    # Requests

    async def request(self, message: Message, timeout_s: float) -> ReceivedMessage:
        """Send a message that asks for a reply, as by :meth:`send`, and return the reply.

        Whoever consumes it sends the reply: ``await producer.send(reply_to(message, body))``.

        Args:
            message: The request.
            timeout_s: How long the request and its reply may take together.

        Raises:
            RequestTimeout: No reply came in time; the request may have been served all the same.
            LimitExceeded: The message is too large, or too many replies are awaited.
            UsageError: The producer is not open, or was closed before the reply came.
            TxmqError: The request could not be sent, as for :meth:`send`.
        """
        self._post()
        return await self._asking.ask(message, timeout_s, self.send)

    # In order

    async def send_ordered(self, message: Message, key: str | bytes | int) -> SendResult:
        """Send a message to the queue of its key: what has one key stays in order.

        It is tried once: a second attempt could overtake, or come twice. Text is also told to
        consumers, as the message's sharding key.

        Raises:
            TxmqError: As for :meth:`send`.
        """
        if isinstance(key, str) and key:
            named = {**message.properties, properties.SHARDING_KEY: key}
            message = replace(message, properties=named)
        return await self.send_to(message, _by_key, key)

    async def send_to(
        self, message: Message, select: Callable[[Sequence[Queue], Message, T], Queue], arg: T
    ) -> SendResult:
        """Send a message to the queue that a function selects, in one attempt.

        Args:
            message: The message.
            select: Is given the topic's queues, the message and ``arg``, and returns a queue.
            arg: Whatever it needs.

        Raises:
            TxmqError: As for :meth:`send`.
        """
        self._post()
        check_name("topic", message.topic)
        async with _limited(self.settings.timeout_s):
            route = await self._route(message.topic)
        return await self.send(message, select(route.writable, message, arg))

    # Parts of sending

    def _post(self) -> Post:
        if self._opened is None:
            raise UsageError("this producer is not open; use it with 'async with'")
        return self._opened

    def _sealed(self, message: Message, *, compress: bool = True) -> Envelope:
        fresh_id = self.client.session.ids.next()
        return sealed(message, fresh_id, self._packing, compress=compress)

    def _gather(
        self, envelope: Envelope, queue: Queue | None, size: int
    ) -> asyncio.Future[SendResult]:
        gathering = self._gathering
        try:
            if gathering is None:
                raise UsageError(_CLOSED)
            return gathering.add(envelope, queue, size)
        except TxmqError:
            if self._opened is not None:
                self._opened.release(size)
            raise

    async def _wait_for_room(self, post: Post, size: int) -> None:
        await post.room(size)
        if self._opened is not post:
            post.release(size)
            raise UsageError(_CLOSED)

    async def _route(self, topic: str) -> Route:
        session, new_queues = self.client.session, self.settings.queues_of_new_topics
        return session.known_route(topic) or await session.route_to_write(topic, new_queues)


@asynccontextmanager
async def _limited(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as problem:
        late = RequestTimeout("there was no way to a broker within the time for sending")
        late.effect = Effect.NONE  # Nothing was sent.
        raise late from problem


def _by_key(queues: Sequence[Queue], message: Message, key: str | bytes | int) -> Queue:
    del message
    return queue_of_key(queues, key)


def _check_queue(message: Message, queue: Queue | None) -> None:
    if type(message) is Reply:
        raise UsageError("a reply goes to the one who asked; send it by Producer.send")
    if queue is not None and queue.topic != message.topic:
        raise UsageError(f"a message for {message.topic} cannot go to a queue of {queue.topic}")
