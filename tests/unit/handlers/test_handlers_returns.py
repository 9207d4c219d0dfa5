"""36 and sends to retry topics: when messages are retried, in which form, and when not."""

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    consumer,
    in_world,
    in_world_with_client,
    sending,
    with_client,
    with_topics,
)
from tests.unit.handlers.transaction_stage import (
    COMMIT,
    DURABLE,
    HALVES,
    end,
    in_lives_with_client,
    prepare,
)
from txmq.protocol.bodies import GroupConfig, OffsetPair, read_with_queue_map
from txmq.protocol.codes import Perm, PullFlag, RequestCode
from txmq.protocol.headers import ConsumeStatsQuery, PullMessage, SendBack
from txmq.protocol.properties import parse
from txmq.protocol.record import position_in, unpack_all
from txmq.testing import Loss

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE
FAILED, ILLEGAL, FORBIDDEN, NO_GROUP = 1, 13, 16, 26
GROUP, RETRY, DEAD = "group", "%RETRY%group", "%DLQ%group"
WAITING = "SCHEDULE_TOPIC_XXXX"

# Seed 000: the number of a retry, and the seconds after the previous one.
TABLE = [
    (1, 10), (2, 30), (3, 60), (4, 120), (5, 180), (6, 240), (7, 300), (8, 360), (9, 420),
    (10, 480), (11, 540), (12, 600), (13, 1200), (14, 1800), (15, 3600), (16, 7200),
]  # fmt: skip


def back(position, level=0, *, group=GROUP, most=None, reason=None):
    return SendBack(position, group, level, "", "T", max_reconsume_times=most, reason=reason)


async def store(client, topic="T", body=b"body", *, attempts=0, **props):
    """Store a message with a number of earlier attempts; return its position."""
    header = sending(topic, **props)
    header.reconsume_times, header.max_reconsume_times = attempts, 99
    answer = await client.ok(SEND, header, body=body)
    return position_in(answer.field_map()["msgId"])


def topics_of(stage):
    return [topic.name for topic in stage.broker.topics if "%" in topic.name]


async def group_is(client, **settings):
    config = GroupConfig(GROUP, **settings)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.write())


# When a message is retried


async def waits(client, group=GROUP, topic=None):
    """The messages that wait for a retry, the retry limit, and the group's lag."""
    answer = await client.ok(RequestCode.GET_CONSUME_STATS, ConsumeStatsQuery(group, topic))
    pairs, stats = read_with_queue_map(answer.body, "offsetTable", OffsetPair)
    lag = sum(pair.broker_offset - pair.consumer_offset for pair in pairs.values())
    return stats["retriesWaiting"], stats["retriesMax"], lag


@run_by(in_lives_with_client, DURABLE)
async def test_the_statistics_of_a_group_count_messages_that_wait_for_a_retry(life, client, /):
    await group_is(client, retry_max_times=5)
    positions = [await store(client) for _ in range(3)]
    second = await store(client, attempts=1)
    for queue in range(4):
        await client.commit(GROUP, "T", queue, await client.max_offset("T", queue))
    for position in positions[:2]:
        await client.ok(BACK, back(position))
    await client.ok(BACK, back(positions[2], 18, group="other"))
    await client.ok(BACK, back(second, 5))
    assert await waits(client) == ({"1": 2, "2": 1}, 5, 0)
    assert await waits(client, topic="T") == ({"1": 2, "2": 1}, 5, 0)
    assert (await waits(client, topic=RETRY))[0] == {}

    await life.lose_power(Loss.EVERYTHING)
    await life.start()
    await life.passes(1)
    client = await life.client()
    await group_is(client, retry_max_times=5)
    assert await waits(client) == ({"1": 2, "2": 1}, 5, 0)
    assert (await waits(client, "other"))[0] == {"1": 1}
    await life.passes(10)
    # They have arrived in the retry topic, where the group has no offset yet.
    assert await waits(client) == ({"2": 1}, 5, 2)

    await life.passes(50)
    client = await life.client()
    assert await waits(client) == ({}, 5, 3)
    await client.commit(GROUP, RETRY, 0, 3)
    assert await waits(client) == ({}, 5, 0)


@pytest.mark.slow
@run_by(in_world_with_client, within=8000.0)
async def test_each_retry_is_delivered_after_the_delay_of_its_level(stage, client, /):
    given = []
    for retry, _ in TABLE:
        position = await store(client, attempts=retry - 1)
        given.append(stage.clock.wall_ms())
        await client.ok(BACK, back(position, most=16))

    for place, ((retry, after_s), given_ms) in enumerate(zip(TABLE, given, strict=True)):
        await stage.passes(after_s - 0.5 - (stage.clock.wall_ms() - given_ms) / 1000)
        client = await stage.client()  # An idle connection would be closed by now.
        assert (await client.pull(RETRY, place)).records == [], retry
        await stage.passes(1)

        (found,) = (await client.pull(RETRY, place)).records
        assert found.attempts == retry
        assert 0 <= found.stored_ms - given_ms - 1000 * after_s < 200, retry


@run_by(in_world_with_client)
async def test_a_retry_keeps_the_message_and_names_its_origin(stage, client, /):
    position = await store(client, TAGS="a", KEYS="k", UNIQ_KEY="U1", born=5)
    (given,) = (await client.pull("T")).records
    await client.ok(BACK, back(position))
    await stage.passes(11)

    (found,) = (await client.pull(RETRY)).records

    assert (found.body, found.flag, found.attempts) == (b"body", 7, 1)
    assert (found.born_ms, found.born_host) == (given.born_ms, given.born_host)
    assert found.store_host == given.store_host
    assert parse(found.properties) == {
        "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U1", "CLUSTER": "DefaultCluster",
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": given.offset_id, "DELAY": "3",
        "REAL_TOPIC": RETRY, "REAL_QID": "0",
    }  # fmt: skip
    await client.ok(BACK, back(found.position))
    await stage.passes(31)
    (second,) = (await client.pull(RETRY, 1)).records
    expected = parse(found.properties) | {"DELAY": "4"}
    assert (second.attempts, parse(second.properties)) == (2, expected)
    assert second.properties.count("DELAY") == 1


@run_by(in_world_with_client)
async def test_a_consumer_can_choose_the_delay_level_of_a_retry(stage, client, /):
    await client.ok(BACK, back(await store(client), 1))
    await stage.passes(1.5)
    assert (await client.pull(RETRY)).bodies == [b"body"]


@run_by(with_client)
async def test_a_level_above_the_highest_is_the_highest(client, /):
    await client.ok(BACK, back(await store(client, attempts=30), 99, most=99))
    await client.ok(BACK, back(await store(client, attempts=30), most=99))
    assert len((await client.pull(WAITING, queue=17)).records) == 2


@run_by(in_world_with_client)
async def test_a_committed_message_is_retried_as_an_ordinary_one(stage, client, /):
    await client.beat(producers=["P"])
    half = await prepare(client)
    assert await client.code_of(BACK, back(half.position)) == FAILED
    await end(client, half, COMMIT)
    (given,) = (await client.pull("T")).records
    await client.ok(BACK, back(given.position))
    await stage.passes(11)

    (found,) = (await client.pull(RETRY)).records

    assert (found.body, found.sys_flag & 0xC) == (b"half", 0)
    named = parse(found.properties)
    assert (named["TRAN_MSG"], named["UNIQ_KEY"]) == ("true", "U1")
    assert found.properties.count("REAL_TOPIC") == 1


# Refused retries


@run_by(with_client)
async def test_a_retry_of_a_position_without_a_visible_message_is_refused(client, /):
    position = await store(client)
    await client.beat(producers=["P"])
    half = await prepare(client)
    await client.send("T", DELAY="5")
    (waiting,) = (await client.pull(WAITING, queue=4)).records
    wrong = [-1, position + 1, 10**9, 2**63 - 1, half.position, waiting.position]

    assert [await client.code_of(BACK, back(place)) for place in wrong] == [FAILED] * 6
    assert (await client.pull(HALVES)).records[0].position == half.position


@run_by(in_world_with_client)
async def test_a_retry_for_an_invalid_group_name_is_refused_and_creates_nothing(stage, client, /):
    position = await store(client)
    for name in ("", "no name", "x" * 200, "%" * 300):
        assert await client.code_of(BACK, back(position, group=name)) == FAILED
    assert topics_of(stage) == []
    assert stage.broker.groups.find("no name") is None


@run_by(with_client, settings=with_topics(auto_create_groups=False))
async def test_with_auto_creation_off_a_retry_for_an_unknown_group_is_refused(client, /):
    assert await client.code_of(BACK, back(await store(client))) == NO_GROUP


@run_by(with_client)
async def test_a_retry_into_a_retry_topic_closed_for_writing_is_refused(client, /):
    await client.topic(RETRY, perm=int(Perm.READ))
    assert await client.code_of(BACK, back(await store(client))) == FORBIDDEN
    await client.topic(RETRY, 1, write=0, perm=6)
    assert await client.code_of(BACK, back(await store(client))) == FORBIDDEN


@run_by(in_world_with_client)
async def test_a_group_without_retry_queues_drops_returned_messages(stage, client, /):
    await group_is(client, retry_queue_nums=0)
    await client.ok(BACK, back(await store(client)))
    assert topics_of(stage) == []
    assert (await client.pull(WAITING, queue=2)).records == []


@run_by(in_world_with_client)
async def test_retries_are_spread_over_the_groups_retry_queues(stage, client, /):
    await group_is(client, retry_queue_nums=3)
    position = await store(client)
    for _ in range(30):
        await client.ok(BACK, back(position, 1))
    await stage.passes(2)
    found = [len((await client.pull(RETRY, queue=n)).records) for n in range(3)]
    assert sum(found) == 30
    assert min(found) > 0


@run_by(with_client)
async def test_a_one_way_return_is_stored_and_not_answered(client, /):
    position = await store(client)
    assert await client.is_silent(BACK, back(position, -1), oneway=True)
    assert (await client.pull(DEAD)).bodies == [b"body"]


@run_by(in_world_with_client)
async def test_returned_messages_are_counted_by_topic_and_group(stage, client, /):
    position = await store(client)
    await client.ok(BACK, back(position, 1))
    await stage.passes(2)
    (found,) = (await client.pull(RETRY)).records
    await client.ok(BACK, back(found.position, 1))
    forged = await store(client, RETRY, RETRY_TOPIC="nobody made this")
    await client.ok(BACK, back(forged, 1))

    meters = stage.broker.statistics
    assert meters.find("SNDBCK_PUT_NUMS", "T@group").total == 2
    assert meters.find("SNDBCK_PUT_NUMS", f"{RETRY}@group").total == 1


# Dead letters


@run_by(in_world_with_client)
async def test_after_the_last_retry_a_message_becomes_a_dead_letter_with_a_reason(stage, client, /):
    position = await store(client, attempts=16, UNIQ_KEY="U1", KEYS="k")
    (given,) = (await client.pull("T")).records
    why = "ValueError: no\x01such\x02account\n7"
    await client.ok(BACK, back(position, reason=why))

    (found,) = (await client.pull(DEAD)).records

    assert (found.body, found.attempts, found.queue_id) == (b"body", 17, 0)
    assert parse(found.properties) == {
        "UNIQ_KEY": "U1", "KEYS": "k", "CLUSTER": "DefaultCluster", "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": given.offset_id, "DLQ_ORIGIN_TOPIC": "T",
        "DLQ_ORIGIN_MESSAGE_ID": "U1",
        "DLQ_REASON": "16 retries failed, 16 are allowed: ValueError: no such account 7",
    }  # fmt: skip
    assert topics_of(stage) == [DEAD]
    config = stage.broker.topics.by_name.get(DEAD).config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 2)
    assert (await client.pull(WAITING, queue=17)).records == []


@run_by(with_client)
async def test_a_consumer_can_make_a_message_a_dead_letter_at_once(client, /):
    await client.ok(BACK, back(await store(client), -1))
    (found,) = (await client.pull(DEAD)).records
    assert parse(found.properties)["DLQ_REASON"] == "its consumer gave it up"
    assert found.attempts == 1


@run_by(in_world_with_client)
async def test_dead_letters_are_found_by_key(stage, client, /):
    await client.ok(BACK, back(await store(client, KEYS="k"), -1))
    assert list(stage.broker.store.positions_of_key(DEAD, "k", 0, 2**62))


@pytest.mark.parametrize(
    ("limit", "setting", "attempts", "is_dead"),
    [
        (None, 16, 15, False), (None, 16, 16, True), (None, 2, 1, False), (None, 2, 2, True),
        (16, 2, 2, True),  # The default of stock clients.
        (3, 16, 2, False), (3, 16, 3, True), (30, 16, 29, False), (0, 16, 0, True),
        (-1, 16, 0, False), (None, 0, 0, True), (2, 16, 2**31 - 1, True),
    ],
)  # fmt: skip
@run_by(in_world_with_client)
async def test_the_retry_limit_of_the_consumer_overrides_that_of_the_group(
    stage, client, /, limit, setting, attempts, is_dead
):
    await group_is(client, retry_max_times=setting)
    position = await store(client, attempts=attempts)
    await client.ok(BACK, back(position, most=limit))
    assert (stage.broker.topics.by_name.get(DEAD) is not None) is is_dead


@run_by(in_world)
async def test_the_last_retry_limit_sent_holds_for_the_group_while_it_is_online(stage, /):
    one, two = await stage.clients(2)
    for member in (one, two):
        await member.beat(consumer(GROUP, "T"))
    position = await store(one, attempts=3)

    async def dies(client, most):
        before = await client.max_offset(DEAD) if stage.broker.topics.by_name.get(DEAD) else 0
        await client.ok(BACK, back(position, most=most))
        return stage.broker.topics.by_name.get(DEAD) and await client.max_offset(DEAD) > before

    assert not await dies(two, 16)
    assert await dies(one, 2)
    assert await dies(two, 16)
    assert not await dies(two, 20)
    assert not await dies(one, None)
    assert await dies(one, 3)
    for member in (one, two):
        member.close()
    three = await stage.client()
    assert not await dies(three, 16)


@run_by(in_world_with_client)
async def test_the_retry_limit_sent_by_very_old_clients_is_ignored(stage, client, /):
    position = await store(client, attempts=3)
    await client.ok(BACK, back(position, most=2), version=120)
    assert topics_of(stage) == [RETRY]


# Sends to retry topics


def retrying(attempts, most, **props):
    header = sending(RETRY, RETRY_TOPIC="T", **props)
    header.reconsume_times, header.max_reconsume_times = attempts, most
    return header


@run_by(in_world_with_client)
async def test_a_message_sent_to_a_retry_topic_waits_for_its_delay_level(stage, client, /):
    await client.ok(SEND, retrying(2, 16, DELAY="5"), body=b"x")
    await stage.passes(59)
    assert (await client.pull(RETRY)).records == []
    await stage.passes(2)
    (found,) = (await client.pull(RETRY)).records
    assert (found.body, found.attempts) == (b"x", 2)


@pytest.mark.parametrize(("attempts", "topic"), [(2, RETRY), (16, DEAD)])
@pytest.mark.parametrize("flags", [0, 4])
@run_by(in_world_with_client)
async def test_a_sent_retry_of_a_transactional_message_is_an_ordinary_message(
    stage, client, /, attempts, topic, flags
):
    """Clients that cannot send a message back send it again with all its properties."""
    header = retrying(attempts, 16, DELAY="1", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="U1")
    header.sys_flag = flags
    await client.ok(SEND, header, body=b"x")
    await stage.passes(2)

    (found,) = (await client.pull(topic)).records
    assert (found.body, found.attempts, found.sys_flag & 0xC) == (b"x", attempts, 0)
    assert await client.max_offset(HALVES) == 0


@pytest.mark.parametrize(
    ("attempts", "limit", "setting"), [(3, 3, 16), (16, None, 16), (2, -1, 2), (0, 0, 16)]
)
@run_by(in_world_with_client)
async def test_a_retry_sent_beyond_the_limit_becomes_a_dead_letter(
    stage, client, /, attempts, limit, setting
):
    await group_is(client, retry_max_times=setting, retry_queue_nums=4)
    header = retrying(attempts, limit, DELAY="5", UNIQ_KEY="U1")
    header.queue_id = 3
    answer = await client.ok(SEND, header, body=b"x")
    assert answer.field_map()["queueId"] == "0"

    (found,) = (await client.pull(DEAD)).records

    named = parse(found.properties)
    assert (found.body, found.attempts, named["UNIQ_KEY"]) == (b"x", attempts, "U1")
    assert (named["RETRY_TOPIC"], named["DLQ_ORIGIN_TOPIC"]) == ("T", "T")
    assert "allowed" in named["DLQ_REASON"]
    assert "DELAY" not in named
    assert topics_of(stage) == [DEAD]


# Across restarts


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.NOTHING])
@run_by(in_lives_with_client, DURABLE)
async def test_confirmed_retries_and_dead_letters_survive_a_power_cut(life, client, /, loss):
    given, dead = await store(client, body=b"again"), await store(client, body=b"dead")
    await client.ok(BACK, back(given))
    await client.ok(BACK, back(dead, -1))
    await life.lose_power(loss)
    await life.start()
    await life.passes(11)

    client = await life.client()
    assert (await client.pull(RETRY)).bodies == [b"again"]
    assert (await client.pull(DEAD)).bodies == [b"dead"]


# Reading dead letters


@run_by(in_world_with_client, topic="T")
async def test_dead_letters_are_read_only_by_a_pull_that_asks_for_dead_letters(stage, client, /):
    """Stock consumers find no queue of a topic that permits writing only."""
    await client.ok(BACK, back(await store(client), -1))

    config = stage.broker.topics.get(DEAD).config
    assert config.perm == Perm.WRITE
    pull = PullMessage("g", DEAD, 0, 0, 32, int(PullFlag.SUBSCRIPTION), 0, 0, 0, "*", "TAG")
    assert await client.code_of(RequestCode.PULL_MESSAGE, pull) == FORBIDDEN
    pull.dead_letters = True
    answer = await client.ok(RequestCode.PULL_MESSAGE, pull)
    assert [record.body for record in unpack_all(answer.body)] == [b"body"]
