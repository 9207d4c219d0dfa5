"""Index files: whole chunks are used, and the rest is cut off and rebuilt from the log."""

import errno
import zlib

import pytest

from tests.unit.store.shelf import rewrite
from txmq.errors import CorruptRecord
from txmq.testing import MemoryDisk
from txmq_broker.store.delay_lines import LineState
from txmq_broker.store.index_file import IndexFile, LogRange, draft, indexed_segments, path_of
from txmq_broker.store.pending_transactions import Changes
from txmq_broker.store.queue_store import ENTRY, ConsumeQueue, KeyIndex

LOG = 7

NONE = Changes([], [], [])
LINES = [LineState(2, 1_700_000_000_000, 41, 7), LineState(136, -1, -1, 0)]

END = 3000
PATH = path_of(0)


def indexes(topics=("T",), numbers=(0, 1), first=0):
    """Queues with some messages, and their keys."""
    queues, keys = [], KeyIndex()
    at = first
    for topic in topics:
        for number in numbers:
            queue = ConsumeQueue(topic, number, floor=number)
            for _ in range(3):
                queue.publish(ENTRY.pack(at, 10, -at, 7 * at))
                keys.extend([at % 3], [at])
                at += 10
            queues.append(queue)
    return queues, keys


def saved(disk, *ends, topics=("T",)):
    """An index file with a chunk up to each of these positions."""
    index = IndexFile(disk, 0, LOG)
    start = 0
    for end in ends:
        queues, keys = indexes(topics, first=start)
        data, chunk = draft(LOG, LogRange(start, end, start, end), queues, keys, NONE, LINES)
        index.append(data, chunk)
        start = end
    index.file.sync()
    index.file.close()


def loaded(disk, end=END):
    index = IndexFile(disk, 0, LOG)
    chunks = index.load(end)
    index.trim()
    return index, chunks


@pytest.fixture
def disk():
    return MemoryDisk()


def test_a_chunk_is_read_back_as_it_was_written(disk):
    saved(disk, 1000, 2000)

    index, chunks = loaded(disk)

    assert [chunk.part for chunk in chunks] == [(0, 1000, 0, 1000), (1000, 2000, 1000, 2000)]
    (run, block), (other, _) = index.blocks(chunks[1])
    assert run == ("T", 0, 0, 3)
    assert other == ("T", 1, 1, 3)
    queue = ConsumeQueue("T", 0)
    queue.add_block(block)
    assert queue.read(0, 9) == [(at, 10, -at, 7 * at) for at in (1000, 1010, 1020)]
    keys = KeyIndex()
    keys.add_run(index.key_run(chunks[1]))
    assert list(keys.positions(1, 0, 5000)) == [1030, 1000]
    assert [chunk.lines for chunk in chunks] == [LINES, LINES]


def test_a_chunk_leaves_out_entries_beyond_its_range(disk):
    queues, keys = indexes()

    _, chunk = draft(LOG, LogRange(0, 40, 0, 0), queues, keys, NONE, LINES)

    assert [(run.number, run.first, run.entries) for run in chunk.queues] == [(0, 0, 3), (1, 1, 1)]
    assert chunk.keys == 4


def test_a_chunk_can_be_empty(disk):
    index = IndexFile(disk, 0, LOG)
    index.append(*draft(LOG, LogRange(0, 1000, 0, 0), [], KeyIndex(), NONE, LINES))

    assert [chunk.part.end for chunk in loaded(disk)[1]] == [1000]


def test_a_chunk_can_hold_more_queues_than_one_read_covers(disk):
    topics = [f"{'t' * 120}-{number}" for number in range(200)]
    saved(disk, 100_000, topics=topics)

    index, chunks = loaded(disk, 100_000)

    assert [run.topic for run, _ in index.blocks(chunks[0])][::2] == topics


def test_an_index_file_cut_anywhere_keeps_its_whole_chunks(disk):
    saved(disk, 1000, 2000, 3000)
    ends = [0, *(chunk.at + chunk.size for chunk in loaded(disk)[1])]
    whole = disk.open(PATH).read(0, 1 << 20)
    assert ends[-1] == len(whole)

    for length in range(len(whole)):
        rewrite(disk, PATH, whole[:length])
        index, chunks = loaded(disk)

        expected = sum(end <= length for end in ends) - 1
        assert len(chunks) == expected
        assert index.file.size() == index.size == ends[expected]


def test_any_flipped_bit_in_the_last_chunk_drops_it(disk):
    saved(disk, 1000, 2000)
    last = loaded(disk)[1][-1]

    for position in range(last.at, last.at + last.size):
        twin = disk.clone()
        twin.flip_bit(PATH, position, position % 8)

        assert len(loaded(twin)[1]) == 1, position


def test_a_chunk_written_over_a_broken_one_is_read_back_correctly(disk):
    saved(disk, 1000, 2000)
    disk.flip_bit(PATH, disk.open(PATH).size() - 1)
    index, chunks = loaded(disk)
    assert len(chunks) == 1

    placed = index.append(
        *draft(LOG, LogRange(1000, 3000, 0, 0), *indexes(first=1500), NONE, LINES)
    )

    queue = ConsumeQueue("T", 0)
    queue.add_block(index.blocks(placed)[0][1])
    assert [position for position, _, _, _ in queue.read(0, 9)] == [1500, 1510, 1520]


def test_any_flipped_bit_in_an_earlier_chunk_drops_it_or_fails_when_it_is_read(disk):
    saved(disk, 1000, 2000)
    first = loaded(disk)[1][0]

    for position in range(first.size):
        twin = disk.clone()
        twin.flip_bit(PATH, position, position % 8)
        index, chunks = loaded(twin)

        if position < first.entries_at:
            assert chunks == []
            continue
        queue, keys = ConsumeQueue("T", 0), KeyIndex()
        queue.add_block(index.blocks(chunks[0])[0][1])
        keys.add_run(index.key_run(chunks[0]))
        with pytest.raises(CorruptRecord, match="delete that file"):
            queue.read(0, 1)
        with pytest.raises(CorruptRecord, match=PATH):
            list(keys.positions(0, 0, 5000))


@pytest.mark.parametrize("end", [0, 999, 1000, 1999, 2000])
def test_chunks_beyond_the_end_of_the_log_are_dropped(disk, end):
    saved(disk, 1000, 2000, 3000)

    _, chunks = loaded(disk, end)

    assert len(chunks) == end // 1000


def test_a_chunk_that_does_not_follow_the_one_before_is_dropped(disk):
    saved(disk, 1000, 2000)
    stray, chunk = draft(LOG, LogRange(1500, 2500, 0, 0), *indexes(first=1500), NONE, LINES)
    index, _ = loaded(disk)
    index.append(stray, chunk)

    assert len(loaded(disk)[1]) == 2


def test_a_chunk_that_claims_more_than_its_file_holds_is_dropped(disk):
    saved(disk, 1000)
    file = disk.open(PATH)

    file.write(0, b"\xff\xff\xff\xff")

    assert loaded(disk)[1] == []


def test_a_chunk_whose_parts_do_not_add_up_is_dropped(disk):
    saved(disk, 1000)
    file = disk.open(PATH)
    data = bytearray(file.read(0, 10_000))
    (chunk,) = loaded(disk)[1]
    data[60:64] = (chunk.keys + 1).to_bytes(4, "big")
    data[8:12] = zlib.crc32(data[12 : chunk.entries_at]).to_bytes(4, "big")

    rewrite(disk, PATH, bytes(data))

    assert loaded(disk)[1] == []


def test_an_index_that_does_not_fit_on_the_disk_gives_the_room_back(disk):
    saved(disk, 1000)
    index, _ = loaded(disk)
    used = disk.space().used
    disk.capacity = used + 2 * 4096
    data, chunk = draft(
        LOG, LogRange(1000, 99_000, 0, 0), *indexes(map(str, range(999)), first=1000), NONE, LINES
    )

    with pytest.raises(OSError, match="No space") as problem:
        index.append(data, chunk)

    assert problem.value.errno == errno.ENOSPC
    assert disk.space().used == used
    disk.capacity = None
    index.append(data, chunk)
    assert [chunk.part.end for chunk in loaded(disk, 99_000)[1]] == [1000, 99_000]


def test_segments_with_an_index_are_found_by_the_names_of_index_files(disk):
    for name in (path_of(0), path_of(77), "index/77.idx", "index/x.idx", f"{path_of(5)}.new"):
        rewrite(disk, name, b"")

    assert indexed_segments(disk) == [0, 77]
