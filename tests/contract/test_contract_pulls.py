"""Consumers that ask for messages: shared or chosen queues, anywhere in them, committed by hand."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from tests.contract.contract_cluster import SOON, messages
from txmq.client.client import Client
from txmq.client.consume.pull_consumer import PullConsumer
from txmq.client.settings import ConsumerSettings, StartFrom


async def send(cluster, parts):
    async with cluster.producer() as producer:
        return [await producer.send(part) for part in parts]


@asynccontextmanager
async def asking(cluster, group, topic=None, **settings):
    """A pull consumer in a client of its own, subscribed where a topic is given."""
    chosen = {
        "rebalance_interval": 1.0,
        "commit_interval": 0.3,
        "start": StartFrom.FIRST,
        **settings,
    }
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(cluster.names, SOON))
        consumer = PullConsumer(group, client, ConsumerSettings(**chosen))
        if topic is not None:
            consumer.subscribe(topic)
        yield await stack.enter_async_context(consumer)


async def polled(cluster, consumer, results):
    """Poll until these messages came; return everything polled."""
    wanted, found = {message.id for message in results}, []

    async def all_there():
        found.extend(await consumer.poll(0.5))
        return wanted <= {message.id for message in found}

    await cluster.until(all_there, f"{len(wanted)} messages to be polled")
    return found


async def test_polling_resumes_from_the_committed_offsets(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    first = await send(cluster, messages(topic, 40))
    async with asking(cluster, group, topic, commits_itself=False) as consumer:
        found = await polled(cluster, consumer, first)
        await consumer.commit()
        for queue in await cluster.queues(topic):
            committed = await cluster.admin.committed_offset(group, queue)
            assert committed == await cluster.admin.max_offset(queue)
        dropped = await send(cluster, messages(topic, 8, "n"))
        await polled(cluster, consumer, dropped)  # and not committed

    async with asking(cluster, group, topic, commits_itself=False) as heir:
        again = await polled(cluster, heir, dropped)
    assert sorted(message.body for message in found) == sorted(
        b"body of m-%d" % n for n in range(40)
    )
    assert {message.id for message in again} == {message.id for message in dropped}


async def test_assigned_queues_can_be_read_from_any_offset_or_time(cluster):
    queue, group = await cluster.queue(), await cluster.group()
    results = await send(cluster, messages(queue.topic, 20))
    async with asking(cluster, group) as consumer:
        await consumer.assign([queue])
        await cluster.until(lambda: consumer.queues == [queue], "the queue to be held")

        await consumer.seek(queue, 15)
        assert [message.offset for message in await polled(cluster, consumer, results[15:])] == [
            *range(15, 20)
        ]
        await consumer.seek_to_begin(queue)
        assert len(await polled(cluster, consumer, results)) == 20
        await consumer.seek_to_end(queue)
        more = await send(cluster, messages(queue.topic, 1, "n"))
        (only,) = await polled(cluster, consumer, more)
        assert only.offset == 20
        moment = (await cluster.stored(queue, 10)).stored_ms
        await consumer.seek_to_time(queue, moment)
        found = await polled(cluster, consumer, results[10:] + more)
        assert found[0].stored_ms == moment


async def test_a_time_leads_to_the_first_message_stored_at_or_after_it(cluster):
    queue = await cluster.queue()
    await send(cluster, messages(queue.topic, 10))
    stored = [await cluster.stored(queue, offset) for offset in range(10)]

    for message in stored:
        offset = await cluster.admin.offset_by_time(queue, message.stored_ms)
        assert stored[offset].stored_ms == message.stored_ms
    assert await cluster.admin.offset_by_time(queue, stored[0].stored_ms - 60_000) == 0
    behind = await cluster.admin.offset_by_time(queue, stored[-1].stored_ms + 60_000)
    assert behind in (9, 10)  # The last message in RocketMQ 4, the end of the queue in 5.
    cluster.remark(f"behind the last message, time leads to the {'end' if behind > 9 else 'last'}")


async def test_single_pulls_report_their_outcome(cluster):
    queue, group = await cluster.queue(), await cluster.group()
    async with asking(cluster, group) as consumer:
        assert await consumer.queues_of(queue.topic) == [queue]
        results = await send(cluster, messages(queue.topic, 10, tags="A"))
        await cluster.stored(results[-1].queue, results[-1].offset)

        some = await consumer.pull(queue, 2, count=3)
        none = await consumer.pull(queue, 0, tags="B")
        beyond = await consumer.pull(queue, 1000)
        end = await consumer.pull(queue, 10)
        held = asyncio.create_task(consumer.pull(queue, 10, hold=10.0))
        (late,) = await send(cluster, messages(queue.topic, 1, "late"))
        came = await held
        consumer.note_offset(queue, 5)

        async def saved():
            return await cluster.admin.committed_offset(group, queue) == 5

        await cluster.until(saved, "the offset to be saved")

    assert [message.offset for message in some.messages] == [2, 3, 4]
    assert (some.next_offset, some.min_offset, some.max_offset) == (5, 0, 10)
    assert (none.messages, none.next_offset, none.outcome.name) == ((), 10, "NONE_MATCHED")
    assert (beyond.next_offset, beyond.outcome.name) == (10, "MOVED")
    assert (end.next_offset, end.outcome.name) == (10, "EMPTY")
    assert [message.id for message in came.messages] == [late.id]
