"""A follower's copy of a log: byte for byte the leader's, whatever the leader did."""

import pytest

from tests.unit.copy_stage import FollowedShelf, LeadingShelf, in_virtual_time, log_of, promoted
from tests.unit.store.shelf import START_MS
from txmq.protocol.span import DecisionKind

KINDS = (DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK, DecisionKind.PARKED)


def busy(leader, first=0, count=30):
    """Messages, transactions, delays and recalls, over several files."""
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


def transactions(shelf):
    return {
        unique: (half._replace(is_parked=False), body)
        for unique, (half, body) in shelf.transactions().items()
    }


def assert_equal(leader, shelf):
    """A promoted copy has what its leader had."""
    assert shelf.everything() == leader.everything()
    assert transactions(shelf) == transactions(leader)
    assert shelf.waits() == leader.waits()
    for number in (0, 7, 29):
        assert shelf.found_by_key(f"k{number}") == leader.found_by_key(f"k{number}")


@pytest.mark.parametrize("most", [1, 700, 1 << 20])
@in_virtual_time
async def test_a_copy_has_the_same_files_and_a_promoted_one_all_that_the_leader_had(most):
    leader = LeadingShelf()
    copy = FollowedShelf(leader)
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
async def test_a_file_of_which_everything_was_cut_is_no_file_of_the_copy():
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
async def test_what_a_leader_says_of_its_disk_is_not_true_of_the_copy():
    """A power cut takes any of the bytes that the copy has not synced."""
    leader = LeadingShelf()
    copy = FollowedShelf(leader)
    busy(leader, count=1)
    await copy.join_and_follow()
    end = copy.copy.end
    for number in range(3):
        leader.put(b"%d" % number)
        leader.flush()
    spans, file_start = leader.spans_at(end, 1 << 20)
    await copy.copy.take_spans(spans, file_start, leader.store.log.epoch)
    copy.copy._store.close()
    copy.disk.flip_bit(leader.log_files()[-1], end - file_start + 60)

    again = FollowedShelf(leader, copy.disk)
    assert again.copy.end == end
    await again.join_and_follow()
    await again.close()

    assert log_of(copy.disk) == log_of(leader.disk)
    shelf = promoted(copy.disk, leader.sizes)
    assert_equal(leader, shelf)
