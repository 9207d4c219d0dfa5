"""One queue: its visible entries, its floor, its blocks and its entries in memory."""

import zlib

import pytest

from txmq.errors import CorruptRecord
from txmq.testing import MemoryDisk
from txmq_broker.store.queue_store import ENTRY, Block, ConsumeQueue, SealedBytes


def entry(number):
    return (1000 * number, 100 + number, number % 7 - 3, 7 * number)


def packed(numbers):
    return b"".join(ENTRY.pack(*entry(number)) for number in numbers)


def block(first, last, segment=0, checksum=None):
    """A block with the entries of some offsets, in a file of its own."""
    data = b"head" + packed(range(first, last))
    file = MemoryDisk().open("index", create=True)
    file.write(0, data)
    checksum = zlib.crc32(data[4:]) if checksum is None else checksum
    sealed = SealedBytes(file, "index", 0, 4, len(data) - 4, checksum)
    return Block(first, last - first, segment, sealed, 4)


def grown(queue, first, last):
    for number in range(first, last):
        queue.next_offset += 1
        queue.publish(ENTRY.pack(*entry(number)))
    return queue


def test_a_message_is_visible_once_it_is_published():
    queue = ConsumeQueue("T", 0)
    queue.next_offset = 1

    assert (queue.max_offset, queue.read(0, 1)) == (0, [])
    queue.publish(ENTRY.pack(*entry(0)))
    assert (queue.max_offset, queue.read(0, 1)) == (1, [entry(0)])


def test_a_queue_with_a_floor_begins_there():
    queue = ConsumeQueue("T", 0, floor=5)

    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (5, 5, 5)
    grown(queue, 5, 6)
    assert queue.read(5, 9) == [entry(5)]


def test_entries_read_the_same_from_blocks_and_from_memory():
    queue = grown(ConsumeQueue("T", 0), 0, 10)
    queue.saved(block(0, 4))
    queue.saved(block(4, 6))

    assert (queue.min_offset, queue.max_offset, queue.tail_count) == (0, 10, 4)
    assert queue.read(0, 9) == [entry(number) for number in range(4)]
    assert queue.read(3, 1) == [entry(3)]
    assert queue.read(5, 9) == [entry(5)]
    assert queue.read(6, 2) == [entry(6), entry(7)]
    assert queue.read(9, 9) == [entry(9)]
    assert queue.read(10, 9) == []


def test_entries_published_while_a_block_is_saved_stay_in_memory():
    queue = grown(ConsumeQueue("T", 0), 0, 3)
    saved = queue.tail_before(3000)
    grown(queue, 3, 5)

    queue.saved(block(0, len(saved) // ENTRY.size))

    assert queue.tail_first == 3
    assert queue.read(3, 9) == [entry(3), entry(4)]


@pytest.mark.parametrize("count", range(5))
def test_the_tail_can_be_cut_at_any_position_of_the_log(count):
    queue = grown(ConsumeQueue("T", 0), 0, 4)

    assert queue.tail_before(1000 * count) == packed(range(count))
    assert queue.tail_before(1000 * count - 1) == packed(range(count))


def test_the_first_record_restored_from_the_log_can_have_any_offset():
    queue = ConsumeQueue("T", 0)

    assert queue.restore(7, entry(7))
    assert queue.restore(8, entry(8))

    assert (queue.min_offset, queue.next_offset) == (7, 9)


@pytest.mark.parametrize("offset", [0, 7, 9, 10])
def test_a_record_that_does_not_follow_the_last_one_is_refused(offset):
    queue = ConsumeQueue("T", 0)
    queue.restore(7, entry(7))

    assert not queue.restore(offset, entry(offset))


def test_a_record_that_does_not_follow_the_blocks_is_refused():
    queue = ConsumeQueue("T", 0)
    queue.add_block(block(0, 4))

    assert not queue.restore(5, entry(5))
    assert not queue.restore(3, entry(3))
    assert queue.restore(4, entry(4))


def test_restored_records_below_the_floor_stay_hidden():
    queue = ConsumeQueue("T", 0, floor=2)

    assert all(queue.restore(number, entry(number)) for number in range(4))

    assert (queue.min_offset, queue.max_offset) == (2, 4)
    assert queue.read(2, 9) == [entry(2), entry(3)]


@pytest.mark.parametrize("floor", [0, 2, 4, 5, 6, 8])
def test_blocks_from_index_files_are_hidden_below_the_floor(floor):
    queue = ConsumeQueue("T", 0, floor)
    queue.add_block(block(0, 4))
    queue.add_block(block(4, 6))

    assert queue.min_offset == floor
    assert queue.max_offset == queue.next_offset == max(6, floor)
    assert queue.restore(queue.next_offset, entry(queue.next_offset))


def test_a_raised_floor_hides_existing_messages_but_no_later_ones():
    queue = grown(ConsumeQueue("T", 0), 0, 3)

    queue.raise_floor(3)
    grown(queue, 3, 5)

    assert (queue.min_offset, queue.max_offset) == (3, 5)
    assert queue.read(3, 9) == [entry(3), entry(4)]


def test_a_raised_floor_keeps_the_offsets_of_messages_not_published_yet():
    queue = grown(ConsumeQueue("T", 0), 0, 3)
    queue.saved(block(0, 3))
    queue.next_offset = 5

    queue.raise_floor(queue.max_offset)
    for number in (3, 4):
        queue.publish(ENTRY.pack(*entry(number)))

    assert queue.read(3, 9) == [entry(3), entry(4)]


def test_a_floor_is_never_lowered():
    queue = grown(ConsumeQueue("T", 0), 0, 3)

    queue.raise_floor(3)
    queue.raise_floor(1)

    assert queue.min_offset == 3


def test_the_blocks_of_deleted_segments_are_forgotten():
    queue = grown(ConsumeQueue("T", 0), 0, 7)
    for saved_block in (block(0, 2, segment=0), block(2, 4, segment=50), block(4, 6, segment=100)):
        queue.saved(saved_block)

    assert [queue.min_offset_from(segment) for segment in (0, 50, 100, 150)] == [0, 2, 4, 6]
    queue.drop_before_segment(100)

    assert queue.min_offset == 4
    assert queue.read(4, 9) == [entry(4), entry(5)]
    assert queue.read(3, 9) == []


def test_a_damaged_block_is_reported_wherever_it_is_read():
    queue = ConsumeQueue("T", 0)
    queue.add_block(block(0, 4, checksum=1))

    for offset in range(4):
        with pytest.raises(CorruptRecord, match="delete that file"):
            queue.read(offset, 1)


def test_a_block_the_disk_cannot_read_is_reported():
    data = packed(range(4))
    disk = MemoryDisk()
    file = disk.open("index", create=True)
    file.write(0, data)
    queue = ConsumeQueue("T", 0)
    queue.add_block(
        Block(0, 4, 0, SealedBytes(file, "index", 0, 0, len(data), zlib.crc32(data)), 0)
    )
    disk.fail_reads(times=1)

    with pytest.raises(CorruptRecord, match="cannot read"):
        queue.read(0, 1)
    assert queue.read(0, 1) == [entry(0)]
