"""Hooks that observe sends, handlers and transactions, such as the trace and OpenTelemetry.

A hook runs before an event, and returns a function to call after it. Hooks must neither wait nor
raise. Without hooks, a producer or consumer only tests for ``None``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from txmq.client.values import SendResult
from txmq.errors import BatchCutShort
from txmq.message import Later, Message, Queue, ReceivedMessage

__all__ = [
    "AfterCheck",
    "AfterEnd",
    "AfterHandler",
    "AfterSend",
    "HandlerHook",
    "HandlerHooks",
    "SendHook",
    "SendHooks",
    "TransactionEnd",
    "TransactionHook",
]

R = TypeVar("R")

AfterSend: TypeAlias = Callable[[Sequence[SendResult], BaseException | None], None]
"""Receives the results and the error; after an error, only the results that came before it."""

AfterHandler: TypeAlias = Callable[[int, BaseException | None], None]
"""Receives the number of consumed messages, counted from the first, and the handler's error."""

AfterEnd: TypeAlias = Callable[[str], None]
"""Receives the broker's answer to an END, as one word."""

AfterCheck: TypeAlias = Callable[[str], None]
"""Receives the answer to a check, as one word."""


class TransactionEnd(NamedTuple):
    """The END that a producer is about to send for a transaction."""

    message: Message
    xid: str
    place: str
    """The half message's offset id."""
    broker: str
    """Empty if it is not known."""
    state: str
    """The decision, in RocketMQ's spelling."""
    is_after_check: bool


class TransactionHook(Protocol):
    """Observes one transaction, step by step."""

    def begin_step(self, number: int, word: str, text: str) -> None:
        """A step begins, and the one before ends."""
        ...

    def note(self, text: str) -> None:
        """Something happens within the step."""
        ...

    def enter(self) -> Callable[[], None]:
        """Assign the work of this task or thread to the step, until the returned function is
        called.
        """
        ...

    def end(self, state: str, is_acknowledged: bool, error: BaseException | None) -> None:
        """The transaction ends here.

        Args:
            state: Its state; empty if that is unknown.
            is_acknowledged: Whether the broker has confirmed it.
            error: The error that ended it, if any.
        """
        ...


class SendHook(Protocol):
    """Observes one producer: its sends, and the ends of its transactions."""

    def before_send(self, messages: Sequence[Message]) -> tuple[list[Message], AfterSend]:
        """Messages of one topic are about to be sent.

        Returns the messages to send, perhaps with more properties, and the function to call after.
        """
        ...

    def before_end(self, end: TransactionEnd) -> AfterEnd:
        """A transaction is about to be committed or rolled back."""
        ...

    def begin_transaction(self, topic: str, xid: str) -> TransactionHook | None:
        """A transaction begins; return its observer, if this hook observes transactions."""
        ...

    def before_check(self, message: ReceivedMessage) -> AfterCheck:
        """This task is about to check whether a transaction has committed."""
        ...


class HandlerHook(Protocol):
    """Observes one consumer's handlers."""

    def before_handler(self, messages: Sequence[ReceivedMessage]) -> AfterHandler:
        """A handler is about to receive messages of one topic, in this task."""
        ...


class SendHooks:
    """All hooks of one producer; runs its sends with the hooks around them."""

    def __init__(self, hooks: Sequence[SendHook]) -> None:
        self._hooks = hooks

    def _before_send(self, messages: Sequence[Message]) -> tuple[list[Message], AfterSend]:
        given, afters = list(messages), []
        for hook in self._hooks:
            given, after = hook.before_send(given)
            afters.append(after)

        def after_send(results: Sequence[SendResult], error: BaseException | None) -> None:
            for after in reversed(afters):
                after(results, error)

        return given, after_send

    def before_end(self, end: TransactionEnd) -> AfterEnd:
        """See :meth:`SendHook.before_end`."""
        return _all([hook.before_end(end) for hook in self._hooks])

    def begin_transaction(self, topic: str, xid: str) -> list[TransactionHook]:
        """See :meth:`SendHook.begin_transaction`."""
        found = (hook.begin_transaction(topic, xid) for hook in self._hooks)
        return [hook for hook in found if hook is not None]

    def before_check(self, message: ReceivedMessage) -> AfterCheck:
        """See :meth:`SendHook.before_check`."""
        return _all([hook.before_check(message) for hook in self._hooks])

    async def send(
        self,
        send: Callable[[Message, Queue | None], Awaitable[SendResult]],
        message: Message,
        queue: Queue | None,
    ) -> SendResult:
        """Send a message, and wait for its answer."""
        (message,), after = self._before_send([message])
        return await _observed(send(message, queue), after, lambda result: [result])

    def send_nowait(
        self,
        send: Callable[[Message, Queue | None], asyncio.Future[SendResult]],
        message: Message,
        queue: Queue | None,
    ) -> asyncio.Future[SendResult]:
        """Send a message whose answer comes later."""
        (message,), after = self._before_send([message])

        def answered(future: asyncio.Future[SendResult]) -> None:
            if future.cancelled():
                after((), asyncio.CancelledError())
            elif (error := future.exception()) is not None:
                after((), error)
            else:
                after([future.result()], None)

        try:
            future = send(message, queue)
        except BaseException as error:
            after((), error)
            raise
        future.add_done_callback(answered)
        return future

    async def send_oneway(
        self,
        send: Callable[[Message, Queue | None], Awaitable[None]],
        message: Message,
        queue: Queue | None,
    ) -> None:
        """Send a one-way message."""
        (message,), after = self._before_send([message])
        await _observed(send(message, queue), after, lambda _: ())

    async def send_batch(
        self,
        send: Callable[[Sequence[Message], Queue | None], Awaitable[list[SendResult]]],
        messages: Sequence[Message],
        queue: Queue | None,
    ) -> list[SendResult]:
        """Send several messages."""
        messages, after = self._before_send(messages)
        return await _observed(send(messages, queue), after, lambda results: results)


class HandlerHooks:
    """All hooks of one consumer; runs its handlers with the hooks around them."""

    def __init__(self, hooks: Sequence[HandlerHook]) -> None:
        self._hooks = hooks

    async def handle(
        self,
        call: Callable[[Sequence[ReceivedMessage]], Awaitable[Later | None]],
        messages: Sequence[ReceivedMessage],
    ) -> Later | None:
        """Call a handler."""
        afters = [hook.before_handler(messages) for hook in self._hooks]
        try:
            verdict = await call(messages)
        except BaseException as error:
            for after in reversed(afters):
                after(0, error)
            raise
        consumed = verdict.first if isinstance(verdict, Later) else len(messages)
        for after in reversed(afters):
            after(consumed, None)
        return verdict


async def _observed(
    sending: Awaitable[R], after: AfterSend, results_in: Callable[[R], Sequence[SendResult]]
) -> R:
    try:
        answer = await sending
    except BaseException as error:
        stored = error.results if isinstance(error, BatchCutShort) else ()
        after([result for result in stored if isinstance(result, SendResult)], error)
        raise
    after(results_in(answer), None)
    return answer


def _all(afters: Sequence[Callable[[str], None]]) -> Callable[[str], None]:
    def after_all(word: str) -> None:
        for after in reversed(afters):
            after(word)

    return after_all
