"""Consumers on the sockets and threads of this machine."""

import asyncio
import threading

from tests.running import run_by
from tests.unit.client.pull_stage import GROUP, TOPIC, bodies
from tests.unit.client.test_client_scheduled_pull import reading
from txmq.client.client import Client
from txmq.client.consume import PullConsumer, PushConsumer, ScheduledPull
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.message import Message, Queue
from txmq_broker.testing import embedded

FROM_FIRST = ConsumerSettings(start=StartFrom.FIRST)


def with_client(test):
    """Run a test with a client of a broker, for at most half a minute."""

    async def main():
        async with asyncio.timeout(30), embedded() as broker, Client(broker.names) as client:
            await test(client)

    asyncio.run(main())


async def fill(client, count, queues=1):
    """Create the topic with so many messages."""
    await client.admin.create_topic(TOPIC, queues=queues)
    for number in range(count):
        await client.admin.send(Message(topic=TOPIC, body=b"%d" % number))


@run_by(with_client)
async def test_a_pull_consumer_reads_and_commits_at_an_embedded_broker(client, /):
    consumer = PullConsumer(GROUP, client, FROM_FIRST)
    consumer.subscribe(TOPIC)
    async with consumer:
        await fill(client, 50)
        received = []
        async for messages in consumer:
            received += bodies(messages)
            if len(received) == 50:
                consumer.end()
    assert received == [b"%d" % number for number in range(50)]
    async with PullConsumer(GROUP, client, FROM_FIRST) as after:
        assert await after.committed(Queue(TOPIC, "broker-a", 0)) == 50


@run_by(with_client)
async def test_a_pull_consumer_registers_as_consuming_actively(client, /):
    await fill(client, 0)
    (names,) = client.session.names
    consumer = PullConsumer(GROUP, names)
    consumer.subscribe(TOPIC)
    async with consumer:
        seen = await client.admin.group_connections(GROUP)
        assert [connected.id for connected in seen.clients] == [consumer.client.id]
        assert seen.consume_type == "CONSUME_ACTIVELY"
        assert seen.subscriptions == {TOPIC: "*"}


@run_by(with_client)
async def test_plain_functions_run_in_threads_with_the_callers_context(client, /):
    await fill(client, 1)
    loop = asyncio.get_running_loop()
    got = loop.create_future()
    consumer = PushConsumer(GROUP, client, FROM_FIRST)

    @consumer.on(TOPIC)
    def read(message):
        loop.call_soon_threadsafe(got.set_result, threading.current_thread().name)

    async with consumer:
        assert (await got).startswith(f"txmq-{GROUP}")
    assert await client.admin.committed_offset(GROUP, Queue(TOPIC, "broker-a", 0)) == 1


@run_by(with_client)
async def test_a_scheduled_pull_reads_from_an_embedded_broker(client, /):
    (names,) = client.session.names
    schedule, received = ScheduledPull(GROUP, names), []
    schedule.on(TOPIC)(reading(received, 0.01))
    async with schedule:
        await fill(client, 20, queues=2)
        while len(received) < 20:
            await asyncio.sleep(0.01)
    assert sorted(map(int, received)) == list(range(20))
