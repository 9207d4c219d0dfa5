"""The producer: sends messages and batches, with or without waiting, and retries on other brokers.

It behaves like stock producers; comments name the differences. It runs in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from txmq.client.cluster_client import ClusterClient, client_of
from txmq.client.lifecycle import Lifecycle, not_open
from txmq.client.middleware import SendChain
from txmq.client.names import check_name
from txmq.client.observe.hooks import SendHook, SendHooks
from txmq.client.observe.message_trace import SendTrace, Tracer, trace_group
from txmq.client.routes import Route, queue_of_key
from txmq.client.send.accumulator import Accumulator
from txmq.client.send.pending_sends import PendingSend, PendingSends
from txmq.client.send.request_reply import Reply, Requester
from txmq.client.send_request import (
    Envelope,
    Packing,
    bundled,
    common_topic,
    is_delayed,
    packed_size,
    sealed,
    split,
    travels_alone,
)
from txmq.client.settings import TRACE_SETTINGS, ProducerSettings
from txmq.client.values import SendResult
from txmq.errors import (
    BatchCutShort,
    Effect,
    LimitExceeded,
    LocalProtocolError,
    RequestNotSupported,
    RequestTimeout,
    TxmqError,
    UsageError,
)
from txmq.limits import GROUP_CHARS_MAX
from txmq.message import Message, Queue, ReceivedMessage
from txmq.protocol import properties, recall
from txmq.protocol.bodies import ProducerRegistration
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.recall import RecallHandle
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.settings.units import DurationLike, seconds
from txmq.settings.values import settings_or
from txmq.text import quantity

__all__ = ["Producer", "Sender", "check_kind"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_PREPARED: Final = int(SysFlag.PREPARED)
_NOT_OPEN: Final = "this producer is not open"
_CLOSED: Final = "this producer was closed before the message was sent"


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
        self.send: Callable[[Message, Queue | None], Awaitable[SendResult]] = self._send
        self.send_nowait: Callable[[Message, Queue | None], asyncio.Future[SendResult]]
        self.send_nowait = self._send_nowait
        self.send_oneway: Callable[[Message, Queue | None], Awaitable[None]] = self._send_oneway
        self.send_batch: Callable[[Sequence[Message], Queue | None], Awaitable[list[SendResult]]]
        self.send_batch = self._send_batch
        self._session = pending.session
        self._ids = pending.session.ids
        self._group = group
        self._requester = requester
        self._packing = Packing(chosen.body_size_max, chosen.compress_from, chosen.compression)
        self.accumulator: Accumulator | None = (
            Accumulator(pending, self._packing) if chosen.linger > 0 else None
        )
        self._is_closed = False

    def wrap(self, outer: SendHooks | SendChain) -> None:
        """Run hooks or middleware around every send."""
        self.send = partial(outer.send, self.send)
        self.send_nowait = partial(outer.send_nowait, self.send_nowait)
        self.send_oneway = partial(outer.send_oneway, self.send_oneway)
        self.send_batch = partial(outer.send_batch, self.send_batch)

    async def close(self) -> None:
        """Send the batches, wait for answers for up to ``timeout``, and end."""
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

    def _check_open(self) -> None:
        if self._is_closed:  # Closed while the middleware ran.
            raise not_open(_NOT_OPEN)

    async def _send(self, message: Message, queue: Queue | None) -> SendResult:
        if self._is_closed:  # Inlined from _check_open, to save a call per send.
            raise not_open(_NOT_OPEN)
        if type(message) is not Message or queue is not None:
            if type(message) is Reply:
                envelope = sealed(message, self._ids.next(), self._packing)
                return await self._requester.reply(message, envelope)
            _check_queue(message, queue)
        pending, accumulator = self.pending, self.accumulator
        if accumulator is not None and travels_alone(message):
            accumulator = None
        envelope = sealed(message, self._ids.next(), self._packing, compress=accumulator is None)
        size = len(message.body)
        if accumulator is not None:
            if not pending.take(size):
                await pending.take_later(size)
            return await accumulator.add(envelope, queue)
        result: SendResult = await pending.run(envelope, queue, size)
        return result

    def _send_nowait(self, message: Message, queue: Queue | None) -> asyncio.Future[SendResult]:
        self._check_open()
        if type(message) is not Message or queue is not None:
            _check_queue(message, queue)
        pending, accumulator, settings = self.pending, self.accumulator, self.settings
        if accumulator is not None and travels_alone(message):
            accumulator = None
        envelope = sealed(message, self._ids.next(), self._packing, compress=accumulator is None)
        size = len(message.body)
        if not pending.take(size):
            wanted = pending.bytes_in_flight + size
            raise LimitExceeded("bytes in flight", settings.in_flight_max, wanted)
        if accumulator is not None:
            return accumulator.add(envelope, queue)
        future, retries = pending.loop.create_future(), settings.retries_nowait
        pending.advance(
            PendingSend(pending, envelope, queue, retries, size, future, is_nowait=True)
        )
        return future

    async def _send_oneway(self, message: Message, queue: Queue | None) -> None:
        self._check_open()
        pending, session = self.pending, self._session
        _check_queue(message, queue)
        envelope = sealed(message, self._ids.next(), self._packing)
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

    async def _send_batch(
        self, messages: Sequence[Message], queue: Queue | None
    ) -> list[SendResult]:
        self._check_open()
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
                envelope = bundled(part)
                results += await self.pending.run(envelope, queue, len(envelope.body))
            except TxmqError as error:
                if not results:
                    raise
                raise BatchCutShort(results, len(messages), error) from error
        return results

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
            RequestNotSupported: It is delayed, and the broker is not a txmq broker.
            TxmqError: As for :meth:`send`.
        """
        if queue is not None:
            _check_queue(message, queue)
        envelope = sealed(message, xid, self._packing, sys_flag=_PREPARED, marks=marks)
        size = len(message.body)
        if is_delayed(message):
            return await self._send_delayed_half(envelope, queue, size, message.deliver_at_ms or 0)
        result: SendResult = await self.pending.run(envelope, queue, size, is_once=True)
        return result

    async def _send_delayed_half(
        self, envelope: Envelope, queue: Queue | None, size: int, due_ms: int
    ) -> SendResult:
        # Other brokers do not know this request, and so they store nothing.
        delayed = msgspec.structs.replace(envelope, code=int(RequestCode.SEND_DELAYED_HALF))
        try:
            result: SendResult = await self.pending.run(delayed, queue, size, is_once=True)
        except RequestNotSupported as error:
            raise RequestNotSupported(
                "only a txmq broker can delay a message of a transaction; this broker is not one, "
                "and has not stored the message"
            ) from error
        handle = RecallHandle(envelope.topic, result.queue.broker, due_ms, envelope.id)
        return msgspec.structs.replace(result, recall_handle=recall.encode(handle))

    async def writable(self, topic: str) -> Sequence[Queue]:
        """The writable queues of a topic; queries the route if it is unknown.

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


@asynccontextmanager
async def _limited(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        late = RequestTimeout("no broker could be reached within the time for sending")
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


class Producer(Lifecycle):
    """A member of a producer group; ``async with`` opens and closes it.

    Closing sends the batches that still linger, and waits up to ``timeout`` for pending answers.

    Args:
        group: The producer group.
        names: The name servers, ``host:port`` separated by ``;``, or a client to share.
        settings: How it sends.
        network: Opens streams; a shared client has its own.
        clock: Gives the time; a shared client has its own.
        entropy: Gives randomness; a shared client has its own.

    Raises:
        ConfigError: ``names`` has no server, or an invalid address.
        LocalProtocolError: The group's name contains an invalid character.
        LimitExceeded: The group's name is too long.
    """

    def __init__(
        self,
        group: str,
        names: str | ClusterClient,
        settings: ProducerSettings | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        check_name("producer group", group, GROUP_CHARS_MAX)
        self.settings: ProducerSettings
        self.settings = chosen = settings_or(ProducerSettings, settings)
        self.group = group
        self.client: ClusterClient
        self.client, self._is_own = client_of(names, network, clock, entropy)
        self._sender: Sender | None = None
        self._requester = Requester(self.client, group, chosen)
        self._hooks: SendHooks | None = None
        self._tracer: Tracer | None = None
        self._chain: SendChain | None = None

    async def __aenter__(self) -> Self:
        if self._sender is not None:
            self.client.session.owner.check()
            raise UsageError("this producer is open already")
        async with AsyncExitStack() as undo:
            if self._is_own:
                await self.client.__aenter__()
                undo.push_async_callback(self.client.__aexit__, None, None, None)
            undo.push_async_callback(self.client.leave, self)
            await self.client.join(self)
            pending = PendingSends(self.client.session, self.group, self.settings)
            await self._open_hooks(pending)
            undo.pop_all()
        sender = Sender(pending, self.group, self._requester)
        for outer in (self._hooks, self._chain):
            if outer is not None:
                sender.wrap(outer)
        self._sender = sender
        return self

    async def _open_hooks(self, pending: PendingSends) -> None:
        hooks: list[SendHook] = []
        if self.settings.is_traced:
            inner = Producer(trace_group(self.group, "PRODUCE"), self.client, TRACE_SETTINGS)
            tracer = Tracer(inner, self.settings.trace_topic, pending.clock)
            await tracer.open()
            trace = SendTrace(tracer, self.group, pending.session.ids)
            self._tracer, pending.on_answer = tracer, trace.on_answer
            hooks.append(trace)
        telemetry = self.client.settings.telemetry
        if telemetry is not None and self.settings is not TRACE_SETTINGS:
            hooks.append(telemetry.of_producer(self.group, self.client.id))
            hooks.append(telemetry.metrics.of_producer(self.group, pending.clock))
        self._hooks = SendHooks(hooks) if hooks else None
        if self.settings is not TRACE_SETTINGS:
            self._chain = SendChain.of(self.client.middlewares)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.client.session.owner.is_current:
            return
        sender, self._sender = self._sender, None
        tracer, self._tracer, self._hooks = self._tracer, None, None
        async with AsyncExitStack() as at_last:
            # These run even if the steps below are cancelled.
            if self._is_own:
                at_last.push_async_callback(self.client.__aexit__, kind, error, trace)
            at_last.push_async_callback(self.client.leave, self)
            if tracer is not None:
                at_last.push_async_callback(tracer.close)
            at_last.callback(self._requester.close)
            if sender is not None:
                await sender.close()

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._sender is not None

    @property
    def needs(self) -> Sequence[Lifecycle]:
        """The client that it shares with others, if it does."""
        return () if self._is_own else (self.client,)

    # A member of its group

    def registration(self) -> ProducerRegistration:
        """What it registers with brokers."""
        return ProducerRegistration(self.group)

    def rebalance_soon(self) -> None:
        """Do nothing: a producer has no queues."""

    @property
    def bytes_in_flight(self) -> int:
        """The bytes of bodies that are in flight or linger."""
        return 0 if self._sender is None else self._sender.pending.bytes_in_flight

    # Sender

    async def send(self, message: Message, queue: Queue | None = None) -> SendResult:
        """Send a message and return the broker's result.

        If the broker does not answer, or its refusal is not final, the producer retries on another
        broker under the same id, within ``retries`` and ``timeout``. A message for a chosen queue
        is not retried. While ``in_flight_max`` bytes are in flight, the call waits first. With
        ``linger``, the message may share a request with others of its topic. A reply made by
        :func:`~txmq.client.send.request_reply.reply_to` goes to the requesting client.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large.
            TransportError: No answer came; the error's effect says whether it may be stored.
            BrokerRefused: The broker refused; the error's effect says the same.
            UsageError: The producer is not open, or the queue belongs to another topic.
        """
        return await self._open().send(message, queue)

    def send_nowait(
        self, message: Message, queue: Queue | None = None
    ) -> asyncio.Future[SendResult]:
        """Send a message and return at once; the future holds the result of :meth:`send`.

        If no answer comes, it is retried ``retries_nowait`` times on the same queue; any answer
        from a broker is final. With ``linger`` it is retried as by :meth:`send`. With middleware,
        all errors are in the future.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large, or ``in_flight_max`` is already in flight.
            UsageError: The producer is not open, or the queue belongs to another topic.
        """
        return self._open().send_nowait(message, queue)

    async def send_oneway(self, message: Message, queue: Queue | None = None) -> None:
        """Send a message once without an answer; it may be lost silently.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large.
            TransportError: No broker could be reached; nothing was sent.
            BrokerRefused: There is no such topic, or it cannot be written to.
            UsageError: The producer is not open, or the queue belongs to another topic.
        """
        await self._open().send_oneway(message, queue)

    async def send_batch(
        self, messages: Sequence[Message], queue: Queue | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in as few requests as possible, one after the other.

        Each request is sent as by :meth:`send`; its messages are stored together, without a gap.
        Bodies are not compressed.

        Returns:
            The result of each message, in order.

        Raises:
            LocalProtocolError: The protocol cannot carry one of the messages, or cannot carry it in
                a batch.
            LimitExceeded: A message is too large; nothing was sent.
            BatchCutShort: A request failed after others were answered; the error carries their
                results.
            TransportError: No answer came to the first request; the effect says whether its
                messages may be stored.
            BrokerRefused: The broker refused the first request.
            UsageError: The producer is not open, or the queue belongs to another topic.
        """
        return await self._open().send_batch(messages, queue)

    async def recall(self, topic: str, handle: str | None) -> str:
        """Recall a delayed message, so that it is never delivered.

        The request is sent once; if no answer comes, you may repeat it.

        Args:
            topic: The message's topic.
            handle: The ``recall_handle`` of its send result; a message that is not delayed has
                none, and the call refuses it.

        Returns:
            The message's id.

        Raises:
            IllegalOperation: The handle is invalid, or it is too late.
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came; the effect says whether the message may have been
                recalled.
            BrokerRefused: The broker refuses for another reason, or cannot recall messages.
            UsageError: The producer is not open.
        """
        self._open()
        return await self.client.admin.recall(topic, handle, group=self.group)

    # Requests

    async def request(self, message: Message, timeout: DurationLike) -> ReceivedMessage:
        """Send a request as by :meth:`send`, and return the reply.

        Its consumer sends the reply: ``await producer.send(reply_to(message, body))``.

        Args:
            message: The request.
            timeout: The time limit for the request and its reply together.

        Raises:
            RequestTimeout: No reply came in time; the request may have been served.
            LimitExceeded: The message is too large, or too many replies are awaited.
            UsageError: The producer is not open, or was closed before the reply came.
            TxmqError: The request could not be sent, as for :meth:`send`.
        """
        self._open()
        timeout_s = seconds("timeout", timeout, least=0.001)
        return await self._requester.ask(message, timeout_s, self.send)

    # Ordered sends

    async def send_ordered(self, message: Message, key: str | bytes | int) -> SendResult:
        """Send a message to the queue of its key: messages of one key stay in order.

        There is one attempt: a second one could change the order or duplicate the message.
        Consumers see a text key as the message's sharding key.

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
            select: Receives the topic's queues, the message and ``arg``, and returns a queue.
            arg: The third argument of ``select``.

        Raises:
            UsageError: ``select`` did not return a queue.
            TxmqError: As for :meth:`send`.
        """
        queues = await self._open().writable(message.topic)
        chosen = select(queues, message, arg)
        if not isinstance(chosen, Queue):
            raise UsageError(
                f"the selector returned {chosen!r}: return one of the queues that it receives"
            )
        return await self.send(message, chosen)

    def _open(self) -> Sender:
        sender, owner = self._sender, self.client.session.owner
        if sender is None:
            raise not_open(_NOT_OPEN)
        if not owner.is_current:
            owner.check()
        return sender


def _by_key(queues: Sequence[Queue], message: Message, key: str | bytes | int) -> Queue:
    del message
    return queue_of_key(queues, key)
