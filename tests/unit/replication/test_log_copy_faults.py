"""A copy whose machine, disk or leader fails: it stays a prefix of its leader's log."""

import asyncio
import errno

import pytest

from tests.unit.replication.copy_stage import (
    FollowedShelf,
    LeadingShelf,
    damage_in,
    in_virtual_time,
    log_of,
    promoted,
)
from tests.unit.replication.test_log_copy import assert_equal, busy
from txmq.errors import CorruptRecord, DiskFull, RemoteProtocolError, SyncFailed
from txmq.protocol.span import HEAD_BYTES, head
from txmq.testing import Loss, SeededEntropy
from txmq_broker.services.keeper import Keeper

pytestmark = pytest.mark.slow


def assert_beginning(disk, leader):
    """See that the files on a disk are a prefix of the leader's."""
    found, whole = log_of(disk), log_of(leader.disk)
    assert list(found) == list(whole)[: len(found)]
    for name in list(found)[:-1]:
        assert found[name] == whole[name]
    for name in list(found)[-1:]:
        assert whole[name].startswith(found[name])


async def lived(leader, points, *, is_lazy):
    """Copy a busy leader step by step; clone the disk before each operation on it."""
    copy = FollowedShelf(leader, is_lazy=is_lazy)
    copy.disk.on_write = lambda event: points.append(
        (event, copy.disk.clone(), copy.copy.durable if copy.copy.is_open else 0)
    )
    await copy.join()
    for part in range(4):
        busy(leader, 8 * part, 8)
        leader.offsets = {"T@G": {0: leader.store.queue("T", 0).max_offset}}
        await copy.follow(most=1500)
    copy.disk.on_write = None
    await copy.close()
    points.append((None, copy.disk, leader.store.log.end))


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("loss", [None, Loss.EVERYTHING, Loss.PAGES, Loss.TAIL, Loss.NOTHING])
@in_virtual_time
async def test_a_copy_killed_at_any_step_is_a_prefix_of_the_log_and_continues(loss, is_lazy):
    """Without a loss only the process is killed, as by ``kill -9``."""
    leader, points = LeadingShelf(), []
    await lived(leader, points, is_lazy=is_lazy)
    assert len(points) > 150

    for number, (event, disk, durable) in enumerate(points):
        try:
            if loss is not None:
                disk.crash(SeededEntropy(f"{number}"), loss)
            if disk.names("log") and number % 3 == 0:
                # As a member elected after all members lost their power.
                assert damage_in(disk.clone()) == []
                promoted(disk.clone(), leader.sizes).close()
            alone = FollowedShelf(leader, disk)
            await alone.close()
            assert_beginning(disk, leader)
            assert sum(map(len, log_of(disk).values())) >= durable, "it was noted as durable"
            if number % 5 == 0 or event is None:
                again = FollowedShelf(leader, disk)
                await again.join_and_follow()
                await again.close()
                assert log_of(disk) == log_of(leader.disk)
                shelf = promoted(disk, leader.sizes)
                assert shelf.everything() == leader.everything()
                shelf.close()
        except BaseException as error:
            error.add_note(f"before {event}")
            raise
    shelf = promoted(points[-1][1], leader.sizes)
    assert_equal(leader, shelf)
    shelf.close()


@pytest.mark.parametrize("room", [0, 50, 3000, 9000, 20_000, 40_000])
@in_virtual_time
async def test_a_full_disk_stops_a_copy_and_damages_nothing(room):
    leader = LeadingShelf()
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    busy(leader)
    copy.disk.capacity = copy.disk.space().used + room

    with pytest.raises((DiskFull, OSError)) as refused:
        await copy.follow(most=1500)
    assert getattr(refused.value, "errno", errno.ENOSPC) == errno.ENOSPC
    for _ in range(3):
        # It tries again, as a follower does.
        with pytest.raises((DiskFull, OSError)):
            await copy.join_and_follow(most=1500)
    assert_beginning(copy.disk, leader)

    looked = copy.disk.clone()
    looked.capacity = None
    shelf = promoted(looked, leader.sizes)
    shelf.close()
    copy.disk.capacity = None
    await copy.join_and_follow()
    await copy.close()
    assert log_of(copy.disk) == log_of(leader.disk)
    shelf = promoted(copy.disk, leader.sizes)
    assert_equal(leader, shelf)
    shelf.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@in_virtual_time
async def test_a_copy_with_a_failed_sync_must_be_opened_again(error, caplog):
    """On a full disk too: the content of the file is unknown."""
    leader = LeadingShelf()
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    busy(leader, 0, 3)
    copy.disk.fail_next_sync(1, error)

    with pytest.raises(SyncFailed):
        await copy.follow()
    durable = copy.copy.durable
    await copy.close()

    assert copy.copy.durable == durable
    again = FollowedShelf(leader, copy.disk.clone())
    await again.join_and_follow()
    await again.close()
    assert log_of(again.disk) == log_of(leader.disk)


def spans(leader, count=3):
    start = leader.store.log.end
    leader.store.log.epoch = 5
    leader.add(*[b"x" * 100] * count)
    return leader.spans_at(start, 1 << 20)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:10] + bytes([data[10] ^ 1]) + data[11:],
        lambda data: data[1:],
        lambda data: b"x" + data,
        lambda data: data + b"x" * 100,
        lambda data: data[len(data) // 3 :] + data[: len(data) // 3],
        lambda data: bytes(len(data)),
    ],
)
@in_virtual_time
async def test_spans_damaged_on_the_wire_are_refused_and_not_written(damage):
    leader = LeadingShelf()
    leader.add(b"first")
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    data, file_start = spans(leader)
    before = log_of(copy.disk), copy.copy.end, copy.copy.last

    with pytest.raises(RemoteProtocolError):
        copy.copy.take_spans(damage(data), file_start, 5)

    assert (log_of(copy.disk), copy.copy.end, copy.copy.last) == before
    await copy.follow()
    await copy.close()
    assert log_of(copy.disk) == log_of(leader.disk)


@in_virtual_time
async def test_spans_with_an_epoch_that_their_sender_cannot_have_are_refused():
    leader = LeadingShelf()
    leader.add(b"first")
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    data, file_start = spans(leader)

    with pytest.raises(RemoteProtocolError, match="has the epoch 5, the one before it 0, and its"):
        copy.copy.take_spans(data, file_start, 4)
    copy.copy.take_spans(data, file_start, 5)
    leader.store.log.epoch = 3
    end = copy.copy.end
    leader.add(b"an old leader goes on")
    data, file_start = leader.spans_at(end, 1 << 20)
    with pytest.raises(RemoteProtocolError, match="has the epoch 3, the one before it 5, and its"):
        copy.copy.take_spans(data, file_start, 5)
    assert copy.copy.end == end
    await copy.close()


@in_virtual_time
async def test_spans_that_belong_into_another_file_here_are_refused():
    leader = LeadingShelf()
    leader.add(b"first")
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    data, _ = spans(leader)

    with pytest.raises(RemoteProtocolError, match="lies in the file 17, and here in 0"):
        copy.copy.take_spans(data, 17, 5)
    await copy.close()


@in_virtual_time
async def test_a_broken_record_stored_by_the_leader_ends_the_copy():
    leader = LeadingShelf()
    leader.add(b"first")
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    end, log_id = leader.store.log.end, leader.store.log.segments.log_id
    payload = b"nonsense" * 20
    copy.copy.take_spans(head(log_id, end, end, payload, 0) + payload, 0, 0)

    with pytest.raises(CorruptRecord) as refused:
        await copy.copy.index()

    assert refused.value.position == end + HEAD_BYTES
    await copy.close()


@in_virtual_time
async def test_a_failed_sync_of_a_cancelled_caller_fails_the_next_sync():
    """A connection is lost while the disk works. The next sync of the file would succeed."""
    leader = LeadingShelf()
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    data, file_start = spans(leader)
    copy.copy.take_spans(data, file_start, 5)
    copy.disk.slow_sync(1.0)
    copy.disk.fail_next_sync()
    syncing = asyncio.create_task(copy.copy.sync())
    await asyncio.sleep(0.5)
    syncing.cancel()
    await asyncio.gather(syncing, return_exceptions=True)
    durable = copy.copy.durable
    await asyncio.sleep(1)

    with pytest.raises(SyncFailed, match="before"):
        await copy.copy.sync()

    assert copy.copy.durable == durable < copy.copy.end
    await copy.close()


@in_virtual_time
async def test_the_newest_epoch_of_a_copy_survives_a_restart():
    leader = LeadingShelf()
    leader.add(b"first")
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    copy.copy.note_epoch(7)
    copy.copy.note_epoch(6)
    disk = copy.disk.clone()
    disk.crash(SeededEntropy(1), Loss.EVERYTHING)
    await copy.close()

    again = FollowedShelf(leader, disk)
    assert again.copy.epoch == 7
    await again.close()
    assert Keeper(disk).copy_state().is_copy
