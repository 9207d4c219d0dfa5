"""A machine: four ports, the programs that run on them, and the power switch.

A crash stops every program of the machine at once: no ``finally`` block, callback or timer runs.
The machine gets new ports and the old ones are dead, so that a dead program cannot use the disk or
the network again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar
from weakref import WeakSet

from txmq.testing.disk import MemoryDisk
from txmq.testing.entropy import SeededEntropy
from txmq.testing.failures import MachineCrashedError, PowerCut
from txmq.testing.loop import SimulatedLoop
from txmq.testing.network import HostNetwork, SimulatedNetwork
from txmq.testing.pages import Loss
from txmq.testing.program import PROGRAM, Program

__all__ = ["Machine", "SimulatedClock"]

T = TypeVar("T")


class Machine:
    """A machine, created by a :class:`World`.

    Attributes:
        clock: The :class:`txmq.runtime.Clock` port; its wall clock can be jumped.
        network: The :class:`txmq.runtime.Network` port since the last boot.
        disk: The :class:`txmq.runtime.Disk` port since the last boot, and its faults.
        entropy: The :class:`txmq.runtime.Entropy` port.
    """

    def __init__(
        self,
        name: str,
        network: HostNetwork,
        whole: SimulatedNetwork,
        entropy: SeededEntropy,
    ) -> None:
        self.name = name
        self.address: str = network.address
        self.network: HostNetwork = network
        self._whole = whole
        self._loop: SimulatedLoop = whole.ways.loop
        self.clock: SimulatedClock = SimulatedClock(self._loop)
        self.entropy = entropy
        self.disk: MemoryDisk = MemoryDisk(entropy.fork("disk"))
        self._programs: dict[Program, asyncio.Future[None]] = {}
        self._watchers: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._lives = 1
        self._paused = False

    @property
    def is_up(self) -> bool:
        """True if it has power."""
        return self.network.alive

    def run(self, main: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a program: a task that dies with the machine, like everything that it starts.

        Returns:
            A task outside the machine. It ends as the program ends, or with
            ``MachineCrashedError``; cancelling it cancels the program and waits for its end.

        Raises:
            MachineCrashedError: The machine is down.
        """
        if not self.is_up:
            main.close()
            raise MachineCrashedError(f"{self.name} is down")
        program = Program(f"{self.name}/{name or getattr(main, '__name__', 'main')}")
        if self._paused:
            program.pause()
        inside = copy_context()
        inside.run(PROGRAM.set, program)
        killed = self._programs[program] = self._loop.create_future()
        task = self._loop.create_task(main, name=program.name, context=inside)
        watcher = self._loop.create_task(
            self._supervise(program, task, killed), name=f"[{program.name}]", context=Context()
        )
        self._watchers.add(watcher)
        return watcher

    def crash(self, loss: Loss = Loss.ANY) -> None:
        """Cut the power: programs stop at once, peers receive nothing, unsynced bytes may be lost.

        Args:
            loss: The unsynced bytes that may be lost.

        Raises:
            PowerCut: The caller is a program of this machine, which ends here.
        """
        if self.is_up:
            self.halt()
            self.disk.crash(self.entropy.fork(f"crash-{self._lives}"), loss)
        self._stop_caller()

    def kill(self) -> None:
        """Kill its programs as ``kill -9`` does; the operating system stays up.

        All written bytes are kept, locks are released, connections end or are reset. New programs
        can start at once.

        Raises:
            PowerCut: The caller is a program of this machine, which ends here.
        """
        if self.is_up:
            self.halt(silently=False)
            self._boot()
        self._stop_caller()

    def restart(self) -> None:
        """Restart the machine without any programs; if it is up, crash it first."""
        if self.is_up:
            self.crash()
        self._boot()

    def halt(self, *, silently: bool = True) -> None:
        """Stop every program at once and leave the machine down; the disk keeps all bytes.

        Args:
            silently: Whether peers receive nothing; see :meth:`SimulatedNetwork.crash`.
        """
        programs, self._programs = self._programs, {}
        self._paused = False
        for program in programs:
            program.kill()
        self._loop.freeze()
        self._whole.crash(self.address, silently=silently)
        self.disk = self.disk.successor()
        for killed in programs.values():
            if not killed.done():
                killed.set_result(None)

    def pause(self) -> None:
        """Pause its programs, like a stopped process or a blocked event loop.

        The operating system stays up: it keeps bytes that arrive until its buffers are full.
        """
        self._loop.trace.record("pause", self.name)
        self._paused = True
        for program in self._programs:
            program.pause()

    def resume(self) -> None:
        """Let its programs continue; overdue timers fire now."""
        self._loop.trace.record("resume", self.name)
        self._paused = False
        for program in self._programs:
            program.resume()

    def watches(self, task: asyncio.Task[Any]) -> bool:
        """True if :meth:`run` returned this task."""
        return task in self._watchers

    def _boot(self) -> None:
        self._lives += 1
        self.network = self._whole.host(self.address)
        self._loop.trace.record("boot", self.name)

    def _stop_caller(self) -> None:
        caller = PROGRAM.get()
        if caller is not None and not caller.alive:
            raise PowerCut

    async def _supervise(
        self, program: Program, task: asyncio.Task[T], killed: asyncio.Future[None]
    ) -> T:
        try:
            await asyncio.wait((task, killed), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task, killed), return_when=asyncio.FIRST_COMPLETED)
            raise
        finally:
            program.finished = True
            self._programs.pop(program, None)
        if not killed.done():
            return task.result()
        me = asyncio.current_task()
        assert me is not None
        # The scenario caused the crash, so an error that it does not retrieve is not a failure.
        me.add_done_callback(asyncio.Task.exception)
        raise MachineCrashedError(f"{self.name} went down under {program.name}")


EPOCH_MS = 1_700_000_000_000
"""The wall time at virtual second 0: a day in November 2023."""


class SimulatedClock:
    """An :class:`txmq.runtime.Clock` over an event loop's time.

    The monotonic clock is the loop's, so that timers and deadlines agree. The wall clock is correct
    at first; :meth:`jump` and :meth:`drift` make it wrong.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_ms: int = EPOCH_MS) -> None:
        self._loop = loop
        self._since = loop.time()
        self._wall_s = epoch_ms / 1000 + self._since
        self._rate = 1.0

    def monotonic(self) -> float:
        """See :meth:`txmq.runtime.Clock.monotonic`."""
        return self._loop.time()

    def wall_ms(self) -> int:
        """See :meth:`txmq.runtime.Clock.wall_ms`."""
        return round(self._wall_now() * 1000)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative."""
        self._rebase()
        self._wall_s += seconds

    def drift(self, rate: float) -> None:
        """Make the wall clock gain this many seconds per second from now on, or lose them if
        negative.
        """
        self._rebase()
        self._rate = 1.0 + rate

    def _wall_now(self) -> float:
        return self._wall_s + (self._loop.time() - self._since) * self._rate

    def _rebase(self) -> None:
        self._wall_s, self._since = self._wall_now(), self._loop.time()
