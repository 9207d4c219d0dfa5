"""Consumers that take each queue in order: locks, suspensions, hand-overs."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.unit.client.consumer_stage import GROUP, TOPIC, acting
from txmq.client.consume import Later
from txmq.client.consume.orderly_workers import LOCK_S, RENEW_S
from txmq.message import Queue
from txmq.protocol import command
from txmq.protocol.bodies import LockedQueues, LockRequest
from txmq.protocol.codes import RequestCode

SEND_BACK, LOCK = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.LOCK_BATCH_MQ
QUEUE = Queue(TOPIC, "broker-a", 0)
ORDERLY = {"is_orderly": True, "rebalance_interval": 1000.0}


@acting()
async def test_messages_of_a_queue_are_handled_one_at_a_time(stage):
    stage.put(*[b"%d" % number for number in range(5)])
    at_work = []

    async def alone(message):
        assert not at_work
        at_work.append(message)
        await asyncio.sleep(1)
        at_work.pop()

    async with stage.reading(alone, **ORDERLY):
        await stage.until(lambda: len(stage.seen) == 5)
    assert stage.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    assert stage.committed() == 5
    assert not stage.broker.locks


@acting(queues=3)
async def test_queues_are_handled_in_parallel_up_to_the_concurrency(stage):
    for number in range(3):
        stage.put(b"%d" % number, number=number)
    at_work = []

    async def slow(message):
        at_work.append(message)
        assert len(at_work) <= 2
        await asyncio.sleep(1)
        at_work.remove(message)

    async with stage.reading(slow, concurrency=2, **ORDERLY):
        await stage.until(lambda: len(at_work) == 2)
        await stage.until(lambda: len(stage.seen) == 3)


@acting()
async def test_a_failure_suspends_the_queue_and_retries_the_same_message(stage):
    async def fail(message):
        if message.body == b"0" and message.attempts < 3:
            if message.attempts == 1:
                return Later(suspend=7.0)
            raise ValueError
        return None

    stage.put(b"0", b"1")
    async with stage.reading(fail, **ORDERLY):
        await stage.until(lambda: stage.bodies() == [b"0"] * 4 + [b"1"])
    at = [moment for _, _, _, moment in stage.seen]
    assert [round(b - a) for a, b in zip(at, at[1:], strict=False)] == [1, 7, 1, 0]
    assert [delivery[2] for delivery in stage.seen] == [0, 1, 2, 3, 0]
    assert not stage.asked(SEND_BACK)


@acting()
async def test_a_message_that_failed_too_often_goes_to_the_dead_letters(stage):
    async def fail(message):
        if message.body == b"0":
            raise ValueError

    stage.put(b"0", b"1")
    async with stage.reading(fail, attempts_max=2, **ORDERLY):
        await stage.until(lambda: stage.bodies() == [b"0", b"0", b"0", b"1"])
    (head,) = stage.asked(SEND_BACK)
    assert (head["delayLevel"], head["maxReconsumeTimes"]) == ("-1", "2")
    assert stage.committed() == 2


@acting()
async def test_a_message_that_cannot_be_dead_lettered_is_retried_further(stage):
    stage.cluster.replies[SEND_BACK] = lambda request: command.answer(request, 1, remark="no")

    async def fail(message):
        return Later() if message.body == b"0" and message.attempts < 4 else None

    stage.put(b"0", b"1")
    async with stage.reading(fail, attempts_max=1, **ORDERLY):
        await stage.until(lambda: stage.bodies() == [b"0"] * 5 + [b"1"])


@acting()
async def test_broadcast_consumers_need_no_locks_and_drop_failed_messages(stage):
    async def fail(message):
        raise ValueError

    stage.put(b"0", b"1")
    with tempfile.TemporaryDirectory() as base:
        async with stage.reading(fail, is_broadcast=True, offsets_path=Path(base), **ORDERLY):
            await stage.until(lambda: stage.bodies() == [b"0", b"1"])
    assert not stage.asked(LOCK)


@acting()
async def test_locks_are_renewed_while_they_are_held(stage):
    async with stage.reading(**ORDERLY) as consumer:
        await stage.until(lambda: QUEUE in consumer.positions())
        before = len(stage.asked(LOCK))
        await asyncio.sleep(5 * RENEW_S)
        assert len(stage.asked(LOCK)) - before == 5
        stage.put(b"0")
        await stage.until(lambda: stage.seen)


@acting()
async def test_a_queue_locked_by_another_member_is_released(stage):
    async with stage.reading(**ORDERLY) as consumer:
        await stage.until(lambda: QUEUE in consumer.positions())
        stage.broker.locks[GROUP, TOPIC, 0] = "somebody else"
        await asyncio.sleep(RENEW_S + 1)
        assert QUEUE not in consumer.queues
        stage.put(b"0")
        await asyncio.sleep(30)
        assert not stage.seen
        stage.broker.locks.clear()
        await stage.until(lambda: stage.seen)


@acting()
async def test_nothing_is_handled_once_a_lock_may_have_expired(stage):
    async with stage.reading(**ORDERLY) as consumer:
        await stage.until(lambda: QUEUE in consumer.positions())
        stage.cluster.replies[LOCK] = lambda request: None
        await asyncio.sleep(LOCK_S)
        stage.put(b"0")
        await asyncio.sleep(30)
        assert not stage.seen
        del stage.cluster.replies[LOCK]
        await stage.until(lambda: stage.seen)
        assert stage.bodies() == [b"0"]


@acting()
async def test_a_lock_is_checked_again_after_a_suspension(stage):
    async def fail(message):
        return Later(suspend=30.0)

    stage.put(b"0")
    async with stage.reading(fail, stop_timeout=0, **ORDERLY):
        await stage.until(lambda: stage.seen)
        stage.cluster.replies[LOCK] = lambda request: None
        await asyncio.sleep(60)
        assert len(stage.seen) == 1


@acting()
async def test_a_stopped_consumer_hands_its_queue_over_at_once(stage):
    async with stage.client("one") as one, stage.client("two") as two:
        first, second = stage.reader(one, **ORDERLY), stage.reader(two, **ORDERLY)
        async with first:
            stage.put(b"0")
            await stage.until(lambda: stage.seen)
            async with second:
                stage.broker.notify(GROUP)
                await asyncio.sleep(5)
                await first.__aexit__(None, None, None)
                stage.broker.notify(GROUP)
                stage.put(b"1")
                await stage.until(lambda: len(stage.seen) == 2, within_s=1.0)
    assert stage.bodies() == [b"0", b"1"]
    assert not stage.broker.locks


@acting()
async def test_a_stop_does_not_wait_for_a_message_that_keeps_failing(stage):
    """The messages behind it are not handled either: the next member starts with it."""

    async def fail(message):
        await asyncio.sleep(3)
        raise ValueError

    stage.put(b"0", b"1")
    async with stage.client() as client:
        for attempts, left_s in ((1, 3.0), (2, 0.5)):
            stage.seen.clear()
            async with stage.reader(client, fail, **ORDERLY):
                await stage.until(lambda n=attempts: len(stage.seen) == n)
                await asyncio.sleep(0 if attempts == 1 else 3.5)
                before = stage.world.now()
            assert stage.world.now() - before < left_s + 0.1
            assert stage.bodies() == [b"0"] * attempts
            assert not stage.committed()
            assert not stage.broker.locks


@acting(queues=2)
async def test_a_queue_is_handed_over_only_after_its_handler_ends(stage):
    """Fetched messages that were not handled go to the next member, in order."""
    stage.put(*[b"%d" % number for number in range(6)], number=1)
    at_work = []

    async def slow(message):
        at_work.append(message)
        assert len(at_work) == 1
        await asyncio.sleep(5)
        at_work.pop()

    async with (
        stage.client("one") as one,
        stage.client("two") as two,
        stage.reader(one, slow, stop_timeout=60, **ORDERLY),
    ):
        await stage.until(lambda: stage.seen)
        async with stage.reader(two, slow, stop_timeout=60, **ORDERLY):
            stage.broker.notify(GROUP)
            await stage.until(lambda: len(stage.seen) == 6)
    assert stage.bodies() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [who[0].rpartition("@")[2] for who in stage.seen] == ["one", *["two"] * 5]


@acting()
async def test_a_lock_is_released_when_the_start_offset_cannot_be_read(stage):
    query = RequestCode.QUERY_CONSUMER_OFFSET
    stage.cluster.replies[query] = lambda request: command.answer(request, 1, remark="no")
    async with stage.reading(**ORDERLY) as consumer:
        await stage.until(lambda: len(stage.asked(query)) > 3)
        await stage.until(lambda: not stage.broker.locks)
        assert not consumer.queues
        del stage.cluster.replies[query]
        await stage.until(lambda: QUEUE in consumer.queues)


@pytest.mark.parametrize("name", ["lock", "unlock"])
@acting()
async def test_lock_and_unlock_requests_name_the_client_and_the_group(stage, name):
    told = []
    code = RequestCode.LOCK_BATCH_MQ if name == "lock" else RequestCode.UNLOCK_BATCH_MQ

    def note(request):
        asked = LockRequest.read(request.body)
        told.append((asked.client_id, asked.consumer_group, len(asked.mq_set)))
        body = LockedQueues(asked.mq_set).write() if name == "lock" else b""
        return command.answer(request, body=body)

    stage.cluster.replies[code] = note
    async with stage.reading(**ORDERLY) as consumer:
        await stage.until(lambda: len(consumer.queues) == 2)
    assert set(told) == {("here@one", GROUP, 1)}


@acting(queues=2)
async def test_a_rebalance_waits_for_a_slow_handler(stage):
    """Only a stop cancels handlers after ``stop_timeout``."""
    stage.put(b"0", b"1", number=1)
    at_work = []

    async def slow(message):
        at_work.append(message)
        assert len(at_work) == 1
        await asyncio.sleep(150)
        at_work.pop()

    settings = {**ORDERLY, "stop_timeout": 5.0}
    async with (
        stage.client("one") as one,
        stage.client("two") as two,
        stage.reader(one, slow, **settings),
    ):
        await stage.until(lambda: stage.seen)
        async with stage.reader(two, slow, **settings):
            stage.broker.notify(GROUP)
            await asyncio.sleep(140)
            assert len(stage.seen) == 1
            await stage.until(lambda: len(stage.seen) == 2)
    assert stage.bodies() == [b"0", b"1"]


@acting()
async def test_a_queue_whose_lock_expired_restarts_from_the_committed_offset(stage):
    """Another member may have consumed from it and released it in between."""

    async def slow(message):
        if message.body == b"0":
            await asyncio.sleep(100)

    stage.put(*[b"%d" % number for number in range(4)])
    async with stage.reading(slow, **ORDERLY):
        await stage.until(lambda: stage.seen)
        stage.cluster.replies[LOCK] = lambda request: None
        await asyncio.sleep(75)
        stage.cluster.replies[RequestCode.UPDATE_CONSUMER_OFFSET] = command.answer
        stage.broker.offsets[GROUP, TOPIC, 0] = 3
        del stage.cluster.replies[LOCK]
        await stage.until(lambda: len(stage.seen) > 1)
    assert stage.bodies() == [b"0", b"3"]


@acting()
async def test_a_handler_cut_short_by_a_stop_ends_before_its_queue_is_unlocked(stage):
    ends = []

    async def slow(message):
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
            ends.append(len(stage.broker.locks))

    stage.put(b"0")
    async with stage.reading(slow, stop_timeout=1, **ORDERLY):
        await stage.until(lambda: stage.seen)
    assert ends == [1]
