"""Deadlines: each block ends at its own time with its own error, and cancels no other task."""

import asyncio
import contextlib
import random

import pytest

from txmq.runtime.deadlines import Deadlines
from txmq.testing import World


class Late(Exception):
    """Raised by a block that took too long."""


def in_world(scenario):
    def test():
        with World(1) as world:
            world.run(scenario(world))

    return test


async def inside(deadlines, left_s, work_s):
    with deadlines.within(left_s, Late):
        await asyncio.sleep(work_s)


@in_world
async def test_only_blocks_that_exceed_their_deadline_end_late(world):
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
    await asyncio.gather(*[block(n, *durations) for n, durations in enumerate(times)])
    for number, (begin_s, left_s, work_s) in enumerate(times):
        word, at = ends[number]
        assert word == ("late" if left_s < work_s else "done")
        assert at == pytest.approx(begin_s + min(left_s, work_s), abs=1e-6)


@in_world
async def test_a_later_block_with_an_earlier_deadline_ends_first(world):
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
async def test_a_block_with_no_time_left_is_late_at_once(world):
    with pytest.raises(Late):
        await inside(Deadlines(), -1, 1000)


@in_world
async def test_a_block_cancelled_from_outside_raises_cancelled_error(world):
    deadlines = Deadlines()
    task = asyncio.create_task(inside(deadlines, 10, 1000))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Cancelled in the same moment in which its deadline passes.
    task = asyncio.create_task(inside(deadlines, 10, 1000))
    asyncio.get_running_loop().call_later(10, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@in_world
async def test_a_block_that_swallows_its_timeout_leaves_the_task_uncancelled(world):
    with Deadlines().within(1, Late), contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(1000)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(1)


@in_world
async def test_an_error_raised_inside_the_block_is_not_replaced_by_late(world):
    async def failing():
        try:
            await asyncio.sleep(1000)
        finally:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), Deadlines().within(1, Late):
        await failing()


@in_world
async def test_a_thousand_blocks_share_one_timer(world):
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


def test_each_event_loop_has_its_own_timers():
    deadlines = Deadlines()
    for _ in range(2):
        with pytest.raises(Late):
            asyncio.run(inside(deadlines, 0.01, 1000))


def test_an_abandoned_event_loop_does_not_disturb_another():
    deadlines, left = Deadlines(), asyncio.new_event_loop()
    task = left.create_task(inside(deadlines, 0.01, 1000))
    left.run_until_complete(asyncio.sleep(0))
    with pytest.raises(Late):
        asyncio.run(inside(deadlines, 0.05, 1000))
    with pytest.raises(Late):
        left.run_until_complete(task)
    left.close()
