"""What an application does with a message, and what it may say about it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from traceback import format_exception_only
from typing import TYPE_CHECKING, TypeAlias, cast

from txmq.errors import KeyConflict, KeyInProgress, UsageError, VersionGap
from txmq.message import DEAD_LETTER, Later, ReceivedMessage

if TYPE_CHECKING:
    from txmq.client.consumer.watched import HandleWatches

__all__ = ["BatchHandler", "Handling", "MessageHandler", "Verdict", "named", "nobody_handles"]

log = logging.getLogger(__name__)

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
        except (KeyInProgress, VersionGap) as problem:
            # Nothing failed: it is only not its turn.
            log.info("%s comes again later: %s", named(messages), problem)
            said = Later(reason=str(problem))
        except KeyConflict as problem:
            log.warning("%s is put with the dead letters: %s", named(messages), problem)
            said = Later(DEAD_LETTER, reason=str(problem))
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
