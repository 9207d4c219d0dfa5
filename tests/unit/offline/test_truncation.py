"""A copy cuts what its leader does not have, whatever it is and whenever the power goes."""

import re

import pytest

from tests.unit.replication.copy_stage import (
    FollowedShelf,
    LeadingShelf,
    damage_in,
    in_virtual_time,
    log_of,
    promoted,
)
from tests.unit.store.shelf import START_MS, Sizes
from txmq.protocol.span import DecisionKind
from txmq.testing import Loss, MemoryDisk, SeededEntropy
from txmq_broker.offline.backup.creation import Creation
from txmq_broker.offline.backup.manifest import BackupRefused
from txmq_broker.offline.inspection.log_records import LogRecord, Selection, select
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.log.identity import log_to_read
from txmq_broker.store.log.reader import LogReader

pytestmark = pytest.mark.slow

LOSSES = (Loss.EVERYTHING, Loss.PAGES, Loss.TAIL, Loss.NOTHING)


def fork(shelf):
    """A second leader that goes on where this one is now: the same log, another history."""
    disk = shelf.disk.clone()
    twin = LeadingShelf(disk, shelf.sizes, dict(shelf.floors))
    twin.store.log.epoch = shelf.store.log.epoch + 1
    return twin


async def followed(leader, disk=None):
    """A disk with a complete copy of a leader's log."""
    copy = FollowedShelf(leader, disk)
    await copy.join_and_follow()
    await copy.close()
    return copy.disk


def live(leader, name, count):
    """Add messages, transactions and delays with distinct names."""
    for number in range(count):
        text = f"{name}-{number}"
        leader.add(text.encode() + b"." * 200, number=number % 3, keys=text)
        leader.prepare(text.encode(), unique=text)
        leader.flush()
        if number % 2:
            leader.decide(text, DecisionKind.COMMITTED)
            leader.flush()
        # Due times grow with the log, as a line wants them.
        now_ms = START_MS + leader.store.log.end
        leader.add_later((text.encode(), now_ms + 1000))
        if number % 3 == 2:
            leader.deliver(now_ms)


def what_a_leader_has(leader):
    return contents(LeadingShelf(leader.disk.clone(), leader.sizes, leader.floors))


def what_a_promoted_copy_has(disk, sizes):
    return contents(promoted(disk, sizes))


def contents(shelf):
    keys = [shelf.found_by_key(f"{name}-1") for name in ("shared", "lost", "won")]
    found = shelf.everything(), sorted(shelf.transactions()), shelf.waits(), keys
    shelf.close()
    return found


def kept_records(disk):
    """The records in the folder of a cut, as ``txmq log dump`` reads them."""
    (folder,) = disk.names("cut")
    aside = _Folder(disk, f"cut/{folder}")
    reader = LogReader(aside, log_to_read(aside))
    reader.open()
    found = list(select(reader, Selection()))
    reader.close()
    assert all(isinstance(record, LogRecord) for record in found)
    return found


class _Folder:
    """A folder of a disk as a disk."""

    def __init__(self, disk, folder):
        self._disk, self._folder = disk, folder

    def open(self, path, *, create=False):
        return self._disk.open(f"{self._folder}/{path}", create=create)

    def names(self, folder):
        return self._disk.names(f"{self._folder}/{folder}")


@pytest.mark.parametrize("lost", [0, 1, 3, 12])
@pytest.mark.parametrize("won", [0, 1, 12])
@pytest.mark.parametrize("shared", [0, 1, 9])
@in_virtual_time
async def test_a_copy_is_cut_to_the_shared_log_and_then_equals_its_leader(shared, lost, won):
    """The indexes of the copy were saved beyond the cut; they may lie in an earlier file."""
    old = LeadingShelf()
    live(old, "shared", shared)
    new = fork(old)
    position = old.store.log.end
    live(old, "lost", lost)
    live(new, "won", won)
    disk = await followed(old)

    disk = await followed(new, disk)

    assert log_of(disk) == log_of(new.disk)
    assert what_a_promoted_copy_has(disk, new.sizes) == what_a_leader_has(new)
    kept = kept_records(disk) if lost else []
    assert all(record.position > position for record in kept)
    assert {f"lost-{number}" for number in range(lost)} <= {record.unique for record in kept}


@in_virtual_time
async def test_a_cut_is_logged_with_its_size_position_and_folder(caplog):
    old = LeadingShelf()
    live(old, "shared", 3)
    new = fork(old)
    position = old.store.log.end
    (lost,) = old.add(b"lost")
    disk = await followed(old)
    caplog.clear()

    await followed(new, disk)

    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    size = old.store.log.end - position
    (folder,) = disk.names("cut")
    assert line == (
        f"{size} bytes of this log are not in the leader's and were cut at position {position}; "
        f"cut/{folder} keeps them"
    )
    (kept,) = kept_records(disk)
    assert (kept.position, kept.record.body) == (lost.position, b"lost")


@in_virtual_time
async def test_offsets_and_floors_beyond_a_cut_are_set_back():
    """Otherwise its offsets would suggest missing messages, and its floors would hide new ones."""
    old = LeadingShelf()
    old.add(*[b"shared"] * 4, topic="T")
    old.add(*[b"shared"] * 4, topic="Deleted")
    new = fork(old)
    old.add(*[b"lost"] * 4, topic="T")
    old.add(*[b"lost"] * 4, topic="Deleted")
    old.offsets = {"T@G": {0: 8}, "T@H": {0: 3}, "Deleted@G": {0: 8}}
    old.forget("Deleted")
    disk = await followed(old)
    assert Keeper(disk).floors().floors["Deleted"] == {0: 8}
    new.add(*[b"won"] * 2, topic="Deleted")

    copy = FollowedShelf(new, disk)
    segments = new.store.log.segments
    copy.copy.open_as(segments.log_id, segments.start, new.tables())
    copy.copy.cut_back(copy.last_shared(), segments.start, new.tables())
    left = disk.clone()
    await copy.follow()
    await copy.close()

    keeper = Keeper(left)
    assert keeper.offsets().offset_table == {"T@G": {0: 4}, "T@H": {0: 3}, "Deleted@G": {0: 4}}
    assert keeper.floors().floors["Deleted"] == {0: 4}
    shelf = promoted(disk, new.sizes)
    assert shelf.bodies("Deleted") == {4: b"won", 5: b"won"}
    shelf.close()


@in_virtual_time
async def test_a_copy_damaged_before_its_cut_is_cut_at_the_damage():
    """Its index hid the damage, and the cut removes that index."""
    sizes = Sizes(segment_size=1 << 20, checkpoint_every=1 << 20)
    old = LeadingShelf(sizes=sizes)
    live(old, "shared", 9)
    new = fork(old)
    live(old, "lost", 3)
    live(new, "won", 3)
    disk = await followed(old)
    copy = FollowedShelf(new, disk)
    (name,) = log_of(disk)
    disk.flip_bit(f"log/{name}", 700)

    await copy.join_and_follow()
    assert copy.copy.doubt
    await copy.close()
    assert log_of(disk) == log_of(new.disk)
    assert what_a_promoted_copy_has(disk, sizes) == what_a_leader_has(new)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("files", ["one", "many"])
@in_virtual_time
async def test_a_power_cut_at_any_step_of_a_cut_is_recovered(files, loss):
    sizes = Sizes(segment_size=1 << 20) if files == "one" else Sizes()
    old = LeadingShelf(sizes=sizes)
    live(old, "shared", 5)
    new = fork(old)
    live(old, "lost", 7)
    old.offsets = {"T@G": {0: old.store.queue("T", 0).max_offset}}
    live(new, "won", 6)
    before = await followed(old)
    expected = what_a_leader_has(new)
    points = []

    copy = FollowedShelf(new, before.clone())
    worked = copy.disk
    worked.on_write = lambda event: points.append((event, worked.clone()))
    await copy.join()
    worked.on_write = None
    await copy.follow()
    await copy.close()
    assert len(points) > 20
    assert log_of(worked) == log_of(new.disk)

    for number, (event, disk) in enumerate(points):
        try:
            disk.crash(SeededEntropy(f"{number}"), loss)
            # Without a leader it finishes a cut that has begun; then a promotion can open it.
            alone = FollowedShelf(new, disk.clone())
            await alone.close()
            promoted(alone.disk, sizes).close()
            assert damage_in(alone.disk) == []
            again = await followed(new, disk)
            assert log_of(again) == log_of(new.disk)
            assert what_a_promoted_copy_has(again, sizes) == expected
        except BaseException as error:
            error.add_note(f"before {event}, {loss}")
            raise


@pytest.mark.parametrize("loss", LOSSES)
@in_virtual_time
async def test_a_copy_too_far_behind_starts_over_despite_power_cuts(loss):
    leader = LeadingShelf()
    live(leader, "shared", 5)
    leader.offsets = {"T@G": {0: leader.store.queue("T", 0).max_offset}}
    before = await followed(leader)
    end = leader.store.log.end
    for number in range(40):
        leader.add(b"%d" % number + b"." * 300)
    leader.checkpoint()
    while leader.store.log.start <= end:
        leader.drop_first_file()
    expected = what_a_leader_has(leader)
    points = []
    copy = FollowedShelf(leader, before.clone())
    worked = copy.disk
    worked.on_write = lambda event: points.append((event, worked.clone()))
    await copy.join_and_follow()
    worked.on_write = None
    await copy.close()
    assert log_of(worked) == log_of(leader.disk)
    assert len(kept_records(worked)) > 15

    for number, (event, disk) in enumerate(points):
        try:
            disk.crash(SeededEntropy(f"{number}"), loss)
            again = await followed(leader, disk)
            assert log_of(again) == log_of(leader.disk)
            assert what_a_promoted_copy_has(again, leader.sizes) == expected
        except BaseException as error:
            error.add_note(f"before {event}, {loss}")
            raise


@in_virtual_time
async def test_a_backup_that_holds_cut_messages_is_refused_with_a_hint():
    first = LeadingShelf(sizes=Sizes())
    live(first, "shared", 4)
    second = fork(first)
    live(first, "lost", 4)
    live(second, "won", 9)
    disk, folder = await followed(first), MemoryDisk()
    back_up(disk, folder)
    end = first.store.log.end

    await followed(second, disk)

    (cut,) = disk.names("cut")
    position = int(cut.partition("-")[0])
    text = (
        f"here:/data cut its log at position {position}, because the leader of its set had another "
        f"history, and the backup reaches position {end}: it has messages that were never "
        f"acknowledged, or that an operator gave up. cut/{cut} in here:/data has them too; move "
        "the backup away and create it again"
    )
    with pytest.raises(BackupRefused, match=re.escape(text)):
        back_up(disk, folder)


def back_up(disk, folder):
    creation = Creation(disk, folder)
    creation.open("here:/data")
    creation.run("here:/data", lambda: START_MS)
