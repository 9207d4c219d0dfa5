"""Tasks with an owner, and pauses between tries."""

import asyncio
import logging

import pytest

from txmq.runtime.backoff import Backoff
from txmq.runtime.tasks import Tasks
from txmq.testing import World


def in_world(scenario):
    def test(caplog):
        with World(1) as world:
            world.run(scenario(caplog))

    return test


@in_world
async def test_a_stop_cancels_all_tasks_and_waits_for_them(caplog):
    ended = []

    async def work():
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            ended.append(1)

    tasks = Tasks()
    for _ in range(3):
        tasks.start(work(), "work")
    await asyncio.sleep(1)
    assert len(tasks) == 3
    await tasks.stop()
    assert (len(ended), len(tasks)) == (3, 0)


@in_world
async def test_a_task_started_during_a_stop_is_cancelled_too(caplog):
    tasks = Tasks()

    async def heir():
        try:
            await asyncio.sleep(1000)
        finally:
            tasks.start(asyncio.sleep(1000), "another")

    tasks.start(heir(), "first")
    await asyncio.sleep(1)
    await tasks.stop()
    assert len(tasks) == 0


@in_world
async def test_a_stop_that_timed_out_can_be_repeated(caplog):
    async def slow():
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(5)

    tasks = Tasks()
    tasks.start(slow(), "slow")
    await asyncio.sleep(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await tasks.stop()
    assert len(tasks) == 1
    await tasks.stop()
    assert len(tasks) == 0


@in_world
async def test_a_failing_task_is_logged(caplog):
    async def fail():
        raise ValueError("so it goes")

    tasks = Tasks()
    tasks.start(fail(), "this one")
    await asyncio.sleep(1)
    assert len(tasks) == 0
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "this one failed")
    ]


class Middle:
    """Draws without chance."""

    def fraction(self):
        return 0.5


def test_pauses_double_up_to_a_limit_and_a_reset_starts_over():
    backoff = Backoff(Middle(), 0.1, 1.0)

    assert [backoff.next_pause() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_pause() == 0.1


def test_pauses_vary_by_25_percent():
    class Chance:
        drawn = iter([0.0, 0.999])

        def fraction(self):
            return next(self.drawn)

    backoff = Backoff(Chance(), 1.0, 1.0)
    assert backoff.next_pause() == 0.75
    assert backoff.next_pause() == pytest.approx(1.25, abs=0.01)
