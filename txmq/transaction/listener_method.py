"""A method of an application's listener, ready to be called."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Final, cast

from txmq.errors import RollBack
from txmq.runtime.tasks import Runner
from txmq.transaction.listener import LocalAnswer, LocalState
from txmq.transaction.state import LocalTransactionState

__all__ = ["ListenerMethod"]

log = logging.getLogger(__name__)

_UNKNOWN: Final = LocalTransactionState.UNKNOWN


class ListenerMethod:
    """A method of a listener, ready to be called; every result and exception becomes an answer.

    Args:
        method: The method.
        runner: Where it runs unless it is ``async``.
    """

    def __init__(self, method: Callable[..., LocalState], runner: Runner) -> None:
        self._method = method
        self._runner = runner
        call = getattr(method, "__call__", None)  # noqa: B004 - an object may have an async call
        self.is_async: bool = inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(
            call
        )

    async def ask(self, xid: str, *args: object, runner: Runner | None = None) -> LocalAnswer:
        """Call it, in another runner if one is given."""
        task = asyncio.current_task()
        try:
            if self.is_async:
                state = await cast("Awaitable[object]", self._method(*args))
            else:
                # The caller's context goes along, as with asyncio.to_thread: traces are in it.
                work = partial(copy_context().run, self._method, *args)
                state = await (runner or self._runner).run(work)
                if inspect.isawaitable(state):
                    state = await state  # A plain function may return what an async one returned.
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            # This task is not cancelled, but an operation that the listener awaited.
            return _unknown(
                xid, RuntimeError("an operation that the listener awaited was cancelled")
            )
        except RollBack as error:
            return LocalAnswer(LocalTransactionState.ROLLBACK, error)
        except Exception as error:  # noqa: BLE001 - any exception leaves the outcome open
            return _unknown(xid, error)
        if task is not None and task.cancelling():
            # The listener has swallowed its cancellation; its answer counts all the same.
            log.warning("the listener ignored its cancellation in transaction %s", xid)
        if isinstance(state, LocalTransactionState):
            return LocalAnswer(state)
        wrong = TypeError(f"a listener returns a LocalTransactionState, not {state!r}")
        log.error("the listener gave no valid answer for transaction %s: %s", xid, wrong)
        return LocalAnswer(_UNKNOWN, wrong)


def _unknown(xid: str, error: Exception) -> LocalAnswer:
    log.error("the listener failed with transaction %s", xid, exc_info=error)
    return LocalAnswer(_UNKNOWN, error)
