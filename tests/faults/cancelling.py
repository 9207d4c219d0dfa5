"""Cancels a task at each of its steps, one run of a world for each, and looks at what stays behind.

::

    async def scenario(world, attempt):
        machine = world.machine("client")
        network = attempt.watch(machine.network)
        ...
        await attempt.run(use_something(network))

    assert cancelled_everywhere(scenario) > 10

In the first run the task is cancelled where it waits for the first time, in the second where it
waits for the second time, and so on until it comes to its end. After a run, nothing it started may
run on, no request may wait for its answer, and no future may be left that nobody will ever resolve.
"""

import asyncio
import gc
import types
from itertools import count

from txmq.testing import Conditions, World
from txmq.testing.loop import SimulatedFuture
from txmq.testing.stacks import waits

__all__ = ["Attempt", "cancelled_everywhere"]

STEADY = Conditions(jitter_s=0.0, spike_chance=0.0)

TURNS = 20
"""So often the loop goes round before it is looked what is left: the cancelled end by then."""

STEPS_MAX = 5_000


def cancelled_everywhere(scenario, *, again_after=None, stays=()):
    """Run a scenario again and again, cancelled one step later each time; returns how often.

    Args:
        scenario: An async function of the world and the :class:`Attempt`, which calls its ``run``.
        again_after: After this number of further steps the task is cancelled again, as by an
            impatient caller.
        stays: Names of tasks that may outlive the victim, those of a client that it shares; then
            connections may stay open, too.

    Raises:
        AssertionError: Something stayed behind; the note on it says after which step.
    """
    for step in count(1):
        assert step < STEPS_MAX, "the task comes to no end"
        attempt = Attempt(step, again_after, frozenset(stays))
        try:
            with World(1, conditions=STEADY) as world:
                world.run(scenario(world, attempt))
        except BaseException as problem:
            problem.add_note(f"cancelled at step {step}, {attempt.where}")
            raise
        assert attempt.has_run, "the scenario awaits attempt.run(...)"
        if not attempt.was_cancelled:
            return step
    raise AssertionError("unreachable")


class Attempt:
    """One run, in which a task is cancelled at one of its steps."""

    def __init__(self, step, again_after, stays):
        self.has_run = self.was_cancelled = False
        self.where = ""
        self._steps = [step] if again_after is None else [step, step + again_after]
        self._stays = stays
        self._networks = []

    def watch(self, network):
        """A network port whose connections are checked at the end."""
        self._networks.append(Watched(network))
        return self._networks[-1]

    async def run(self, work, *, within_s=0.0):
        """Run the task that is to be cancelled, and see that it leaves nothing behind.

        Args:
            work: What the task does.
            within_s: Shared work, such as a lookup, may take this long to end.
        """
        loop = asyncio.get_running_loop()
        before, since = asyncio.all_tasks(), loop.next_number()
        task = loop.create_task(self._counted(work), name="victim")
        await asyncio.wait((task,))
        self.has_run = True
        if not task.cancelled():
            task.result()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if within_s:
            await asyncio.sleep(within_s)
        self._look(before, since)

    async def _counted(self, work):
        await _driven(work, self._steps, self._cancel)

    def _cancel(self, work):
        self.was_cancelled = True
        self.where = _innermost(work)
        loop = asyncio.get_running_loop()
        loop.call_soon(asyncio.current_task().cancel)

    def _look(self, before, since):
        left = [task for task in asyncio.all_tasks() - before if task.get_name() not in self._stays]
        assert not left, "tasks run on:\n  " + "\n  ".join(waits(left))
        asked = [
            len(connection._exchange.waiting)
            for network in self._networks
            for connection in network.made
        ]
        assert not any(asked), "requests wait for answers"
        if not self._stays:
            opened = [
                connection.address
                for net in self._networks
                for connection in net.made
                if connection.is_open
            ]
            assert not opened, f"connections are open: {opened}"
        gc.collect()
        awaited = [task._fut_waiter for task in asyncio.all_tasks()]
        idle = [
            future
            for future in gc.get_objects()
            if isinstance(future, SimulatedFuture) and future.number > since and not future.done()
            if not any(future is other for other in awaited)
        ]
        assert not idle, f"nobody will ever resolve {idle}"


class Watched:
    """A network that remembers what was opened through it."""

    def __init__(self, network):
        self._network = network
        self.listen = network.listen
        self.made = []

    async def connect(self, factory, host, port):
        """See :meth:`txmq.runtime.Network.connect`."""
        made = await self._network.connect(factory, host, port)
        self.made.append(made)
        return made


@types.coroutine
def _driven(work, steps, cancel):
    """Await something, and call ``cancel`` at the waits whose numbers are in ``steps``."""
    step, resume, given = 0, work.send, None
    while True:
        try:
            waited_for = resume(given)
        except StopIteration as end:
            return end.value
        step += 1
        if step in steps:
            cancel(work)
        try:
            given = yield waited_for
            resume = work.send
        except BaseException as problem:
            given, resume = problem, work.throw


def _innermost(work):
    while getattr(work, "cr_await", None) is not None and hasattr(work.cr_await, "cr_frame"):
        work = work.cr_await
    frame = work.cr_frame
    return f"in {frame.f_code.co_qualname}, line {frame.f_lineno}" if frame else "at its end"
