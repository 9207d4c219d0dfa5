"""A deterministic asyncio event loop on virtual time.

The loop is asyncio's own ``SelectorEventLoop`` over a selector that waits by advancing a counter.
So plain asyncio code runs in it unchanged, thousands of times faster than real time, and every run
repeats exactly:

- tasks and futures hash by their number in this loop. ``TaskGroup`` and ``asyncio.wait`` walk sets,
  and by default the order would follow memory addresses;
- cyclic garbage is collected at fixed turns, so finalisers run at the same moment in every run;
- threads, sockets and blocking sleeps are refused (see ``real_world``).

Invariant: tasks and callbacks of a program (see ``program``) run only while the program lives.
Killing a program is therefore like ``kill -9``: no ``finally`` block, no callback.
"""

from __future__ import annotations

import asyncio
import gc
import math
import selectors
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import cache
from typing import Any, TypeVar, TypeVarTuple, Unpack
from weakref import WeakValueDictionary

from txmq.testing.failures import (
    DeadlockError,
    LivelockError,
    RealWorldError,
    VirtualTimeoutError,
)
from txmq.testing.program import PROGRAM, Program, ProgramStep
from txmq.testing.stacks import waits
from txmq.testing.trace import Trace

__all__ = ["SimulatedFuture", "SimulatedLoop", "SimulatedTask", "real_world_closed"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURNS_AT_ONE_MOMENT_MAX = 1_000_000
"""More turns at one virtual time count as a livelock; a busy simulation needs some thousands."""

TURNS_PER_COLLECTION = 50_000
"""The turns between two garbage collections, which bound the memory and must stay cheap."""

CLOSE_ATTEMPTS_MAX = 100
"""How often the loop tries to close a dead coroutine that awaits in its ``finally``."""


class SimulatedTask(asyncio.Task[T]):
    """A task that hashes by its number, so that sets of tasks have one order in every run."""

    def __init__(self, coro: Coroutine[Any, Any, T], loop: SimulatedLoop, **options: Any) -> None:
        self.number: int = loop.next_number()
        context: Context | None = options.get("context")
        self.program: Program | None = PROGRAM.get() if context is None else context.get(PROGRAM)
        # asyncio's own names keep counting across the runs of a process.
        options["name"] = options.get("name") or f"task-{self.number}"
        self._label = options["name"]
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return str(self._label)


class SimulatedFuture(asyncio.Future[T]):
    """A future that hashes by its number."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.number: int = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class _VirtualSelector(selectors.SelectSelector):
    """Waits by calling a function; no descriptor ever becomes ready."""

    wait: Callable[[float | None], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.wait(timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when every task waits."""

    def __init__(self, *, keep_trace: bool = False) -> None:
        self._now = 0.0
        self._deadline = math.inf
        self._numbers = 0
        self._turns = 0
        self._turns_here = 0
        selector = _VirtualSelector()
        super().__init__(selector)
        self._set_time(0.0)
        selector.wait = self._pass_time
        self._frozen: list[SimulatedTask[Any]] = []
        self._tasks: WeakValueDictionary[int, SimulatedTask[Any]] = WeakValueDictionary()
        self.trace: Trace = Trace(keep=keep_trace)
        self.set_debug(False)
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._now

    def next_number(self) -> int:
        """The number of the next task or future."""
        self._numbers += 1
        return self._numbers

    def run_main(self, main: asyncio.Task[Any], *, within: float = math.inf) -> None:
        """Run until a task is done, or until something calls ``stop``.

        Args:
            main: The task to wait for.
            within: The maximum number of virtual seconds.

        Raises:
            DeadlockError: All tasks wait, and nothing is scheduled.
            LivelockError: Tasks keep running while no time passes.
            VirtualTimeoutError: The time is up.
        """
        self._deadline = self._now + within
        main.add_done_callback(lambda _: self.stop())
        # Its error may refer to the frames it passed; since Python 3.13, to this one too.
        del main
        with real_world_closed():
            self.run_forever()
            self._settle()
            gc.collect()

    def tasks(self) -> list[SimulatedTask[Any]]:
        """All tasks that still exist, including finished ones, oldest first."""
        return sorted(self._tasks.values(), key=lambda task: task.number)

    def pending(self) -> list[SimulatedTask[Any]]:
        """The tasks that are not done, oldest first."""
        return [task for task in self.tasks() if not task.done()]

    def freeze(self) -> None:
        """Keep the tasks of dead programs unchanged until the loop is closed.

        If one of them became garbage, Python would close its coroutine, and a dead program's
        ``finally`` blocks would run in the middle of the simulation.
        """
        for task in self.pending():
            if task.program is not None and not task.program.alive:
                self._frozen.append(task)

    def create_future(self) -> SimulatedFuture[Any]:
        """See :meth:`asyncio.loop.create_future`."""
        return SimulatedFuture(self)

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """See :meth:`asyncio.loop.call_soon`; the callback dies with its program."""
        program = PROGRAM.get() if context is None else context.get(PROGRAM)
        if program is None:
            return super().call_soon(callback, *args, context=context)
        step = ProgramStep(program, context, callback, args)
        step.handle = super().call_soon(step, context=step.context)
        return step.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See :meth:`asyncio.loop.call_at`; the callback dies with its program."""
        program = PROGRAM.get() if context is None else context.get(PROGRAM)
        if program is None:
            return super().call_at(when, callback, *args, context=context)
        step = ProgramStep(program, context, callback, args)
        step.handle = timer = super().call_at(when, step, context=step.context)
        return timer

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """See :meth:`asyncio.loop.call_soon_threadsafe`; there is only one thread here."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self,
        executor: Any,  # noqa: ARG002  asyncio's signature
        func: Callable[[Unpack[Ts]], T],
        *args: *Ts,  # noqa: ARG002
    ) -> asyncio.Future[T]:
        """Refuse, because a thread would bring real time and order into the run.

        Raises:
            RealWorldError: Always.
        """
        raise RealWorldError(f"simulated code used a thread for {func!r}")

    def close(self) -> None:
        """Close the loop and every remaining coroutine; their programs must be dead by now.

        Closing a coroutine runs its ``finally`` blocks, but they have no effect: the loop and the
        ports are closed. Errors from them are dropped.
        """
        if self.is_closed():
            return
        left = self.pending()
        self._frozen.clear()
        # The factory is a method of the loop; if it stayed, the loop would refer to itself forever.
        self.set_task_factory(None)
        super().close()
        with warnings.catch_warnings():
            # A finally block that creates a coroutine it cannot run causes a warning.
            warnings.simplefilter("ignore")
            asyncio._set_running_loop(self)  # noqa: SLF001  or asyncio might make them a new loop
            try:
                for task in left:
                    _discard(task)
            finally:
                asyncio._set_running_loop(None)  # noqa: SLF001

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **options: Any,
    ) -> SimulatedTask[T]:
        assert loop is self
        assert asyncio.iscoroutine(coro)
        task: SimulatedTask[T] = SimulatedTask(coro, self, **options)
        self._tasks[task.number] = task
        self.trace.record("task", task.number, getattr(coro, "__qualname__", "?"))
        return task

    def _pass_time(self, timeout: float | None) -> None:
        self._turns += 1
        if self._turns % TURNS_PER_COLLECTION == 0:
            gc.collect()
        if timeout is None:
            raise DeadlockError(f"nothing is scheduled at {self._now:.6f} s{self._waits()}")
        if timeout <= 0:
            self._turns_here += 1
            if self._turns_here > TURNS_AT_ONE_MOMENT_MAX:
                raise LivelockError(f"time stands still at {self._now:.6f} s{self._waits()}")
            return
        if self._now + timeout > self._deadline:
            raise VirtualTimeoutError(f"out of time at {self._deadline:.6f} s{self._waits()}")
        self._turns_here = 0
        self._set_time(self._now + timeout)
        self.trace.stir(self._now)

    def _set_time(self, now: float) -> None:
        self._now = now
        # asyncio fires timers that are due within its clock's resolution. Here that is the smallest
        # step a float can make: no timer fires early, and none is missed however late it gets.
        self._clock_resolution = math.ulp(now)

    def _waits(self) -> str:
        alive = [task for task in self.pending() if task.program is None or task.program.alive]
        return "".join(f"\n  {line}" for line in waits(alive))

    def _settle(self) -> None:
        """Let tasks that were cancelled at the end finish; no time passes."""
        for _ in range(10):
            self.call_soon(self.stop)
            self.run_forever()


def _discard(task: asyncio.Task[Any]) -> None:
    # asyncio itself sets this when it drops a pending task on purpose.
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    coroutine: Any = task.get_coro()
    for _ in range(CLOSE_ATTEMPTS_MAX):
        if coroutine.cr_frame is None:
            return
        with suppress(BaseException):
            coroutine.close()


_FORBIDDEN = {
    "os.fork": "forked",
    "socket.bind": "bound a real socket; listen on the machine's network port",
    "socket.connect": "connected a real socket; connect through the machine's network port",
    "socket.getaddrinfo": "resolved a name; connect through the machine's network port",
    "subprocess.Popen": "started a process",
}
_simulating: dict[int, None] = {}
"""The threads in which a simulation runs."""


@contextmanager
def real_world_closed() -> Iterator[None]:
    """Inside this context, real-world calls of this thread raise RealWorldError."""
    _install_hook()
    me = threading.get_ident()
    assert me not in _simulating, "a simulation inside a simulation"
    _simulating[me] = None
    start, sleep = threading.Thread.start, time.sleep

    def guarded_start(thread: threading.Thread) -> None:
        _refuse("started a thread")
        start(thread)

    def guarded_sleep(seconds: float) -> None:
        _refuse("blocked in time.sleep; await asyncio.sleep")
        sleep(seconds)

    threading.Thread.start = guarded_start  # type: ignore[method-assign, assignment]
    time.sleep = guarded_sleep  # type: ignore[assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        time.sleep = sleep
        del _simulating[me]


def _refuse(what: str) -> None:
    if threading.get_ident() in _simulating:
        raise RealWorldError(f"simulated code {what}")


@cache
def _install_hook() -> None:
    sys.addaudithook(_on_event)


def _on_event(event: str, _: tuple[object, ...]) -> None:
    if _simulating and event in _FORBIDDEN:
        _refuse(_FORBIDDEN[event])
