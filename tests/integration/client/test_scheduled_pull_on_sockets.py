"""A schedule of pulls on the sockets of this machine."""

import asyncio

from tests.running import in_loop, run_by
from tests.unit.client.pull_stage import GROUP, TOPIC
from tests.unit.client.test_client_scheduled_pull import reading
from txmq.client.consume import ScheduledPull
from txmq.message import Message
from txmq_broker.testing import embedded


@run_by(in_loop)
async def test_a_scheduled_pull_reads_from_an_embedded_broker():
    async with embedded() as broker:
        schedule, received = ScheduledPull(GROUP, broker.names), []
        schedule.on(TOPIC)(reading(received, 0.01))
        async with schedule:
            admin = schedule.consumer.client.admin
            await admin.create_topic(TOPIC, queues=2)
            for number in range(20):
                await admin.send(Message(topic=TOPIC, body=b"%d" % number))
            async with asyncio.timeout(30):
                while len(received) < 20:
                    await asyncio.sleep(0.01)
        assert sorted(map(int, received)) == list(range(20))
