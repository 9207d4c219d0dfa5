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
    pulled,
    pulling,
    sending,
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
@run_by("serve")
async def test_a_pull_is_answered_with_whole_records_and_in_kind(stage, /, code, kind):
    client = await stage.client()
    await client.fill("T", 3)
    answer = await client.ok(code, pulling("T", 1, flags=LITE), kind=kind)

    found = pulled(answer)
    assert answer.kind == kind
    assert (found.bodies, found.next, found.remark) == ([b"1", b"2"], 3, "FOUND")
    assert answer.field_map() == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
    }


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
@run_by("serve")
async def test_every_outcome_has_its_code_and_all_four_offsets(
    stage, /, offset, code, following, remark, kind
):
    client = await stage.client()
    await client.fill("T", 3)
    found = pulled(await client.ask(PULL, pulling("T", offset), kind=kind))

    assert (found.code, found.next, found.remark) == (code, following, remark)
    assert (found.bounds.min_offset, found.bounds.max_offset) == (0, 3)


@pytest.mark.parametrize(("offset", "code"), [(0, AT_END), (1, MOVED), (-1, MOVED)])
@run_by("serve")
async def test_in_an_empty_queue_a_consumer_waits_at_0_and_is_sent_there(stage, /, offset, code):
    client = await stage.client()
    await client.topic("T")
    found = await client.pull("T", offset)

    assert (found.code, found.next) == (code, 0)


@run_by("serve")
async def test_deleted_messages_are_behind_and_where_to_go_on_is_told(stage, /):
    client = await stage.client()
    await client.fill("T", 3)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
    await client.topic("T")
    await client.send("T", b"new")

    moved = await client.pull("T", 0)
    assert (moved.code, moved.next, moved.bounds.min_offset) == (MOVED, 3, 3)
    assert (await client.pull("T", 3)).bodies == [b"new"]


@run_by("serve")
async def test_a_pull_gets_no_more_than_it_asks_for(stage, /):
    client = await stage.client()
    await client.fill("T", 40)

    assert len((await client.pull("T", count=5)).bodies) == 5
    assert len((await client.pull("T", count=1000)).bodies) == 32
    assert len((await client.pull("T", max_msg_bytes=1)).bodies) == 1


# What is looked at first, in this order


@run_by("serve", with_topics(auto_create_groups=False))
async def test_a_group_that_may_not_be_made_by_pulling_is_unknown(stage, /):
    client = await stage.client()
    await client.topic("T")

    assert (await client.pull("T")).code == NO_GROUP


@run_by("serve")
async def test_a_group_may_be_kept_from_consuming(stage, /):
    client = await stage.client()
    config = GroupConfig("group", consume_enable=False)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.write())

    assert (await client.pull("no such topic")).code == NO_PERMISSION


@run_by("serve")
async def test_an_unknown_topic_is_not_made_by_pulling(stage, /):
    client = await stage.client()

    assert (await client.pull("T")).code == NO_TOPIC


@run_by("serve")
async def test_a_topic_may_be_closed_for_reading(stage, /):
    client = await stage.client()
    await client.topic("T", perm=2)

    assert (await client.pull("T", queue=9)).code == NO_PERMISSION


@pytest.mark.parametrize("number", [-1, 2, 99])
@run_by("serve")
async def test_only_queues_that_can_be_read_can_be_pulled(stage, /, number):
    client = await stage.client()
    await client.topic("T", 2, write=4)

    assert (await client.pull("T", queue=number, tags=None)).code == ERROR


@run_by("serve")
async def test_without_its_own_subscription_a_pull_needs_its_group_online(stage, /):
    client = await stage.client()
    await client.topic("T")

    assert (await client.pull("T", tags=None)).code == NO_SUBSCRIPTION


@run_by("serve")
async def test_a_group_may_be_kept_from_broadcasting(stage, /):
    client = await stage.client()
    await client.topic("T")
    config = GroupConfig("group", consume_broadcast_enable=False)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.write())
    await client.beat(consumer("group", "T", model="BROADCASTING"))
    assert (await client.pull("T", tags=None)).code == NO_PERMISSION
    await client.beat(consumer("group", "T"))
    assert (await client.pull("T", tags=None)).code == AT_END


@run_by("serve")
async def test_a_topic_that_the_group_does_not_subscribe_to_is_not_given(stage, /):
    client = await stage.client()
    await client.topic("T")
    await client.beat(consumer("group", "U"))

    assert (await client.pull("T", tags=None)).code == NO_SUBSCRIPTION


@pytest.mark.parametrize(("version", "code"), [(0, AT_END), (1, AT_END), (2, OLD_SUBSCRIPTION)])
@run_by("serve")
async def test_a_subscription_older_than_the_pulls_is_not_used(stage, /, version, code):
    client = await stage.client()
    await client.topic("T")
    await client.beat(consumer("group", "T"))

    assert (await client.pull("T", tags=None, version=version)).code == code


# Tags


async def tagged(client, *tags):
    for tag in tags:
        await client.send("T", tag.encode(), TAGS=tag)


@run_by("serve")
async def test_the_subscription_of_the_heartbeat_chooses(stage, /):
    client = await stage.client()
    await tagged(client, "A", "B", "C")
    await client.beat(consumer("group", T="A || C"))

    assert (await client.pull("T", tags=None)).bodies == [b"A", b"C"]


@run_by("serve")
async def test_the_subscription_of_the_pull_goes_before(stage, /):
    client = await stage.client()
    await tagged(client, "A", "B")
    await client.beat(consumer("group", T="A"))

    assert (await client.pull("T", tags="B")).bodies == [b"B"]


@run_by("serve")
async def test_where_nothing_matches_the_place_moves_on(stage, /):
    client = await stage.client()
    await tagged(client, "A", "B")
    found = await client.pull("T", tags="X", hold_ms=10_000)

    assert (found.code, found.next, found.remark) == (NO_MATCH, 2, "NO_MATCHED_MESSAGE")


# Offsets told along the way


@run_by("serve")
async def test_a_pull_tells_how_far_its_group_has_come(stage, /):
    client = await stage.client()
    await client.fill("T", 3)
    await client.pull("T", 99, commit=2)
    assert await client.committed("group", "T") == 2
    await client.pull("T", 0)
    assert await client.committed("group", "T") == 2


@pytest.mark.parametrize(("topic", "commit"), [("T", -1), ("unknown", 5)])
@run_by("serve")
async def test_an_offset_that_cannot_be_is_not_kept(stage, /, topic, commit):
    client = await stage.client()
    await client.topic("T")
    await client.pull(topic, commit=commit)

    assert stage.broker.offsets.get("group", topic, 0) is None


# Holding


@run_by(in_world)
async def test_a_pull_at_the_end_is_held_until_its_time_is_over(stage, /):
    client = await stage.client()
    await client.fill("T", 2)
    began = stage.world.now()
    found = await client.pull("T", 2, hold_ms=15_000)

    assert (found.code, found.next) == (AT_END, 2)
    assert 15.0 <= stage.world.now() - began < 15.1


@pytest.mark.parametrize("given", [{}, {"flags": PullFlag.SUSPEND}])
@run_by(in_world)
async def test_a_pull_that_may_not_wait_does_not(stage, /, given):
    client = await stage.client()
    await client.topic("T")
    began = stage.world.now()

    assert (await client.pull("T", **given)).code == AT_END
    assert stage.world.now() - began < 0.1


@run_by(in_world, replace(SETTINGS, hold_max=Duration(3.0)))
async def test_no_pull_is_held_longer_than_the_broker_allows(stage, /):
    client = await stage.client()
    await client.topic("T")
    began = stage.world.now()

    assert (await client.pull("T", hold_ms=3_600_000)).code == AT_END
    assert 3.0 <= stage.world.now() - began < 3.1


@run_by(in_world)
async def test_a_shorter_wait_that_begins_later_ends_first(stage, /):
    client = await stage.client()
    await client.topic("T", 2)
    long = client.asking(PULL, pulling("T", hold_ms=20_000))
    began = stage.world.now()
    assert (await client.pull("T", queue=1, hold_ms=2_000)).code == AT_END
    assert stage.world.now() - began < 2.1
    assert (await long).code == AT_END
    assert stage.world.now() - began < 20.1


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_message_that_arrives_wakes_who_waits_for_it(flush, kind):
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
async def test_everybody_who_waits_at_a_queue_is_woken(stage, /):
    clients = await stage.clients(5)
    await clients[0].topic("T")
    held = [each.asking(PULL, pulling("T", group=each.name, hold_ms=15_000)) for each in clients]
    await asyncio.gather(*[each.max_offset("T") for each in clients])
    assert stage.broker._pulls.held == 5
    await clients[0].send("T", b"news")

    for answer in await asyncio.gather(*held):
        assert pulled(answer).bodies == [b"news"]
    assert stage.broker._pulls.held == 0


@run_by(in_world)
async def test_a_message_for_others_lets_who_waits_go_on_waiting_behind_it(stage, /):
    client = await stage.client()
    await client.topic("T")
    held = client.asking(PULL, pulling("T", tags="A", hold_ms=15_000))
    await tagged(client, "B", "C")
    assert not held.done()
    assert stage.broker._pulls.held == 1
    await tagged(client, "A")

    found = pulled(await held)
    assert (found.bodies, found.next) == ([b"A"], 3)


@run_by(in_world)
async def test_who_waits_in_vain_is_told_how_far_it_has_come_meanwhile(stage, /):
    client = await stage.client()
    await client.topic("T")
    held = client.asking(PULL, pulling("T", tags="A", hold_ms=15_000))
    await tagged(client, "B", "C")

    found = pulled(await held)
    assert (found.code, found.next) == (AT_END, 2)


@run_by(in_world)
async def test_more_messages_for_others_than_one_look_takes_in_end_the_wait(stage, /):
    """Behind them may be one for this consumer, and no further arrival will wake it for that."""
    client = await stage.client()
    await client.topic("T")
    held = client.asking(PULL, pulling("T", tags="A", hold_ms=15_000))
    await client.max_offset("T")
    began = stage.world.now()
    many = batch_of(*[b"x"] * (PULL_SCAN_MAX + 10), TAGS="B")
    await client.ok(RequestCode.SEND_BATCH_MESSAGE, batching("T"), body=many)

    found = pulled(await held)
    assert (found.code, found.next) == (NO_MATCH, PULL_SCAN_MAX)
    assert stage.world.now() - began < 1.0


@run_by(in_world)
async def test_being_woken_does_not_make_the_wait_longer(stage, /):
    client = await stage.client()
    await client.topic("T")
    began = stage.world.now()
    held = client.asking(PULL, pulling("T", tags="A", hold_ms=5_000))
    for _ in range(4):
        await stage.passes(1.0)
        await tagged(client, "B")

    assert (await held).code == AT_END
    assert stage.world.now() - began < 5.1


@run_by(in_world)
async def test_the_offset_of_a_held_pull_is_kept_once(stage, /):
    client = await stage.client()
    await client.fill("T", 2)
    held = client.asking(PULL, pulling("T", 2, commit=1, hold_ms=5_000))
    await client.commit("group", "T", 0, 2)

    assert (await held).code == AT_END
    assert await client.committed("group", "T") == 2


@run_by(in_world)
async def test_a_pull_of_somebody_who_has_gone_is_let_go(stage, /):
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


@run_by("serve")
async def test_a_broker_that_stops_lets_everybody_go(stage, /):
    client = await stage.client()
    await client.topic("T")
    held = client.asking(PULL, pulling("T", hold_ms=15_000))
    await client.max_offset("T")
    await stage.broker.stop()

    assert (await held).code == AT_END


@run_by("serve")
async def test_when_too_many_wait_one_more_is_answered_at_once(stage, /):
    client = await stage.client()
    await client.topic("T")
    stage.broker._pulls._holds._limit = 0

    assert (await client.pull("T", hold_ms=15_000)).code == AT_END


@run_by("serve")
async def test_a_one_way_pull_is_neither_held_nor_answered(stage, /):
    client = await stage.client()
    await client.topic("T")

    assert await client.is_silent(PULL, pulling("T", hold_ms=15_000), oneway=True)
    assert stage.broker._pulls.held == 0


@run_by(in_world)
async def test_damage_is_told_to_who_pulls_and_to_who_waits_and_to_nobody_else(stage, /):
    client = await stage.client()
    await client.topic("T")
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


@run_by("serve")
async def test_what_is_given_is_counted(stage, /):
    client = await stage.client()
    await client.fill("T", 3)
    found = await client.pull("T")
    await client.pull("T", 3)

    counted = stage.broker.statistics
    size = sum(len(each) for each in [found.answer.body])
    assert counted.meter("GROUP_GET_NUMS", "T@group").total == 3
    assert counted.meter("GROUP_GET_SIZE", "T@group").total == size
    assert counted.meter("BROKER_GET_NUMS", "").total == 3
    assert counted.meter("PULLS_FOUND", "").total == 1
    assert counted.meter("PULLS_MISSED", "").total == 1


@run_by("serve")
async def test_a_header_that_is_none_is_answered(stage, /):
    client = await stage.client()

    assert await client.code_of(PULL, sending("T")) == ERROR
