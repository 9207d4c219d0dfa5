"""An application's own code around each handler and each send of a client.

::

    @client.middleware
    async def measure(message: ReceivedMessage, call_next: ReceiveNext) -> Later | None:
        began = perf_counter()
        try:
            return await call_next(message)
        finally:
            print(message.topic, perf_counter() - began)

A class can cover both directions::

    class TenantOfMessage(Middleware):
        async def receive(self, message, call_next):
            token = TENANT.set(message.properties.get("tenant", ""))
            try:
                return await call_next(message)
            finally:
                TENANT.reset(token)

        async def send(self, message, call_next):
            properties = {**message.properties, "tenant": TENANT.get()}
            return await call_next(replace(message, properties=properties))

    client.middleware(TenantOfMessage())
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from txmq.client.values import SendResult
from txmq.errors import UsageError
from txmq.message import Later, Message, Queue, ReceivedMessage

__all__ = [
    "Middleware",
    "ReceiveChain",
    "ReceiveFunction",
    "ReceiveNext",
    "SendChain",
    "SendNext",
    "as_middleware",
]


class ReceiveNext(Protocol):
    """The ``call_next`` of :meth:`Middleware.receive`: the next middleware, or the handler."""

    def __call__(self, message: ReceivedMessage, /) -> Awaitable[Later | None]:
        """Return the verdict.

        Raises:
            Exception: Any error of the handler.
        """
        ...


class SendNext(Protocol):
    """The ``call_next`` of :meth:`Middleware.send`: the next middleware, or the send."""

    def __call__(self, message: Message, /) -> Awaitable[SendResult | None]:
        """Return the broker's result; ``None`` if no answer is awaited.

        Raises:
            TxmqError: As for :meth:`txmq.Producer.send`.
        """
        ...


ReceiveFunction: TypeAlias = Callable[[ReceivedMessage, ReceiveNext], Awaitable[Later | None]]

M = TypeVar("M")
R = TypeVar("R")


class Middleware:
    """Runs around handlers and sends; override one method or both.

    A method calls ``call_next`` once, with the message or a changed copy of it
    (:func:`dataclasses.replace`), and returns its result. An exception that it raises counts as the
    handler's, or the send's.
    """

    async def receive(self, message: ReceivedMessage, call_next: ReceiveNext) -> Later | None:
        """Run around one call of a handler.

        If it does not call ``call_next``, the handler does not run, and the returned verdict
        counts.
        """
        return await call_next(message)

    async def send(self, message: Message, call_next: SendNext) -> SendResult | None:
        """Run around one send, including half messages and each message of a batch."""
        return await call_next(message)


class _OfFunction(Middleware):
    def __init__(self, function: ReceiveFunction) -> None:
        self._function = function

    async def receive(self, message: ReceivedMessage, call_next: ReceiveNext) -> Later | None:
        return await self._function(message, call_next)


def as_middleware(hook: Middleware | ReceiveFunction) -> Middleware:
    """A hook as middleware: an object as it is, or a function wrapped to run around handlers.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(hook, Middleware):
        return hook
    if inspect.iscoroutinefunction(hook):
        return _OfFunction(hook)
    name = getattr(hook, "__qualname__", repr(hook))
    hint = "; add brackets" if isinstance(hook, type) and issubclass(hook, Middleware) else ""
    raise UsageError(
        f"middleware is an async function of (message, call_next), or a txmq.Middleware, not "
        f"{name}{hint}"
    )


class _Chain(Generic[M, R]):
    """Middleware in its order; the first is outermost."""

    def __init__(
        self, around: Sequence[Callable[[M, Callable[[M], Awaitable[R]]], Awaitable[R]]]
    ) -> None:
        self._around = around

    def call(self, message: M, inner: Callable[[M], Awaitable[R]], index: int = 0) -> Awaitable[R]:
        """Call the middleware from ``index`` on, then ``inner``."""
        if index == len(self._around):
            return inner(message)
        return self._around[index](message, lambda changed: self.call(changed, inner, index + 1))


class ReceiveChain(_Chain[ReceivedMessage, Later | None]):
    """The middleware around the handlers of one consumer."""

    @classmethod
    def of(cls, middleware: Sequence[Middleware]) -> ReceiveChain | None:
        """The chain of the middleware that overrides ``receive``; ``None`` if none does."""
        found = [one for one in middleware if type(one).receive is not Middleware.receive]
        return cls([one.receive for one in found]) if found else None

    def receive(
        self,
        call: Callable[[Sequence[ReceivedMessage]], Awaitable[Later | None]],
        messages: Sequence[ReceivedMessage],
    ) -> Awaitable[Later | None]:
        """Call a handler of one message."""
        return self.call(messages[0], lambda message: call((message,)))


class SendChain(_Chain[Message, SendResult | None]):
    """The middleware around the sends of one producer."""

    def __init__(self, around: Sequence[Middleware]) -> None:
        super().__init__([one.send for one in around])
        self._running: set[asyncio.Task[SendResult]] = set()

    @classmethod
    def of(cls, middleware: Sequence[Middleware]) -> SendChain | None:
        """The chain of the middleware that overrides ``send``; ``None`` if none does."""
        found = [one for one in middleware if type(one).send is not Middleware.send]
        return cls(found) if found else None

    async def send(
        self,
        send: Callable[[Message, Queue | None], Awaitable[SendResult]],
        message: Message,
        queue: Queue | None,
    ) -> SendResult:
        """Send a message, and return the broker's result.

        Raises:
            UsageError: A middleware returned no result.
        """
        return _checked(await self.call(message, lambda changed: send(changed, queue)))

    async def send_oneway(
        self,
        send: Callable[[Message, Queue | None], Awaitable[None]],
        message: Message,
        queue: Queue | None,
    ) -> None:
        """Send a one-way message."""

        async def inner(changed: Message) -> None:
            await send(changed, queue)

        await self.call(message, inner)

    def send_nowait(
        self,
        send: Callable[[Message, Queue | None], Awaitable[SendResult]],
        message: Message,
        queue: Queue | None,
    ) -> asyncio.Future[SendResult]:
        """Send a message in a separate task."""
        task = asyncio.ensure_future(self.send(send, message, queue))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def send_batch(
        self,
        send: Callable[[Sequence[Message], Queue | None], Awaitable[list[SendResult]]],
        messages: Sequence[Message],
        queue: Queue | None,
    ) -> list[SendResult]:
        """Run the middleware of each message up to its send, then send all together.

        Raises:
            UsageError: A middleware did not call the next one, or returned no result.
        """
        loop = asyncio.get_running_loop()
        arrived: list[asyncio.Future[Message]] = [loop.create_future() for _ in messages]
        results: list[asyncio.Future[SendResult]] = [loop.create_future() for _ in messages]

        async def walk(index: int, message: Message) -> SendResult:
            async def inner(changed: Message) -> SendResult:
                arrived[index].set_result(changed)
                return await results[index]

            try:
                return _checked(await self.call(message, inner))
            finally:
                if not arrived[index].done():
                    arrived[index].cancel()

        walks = [asyncio.ensure_future(walk(*pair)) for pair in enumerate(messages)]
        try:
            if arrived:
                await asyncio.wait(arrived)
            if any(future.cancelled() for future in arrived):
                for task in walks:
                    if task.done():
                        task.result()  # Raises the error that stopped the message.
                raise UsageError(
                    "a middleware did not send a message of a batch; it must call call_next"
                )
            sent = await self._send_all(send, arrived, results, queue)
            for future, result in zip(results, sent, strict=True):
                future.set_result(result)
            return list(await asyncio.gather(*walks))
        finally:
            for task in walks:
                task.cancel()
            await asyncio.gather(*walks, return_exceptions=True)

    async def _send_all(
        self,
        send: Callable[[Sequence[Message], Queue | None], Awaitable[list[SendResult]]],
        arrived: Sequence[asyncio.Future[Message]],
        results: Sequence[asyncio.Future[SendResult]],
        queue: Queue | None,
    ) -> list[SendResult]:
        try:
            return await send([future.result() for future in arrived], queue)
        except Exception as error:
            for future in results:
                future.set_exception(error)
                future.exception()  # Middleware that has ended does not retrieve it.
            raise


def _checked(result: SendResult | None) -> SendResult:
    if result is None:
        raise UsageError("a middleware returned no result; return what call_next returns")
    return result
