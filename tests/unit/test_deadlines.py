"""Deadlines: each block ends at its own time, by its own error, and cancels nobody else."""

import asyncio
import contextlib
import random

import pytest

from txmq.runtime.deadlines import Deadlines
from txmq.testing import World


class Late(Exception):
    """What a block raises that took too long."""


def in_world(scenario):
    def test():
        with World(1) as world:
            world.run(scenario(world))

    return test


async def inside(deadlines, left_s, work_s):
    with deadlines.within(left_s, Late):
        await asyncio.sleep(work_s)


@in_world
async def test_what_takes_too_long_ends_at_its_time_and_nothing_else_does(world):
    deadlines, chance, ends = Deadlines(), random.Random(1), {}
    begun = world.now()

    async def block(number, begin_s, left_s, work_s):
        await asyncio.sleep(begin_s)
        try:
            await inside(deadlines, left_s, work_s)
        except Late:
            ends[number] = "late", world.now() - begun
        else:
            ends[number] = "done", world.now() - begun

    times = [[chance.uniform(0, 10) for _ in range(3)] for _ in range(300)]
    await asyncio.gather(*[block(n, *each) for n, each in enumerate(times)])
    for number, (begin_s, left_s, work_s) in enumerate(times):
        word, at = ends[number]
        assert word == ("late" if left_s < work_s else "done")
        assert at == pytest.approx(begin_s + min(left_s, work_s), abs=1e-6)


@in_world
async def test_a_block_that_comes_later_may_end_first(world):
    deadlines = Deadlines()
    slow = asyncio.create_task(inside(deadlines, 100, 1000))
    await asyncio.sleep(1)
    begun = world.now()
    with pytest.raises(Late):
        await inside(deadlines, 2, 1000)
    assert world.now() - begun == pytest.approx(2)
    with pytest.raises(Late):
        await slow
    assert world.now() - begun == pytest.approx(99)


@in_world
async def test_no_time_left_is_late_at_once(world):
    with pytest.raises(Late):
        await inside(Deadlines(), -1, 1000)


@in_world
async def test_whoever_is_cancelled_by_others_stays_cancelled(world):
    deadlines = Deadlines()
    task = asyncio.create_task(inside(deadlines, 10, 1000))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # At the very moment at which its time comes as well.
    task = asyncio.create_task(inside(deadlines, 10, 1000))
    asyncio.get_running_loop().call_later(10, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@in_world
async def test_a_block_that_ends_all_the_same_is_no_longer_cancelled(world):
    with Deadlines().within(1, Late), contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(1000)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(1)


@in_world
async def test_an_error_of_its_own_is_not_replaced(world):
    async def failing():
        try:
            await asyncio.sleep(1000)
        finally:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), Deadlines().within(1, Late):
        await failing()


@in_world
async def test_one_timer_serves_all(world):
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    made = []
    call_at = loop.call_at

    def counted(*args, **kwargs):
        made.append(args)
        return call_at(*args, **kwargs)

    loop.call_at = counted
    try:
        for _ in range(1000):
            with deadlines.within(30, Late):
                await asyncio.sleep(0)
        assert len(made) == 1
    finally:
        del loop.call_at


def test_another_loop_has_timers_of_its_own():
    deadlines = Deadlines()
    for _ in range(2):
        with pytest.raises(Late):
            asyncio.run(inside(deadlines, 0.01, 1000))


def test_a_loop_that_was_left_in_the_middle_disturbs_no_other():
    deadlines, left = Deadlines(), asyncio.new_event_loop()
    task = left.create_task(inside(deadlines, 0.01, 1000))
    left.run_until_complete(asyncio.sleep(0))
    with pytest.raises(Late):
        asyncio.run(inside(deadlines, 0.05, 1000))
    with pytest.raises(Late):
        left.run_until_complete(task)
    left.close()
