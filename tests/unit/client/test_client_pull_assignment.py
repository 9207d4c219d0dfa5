"""Pull consumers that choose their queues and offsets: assignments, seeks, pauses, single pulls."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.unit.client.pull_stage import (
    BY_HAND,
    GROUP,
    SOON,
    TOPIC,
    bodies,
    numbered,
    polled,
    staged,
    until,
)
from txmq.client import PullOutcome
from txmq.client.settings import StartFrom
from txmq.errors import UsageError
from txmq.message import Queue

# Assigned queues


@staged
async def test_a_queue_can_be_assigned_to_several_consumers(stage):
    queues = await stage.topic(queues=3, messages=2)
    first, second = stage.consumer(name="first"), stage.consumer(name="second")
    await first.assign(queues[:2])
    await second.assign(queues[1:])
    async with first, second:
        assert first.queues == queues[:2]
        mine, theirs = await polled(first, 4), await polled(second, 4)
        assert {message.queue for message in mine} == {*queues[:2]}
        assert {message.queue for message in theirs} == {*queues[1:]}


@staged
async def test_an_assignment_can_change_at_any_time(stage):
    queues = await stage.topic(queues=3, messages=2)
    async with stage.consumer(replace(SOON, pull_batch=1)) as consumer:
        await consumer.assign(queues[:2])
        await polled(consumer, 2)
        await until(lambda: sum(queue.cached_msg_count for queue in consumer.held().values()) == 2)
        await consumer.assign(queues[1:])
        rest = await polled(consumer, 3)
        assert queues[0] not in {assigned.queue for assigned in rest}
        assert await consumer.poll(5.0) == []
        assert consumer.queues == queues[1:]
        assert await stage.saved(queues[0]) == 1
        await consumer.assign([])
        await stage.send(queues[1], 1)
        assert await consumer.poll(5.0) == []
        assert consumer.positions() == {}


@staged
async def test_a_seek_can_follow_an_assignment_at_once(stage):
    [queue] = await stage.topic(messages=5)
    async with stage.consumer() as consumer:
        await consumer.assign([queue])
        await consumer.seek(queue, 1)
        await consumer.seek(queue, 3)
        assert bodies(await polled(consumer, 2)) == numbered(0, 3, 4)


@staged
async def test_a_seek_is_dropped_with_its_assignment(stage):
    [queue] = await stage.topic(messages=5)
    async with stage.consumer() as consumer:
        await consumer.assign([queue])
        await consumer.seek(queue, 3)
        await consumer.assign([])
        await consumer.assign([queue])
        assert bodies(await polled(consumer, 5)) == numbered(0, *range(5))


@staged
async def test_poll_returns_nothing_from_a_queue_that_is_being_unassigned(stage):
    [queue] = await stage.topic(messages=5)
    consumer = stage.consumer()
    await consumer.assign([queue])
    async with consumer:
        await until(lambda: sum(state.cached_msg_count for state in consumer.held().values()) == 5)
        assigning = asyncio.create_task(consumer.assign([]))
        await asyncio.sleep(0)
        assert await consumer.poll(0) == []
        await assigning


@staged
async def test_subscribing_and_assigning_cannot_be_combined(stage):
    [queue] = await stage.topic()
    subscribed, assigned = stage.consumer(), stage.consumer()
    subscribed.subscribe(TOPIC)
    await assigned.assign([queue])
    with pytest.raises(UsageError, match="not both"):
        await subscribed.assign([queue])
    with pytest.raises(UsageError, match="not both"):
        assigned.subscribe(TOPIC)


# Seeking


@staged
async def test_a_seek_discards_fetched_messages(stage):
    [queue] = await stage.topic(messages=10)
    async with stage.subscribed(replace(SOON, pull_batch=2)) as consumer:
        assert bodies(await polled(consumer, 2)) == numbered(0, 0, 1)
        await consumer.seek(queue, 7)
        assert consumer.queues == [queue]
        assert consumer.positions() == {queue: 7}
        assert bodies(await polled(consumer, 2)) == numbered(0, 7, 8)
        await consumer.seek_to_begin(queue)
        assert bodies(await polled(consumer, 2)) == numbered(0, 0, 1)
        await consumer.seek_to_end(queue)
        assert await consumer.poll(2.0) == []
        await stage.send(queue, 1, first=10)
        assert bodies(await polled(consumer, 1)) == numbered(0, 10)


@staged
async def test_a_seek_by_time_finds_messages_stored_since_then(stage):
    [queue] = await stage.topic(messages=3)
    await asyncio.sleep(5.0)
    since_ms = stage.world.machine("server").clock.wall_ms()
    await stage.send(queue, 2, first=3)
    async with stage.subscribed() as consumer:
        assert len(await polled(consumer, 5)) == 5
        await consumer.seek_to_time(queue, since_ms)
        assert bodies(await polled(consumer, 2)) == numbered(0, 3, 4)


@staged
async def test_a_seek_to_a_time_after_the_last_message_goes_to_the_end(stage):
    [queue] = await stage.topic(messages=3)
    await asyncio.sleep(5.0)
    async with stage.subscribed() as consumer:
        assert len(await polled(consumer, 3)) == 3
        await consumer.seek_to_time(queue, stage.world.machine("server").clock.wall_ms())
        await stage.send(queue, 1, first=3)
        assert bodies(await polled(consumer, 1)) == numbered(0, 3)


@staged
async def test_messages_polled_before_a_seek_do_not_overwrite_the_new_offset(stage):
    [queue] = await stage.topic(messages=10)
    async with stage.subscribed(replace(SOON, pull_batch=2)) as consumer:
        for _ in range(4):
            await consumer.poll()
        await consumer.seek(queue, 1)
        await consumer.commit()
        assert await stage.saved(queue) == 1
        assert bodies(await consumer.poll()) == numbered(0, 1, 2)
        await asyncio.sleep(3.0)
        assert await stage.saved(queue) == 1


@staged
async def test_a_seek_saves_no_offset_when_only_commits_count(stage):
    [queue] = await stage.topic(messages=10)
    async with stage.subscribed(replace(BY_HAND, pull_batch=2)) as consumer:
        await consumer.poll()
        await consumer.commit()
        await consumer.seek(queue, 6)
        await consumer.poll()
        await asyncio.sleep(20.0)
        assert await stage.saved(queue) == 2
        await consumer.commit()
        assert await stage.saved(queue) == 8


@staged
async def test_a_seek_before_the_first_poll_saves_no_offset_when_only_commits_count(stage):
    [queue] = await stage.topic(messages=10)
    async with stage.consumer(BY_HAND) as consumer:
        await consumer.assign([queue])
        await consumer.seek(queue, 6)
        assert bodies(await polled(consumer, 4)) == numbered(0, *range(6, 10))
        await asyncio.sleep(20.0)
        assert await stage.saved(queue) == 0
        await consumer.commit()
        assert await stage.saved(queue) == 10


@staged
async def test_a_seek_in_a_queue_that_is_not_held_is_refused(stage):
    [queue] = await stage.topic()
    async with stage.subscribed() as consumer:
        await until(lambda: consumer.queues)
        with pytest.raises(UsageError, match="not held"):
            await consumer.seek(Queue("Other", "broker-a", 0), 1)
        with pytest.raises(UsageError, match="no queue has"):
            await consumer.seek(queue, -1)


@staged
async def test_an_operator_can_reset_the_offsets_of_a_running_consumer(stage):
    [queue] = await stage.topic(messages=4)
    for settings in (SOON, BY_HAND):
        async with stage.subscribed(settings) as consumer:
            await polled(consumer, 4)
            await consumer.commit()
            await stage.admin.reset_offset(GROUP, TOPIC, 0)
            assert bodies(await polled(consumer, 4)) == numbered(0, 0, 1, 2, 3)
            assert await stage.saved(queue) == 0


@staged
async def test_poll_returns_nothing_from_a_paused_queue(stage):
    queues = await stage.topic(queues=2, messages=4)
    async with stage.subscribed(replace(SOON, pull_batch=1)) as consumer:
        await until(lambda: sum(queue.cached_msg_count for queue in consumer.held().values()) == 8)
        consumer.pause([queues[0]])
        assert {message.queue.number for message in await polled(consumer, 4)} == {1}
        assert await consumer.poll(5.0) == []
        await consumer.seek(queues[0], 2)
        assert await consumer.poll(5.0) == []
        assert consumer.held()[queues[0]].cached_msg_count == 0

        waiting = asyncio.create_task(consumer.poll(60.0))
        await asyncio.sleep(1.0)
        consumer.resume()
        assert bodies(await waiting) == numbered(0, 2)
        consumer.pause()
        await stage.send(queues[1], 1, first=4)
        assert await consumer.poll(5.0) == []
        consumer.resume([queues[1]])
        assert bodies(await polled(consumer, 1)) == numbered(1, 4)


@staged
async def test_a_waiting_poll_returns_messages_of_a_resumed_queue(stage):
    [queue] = await stage.topic(messages=4)
    async with stage.subscribed() as consumer:
        await until(lambda: sum(state.cached_msg_count for state in consumer.held().values()) == 4)
        consumer.pause()
        waiting = asyncio.create_task(consumer.poll(60.0))
        await asyncio.sleep(1.0)
        before = stage.world.now()
        consumer.resume()
        assert len(await waiting) == 4
        assert stage.world.now() == before


# Single pulls


@staged
async def test_single_pulls_need_no_subscription(stage):
    """The first program of a pull consumer: each queue to its end, offsets kept by the program."""
    queues = await stage.topic(queues=2, messages=40)
    consumer, found = stage.consumer(), []
    async with consumer:
        assert await consumer.queues_of(TOPIC) == queues
        for queue in queues:
            offset = 0
            while (pulled := await consumer.pull(queue, offset, hold=1.0)).found:
                found += pulled.messages
                offset = pulled.next_offset
            assert pulled.outcome is PullOutcome.EMPTY
            assert offset == 40
    assert bodies(found) == numbered(0, *range(40)) + numbered(1, *range(40))


@staged
async def test_noted_offsets_are_visible_at_once_and_saved_periodically(stage):
    [queue] = await stage.topic(messages=3)
    async with stage.consumer() as consumer:
        consumer.note_offset(queue, 1)
        assert await consumer.committed(queue) == 1
        await asyncio.sleep(2.0)
        assert await stage.saved(queue) == 1
        consumer.note_offset(queue, 3)
        assert await consumer.committed(queue) == 3
        assert await stage.saved(queue) == 1
    assert await stage.saved(queue) == 3


@staged
async def test_an_offset_noted_in_one_run_does_not_override_the_saved_one_in_the_next(stage):
    [queue] = await stage.topic(messages=3)
    consumer = stage.consumer()
    async with consumer:
        consumer.note_offset(queue, 1)
    await stage.admin.commit_offset(GROUP, queue, 2)
    async with consumer:
        assert await consumer.committed(queue) == 2


@staged
async def test_noting_the_offset_of_an_assigned_queue_is_refused(stage):
    [queue] = await stage.topic()
    consumer = stage.consumer()
    await consumer.assign([queue])
    async with consumer:
        with pytest.raises(UsageError, match="seek"):
            consumer.note_offset(queue, 1)


# Where a group starts


@pytest.mark.parametrize(
    ("start", "first"), [(StartFrom.FIRST, 0), (StartFrom.TIME, 2), (StartFrom.LAST, 4)]
)
@staged
async def test_a_new_group_starts_where_configured_even_in_a_queue_with_its_first_message(
    stage, start, first
):
    """RocketMQ returns 0 for such a queue, unless the request forbids it, as if the group had
    consumed from it before.
    """

    [queue] = await stage.topic(messages=2)
    await asyncio.sleep(10)
    start_ms = stage.world.machine("reader").clock.wall_ms() if start is StartFrom.TIME else None
    await asyncio.sleep(1)
    await stage.send(queue, 2, first=2)
    async with stage.subscribed(replace(SOON, start=start, start_ms=start_ms)) as consumer:
        await until(lambda: consumer.queues)
        await asyncio.sleep(1)
        await stage.send(queue, 1, first=4)
        assert bodies(await polled(consumer, 5 - first)) == numbered(0, *range(first, 5))
