"""11, 34, 46: conditions in SQL92, from the heartbeat or the check to the result of a pull."""

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    SETTINGS,
    batch_of,
    batching,
    consumer,
    in_world,
    in_world_with_client,
    pulled,
    pulling,
    sending,
    subscription,
    text_of,
    with_client,
)
from tests.unit.handlers.transaction_stage import COMMIT, end, prepare
from txmq.limits import FILTER_SCAN_BYTES_MAX, PULL_SCAN_MAX
from txmq.protocol import batch, java
from txmq.protocol.bodies import ConsumerRegistration, QueueEntries, SubscriptionCheck
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.headers import QueueEntriesQuery
from txmq_broker.config import FilterSettings

PULL, CHECK = 11, 46
FOUND, ERROR, AT_END, NO_MATCH = 0, 1, 19, 20
INVALID, NO_SUBSCRIPTION, OLD_SUBSCRIPTION = 23, 24, 25
WITH_SQL = replace(SETTINGS, filter=FilterSettings(sql=True))
WORDS = "The broker does not support consumer to filter message by SQL92"


def by_sql(expression, **given):
    return {"tags": expression, "expression_type": "SQL92"} | given


def subscribing(topic="T", expression="a > 5", *, group="group", version=1, more=()):
    wanted = [subscription(topic, expression, version=version, kind="SQL92"), *more]
    return ConsumerRegistration(group, subscription_data_set=wanted)


async def numbered(client, *numbers, topic="T", **props):
    for number in numbers:
        await client.send(topic, b"%d" % number, a=str(number), **props)


# The check of a condition (46)


def asked(expression, kind="SQL92"):
    return SubscriptionCheck("id", "group", subscription("T", expression, kind=kind)).write()


@pytest.mark.parametrize(("kind", "code"), [("TAG", 0), ("", 0), ("SQL92", ERROR)])
@run_by(with_client)
async def test_sql_conditions_are_refused_unless_the_broker_allows_them(client, /, kind, code):
    answer = await client.ask(CHECK, body=asked("a > 5", kind))

    assert answer.code == code
    if code:
        assert answer.remark.startswith(WORDS)
        assert "set filter.sql = true" in answer.remark


@pytest.mark.parametrize(
    ("expression", "code", "place"),
    [
        ("a > 5", 0, None),
        ("a between 0 and 6", 0, None),
        ("a >", INVALID, "at position 4: expected a property"),
        ("", INVALID, "at position 1: "),
        ("a = 5 b", INVALID, "at position 7: "),
        ("a" * 16_385, INVALID, "at most 16384 characters"),
        ("(" * 16_000, INVALID, "nested at most"),
    ],
)
@run_by(with_client, WITH_SQL)
async def test_a_client_can_have_a_condition_checked_before_it_subscribes(
    client, /, expression, code, place
):
    answer = await client.ask(CHECK, body=asked(expression))

    assert answer.code == code
    assert place is None or place in answer.remark


@run_by(with_client, WITH_SQL)
async def test_an_unknown_expression_type_is_refused(client, /):
    assert await client.code_of(CHECK, body=asked("a", "XPATH")) == INVALID


@run_by(with_client)
async def test_sql_conditions_can_be_allowed_while_the_broker_runs(client, /):
    body = java.dumps({"enablePropertyFilter": "true"})
    await client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert await client.code_of(CHECK, body=asked("a > 5")) == 0


# Pulling


@run_by(with_client, WITH_SQL)
async def test_a_pull_can_carry_its_own_condition(client, /):
    await numbered(client, 4, 5, 6, 7)
    found = await client.pull("T", **by_sql("a > 5 AND a <> 7"))

    assert (found.code, found.bodies, found.next) == (FOUND, [b"6"], 4)
    wrong = await client.pull("T", **by_sql("a > "))
    assert (wrong.code, "at position 5" in wrong.remark) == (INVALID, True)


@run_by(with_client, WITH_SQL)
async def test_a_pull_without_a_condition_uses_that_of_the_heartbeat(client, /):
    await numbered(client, 4, 5, 6, 7)
    await client.beat(subscribing())

    assert (await client.pull("T", tags=None)).bodies == [b"6", b"7"]
    assert (await client.pull("T", tags=None, version=2)).code == OLD_SUBSCRIPTION
    assert (await client.pull("U", tags=None)).code == 17


@run_by(with_client, WITH_SQL)
async def test_a_pull_without_matches_moves_its_offset_on(client, /):
    await numbered(client, 1, 2)
    found = await client.pull("T", **by_sql("a > 5"), hold_ms=10_000)

    assert (found.code, found.next, found.remark) == (NO_MATCH, 2, "NO_MATCHED_MESSAGE")


@run_by(with_client, WITH_SQL)
async def test_a_changed_condition_takes_effect_at_once(client, /):
    await numbered(client, 4, 5, 6)
    await client.beat(subscribing(expression="a > 5", version=1))
    assert (await client.pull("T", tags=None)).bodies == [b"6"]
    await client.beat(subscribing(expression="a < 5", version=2))
    assert (await client.pull("T", tags=None, version=2)).bodies == [b"4"]
    await client.beat(consumer("group", "T"))
    assert (await client.pull("T", tags=None, version=2)).bodies == [b"4"]
    tags = ConsumerRegistration("group", subscription_data_set=[subscription("T", version=3)])
    await client.beat(tags)
    assert (await client.pull("T", tags=None, version=3)).bodies == [b"4", b"5", b"6"]


@run_by(with_client, WITH_SQL)
async def test_an_invalid_condition_in_a_heartbeat_affects_only_its_own_subscription(client, /):
    for topic in ("T", "U", "V"):
        await numbered(client, 5, 6, topic=topic)
    others = [subscription("U", "a > 5", kind="SQL92"), subscription("V")]
    await client.beat(subscribing("T", "a >", more=others), consumer("other", "T"))

    broken = await client.pull("T", tags=None)
    assert (broken.code, "at position 4" in broken.remark) == (INVALID, True)
    assert (await client.pull("U", tags=None)).bodies == [b"6"]
    assert (await client.pull("V", tags=None)).bodies == [b"5", b"6"]
    assert (await client.pull("T", tags=None, group="other")).bodies == [b"5", b"6"]
    await client.beat(subscribing("T", "a > 5", version=2, more=others))
    assert (await client.pull("T", tags=None, version=2)).bodies == [b"6"]


@pytest.mark.parametrize("own", [True, False])
@run_by(with_client)
async def test_a_pull_with_a_condition_is_refused_where_conditions_are_off(client, /, own):
    await numbered(client, 6)
    await client.beat(subscribing())
    given = by_sql("a > 5") if own else {"tags": None}
    found = await client.pull("T", **given)

    assert (found.code, found.remark.startswith(WORDS)) == (ERROR, True)


@run_by(with_client, WITH_SQL)
async def test_the_retry_topic_is_not_filtered(client, /):
    retry = subscription("%RETRY%group")
    await client.beat(subscribing("T", "a > 5", more=[retry]))
    await client.send("%RETRY%group", b"again", a="1")

    assert (await client.pull("%RETRY%group", tags=None)).bodies == [b"again"]


@run_by(with_client, WITH_SQL)
async def test_the_entries_of_a_queue_are_shown_with_the_condition_of_a_group(client, /):
    await numbered(client, 6)
    await client.beat(subscribing(expression="a > 5"))
    header = QueueEntriesQuery("T", 0, 0, 1, "group")
    answer = await client.ok(RequestCode.QUERY_CONSUME_QUEUE, header)

    assert QueueEntries.read(answer.body).filter_data == "a > 5"


# Every shape in which a message is stored


@run_by(with_client, WITH_SQL)
async def test_committed_half_messages_are_filtered_as_they_are_delivered(client, /):
    for number in (5, 6):
        half = await prepare(client, unique=f"U{number}", a=str(number))
        assert await end(client, half, COMMIT) == 0

    assert len((await client.pull("T", **by_sql("a > 5"))).records) == 1
    assert (await client.pull("T", **by_sql("a > 6"))).code == NO_MATCH
    both = "TRAN_MSG = TRUE AND REAL_TOPIC = 'T' AND REAL_QID = 0 AND UNIQ_KEY IS NOT NULL"
    assert len((await client.pull("T", **by_sql(both))).records) == 2


@run_by(with_client, WITH_SQL)
async def test_messages_of_a_batch_are_filtered_individually(client, /):
    parts = [(0, b"%d" % number, text_of(a=str(number))) for number in range(10)]
    await client.ok(RequestCode.SEND_BATCH_MESSAGE, batching("T"), body=batch.pack(parts))

    found = await client.pull("T", **by_sql("a between 2 and 4"))
    assert found.bodies == [b"2", b"3", b"4"]


@run_by(with_client, WITH_SQL)
async def test_compressed_messages_are_filtered_and_stay_compressed(client, /):
    flag = int(SysFlag.COMPRESSED)
    header = sending("T", sys_flag=flag, a="6")
    await client.ok(RequestCode.SEND_MESSAGE, header, body=b"packed")

    found = await client.pull("T", **by_sql("a > 5"))
    (record,) = found.records
    assert (record.body, record.sys_flag & flag) == (b"packed", flag)


@run_by(with_client, WITH_SQL)
async def test_conditions_can_use_tags_and_keys_as_properties(client, /):
    await client.send("T", b"A", TAGS="A", KEYS="k1 k2")
    await client.send("T", b"B", TAGS="B")
    await client.send("T", b"none")

    assert (await client.pull("T", **by_sql("TAGS = 'A'"))).bodies == [b"A"]
    assert (await client.pull("T", **by_sql("TAGS <> 'A'"))).bodies == [b"B"]
    assert (await client.pull("T", **by_sql("TAGS IS NULL"))).bodies == [b"none"]
    assert (await client.pull("T", **by_sql("KEYS contains 'k2'"))).bodies == [b"A"]


@run_by(with_client, WITH_SQL, topic="T")
async def test_delayed_messages_are_filtered_when_they_are_delivered(client, /):
    held = client.asking(PULL, pulling("T", **by_sql("a > 5 AND DELAY = 1"), hold_ms=15_000))
    await client.send("T", b"5", DELAY="1", a="5")
    await client.send("T", b"6", DELAY="1", a="6")

    assert pulled(await held).bodies == [b"6"]


# Waiting


@run_by(in_world_with_client, WITH_SQL, topic="T")
async def test_messages_that_do_not_match_do_not_end_a_held_pull(stage, client, /):
    held = client.asking(PULL, pulling("T", **by_sql("a > 5"), hold_ms=15_000))
    await numbered(client, 1, 2)
    assert not held.done()
    assert stage.broker._pulls.held == 1
    await numbered(client, 6)

    found = pulled(await held)
    assert (found.bodies, found.next) == ([b"6"], 3)
    assert stage.broker._pulls._held_chars == 0


@run_by(with_client, WITH_SQL, topic="T")
async def test_a_held_pull_that_expires_returns_the_offset_it_has_reached(client, /):
    held = client.asking(PULL, pulling("T", **by_sql("a > 5"), hold_ms=15_000))
    await numbered(client, 1, 2)

    found = pulled(await held)
    assert (found.code, found.next) == (AT_END, 2)


@run_by(with_client, WITH_SQL, topic="T")
async def test_a_held_pull_ends_when_more_messages_arrive_than_one_scan_covers(client, /):
    held = client.asking(PULL, pulling("T", **by_sql("a > 5"), hold_ms=15_000))
    await client.max_offset("T")
    body = batch_of(*[b"x"] * (PULL_SCAN_MAX + 10), a="1")
    await client.ok(RequestCode.SEND_BATCH_MESSAGE, batching("T"), body=body)

    found = pulled(await held)
    assert (found.code, found.next) == (NO_MATCH, PULL_SCAN_MAX)


@run_by(with_client, WITH_SQL)
async def test_large_messages_that_do_not_match_are_scanned_in_several_pulls(client, /):
    for _ in range(3):
        await client.send("T", b"x" * (FILTER_SCAN_BYTES_MAX // 2), a="1")
    await numbered(client, 6)
    first = await client.pull("T", **by_sql("a > 5"))
    second = await client.pull("T", first.next, **by_sql("a > 5"))

    assert (first.code, first.next) == (NO_MATCH, 2)
    assert (second.code, second.bodies) == (FOUND, [b"6"])


@run_by(in_world_with_client, WITH_SQL, topic="T")
async def test_pulls_whose_filters_exceed_the_memory_limit_are_answered_at_once(stage, client, /):
    pulls = stage.broker._pulls
    pulls._held_chars = 4 * 1024 * 1024 - 10
    assert (await client.pull("T", **by_sql("a > 5 AND a < 9"), hold_ms=15_000)).code == AT_END
    assert (await client.pull("T", tags="A" * 11, hold_ms=15_000)).code == AT_END
    assert pulls.held == 0
    held = client.asking(PULL, pulling("T", **by_sql("a > 5"), hold_ms=15_000))
    await client.max_offset("T")
    assert pulls.held == 1
    await held
    assert pulls._held_chars == 4 * 1024 * 1024 - 10


@pytest.mark.parametrize("is_by_tags", [False, True])
@run_by(in_world, WITH_SQL)
async def test_a_held_pull_follows_a_subscription_change_of_its_group(stage, /, is_by_tags):
    """As with RocketMQ, which looks at the heartbeat's subscription again before it answers."""

    def wanting(version, *numbers):
        if is_by_tags:
            more = [subscription("T", " || ".join(numbers), version=version)]
            return ConsumerRegistration("group", subscription_data_set=more)
        expression = " OR ".join(f"a = {number}" for number in numbers)
        return subscribing(expression=expression, version=version)

    client = await stage.client(topic="T")
    await client.beat(wanting(1, "6"))
    held = client.asking(PULL, pulling("T", tags=None, hold_ms=15_000))
    await numbered(client, 3, TAGS="3")
    await client.beat(wanting(2, "6", "4"))
    await numbered(client, 4, TAGS="4")

    found = pulled(await held)
    assert (found.bodies, found.next) == ([b"4"], 2)
    assert stage.broker._pulls._held_chars == 0


@run_by(in_world, WITH_SQL)
async def test_a_held_pull_is_served_after_its_group_has_left(stage, /):
    other, client = await stage.clients(2)
    await client.topic("T")
    await other.beat(subscribing())
    held = client.asking(PULL, pulling("T", tags=None, hold_ms=15_000))
    await client.max_offset("T")
    other.close()
    await numbered(client, 4, 6)

    assert pulled(await held).bodies == [b"6"]


@run_by(in_world_with_client, WITH_SQL, topic="T")
async def test_conditions_from_heartbeats_count_towards_the_limit_of_held_pulls(stage, client, /):
    """A group may change its condition with every heartbeat, and hold a pull for each."""
    pulls = stage.broker._pulls
    pulls._held_chars = 4 * 1024 * 1024 - 10
    await client.beat(subscribing(expression="a > 5 AND a < 9"))
    assert (await client.pull("T", tags=None, hold_ms=15_000)).code == AT_END
    assert pulls.held == 0

    await client.beat(subscribing(expression="a > 5", version=2))
    held = client.asking(PULL, pulling("T", tags=None, hold_ms=15_000))
    await client.max_offset("T")
    assert (pulls.held, pulls._held_chars) == (1, 4 * 1024 * 1024 - 5)
    await held
    assert pulls._held_chars == 4 * 1024 * 1024 - 10


@pytest.mark.parametrize(("given", "at_once"), [({"tags": "*"}, 4), (by_sql("a > 5"), 2)])
@run_by(in_world, WITH_SQL)
async def test_held_pulls_are_woken_in_limited_groups(stage, /, monkeypatch, given, at_once):
    """The conditions of some hundreds of pulls take a second for one large message."""
    monkeypatch.setattr("txmq_broker.handlers.pull.WOKEN_TOGETHER_MAX", 4)
    client = await stage.client(topic="T")
    pulls = stage.broker._pulls
    held = [client.asking(PULL, pulling("T", **given, hold_ms=15_000)) for _ in range(9)]
    await client.max_offset("T")
    left, arrived = [], pulls.arrived

    def looked(span):
        arrived(span)
        left.append(pulls.held)

    monkeypatch.setattr(pulls, "arrived", looked)
    await numbered(client, 6)
    assert left == [9 - at_once]
    assert [pulled(await pull).bodies for pull in held] == [[b"6"]] * 9
    assert (pulls.held, pulls._held_chars) == (0, 0)


@run_by(in_world)
async def test_a_stopping_broker_answers_pulls_that_are_woken_but_not_served_yet(
    stage, /, monkeypatch
):
    monkeypatch.setattr("txmq_broker.handlers.pull.WOKEN_TOGETHER_MAX", 1)
    client = await stage.client(topic="T")
    pulls = stage.broker._pulls
    held = [client.asking(PULL, pulling("T", hold_ms=15_000)) for _ in range(5)]
    await client.max_offset("T")
    arrived = pulls.arrived

    def stopped(span):
        arrived(span)
        pulls.release()
        assert pulls.held == 0

    monkeypatch.setattr(pulls, "arrived", stopped)
    await numbered(client, 6)
    assert [pulled(await pull).bodies for pull in held] == [[b"6"]] * 5
