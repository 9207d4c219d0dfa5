"""Time limits for many concurrent blocks of code, with one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Deadline", "Deadlines"]


class Deadlines:
    """Creates deadlines, which cancel a block as :func:`asyncio.timeout` does.

    :func:`asyncio.timeout` sets a timer for each block. If thousands of blocks a second end long
    before their deadline, creating and cancelling timers is a large part of their cost.
    """

    def __init__(self) -> None:
        self._watch: _Watch | None = None

    def within(self, left_s: float, late: Callable[[], Exception]) -> Deadline:
        """A deadline for one ``with`` block of a task. A late block is cancelled and raises
        ``late()``.

        Args:
            left_s: How long the block may take.
            late: Creates the error to raise.
        """
        loop = asyncio.get_running_loop()
        if self._watch is None or self._watch.loop is not loop:
            self._watch = _Watch(loop)
        return Deadline(self._watch, left_s, late)


class _Watch:
    """The open deadlines of one event loop, and their timer."""

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
        # The timer stays for the other open deadlines, and for the next ones.
        self._inside.pop(deadline, None)

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self.loop.call_at(at, self._look), at

    def _look(self) -> None:
        self._timer = None
        now = max(self.loop.time(), self._timer_at)  # Event loops may call a little early.
        for deadline in [deadline for deadline in self._inside if deadline.at <= now]:
            del self._inside[deadline]
            deadline.expire()
        if self._inside:
            self._wake_at(min(deadline.at for deadline in self._inside))


class Deadline:
    """A deadline from :meth:`Deadlines.within`; use it once, in a task."""

    __slots__ = ("_before", "_is_late", "_late", "_left_s", "_task", "_watch", "at")

    def __init__(self, watch: _Watch, left_s: float, late: Callable[[], Exception]) -> None:
        self.at: float = 0.0
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
        """Cancel the block, because its time is over."""
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
        # Another cancellation of the task at the same time takes precedence.
        is_ours = task.uncancel() <= self._before
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise self._late() from error
