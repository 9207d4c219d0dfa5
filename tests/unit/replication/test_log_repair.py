"""Damaged copies in virtual time are found, leave the in-sync set, and are repaired."""

import asyncio
import logging

import pytest

from tests.running import run_by
from tests.unit.replication.set_stage import in_set
from tests.unit.replication.test_follower import fill
from txmq.protocol.copies import FollowerEntry
from txmq.protocol.span import HEAD_BYTES, heads_in
from txmq_broker.replication import log_shipper
from txmq_broker.services.keeper import Keeper


async def until(condition, within=60):
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.05)


def heads(disk, path):
    """The heads of the spans of a file of the log."""
    file = disk.open(path)
    data = file.read(0, file.size())
    file.close()
    start = int(path.removeprefix("log/").partition(".")[0])
    return list(heads_in(data, start)), start


def place_of(member, file=0, span=1, inside=HEAD_BYTES + 10):
    """The path of one of a member's files, and the place of a byte of one of its spans."""
    path = f"log/{list(member.log_files())[file]}"
    found, start = heads(member.disk, path)
    return path, found[span].position - start + inside


def flip(member, file=0, span=1, inside=HEAD_BYTES + 10):
    """Flip a bit of a span of one of a member's files; the position of the span."""
    path, place = place_of(member, file, span, inside)
    member.disk.flip_bit(path, place)
    return int(path.removeprefix("log/").partition(".")[0]) + place - inside


async def copied(stage, count=100):
    """Let the second member follow the first over several log files; return a client."""
    client = await stage.copied()
    await fill(client, 0, count)
    await stage.caught_up(stage.second)
    assert len(stage.first.log_files()) > 2
    return client


def entry(stage, member="m2"):
    """What the leader knows about a follower."""
    found = stage.first.broker.parts.show_copies().followers
    unknown = FollowerEntry(member, "", is_in_sync=False)
    return next((follower for follower in found if follower.member == member), unknown)


@pytest.mark.parametrize(
    ("file", "span", "inside"),
    [
        pytest.param(0, 1, HEAD_BYTES + 10, id="a body in a closed file"),
        pytest.param(0, 0, HEAD_BYTES + 10, id="the first span of a file"),
        pytest.param(1, 1, 3, id="the length in a head"),
        pytest.param(1, -1, 20, id="the head of the last span of a file"),
        pytest.param(-1, 1, HEAD_BYTES + 10, id="the newest file, while the follower is stopped"),
    ],
)
def test_a_flipped_bit_in_a_follower_is_found_and_repaired(file, span, inside, caplog):
    async def main(stage):
        await copied(stage)
        if file == -1:
            await stage.second.stop()
        position = flip(stage.second, file, span, inside)
        assert stage.second.log_files() != stage.first.log_files()
        if file == -1:
            stage.second.follow()

        await until(lambda: entry(stage).damaged_parts)
        assert not entry(stage).is_in_sync
        await until(lambda: entry(stage).is_in_sync)
        assert entry(stage).damaged_parts == 0

        assert stage.second.log_files() == stage.first.log_files()
        (kept,) = stage.second.disk.names("cut")
        assert kept.startswith(f"{position}-")
        found = [line for line in caplog.messages if f"damaged from position {position} " in line]
        assert len(found) == 1
        assert any(
            f"from position {position} " in line and "was repaired" in line
            for line in caplog.messages
        )

    caplog.set_level(logging.INFO)
    in_set(main)


@run_by(in_set)
async def test_several_damaged_places_in_a_follower_are_repaired(stage, /):
    await copied(stage, 150)
    flip(stage.second, 0, 2)
    flip(stage.second, 1, 1, 3)
    flip(stage.second, 1, -1)
    await until(lambda: entry(stage).damaged_parts)
    await until(lambda: entry(stage).is_in_sync)
    assert stage.second.log_files() == stage.first.log_files()
    assert len(stage.second.disk.names("cut")) == 3


@run_by(in_set)
async def test_a_part_also_damaged_at_the_leader_is_repaired_from_the_next_leader(stage, /, caplog):
    client = await copied(stage)
    stage.third.follow()
    await stage.caught_up(stage.third)
    flip(stage.second)
    flip(stage.first)
    await until(lambda: stage.first.broker.parts.verifier.damaged)
    await asyncio.sleep(20)
    assert not entry(stage).is_in_sync
    refusals = [line for line in caplog.messages if "is not repaired yet" in line]
    assert any("what this leader has there differs" in line for line in refusals)
    assert len(refusals) < 4

    await fill(client, 100, 5)
    await stage.caught_up(stage.second, stage.third)
    await stage.first.kill()
    await stage.third.stop()
    await stage.third.lead(2)
    await until(lambda: not stage.second.follower.copy.damaged)
    stage.first.follow()
    await until(
        lambda: stage.first.follower.verifier.rounds and not stage.first.follower.copy.is_out
    )
    assert stage.first.log_files() == stage.second.log_files() == stage.third.log_files()
    found = await stage.third.client()
    counts = [len((await found.pull("T", 0, queue=queue)).bodies) for queue in range(4)]
    assert sum(counts) == 106


@run_by(in_set)
async def test_a_damaged_leader_reports_the_damage_and_a_wiped_follower_catches_up(
    stage, /, caplog
):
    await copied(stage)
    stage.third.follow()
    await stage.second.stop()
    position = flip(stage.first, 1)
    await until(lambda: stage.first.broker.parts.verifier.damaged)
    assert any(f"the log is damaged from position {position} " in line for line in caplog.messages)

    await until(lambda: stage.third.follower.status.position in {position, stage.first.end})
    stage.second.follow()
    await stage.caught_up(stage.second)


@pytest.mark.parametrize("is_killed", [True, False])
@run_by(in_set)
async def test_known_damage_survives_a_restart_before_the_repair(stage, /, is_killed):
    await copied(stage)
    stage.leader = None
    await stage.first.kill()
    position = flip(stage.second)
    await until(lambda: stage.second.follower.copy.damaged)
    await (stage.second.kill() if is_killed else stage.second.stop())
    assert [start for start, _ in Keeper(stage.second.disk).copy_state().damaged] == [position]

    await stage.first.lead(2)
    stage.second.follow()
    await until(lambda: entry(stage).is_in_sync)
    assert Keeper(stage.second.disk).copy_state().damaged == []
    assert stage.second.log_files() == stage.first.log_files()


@pytest.mark.parametrize("number", range(8))
def test_a_repair_killed_at_any_step_is_repeated(number):
    async def main(stage):
        await copied(stage)
        second, left = stage.second, number

        def count(event):
            nonlocal left
            left -= 1
            if left < 0:
                second.disk.on_write = None
                second.machine.kill()

        second.disk.on_write = count
        flip(second, 0, 3)
        await until(
            lambda: left < 0 or second.disk.names("cut") and not second.follower.copy.damaged
        )
        second.disk.on_write = None
        await second.kill()
        second.follow()
        await until(lambda: entry(stage).is_in_sync and second.follower.verifier.rounds > 1)

        assert second.log_files() == stage.first.log_files()
        assert not second.follower.copy.damaged

    in_set(main)


@run_by(in_set)
async def test_a_broker_without_copies_logs_damage_once_and_when_it_is_gone(stage, /, caplog):
    await stage.first.lead()
    client = await stage.first.client()
    await client.topic("T", 4)
    await fill(client, 0, 60)
    verifier = stage.first.broker.parts.verifier
    flip(stage.first, 0, 2)
    await until(lambda: verifier.damaged)
    await asyncio.sleep(60)
    assert len([line for line in caplog.messages if "the log is damaged" in line]) == 1
    assert verifier.rounds > 3

    flip(stage.first, 0, 2)
    await until(lambda: not verifier.damaged)
    assert any("the log is whole again" in line for line in caplog.messages)
    await fill(client, 60, 1)


@pytest.mark.parametrize("left", [0, 1500, 40_000])
@run_by(in_set)
async def test_a_truncated_closed_file_gets_its_end_back_in_parts(stage, /, left, monkeypatch):
    monkeypatch.setattr(log_shipper, "_SHIPPED_AT_ONCE", 5000)

    await copied(stage)
    (_, path, *_) = stage.second.disk.names("log")
    file = stage.second.disk.open(f"log/{path}")
    file.truncate(left)
    file.close()
    await until(lambda: stage.second.disk.names("cut") and entry(stage).is_in_sync)
    assert stage.second.log_files() == stage.first.log_files()


@run_by(in_set)
async def test_a_copy_with_an_unreadable_part_is_out_of_sync_until_it_can_be_read(stage, /):
    await copied(stage)
    path = f"log/{stage.second.disk.names('log')[0]}"
    stage.second.disk.make_unreadable(path, 10_000)
    await until(lambda: entry(stage).damaged_parts)
    await asyncio.sleep(30)
    assert not entry(stage).is_in_sync
    assert entry(stage).bytes_behind == 0
    assert stage.first.broker.parts.figures()["bytes_not_copied"] == 0
    assert len(stage.second.disk.names("cut")) <= len(stage.second.follower.copy.damaged)

    stage.second.disk.repair()
    await until(lambda: entry(stage).is_in_sync)
    assert stage.second.log_files() == stage.first.log_files()
