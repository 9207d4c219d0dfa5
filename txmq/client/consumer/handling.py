"""What an application does with a message, and what it may say about it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from traceback import format_exception_only
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from txmq.errors import LocalProtocolError, UsageError
from txmq.message import ReceivedMessage

if TYPE_CHECKING:
    from txmq.client.consumer.watched import HandleWatches

__all__ = [
    "DEAD_LETTER", "BatchHandler", "Handling", "Later", "MessageHandler", "Verdict", "named",
    "nobody_handles",
]  # fmt: skip

log = logging.getLogger(__name__)

DEAD_LETTER: Final = -1
"""The delay level that stands for "never again"."""


@dataclass(frozen=True, slots=True)
class Later:
    """A handler's word for "not now": the messages shall come again.

    A handler that returns anything else has consumed its messages; one that raises has said
    ``Later()``.

    Raises:
        LocalProtocolError: There is no such level, or no such message.
    """

    level: int = 0
    """The delay level to wait for: 0 leaves it to the broker, which waits longer each time;
    :data:`DEAD_LETTER` sends the message to the dead letters at once, and only that counts if
    orderly."""
    first: int = 0
    """In a batch, the first message this is about; those before it are consumed."""
    suspend_s: float | None = None
    """If orderly, how long the queue rests; the consumer's setting where it is ``None``."""
    reason: str = ""
    """Why, in a few words; kept with the message once it is a dead letter. Where a handler raised,
    it is the exception."""

    def __post_init__(self) -> None:
        """See that it can be meant."""
        if self.level < DEAD_LETTER or self.first < 0:
            raise LocalProtocolError(f"{self} names no delay level, or no message of a batch")


Verdict: TypeAlias = Later | None
MessageHandler: TypeAlias = Callable[[ReceivedMessage], Awaitable[Verdict] | Verdict]
BatchHandler: TypeAlias = Callable[[Sequence[ReceivedMessage]], Awaitable[Verdict] | Verdict]


class Handling:
    """A handler made ready to be awaited: a plain function runs in a thread of the consumer's.

    Raises:
        UsageError: It cannot be called with messages alone.
    """

    def __init__(self, handler: Callable[..., object], *, takes_batch: bool) -> None:
        _check(handler)
        self.takes_batch = takes_batch
        self._handler = cast("Callable[..., Awaitable[Verdict]]", handler)
        call = getattr(handler, "__call__", None)  # noqa: B004 - an object may have an async call
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._threads: ThreadPoolExecutor | None = None
        self._watches: HandleWatches | None = None

    def open(self, threads: ThreadPoolExecutor, watches: HandleWatches | None = None) -> None:
        """Say where plain functions run, and who looks on."""
        self._threads = threads
        self._watches = watches

    def __call__(self, messages: Sequence[ReceivedMessage]) -> Awaitable[Verdict]:
        """Handle these messages, which are one unless the handler takes batches."""
        if self._watches is not None:
            return self._watches.handle(self._call, messages)
        return self._call(messages)

    def _call(self, messages: Sequence[ReceivedMessage]) -> Awaitable[Verdict]:
        given = messages if self.takes_batch else messages[0]
        return self._handler(given) if self.is_async else self._in_thread(given)

    async def _in_thread(self, given: object) -> Verdict:
        # The caller's context goes along, as with asyncio.to_thread: traces are kept in it.
        work = partial(copy_context().run, _call, self._handler, given)
        said = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        # A plain function may also hand on what an async one returned.
        return await said if inspect.isawaitable(said) else said

    async def judge(self, messages: Sequence[ReceivedMessage]) -> Verdict:
        """Handle these messages, and take a failure for ``Later()``."""
        said: object = Later()
        try:
            said = cast("object", await self(messages))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not we are cancelled, but something that the handler waited for.
            log.exception("a handler was cancelled with %s", named(messages))
            said = Later(reason="the handler was cancelled")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as problem:
            # Also what is no Exception: the worker that it ended would be missed for ever.
            log.exception("a handler failed with %s", named(messages))
            said = Later(reason="".join(format_exception_only(problem)).strip())
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The handler kept to itself that we are cancelled; what it says comes too late.
            raise asyncio.CancelledError
        if said is Later:
            return Later()  # Whoever forgot the brackets did not mean "consumed".
        return said if isinstance(said, Later) else None


def _check(handler: Callable[..., object]) -> None:
    # Found out now, not once for every message.
    name = getattr(handler, "__qualname__", repr(handler))
    if not callable(handler):
        raise UsageError(f"a handler is a function, not {name}")
    try:
        inspect.signature(handler).bind(object())
    except TypeError as problem:
        raise UsageError(f"{name} is called with what has come, and nothing else: {problem}") from (
            problem
        )
    except ValueError:
        return  # Some that are built in do not tell.


def _call(handler: Callable[..., Awaitable[Verdict]], given: object) -> Awaitable[Verdict]:
    try:
        return handler(given)
    except StopIteration as problem:
        # No future can hold it: whoever awaits the thread's end would wait for ever.
        raise RuntimeError("a handler raised StopIteration") from problem


def nobody_handles(message: ReceivedMessage) -> str:
    """What is said of a message whose topic has no handler any more."""
    return f"nobody handles topic {message.topic} here"


def named(messages: Sequence[ReceivedMessage]) -> str:
    """Messages as logs name them."""
    first = messages[0]
    more = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
    retry = f", retry {first.attempts}" if first.attempts else ""
    return f"message {first.id} of {first.topic} at {first.offset}{retry}{more}"
