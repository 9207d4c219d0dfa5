"""Blocks of code that may take only so long, many at once, with one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Deadline", "Deadlines"]


class Deadlines:
    """Gives out deadlines, which cancel what is inside as :func:`asyncio.timeout` does.

    That has a timer for each block. Where thousands of blocks a second begin and end long before
    their time, making and cancelling timers is a good part of what they cost.
    """

    def __init__(self) -> None:
        self._watch: _Watch | None = None

    def within(self, left_s: float, late: Callable[[], Exception]) -> Deadline:
        """For one block of a task: ``with`` cancels it after some time, and raises what is given
        instead.

        Args:
            left_s: How long it may take.
            late: Makes the error.
        """
        loop = asyncio.get_running_loop()
        if self._watch is None or self._watch.loop is not loop:
            self._watch = _Watch(loop)
        return Deadline(self._watch, left_s, late)


class _Watch:
    """Those of one loop, and their timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._inside: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def enter(self, deadline: Deadline) -> None:
        self._inside[deadline] = None
        if self._timer is None or deadline.at < self._timer_at:
            self._wake_at(deadline.at)

    def leave(self, deadline: Deadline) -> None:
        # The timer stays, for those that are still inside or come next.
        self._inside.pop(deadline, None)

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self.loop.call_at(at, self._look), at

    def _look(self) -> None:
        self._timer = None
        now = max(self.loop.time(), self._timer_at)  # Loops may call a little early.
        for deadline in [deadline for deadline in self._inside if deadline.at <= now]:
            del self._inside[deadline]
            deadline.expire()
        if self._inside:
            self._wake_at(min(deadline.at for deadline in self._inside))


class Deadline:
    """What :meth:`Deadlines.within` gives; used once, in a task."""

    __slots__ = ("_before", "_is_late", "_late", "_left_s", "_task", "_watch", "at")

    def __init__(self, watch: _Watch, left_s: float, late: Callable[[], Exception]) -> None:
        self.at = 0.0
        self._watch = watch
        self._left_s = left_s
        self._late = late
        self._is_late = False
        self._before = 0
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._before = task.cancelling()
        self.at = self._watch.loop.time() + self._left_s
        self._watch.enter(self)

    def expire(self) -> None:
        """Its time has come."""
        assert self._task is not None, "it is inside"
        self._is_late = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._watch.leave(self)
        task, self._task = self._task, None
        if not self._is_late or task is None:
            return
        # Somebody else may have cancelled it at the same time, and is to be obeyed.
        is_ours = task.uncancel() <= self._before
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise self._late() from error
