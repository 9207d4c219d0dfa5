"""Tasks that are called for each queue, again and again."""

import asyncio
import logging

import pytest
from msgspec.structs import replace

from tests.unit.client.pull_stage import GROUP, SOON, TOPIC, bodies, numbered, staged, until
from txmq.client.consume import PullContext, ScheduledPull
from txmq.errors import LocalProtocolError, UsageError
from txmq.message import Queue


def reading(found, delay_s=1.0):
    """A typical task: pull, use, note the offset, and set the delay of the next call."""

    async def read(queue, context):
        offset = await context.consumer.committed(queue) or 0
        pulled = await context.consumer.pull(queue, offset)
        found.extend(bodies(pulled.messages))
        context.consumer.note_offset(queue, pulled.next_offset)
        context.next_delay = delay_s

    return read


@staged
async def test_each_queue_is_read_once_and_then_only_new_messages(stage):
    queues = await stage.topic(queues=2, messages=3)
    schedule, found = stage.schedule(), []
    schedule.on(TOPIC)(reading(found))
    async with schedule:
        await until(lambda: len(found) == 6)
        assert schedule.queues == queues
        await stage.send(queues[1], 1, first=3)
        await until(lambda: len(found) == 7)
        await asyncio.sleep(20.0)
        assert [await stage.saved(queue) for queue in queues] == [3, 4]
    assert sorted(found) == numbered(0, *range(3)) + numbered(1, *range(4))


@staged
async def test_the_last_noted_offset_is_saved_when_the_schedule_stops(stage):
    [queue] = await stage.topic(messages=3)
    settings = replace(SOON, commit_interval=600.0)
    schedule, found = stage.schedule(settings), []
    schedule.on(TOPIC)(reading(found))
    async with schedule:
        await until(lambda: len(found) == 3)
        await asyncio.sleep(5.0)
        assert len(found) == 3
        assert await stage.saved(queue) is None
    assert await stage.saved(queue) == 3


@staged
async def test_a_task_is_called_again_after_the_delay_it_sets(stage):
    await stage.topic()
    schedule, calls = stage.schedule(), []

    @schedule.on(TOPIC)
    async def note(queue: Queue, context: PullContext) -> None:
        calls.append(stage.world.now())
        if len(calls) == 2:
            context.next_delay = 10.0

    async with schedule:
        await until(lambda: len(calls) == 4)
    first, second, third, fourth = calls
    assert second - first == pytest.approx(0.2)
    assert third - second == pytest.approx(10.0)
    assert fourth - third == pytest.approx(0.2)


@staged
async def test_a_task_that_raises_is_called_again(stage):
    await stage.topic()
    schedule, calls = stage.schedule(), []

    @schedule.on(TOPIC)
    async def fail(queue, context):
        calls.append(queue)
        raise ZeroDivisionError

    logging.disable(logging.ERROR)
    try:
        async with schedule:
            await until(lambda: len(calls) == 3)
    finally:
        logging.disable(logging.NOTSET)


@staged
async def test_concurrency_limits_how_many_tasks_run_at_once(stage):
    await stage.topic(queues=6)
    schedule = stage.schedule(replace(SOON, concurrency=2))
    at_work, most, seen = 0, 0, set()

    @schedule.on(TOPIC)
    async def work(queue, context):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        seen.add(queue.number)
        await asyncio.sleep(1.0)
        at_work -= 1

    async with schedule:
        await until(lambda: len(seen) == 6)
    assert most == 2


@staged
async def test_members_share_queues_and_hand_them_over(stage):
    queues = await stage.topic(queues=4, messages=2)
    first, second = stage.schedule(name="first"), stage.schedule(name="second")
    mine, theirs = [], []
    first.on(TOPIC)(reading(mine))
    second.on(TOPIC)(reading(theirs))
    async with first:
        await until(lambda: len(mine) == 8)
        await asyncio.sleep(3.0)
        async with second:
            await until(lambda: len(first.queues) == len(second.queues) == 2)
            assert sorted(first.queues + second.queues) == queues
            for queue in queues:
                await stage.send(queue, 1, first=2)
            await until(lambda: len(mine) == 10 and len(theirs) == 2)
        await until(lambda: first.queues == queues)
        for queue in queues:
            await stage.send(queue, 1, first=3)
        await until(lambda: len(mine) == 14)
    assert len(set(mine + theirs)) == len(mine + theirs) == 16


@staged
async def test_a_queue_that_is_lost_and_regained_is_handled_by_one_task_at_a_time(stage):
    queues = await stage.topic(queues=2)
    told = replace(SOON, rebalance_interval=600.0)  # Only brokers trigger a rebalance.
    first, second = stage.schedule(told, "first"), stage.schedule(told, "second")
    at_work = dict.fromkeys(queues, 0)
    calls = []

    @first.on(TOPIC)
    async def work(queue, context):
        assert not at_work[queue]
        at_work[queue] += 1
        calls.append(queue)
        await asyncio.sleep(20.0)  # Longer than the other member is running.
        context.consumer.note_offset(queue, len(calls))
        at_work[queue] -= 1

    @second.on(TOPIC)
    async def idle(queue, context):
        pass

    async with first:
        await until(lambda: first.queues == queues)
        async with second:
            await until(lambda: len(first.queues) == 1)
        await until(lambda: first.queues == queues)
        await until(lambda: len(calls) >= 8, within_s=200.0)
    assert set(calls) == set(queues)


@staged
async def test_a_stop_lets_tasks_finish_within_stop_timeout(stage):
    [queue] = await stage.topic()
    await stage.send(queue, 300)
    ends = []
    for work_s in (3.0, 300.0):
        schedule = stage.schedule(replace(SOON, stop_timeout=10.0))

        @schedule.on(TOPIC)
        async def work(queue, context, work_s=work_s):
            context.consumer.note_offset(queue, int(work_s))
            try:
                await asyncio.sleep(work_s)
                ends.append("ended")
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        async with schedule:
            await asyncio.sleep(1.0)
            before = stage.world.now()
        assert stage.world.now() - before == pytest.approx(min(work_s - 1.0, 10.0), abs=0.1)
        assert await stage.saved(queue) == int(work_s)
    assert ends == ["ended", "cancelled"]


@staged
async def test_a_stop_does_not_call_tasks_that_have_not_begun(stage):
    await stage.topic(queues=2)
    schedule, calls = stage.schedule(replace(SOON, concurrency=1)), []

    @schedule.on(TOPIC)
    async def work(queue, context):
        calls.append(queue)
        await asyncio.sleep(3.0)

    async with schedule:
        await until(lambda: len(schedule.queues) == 2 and calls)
    assert len(calls) == 1


@staged
async def test_wait_returns_when_the_schedule_stops(stage):
    await stage.topic()
    schedule = stage.schedule()
    with pytest.raises(UsageError, match="not running"):
        await schedule.wait()
    with pytest.raises(UsageError, match="no task"):
        await schedule.__aenter__()
    schedule.on(TOPIC)(reading([]))
    async with schedule:
        waiting = asyncio.create_task(schedule.wait())
        await asyncio.sleep(1.0)
        assert not waiting.done()
        with pytest.raises(UsageError, match="already"):
            await schedule.__aenter__()
        with pytest.raises(UsageError, match="before"):
            schedule.on("Other")(reading([]))
    await waiting
    assert schedule.queues == []


def test_invalid_tasks_and_topics_are_refused():
    schedule = ScheduledPull(GROUP, "127.0.0.1:9876")
    with pytest.raises(UsageError, match="async"):
        schedule.on(TOPIC)(lambda queue, context: None)
    with pytest.raises(LocalProtocolError):
        schedule.on("no topic")(reading([]))
    schedule.on(TOPIC)(reading([]))
    with pytest.raises(UsageError, match="has a task"):
        schedule.on(TOPIC)(reading([]))
