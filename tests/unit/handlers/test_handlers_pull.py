"""11, 361: every check and every outcome of a pull, and holding."""

import asyncio

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
    with_client,
    with_topics,
)
from txmq.limits import PULL_SCAN_MAX
from txmq.protocol.bodies import GroupConfig
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import TopicHeader
from txmq.settings.units import Duration
from txmq_broker.config import StoreSettings

PULL, LITE_PULL = 11, 361
FOUND, AT_END, NO_MATCH, MOVED = 0, 19, 20, 21
ERROR, NO_PERMISSION, NO_TOPIC = 1, 16, 17
NO_SUBSCRIPTION, OLD_SUBSCRIPTION, NO_GROUP = 24, 25, 26
LITE = int(PullFlag.LITE)


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("code", [PULL, LITE_PULL])
@run_by(with_client)
async def test_a_pull_is_answered_with_whole_records_in_the_encoding_of_the_request(
    client, /, code, kind
):
    await client.fill("T", 3)
    answer = await client.ok(code, pulling("T", 1, flags=LITE), kind=kind)

    found = pulled(answer)
    assert answer.kind == kind
    assert (found.bodies, found.next, found.remark) == ([b"1", b"2"], 3, "FOUND")
    assert answer.field_map() == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3"
    }  # fmt: skip


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize(
    ("offset", "code", "following", "remark"),
    [
        (0, FOUND, 3, "FOUND"),
        (3, AT_END, 3, "OFFSET_OVERFLOW_ONE"),
        (4, MOVED, 3, "OFFSET_OVERFLOW_BADLY"),
        (-1, MOVED, 0, "OFFSET_TOO_SMALL"),
    ],
)
@run_by(with_client)
async def test_every_outcome_has_its_code_and_all_four_offsets(
    client, /, offset, code, following, remark, kind
):
    await client.fill("T", 3)
    found = pulled(await client.ask(PULL, pulling("T", offset), kind=kind))

    assert (found.code, found.next, found.remark) == (code, following, remark)
    assert (found.bounds.min_offset, found.bounds.max_offset) == (0, 3)


@pytest.mark.parametrize(("offset", "code"), [(0, AT_END), (1, MOVED), (-1, MOVED)])
@run_by(with_client, topic="T")
async def test_a_pull_of_an_empty_queue_at_another_offset_is_sent_to_offset_0(
    client, /, offset, code
):
    found = await client.pull("T", offset)

    assert (found.code, found.next) == (code, 0)


@run_by(with_client)
async def test_a_pull_of_deleted_messages_is_sent_to_the_first_kept_offset(client, /):
    await client.fill("T", 3)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
    await client.topic("T")
    await client.send("T", b"new")

    moved = await client.pull("T", 0)
    assert (moved.code, moved.next, moved.bounds.min_offset) == (MOVED, 3, 3)
    assert (await client.pull("T", 3)).bodies == [b"new"]


@run_by(with_client)
async def test_a_pull_returns_no_more_messages_than_it_asks_for(client, /):
    await client.fill("T", 40)

    assert len((await client.pull("T", count=5)).bodies) == 5
    assert len((await client.pull("T", count=1000)).bodies) == 32
    assert len((await client.pull("T", max_msg_bytes=1)).bodies) == 1


# The order of the checks


@run_by(with_client, with_topics(auto_create_groups=False), topic="T")
async def test_with_auto_creation_off_a_pull_of_an_unknown_group_is_refused(client, /):
    assert (await client.pull("T")).code == NO_GROUP


@run_by(with_client)
async def test_a_pull_of_a_group_with_consuming_disabled_is_refused(client, /):
    config = GroupConfig("group", consume_enable=False)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.write())

    assert (await client.pull("no such topic")).code == NO_PERMISSION


@run_by(with_client)
async def test_a_pull_does_not_create_an_unknown_topic(client, /):
    assert (await client.pull("T")).code == NO_TOPIC


@pytest.mark.parametrize(
    ("topic", "queue", "tags", "code"),
    [
        ({"perm": 2}, 9, "*", NO_PERMISSION),
        ({"write": 4}, -1, None, ERROR),
        ({"write": 4}, 2, None, ERROR),
        ({"write": 4}, 99, None, ERROR),
    ],
    ids=["not readable", "queue -1", "a queue for writing only", "no such queue"],
)
@run_by(with_client)
async def test_a_pull_of_a_queue_that_cannot_be_read_is_refused(
    client, /, topic, queue, tags, code
):
    await client.topic("T", 2, **topic)

    assert (await client.pull("T", queue=queue, tags=tags)).code == code


@pytest.mark.parametrize(
    ("subscribed", "version", "code"),
    [
        ([], 0, NO_SUBSCRIPTION),
        (["U"], 0, NO_SUBSCRIPTION),
        (["T"], 0, AT_END),
        (["T"], 1, AT_END),
        (["T"], 2, OLD_SUBSCRIPTION),
    ],
    ids=["offline", "another topic", "no version", "the known version", "a later version"],
)
@run_by(with_client, topic="T")
async def test_a_pull_without_a_subscription_needs_one_of_its_topic_and_version(
    client, /, subscribed, version, code
):
    if subscribed:
        await client.beat(consumer("group", *subscribed))

    assert (await client.pull("T", tags=None, version=version)).code == code


@run_by(with_client, topic="T")
async def test_a_broadcasting_group_is_refused_where_broadcasting_is_disabled(client, /):
    config = GroupConfig("group", consume_broadcast_enable=False)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.write())
    await client.beat(consumer("group", "T", model="BROADCASTING"))
    assert (await client.pull("T", tags=None)).code == NO_PERMISSION
    await client.beat(consumer("group", "T"))
    assert (await client.pull("T", tags=None)).code == AT_END


# Tags


async def tagged(client, *tags):
    for tag in tags:
        await client.send("T", tag.encode(), TAGS=tag)


@pytest.mark.parametrize(
    ("known", "given", "bodies"),
    [("A || C", None, [b"A", b"C"]), ("A", "B", [b"B"])],
    ids=["without its own", "with its own"],
)
@run_by(with_client)
async def test_a_pull_uses_the_subscription_of_the_heartbeat_unless_it_has_one(
    client, /, known, given, bodies
):
    await tagged(client, "A", "B", "C")
    await client.beat(consumer("group", T=known))

    assert (await client.pull("T", tags=given)).bodies == bodies


@run_by(with_client)
async def test_a_pull_without_matches_moves_its_offset_on(client, /):
    await tagged(client, "A", "B")
    found = await client.pull("T", tags="X", hold_ms=10_000)

    assert (found.code, found.next, found.remark) == (NO_MATCH, 2, "NO_MATCHED_MESSAGE")


# Offsets committed by a pull


@run_by(with_client)
async def test_a_pull_can_commit_the_offset_of_its_group(client, /):
    await client.fill("T", 3)
    await client.pull("T", 99, commit=2)
    assert await client.committed("group", "T") == 2
    await client.pull("T", 0)
    assert await client.committed("group", "T") == 2


@pytest.mark.parametrize(("topic", "commit"), [("T", -1), ("unknown", 5)])
@run_by(in_world_with_client, topic="T")
async def test_a_pull_that_commits_an_invalid_offset_stores_none(stage, client, /, topic, commit):
    await client.pull(topic, commit=commit)

    assert stage.broker.offsets.get("group", topic, 0) is None


# Holding


@run_by(in_world_with_client)
async def test_a_pull_at_the_end_of_a_queue_is_held_until_its_timeout(stage, client, /):
    await client.fill("T", 2)
    began = stage.world.now()
    found = await client.pull("T", 2, hold_ms=15_000)

    assert (found.code, found.next) == (AT_END, 2)
    assert 15.0 <= stage.world.now() - began < 15.1


@pytest.mark.parametrize("given", [{}, {"flags": PullFlag.SUSPEND}])
@run_by(in_world_with_client, topic="T")
async def test_a_pull_without_a_hold_time_is_answered_at_once(stage, client, /, given):
    began = stage.world.now()

    assert (await client.pull("T", **given)).code == AT_END
    assert stage.world.now() - began < 0.1


@run_by(in_world_with_client, replace(SETTINGS, hold_max=Duration(3.0)), topic="T")
async def test_no_pull_is_held_longer_than_the_broker_allows(stage, client, /):
    began = stage.world.now()

    assert (await client.pull("T", hold_ms=3_600_000)).code == AT_END
    assert 3.0 <= stage.world.now() - began < 3.1


@run_by(in_world_with_client)
async def test_a_shorter_wait_that_begins_later_ends_first(stage, client, /):
    await client.topic("T", 2)
    long = client.asking(PULL, pulling("T", hold_ms=20_000))
    began = stage.world.now()
    assert (await client.pull("T", queue=1, hold_ms=2_000)).code == AT_END
    assert stage.world.now() - began < 2.1
    assert (await long).code == AT_END
    assert stage.world.now() - began < 20.1


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_new_message_wakes_a_held_pull_of_its_queue_only(flush, kind):
    async def main(stage):
        waiting, sender = await stage.clients(2)
        await waiting.topic("T", 2)
        held = waiting.asking(PULL, pulling("T", hold_ms=15_000), kind=kind)
        other = waiting.asking(PULL, pulling("T", queue=1, hold_ms=15_000))
        await waiting.max_offset("T")
        began = stage.world.now()
        await sender.send("T", b"news")

        answer = await held
        assert (pulled(answer).bodies, answer.kind) == ([b"news"], kind)
        assert stage.world.now() - began < 0.2
        assert not other.done()

    in_world(main, replace(SETTINGS, store=StoreSettings(flush=flush)))


@run_by(in_world)
async def test_a_new_message_wakes_all_held_pulls_of_its_queue(stage, /):
    clients = await stage.clients(5)
    await clients[0].topic("T")
    held = [
        client.asking(PULL, pulling("T", group=client.name, hold_ms=15_000)) for client in clients
    ]
    await asyncio.gather(*[client.max_offset("T") for client in clients])
    assert stage.broker._pulls.held == 5
    await clients[0].send("T", b"news")

    for answer in await asyncio.gather(*held):
        assert pulled(answer).bodies == [b"news"]
    assert stage.broker._pulls.held == 0


@run_by(in_world_with_client, topic="T")
async def test_a_message_that_does_not_match_leaves_the_pull_held(stage, client, /):
    held = client.asking(PULL, pulling("T", tags="A", hold_ms=15_000))
    await tagged(client, "B", "C")
    assert not held.done()
    assert stage.broker._pulls.held == 1
    await tagged(client, "A")

    found = pulled(await held)
    assert (found.bodies, found.next) == ([b"A"], 3)


@run_by(with_client, topic="T")
async def test_a_held_pull_that_expires_returns_the_offset_it_has_reached(client, /):
    held = client.asking(PULL, pulling("T", tags="A", hold_ms=15_000))
    await tagged(client, "B", "C")

    found = pulled(await held)
    assert (found.code, found.next) == (AT_END, 2)


@run_by(in_world_with_client, topic="T")
async def test_a_held_pull_ends_when_more_messages_arrive_than_one_scan_covers(stage, client, /):
    """A later one may match, and no further arrival would wake the pull for it."""
    held = client.asking(PULL, pulling("T", tags="A", hold_ms=15_000))
    await client.max_offset("T")
    began = stage.world.now()
    body = batch_of(*[b"x"] * (PULL_SCAN_MAX + 10), TAGS="B")
    await client.ok(RequestCode.SEND_BATCH_MESSAGE, batching("T"), body=body)

    found = pulled(await held)
    assert (found.code, found.next) == (NO_MATCH, PULL_SCAN_MAX)
    assert stage.world.now() - began < 1.0


@run_by(in_world_with_client, topic="T")
async def test_messages_that_do_not_match_do_not_extend_the_hold_time(stage, client, /):
    began = stage.world.now()
    held = client.asking(PULL, pulling("T", tags="A", hold_ms=5_000))
    for _ in range(4):
        await stage.passes(1.0)
        await tagged(client, "B")

    assert (await held).code == AT_END
    assert stage.world.now() - began < 5.1


@run_by(with_client)
async def test_the_offset_committed_by_a_held_pull_is_not_stored_again_at_its_end(client, /):
    await client.fill("T", 2)
    held = client.asking(PULL, pulling("T", 2, commit=1, hold_ms=5_000))
    await client.commit("group", "T", 0, 2)

    assert (await held).code == AT_END
    assert await client.committed("group", "T") == 2


@run_by(in_world)
async def test_a_held_pull_is_dropped_when_its_connection_closes(stage, /):
    gone, sender = await stage.clients(2)
    await sender.topic("T")
    await gone.beat(consumer("group", "T"))
    await sender.beat(consumer("group", "T"))
    await sender.heard(40)
    gone.asking(PULL, pulling("T", hold_ms=15_000))
    await gone.max_offset("T")
    assert stage.broker._pulls.held == 1
    gone.close()
    await sender.heard(40)
    await sender.send("T")

    assert stage.broker._pulls.held == 0
    assert (await sender.pull("T")).code == FOUND


@run_by(in_world_with_client, topic="T")
async def test_a_stopping_broker_answers_held_pulls(stage, client, /):
    held = client.asking(PULL, pulling("T", hold_ms=15_000))
    await client.max_offset("T")
    await stage.broker.stop()

    assert (await held).code == AT_END


@run_by(in_world_with_client, topic="T")
async def test_a_pull_beyond_the_limit_of_held_pulls_is_answered_at_once(stage, client, /):
    stage.broker._pulls._holds._limit = 0

    assert (await client.pull("T", hold_ms=15_000)).code == AT_END


@run_by(in_world_with_client, topic="T")
async def test_a_one_way_pull_is_neither_held_nor_answered(stage, client, /):
    assert await client.is_silent(PULL, pulling("T", hold_ms=15_000), oneway=True)
    assert stage.broker._pulls.held == 0


@run_by(in_world_with_client, topic="T")
async def test_a_read_error_is_answered_to_the_held_pull_of_that_queue_only(stage, client, /):
    await client.send("U", b"good")
    held = client.asking(PULL, pulling("T", hold_ms=15_000))
    await client.max_offset("T")
    stage.disk.fail_reads()
    await client.send("T", b"bad luck")

    assert (await held).code == ERROR
    stage.disk.repair()
    assert (await client.pull("T")).bodies == [b"bad luck"]
    assert (await client.pull("U")).bodies == [b"good"]


# What is counted


@run_by(in_world_with_client)
async def test_delivered_messages_and_pull_results_are_counted(stage, client, /):
    await client.fill("T", 3)
    found = await client.pull("T")
    await client.pull("T", 3)

    counted = stage.broker.statistics
    assert counted.meter("GROUP_GET_NUMS", "T@group").total == 3
    assert counted.meter("GROUP_GET_SIZE", "T@group").total == len(found.answer.body)
    assert counted.meter("BROKER_GET_NUMS", "").total == 3
    assert counted.meter("PULLS_FOUND", "").total == 1
    assert counted.meter("PULLS_MISSED", "").total == 1


@run_by(with_client)
async def test_a_pull_with_the_header_of_another_request_is_an_error(client, /):
    assert await client.code_of(PULL, sending("T")) == ERROR
