"""Leaders and followers in virtual time: who follows whom, and what a promoted follower has."""

import asyncio
import logging

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import consumer
from tests.unit.handlers.transaction_stage import COMMIT, ROLLBACK, end, prepare
from tests.unit.replication.set_stage import in_set
from txmq.errors import ConfigError, ForeignFile, SyncFailed
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import MessageQuery, TopicHeader
from txmq.testing import SeededEntropy
from txmq.testing.pages import Loss
from txmq_broker.store.log.proof import proof_of


async def fill(client, first=0, count=20, topic="T", size=2000):
    for number in range(first, first + count):
        await client.send(topic, b"%d " % number + b"." * size, queue=number % 4)


async def bodies(client, topic="T"):
    """The numbers of all messages of a topic, by queue."""
    found = []
    for queue in range(4):
        offset = -1
        while (pulled := await client.pull(topic, max(offset, 0), queue=queue)).next > offset:
            found += [int(body.split()[0]) for body in pulled.bodies]
            offset = pulled.next
    return sorted(found)


@run_by(in_set)
async def test_a_process_may_follow_lead_and_follow_again_in_one_directory(stage, /):
    await stage.first.lead()
    stage.second.follow()
    client = await stage.first.client()
    await client.topic("T", 4)
    await fill(client, 0, 100)
    await stage.caught_up(stage.second)
    assert len(stage.first.log_files()) > 2
    assert stage.second.log_files() == stage.first.log_files()

    for epoch in (2, 3, 4):
        leader, follower = stage.first, stage.second
        await follower.stop()
        await leader.kill()
        await follower.lead(epoch)
        leader.follow()
        client = await follower.client()
        await fill(client, 100 * epoch, 50)
        await stage.caught_up(leader)
        assert leader.log_files() == follower.log_files()
        stage.first, stage.second = follower, leader
    expected = [*range(100), *range(200, 250), *range(300, 350), *range(400, 450)]
    assert await bodies(client) == expected


@run_by(in_set)
async def test_a_follower_ignores_the_leader_of_an_older_epoch(stage, /):
    first, second, third = stage.first, stage.second, stage.third
    await first.lead()
    second.follow()
    third.follow()
    client = await first.client()
    await client.topic("T", 4)
    await fill(client)
    await stage.caught_up(second, third)
    await second.stop()
    await second.lead(epoch=2)
    third.follower.look_again()
    await asyncio.sleep(1)
    await stage.caught_up(third)
    assert third.follower.status.epoch == 2
    # The old leader, and whoever names it as the leader, do not know of the new epoch.
    await fill(client)
    stage.leader = first, 0
    third.follower.look_again()
    await asyncio.sleep(5)

    status = third.follower.status
    assert "epoch 2" in status.failure
    assert third.log_files() == second.log_files() != first.log_files()
    await third.stop()
    third.follow()
    await asyncio.sleep(5)
    assert third.follower.status.failure == status.failure
    stage.leader = second, 2
    await fill(await second.client(), 100)
    await stage.caught_up(third)
    assert third.log_files() == second.log_files()


@run_by(in_set)
async def test_a_promoted_follower_goes_on_with_everything_its_leader_had(stage, /):
    """Topics, groups, offsets, keys, delays, and halves: decided, undecided, and checked back."""
    first, second = stage.first, stage.second
    await first.lead()
    second.follow()
    client = await first.client()
    await client.topic("T", 4)
    await fill(client, 0, 60)
    await client.send("T", b"by key", KEYS="needle", UNIQ_KEY="U-needle")
    await client.beat(consumer("group", "T"))
    committed = await prepare(client, unique="committed", body=b"committed")
    open_half = await prepare(client, unique="open", body=b"open")
    rolled_back = await prepare(client, unique="rolled back")
    asked = await prepare(client, unique="asked", body=b"asked")
    assert await end(client, committed, COMMIT) == 0
    assert await end(client, rolled_back, ROLLBACK) == 0
    await client.send("T", b"later", queue=1, DELAY="3")
    await client.commit("group", "T", 0, 7)
    await stage.caught_up(second)
    await asyncio.sleep(2.1)
    await client.commit("group", "T", 0, 9)
    await asyncio.sleep(2.1)
    seen = {queue: await client.max_offset("T", queue) for queue in range(4)}
    await first.kill()
    await second.stop()
    await second.lead(epoch=2)
    client = await second.client()

    assert {queue: await client.max_offset("T", queue) for queue in range(4)} == seen
    assert await client.committed("group", "T") == 9
    assert await end(client, open_half, COMMIT) == 0
    await client.beat(producers=["P"])
    await asyncio.sleep(8)
    request = client.inbox.get_nowait()
    assert request.field_map()["transactionId"] == "asked"
    assert await end(client, asked, COMMIT) == 0
    found = []
    for queue in range(4):
        offset = 0
        while (pulled := await client.pull("T", offset, queue=queue)).records:
            found += pulled.bodies
            offset = pulled.next
    words = [body for body in found if b"." not in body]
    assert sorted(words) == [b"asked", b"by key", b"committed", b"later", b"open"]
    query = await client.ask(RequestCode.QUERY_MESSAGE, MessageQuery("T", "needle", 32, 0, 1 << 60))
    assert b"by key" in query.body
    first.follow()
    await stage.caught_up(first)
    assert first.log_files() == second.log_files()


@run_by(in_set)
async def test_spans_larger_than_a_usual_answer_are_copied(stage, /):
    await stage.first.lead()
    client = await stage.first.client()
    await client.topic("T", 4)
    bodies = [bytes([number]) * 1_000_000 for number in range(3)]
    for _ in range(3):
        await asyncio.gather(*[client.send("T", body) for body in bodies])
    stage.second.follow()
    await stage.caught_up(stage.second)
    await asyncio.gather(*[client.send("T", body) for body in bodies])
    await stage.caught_up(stage.second)
    assert stage.second.log_files() == stage.first.log_files()


@run_by(in_set)
async def test_following_with_the_directory_of_another_log_is_refused(stage, /):
    await stage.second.lead()
    await stage.second.stop()
    await stage.first.lead()
    stage.second.follow()

    error = await stage.second.ended()

    assert isinstance(error, ForeignFile)
    stage.second.follower = None


def test_a_full_disk_is_logged_once_and_copying_resumes_when_there_is_room(caplog):
    async def main(stage):
        first, second = stage.first, stage.second
        await first.lead()
        second.follow()
        client = await first.client()
        await client.topic("T", 4)
        await fill(client)
        await stage.caught_up(second)
        second.disk.capacity = second.disk.space().used + 10_000
        caplog.clear()
        await fill(client, 100)
        await asyncio.sleep(30)

        (line,) = [
            record.getMessage() for record in caplog.records if "not following" in record.msg
        ]
        assert line.startswith("not following: the disk is full")
        assert "disk is full" in second.follower.status.failure
        second.disk.capacity = None
        await stage.caught_up(second)
        assert second.log_files() == first.log_files()

    caplog.set_level(logging.INFO)
    in_set(main)


class DamagedAccounts:
    """Accounts of a leader that this member cannot read."""

    async def take(self, texts, before):
        raise ConfigError("plain_acl.yml: line 3 is not YAML")

    async def restore(self):
        """Nothing was accepted."""


def test_accounts_that_cannot_be_read_are_logged_once(caplog):
    async def main(stage):
        await stage.first.lead()
        stage.second.follow(DamagedAccounts())
        await asyncio.sleep(60)
        assert stage.second.follower.status.failure == "plain_acl.yml: line 3 is not YAML"

    caplog.set_level(logging.INFO)
    in_set(main)
    lines = [record.getMessage() for record in caplog.records if "following" in record.msg]
    assert lines == ["not following: plain_acl.yml: line 3 is not YAML; trying again"]


@run_by(in_set)
async def test_a_power_cut_after_the_first_copy_leaves_a_complete_copy(stage, /):
    await stage.copied()
    disk = stage.second.disk.clone()

    disk.crash(SeededEntropy(1), Loss.EVERYTHING)

    assert proof_of(disk).doubt == ""


@run_by(in_set)
async def test_a_failed_sync_ends_the_follower_and_a_restart_continues(stage, /):
    first, second = stage.first, stage.second
    await first.lead()
    second.follow()
    client = await first.client()
    await client.topic("T", 4)
    await fill(client)
    await stage.caught_up(second)
    second.disk.fail_next_sync()
    await fill(client)

    assert isinstance(await second.ended(), SyncFailed)
    second.follow()
    await stage.caught_up(second)
    assert second.log_files() == first.log_files()


@run_by(in_set)
async def test_a_span_that_is_damaged_at_the_leader_is_never_copied(stage, /):
    first, second = stage.first, stage.second
    await first.lead()
    client = await first.client()
    await client.topic("T", 4)
    await fill(client)
    path = f"log/{next(reversed(first.log_files()))}"
    first.disk.flip_bit(path, 900)
    second.follow()
    await asyncio.sleep(10)
    assert "what this leader has there differs" in second.follower.status.failure

    first.disk.flip_bit(path, 900)
    await stage.caught_up(second)
    assert second.log_files() == first.log_files()


@pytest.mark.parametrize("is_killed", [True, False])
@run_by(in_set)
async def test_a_follower_restarted_repeatedly_has_its_leaders_log(stage, /, is_killed):
    first, second = stage.first, stage.second
    await first.lead()
    client = await first.client()
    await client.topic("T", 4)
    sending = asyncio.create_task(fill(client, 0, 300))
    while not sending.done():
        second.follow()
        await asyncio.sleep(stage.world.entropy.fraction() / 10)
        await (second.kill() if is_killed else second.stop())
    await sending
    second.follow()
    await stage.caught_up(second)
    assert second.log_files() == first.log_files()
    await second.stop()
    await first.stop()
    await second.lead(epoch=1)
    assert await bodies(await second.client()) == list(range(300))


@run_by(in_set)
async def test_a_follower_reconnects_after_a_partition(stage, /):
    first, second = stage.first, stage.second
    await first.lead()
    second.follow()
    client = await first.client()
    await client.topic("T", 4)
    await fill(client)
    await stage.caught_up(second)
    stage.world.network.partition("m1", "m2")
    await fill(client, 100)
    await asyncio.sleep(30)
    assert second.follower.status.failure
    stage.world.network.heal()
    await stage.caught_up(second)
    assert second.log_files() == first.log_files()


@run_by(in_set)
async def test_followers_delete_the_files_their_leader_deleted_and_reuse_no_offset(stage, /):
    first, second, third = stage.first, stage.second, stage.third
    await first.lead()
    second.follow()
    client = await first.client()
    await client.topic("T", 4)
    await client.topic("Rare", 1)
    await client.send("Rare", b"once")
    await fill(client, 0, 200)
    await stage.caught_up(second)
    # The index of a file is saved a moment after it is complete.
    await asyncio.sleep(90)
    client = await first.client()
    await fill(client, 200, 50)
    await client.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
    start = first.broker.store.log.start
    assert start > 0
    await fill(client, 250, 1)
    await stage.caught_up(second)
    assert second.log_files() == first.log_files()
    # A third member joins where the leader's log begins now.
    third.follow()
    await stage.caught_up(third)
    assert third.log_files() == first.log_files()
    for heir in (second, third):
        await heir.stop()
    await first.kill()
    for epoch, heir in ((1, second), (2, third)):
        await heir.lead(epoch)
        client = await heir.client()
        assert (await client.send("Rare", b"again")).field_map()["queueOffset"] == "1"
        assert max(await bodies(client)) == 250
        await heir.kill()


@run_by(in_set)
async def test_created_and_deleted_topics_are_copied_from_the_leader(stage, /):
    first, second = stage.first, stage.second
    await first.lead()
    second.follow()
    client = await first.client()
    for name in ("Kept", "Gone", "Again"):
        await client.topic(name)
        await client.send(name, b"old")
    await stage.caught_up(second)
    for name in ("Gone", "Again"):
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(name))
    await client.topic("Again")
    await client.send("Again", b"new")
    await client.topic("Empty", 3)
    await stage.caught_up(second)
    # Changes of tables alone are known within the second that a request stays open.
    await asyncio.sleep(2)
    await first.kill()
    await second.stop()
    await second.lead(1)
    client = await second.client()

    topics = second.broker.topics.by_name
    assert {"Kept", "Again", "Empty"} <= set(topics)
    assert "Gone" not in topics
    assert topics["Empty"].config.read_queue_nums == 3
    assert (await client.pull("Kept")).bodies == [b"old"]
    assert (await client.pull("Again", 1)).bodies == [b"new"]
    assert (await client.pull("Again", 0)).bodies == []
