"""Producers and a real broker in one process, and producers whose connections break."""

import asyncio

import pytest

from tests.running import in_loop, run_by
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.producer_stage import message
from txmq.client.client import Client
from txmq.client.send.producer import Producer
from txmq.client.settings import ProducerSettings
from txmq.client.values import SendStatus
from txmq.errors import MessageIllegal, TxmqError
from txmq.testing import simulate
from txmq_broker.config import BrokerSettings, TopicDefaults
from txmq_broker.testing import embedded


async def everything(admin, topic):
    """The stored bodies of each queue, in the order of their offsets."""
    stored = {}
    for queue in (await admin.route(topic)).readable:
        offset, bodies = 0, []
        while True:
            batch = await admin.pull(queue, offset)
            if not batch.found:
                break
            bodies += [message.body for message in batch.messages]
            offset = batch.next_offset
        stored[queue] = bodies
    return stored


@pytest.mark.parametrize("linger", [0.0, 0.002])
@run_by(in_loop)
async def test_a_real_broker_stores_the_messages_of_every_send_method(linger):
    settings = ProducerSettings(linger=linger, linger_messages=7)
    async with embedded() as broker, Producer("g", broker.names, settings) as producer:
        admin = producer.client.admin
        (queue, *_) = (await admin.create_topic("T", queues=4)).writable

        results = [await producer.send(message(b"awaited"))]
        results += await asyncio.gather(
            *[producer.send_nowait(message(b"nowait %d" % n)) for n in range(30)]
        )
        results += await producer.send_batch([message(b"batch %d" % n) for n in range(5)])
        results += [await producer.send_ordered(message(b"%d" % n), "k") for n in range(3)]
        results.append(await producer.send(message(b"x" * 9000), queue))
        await producer.send_oneway(message(b"one way"), queue)
        later = await producer.send(message(b"later", deliver_after=3600), queue)
        assert later.queue == queue
        assert await producer.recall("T", later.recall_handle) == later.id
        with pytest.raises(MessageIllegal, match="a delay is at most"):
            await producer.send(message(deliver_after=4 * 86_400))
        stored = await everything(admin, "T")
        while b"one way" not in stored[queue]:
            await asyncio.sleep(0.01)
            stored = await everything(admin, "T")

        for result in results:
            (got,) = (await admin.pull(result.queue, result.offset, 1)).messages
            assert (got.id, got.offset_id) == (result.id, result.offset_id)
            assert result.status is SendStatus.OK
        assert sum(map(len, stored.values())) == len(results) + 1
        assert producer.bytes_in_flight == 0


@pytest.mark.parametrize("linger", [0.0, 0.005])
@pytest.mark.parametrize("seed", range(12))
def test_every_send_result_is_true_and_nothing_leaks_when_connections_break(seed, linger):
    """Connections break at any time; a result means that its message is stored."""

    async def scenario(world):
        server, client = world.machine("server"), world.machine("client")
        settings = ProducerSettings(linger=linger, in_flight_max=200, timeout=1.0)
        async with FakeCluster(
            server.network, server.clock, host=server.address, brokers=3
        ) as cluster:
            cluster.add_topic("T")
            async with Producer(
                "g", cluster.names, settings,
                network=client.network, clock=client.clock, entropy=client.entropy,
            ) as producer:  # fmt: skip
                told, draw = [], world.entropy
                queues = (await producer.client.session.route("T")).writable

                async def sending(name):
                    for n in range(40):
                        sent = message(b"%d.%d" % (name, n))
                        queue = queues[draw.below(6)] if draw.below(3) == 0 else None
                        try:
                            async with asyncio.timeout(draw.fraction() * 2):
                                told.append((await producer.send(sent, queue), sent.body))
                        except (TxmqError, TimeoutError):
                            pass
                        await asyncio.sleep(draw.fraction() * 0.01)

                async def breaking():
                    while True:
                        await asyncio.sleep(draw.fraction() * 0.05)
                        world.network.cut("server", "client")

                storm = asyncio.ensure_future(breaking())
                await asyncio.gather(*[sending(name) for name in range(8)])
                storm.cancel()
                await asyncio.gather(storm, return_exceptions=True)
                post = producer._sender.pending
                await post.drain()
                await asyncio.sleep(2)
                assert (len(post), post.bytes_in_flight, len(post._room_line)) == (0, 0, 0)
                assert linger == 0 or not len(producer._sender.accumulator)
                await producer.send(message(b"after the storm"))
            stored = {
                (broker.name, number, at): record.body
                for broker in cluster.brokers
                for (_, number), queue in broker.queues.items()
                for at, record in enumerate(queue)
            }
            assert len(told) > 50
            for result, body in told:
                assert stored[result.queue.broker, result.queue.number, result.offset] == body

    simulate(scenario, seed)


@run_by(in_loop)
async def test_traces_are_kept_when_topics_are_not_created_automatically():
    strict = BrokerSettings(topics=TopicDefaults(auto_create=False))
    async with embedded(strict) as broker, Client(broker.names) as client:
        await client.admin.create_topic("T", queues=1)
        async with Producer("g", client, ProducerSettings(is_traced=True)) as producer:
            sent = await producer.send(message())
        (trace,) = await client.admin.query("RMQ_SYS_TRACE_TOPIC", sent.id)
        assert sent.id in trace.body.decode()
