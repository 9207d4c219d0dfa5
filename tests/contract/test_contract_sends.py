"""Messages sent in every way are stored unchanged, at the place their sender was told."""

import asyncio
import itertools
import random

import pytest

from tests.contract.contract_cluster import messages
from txmq.client import SendStatus
from txmq.errors import NoPermission, NotFound
from txmq.message import Message
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import unpack

PROPERTIES = {"origin": "Zürich", "город": "Рига", "emoji": "\N{PILE OF POO}", "spaced": "a b=c;d"}
SAFE = {SendStatus.OK, SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.FLUSH_SLAVE_TIMEOUT}
BODY_SIZE = 64 * 1024


def assert_same(stored, sent, result):
    """See that the stored message equals the sent one; brokers may add properties."""
    assert (stored.topic, stored.body, stored.flag) == (sent.topic, sent.body, sent.flag)
    assert (stored.tags, stored.keys) == (sent.tags, sent.keys)
    assert sent.properties.items() <= stored.properties.items()
    assert (stored.queue, stored.offset, stored.id) == (result.queue, result.offset, result.id)
    assert stored.attempts == 0


async def test_a_message_is_stored_as_it_was_sent(cluster):
    message = Message(
        topic=await cluster.topic(),
        body=bytes(range(256)),
        tags="标签",
        keys=("ключ", "second"),
        properties=PROPERTIES,
        flag=7,
    )
    async with cluster.producer() as producer:
        result = await producer.send(message)

    assert result.status in SAFE
    stored = await cluster.stored(result.queue, result.offset)
    assert_same(stored, message, result)
    assert stored.offset_id == result.offset_id
    assert min(stored.born_ms, stored.stored_ms) > 0


async def test_messages_are_spread_over_all_queues_at_distinct_offsets(cluster):
    topic = await cluster.topic()
    sent = messages(topic, 40)
    async with cluster.producer() as producer:
        results = [await producer.send(message) for message in sent]

    assert {message.queue for message in results} == set(await cluster.queues(topic))
    assert len({(message.queue, message.offset) for message in results}) == len(sent)
    bodies = {message.id: message.body for message in await cluster.all_stored(topic, len(sent))}
    assert bodies == {message.id: part.body for message, part in zip(results, sent, strict=True)}


async def test_concurrent_sends_are_all_stored(cluster):
    sent = messages(await cluster.topic(), 200)
    async with cluster.producer() as producer:
        results = await asyncio.gather(*[producer.send_nowait(item) for item in sent])

    stored = {item.id: item for item in await cluster.all_stored(sent[0].topic, len(sent))}
    assert len(stored) == len(sent)
    for message, result in zip(sent, results, strict=True):
        assert_same(stored[result.id], message, result)


async def test_one_way_sends_are_stored(cluster):
    sent = messages(await cluster.topic(), 40)
    async with cluster.producer() as producer:
        for message in sent:
            await producer.send_oneway(message)
        stored = await cluster.all_stored(sent[0].topic, len(sent))

    assert sorted(message.body for message in stored) == sorted(message.body for message in sent)


async def test_a_batch_is_stored_in_one_queue_without_a_gap(cluster):
    topic = await cluster.topic()
    sent = [
        Message(topic=topic, body=b"%d" % number, tags=f"T{number}", keys=(f"k{number}",))
        for number in range(20)
    ]
    async with cluster.producer() as producer:
        results = await producer.send_batch(sent)

    queue, first = results[0].queue, results[0].offset
    places = [(queue, first + number) for number in range(len(sent))]
    assert [(place.queue, place.offset) for place in results] == places
    for message, result in zip(sent, results, strict=True):
        assert_same(await cluster.stored(result.queue, result.offset), message, result)


async def test_messages_that_linger_are_sent_in_batches(cluster):
    sent = messages(await cluster.topic(), 100, tags="T")
    async with cluster.producer(linger=0.05) as producer:
        results = await asyncio.gather(*[producer.send(item) for item in sent])

    changes = sum(before.queue != after.queue for before, after in itertools.pairwise(results))
    assert changes < len(sent) / 4  # without batching, each would go to the next queue
    stored = {item.id: item for item in await cluster.all_stored(sent[0].topic, len(sent))}
    for message, result in zip(sent, results, strict=True):
        assert_same(stored[result.id], message, result)


async def test_messages_with_one_ordering_key_are_stored_in_one_queue_in_order(cluster):
    topic = await cluster.topic()
    cities = ["lisbon", "oslo", "quito", "tunis", "xian"]
    results = {city: [] for city in cities}
    async with cluster.producer() as producer:
        for turn in range(10):
            for city in cities:
                message = Message(topic=topic, body=f"{city} {turn}".encode())
                results[city].append(await producer.send_ordered(message, city))

    for city in cities:
        assert len({result.queue for result in results[city]}) == 1
        offsets = [result.offset for result in results[city]]
        assert offsets == sorted(offsets)
        for turn, result in enumerate(results[city]):
            stored = await cluster.stored(result.queue, result.offset)
            assert stored.body == f"{city} {turn}".encode()


@pytest.mark.parametrize("algorithm", ["zlib", "lz4", "zstd"])
async def test_large_bodies_are_compressed_and_arrive_intact(cluster, algorithm):
    topic = await cluster.topic()
    digits = "".join(random.Random(9876).choices("0123456789abcdef", k=BODY_SIZE))
    async with cluster.producer(compression=algorithm) as producer:
        for body in (b"a body that shrinks well " * 3000, digits.encode()):
            message = Message(topic=topic, body=body, keys=("large",))
            result = await producer.send(message)

            assert_same(await cluster.stored(result.queue, result.offset), message, result)
            assert (await cluster.admin.view(result.offset_id)).body == body
            (record,) = (await cluster.admin.read_index(result.queue, result.offset, 1)).records
            stored = unpack(record)[0]
            assert stored.sys_flag & SysFlag.COMPRESSED
            assert len(stored.body) < len(body)


async def test_messages_are_found_by_key_id_and_offset_id(cluster):
    topic = await cluster.topic()
    async with cluster.producer() as producer:
        both = Message(topic=topic, body=b"both", keys=("order-1", "customer-1"))
        other = Message(topic=topic, body=b"other", keys=("order-2", "customer-1"))
        results = [await producer.send(item) for item in (both, other)]
    admin = cluster.admin

    async def found():
        return len(await admin.query(topic, "customer-1")) == 2

    await cluster.until(found, "both messages to be found by key")  # An index may lag behind.
    assert [item.body for item in await admin.query(topic, "order-1")] == [b"both"]
    assert await admin.query(topic, "order-3") == []
    for message, result in zip((both, other), results, strict=True):
        assert_same(await admin.find(topic, result.id), message, result)
        assert_same(await admin.view(result.offset_id), message, result)
    with pytest.raises(NotFound):
        await admin.find(topic, "0" * 32)


async def test_a_delayed_message_is_not_delivered_early(cluster):
    topic = await cluster.topic()
    sent = messages(topic, 3, delay_level=1)
    began = asyncio.get_running_loop().time()
    async with cluster.producer() as producer:
        results = [await producer.send(message) for message in sent]

    stored = await cluster.all_stored(topic, len(sent))

    assert asyncio.get_running_loop().time() - began >= 1.0
    assert {message.id: message.body for message in stored} == {
        result.id: message.body for result, message in zip(results, sent, strict=True)
    }
    assert {result.queue for result in results} == {message.queue for message in stored}


async def test_a_waiting_message_can_be_recalled(cluster):
    topic = await cluster.topic()
    async with cluster.producer() as producer:
        result = await producer.send(Message(topic=topic, body=b"x", deliver_after=3600))
        if result.recall_handle is None:
            cluster.cannot("no message can be recalled at this broker")
        try:
            recalled = await producer.recall(topic, result.recall_handle)
        except NoPermission:
            cluster.cannot("this broker is set to recall no messages")

    assert recalled == result.id
