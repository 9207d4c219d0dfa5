"""A pull consumer: which messages a poll returns, and which count as consumed."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.running import in_loop, run_by
from tests.unit.client.pull_stage import (
    BY_HAND,
    GROUP,
    SOON,
    TOPIC,
    bodies,
    numbered,
    polled,
    staged,
    until,
)
from txmq.client.consume import PullConsumer
from txmq.client.settings import ConsumerSettings
from txmq.errors import (
    ConfigError,
    ConsumerOffline,
    LocalProtocolError,
    TransportError,
    UsageError,
    WriteFailed,
)
from txmq.message import Queue

# Polling


@staged
async def test_each_poll_returns_messages_of_one_queue_in_order(stage):
    await stage.topic(queues=2, messages=5)
    consumer = stage.subscribed(replace(SOON, pull_batch=3))
    found = {0: [], 1: []}

    async with consumer:
        async for messages in consumer:
            assert len({message.queue for message in messages}) == 1
            assert 1 <= len(messages) <= 3
            found[messages[0].queue.number] += bodies(messages)
            if sum(map(len, found.values())) == 10:
                break

    assert found == {0: numbered(0, *range(5)), 1: numbered(1, *range(5))}


@staged
async def test_polls_rotate_through_the_queues(stage):
    await stage.topic(queues=3, messages=4)
    async with stage.subscribed(replace(SOON, pull_batch=1)) as consumer:
        await until(lambda: sum(state.cached_msg_count for state in consumer.held().values()) == 12)

        turns = [(await consumer.poll())[0].queue.number for _ in range(12)]

    assert all(set(turns[at : at + 3]) == {0, 1, 2} for at in range(0, 12, 3))


@staged
async def test_a_poll_waits_until_its_timeout_or_the_first_message(stage):
    [queue] = await stage.topic()
    async with stage.subscribed() as consumer:
        before = stage.world.now()
        assert await consumer.poll(7.0) == []
        assert stage.world.now() - before == pytest.approx(7.0)
        assert await consumer.poll(0) == []

        waiting = asyncio.create_task(consumer.poll(30.0))
        await stage.send(queue, 1)
        assert bodies(await waiting) == numbered(0, 0)
        assert stage.world.now() - before < 8.0


@staged
async def test_only_messages_with_subscribed_tags_are_polled(stage):
    [queue] = await stage.topic()
    await stage.send(queue, 2, tags="red")
    await stage.send(queue, 2, first=2, tags="blue")
    await stage.send(queue, 1, first=4, tags="red")
    async with stage.subscribed(tags="red || green") as consumer:
        assert bodies(await polled(consumer, 3)) == numbered(0, 0, 1, 4)


@staged
async def test_a_topic_created_after_the_consumer_starts_is_consumed(stage):
    async with stage.subscribed() as consumer:
        assert await consumer.poll(5.0) == []
        await stage.topic(messages=1)
        assert bodies(await polled(consumer, 1)) == numbered(0, 0)


@staged
async def test_a_second_poll_at_the_same_time_is_refused(stage):
    [queue] = await stage.topic()
    async with stage.subscribed() as consumer:
        first = asyncio.create_task(consumer.poll(60.0))
        await asyncio.sleep(1.0)
        with pytest.raises(UsageError, match="another call polls"):
            await consumer.poll(1.0)
        await stage.send(queue, 1)
        assert bodies(await first) == numbered(0, 0)


@staged
async def test_fetching_stops_while_the_cache_is_full(stage):
    queues = await stage.topic(queues=2, messages=40)
    async with stage.subscribed(replace(SOON, pull_batch=4, all_cached_max=16)) as consumer:
        await asyncio.sleep(10.0)
        counts = {queue: state.cached_msg_count for queue, state in consumer.held().items()}
        assert counts == dict.fromkeys(queues, 8)

        assert len(await polled(consumer, 80)) == 80


@staged
async def test_polled_messages_without_a_commit_do_not_stop_fetching(stage):
    await stage.topic(messages=60)
    async with stage.subscribed(replace(BY_HAND, cached_max=8, pull_batch=4)) as consumer:
        assert len(await polled(consumer, 60)) == 60


# What counts as consumed


@staged
async def test_polled_messages_count_as_consumed_at_the_next_poll(stage):
    [queue] = await stage.topic(messages=6)
    async with stage.subscribed(replace(SOON, pull_batch=2)) as consumer:
        await consumer.poll()
        await asyncio.sleep(3.0)
        assert await stage.saved(queue) == 0
        await consumer.poll()
        await asyncio.sleep(3.0)
        assert await stage.saved(queue) == 2
        assert consumer.positions() == {queue: 4}
    assert await stage.saved(queue) == 2


@staged
async def test_an_iteration_that_ends_commits_all_its_messages(stage):
    [queue] = await stage.topic(messages=6)
    consumer = stage.subscribed(replace(SOON, pull_batch=2))
    count = 0
    async with consumer:
        async for messages in consumer:
            count += len(messages)
            if count == 4:
                consumer.end()
    assert count == 4
    assert await stage.saved(queue) == 4


@staged
async def test_messages_of_a_loop_body_that_raises_are_delivered_again(stage):
    [queue] = await stage.topic(messages=6)
    settings = replace(SOON, pull_batch=2)
    consumer = stage.subscribed(settings)

    async def fail():
        seen = 0
        async with consumer:
            async for messages in consumer:
                seen += len(messages)
                if seen == 4:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await stage.saved(queue) == 2

    consumer = stage.subscribed(settings)
    async with consumer:
        assert bodies(await polled(consumer, 4)) == numbered(0, 2, 3, 4, 5)


@staged
async def test_a_commit_saves_the_offset_of_the_polled_messages(stage):
    [queue] = await stage.topic(messages=6)
    async with stage.subscribed(replace(BY_HAND, pull_batch=2)) as consumer:
        await consumer.poll()
        await consumer.poll()
        await consumer.commit()
        assert await stage.saved(queue) == 4
        assert await consumer.committed(queue) == 4
        await consumer.poll()
        assert await consumer.poll(3.0) == []
    assert await stage.saved(queue) == 4

    consumer = stage.subscribed()
    async with consumer:
        assert bodies(await consumer.poll()) == numbered(0, 4, 5)


@staged
async def test_a_commit_saves_the_last_poll_of_a_consumer_that_commits_itself(stage):
    [queue] = await stage.topic(messages=3)
    async with stage.subscribed() as consumer:
        await polled(consumer, 3)
        await consumer.commit()
    assert await stage.saved(queue) == 3


@staged
async def test_a_commit_that_cannot_be_saved_raises_and_is_saved_later(stage):
    [queue] = await stage.topic(messages=3)
    async with stage.subscribed(BY_HAND) as consumer:
        await polled(consumer, 3)
        stage.world.network.partition("reader", "server")
        with pytest.raises(TransportError):
            await consumer.commit()
        assert await stage.saved(queue) == 0
        stage.world.network.heal()
        await asyncio.sleep(30.0)
        assert await stage.saved(queue) == 3


@staged
async def test_nothing_is_lost_when_a_program_dies(stage):
    """Committed messages do not come again; all others do."""
    [queue] = await stage.topic(messages=20)
    machine = stage.world.machine("mortal")
    settings = replace(BY_HAND, pull_batch=4)
    seen = []

    async def program():
        async with stage.subscribed(settings, "mortal") as consumer:
            async for messages in consumer:
                seen.extend(bodies(messages))
                if len(seen) == 8:
                    await consumer.commit()

    task = machine.run(program())
    await until(lambda: len(seen) == 20)
    machine.kill()
    await asyncio.wait([task])
    assert task.exception() is not None
    assert await stage.saved(queue) == 8

    consumer = stage.subscribed(settings)
    async with consumer:
        assert bodies(await polled(consumer, 12)) == numbered(0, *range(8, 20))
        await consumer.commit()
    assert await stage.saved(queue) == 20


# Sharing


@staged
async def test_members_share_queues_and_hand_them_over(stage):
    queues = await stage.topic(queues=4, messages=2)
    first, second = stage.consumer(name="first"), stage.consumer(name="second")
    first.subscribe(TOPIC)
    second.subscribe(TOPIC)
    async with first:
        assert len(await polled(first, 8)) == 8
        assert first.queues == queues
        await first.commit()
        async with second:
            await until(lambda: len(second.queues) == len(first.queues) == 2)
            assert sorted(first.queues + second.queues) == queues
            for queue in queues:
                await stage.send(queue, 1, first=2)
            mine, theirs = await polled(first, 2), await polled(second, 2)
            found = {message.body for message in mine + theirs}
            assert found == {b"0/2", b"1/2", b"2/2", b"3/2"}
            await second.commit()
        await until(lambda: first.queues == queues)
        assert await first.poll(5.0) == []


@staged
async def test_uncommitted_messages_of_a_lost_queue_go_to_its_next_holder(stage):
    await stage.topic(queues=2, messages=3)
    first, second = stage.consumer(BY_HAND, "first"), stage.consumer(BY_HAND, "second")
    first.subscribe(TOPIC)
    second.subscribe(TOPIC)
    async with first:
        await polled(first, 6)
        async with second:
            await until(lambda: len(second.queues) == len(first.queues) == 1)
            [lost] = second.queues
            await first.commit()
            again = await polled(second, 3)
            assert bodies(again) == numbered(lost.number, 0, 1, 2)
            assert await stage.saved(lost) == 0


@staged
async def test_broadcast_consumers_get_all_messages_and_keep_their_offsets_in_files(
    stage, tmp_path
):
    await stage.topic(queues=2, messages=3)
    for name in ("first", "second"):
        settings = replace(BY_HAND, is_broadcast=True, offsets_path=tmp_path / name)
        for count in (6, 0):
            consumer = stage.subscribed(settings, name=name)
            async with consumer:
                assert len(await polled(consumer, count)) == count
                assert await consumer.poll(5.0) == []
                await consumer.commit()
    # A folder is where its next file should be.
    (tmp_path / "second" / "default" / f"{GROUP}.new").mkdir()
    async with consumer:
        await until(lambda: len(consumer.queues) == 2)
        await stage.send(consumer.queues[0], 1)
        await polled(consumer, 1)
        with pytest.raises(WriteFailed):
            await consumer.commit()


@staged
async def test_a_consumer_continues_after_its_broker_was_unreachable(stage):
    [queue] = await stage.topic(messages=2)
    async with stage.subscribed(replace(SOON, pull_batch=1)) as consumer:
        await polled(consumer, 2)
        stage.world.network.partition("reader", "server")
        assert await consumer.poll(40.0) == []
        await stage.send(queue, 1, first=2)
        stage.world.network.heal()
        assert bodies(await polled(consumer, 1)) == numbered(0, 2)


# Starting and stopping


@staged
async def test_a_waiting_poll_returns_when_the_consumer_stops(stage):
    await stage.topic()
    consumer = stage.subscribed()
    async with consumer:
        waiting = asyncio.create_task(consumer.poll(600.0))
        await asyncio.sleep(1.0)
        assert consumer.is_running
    assert await waiting == []
    assert not consumer.is_running
    assert stage.world.now() < 60.0


@staged
async def test_an_iteration_ends_when_the_consumer_stops(stage):
    await stage.topic(messages=1)
    consumer = stage.subscribed()

    async def iterate():
        return [bodies(messages) async for messages in consumer]

    async with consumer:
        iterating = asyncio.create_task(iterate())
        await asyncio.sleep(3.0)
        consumer.end()
        assert await iterating == [numbered(0, 0)]
        with pytest.raises(UsageError, match="stopped"):
            await consumer.poll()
    assert [batch async for batch in consumer] == []


@staged
async def test_a_stopped_consumer_can_run_again(stage):
    await stage.topic(messages=2)
    consumer = stage.subscribed(replace(SOON, pull_batch=1))
    for number in range(2):
        async with consumer:
            assert bodies(await consumer.poll()) == numbered(0, number)
            await consumer.commit()


@staged
async def test_a_consumer_that_stops_unregisters_and_leaves_a_shared_client_open(stage):
    await stage.topic(messages=1)
    async with stage.client() as client:
        consumer = PullConsumer(GROUP, client, SOON)
        consumer.subscribe(TOPIC)
        async with consumer:
            await polled(consumer, 1)
            assert len((await stage.admin.group_connections(GROUP)).clients) == 1
        with pytest.raises(ConsumerOffline):
            await stage.admin.group_connections(GROUP)
        assert client.is_open


@staged
async def test_a_cancelled_poll_loses_nothing(stage):
    """It is cancelled at different moments, some of them after the messages have arrived."""
    [queue] = await stage.topic()
    consumer = stage.subscribed(replace(SOON, pull_batch=1))
    found, sent = [], 0
    async with consumer:
        await until(lambda: consumer.queues)
        for number in range(60):
            polling = asyncio.create_task(consumer.poll(5.0))
            sending = asyncio.create_task(stage.send(queue, 1, first=sent))
            sent += 1
            await asyncio.sleep(number * 0.0001)
            polling.cancel()
            await asyncio.wait([polling])
            if not polling.cancelled():
                found += polling.result()
            await sending
        found += await polled(consumer, sent - len(found))
    assert bodies(found) == numbered(0, *range(sent))


# Misuse


def test_invalid_topics_groups_and_settings_are_refused():
    consumer = PullConsumer(GROUP, "127.0.0.1:9876")
    with pytest.raises(LocalProtocolError):
        consumer.subscribe("no topic")
    with pytest.raises(LocalProtocolError):
        consumer.subscribe(TOPIC, "a", sql="b > 1")
    with pytest.raises(LocalProtocolError):
        PullConsumer("no group", "127.0.0.1:9876")
    with pytest.raises(ConfigError):
        ConsumerSettings(all_cached_max=0)


@run_by(in_loop)
async def test_a_consumer_that_is_not_running_refuses_calls():
    consumer, queue = PullConsumer(GROUP, "127.0.0.1:9876"), Queue(TOPIC, "b", 0)
    for asked in (
        consumer.poll(), consumer.commit(), consumer.seek(queue, 1), consumer.pull(queue, 0),
        consumer.seek_to_begin(queue), consumer.committed(queue), consumer.queues_of(TOPIC),
        anext(consumer),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            await asked
    with pytest.raises(UsageError):
        consumer.note_offset(queue, 1)
    assert consumer.queues == []
    assert consumer.positions() == {}
    consumer.end()
    consumer.pause()
    consumer.resume()


@staged
async def test_subscribing_after_the_start_is_refused(stage):
    await stage.topic()
    async with stage.consumer() as consumer:
        with pytest.raises(UsageError, match="before"):
            consumer.subscribe(TOPIC)
        with pytest.raises(UsageError, match="already"):
            await consumer.__aenter__()
