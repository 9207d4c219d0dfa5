"""Consumers at a follower, in virtual time: they see only what no fail-over can cut."""

import asyncio

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import consumer, pulled, pulling, sending
from tests.unit.handlers.transaction_stage import COMMIT, end, prepare
from tests.unit.replication.set_stage import in_set
from txmq.errors import ReplicaTimeout
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    GroupHeader,
    MessageQuery,
    OffsetCommit,
    TopicHeader,
    TopicSettings,
)
from txmq_broker.replication.log_copy import LogCopy

PULL = RequestCode.PULL_MESSAGE


async def led(stage, *followers, **copies):
    """A leader with the topic T, its client, and followers that have it all."""
    await stage.first.lead(**{"role": "leader", "mode": "sync", "reads": True} | copies)
    client = await stage.first.client()
    await client.topic("T", 1)
    for follower in followers:
        follower.serve_reads()
    assert await client.code_of(RequestCode.SEND_MESSAGE, sending("T"), body=b"first") in {0, 11}
    await stage.caught_up(*followers)
    await asyncio.sleep(1)
    return client


@run_by(in_set)
async def test_a_follower_shows_only_messages_that_all_in_sync_members_have(stage, /):
    """No member shows a message that only some of them have."""
    second, third = stage.second, stage.third
    client = await led(stage, second, third, mode="sync", lag_max=30.0, wait_max=30.0)
    reader = await second.client()
    assert (await reader.pull("T")).bodies == [b"first"]

    held = reader.asking(PULL, pulling("T", 1, hold_ms=15_000))
    stage.world.network.partition(third.name, stage.first.name)
    sent = client.asking(RequestCode.SEND_MESSAGE, sending("T"), body=b"on two")
    await asyncio.sleep(3)
    assert second.follower.status.durable == stage.first.end
    assert (sent.done(), held.done()) == (False, False)
    assert await reader.max_offset("T") == 1
    stage.world.network.heal(third.name, stage.first.name)

    assert (await sent).code == 0
    assert pulled(await held).bodies == [b"on two"]


@run_by(in_set)
async def test_a_send_with_a_silent_follower_is_answered_before_stock_clients_time_out(stage, /):
    """Stock clients wait 3 s for an answer."""
    client = await led(stage, stage.second, mode="sync")
    stage.world.network.partition(stage.second.name, stage.first.name)
    began = stage.world.now()

    answer = await client.ask(RequestCode.SEND_MESSAGE, sending("T"), body=b"alone")

    assert answer.code == ReplicaTimeout.code
    assert 2.0 <= stage.world.now() - began < 2.6


@run_by(in_set)
async def test_writes_to_a_follower_are_refused_and_nothing_is_stored(stage, /):
    second = stage.second
    await led(stage, second)
    before = second.log_files()
    client = await second.client()

    commit = OffsetCommit("group", "T", 0, 1)
    assert await client.code_of(RequestCode.UPDATE_CONSUMER_OFFSET, commit) == 14
    for code in (RequestCode.SEND_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK):
        refused = await client.ask(code, sending("T"), body=b"lost")
        assert refused.code == 14, refused.remark
        assert "nothing was stored" in refused.remark
    half = sending("T", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="U")
    half.sys_flag = 4
    assert await client.code_of(RequestCode.SEND_MESSAGE, half, body=b"half") == 14
    settings = TopicSettings("New", "TBW102", 1, 1, 6)
    refused = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, settings)
    assert (refused.code, "ask the leader" in refused.remark) == (1, True)
    assert await client.code_of(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T")) == 1
    await asyncio.sleep(1)
    assert second.log_files() == before
    assert await client.code_of(RequestCode.GET_TOPIC_CONFIG, TopicHeader("New")) == 17
    assert (await client.pull("T")).bodies == [b"first"]


@run_by(in_set)
async def test_a_follower_answers_queries_as_its_leader_does(stage, /):
    """Keys, offsets and topics; a half message is visible once it is committed."""
    second = stage.second
    client = await led(stage, second)
    await client.beat(consumer("group", "T"))
    await client.send("T", b"by key", KEYS="needle")
    committed = await prepare(client, unique="committed", body=b"committed")
    await prepare(client, unique="open", body=b"open")
    assert await end(client, committed, COMMIT) == 0
    await client.commit("group", "T", 0, 2)
    await asyncio.sleep(2)

    reader = await second.client()
    await reader.beat(consumer("group", "T"))
    assert (await reader.pull("T")).bodies == [b"first", b"by key", b"committed"]
    assert await reader.committed("group", "T") == 2
    key = MessageQuery("T", "needle", 32, 0, 1 << 60)
    found = await reader.ok(RequestCode.QUERY_MESSAGE, key)
    assert found.body == (await client.ok(RequestCode.QUERY_MESSAGE, key)).body
    assert await reader.code_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader("group")) == 0
    # The follower hides the messages of a deleted topic, although it still has them.
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
    await client.topic("T", 1)
    await client.send("T", b"new")
    await asyncio.sleep(2)
    assert (await reader.pull("T", 3)).bodies == [b"new"]
    assert (await reader.pull("T", 0)).bounds.min_offset == 3


@pytest.mark.parametrize("far_behind", [0.0, 0.5])
@run_by(in_set)
async def test_a_consumer_far_behind_is_sent_to_a_follower_and_later_to_the_leader(
    stage, /, far_behind
):
    second = stage.second
    client = await led(stage, second, far_behind=far_behind)
    for number in range(3):
        await client.send("T", b"%d" % number)
    await asyncio.sleep(1)

    async def suggested(offset):
        found = await client.pull("T", offset, count=1)
        return found.bounds.suggest_which_broker_id

    assert [await suggested(offset) for offset in (0, 2, 3)] == [int(not far_behind)] * 2 + [0]
    await second.kill()
    await asyncio.sleep(5)
    assert await suggested(0) == 0
    second.serve_reads(far_behind=far_behind)
    await stage.caught_up(second)
    await asyncio.sleep(1)
    client = await second.client()
    assert [await suggested(offset) for offset in (0, 2, 3)] == [int(not far_behind)] * 2 + [0]


@run_by(in_set)
async def test_a_follower_with_reads_off_sends_consumers_to_the_leader(stage, /):
    await led(stage)
    stage.second.serve_reads(reads=False)
    await stage.caught_up(stage.second)
    reader = await stage.second.client()
    await reader.beat(consumer("group", "T"))

    began = stage.world.now()
    found = await reader.pull("T", 7, hold_ms=15_000)
    assert (found.code, found.next, found.bounds.suggest_which_broker_id) == (20, 7, 0)
    assert 0.9 < stage.world.now() - began < 2
    query = MessageQuery("T", "needle", 32, 0, 1 << 60)
    assert await reader.code_of(RequestCode.QUERY_MESSAGE, query) == 14


@run_by(in_set)
async def test_a_restarted_follower_serves_no_reads_before_its_leader_confirms_it(stage, /):
    """It may have unacknowledged messages; a consumer ahead of it keeps its offset."""
    second = stage.second
    client = await led(stage, second)
    await second.stop()
    leader, stage.leader = stage.leader, None
    second.serve_reads()
    await asyncio.sleep(1)
    reader = await second.client()
    assert (await reader.pull("T")).code == 20

    stage.leader = leader
    await stage.caught_up(second)
    await asyncio.sleep(1)
    assert (await reader.pull("T")).bodies == [b"first"]
    held = reader.asking(PULL, pulling("T", 2, hold_ms=15_000))
    await client.send("T", b"second")
    await asyncio.sleep(1)
    assert not held.done()
    await client.send("T", b"third")
    assert pulled(await held).bodies == [b"third"]
    # A pull held here without a leader is answered when the follower stops.
    await stage.first.kill()
    assert (await reader.pull("T", 1)).bodies == [b"second", b"third"]
    held = reader.asking(PULL, pulling("T", 3, hold_ms=15_000))
    await asyncio.sleep(1)
    await second.stop()
    assert pulled(await held).code == 19


@run_by(in_set)
async def test_a_new_follower_serves_no_group_before_it_has_its_offsets(stage, /):
    """Without its offset a group would start over, or at the end."""
    second = stage.second
    client = await led(stage, mode="async")
    await client.beat(consumer("group", "T"))
    for _ in range(50):
        await client.send("T", b"." * 2000)
    await client.commit("group", "T", 0, 7)
    stage.world.network.partition(second.name, stage.first.name)
    second.serve_reads()
    await asyncio.sleep(0.1)
    reader = await second.client()
    stage.world.network.heal(second.name, stage.first.name)

    async with asyncio.timeout(60):
        while (found := await reader.committed("group", "T", zero=False)) == -14:
            await asyncio.sleep(0.001)
    assert found == 7


@run_by(in_set)
async def test_sends_are_answered_while_a_follower_merges_its_topics_file(stage, /, monkeypatch):
    is_over = asyncio.Event()
    begun = []

    async def merge(_copy):
        begun.append(stage.second.name)
        await is_over.wait()

    monkeypatch.setattr(LogCopy, "merge_topics", merge)
    client = await led(stage, stage.second)
    for name in ("A", "B"):
        await client.topic(name)
        await asyncio.sleep(2)
    assert begun == [stage.second.name]

    sent = client.asking(RequestCode.SEND_MESSAGE, sending("T"), body=b"meanwhile")
    await asyncio.sleep(1)

    assert (sent.done(), len(begun)) == (True, 1)
    assert sent.result().code == 0
    is_over.set()
