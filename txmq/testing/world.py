"""A world: one seed, one loop, one network, some machines, and one run.

A run fails if the main task fails, if another task fails and its error is never retrieved, if tasks
outlive the program that started them, if all tasks wait and no event is scheduled, or if the
virtual time is up. A note on the error says how to repeat the run.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from txmq.testing.entropy import SeededEntropy
from txmq.testing.failures import LeakedTaskError, NotRepeatableError, UnhandledError
from txmq.testing.loop import SimulatedLoop, SimulatedTask
from txmq.testing.machine import Machine
from txmq.testing.network import SimulatedNetwork
from txmq.testing.stacks import waits
from txmq.testing.trace import Trace
from txmq.testing.wire import Conditions

__all__ = ["COLLECTOR", "World", "simulate"]

T = TypeVar("T")


class World:
    """One simulation with all its parts; it runs once.

    Args:
        seed: Decides all random choices.
        scenario: The name of the simulation, for the note on how to repeat a failed run.
        conditions: The quality of the network.
        keep_trace: Whether the trace keeps its events for inspection.

    Attributes:
        seed: The seed.
        loop: The event loop, whose time is the world's.
        network: All hosts; partition, cut and slow them here.
        entropy: Randomness for the scenario's own decisions.
    """

    def __init__(
        self,
        seed: int,
        *,
        scenario: str = "",
        conditions: Conditions | None = None,
        keep_trace: bool = False,
    ) -> None:
        self.seed = seed
        self.loop: SimulatedLoop = SimulatedLoop(keep_trace=keep_trace)
        self.loop.set_exception_handler(self._on_error)
        self._root = SeededEntropy(seed)
        self.entropy: SeededEntropy = self._root.fork("scenario")
        self.network: SimulatedNetwork = SimulatedNetwork(
            self.loop, self._root.fork("network"), conditions
        )
        self._scenario = scenario
        self._machines: dict[str, Machine] = {}
        self._errors: list[tuple[str, BaseException | None]] = []
        self._over = False

    @property
    def trace(self) -> Trace:
        """The events so far."""
        return self.loop.trace

    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self.loop.time()

    def machine(self, name: str, address: str | None = None) -> Machine:
        """The machine of this name, created on first use.

        Args:
            name: Also works as a host name on the network.
            address: Its network address; by default the next free one.
        """
        if name not in self._machines:
            address = address or f"10.0.0.{len(self._machines) + 1}"
            port = self.network.host(address, name)
            entropy = self._root.fork(f"machine {name}")
            self._machines[name] = Machine(name, port, self.network, entropy)
        return self._machines[name]

    def run(self, main: Coroutine[Any, Any, T], *, timeout: float = 3600.0) -> T:
        """Run a scenario to its end and close the world.

        Programs that still run when the scenario returns are killed; the run does not fail.

        Args:
            main: The scenario; it belongs to no machine.
            timeout: The maximum number of virtual seconds.

        Raises:
            SimulationError: The run failed; ``txmq.testing.failures`` has the subclasses.
            BaseException: Whatever the scenario itself raises.
        """
        assert not self._over, "a world runs once"
        with COLLECTOR.on_schedule():
            return self._live(main, timeout)

    def _live(self, main: Coroutine[Any, Any, T], timeout: float) -> T:
        task = self.loop.create_task(main, name="main")
        try:
            self.loop.run_main(task, within=timeout)
            self._judge(task)
            return task.result()
        except BaseException as error:
            self._collect(task)
            for where, cause in self._errors:
                if cause not in (error, error.__cause__):
                    error.add_note(f"also failed: {where}: {cause!r}")
            error.add_note(self.reproduction())
            raise
        finally:
            # Avoid a cycle: an error's traceback refers to this frame, and the task to the error.
            del task
            self.close()

    def close(self) -> None:
        """Kill all programs and close the loop; harmless if repeated.

        The programs' objects are released; the disks do not change.
        """
        self._over = True
        self.loop.set_exception_handler(_ignore)
        for machine in self._machines.values():
            machine.halt()
            machine.disk.on_write = None
        self.loop.close()
        self.network.close()
        self._errors.clear()

    def reproduction(self) -> str:
        """A line that says how to repeat this run."""
        scenario = f" scenario={self._scenario}" if self._scenario else ""
        moment = f"{self.now():.6f} virtual seconds"
        return f"repeat with: seed={self.seed}{scenario} (after {moment}, {self.trace.digest()})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _judge(self, main: asyncio.Task[Any]) -> None:
        if main.done() and not main.cancelled() and main.exception() is not None:
            return
        self._collect(main)
        if self._errors:
            where, error = self._errors[0]
            raise UnhandledError(f"{where}: {error!r}" if error else where) from error
        leaked = [task for task in self.loop.pending() if self._is_leak(task)]
        if leaked:
            raise LeakedTaskError("tasks left behind:\n  " + "\n  ".join(waits(leaked)))

    def _collect(self, main: asyncio.Task[Any]) -> None:
        """Record the failures of tasks whose errors were never retrieved."""
        for task in self.loop.tasks():
            if task is not main and _unseen(task):
                where = f"{task.get_name()}: its exception was never retrieved"
                self._errors.append((where, task.exception()))

    def _is_leak(self, task: SimulatedTask[Any]) -> bool:
        if task.program is None:
            return not any(machine.watches(task) for machine in self._machines.values())
        return task.program.alive and task.program.finished

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        culprit = context.get("task") or context.get("future")
        program = getattr(culprit, "program", None)
        if program is not None and not program.alive:
            return
        # In some versions of Python, a task that is being collected has already lost its name.
        name = f"{culprit}: " if isinstance(culprit, SimulatedTask) else ""
        self._errors.append((f"{name}{context['message']}", context.get("exception")))
        # Later events would add nothing to this error.
        loop.stop()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore an error after the end of the world."""


def _unseen(task: SimulatedTask[Any]) -> bool:
    """True if a task failed and its exception was never retrieved."""
    return bool(getattr(task, "_log_traceback", False)) and (
        task.program is None or task.program.alive
    )


OBJECTS_LEFT_MAX = 50_000
"""The number of objects that finished runs may leave before the next run collects: about ten busy
worlds. A collection scans the whole process; one before each run would cost more than the run.
"""


class _Collector:
    """Collects garbage when a run asks for it, and when the run ends."""

    def __init__(self) -> None:
        self._left = 0

    @contextmanager
    def on_schedule(self) -> Iterator[None]:
        """Inside this context, only the run collects, and only objects that it created."""
        if self._left >= OBJECTS_LEFT_MAX:
            self._left = 0
            gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        # Exempt older objects, which do not belong to the run, so that collections are cheap.
        gc.freeze()
        try:
            yield
        finally:
            # Collect first: programs have many cycles, and Python treats unfrozen objects as old.
            # It would rarely scan them again, and memory would grow.
            gc.collect()
            # If the run failed, its error still holds its objects.
            self._left += len(gc.get_objects())
            gc.unfreeze()
            if was_enabled:
                gc.enable()


COLLECTOR = _Collector()
"""One per process, because a process has one heap."""


def simulate(
    scenario: Callable[[World], Coroutine[Any, Any, T]],
    seed: int,
    *,
    timeout: float = 3600.0,
    conditions: Conditions | None = None,
    twice: bool = False,
) -> T:
    """Run a scenario in a new world.

    Args:
        scenario: An async function of the world.
        seed: Decides all random choices.
        timeout: The maximum number of virtual seconds.
        conditions: The quality of the network.
        twice: Whether to run it again and compare the traces.

    Raises:
        NotRepeatableError: The second run differs from the first.
        SimulationError: The run failed; see :meth:`World.run`.
    """

    def once(*, keep_trace: bool) -> tuple[T, Trace]:
        name = getattr(scenario, "__qualname__", "")
        world = World(seed, scenario=name, conditions=conditions, keep_trace=keep_trace)
        return world.run(scenario(world), timeout=timeout), world.trace

    result, first = once(keep_trace=twice)
    if twice:
        _, second = once(keep_trace=True)
        difference = first.difference(second)
        if difference is not None:
            raise NotRepeatableError(f"seed {seed}: {difference}")
    return result
