"""Where plain functions run for the loop: in a thread that waits for it and has nothing to do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from txmq import background
from txmq.runtime.threads import Job, call_in_loop, run_job, set_error

__all__ = ["Here"]


class Here(background.WaitingThread):
    """A thread that waits for the loop, and meanwhile runs what the loop wants run in it."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: deque[Job] = deque()
        self._is_abandoned = False

    def run(self, work: Callable[[], object], /) -> asyncio.Future[object]:
        """See :meth:`Runner.run`."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._jobs.append((future, work))
        if self._is_abandoned:
            self.abandon()
        else:
            self._wake()
        return future

    def abandon(self) -> None:
        """Nobody waits any more, and what is not begun is never run; for the loop."""
        self._is_abandoned = True
        while self._jobs:
            future, _ = self._jobs.popleft()
            set_error(future, RuntimeError("whoever was to run a function was interrupted"))

    def serve(self) -> None:
        """Run what is wanted until there is nothing more to wait for.

        What is no ``Exception``, as Ctrl-C, ends it and is raised; the loop hears of an error.
        """
        is_over = False
        while not is_over:
            self._sleep()
            is_over = self._is_over  # Before the last look: what is wanted is run all the same.
            while self._jobs:
                # It stays there until it is told of: Ctrl-C may come at any moment.
                job = self._jobs[0]
                tell, interruption = run_job(*job)
                call_in_loop(job[0], tell)
                if interruption is not None:
                    raise interruption
                self._jobs.popleft()
