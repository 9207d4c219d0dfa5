"""Consumers that are called with messages: shared, ordered, for all, from a chosen start."""

import asyncio
import itertools
from collections import Counter

import pytest

from tests.contract.contract_cluster import PATIENCE_S, SHORTEST_DELAY, messages
from txmq.client.consume import DEAD_LETTER, Later
from txmq.client.settings import StartFrom
from txmq.message import Message


async def send(cluster, parts):
    async with cluster.producer() as producer:
        return [await producer.send(part) for part in parts]


async def test_handlers_get_messages_as_they_were_sent(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    sent = [
        Message(topic=topic, body=b"%d" % number, tags="T", keys=("k",), properties={"n": "1"})
        for number in range(40)
    ]
    async with cluster.listener(group, topic, start=StartFrom.FIRST) as listener:
        results = await send(cluster, sent)
        await listener.until_given(results)

    told = {message.id: (message.queue, message.offset) for message in results}
    assert {message.id: (message.queue, message.offset) for message in listener.messages} == told
    bodies = {message.id: part.body for message, part in zip(results, sent, strict=True)}
    assert {message.id: message.body for message in listener.messages} == bodies
    for message in listener.messages:
        assert (message.tags, message.keys, message.properties["n"]) == ("T", ("k",), "1")


async def test_handled_messages_are_committed_and_not_delivered_again(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    first = await send(cluster, messages(topic, 40))
    async with cluster.listener(group, topic, start=StartFrom.FIRST) as listener:
        await listener.until_given(first)

    for queue in await cluster.queues(topic):
        committed = await cluster.admin.committed_offset(group, queue)
        assert committed == await cluster.admin.max_offset(queue)
    progress = await cluster.admin.group_progress(group, topic, cluster=cluster.cluster)
    assert {entry.lag for entry in progress} == {0}
    async with cluster.listener(group, topic, start=StartFrom.FIRST) as heir:
        second = await send(cluster, messages(topic, 8, "n"))
        await heir.until_given(second)
    assert not {entry.id for entry in first} & set(heir.ids)


async def test_tags_are_matched_by_text_and_not_only_by_hash(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    tags = itertools.cycle(["Aa", "BB", "标签", "A", ""])  # Aa and BB have one hash
    sent = [Message(topic=topic, body=b"x", tags=next(tags)) for _ in range(40)]
    last = [Message(topic=topic, body=b"last", tags="Aa") for _ in range(16)]
    async with cluster.listener(group, topic, "Aa || 标签", start=StartFrom.FIRST) as listener:
        results = await send(cluster, sent + last)
        parts = zip(sent + last, results, strict=True)
        wanted = [result for part, result in parts if part.tags in ("Aa", "标签")]
        await listener.until_given(wanted)

    assert set(listener.ids) == {message.id for message in wanted}


async def test_an_orderly_consumer_keeps_the_order_despite_failures(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    async with cluster.producer() as producer:
        results = [
            await producer.send_ordered(Message(topic=topic, body=b"%d" % number), key)
            for number, key in itertools.product(range(10), ["lisbon", "oslo", "quito"])
        ]
    failing = {results[number].id: 2 for number in (0, 7, 14)}
    listener = cluster.listener(group, topic, start=StartFrom.FIRST, is_orderly=True, suspend=0.02)
    busy, overlaps = Counter(), []

    async def handle(message):
        busy[message.queue] += 1
        await asyncio.sleep(0)
        overlaps.extend([message] * (busy[message.queue] - 1))
        busy[message.queue] -= 1
        listener.take(message)
        if failing.get(message.id):
            failing[message.id] -= 1
            return Later()
        return None

    listener.handle = handle
    async with listener:
        await listener.until_given(results)
        await cluster.until(lambda: not any(failing.values()), "every failure")

    assert overlaps == []
    for queue in {item.queue for item in results}:
        told = [item.id for item in results if item.queue == queue]
        given = [item.id for item in listener.messages if item.queue == queue]
        assert [key for key, _ in itertools.groupby(given)] == told


async def test_members_share_the_queues_and_take_over_from_one_that_left(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    queues = await cluster.queues(topic)
    settings = {"start": StartFrom.FIRST}  # or a queue could start after its messages
    async with cluster.listener(group, topic, **settings) as first:
        await first.until_holding(queues)
        async with cluster.listener(group, topic, **settings) as second:
            await cluster.until(
                lambda: (
                    first.queues
                    and second.queues
                    and sorted(first.queues + second.queues) == queues
                ),
                "the queues to be shared",
            )
            together = await send(cluster, messages(topic, 40))
            wanted = {result.id for result in together}
            await cluster.until(
                lambda: wanted <= set(first.ids) | set(second.ids), "every message to be handled"
            )
            assert wanted & set(first.ids)
            assert wanted & set(second.ids)
        await first.until_holding(queues)
        alone = await send(cluster, messages(topic, 40))
        await first.until_given(alone)


async def test_broadcasting_delivers_every_message_to_every_member(cluster, tmp_path):
    topic, group = await cluster.topic(), await cluster.group()
    settings = {"start": StartFrom.FIRST, "is_broadcast": True, "offsets_path": tmp_path}
    before = await send(cluster, messages(topic, 20))
    async with (
        cluster.listener(group, topic, **settings) as first,
        cluster.listener(group, topic, **settings) as second,
    ):
        after = await send(cluster, messages(topic, 20))
        for member in (first, second):
            await member.until_given(before + after)

    for member in (first, second):
        assert set(member.ids) == {result.id for result in before + after}


async def test_a_new_group_can_start_at_the_first_message(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    before = await send(cluster, messages(topic, 20))
    async with cluster.listener(group, topic, start=StartFrom.FIRST) as listener:
        after = await send(cluster, messages(topic, 20))
        await listener.until_given(before + after)


async def starts_anywhere(cluster, group, topic):
    """Whether the broker leaves the start to the group; most brokers start young queues at 0."""
    known = [
        await cluster.admin.committed_offset(group, queue) for queue in await cluster.queues(topic)
    ]
    if known == [None] * len(known):
        return True
    cluster.remark("the broker starts new groups at 0 in queues that have their first message yet")
    return False


async def test_a_new_group_can_start_at_the_end(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    before = await send(cluster, messages(topic, 20))
    is_strict = await starts_anywhere(cluster, group, topic)
    queues = await cluster.queues(topic)
    async with cluster.listener(group, topic, start=StartFrom.LAST) as listener:
        await cluster.until(
            lambda: set(queues) <= set(listener.consumer.positions()), "every queue to be started"
        )
        after = await send(cluster, messages(topic, 20))
        await listener.until_given(after if is_strict else before + after)

    if is_strict:
        assert not {result.id for result in before} & set(listener.ids)


async def test_a_new_group_can_start_at_a_time(cluster):
    topic, group = (await cluster.queue()).topic, await cluster.group()
    before = await send(cluster, messages(topic, 5))
    old = await cluster.stored(before[-1].queue, before[-1].offset)
    since, moment = [], old.stored_ms
    while moment == old.stored_ms:  # until a millisecond has passed at the broker
        since += await send(cluster, messages(topic, 1))
        moment = (await cluster.stored(since[-1].queue, since[-1].offset)).stored_ms
    wanted = [since[-1], *await send(cluster, messages(topic, 5))]
    is_strict = await starts_anywhere(cluster, group, topic)

    settings = {"start": StartFrom.TIME, "start_ms": moment}
    async with cluster.listener(group, topic, **settings) as listener:
        await listener.until_given(wanted)

    if is_strict:
        assert set(listener.ids) == {result.id for result in wanted}


@pytest.mark.timeout(2 * PATIENCE_S)
async def test_a_failed_message_is_delivered_again_later(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    listener = cluster.listener(group, topic, start=StartFrom.FIRST)

    def fail_once(message):
        listener.take(message)
        return Later(SHORTEST_DELAY) if message.attempts == 0 else None

    listener.handle = fail_once
    results = await send(cluster, messages(topic, 3, keys=("k",)))
    await cluster.require_send_back(results[0])
    async with listener:
        await cluster.until(
            lambda: sum(delivery.attempts > 0 for delivery in listener.messages) >= len(results),
            "every message to come again",
        )

    again = [delivery for delivery in listener.messages if delivery.attempts > 0]
    assert {delivery.id for delivery in again} == {delivery.id for delivery in results}
    assert {(delivery.topic, delivery.attempts, delivery.keys) for delivery in again} == {
        (topic, 1, ("k",))
    }


@pytest.mark.timeout(2 * PATIENCE_S)
async def test_a_message_given_up_becomes_a_dead_letter(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    listener = cluster.listener(group, topic, start=StartFrom.FIRST)
    listener.handle = lambda message: Later(DEAD_LETTER)
    (result,) = await send(cluster, messages(topic, 1))
    await cluster.require_send_back(result)
    async with listener:
        (dead,) = await cluster.until(
            lambda: cluster.dead_letters(group), "the message to be a dead letter"
        )

    assert (dead.id, dead.body) == (result.id, b"body of m-0")
