"""What an open producer has under way: each message made ready, given its room, and sent alone or
with others.

A :class:`~txmq.client.send.producer.Producer` is the public face; this module does the work, in as
few steps for each message as possible.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from txmq.client.envelope import Envelope, Packing, check_name, sealed
from txmq.client.routes import Route
from txmq.client.send.accumulator import Accumulator
from txmq.client.send.pending_sends import PendingSend, PendingSends
from txmq.client.send.request_reply import Reply, Requester
from txmq.client.send_request import (
    SendRequest,
    bundled,
    common_topic,
    packed_size,
    split,
    travels_alone,
)
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
from txmq.message import Message, Queue
from txmq.protocol.codes import SysFlag
from txmq.quantity import quantity

__all__ = ["Sender", "check_kind"]

log = logging.getLogger(__name__)

_PREPARED: Final = int(SysFlag.PREPARED)
_CLOSED = "this producer was closed before the message was sent"


class Sender:
    """The sends of one producer, from when it opens until it closes.

    Args:
        post: Who carries what is sent.
        group: In whose name.
        asking: Who knows the way of replies.
    """

    def __init__(self, post: PendingSends, group: str, asking: Requester) -> None:
        chosen = post.settings
        self.post = post
        self.settings = chosen
        self._session = post.session
        self._ids = post.session.ids
        self._group = group
        self._asking = asking
        self._packing = Packing(chosen.body_bytes_max, chosen.compress_from, chosen.compression)
        self.gathering = Accumulator(post, self._packing) if chosen.linger_s > 0 else None
        self._is_closed = False

    async def close(self) -> None:
        """Send what still lingers, wait for answers as long as a send may take, and end."""
        self._is_closed = True
        post, gathering = self.post, self.gathering
        try:
            post.send_away()
            async with asyncio.timeout(self.settings.timeout_s):
                while len(post) or gathering:
                    if gathering is not None:
                        gathering.flush()
                    await post.drain()
                    await asyncio.sleep(0)  # What arrived last has its turn to be told.
        except TimeoutError:
            sends = quantity(len(post), "send")
            log.warning("group %s leaves without the answers of %s", self._group, sends)
        finally:
            if gathering is not None:
                gathering.close(_CLOSED)
            await post.close()

    # One message

    async def send(self, message: Message, queue: Queue | None) -> SendResult:
        """See :meth:`txmq.client.send.producer.Producer.send`."""
        if type(message) is Reply:
            return await self._asking.reply(message, self._sealed(message))
        _check_queue(message, queue)
        post, gathering = self.post, self.gathering
        if gathering is not None and not travels_alone(message):
            envelope = sealed(message, self._ids.next(), self._packing, compress=False)
            size = len(envelope.body)
            if not post.take(size):
                await self._wait_for_room(size)
            return await gathering.add(envelope, queue)
        size = len(message.body)
        parcel = SendRequest(self._sealed(message))
        if not post.take(size):
            await self._wait_for_room(size)
        return await self._arrived(PendingSend(post, parcel, queue, self._retries(queue), size))

    async def send_half(self, message: Message, queue: Queue | None) -> SendResult:
        """Send a half message. It is tried again only while it is certain that nothing is stored:
        a second half under the same id would be a second message where a stock broker has it.

        Raises:
            TxmqError: As for :meth:`send`.
        """
        _check_queue(message, queue)
        post, size = self.post, len(message.body)
        envelope = sealed(message, "", self._packing)  # It brings its id.
        flags = envelope.sys_flag | _PREPARED
        parcel = SendRequest(msgspec.structs.replace(envelope, sys_flag=flags))
        if not post.take(size):
            await self._wait_for_room(size)
        delivery = PendingSend(post, parcel, queue, self._retries(queue), size, is_once=True)
        return await self._arrived(delivery)

    async def _arrived(self, delivery: PendingSend) -> SendResult:
        self.post.start(delivery)
        try:
            result: SendResult = await delivery.future
        except asyncio.CancelledError:
            delivery.drop()
            raise
        return result

    def send_nowait(self, message: Message, queue: Queue | None) -> asyncio.Future[SendResult]:
        """See :meth:`txmq.client.send.producer.Producer.send_nowait`."""
        _check_queue(message, queue)
        post, gathering = self.post, self.gathering
        if gathering is not None and not travels_alone(message):
            envelope = sealed(message, self._ids.next(), self._packing, compress=False)
            if not post.take(len(envelope.body)):
                raise self._no_room(len(envelope.body))
            return gathering.add(envelope, queue)
        size = len(message.body)
        parcel = SendRequest(self._sealed(message))
        if not post.take(size):
            raise self._no_room(size)
        delivery = PendingSend(
            post, parcel, queue, self.settings.retries_nowait, size, is_nowait=True
        )
        post.start(delivery)
        return delivery.future

    async def send_oneway(self, message: Message, queue: Queue | None) -> None:
        """See :meth:`txmq.client.send.producer.Producer.send_oneway`."""
        post, session = self.post, self._session
        _check_queue(message, queue)
        parcel = SendRequest(self._sealed(message))
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

    # Several

    async def send_batch(
        self, messages: Sequence[Message], queue: Queue | None
    ) -> list[SendResult]:
        """See :meth:`txmq.client.send.producer.Producer.send_batch`."""
        common_topic(messages)
        _check_queue(messages[0], queue)
        most = self.settings.body_bytes_max
        parts = split([self._sealed(each, compress=False) for each in messages], most)
        for part in parts:
            if len(part) == 1 and (packed := packed_size(part[0])) > most:
                raise LimitExceeded("the size of a message in a batch", most, packed)
        results: list[SendResult] = []
        for part in parts:
            try:
                results += await self._send_part(part, queue)
            except TxmqError as problem:
                if not results:
                    raise
                raise BatchCutShort(results, len(messages), problem) from problem
        return results

    async def _send_part(self, part: list[Envelope], queue: Queue | None) -> list[SendResult]:
        post, parcel = self.post, bundled(part)
        size = len(parcel.body)
        if not post.take(size):
            await self._wait_for_room(size)
        delivery = PendingSend(post, parcel, queue, self._retries(queue), size, is_single=False)
        post.start(delivery)
        try:
            results: list[SendResult] = await delivery.future
        except asyncio.CancelledError:
            delivery.drop()
            raise
        return results

    # What they have in common

    async def writable(self, topic: str) -> Sequence[Queue]:
        """The queues of a topic that can be written to, asked for where they are not known.

        Raises:
            RequestTimeout: Nobody told within the time for sending.
            BrokerRefused: There is no such topic.
        """
        check_name("topic", topic)
        async with _limited(self.settings.timeout_s):
            return (await self._route(topic)).writable

    async def _route(self, topic: str) -> Route:
        session, new_queues = self._session, self.settings.queues_of_new_topics
        return session.known_route(topic) or await session.route_to_write(topic, new_queues)

    def _sealed(self, message: Message, *, compress: bool = True) -> Envelope:
        return sealed(message, self._ids.next(), self._packing, compress=compress)

    def _retries(self, queue: Queue | None) -> int:
        return self.settings.retries if queue is None else 0

    def _no_room(self, size: int) -> LimitExceeded:
        most = self.settings.in_flight_bytes_max
        return LimitExceeded("bytes in flight", most, self.post.bytes_in_flight + size)

    async def _wait_for_room(self, size: int) -> None:
        await self.post.room(size)
        if self._is_closed:
            self.post.release(size)
            raise UsageError(_CLOSED)


@asynccontextmanager
async def _limited(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as problem:
        late = RequestTimeout("there was no way to a broker within the time for sending")
        late.effect = Effect.NONE  # Nothing was sent.
        raise late from problem


def _check_queue(message: Message, queue: Queue | None) -> None:
    if type(message) is not Message:
        check_kind(message)
    if queue is not None and queue.topic != message.topic:
        raise UsageError(f"a message for {message.topic} cannot go to a queue of {queue.topic}")


def check_kind(message: object) -> None:
    """See that something is sent as messages are.

    Raises:
        UsageError: It is a reply, which goes to one client.
        LocalProtocolError: It is no message at all.
    """
    if isinstance(message, Reply):
        raise UsageError("a reply goes to the one who asked; send it by Producer.send")
    if not isinstance(message, Message):
        hint = "; write send_batch(messages)" if isinstance(message, list | tuple) else ""
        raise LocalProtocolError(f"a Message is sent, not a {type(message).__name__}{hint}")
