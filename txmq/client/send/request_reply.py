"""Request messages and their replies.

A request is an ordinary message that carries the requesting client's id and a correlation id. Its
consumer may send a reply, which is not stored: the broker that stored the request passes it to that
client, over the client's own connection. So the client must register with the broker before it
sends the request, and the reply must go to the same broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from txmq.client.cluster_client import ClusterClient
from txmq.client.routes import TEMPLATE
from txmq.client.send_request import Envelope, result_of
from txmq.client.settings import ProducerSettings
from txmq.client.values import SendResult
from txmq.errors import (
    ConnectFailed,
    Effect,
    LimitExceeded,
    RequestTimeout,
    TopicNotFound,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.limits import REPLIES_AWAITED_MAX
from txmq.message import Message, Queue, ReceivedMessage
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendMessageV2
from txmq.protocol.properties import CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT
from txmq.remoting.connection import Connection

__all__ = ["Reply", "Requester", "reply_to"]

MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
TTL: Final = "TTL"
ARRIVED_MS: Final = "ARRIVE_TIME"

_ASKED: Final = (CORRELATION_ID, REPLY_TO_CLIENT, TTL)
"""The properties that make a message a request; its reply carries them too."""

SendOne = Callable[[Message], Awaitable[SendResult]]
"""Sends a message, as the producer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Message):
    """A message for the requesting client, made by :func:`reply_to`."""

    asked_in: Queue
    """The queue of the request; its broker has a connection to the client."""


def reply_to(
    message: ReceivedMessage,
    body: bytes,
    *,
    tags: str = "",
    properties: Mapping[str, str] | None = None,
) -> Reply:
    """The reply to a request message, for ``Producer.send``.

    Args:
        message: The received request.
        body: The reply's body.
        tags: The reply's tag.
        properties: Further properties of the reply.

    Raises:
        UsageError: The message asks for no reply.
    """
    asked = {name: message.properties.get(name, "") for name in _ASKED}
    missing = [name for name, value in asked.items() if not value]
    if missing:
        raise UsageError(f"message {message.id} asks for no reply: it has no {missing[0]}")
    cluster = message.properties.get(CLUSTER)
    if not cluster:
        raise UsageError(f"message {message.id} does not say of which cluster its broker is")
    return Reply(
        topic=f"{cluster}_REPLY_TOPIC",
        body=body,
        tags=tags,
        properties={**(properties or {}), **asked, MESSAGE_TYPE: REPLY},
        asked_in=message.queue,
    )


def question(message: Message, correlation: str, client: str, timeout_s: float) -> Message:
    """A request message."""
    asked = {
        CORRELATION_ID: correlation,
        REPLY_TO_CLIENT: client,
        TTL: str(max(1, round(timeout_s * 1000))),
    }
    return replace(message, properties={**message.properties, **asked})


class Requester:
    """The requests and replies of one producer.

    Args:
        client: The client that sends requests and receives replies.
        group: The producer group.
        settings: The producer's settings.
    """

    def __init__(self, client: ClusterClient, group: str, settings: ProducerSettings) -> None:
        self._client = client
        self._group = group
        self._settings = settings
        self._told: dict[str, Connection] = {}
        self._awaited: dict[str, asyncio.Future[ReceivedMessage]] = {}

    # Requests

    async def ask(self, message: Message, timeout_s: float, send: SendOne) -> ReceivedMessage:
        """Send a request and return its reply.

        Raises:
            RequestTimeout: No reply came in time.
            LimitExceeded: Too many replies are awaited already.
            UsageError: The producer was closed before the reply came.
            TxmqError: The request could not be sent.
        """
        if len(self._awaited) >= REPLIES_AWAITED_MAX:
            raise LimitExceeded("replies awaited", REPLIES_AWAITED_MAX, len(self._awaited) + 1)
        session = self._client.session
        correlation = str(UUID(bytes=session.entropy.token(16), version=4))
        asked = question(message, correlation, self._client.id, timeout_s)
        is_sent = False
        with self._client.replies.expect(correlation) as reply:
            self._awaited[correlation] = reply
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    await self._introduce(message.topic)
                    is_sent = True
                    await self._send(asked, send, reply)
                    found = await reply
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise _late(message.topic, timeout_s, is_sent=is_sent) from error
            finally:
                del self._awaited[correlation]
                if not reply.cancel() and not reply.cancelled():
                    reply.exception()  # Retrieve the exception, in case the send failed first.
        return replace(found, properties={**found.properties, ARRIVED_MS: str(self._now_ms())})

    def _now_ms(self) -> int:
        return self._client.session.clock.wall_ms()

    async def _send(
        self, asked: Message, send: SendOne, reply: asyncio.Future[ReceivedMessage]
    ) -> None:
        try:
            await send(asked)
        except TransportError:
            # A reply proves that the broker has the request, even if the send was not answered.
            if not reply.done():
                raise

    async def _introduce(self, topic: str) -> None:
        """Register this client with the brokers of a topic, on its open connections."""
        session = self._client.session
        route = session.known_route_to_write(topic) or await session.route_to_write(topic)
        masters: list[str] = []
        for broker in {queue.broker: None for queue in route.writable}:
            try:
                masters.append(route.master(broker))
            except (ConnectFailed, TopicNotFound):
                continue  # The request is not sent there either.
        strangers = [address for address in masters if not self._is_known(address)]
        if strangers:
            self._told = {at: on for at, on in self._told.items() if session.pool.ready(at) is on}
            await asyncio.gather(*[self._introduce_at(address) for address in strangers])

    def _is_known(self, address: str) -> bool:
        connection = self._told.get(address)
        return connection is not None and connection is self._client.session.pool.ready(address)

    async def _introduce_at(self, address: str) -> None:
        connection = await self._client.beat_at(address)
        if connection is not None:
            self._told[address] = connection

    def close(self) -> None:
        """Stop waiting for replies."""
        for reply in self._awaited.values():
            if not reply.done():
                error = UsageError("this producer was closed before the reply came")
                error.effect = Effect.MAYBE
                reply.set_exception(error)

    # Replies

    async def reply(self, reply: Reply, envelope: Envelope) -> SendResult:
        """Send a reply to the broker that stored the request, which passes it to the requesting
        client.

        It is retried if no answer comes: a duplicate reply is harmless, because no caller waits for
        the second one.

        Raises:
            RequestTimeout: The broker did not answer in time.
            BrokerRefused: It does not know the requesting client (any more), or could not reach it.
            TxmqError: The broker is unreachable.
        """
        settings = self._settings
        limit: asyncio.Timeout | None = None
        error: TxmqError | None = None
        try:
            async with asyncio.timeout(settings.timeout) as limit:
                for _ in range(settings.retries + 1):
                    try:
                        return await self._hand_over(reply, envelope)
                    except TransportError as found:
                        error = found
        except TimeoutError as found:
            if limit is None or not limit.expired():
                raise
            raise RequestTimeout("no broker took the reply within the time for sending") from found
        assert error is not None, "each attempt ends somehow"
        raise error

    async def _hand_over(self, reply: Reply, envelope: Envelope) -> SendResult:
        session, settings = self._client.session, self._settings
        address = await session.address_of(reply.asked_in)
        header = SendMessageV2(
            self._group,
            envelope.topic,
            TEMPLATE,
            settings.queues_of_new_topics,
            0,
            envelope.sys_flag,
            self._now_ms(),
            envelope.flag,
            envelope.properties,
            0,
            False,
            0,
            False,
            reply.asked_in.broker,
        )
        connection = await session.connection(address)
        answer = await connection.request(
            RequestCode.SEND_REPLY_MESSAGE_V2,
            header,
            body=envelope.body,
            timeout_s=settings.timeout,
        )
        return result_of(answer, Queue(reply.topic, reply.asked_in.broker, 0), envelope.id)


def _late(topic: str, timeout_s: float, *, is_sent: bool) -> RequestTimeout:
    if is_sent:
        return RequestTimeout(f"no reply to a request to {topic} came within {timeout_s:g} s")
    error = RequestTimeout(f"no broker of {topic} could be reached within {timeout_s:g} s")
    error.effect = Effect.NONE
    return error
