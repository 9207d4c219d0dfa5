"""The commit log: where records will lie, and which files still have to be synced."""

import pytest

from txmq.errors import DiskFull, WriteFailed
from txmq.protocol.checksum import crc32
from txmq.protocol.span import HEAD_BYTES, head, read_head
from txmq.testing import Loss, MemoryDisk
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.log.segments import Segments

SIZE = 1000


@pytest.fixture
def disk():
    return MemoryDisk()


@pytest.fixture
def log(disk):
    return CommitLog(disk, SIZE)


def write(log, size):
    """Write a span of a size."""
    log.stage((b"x" * (size - HEAD_BYTES),), size - HEAD_BYTES, 0)
    return log.write()


def sync(log):
    point = log.sync_point()
    for file in point.files:
        file.sync()
    log.synced(point)


def durable_end(disk):
    """The end of the log without its unsynced bytes."""
    disk = disk.clone()
    disk.crash(loss=Loss.EVERYTHING)
    segments = Segments(disk, SIZE)
    segments.open()
    for extent in segments.extents():
        if segments.reach(extent) < extent.end:
            return segments.reach(extent)
    return segments.end


@pytest.mark.parametrize("size", [10, 10_000], ids=["small", "large"])
def test_a_span_has_the_same_bytes_whatever_its_pieces(disk, size):
    log = CommitLog(disk, 100_000)
    pieces = b"a" * size, bytearray(b"b" * size), b"c" * size
    log.stage(pieces, 3 * size, 0)

    end = log.write()

    payload = b"".join(pieces)
    written = log.read(0, end)
    found = read_head(written, 0, 0)
    assert found is not None
    assert written == head(0, 0, 0, payload, 0) + payload
    assert (found.size, found.checksum) == (end, crc32(payload))


def test_records_are_written_at_the_positions_given_at_staging(log):
    first = log.next_position
    log.stage((b"head", b"body"), 8, 0)
    second = log.next_position
    log.stage((b"next",), 4, 0)

    end = log.write()

    assert (first, second, end) == (HEAD_BYTES, HEAD_BYTES + 8, HEAD_BYTES + 12)
    assert log.next_position == end + HEAD_BYTES
    assert log.staged_bytes == 0


def test_the_head_of_a_span_states_how_much_was_durable_before_it(log, disk):
    write(log, 100)
    sync(log)
    write(log, 100)

    data = disk.open("log/" + disk.names("log")[0]).read(0, 1000)

    assert read_head(data, 0, 0).durable == 0
    assert read_head(data, 100, 100).durable == 100


def test_the_position_of_a_failed_write_is_reused(log, disk):
    write(log, 100)
    disk.fail_writes(times=1)
    with pytest.raises(WriteFailed):
        write(log, 200)

    assert (log.end, log.next_position, log.staged_bytes) == (100, 100 + HEAD_BYTES, 0)
    assert write(log, 50) == 150


def test_a_sync_covers_what_was_written_when_it_began(log, disk):
    write(log, 100)
    point = log.sync_point()
    for file in point.files:
        file.sync()
    write(log, 100)
    log.synced(point)

    assert log.durable == 100
    assert log.sync_point().files == point.files


def test_a_file_completed_during_a_sync_is_synced_again(log, disk):
    write(log, 400)
    point = log.sync_point()
    for file in point.files:
        file.sync()
    write(log, 400)  # into the same file, behind the sync's back
    write(log, 400)  # and on into the next
    log.synced(point)

    sync(log)

    assert log.durable == durable_end(disk) == 1200


def test_a_file_completed_by_a_write_that_failed_is_synced(log, disk):
    write(log, 400)
    write(log, 400)
    disk.capacity = disk.space().used
    with pytest.raises(DiskFull):
        write(log, 400)
    disk.capacity = None
    write(log, 100)

    sync(log)

    assert log.durable == durable_end(disk) == 900


def test_a_completed_file_that_is_durable_is_not_synced_again(log):
    write(log, 900)
    sync(log)
    write(log, 900)

    assert len(log.sync_point().files) == 1


def test_many_files_completed_before_a_sync_are_all_synced_by_it(log, disk):
    for _ in range(7):
        write(log, 600)

    sync(log)

    assert log.durable == durable_end(disk) == 4200
    assert len(log.sync_point().files) == 1


def test_syncs_that_end_out_of_order_never_lower_the_durable_end(log):
    write(log, 100)
    early = log.sync_point()
    write(log, 100)
    late = log.sync_point()

    log.synced(late)
    log.synced(early)

    assert log.durable == 200
