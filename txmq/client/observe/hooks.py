"""Who looks on while messages are sent and handled: the trace, and OpenTelemetry.

A watch is told when something begins, and says whom to tell how it ended. It neither waits nor
fails: what it watches goes on as if nobody looked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from txmq.client.values import SendResult
from txmq.errors import BatchCutShort
from txmq.message import Later, Message, Queue, ReceivedMessage

__all__ = [
    "CheckEnded",
    "EndTold",
    "Ending",
    "HandleEnded",
    "HandleWatch",
    "HandleWatches",
    "SendEnded",
    "SendWatch",
    "SendWatches",
    "TransactionWatch",
]

SendEnded: TypeAlias = Callable[[Sequence[SendResult], BaseException | None], None]
"""Is told what brokers said of the messages, of the first of them where a problem ended it."""

HandleEnded: TypeAlias = Callable[[int, BaseException | None], None]
"""Is told how many of the messages are consumed, from the first on, and what the handler raised."""


EndTold: TypeAlias = Callable[[str], None]
"""Is told what came of an END, in a word."""

CheckEnded: TypeAlias = Callable[[str], None]
"""Is told what a check was answered, in a word."""


class Ending(NamedTuple):
    """A transaction that is about to be ended."""

    message: Message
    xid: str
    place: str
    """The half message's offset id."""
    broker: str
    """Empty where that is not known."""
    state: str
    """What is said, in RocketMQ's spelling."""
    is_after_check: bool


class TransactionWatch(Protocol):
    """Looks on while a transaction takes its steps."""

    def begin_step(self, number: int, word: str, text: str) -> None:
        """A step is taken, and the one before is over."""
        ...

    def note(self, text: str) -> None:
        """Something happens within the step."""
        ...

    def enter(self) -> Callable[[], None]:
        """What begins in this task or thread belongs to the step, until somebody there calls what
        is returned.
        """
        ...

    def end(self, state: str, is_acknowledged: bool, problem: BaseException | None) -> None:
        """The transaction is over here.

        Args:
            state: What is known of it; empty where nothing is.
            is_acknowledged: Whether the broker has said so.
            problem: Why it went wrong.
        """
        ...


class SendWatch(Protocol):
    """Looks on while messages of one topic are sent, and transactions on them decided."""

    def begin(self, messages: Sequence[Message]) -> tuple[list[Message], SendEnded]:
        """They are about to be sent together; returns them, perhaps with more properties."""
        ...

    def begin_end(self, ending: Ending) -> EndTold:
        """A transaction is about to be ended."""
        ...

    def begin_transaction(self, topic: str, xid: str) -> TransactionWatch | None:
        """A transaction is about to be begun; returns who looks on, if anybody does."""
        ...

    def begin_check(self, message: ReceivedMessage) -> CheckEnded:
        """It is about to be found out, in this task, what became of a transaction."""
        ...


class HandleWatch(Protocol):
    """Looks on while messages of one topic are handled, in the same task."""

    def begin(self, messages: Sequence[ReceivedMessage]) -> HandleEnded:
        """They are about to be given to a handler."""
        ...


class SendWatches:
    """Has watches look on while a producer sends."""

    def __init__(self, watches: Sequence[SendWatch]) -> None:
        self._watches = watches

    def _begin(self, messages: Sequence[Message]) -> tuple[list[Message], SendEnded]:
        given, ends = list(messages), []
        for each in self._watches:
            given, end = each.begin(given)
            ends.append(end)

        def ended(results: Sequence[SendResult], problem: BaseException | None) -> None:
            for end in reversed(ends):
                end(results, problem)

        return given, ended

    def begin_end(self, ending: Ending) -> EndTold:
        """See :meth:`SendWatch.begin_end`."""
        return _all([each.begin_end(ending) for each in self._watches])

    def begin_transaction(self, topic: str, xid: str) -> list[TransactionWatch]:
        """See :meth:`SendWatch.begin_transaction`; all who look on."""
        found = (each.begin_transaction(topic, xid) for each in self._watches)
        return [each for each in found if each is not None]

    def begin_check(self, message: ReceivedMessage) -> CheckEnded:
        """See :meth:`SendWatch.begin_check`."""
        return _all([each.begin_check(message) for each in self._watches])

    async def send(
        self,
        send: Callable[[Message, Queue | None], Awaitable[SendResult]],
        message: Message,
        queue: Queue | None,
    ) -> SendResult:
        """Watch a message that is sent and answered."""
        (message,), ended = self._begin([message])
        try:
            result = await send(message, queue)
        except BaseException as problem:
            ended((), problem)
            raise
        ended([result], None)
        return result

    def send_nowait(
        self,
        send: Callable[[Message, Queue | None], asyncio.Future[SendResult]],
        message: Message,
        queue: Queue | None,
    ) -> asyncio.Future[SendResult]:
        """Watch a message that is sent, and answered later."""
        (message,), ended = self._begin([message])

        def answered(future: asyncio.Future[SendResult]) -> None:
            if future.cancelled():
                ended((), asyncio.CancelledError())
            elif (problem := future.exception()) is not None:
                ended((), problem)
            else:
                ended([future.result()], None)

        try:
            future = send(message, queue)
        except BaseException as problem:
            ended((), problem)
            raise
        future.add_done_callback(answered)
        return future

    async def send_oneway(
        self,
        send: Callable[[Message, Queue | None], Awaitable[None]],
        message: Message,
        queue: Queue | None,
    ) -> None:
        """Watch a message that nobody answers."""
        (message,), ended = self._begin([message])
        try:
            await send(message, queue)
        except BaseException as problem:
            ended((), problem)
            raise
        ended((), None)

    async def send_batch(
        self,
        send: Callable[[Sequence[Message], Queue | None], Awaitable[list[SendResult]]],
        messages: Sequence[Message],
        queue: Queue | None,
    ) -> list[SendResult]:
        """Watch messages that are sent together."""
        messages, ended = self._begin(messages)
        try:
            results = await send(messages, queue)
        except BaseException as problem:
            stored = problem.results if isinstance(problem, BatchCutShort) else ()
            ended([each for each in stored if isinstance(each, SendResult)], problem)
            raise
        ended(results, None)
        return results


class HandleWatches:
    """Has watches look on while a consumer's handlers work."""

    def __init__(self, watches: Sequence[HandleWatch]) -> None:
        self._watches = watches

    async def handle(
        self,
        call: Callable[[Sequence[ReceivedMessage]], Awaitable[Later | None]],
        messages: Sequence[ReceivedMessage],
    ) -> Later | None:
        """Call a handler and have it watched."""
        ends = [each.begin(messages) for each in self._watches]
        try:
            verdict = await call(messages)
        except BaseException as problem:
            for end in reversed(ends):
                end(0, problem)
            raise
        consumed = verdict.first if isinstance(verdict, Later) else len(messages)
        for end in reversed(ends):
            end(consumed, None)
        return verdict


def _all(told: Sequence[Callable[[str], None]]) -> Callable[[str], None]:
    def tell(word: str) -> None:
        for each in reversed(told):
            each(word)

    return tell
