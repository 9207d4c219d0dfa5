"""A follower's copy of a log: byte for byte the leader's, whatever the leader did."""

import pytest
from msgspec.structs import replace

from tests.unit.replication.copy_stage import (
    FollowedShelf,
    LeadingShelf,
    in_virtual_time,
    log_of,
    promoted,
)
from tests.unit.store.shelf import START_MS
from txmq.protocol.span import HEAD_BYTES, DecisionKind
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.log.segments import path_of

KINDS = (DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK, DecisionKind.PARKED)


def busy(leader, first=0, count=30):
    """Write messages, transactions, delays and recalls over several files."""
    for number in range(first, first + count):
        leader.put(b"%d" % number + b"." * 300, number=number % 2, keys=f"k{number}")
        leader.flush()
        leader.prepare(b"half %d" % number, unique=f"h{number}", keys="h")
        leader.flush()
        if number % 4 < 3:
            leader.decide(f"h{number}", KINDS[number % 4])
            leader.flush()
        due = leader.later(b"later%d" % number, START_MS + 10_000 * number)
        leader.flush()
        if number % 5 == 0:
            leader.recall(due)
            leader.flush()
        if number % 7 == 0:
            leader.deliver(START_MS + 5_000 * number)


def settle(leader):
    """Decide and deliver everything, so that nothing keeps a file."""
    for unique in leader.transactions():
        leader.decide(unique, DecisionKind.COMMITTED)
        leader.flush()
    leader.deliver(1 << 50)


def transactions(shelf):
    return {
        unique: (replace(half, is_parked=False), body)
        for unique, (half, body) in shelf.transactions().items()
    }


def assert_equal(leader, shelf):
    """See that a promoted copy has what its leader had."""
    assert shelf.everything() == leader.everything()
    assert transactions(shelf) == transactions(leader)
    assert shelf.waits() == leader.waits()
    for number in (0, 7, 29):
        assert shelf.found_by_key(f"k{number}") == leader.found_by_key(f"k{number}")


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("most", [1, 700, 1 << 20])
@in_virtual_time
async def test_a_copy_has_the_leaders_files_and_can_be_promoted(most, is_lazy):
    leader = LeadingShelf()
    copy = FollowedShelf(leader, is_lazy=is_lazy)
    await copy.join()
    for part in range(3):
        busy(leader, 10 * part, 10)
        await copy.follow(most=most)
    assert len(leader.log_files()) > 5

    await copy.close()

    assert log_of(copy.disk) == log_of(leader.disk)
    shelf = promoted(copy.disk, leader.sizes)
    assert shelf.recovery.scanned_bytes == 0, "the indexes were saved"
    assert_equal(leader, shelf)
    shelf.close()
    leader.close()


@in_virtual_time
async def test_a_copy_begins_where_the_leaders_log_begins():
    leader = LeadingShelf()
    busy(leader)
    settle(leader)
    leader.checkpoint()
    for _ in range(3):
        leader.drop_first_file()
    assert leader.store.log.start > 0
    copy = FollowedShelf(leader)

    await copy.join_and_follow()
    busy(leader, 30, 10)
    await copy.follow()
    await copy.close()

    assert log_of(copy.disk) == log_of(leader.disk)
    shelf = promoted(copy.disk, leader.sizes)
    assert_equal(leader, shelf)
    shelf.close()


@pytest.mark.parametrize("inside", [3, 20, HEAD_BYTES + 5])
@in_virtual_time
async def test_a_damaged_part_of_a_copy_is_indexed_after_its_repair(inside):
    leader = LeadingShelf()
    copy = FollowedShelf(leader, is_lazy=True)
    await copy.join()
    busy(leader)
    await copy.follow()
    heads = leader.heads()
    damaged = heads[len(heads) // 2]
    extent = leader.store.log.segments.extent_at(damaged.position)
    path = path_of(extent.start)
    copy.disk.flip_bit(path, damaged.position - extent.start + inside)

    await copy.copy.index()
    assert [*copy.copy.damaged] == [(damaged.position, damaged.position + damaged.size)]
    assert copy.copy.indexable == 0
    assert copy.copy.is_out

    spans, _ = leader.spans_at(damaged.position, 1)
    await copy.copy.put_back(damaged.position, spans)
    copy.copy.damaged.remove(next(iter(copy.copy.damaged)))
    await copy.copy.index()
    await copy.close()

    shelf = promoted(copy.disk, leader.sizes)
    assert_equal(leader, shelf)
    shelf.close()
    leader.close()


@pytest.mark.parametrize("is_lazy", [False, True])
@in_virtual_time
async def test_a_copy_deletes_the_files_its_leader_deletes(is_lazy):
    leader = LeadingShelf()
    copy = FollowedShelf(leader, is_lazy=is_lazy)
    await copy.join()
    for part in range(6):
        for number in range(10):
            leader.add(b"%d" % number + b"." * 300, number=number % 2, keys=f"k{number}")
        leader.add(b"once", topic=f"only {part}")
        leader.checkpoint()
        await copy.follow()
        while len(leader.store.log.segments.starts) > 1:
            leader.drop_first_file()
        await copy.follow()
        assert copy.copy.start == leader.store.log.start > 0
        assert log_of(copy.disk) == log_of(leader.disk)
    await copy.close()

    shelf = promoted(copy.disk, leader.sizes)
    assert shelf.everything() == leader.everything()
    # No offset is reused, not even in queues whose messages are all gone.
    for topic in ("T", "only 0", "only 5"):
        (placed,) = shelf.add(b"new", topic=topic)
        assert placed.offset == leader.store.queue(topic, 0).next_offset
    shelf.close()


@in_virtual_time
async def test_a_topic_deleted_at_the_leader_stays_deleted_after_promotion():
    leader = LeadingShelf()
    copy = FollowedShelf(leader)
    await copy.join()
    leader.add(*[b"old"] * 7, topic="Gone")
    await copy.follow()
    leader.forget("Gone")
    # The copy hears of the deletion before it has the messages after it.
    await copy.follow()
    leader.add(b"new", topic="Gone")
    await copy.follow()
    await copy.close()

    shelf = promoted(copy.disk, leader.sizes)
    assert shelf.bodies("Gone") == {7: b"new"}
    shelf.close()


@in_virtual_time
async def test_committed_offsets_are_never_ahead_of_the_copy():
    leader = LeadingShelf()
    copy = FollowedShelf(leader)
    await copy.join()
    leader.add(*[b"."] * 6)
    leader.offsets = {"T@G": {0: 6, 1: 0}}
    await copy.follow()
    leader.add(*[b"."] * 4)
    leader.offsets["T@G"][0] = 10
    copy.copy.take_tables(leader.tables(), leader.store.log.end)
    await copy.follow(end=copy.copy.end + 100)
    assert 6 < promoted(copy.disk.clone(), leader.sizes).store.queue("T", 0).max_offset < 10
    assert Keeper(copy.disk).offsets().offset_table == {"T@G": {0: 6, 1: 0}}

    await copy.follow()
    assert Keeper(copy.disk).offsets().offset_table["T@G"][0] == 10
    await copy.close()
    promoted(copy.disk, leader.sizes).close()


@in_virtual_time
async def test_a_log_file_that_is_cut_entirely_is_removed_from_the_copy():
    """The new leader goes on in the file before."""
    first = LeadingShelf()
    busy(first, count=3)
    copies = [FollowedShelf(first), FollowedShelf(first)]
    for copy in copies:
        await copy.join_and_follow()
        await copy.close()
    old, leader = (promoted(copy.disk, first.sizes) for copy in copies)
    files = len(first.log_files())
    while len(old.log_files()) == files:
        shared = old.store.log.end
        old.put(b"old" + b"." * 1000)
        old.flush()
        if len(old.log_files()) == files:
            leader.put(b"old" + b"." * 1000)
            leader.flush()
    assert leader.store.log.end == shared
    leader.put(b"new")
    leader.flush()
    assert len(leader.log_files()) == files
    old.close()

    returned = FollowedShelf(leader, old.disk)
    await returned.join_and_follow()
    await returned.close()

    assert log_of(old.disk) == log_of(leader.disk)
    assert_equal(leader, promoted(old.disk, first.sizes))


@in_virtual_time
async def test_a_copy_without_its_high_water_mark_is_in_doubt_until_it_caught_up():
    """Its log may be shorter than before, and only the mark could show that."""
    leader = LeadingShelf()
    busy(leader, 0, 3)
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    await copy.close()
    copy.disk.remove("high-water")
    for _ in range(2):  # Still after another start, which may find a new mark.
        copy = FollowedShelf(leader, copy.disk)
        assert copy.copy.doubt == "high-water is missing or damaged"
        await copy.close()
    leader.close()


@pytest.mark.parametrize("has_mark", [True, False])
@in_virtual_time
async def test_a_copy_that_lost_its_first_file_copies_everything_again(has_mark):
    """If it led with the rest, its followers would delete their first files."""
    leader = LeadingShelf()
    busy(leader, 0, 10)
    copy = FollowedShelf(leader)
    await copy.join_and_follow()
    await copy.close()
    first = copy.disk.names("log")[0]
    copy.disk.remove(f"log/{first}")
    if not has_mark:
        copy.disk.remove("high-water")

    again = FollowedShelf(leader, copy.disk)
    assert again.copy.doubt
    await again.join_and_follow()
    await again.close()

    assert log_of(again.disk) == log_of(leader.disk)
    leader.close()
