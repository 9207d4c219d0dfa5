"""Sends messages: waits for answers or not, tries again elsewhere, and lets messages travel
together.

What it does and what it leaves to the broker's answer is that of stock producers; the differences
are named where they are. It keeps to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from txmq.client.cluster_client import ClusterClient, client_of
from txmq.client.envelope import check_name
from txmq.client.lifecycle import Lifecycle
from txmq.client.observe.hooks import SendWatch, SendWatches
from txmq.client.observe.message_trace import SendTrace
from txmq.client.observe.trace_sender import Tracer, trace_group
from txmq.client.queue_choice import queue_of_key
from txmq.client.send.pending_sends import PendingSends
from txmq.client.send.request_reply import Requester
from txmq.client.send.sender import Sender
from txmq.client.settings import TRACE_SETTINGS, ProducerSettings, settings_or
from txmq.client.values import SendResult
from txmq.errors import UsageError
from txmq.limits import GROUP_CHARS_MAX
from txmq.message import Message, Queue, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.bodies import ProducerRegistration
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network

__all__ = ["Producer"]

T = TypeVar("T")


class Producer(Lifecycle):
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
        names: str | ClusterClient,
        settings: ProducerSettings | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        check_name("producer group", group, GROUP_CHARS_MAX)
        self.settings = chosen = settings_or(ProducerSettings, settings)
        self._group = group
        self.client, self._is_own = client_of(names, network, clock, entropy)
        self._sending: Sender | None = None
        self._asking = Requester(self.client, group, chosen)
        self._watches: SendWatches | None = None
        self._tracer: Tracer | None = None

    async def __aenter__(self) -> Self:
        if self._sending is not None:
            self.client.session.owner.check()
            raise UsageError("this producer is open already")
        async with AsyncExitStack() as undo:
            if self._is_own:
                await self.client.__aenter__()
                undo.push_async_callback(self.client.__aexit__, None, None, None)
            undo.push_async_callback(self.client.leave, self)
            await self.client.join(self)
            post = PendingSends(self.client.session, self._group, self.settings)
            await self._open_watches(post)
            undo.pop_all()
        self._sending = Sender(post, self._group, self._asking)
        return self

    async def _open_watches(self, post: PendingSends) -> None:
        watches: list[SendWatch] = []
        if self.settings.is_traced:
            inner = Producer(trace_group(self._group, "PRODUCE"), self.client, TRACE_SETTINGS)
            tracer = Tracer(inner, self.settings.trace_topic, post.clock)
            await tracer.open()
            trace = SendTrace(tracer, self._group, post.session.ids)
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
        if not self.client.session.owner.is_current:
            return
        sending, self._sending = self._sending, None
        tracer, self._tracer, self._watches = self._tracer, None, None
        async with AsyncExitStack() as at_last:
            # These are seen to also where what follows is cut short.
            if self._is_own:
                at_last.push_async_callback(self.client.__aexit__, kind, problem, trace)
            at_last.push_async_callback(self.client.leave, self)
            if tracer is not None:
                at_last.push_async_callback(tracer.close)
            at_last.callback(self._asking.close)
            if sending is not None:
                await sending.close()

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
        return 0 if self._sending is None else self._sending.post.bytes_in_flight

    # Sender

    async def send(self, message: Message, queue: Queue | None = None) -> SendResult:
        """Send a message and return what the broker says of it.

        Where no answer comes, or one that another broker might not give, it is tried again at
        another broker, under the same id, as long as ``timeout_s`` allows; a message for a chosen
        queue is not. While ``in_flight_bytes_max`` is on its way, it waits for its turn first.
        With ``linger_s`` it may travel with others of its topic. What
        :func:`~txmq.client.send.request_reply.reply_to` made goes to the client that asked.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large.
            TransportError: No answer came; the error's effect says whether it may be stored.
            BrokerRefused: The broker refused; likewise.
            UsageError: The producer is not open, or the queue is one of another topic.
        """
        sending = self._open()
        if self._watches is not None:
            return await self._watches.send(sending.send, message, queue)
        return await sending.send(message, queue)

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
        sending = self._open()
        if self._watches is not None:
            return self._watches.send_nowait(sending.send_nowait, message, queue)
        return sending.send_nowait(message, queue)

    async def send_oneway(self, message: Message, queue: Queue | None = None) -> None:
        """Send a message that nobody answers: it is tried once, and may be lost without a word.

        Raises:
            LocalProtocolError: The protocol cannot carry this message.
            LimitExceeded: It is too large.
            TransportError: There is no way to a broker; nothing was sent.
            BrokerRefused: There is no such topic, or it cannot be written to.
            UsageError: The producer is not open, or the queue is one of another topic.
        """
        sending = self._open()
        if self._watches is not None:
            await self._watches.send_oneway(sending.send_oneway, message, queue)
        else:
            await sending.send_oneway(message, queue)

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
        sending = self._open()
        if self._watches is not None:
            return await self._watches.send_batch(sending.send_batch, messages, queue)
        return await sending.send_batch(messages, queue)

    async def recall(self, topic: str, handle: str) -> str:
        """Have a message that waits for its time never come.

        It is asked once; where no answer comes, it can be asked again.

        Args:
            topic: The message's topic.
            handle: What its ``recall_handle`` said, when it was sent.

        Returns:
            The message's id.

        Raises:
            IllegalOperation: It is no handle of such a message, or too late.
            TopicNotFound: The topic, or this broker's part of it, is unknown.
            TransportError: No answer came; the effect says whether it may be recalled.
            BrokerRefused: The broker refuses for another reason, or cannot recall messages.
            UsageError: The producer is not open.
        """
        self._open()
        return await self.client.admin.recall(topic, handle, group=self._group)

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
        self._open()
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
        queues = await self._open().writable(message.topic)
        return await self.send(message, select(queues, message, arg))

    def _open(self) -> Sender:
        if self._sending is None:
            raise UsageError(
                "this producer is not open; use it with 'async with', or await its start()"
            )
        self.client.session.owner.check()
        return self._sending


def _by_key(queues: Sequence[Queue], message: Message, key: str | bytes | int) -> Queue:
    del message
    return queue_of_key(queues, key)
