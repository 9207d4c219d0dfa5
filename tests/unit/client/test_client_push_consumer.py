"""A push consumer in a simulated world: what it asks of brokers, and what handlers get."""

import asyncio
import contextlib
import json
import logging
import tempfile
from pathlib import Path

import pytest

from tests.unit.client.consumer_stage import GROUP, RETRY, TOPIC, acting
from txmq.client.allocation import ByConfig
from txmq.client.consume import DEAD_LETTER, Later, PushConsumer
from txmq.client.consume.fetcher import NOT_HELD_S
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.errors import ConfigError, LocalProtocolError, UsageError
from txmq.message import Message, Queue
from txmq.protocol import command, headers
from txmq.protocol.codes import PullFlag, RequestCode

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def refuse(request):
    return command.answer(request, 1, remark="not now")


# Where it starts


@pytest.mark.parametrize("start", StartFrom)
@acting()
async def test_a_known_group_continues_at_its_committed_offset(stage, start):
    stage.put(b"0", b"1", b"2")
    stage.broker.offsets[GROUP, TOPIC, 0] = 1
    async with stage.reading(start=start):
        await stage.until(lambda: stage.bodies() == [b"1", b"2"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"start": StartFrom.FIRST}, [b"old", b"young", b"new"]),
        ({"start": StartFrom.LAST}, [b"new"]),
        ({"start": StartFrom.TIME}, [b"young", b"new"]),
    ],
)
@acting()
async def test_a_new_group_starts_where_its_settings_say(stage, settings, expected):
    stage.put(b"old")
    await asyncio.sleep(1801)  # More than half an hour, the default without a time.
    stage.put(b"young")
    async with stage.reading(**settings) as consumer:
        await stage.until(lambda: consumer.positions().get(Queue(TOPIC, "broker-a", 0)))
        stage.put(b"new")
        await stage.until(lambda: stage.bodies() == expected)


@acting()
async def test_a_new_group_can_start_at_a_given_time(stage):
    stage.put(b"old")
    await asyncio.sleep(5)
    start_ms = stage.cluster.clock.wall_ms()
    stage.put(b"new")
    async with stage.reading(start=StartFrom.TIME, start_ms=start_ms):
        await stage.until(lambda: stage.bodies() == [b"new"])


@acting()
async def test_a_start_time_delivers_nothing_older_from_a_queue_without_newer_messages(stage):
    stage.put(b"old")
    await asyncio.sleep(5)
    settings = {"start": StartFrom.TIME, "start_ms": stage.cluster.clock.wall_ms()}
    async with stage.reading(**settings) as consumer:
        await stage.until(lambda: consumer.positions().get(Queue(TOPIC, "broker-a", 0)) == 1)
        stage.put(b"new")
        await stage.until(lambda: stage.bodies())
    assert stage.bodies() == [b"new"]


@acting()
async def test_the_start_offset_of_a_new_group_is_committed_before_anything_is_consumed(stage):
    stage.put(b"0", b"1")
    stuck = asyncio.Event()
    async with stage.reading(lambda _: stuck.wait(), start=StartFrom.LAST, stop_timeout=0):
        await stage.until(lambda: stage.committed() == 2, within_s=1)


# What handlers get


@acting()
async def test_tags_are_compared_by_their_text(stage):
    stage.put(b"wanted", tags="BB")
    stage.put(b"of the same hash", tags="Aa")
    stage.put(b"wanted, too", tags="C")
    async with stage.reading(tags="BB || C") as consumer:
        await stage.until(lambda: len(stage.seen) == 2)
        assert stage.bodies() == [b"wanted", b"wanted, too"]
        await consumer.commit()
        assert stage.committed() == 3


@acting()
async def test_a_failed_message_is_sent_back_and_redelivered_under_its_own_topic(stage):
    topics = []

    async def fail_once(message):
        topics.append((message.topic, message.queue.topic, message.attempts))
        if not message.attempts:
            raise ValueError

    stage.put(b"0")
    async with stage.reading(fail_once):
        await stage.until(lambda: len(topics) == 2)
        assert topics == [(TOPIC, TOPIC, 0), (TOPIC, RETRY, 1)]
        (head,) = stage.asked(SEND_BACK)
        assert (head["group"], head["delayLevel"]) == (GROUP, "0")
        assert head["originTopic"] == TOPIC
        assert "maxReconsumeTimes" not in head  # The group decides if it is not set.
        assert head["reason"] == "ValueError"
        assert head["offset"] == "0"
    assert stage.committed() == 1
    assert stage.committed(topic=RETRY) == 1


@pytest.mark.parametrize(
    ("settings", "verdict", "level", "most"),
    [
        ({}, Later(), "0", None),
        ({}, Later(5), "5", None),
        ({"attempts_max": 3}, Later(DEAD_LETTER), "-1", "3"),
    ],
)
@acting()
async def test_a_handler_can_choose_the_delay_of_a_retry(stage, settings, verdict, level, most):
    async def later(message):
        return None if message.attempts else verdict

    stage.put(b"0")
    async with stage.reading(later, **settings):
        await stage.until(lambda: stage.asked(SEND_BACK))
    (head,) = stage.asked(SEND_BACK)
    assert (head["delayLevel"], head.get("maxReconsumeTimes")) == (level, most)
    assert stage.committed() == 1


@acting()
async def test_a_batch_handler_can_return_the_rest_of_its_batch_for_later(stage):
    stage.put(b"0", b"1", b"2", b"3")
    batches = []
    settings = ConsumerSettings(start=StartFrom.FIRST, batch_max=4)
    async with stage.client() as client:
        consumer = PushConsumer(GROUP, client, settings)

        @consumer.on_batch(TOPIC)
        async def read(messages):
            batches.append([message.body for message in messages])
            return Later(first=2) if len(batches) == 1 else None

        async with consumer:
            await stage.until(lambda: sum(len(batch) for batch in batches) == 6)
    assert batches[0] == [b"0", b"1", b"2", b"3"]
    assert sorted(body for batch in batches[1:] for body in batch) == [b"2", b"3"]
    assert len(stage.asked(SEND_BACK)) == 2


@acting()
async def test_a_message_that_cannot_be_sent_back_is_retried_locally(stage):
    stage.cluster.replies[SEND_BACK] = refuse

    async def fail_twice(message):
        return Later() if message.attempts < 2 else None

    stage.put(b"0")
    async with stage.reading(fail_twice) as consumer:
        await stage.until(lambda: len(stage.seen) == 2)
        await consumer.commit()
        assert stage.committed() == 0
        await stage.until(lambda: len(stage.seen) == 3)
        await consumer.commit()
        assert stage.committed() == 1
    at = [moment for _, _, _, moment in stage.seen]
    assert [attempts for _, _, attempts, _ in stage.seen] == [0, 1, 2]
    assert [round(b - a) for a, b in zip(at, at[1:], strict=False)] == [5, 5]


@acting()
async def test_a_handler_that_returns_anything_else_has_consumed_the_message(stage):
    async def chatty(message):
        return "done"

    stage.put(b"0", b"1")
    async with stage.reading(chatty, concurrency=1):
        await stage.until(lambda: len(stage.seen) == 2)
    assert stage.committed() == 2
    assert not stage.asked(SEND_BACK)


@acting()
async def test_a_handler_that_awaits_something_cancelled_has_failed(stage):
    async def broken(message):
        if not message.attempts:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    stage.put(b"0", b"1")
    async with stage.reading(broken, concurrency=1):
        await stage.until(lambda: len(stage.seen) == 4)
    assert len(stage.asked(SEND_BACK)) == 2


@acting()
async def test_a_message_of_a_topic_without_a_handler_is_sent_back(stage):
    stage.put(b"0")
    stage.put(b"1", topic=RETRY, properties={"RETRY_TOPIC": "Gone"})
    async with stage.reading():
        await stage.until(lambda: stage.asked(SEND_BACK))
    assert stage.asked(SEND_BACK)[0]["originTopic"] == "Gone"
    assert stage.bodies() == [b"0"]


# Flow control


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"cached_max": 10, "pull_batch": 4}, 12),
        ({"cached_size_max": 100, "pull_batch": 1}, 10),
        ({"span_max": 20, "pull_batch": 1}, 22),
        ({"topic_cached_max": 10, "pull_batch": 1}, 10),
    ],
)
@acting()
async def test_fetching_stops_at_each_limit_of_the_cache(stage, settings, most):
    stage.put(*[b"%010d" % number for number in range(200)])
    go = asyncio.Event()
    async with stage.reading(lambda _: go.wait(), **settings) as consumer:
        await stage.until(lambda: stage.seen)
        await asyncio.sleep(10)
        (held,) = [held for q, held in consumer.held().items() if q.topic == TOPIC]
        assert held.cached_msg_max_offset == most
        go.set()
        await stage.until(lambda: len(stage.seen) == 200)


@acting()
async def test_fetching_is_limited_by_the_span_of_open_offsets(stage):
    stage.put(*[b"%d" % number for number in range(100)])
    go = asyncio.Event()

    async def first_waits(message):
        if message.offset == 0:
            await go.wait()

    async with stage.reading(first_waits, span_max=30, pull_batch=1) as consumer:
        await stage.until(lambda: len(stage.seen) >= 30)
        await asyncio.sleep(5)
        assert len(stage.seen) == 32
        await consumer.commit()
        assert stage.committed() == 0  # The first is not finished.
        go.set()
        await stage.until(lambda: len(stage.seen) == 100)
    assert stage.committed() == 100


@acting()
async def test_pulls_carry_the_committed_offset_of_the_group(stage):
    async with stage.reading(commit_interval=1000):
        stage.put(b"0")
        await stage.until(lambda: stage.seen)
        await asyncio.sleep(1)
    pulls = [pull for pull in stage.asked(RequestCode.PULL_MESSAGE) if pull["topic"] == TOPIC]
    told = {
        int(pull["commitOffset"]): bool(int(pull["sysFlag"]) & PullFlag.COMMIT_OFFSET)
        for pull in pulls
    }
    assert told == {0: False, 1: True}


# Slow handlers, stops


@acting()
async def test_a_message_handled_for_too_long_is_sent_back(stage):
    async def sleepy(message):
        if not message.attempts:
            await asyncio.sleep(100)
            return Later(17)
        return None

    stage.put(b"0")
    async with stage.reading(sleepy, consume_timeout=20.0) as consumer:
        await stage.until(lambda: len(stage.seen) == 2)
        (head,) = stage.asked(SEND_BACK)
        assert head["delayLevel"] == "3"
        await consumer.commit()
        assert stage.committed() == 1
        await asyncio.sleep(100)
    assert len(stage.asked(SEND_BACK)) == 1  # The result of the late handler no longer counts.


@acting()
async def test_an_async_handler_is_cancelled_after_its_timeout_and_does_not_delay_a_stop(stage):
    ended = []

    async def hangs_once(message):
        try:
            await asyncio.sleep(0 if message.attempts else 1000)
        finally:
            ended.append((message.attempts, stage.world.now()))

    stage.put(b"0")
    settings = {"consume_timeout": 20.0, "concurrency": 1}
    async with stage.client() as client:
        async with stage.reader(client, hangs_once, **settings):
            await stage.until(lambda: len(ended) == 2)
            stopped_at = stage.world.now()
        assert stage.world.now() - stopped_at < 1
    assert [attempts for attempts, _ in ended] == [0, 1]
    assert 20 <= ended[0][1] - stage.seen[0][3] < 40


@acting()
async def test_a_stop_lets_handlers_finish_fetched_messages(stage):
    async def slow(message):
        await asyncio.sleep(1)

    stage.put(*[b"%d" % number for number in range(10)])
    async with stage.client() as client:
        async with stage.reader(client, slow, concurrency=2):
            await stage.until(lambda: stage.seen)
        assert len(stage.seen) == 10
        assert stage.committed() == 10
        assert stage.broker.member_ids(GROUP) == []


@pytest.mark.parametrize("settings", [{}, {"is_orderly": True}])
@pytest.mark.parametrize("ignored", [(), (asyncio.CancelledError,)], ids=["obeys", "ignores it"])
@acting()
async def test_a_stop_cancels_handlers_after_stop_timeout_and_ends(stage, settings, ignored):
    ends = []

    async def slow(message):
        try:
            with contextlib.suppress(*ignored):
                await asyncio.sleep(3600)
        finally:
            ends.append(message.offset)

    stage.put(b"0", b"1")
    async with stage.client() as client:
        async with stage.reader(client, slow, concurrency=1, stop_timeout=7.0, **settings):
            await stage.until(lambda: stage.seen)
            before = stage.world.now()
        assert 7.0 <= stage.world.now() - before < 8.0
    assert ends == [0]
    assert stage.bodies() == [b"0"]
    assert stage.committed() == 0


@acting()
async def test_wait_returns_when_the_consumer_is_stopped(stage):
    async with stage.client() as client:
        consumer = stage.reader(client)
        with pytest.raises(UsageError):
            await consumer.wait()
        async with consumer:
            waiting = asyncio.create_task(consumer.wait())
            await asyncio.sleep(1)
            assert not waiting.done()
        await waiting


# With a client


@acting(queues=2)
async def test_a_client_starts_and_stops_the_consumers_of_its_functions(stage):
    seen = []
    client, first = stage.client(), ConsumerSettings(start=StartFrom.FIRST)

    @client.on(TOPIC, group="credit", tags="CCB", settings=first)
    async def credit(message):
        seen.append(("credit", message.body))

    @client.on("U", group="credit")
    async def other(message):
        seen.append(("other", message.body))

    @client.on(TOPIC, group="audit", settings=first)
    async def audit(message):
        seen.append(("audit", message.body))

    stage.cluster.add_topic("U", 1)
    stage.put(b"1", tags="CCB")
    stage.put(b"2", tags="ICBC")
    stage.put(b"3", topic="U")
    async with client:
        waiting = asyncio.create_task(client.wait())
        await stage.until(lambda: len(seen) == 4)
        assert sorted(seen) == [
            ("audit", b"1"), ("audit", b"2"), ("credit", b"1"), ("other", b"3")
        ]  # fmt: skip
        assert {client.consumer(group).group for group in ("credit", "audit")} == {
            "credit",
            "audit",
        }
        assert not waiting.done()
        with pytest.raises(UsageError, match="before the client opens"):
            client.on("V", group="credit")
    await waiting
    assert client.consumer("credit") is None
    assert len(stage.cluster.codes("UNREGISTER_CLIENT")) == 2
    await credit(Message(topic=TOPIC, body=b"by hand"))
    assert seen[-1] == ("credit", b"by hand")


@acting()
async def test_a_client_does_not_open_when_one_of_its_consumers_cannot_start(stage):
    client = stage.client()
    client.on(TOPIC, group="one")(print)
    client.on(TOPIC, group="two")(print)
    with pytest.raises(UsageError, match="not open"):
        await client.wait()
    client._own["two"]._handlers.clear()

    with pytest.raises(UsageError, match="no handler"):
        async with client:
            pytest.fail("it opened")

    assert (client.is_open, client.consumer("one")) == (False, None)
    await client.wait()


@acting()
async def test_a_group_of_a_client_has_one_handler_per_topic_and_one_set_of_settings(stage):
    client = stage.client()
    client.on(TOPIC, group="g", settings=ConsumerSettings(batch_max=2))(print)
    client.on("U", group="g", settings=ConsumerSettings(batch_max=2))(print)
    with pytest.raises(UsageError, match=f"topic {TOPIC} has a handler already"):
        client.on(TOPIC, group="g")(print)
    with pytest.raises(UsageError, match="group g has other settings already"):
        client.on("V", group="g", settings=ConsumerSettings(batch_max=3))
    with pytest.raises(LocalProtocolError, match="not a valid group name"):
        client.on(TOPIC, group="not a group")


# Broadcasts


@acting()
async def test_broadcast_consumers_keep_offsets_in_a_file_and_drop_failed_messages(stage):
    with tempfile.TemporaryDirectory() as base:
        settings = {"is_broadcast": True, "offsets_path": Path(base), "stop_timeout": 1.0}

        async def fail(message):
            raise ValueError

        stage.put(b"0", b"1")
        async with stage.reading(fail, **settings):
            await stage.until(lambda: len(stage.seen) == 2)
        (path,) = Path(base).rglob("*.json")
        told = {"group": GROUP, "offsets": [[TOPIC, "broker-a", 0, 2]]}
        assert json.loads(path.read_text()) == told
        stage.put(b"2")
        async with stage.reading(fail, **settings):
            await stage.until(lambda: len(stage.seen) == 3)
        assert stage.bodies() == [b"0", b"1", b"2"]
        assert not stage.asked(SEND_BACK)
        assert not stage.broker.offsets

        path.write_text("nonsense")
        async with stage.client() as client:
            with pytest.raises(ConfigError):
                async with stage.reader(client, **settings):
                    pass
            assert client.consumer(GROUP) is None


# Pauses, moves


@acting(queues=2)
async def test_a_paused_queue_is_not_fetched_from(stage):
    async with stage.reading() as consumer:
        await stage.until(lambda: len(consumer.positions()) == 3)
        consumer.pause([Queue(TOPIC, "broker-a", 1)])
        await asyncio.sleep(1)
        stage.put(b"0", number=0)
        stage.put(b"1", number=1)
        await asyncio.sleep(30)
        assert stage.bodies() == [b"0"]
        consumer.pause()
        consumer.resume([Queue(TOPIC, "broker-a", 1)])
        await stage.until(lambda: stage.bodies() == [b"0", b"1"])
        stage.put(b"2", number=0)
        await asyncio.sleep(30)
        assert len(stage.seen) == 2
        consumer.resume()
        await stage.until(lambda: len(stage.seen) == 3)


@acting()
async def test_a_paused_consumer_also_pauses_queues_it_gains_later(stage):
    stage.broker.topics.pop(TOPIC)
    async with stage.reading(rebalance_interval=1.0) as consumer:
        consumer.pause()
        stage.cluster.add_topic(TOPIC, 1)
        stage.put(b"0")
        await stage.until(lambda: Queue(TOPIC, "broker-a", 0) in consumer.positions())
        await asyncio.sleep(30)
        assert not stage.seen
        consumer.resume()
        await stage.until(lambda: stage.seen)


@pytest.mark.parametrize("settings", [{}, {"is_orderly": True}])
@acting()
async def test_a_move_discards_fetched_messages(stage, settings):
    stage.put(*[b"%d" % number for number in range(8)])
    go = asyncio.Event()

    async def wait(message):
        await go.wait()

    async with stage.reading(wait, concurrency=1, **settings) as consumer:
        await stage.until(lambda: stage.seen)
        moving = asyncio.create_task(consumer.move({Queue(TOPIC, "broker-a", 0): 6}))
        await asyncio.sleep(0.1)
        go.set()
        await moving
        await stage.until(lambda: stage.bodies() == [b"0", b"6", b"7"])
        await consumer.commit()
        assert stage.committed() == 8
        await consumer.move({Queue(TOPIC, "broker-a", 0): 7, Queue("Other", "b", 0): 1})
        assert stage.committed() in (7, 8)
        await stage.until(lambda: stage.bodies() == [b"0", b"6", b"7", b"7"])


@acting()
async def test_an_offset_after_the_end_of_a_queue_moves_to_its_end(stage):
    stage.put(b"0", b"1", b"2")
    async with stage.reading() as consumer:
        await stage.until(lambda: len(stage.seen) == 3)
        del stage.broker.queues[TOPIC, 0][1:]  # As after a crash that lost what was not synced.
        await stage.until(lambda: consumer.positions().get(Queue(TOPIC, "broker-a", 0)) == 1)
        stage.put(b"one", b"two")
        await stage.until(lambda: stage.bodies()[3:] == [b"one", b"two"])
    assert stage.committed() == 3


@acting()
async def test_an_offset_before_the_first_message_moves_to_it(stage):
    def pull(request):
        head = request.read(headers.PullMessage)
        if head.topic == TOPIC and head.queue_offset < 4:
            return command.answer(request, 21, headers.PullAnswer(0, 4, 4, 5))
        return stage.broker.on_pull_message(request)

    stage.put(*[b"%d" % number for number in range(5)])
    stage.cluster.replies[RequestCode.PULL_MESSAGE] = pull
    async with stage.reading():
        await stage.until(lambda: stage.bodies() == [b"4"])


@acting(empty_pull_s=NOT_HELD_S)
async def test_a_broker_that_holds_no_pulls_is_not_pulled_in_a_busy_loop(stage):
    async with stage.reading():
        await asyncio.sleep(10)
    pulls = [pull for pull in stage.asked(RequestCode.PULL_MESSAGE) if pull["topic"] == TOPIC]
    assert 100 < len(pulls) <= 201


@acting()
async def test_a_fetcher_that_fails_unexpectedly_is_restarted(stage):
    async with stage.reading() as consumer:
        await stage.until(lambda: len(consumer.positions()) == 2)
        intake = consumer._assignment.fetchers[Queue(TOPIC, "broker-a", 0)]
        intake._deliver = None
        stage.put(b"0")
        await stage.until(lambda: stage.seen)


# Misuse


@acting()
async def test_invalid_groups_handlers_and_levels_are_refused(stage):
    async with stage.client() as client:
        with pytest.raises(LocalProtocolError):
            PushConsumer("no good name", client)
        consumer = PushConsumer(GROUP, client)
        with pytest.raises(UsageError):
            await consumer.__aenter__()
        consumer.on(TOPIC)(print)
        with pytest.raises(UsageError):
            consumer.on(TOPIC)(print)
        async with consumer:
            with pytest.raises(UsageError):
                consumer.on("Other")(print)
            with pytest.raises(UsageError):
                await consumer.__aenter__()
    with pytest.raises(LocalProtocolError):
        Later(level=-2)


# Strategies


@acting(queues=3)
async def test_an_allocation_strategy_can_be_configured(stage):
    chosen = frozenset({Queue(TOPIC, "broker-a", 1)})
    async with stage.reading(allocation=ByConfig(chosen)) as consumer:
        await stage.until(lambda: consumer.queues)
        await asyncio.sleep(1)
        assert [q for q in consumer.queues if q.topic == TOPIC] == sorted(chosen)


@acting(queues=2)
async def test_an_allocation_strategy_that_raises_leaves_queues_as_they_are(stage):
    is_broken = False

    class Own:
        name = "OWN"

        def __call__(self, group, client_id, queues, clients):
            if is_broken:
                raise ZeroDivisionError
            return list(queues)

    async with stage.reading(allocation=Own(), rebalance_interval=1.0) as consumer:
        await stage.until(lambda: len(consumer.queues) == 3)
        is_broken = True
        await asyncio.sleep(5)
        assert len(consumer.queues) == 3
        is_broken = False
        stage.cluster.add_topic(TOPIC, 4)
        await stage.until(lambda: len(consumer.queues) == 5)


# The real loop


@acting()
async def test_a_topic_created_after_the_consumer_starts_is_consumed_within_seconds(stage):
    """Until then no broker is known that could know the group."""
    async with stage.reading(topic="Late"):
        await asyncio.sleep(1)
        stage.cluster.add_topic("Late", 1)
        stage.put(b"first", topic="Late")

        await stage.until(lambda: stage.bodies() == [b"first"], within_s=5)


@acting()
async def test_handle_accepts_a_message_of_the_retry_topic(stage):
    async with stage.client() as client, stage.reader(client) as consumer:
        stage.put(b"0")
        await stage.until(lambda: stage.seen)
        stage.put(b"again", topic=RETRY, properties={"RETRY_TOPIC": TOPIC})
        pulled = await client.admin.pull(Queue(RETRY, "broker-a", 0), 0)
        assert await consumer.handle(pulled.messages[0]) is None
        assert b"again" in stage.bodies()


@acting()
async def test_a_queue_can_be_moved_while_its_start_offset_is_read(stage):
    query, held = RequestCode.QUERY_CONSUMER_OFFSET, []

    def hold(request):
        if request.read(headers.OffsetQuery).topic != TOPIC:
            return stage.broker.on_query_consumer_offset(request)
        held.append((stage.broker.connection, request))
        return None

    stage.put(b"0", b"1")
    stage.broker.offsets[GROUP, TOPIC, 0] = 2
    stage.cluster.replies[query] = hold
    async with stage.reading() as consumer:
        await stage.until(lambda: held)
        await consumer.move({Queue(TOPIC, "broker-a", 0): 0})
        ((connection, request),) = held
        connection.send(stage.broker.on_query_consumer_offset(request))
        await stage.until(lambda: stage.bodies() == [b"0", b"1"])


@acting()
async def test_a_topic_that_does_not_exist_is_logged_once_as_missing(stage, caplog):
    caplog.set_level(logging.WARNING)
    async with stage.reading(topic="Missing"):
        await asyncio.sleep(120)
        (line,) = [record.message for record in caplog.records if "Missing" in record.message]
        assert line == (
            "readers: topic Missing does not exist; messages come when it does. "
            "Check its name, or create it with: txmq topic create Missing"
        )

        stage.cluster.add_topic("Missing", queues=1)
        stage.put(b"at last", topic="Missing")
        await stage.until(stage.bodies)
    assert stage.bodies() == [b"at last"]
