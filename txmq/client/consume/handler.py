"""An application's handler, and its possible verdicts."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from traceback import format_exception_only
from typing import Any, Final, TypeAlias, cast

from txmq.client.consume.handler_arguments import arguments_of, signature_of
from txmq.client.middleware import ReceiveChain
from txmq.client.observe.hooks import HandlerHooks
from txmq.client.observe.worker_process import AfterVerdict
from txmq.errors import KeyConflict, KeyInProgress, PayloadInvalid, UsageError, VersionGap
from txmq.limits import FAILED_MESSAGES_MAX
from txmq.message import DEAD_LETTER, HANDLED_BODY, Later, ReceivedMessage
from txmq.runtime.signatures import is_async, object_parameter
from txmq.runtime.tasks import Threads

__all__ = [
    "BatchHandler",
    "BoundHandler",
    "MessageHandler",
    "Verdict",
    "named",
    "no_handler",
    "stop_notice",
]

log = logging.getLogger(__name__)

NOTICE_S: Final = 1.0
"""How long a stop waits for handlers before the log says so."""

Verdict: TypeAlias = Later | None
MessageHandler: TypeAlias = (
    Callable[[Any], Awaitable[Verdict] | Verdict]
    | Callable[[Any, Any], Awaitable[Verdict] | Verdict]
)
"""A function that takes the message, its body as a declared type, or both."""
BatchHandler: TypeAlias = Callable[[Sequence[ReceivedMessage]], Awaitable[Verdict] | Verdict]


class BoundHandler:
    """An application's handler as an awaitable; plain functions run in the consumer's threads.

    Raises:
        UsageError: The handler cannot be called with messages or their bodies, or declares a type
            that cannot be read.
    """

    def __init__(self, handler: Callable[..., object], *, takes_batch: bool) -> None:
        _check(handler, takes_batch=takes_batch)
        self.takes_batch = takes_batch
        self._arguments = None if takes_batch else arguments_of(handler)
        self._guarded = self._arguments and getattr(handler, "__idempotent__", None)
        self._handler = cast("Callable[..., Awaitable[Verdict]]", handler)
        self.is_async: bool = is_async(handler)
        self.call: Callable[[Sequence[ReceivedMessage]], Awaitable[Verdict]] = self._call
        """Handle messages; exactly one, unless the handler takes batches."""
        self._threads: Threads | None = None
        self._observe: Callable[[Sequence[ReceivedMessage]], AfterVerdict] | None = None
        self._failures: dict[str, str] = {}

    def open(
        self,
        threads: Threads,
        hooks: HandlerHooks | None = None,
        chain: ReceiveChain | None = None,
        observe: Callable[[Sequence[ReceivedMessage]], AfterVerdict] | None = None,
    ) -> None:
        """Prepare it for calls.

        Args:
            threads: The pool for plain functions.
            hooks: Observe its calls.
            chain: The middleware around it; not used for batches.
            observe: Called before the messages are handled; the function that it returns receives
                the verdict.
        """
        self._threads, self._observe, self.call = threads, observe, self._call
        if chain is not None and not self.takes_batch:
            self.call = partial(chain.receive, self.call)
        if hooks is not None:
            self.call = partial(hooks.handle, self.call)

    def _call(self, messages: Sequence[ReceivedMessage]) -> Awaitable[Verdict]:
        if self._arguments is not None:
            given = self._arguments(messages[0])
        else:
            given = (messages if self.takes_batch else messages[0],)
        if self._guarded is not None:
            return self._call_guarded(messages[0].body, given)
        return self._handler(*given) if self.is_async else self._in_thread(given)

    async def _call_guarded(self, body: bytes, given: tuple[object, ...]) -> Verdict:
        token = HANDLED_BODY.set((self._guarded, body))
        try:
            return await (self._handler(*given) if self.is_async else self._in_thread(given))
        finally:
            HANDLED_BODY.reset(token)

    async def _in_thread(self, given: tuple[object, ...]) -> Verdict:
        assert self._threads is not None, "the consumer is running"
        # As with asyncio.to_thread, the thread gets a copy of the caller's context, which carries
        # traces.
        context, is_wanted = copy_context(), True

        def work() -> object:
            if not is_wanted:
                return None  # The caller was cancelled before a thread was free.
            try:
                return context.run(self._handler, *given)
            except StopIteration as error:
                # A future cannot hold StopIteration: its caller would wait forever.
                raise RuntimeError("a handler raised StopIteration") from error

        try:
            verdict = cast("Awaitable[Verdict] | Verdict", await self._threads.run(work))
        finally:
            is_wanted = False
        # A plain function may return an async function's coroutine.
        return await verdict if inspect.isawaitable(verdict) else verdict

    async def judge(self, messages: Sequence[ReceivedMessage]) -> Verdict:
        """Handle these messages; a failure counts as ``Later()``."""
        if self._observe is None:
            return (await self._judge(messages))[0]
        after = self._observe(messages)
        verdict: Verdict = Later()
        has_failed = True
        try:
            verdict, has_failed = await self._judge(messages)
        finally:
            after(verdict, has_failed)
        return verdict

    async def _judge(self, messages: Sequence[ReceivedMessage]) -> tuple[Verdict, bool]:
        """The verdict, and whether the handler failed."""
        verdict: object = Later()
        has_failed = False
        try:
            verdict = cast("object", await self.call(messages))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that the handler awaited was cancelled, not this task.
            log.exception("a handler was cancelled with %s", named(messages))
            has_failed = True
            verdict = Later(reason="the handler was cancelled")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except (KeyInProgress, VersionGap) as error:
            # Not a failure: the message is only postponed.
            log.info("%s comes again later: %s", named(messages), error)
            verdict = Later(reason=str(error))
        except (KeyConflict, PayloadInvalid) as error:
            has_failed = True
            log.warning("moving %s to the dead letters: %s", named(messages), error)
            verdict = Later(DEAD_LETTER, reason=str(error))
        except BaseException as error:  # noqa: BLE001 - logged, and the message comes again
            # A BaseException would otherwise end the worker.
            has_failed = True
            reason = "".join(format_exception_only(error)).strip()
            self._log_failure(messages, reason)
            verdict = Later(reason=reason)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The handler swallowed the cancellation; its verdict comes too late.
            raise asyncio.CancelledError
        if verdict is Later:
            verdict = Later()  # The class without brackets must not mean "consumed".
        return verdict if isinstance(verdict, Later) else None, has_failed

    def _log_failure(self, messages: Sequence[ReceivedMessage], reason: str) -> None:
        """Log one line for each attempt, with a traceback if the failure is new."""
        message_id, failures = messages[0].id, self._failures
        is_new = failures.pop(message_id, None) != reason
        failures[message_id] = reason
        if len(failures) > FAILED_MESSAGES_MAX:
            del failures[next(iter(failures))]
        line = reason.partition("\n")[0]
        log.error("a handler failed with %s: %s", named(messages), line, exc_info=is_new)


def _check(handler: Callable[..., object], *, takes_batch: bool) -> None:
    # Computed now, not for every message.
    name = getattr(handler, "__qualname__", repr(handler))
    if not callable(handler):
        raise UsageError(f"a handler is a function, not {name}")
    try:
        signature = signature_of(handler)
    except ValueError:
        return  # Some built-in functions have no signature.
    if object_parameter(signature) is not None:
        raise UsageError(
            f"{name} is a method, and no object has it yet: register that of an object, as in "
            "consumer.on(topic)(service.handle)"
        )
    if not takes_batch:
        return  # For single messages, arguments_of checks this.
    try:
        signature.bind(object())
    except TypeError as error:
        raise UsageError(f"{name} is called with a batch, and nothing else: {error}") from error


@contextmanager
def stop_notice(most_s: float) -> Iterator[None]:
    """Log a line if a stop must wait for running handlers."""
    text = "stopping, and waiting up to %g s for handlers at work; Ctrl-C ends it without waiting"
    timer = asyncio.get_running_loop().call_later(NOTICE_S, log.warning, text, most_s)
    try:
        yield
    finally:
        timer.cancel()


def no_handler(message: ReceivedMessage) -> str:
    """The reason for a message whose topic no longer has a handler."""
    return f"topic {message.topic} has no handler here"


def named(messages: Sequence[ReceivedMessage]) -> str:
    """How logs name messages."""
    first = messages[0]
    more = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
    retry = f", retry {first.attempts}" if first.attempts else ""
    return f"message {first.id} of {first.topic} at {first.offset}{retry}{more}"
