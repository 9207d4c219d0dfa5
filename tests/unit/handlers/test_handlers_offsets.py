"""14, 15, 29 to 32, 41 to 43: offsets in queues, and locks of queues."""

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    in_world,
    in_world_with_client,
    queue,
    with_client,
    with_topics,
)
from tests.unit.handlers.transaction_stage import in_lives_with_client
from txmq.limits import YOUNG_LOG_BYTES
from txmq.protocol.bodies import ConsumerOffsets, LockedQueues, LockRequest
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import (
    OffsetAnswer,
    OffsetByTime,
    OffsetCommit,
    QueueHeader,
    TimestampAnswer,
    TopicHeader,
)

COMMITTED, COMMIT, BY_TIME, NEWEST, OLDEST, EARLIEST = 14, 15, 29, 30, 31, 32
LOCK, UNLOCK, ALL = 41, 42, 43
ERROR, NO_TOPIC, NOT_FOUND = 1, 17, 22


async def offset_of(client, code, header, **given):
    return (await client.ok(code, header, **given)).read(OffsetAnswer).offset


# Committed offsets: the rule for code 22


@run_by(with_client, topic="T")
async def test_a_committed_offset_is_returned_even_if_it_went_back(client, /):
    await client.fill("T", 6)
    await client.commit("g", "T", 0, 5)
    assert await client.committed("g", "T") == 5
    await client.commit("g", "T", 0, 3)
    assert await client.committed("g", "T") == 3


@run_by(in_world_with_client, topic="T")
async def test_a_commit_beyond_the_end_of_the_queue_is_cut_to_the_end(stage, client, /):
    """An offset beyond the end would hide the messages that come next."""
    await client.fill("T", 3)
    await client.commit("g", "T", 0, 2**40)
    await client.commit("g", "unknown", 0, 5)

    assert await client.committed("g", "T") == 3
    assert stage.broker.offsets.get("g", "unknown", 0) is None


@pytest.mark.parametrize(("zero", "found"), [(None, 0), (True, 0), (False, -NOT_FOUND)])
@run_by(with_client)
async def test_a_new_group_starts_a_young_queue_at_zero_unless_it_asks_not_to(
    client, /, zero, found
):
    await client.fill("T", 3)

    assert await client.committed("g", "T", zero=zero) == found
    assert await client.committed("g", "unknown", zero=zero) == found


@run_by(with_client)
async def test_a_new_group_gets_no_offset_where_the_first_messages_are_deleted(client, /):
    await client.fill("T", 3)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
    await client.send("T")

    assert await client.committed("g", "T", zero=True) == -NOT_FOUND


@pytest.mark.parametrize(("more", "found"), [(0, 0), (1, -NOT_FOUND)])
@run_by(in_world)
async def test_a_new_group_gets_no_offset_where_the_first_message_is_old(stage, /, more, found):
    client = await stage.client()
    await client.send("T")
    log = stage.broker.store.log
    first = stage.broker.store.queue("T", 0).read(0, 1)[0][0]
    stage.broker.store.log = log_that_ends(log, first + YOUNG_LOG_BYTES + more)
    found_now = await client.committed("g", "T")
    stage.broker.store.log = log

    assert found_now == found


def log_that_ends(log, end):
    class Longer:
        def __getattr__(self, name):
            return getattr(log, name)

    longer = Longer()
    longer.end = end
    return longer


@pytest.mark.parametrize("offset", [-1, -(2**63)])
@run_by(in_world_with_client)
async def test_a_commit_of_a_negative_offset_is_ignored(stage, client, /, offset):
    """The Node client says -1 where it has consumed nothing yet."""
    await client.fill("T", 5)
    await client.commit("g", "T", 0, offset)
    await client.commit("h", "T", 0, 5)
    await client.commit("h", "T", 0, offset)

    assert stage.broker.offsets.get("g", "T", 0) is None
    assert await client.committed("h", "T") == 5


@run_by(with_client, topic="T")
async def test_a_one_way_commit_is_stored_and_not_answered(client, /):
    await client.fill("T", 5)

    assert await client.is_silent(COMMIT, OffsetCommit("g", "T", 0, 5), oneway=True)
    assert await client.committed("g", "T") == 5


@run_by(with_client)
async def test_all_offsets_are_listed_in_the_format_of_rocketmq(client, /):
    await client.topic("T", 2)
    await client.fill("T", 5, queue=1)
    await client.commit("g", "T", 1, 5)
    body = (await client.ok(ALL)).body

    assert body == b'{"offsetTable":{"T@g":{"1":5}}}'
    assert ConsumerOffsets.read(body).offset_table == {"T@g": {1: 5}}


# Bounds


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client)
async def test_the_minimum_and_maximum_offsets_of_a_queue_are_answered(client, /, kind):
    await client.topic("T", 2)
    await client.fill("T", 3)

    assert await offset_of(client, NEWEST, QueueHeader("T", 0), kind=kind) == 3
    assert await offset_of(client, OLDEST, QueueHeader("T", 0), kind=kind) == 0
    assert await offset_of(client, NEWEST, QueueHeader("T", 1), kind=kind) == 0
    assert await offset_of(client, OLDEST, QueueHeader("T", 1), kind=kind) == 0


@run_by(with_client)
async def test_deleting_messages_moves_the_minimum_offset(client, /):
    await client.fill("T", 3)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
    await client.topic("T")

    assert await offset_of(client, OLDEST, QueueHeader("T", 0)) == 3
    assert await offset_of(client, NEWEST, QueueHeader("T", 0)) == 3


@pytest.mark.parametrize("code", [NEWEST, OLDEST, EARLIEST])
@run_by(with_client)
async def test_asking_for_the_bounds_of_a_missing_queue_is_an_error(client, /, code):
    await client.topic("T", 2)

    assert await client.code_of(code, QueueHeader("T", 2)) == ERROR
    assert await client.code_of(code, QueueHeader("T", -1)) == ERROR
    assert await client.code_of(code, QueueHeader("U", 0)) == NO_TOPIC


@run_by(with_client)
async def test_the_time_of_the_first_message_is_minus_one_in_an_empty_queue(client, /):
    await client.topic("T", 2)
    await client.send("T")
    (record,) = (await client.pull("T")).records

    async def earliest(number):
        answer = await client.ok(EARLIEST, QueueHeader("T", number))
        return answer.read(TimestampAnswer).timestamp

    assert await earliest(0) == record.stored_ms
    assert await earliest(1) == -1


# Offsets by time, of messages 10, 20 and 40 seconds after the start

AT_OR_AFTER = [(-100, 0), (10, 0), (11, 1), (20, 1), (39, 2), (40, 2), (100, 3)]
AT_OR_BEFORE = [(-100, 0), (10, 0), (11, 0), (20, 1), (39, 1), (40, 2), (100, 2)]


@pytest.mark.parametrize(
    ("boundary", "cases"),
    [
        (None, [(-100, 0), (10, 0), (13, 0), (17, 1), (20, 1), (39, 2), (100, 2)]),
        ("lower", AT_OR_AFTER),
        ("LOWER", AT_OR_AFTER),
        ("upper", AT_OR_BEFORE),
        ("UPPER", AT_OR_BEFORE),
    ],
    ids=["the nearest, as in RocketMQ 4.9", "lower", "LOWER", "upper", "UPPER"],
)
@run_by(in_world)
async def test_a_time_has_the_offset_of_the_message_at_its_boundary(stage, /, boundary, cases):
    client = await stage.client(topic="T")
    times, start = [10, 20, 40], stage.clock.wall_ms() + 1_000
    for second in times:
        await stage.passes((start + second * 1000 - stage.clock.wall_ms()) / 1000)
        await client.send("T")
    stored = [record.stored_ms for record in (await client.pull("T")).records]
    assert all(
        abs(at - start - second * 1000) < 50 for at, second in zip(stored, times, strict=True)
    )

    for second, expected in cases:
        at = stored[times.index(second)] if second in times else start + second * 1000
        header = OffsetByTime("T", 0, at, boundary)
        assert await offset_of(client, BY_TIME, header) == expected, second


@run_by(in_world_with_client, topic="T")
async def test_of_two_equally_near_messages_the_earlier_is_found(stage, client, /):
    await client.send("T")
    await stage.passes(2.0)
    await client.send("T")
    first, second = (record.stored_ms for record in (await client.pull("T")).records)
    middle = (first + second) // 2
    assert (second - first) % 2 == 0 or middle - first < second - middle

    assert await offset_of(client, BY_TIME, OffsetByTime("T", 0, middle)) == 0


@run_by(with_client, topic="T")
async def test_among_messages_of_equal_time_the_boundary_picks_the_first_or_the_last(client, /):
    await client.fill("T", 5)
    records = (await client.pull("T")).records
    at = records[0].stored_ms
    alike = sum(record.stored_ms == at for record in records)
    assert alike > 1

    for boundary, expected in [(None, 0), ("lower", 0), ("upper", alike - 1)]:
        header = OffsetByTime("T", 0, at, boundary)
        assert await offset_of(client, BY_TIME, header) == expected


@pytest.mark.parametrize("boundary", [None, "lower", "upper"])
@run_by(with_client, topic="T")
async def test_any_time_in_an_empty_queue_gives_its_start(client, /, boundary):
    assert await offset_of(client, BY_TIME, OffsetByTime("T", 0, 5, boundary)) == 0
    assert await client.code_of(BY_TIME, OffsetByTime("U", 0, 5)) == NO_TOPIC


# Locks


async def lock(client, *queues, group="g", **given):
    body = LockRequest(client.name, group, list(queues)).write()
    return LockedQueues.read((await client.ok(LOCK, body=body, **given)).body).queues


async def unlock(client, *queues, **given):
    body = LockRequest(client.name, "g", list(queues)).write()
    return await client.ok(UNLOCK, body=body, **given)


@run_by(in_world)
async def test_a_lock_request_is_answered_with_exactly_the_queues_that_were_locked(stage, /):
    one, other = await stage.clients(2)
    assert await lock(one, queue("T", 0), queue("T", 1)) == [queue("T", 0), queue("T", 1)]
    assert await lock(other, queue("T", 1), queue("T", 2)) == [queue("T", 2)]
    assert await lock(other) == []


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(in_world)
async def test_an_unlocked_queue_can_be_locked_by_another_client(stage, /, kind):
    one, other = await stage.clients(2)
    await lock(one, queue("T"), kind=kind)
    await unlock(other, queue("T"))
    assert await lock(other, queue("T")) == []
    answer = await unlock(one, queue("T"), kind=kind)
    assert answer.body == b""
    assert await lock(other, queue("T")) == [queue("T")]


@run_by(in_world)
async def test_a_one_way_unlock_is_not_answered(stage, /):
    one, other = await stage.clients(2)
    await lock(one, queue("T"))
    body = LockRequest(one.name, "g", [queue("T")]).write()

    assert await one.is_silent(UNLOCK, body=body, oneway=True)
    assert await lock(other, queue("T")) == [queue("T")]


@run_by(in_world)
async def test_a_lock_expires_a_minute_after_its_last_renewal(stage, /):
    one, other = await stage.clients(2)
    await lock(one, queue("T"))
    await stage.passes(40)
    await lock(one, queue("T"))
    await stage.passes(59)
    assert await lock(other, queue("T")) == []
    await stage.passes(2)
    assert await lock(other, queue("T")) == [queue("T")]
    assert await lock(one, queue("T")) == []


@run_by(with_client)
async def test_unknown_fields_of_a_rocketmq_5_lock_request_are_ignored(client, /):
    body = (
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":0,'
        b'"topic":"T"}],"onlyThisBroker":false}'
    )
    answer = await client.ok(LOCK, body=body)

    assert answer.body == (b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}')


@run_by(in_lives_with_client)
async def test_offsets_of_a_group_survive_a_restart(life, client, /):
    await client.fill("T", 7)
    await client.commit("g", "T", 0, 7)
    await life.restart()

    assert await (await life.client()).committed("g", "T") == 7


@run_by(with_client, with_topics(auto_create_groups=False), topic="T")
async def test_offsets_are_answered_for_groups_that_were_never_created(client, /):
    await client.fill("T", 7)
    await client.commit("g", "T", 0, 7)

    assert await client.committed("g", "T") == 7
