"""A push consumer on the sockets and threads of this machine."""

import asyncio
import threading

from tests.running import in_loop, run_by
from tests.unit.client.consumer_stage import GROUP, TOPIC
from txmq.client.client import Client
from txmq.client.consume import PushConsumer
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.message import Message
from txmq_broker.testing import embedded


@run_by(in_loop)
async def test_plain_functions_run_in_threads_with_the_callers_context():
    async with embedded() as broker, Client(broker.names) as client:
        await client.admin.create_topic(TOPIC, queues=1)
        await client.admin.send(Message(topic=TOPIC, body=b"0"))
        got = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        consumer = PushConsumer(GROUP, client, ConsumerSettings(start=StartFrom.FIRST))

        @consumer.on(TOPIC)
        def read(message):
            loop.call_soon_threadsafe(got.set_result, threading.current_thread().name)

        async with consumer, asyncio.timeout(10):
            assert (await got).startswith(f"txmq-{GROUP}")
        assert (
            await client.admin.committed_offset(
                GROUP, (await client.session.route(TOPIC)).readable[0]
            )
            == 1
        )
