"""Waiting messages in the log: joined, delivered, recalled, and found again."""

import asyncio
import errno

import pytest

from tests.running import run_by
from tests.unit.store.delay_shelf import DelayShelf
from tests.unit.store.press import Press
from tests.unit.store.shelf import START_MS, Sizes
from txmq.errors import CorruptRecord, DiskFull, WriteFailed
from txmq.protocol import record as records
from txmq.protocol.topics import SCHEDULE_TOPIC
from txmq.testing import Loss, MemoryDisk, SeededEntropy, simulate
from txmq_broker.config import RetentionSettings
from txmq_broker.services.housekeeping import retention_verdict as retain
from txmq_broker.store.delay_lines import WHEEL_LINES

T0 = START_MS + 1_000_000
LATER = T0 + 10**9
BIG = b"x" * 1500


@pytest.fixture
def shelf():
    shelf = DelayShelf()
    yield shelf
    shelf.close()


# --- joined, and delivered ---


def test_a_waiting_message_is_only_in_its_line_and_names_its_real_topic(shelf):
    (due,) = shelf.add_later((b"a", T0))

    assert shelf.bodies() == {}
    assert shelf.bodies(SCHEDULE_TOPIC) == {0: b"a"}
    waited = shelf.delays.read(due)
    assert (waited.topic, waited.queue_id, waited.prepared_position) == (SCHEDULE_TOPIC, 0, T0)
    assert "REAL_TOPIC\x01T\x02REAL_QID\x010\x02" in waited.properties
    queue = shelf.store.find_queue(SCHEDULE_TOPIC, 0)
    assert queue.read(0, 1)[0][2] == T0
    assert shelf.found_by_key("ka", SCHEDULE_TOPIC) == [b"a"]
    assert shelf.found_by_key("ka") == []


def test_a_message_is_delivered_when_due_and_not_a_millisecond_earlier(shelf):
    shelf.add_later((b"a", T0))

    assert shelf.deliver(T0 - 1) == []
    assert shelf.delays.next_ms() == T0
    assert shelf.deliver(T0) == [b"a"]
    assert shelf.delays.next_ms() is None

    assert shelf.bodies() == {0: b"a"}
    assert shelf.found_by_key("ka") == shelf.found_by_key("a") == [b"a"]
    ((position, *_),) = shelf.store.find_queue("T", 0).read(0, 1)
    copy, _ = records.unpack(shelf.store.record_bytes(position))
    ((waited_at, *_),) = shelf.store.find_queue(SCHEDULE_TOPIC, 0).read(0, 1)
    assert copy.prepared_position == waited_at
    assert shelf.deliver(LATER) == []


def test_messages_of_all_lines_are_delivered_in_the_order_of_their_times(shelf):
    wheel = shelf.delays.wheel_line(WHEEL_LINES - 1)
    shelf.add_later((b"c", T0 + 3), (b"e", T0 + 5000), line=wheel)
    shelf.add_later((b"a", T0 + 1), (b"d", T0 + 4), line=3)
    shelf.add_later((b"b", T0 + 2))

    assert shelf.deliver(LATER) == [b"a", b"b", b"c", b"d", b"e"]


def test_messages_of_a_line_due_at_the_same_time_leave_in_order_of_arrival(shelf):
    names = [b"%d" % number for number in range(20)]
    shelf.add_later(*[(name, T0) for name in names])

    assert shelf.deliver(T0) == names


def test_no_message_leaves_before_an_unpublished_one_that_is_due_earlier(shelf):
    shelf.add_later((b"b", T0 + 1))
    shelf.later(b"a", T0)

    assert shelf.leave_all(LATER) == []
    span = shelf.store.write()
    assert shelf.leave_all(LATER) == []
    shelf.publish(span)

    assert shelf.deliver(LATER) == [b"a", b"b"]


def test_a_message_due_before_the_unpublished_ones_leaves_at_once(shelf):
    shelf.add_later((b"a", T0))
    shelf.later(b"b", T0 + 1)

    assert shelf.leave_all(LATER) == [b"a"]
    shelf.flush()
    assert shelf.deliver(LATER) == [b"b"]


def test_a_message_due_before_one_that_left_cannot_join_its_line(shelf):
    shelf.add_later((b"a", T0))
    shelf.leave_all(T0)

    with pytest.raises(AssertionError, match="is due before one that has left"):
        shelf.later(b"b", T0 - 1)

    shelf.later(b"c", T0)
    shelf.flush()
    assert shelf.deliver(T0) == [b"c"]


# --- restarts ---


def lose_the_indexes(shelf):
    shelf.checkpoint()
    shelf.close()
    for path in shelf.index_files():
        shelf.disk.remove(path)
    shelf.open()


AGAIN = [DelayShelf.restart, DelayShelf.restart_cleanly, lose_the_indexes]
RESTARTS = pytest.mark.parametrize("again", AGAIN)


@RESTARTS
def test_a_restart_neither_loses_nor_repeats_waiting_messages(shelf, again):
    wheel = shelf.delays.wheel_line(0)
    shelf.add_later((b"b", T0 + 2), (b"x", T0 + 9), (b"a", T0 + 1), (b"y", T0 + 9), line=wheel)
    shelf.add_later((b"c", T0 + 3), (b"z", T0 + 9))
    assert shelf.deliver(T0 + 5) == [b"a", b"b", b"c"]
    shelf.add(BIG, BIG, BIG, topic="U")

    for _ in range(3):
        again(shelf)
        assert shelf.deliver(T0 + 8) == []
        assert len(shelf.delays) == 3

    assert sorted(shelf.deliver(T0 + 9)) == [b"x", b"y", b"z"]
    again(shelf)
    assert shelf.deliver(LATER) == []
    assert list(shelf.bodies().values())[:3] == [b"a", b"b", b"c"]
    assert len(shelf.bodies()) == 6


@RESTARTS
def test_a_restart_knows_which_of_several_equally_due_messages_have_left(shelf, again):
    shelf.add_later(*[(b"%d" % number, T0) for number in range(6)])
    assert shelf.leave_all(T0, at_most=2) == [b"0", b"1"]
    shelf.flush()

    again(shelf)

    assert shelf.deliver(T0) == [b"2", b"3", b"4", b"5"]


@RESTARTS
def test_a_recalled_message_stays_recalled_after_a_restart(shelf, again):
    dues = shelf.add_later(*[(b"%d" % number, T0 + number) for number in range(4)])
    shelf.recall(dues[0])
    shelf.recall(dues[2])
    shelf.flush()

    for _ in range(2):
        again(shelf)
        assert [shelf.delays.is_recalled(due) for due in dues] == [True, False, True, False]

    assert shelf.deliver(LATER) == [b"1", b"3"]


def test_a_line_knows_after_a_restart_which_message_left_last(shelf):
    shelf.add_later((b"a", T0))
    shelf.deliver(T0)

    for again in AGAIN:
        again(shelf)
        assert shelf.delays.line(0).leaving == (T0, 0)
    assert shelf.delays.levels() == [(1, 1, 1)]


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.TAIL, Loss.PAGES, Loss.NOTHING])
def test_an_unsynced_delivery_is_delivered_exactly_once_after_a_crash(loss):
    for seed in range(10):
        shelf = DelayShelf(MemoryDisk(SeededEntropy(seed)))
        shelf.add_later((b"a", T0), (b"b", T0 + 1))
        shelf.deliver(T0)
        shelf.leave_all(LATER)
        shelf.store.write()
        shelf.disk.crash(SeededEntropy(seed), loss)
        shelf.restart()

        shelf.deliver(LATER)

        assert shelf.bodies() == {0: b"a", 1: b"b"}
        shelf.close()


# --- writes that fail ---


def test_a_delivery_whose_write_failed_is_repeated_in_the_same_order(shelf):
    shelf.add_later((b"a", T0), (b"b", T0), (b"c", T0 + 1))
    shelf.deliver(T0 - 1)
    for error, kind in ((errno.ENOSPC, DiskFull), (errno.EIO, WriteFailed)):
        assert shelf.leave_all(T0) == [b"a", b"b"]
        assert shelf.delays.is_delivering
        shelf.disk.fail_writes(times=1, error=error)
        with pytest.raises(kind):
            shelf.store.write()
        assert not shelf.delays.is_delivering
        assert shelf.bodies() == {}
        assert len(shelf.delays) == 3

    # No message has left, so one that is due earlier may still join.
    shelf.add_later((b"0", T0 - 1))
    assert shelf.deliver(LATER) == [b"0", b"a", b"b", b"c"]
    shelf.restart()
    assert shelf.deliver(LATER) == []


def test_a_message_whose_write_failed_does_not_wait(shelf):
    shelf.add_later((b"a", T0))
    due = shelf.later(b"b", T0)
    shelf.disk.fail_writes(times=1, error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        shelf.store.write()

    (again,) = shelf.add_later((b"c", T0))

    assert again == due
    assert shelf.deliver(LATER) == [b"a", b"c"]


def test_a_recall_whose_write_failed_does_not_count(shelf):
    (due,) = shelf.add_later((b"a", T0))
    shelf.recall(due)
    assert shelf.delays.is_recalled(due)
    assert shelf.leave_all(T0) == []  # Not before the recall is certain.
    shelf.disk.fail_writes(times=1, error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        shelf.store.write()

    assert not shelf.delays.is_recalled(due)
    assert shelf.deliver(T0) == [b"a"]


def test_a_failed_checkpoint_loses_no_waiting_message(shelf):
    shelf.add_later((b"a", T0), (b"b", T0 + 1))
    shelf.deliver(T0)
    shelf.disk.fail_writes(times=1, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        shelf.begin_checkpoint()

    shelf.restart()
    assert shelf.deliver(LATER) == [b"b"]


# --- what is kept ---


def test_the_log_is_kept_from_the_oldest_waiting_message_until_it_has_left(shelf):
    shelf.add_later((b"a", T0 + 50), (b"b", T0))
    ((a_at, *_),) = shelf.store.find_queue(SCHEDULE_TOPIC, 0).read(0, 1)
    shelf.add(BIG, BIG, BIG, topic="U")
    shelf.checkpoint()
    assert shelf.delays.pinned() == shelf.store.pinned() == a_at

    shelf.deliver(T0)
    shelf.checkpoint()
    assert shelf.delays.pinned() == a_at
    settings = RetentionSettings(delete_at=";".join(str(hour) for hour in range(24)))
    files = shelf.store.checkpoints.completed_files()
    assert files
    assert not retain(settings, files, LATER * 2, 3, 0.99, shelf.store.pinned()).delete

    assert shelf.deliver(LATER) == [b"a"]
    shelf.checkpoint()
    assert shelf.delays.pinned() is None
    assert retain(settings, files, LATER * 2, 3, 0.99, shelf.store.pinned()).delete

    shelf.drop_first_file()
    shelf.add_later((b"c", LATER + 1))
    for again in AGAIN:
        again(shelf)
        assert shelf.delays.pinned() is not None
    assert shelf.deliver(LATER * 2) == [b"c"]


def test_a_delivered_message_keeps_the_log_until_the_next_checkpoint(shelf):
    shelf.add_later((b"a", T0))
    shelf.deliver(T0)

    assert shelf.delays.pinned() is not None


def test_recalls_hold_after_older_ones_were_deleted_with_their_files(shelf):
    (old,) = shelf.add_later((b"old", T0))
    shelf.recall(old)
    shelf.flush()
    shelf.add(BIG, BIG, BIG, BIG, BIG, topic="U")
    shelf.checkpoint()
    (due,) = shelf.add_later((b"a", LATER))
    shelf.recall(due)
    shelf.flush()
    assert shelf.deliver(T0) == []
    shelf.add(BIG, topic="U")
    shelf.checkpoint()
    assert shelf.store.checkpoints.completed_files()[0].end <= shelf.store.pinned()
    shelf.drop_first_file()
    shelf.close()
    # The last checkpoint that is left is of a time when the first recall still counted.
    shelf.disk.remove(shelf.index_files()[-1])

    shelf.open()

    assert shelf.delays.is_recalled(due)
    assert shelf.deliver(LATER) == []


# --- what is damaged ---


def test_a_damaged_waiting_message_is_refused_and_the_next_one_is_delivered(shelf):
    shelf.add_later((b"a" * 50, T0), (b"b", T0 + 1))
    ((position, size, *_),) = shelf.store.find_queue(SCHEDULE_TOPIC, 0).read(0, 1)
    shelf.disk.flip_bit(shelf.log_files()[0], position + size - 90)

    due = shelf.delays.first(LATER)
    with pytest.raises(CorruptRecord, match="differs"):
        shelf.delays.read(due)
    shelf.delays.pass_over()

    assert shelf.deliver(LATER) == [b"b"]


# --- recalled ---


def test_a_recall_holds_over_several_checkpoints(shelf):
    (due,) = shelf.add_later((b"a", T0))
    shelf.recall(due)
    shelf.flush()

    shelf.checkpoint()
    shelf.add(b"x")
    shelf.checkpoint()

    assert shelf.deliver(LATER) == []
    assert shelf.bodies() == {0: b"x"}


def test_a_recalled_message_stops_keeping_the_log_once_its_time_has_passed(shelf):
    (due,) = shelf.add_later((b"a", T0))
    shelf.recall(due)
    shelf.flush()
    shelf.deliver(LATER)
    shelf.add(b"x")
    shelf.checkpoint()

    assert shelf.delays.pinned() is None
    assert not shelf.delays.is_recalled(due)  # It is forgotten.


def test_a_checkpoint_ignores_deliveries_beyond_its_end(shelf):
    shelf.add_later((b"a", T0))
    shelf.add(*[BIG] * 3)
    assert shelf.leave_all(T0) == [b"a"]
    shelf.publish_unsynced()
    stretch = shelf.store.checkpoints.next_range()
    assert stretch.end == shelf.store.log.segments.starts[-1]
    pending = shelf.store.checkpoints.begin(stretch)
    shelf.confirm(pending)

    shelf.disk.crash(SeededEntropy(0), Loss.EVERYTHING)
    shelf.restart()

    assert shelf.deliver(T0) == [b"a"]


def test_a_recall_lost_in_a_power_cut_does_not_hit_the_reused_offset(shelf):
    shelf.add_later((b"a", T0))
    assert shelf.deliver(T0) == [b"a"]
    shelf.add(*[BIG] * 3)
    # With flush = "async" what is published may be lost yet.
    due = shelf.later(b"b", T0 + 1)
    shelf.publish_unsynced()
    shelf.recall(due)
    shelf.publish_unsynced()
    assert shelf.delays.first(T0 + 1) is None
    stretch = shelf.store.checkpoints.next_range()
    assert stretch.end == shelf.store.log.segments.starts[-1]
    pending = shelf.store.checkpoints.begin(stretch)
    shelf.confirm(pending)
    shelf.disk.crash(SeededEntropy(0), Loss.EVERYTHING)
    shelf.restart()

    (again,) = shelf.add_later((b"c", T0 + 5))
    shelf.restart_cleanly()

    assert again.offset == due.offset
    assert shelf.deliver(LATER) == [b"c"]


@run_by(simulate, 0)
async def test_a_damaged_index_of_a_line_stops_neither_the_broker_nor_its_shutdown(
    world, /, caplog
):
    disk = MemoryDisk()
    async with Press(disk, Sizes(checkpoint_every=100), DelayShelf) as press:
        for number in range(5):
            press.flusher.turn_ms()
            press.shelf.later(b"%d" % number, T0 + number)
            await asyncio.sleep(0.01)
            if not number:
                await press.flusher.drain()
                (path,) = press.shelf.index_files()
                disk.flip_bit(path, len(press.shelf.contents(path)) - 1)

        await press.flusher.drain()

        assert press.fatal == []
        assert len(press.store.delays) == 5
    assert "the indexes could not be saved" in caplog.text
