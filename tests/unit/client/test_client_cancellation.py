"""Clients, consumers and producers that are cancelled wherever they wait leave nothing behind."""

import asyncio

import pytest

from tests.faults.cancelling import cancelled_everywhere
from tests.unit.client.consumer_stage import GROUP, TOPIC, anywhere
from txmq.client.client import Client
from txmq.client.consume import Later
from txmq.client.send.producer import Producer
from txmq.client.settings import ProducerSettings
from txmq.message import Message

STEPS_MIN = 5
"""Fewer steps would mean that little was looked at."""


def own_network(stage, attempt):
    return attempt.watch(stage.world.machine("one").network)


async def work(message):
    await asyncio.sleep(0.01)
    return Later() if message.body == b"1" and not message.attempts else None


@pytest.mark.fault("N12")
@pytest.mark.parametrize("again_after", [None, 1, 3])
@pytest.mark.parametrize("settings", [{}, {"is_orderly": True}], ids=["concurrent", "orderly"])
def test_a_consumer_cancelled_anywhere_closes_its_own_client(settings, again_after):
    async def scene(stage, attempt):
        async def use(client):
            async with client, stage.reader(client, work, **settings):
                await stage.until(lambda: len(stage.seen) == 4, every_s=0.5)

        client = stage.client(network=own_network(stage, attempt))
        await attempt.run(use(client))
        assert not client.is_open
        assert len(client.tasks) == 0
        assert client.consumer(GROUP) is None

    assert cancelled_everywhere(anywhere(scene), again_after=again_after) > STEPS_MIN


@pytest.mark.fault("N12")
@pytest.mark.parametrize("again_after", [None, 2])
@pytest.mark.parametrize("settings", [{}, {"is_orderly": True}], ids=["concurrent", "orderly"])
def test_a_consumer_cancelled_anywhere_leaves_a_shared_client_open(settings, again_after):
    async def scene(stage, attempt):
        async with stage.client(network=own_network(stage, attempt)) as client:
            consumer = stage.reader(client, work, **settings)

            async def use():
                async with consumer:
                    await stage.until(lambda: len(stage.seen) == 4, every_s=0.5)

            await attempt.run(use(), within_s=4.0)
            assert client.is_open
            assert client.consumer(GROUP) is None
            # No broker may list a member that has left.
            await asyncio.sleep(5)
            assert [broker.member_ids(GROUP) for broker in stage.cluster.brokers] == [[], []]
            stage.cluster.asked.clear()
            await asyncio.sleep(20)
            assert {who for who, _, _ in stage.cluster.asked} <= {"names"}
            # And the group is free for the next one.
            async with stage.reader(client):
                pass

    stays = ["heartbeats", "route refresh"]
    steps = cancelled_everywhere(anywhere(scene), again_after=again_after, stays=stays)
    assert steps > STEPS_MIN


def test_a_second_cancellation_cuts_a_long_stop_short():
    async def scene(stage, attempt):
        async def slow(message):
            await asyncio.sleep(3600)

        async def use(client):
            async with client, stage.reader(client, slow):
                await stage.until(lambda: len(stage.seen) == 3, every_s=0.5)

        client = stage.client(network=own_network(stage, attempt))
        begun = stage.world.now()
        # The second cancellation comes while the consumer waits for its handlers.
        await attempt.run(use(client))
        if attempt.was_cancelled:
            assert stage.world.now() - begun < 40

    assert cancelled_everywhere(anywhere(scene), again_after=5) > STEPS_MIN


@pytest.mark.fault("N12")
def test_a_client_cancelled_anywhere_is_closed():
    async def scene(stage, attempt):
        async def use(client):
            async with client:
                await client.session.route(TOPIC)
                await client.beat()
                await client.admin.max_offset((await client.session.route(TOPIC)).readable[0])

        client: Client = stage.client(network=own_network(stage, attempt))
        await attempt.run(use(client))
        assert not client.is_open

    assert cancelled_everywhere(anywhere(scene)) > 3


@pytest.mark.fault("N12")
@pytest.mark.parametrize("linger", [0.0, 0.01], ids=["at once", "gathering"])
@pytest.mark.parametrize("again_after", [None, 2])
def test_a_producer_cancelled_anywhere_leaves_its_group(again_after, linger):
    async def scene(stage, attempt):
        client = stage.client(network=own_network(stage, attempt))
        settings = ProducerSettings(linger=linger)

        async def use():
            async with client, Producer("senders", client, settings) as producer:
                await producer.send(Message(topic=TOPIC, body=b"0"))
                answer = producer.send_nowait(Message(topic=TOPIC, body=b"1"))
                await answer

        await attempt.run(use())
        assert client.producer("senders") is None

    assert cancelled_everywhere(anywhere(scene), again_after=again_after) > 2
