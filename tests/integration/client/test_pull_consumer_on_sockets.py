"""A pull consumer on the sockets of this machine."""

import asyncio

from tests.running import in_loop, run_by
from tests.unit.client.pull_stage import (
    GROUP,
    TOPIC,
    bodies,
)
from txmq.client.consume import PullConsumer
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.message import Message, Queue
from txmq_broker.testing import embedded


@run_by(in_loop)
async def test_a_pull_consumer_reads_and_commits_at_an_embedded_broker():
    async with embedded() as broker:
        settings = ConsumerSettings(start=StartFrom.FIRST)
        consumer = PullConsumer(GROUP, broker.names, settings)
        consumer.subscribe(TOPIC)
        async with consumer:
            await consumer.client.admin.create_topic(TOPIC, queues=1)
            for number in range(50):
                await consumer.client.admin.send(Message(topic=TOPIC, body=b"%d" % number))
            received = []
            async with asyncio.timeout(30):
                async for messages in consumer:
                    received += bodies(messages)
                    if len(received) == 50:
                        consumer.end()
        assert received == [b"%d" % number for number in range(50)]
        async with PullConsumer(GROUP, broker.names, settings) as after:
            assert await after.committed(Queue(TOPIC, "broker-a", 0)) == 50


@run_by(in_loop)
async def test_a_pull_consumer_registers_as_consuming_actively():
    async with embedded() as broker:
        consumer = PullConsumer(GROUP, broker.names)
        consumer.subscribe(TOPIC)
        async with PullConsumer("other", broker.names) as operator:
            admin = operator.client.admin
            await admin.create_topic(TOPIC, queues=1)
            async with consumer:
                seen = await admin.group_connections(GROUP)
                assert [client.id for client in seen.clients] == [consumer.client.id]
                assert seen.consume_type == "CONSUME_ACTIVELY"
                assert seen.subscriptions == {TOPIC: "*"}
