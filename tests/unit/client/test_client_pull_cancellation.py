"""Pull consumers that are cancelled wherever they wait leave nothing behind."""

import asyncio

import pytest

from tests.faults.cancelling import cancelled_everywhere
from tests.unit.client.consumer_stage import GROUP, TOPIC, anywhere
from txmq.client.consume import PullConsumer, ScheduledPull
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.message import Queue

STEPS_MIN = 5
"""Fewer steps would mean that little was looked at."""

SETTINGS = ConsumerSettings(
    start=StartFrom.FIRST, pull_batch=1, commits_itself=False, stop_timeout=3.0
)
QUEUE = Queue(TOPIC, "broker-a", 0)


async def polled(consumer, count):
    while count > 0:
        count -= len(await consumer.poll(1.0))


async def share(client):
    consumer = PullConsumer(GROUP, client, SETTINGS)
    consumer.subscribe(TOPIC)
    async with consumer:
        await polled(consumer, 3)
        await consumer.commit()
        await consumer.seek_to_begin(QUEUE)
        await polled(consumer, 2)
        assert await consumer.poll(0.5) == []


async def choose(client):
    async with PullConsumer(GROUP, client, SETTINGS) as consumer:
        await consumer.assign([QUEUE])
        await consumer.seek(QUEUE, 1)
        await polled(consumer, 1)
        await consumer.assign(await consumer.queues_of(TOPIC))
        await polled(consumer, 1)
        await consumer.commit()
        await consumer.assign([])


async def pull(client):
    async with PullConsumer(GROUP, client, SETTINGS) as consumer:
        offset = await consumer.committed(QUEUE) or 0
        pulled = await consumer.pull(QUEUE, offset)
        consumer.note_offset(QUEUE, pulled.next_offset)


async def schedule(client):
    tasks, seen = ScheduledPull(GROUP, client, SETTINGS), []

    @tasks.on(TOPIC)
    async def read(queue, context):
        seen.append(queue)
        offset = await context.consumer.committed(queue) or 0
        pulled = await context.consumer.pull(queue, offset)
        context.consumer.note_offset(queue, pulled.next_offset)
        await asyncio.sleep(0.1)

    async with tasks, asyncio.timeout(10.0):
        while len(seen) < 6:
            await asyncio.sleep(0.05)


@pytest.mark.fault("N12")
@pytest.mark.parametrize("again_after", [None, 1, 3])
@pytest.mark.parametrize("use", [share, choose, pull, schedule])
def test_a_pull_consumer_cancelled_anywhere_closes_its_own_client(use, again_after):
    async def scene(stage, attempt):
        client = stage.client(network=attempt.watch(stage.world.machine("one").network))

        async def run():
            async with client:
                await use(client)

        await attempt.run(run())
        assert not client.is_open
        assert len(client.tasks) == 0
        assert client.consumer(GROUP) is None

    assert cancelled_everywhere(anywhere(scene), again_after=again_after) > STEPS_MIN


@pytest.mark.parametrize("again_after", [None, 2])
@pytest.mark.parametrize("use", [share, choose, pull, schedule])
def test_a_pull_consumer_cancelled_anywhere_leaves_its_group_on_a_shared_client(use, again_after):
    async def scene(stage, attempt):
        network = attempt.watch(stage.world.machine("one").network)
        async with stage.client(network=network) as client:
            await attempt.run(use(client), within_s=4.0)
            assert client.consumer(GROUP) is None
            await asyncio.sleep(5.0)
            # No broker may list a member that has left.
            assert [broker.member_ids(GROUP) for broker in stage.cluster.brokers] == [[], []]
            # And the group is free for the next one.
            async with PullConsumer(GROUP, client, SETTINGS):
                pass

    stays = ["heartbeats", "route refresh"]
    steps = cancelled_everywhere(anywhere(scene), again_after=again_after, stays=stays)
    assert steps > STEPS_MIN
