"""The loop: virtual time, one order in every run, and clear words where a run cannot go on."""

import asyncio
import gc
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.running import run_by
from txmq.testing import (
    DeadlockError,
    LivelockError,
    NotRepeatableError,
    RealWorldError,
    VirtualTimeoutError,
    World,
    simulate,
)
from txmq.testing import loop as loop_module

ROOT = Path(__file__).parents[3]


def test_virtual_time_passes_only_while_all_tasks_wait():
    async def scenario(world):
        loop = asyncio.get_running_loop()
        began = loop.time()
        sum(range(10_000))
        assert loop.time() == began
        await asyncio.sleep(86_400 * 365)
        assert loop.time() == pytest.approx(began + 86_400 * 365)

    started = time.monotonic()
    simulate(scenario, 1, timeout=1e9)
    assert time.monotonic() - started < 5


@run_by(simulate, 1)
async def test_timers_fire_in_order_and_timeouts_work(world, /):
    seen = []

    async def at(moment):
        await asyncio.sleep(moment)
        seen.append((moment, world.now()))

    async with asyncio.TaskGroup() as group:
        for moment in (3.5, 0.25, 2.0, 0.0, 1e-6):
            group.create_task(at(moment))
    assert [moment for moment, _ in seen] == [0.0, 1e-6, 0.25, 2.0, 3.5]
    assert all(now == pytest.approx(moment, abs=1e-8) for moment, now in seen)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await asyncio.Event().wait()
    assert world.now() == pytest.approx(13.5)


async def cancelled_group(world):
    """The trap: a task group cancels in set order, and sets of tasks follow addresses."""

    async def worker(number):
        try:
            await asyncio.sleep(world.entropy.fraction() + 1000)
        finally:
            world.trace.record("cancelled", number)

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(worker(number))
            await asyncio.sleep(world.entropy.fraction())
            raise KeyError
    futures = {asyncio.get_running_loop().create_future(): number for number in range(40)}
    for future in set(futures):
        world.trace.record("future", futures[future])
        future.set_result(None)
    done, _ = await asyncio.wait(set(futures))
    for future in done:
        world.trace.record("done", futures[future])


def test_runs_of_one_seed_in_one_process_have_the_same_trace():
    digests = set()
    for _ in range(8):
        world = World(7)
        world.run(cancelled_group(world))
        digests.add(world.trace.digest())
    assert len(digests) == 1


def test_different_seeds_give_different_traces():
    worlds = [World(seed) for seed in range(5)]
    for world in worlds:
        world.run(cancelled_group(world))
    assert len({world.trace.digest() for world in worlds}) == 5


def test_a_run_that_does_not_repeat_is_reported_with_the_first_difference():
    calls = iter(range(100))

    async def scenario(world):
        world.trace.record("same")
        world.trace.record("call", next(calls))

    with pytest.raises(NotRepeatableError, match=r"seed 3: event 2: .*call 0.*call 1"):
        simulate(scenario, 3, twice=True)


def test_a_deadlock_names_what_every_task_awaits():
    async def waits_for_godot(event):
        await event.wait()

    async def scenario(world):
        event = asyncio.Event()
        task = asyncio.create_task(waits_for_godot(event), name="estragon")
        await asyncio.sleep(5)
        await task

    with pytest.raises(DeadlockError) as caught:
        simulate(scenario, 1)

    text = str(caught.value)
    assert "nothing is scheduled at 5.0" in text
    assert "estragon: " in text
    assert "waits_for_godot" in text
    assert "'await event.wait()' (test_simulated_loop.py:" in text
    assert "'await task'" in text


def test_a_run_that_is_too_long_names_what_every_task_awaits():
    async def scenario(world):
        while True:
            await asyncio.sleep(7)

    with pytest.raises(VirtualTimeoutError, match=r"(?s)out of time at 60.*asyncio.sleep\(7\)"):
        simulate(scenario, 1, timeout=60)


def test_a_loop_that_spins_without_time_passing_is_a_livelock(monkeypatch):
    monkeypatch.setattr(loop_module, "TURNS_AT_ONE_MOMENT_MAX", 1000)

    async def scenario(world):
        while True:
            await asyncio.sleep(0)

    with pytest.raises(LivelockError, match="time stands still"):
        simulate(scenario, 1)


def test_threads_are_forbidden_in_a_simulation_and_allowed_after_it():
    async def scenario(world):
        with pytest.raises(RealWorldError):
            await asyncio.to_thread(print)

    simulate(scenario, 1)

    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def test_task_names_are_the_same_in_every_run():
    async def scenario(world):
        async def nothing():
            pass

        task = asyncio.create_task(nothing())
        await task
        return task.get_name()

    assert simulate(scenario, 1) == simulate(scenario, 1)


def test_finalisers_of_cycles_run_at_the_same_moment_in_every_run(monkeypatch):
    monkeypatch.setattr(loop_module, "TURNS_PER_COLLECTION", 100)

    class Cycle:
        def __init__(self, world, number):
            self.world, self.number, self.me = world, number, self

        def __del__(self):
            self.world.trace.record("gone", self.number)

    async def scenario(world):
        for number in range(500):
            Cycle(world, number)
            await asyncio.sleep(0.001)

    simulate(scenario, 1, twice=True)
    assert gc.isenabled()
