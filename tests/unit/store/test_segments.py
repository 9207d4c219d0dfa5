"""The log's files: one run of bytes, whatever a failing disk or a crash leaves in the directory."""

import errno
from contextlib import suppress

import pytest

from tests.unit.store.shelf import rewrite
from txmq.errors import CorruptRecord, DiskFull, WriteFailed
from txmq.protocol.span import name_of
from txmq.runtime.disk import LocalDisk
from txmq.testing import Loss, MemoryDisk
from txmq_broker.store.log.segments import Extent, Segments

SIZE = 100


@pytest.fixture(params=["memory", "directory"])
def disk(request, tmp_path):
    return MemoryDisk() if request.param == "memory" else LocalDisk(tmp_path)


def opened(disk):
    segments = Segments(disk, SIZE)
    segments.open()
    return segments


def fail_a_write(segments, kind=WriteFailed):
    with pytest.raises(kind):
        segments.append(b"x" * 50)


def filled(disk, *sizes):
    """Segments with writes of these sizes, each with its own letter."""
    segments = opened(disk)
    for number, size in enumerate(sizes):
        segments.append(bytes([ord("a") + number]) * size)
    return segments


def path(start):
    return f"log/{name_of(start)}.log"


# --- while all goes well ---


def test_names_sort_as_positions_do():
    starts = [0, 9, 10, 2**30, 10**19]

    assert sorted(map(name_of, starts)) == list(map(name_of, starts))


def test_a_file_ends_where_the_next_one_begins(disk):
    segments = filled(disk, 60, 40, 50, 60)

    assert segments.extents() == [Extent(0, 100), Extent(100, 150), Extent(150, 210)]
    assert (segments.start, segments.starts[-1], segments.end) == (0, 150, 210)
    segments.close()


def test_written_bytes_are_read_back_after_reopening(disk):
    filled(disk, 60, 40, 50, 60).close()

    segments = opened(disk)

    assert segments.extents() == [Extent(0, 100), Extent(100, 150), Extent(150, 210)]
    assert segments.read(55, 10) == b"aaaaabbbbb"
    assert segments.read(150, 60) == b"d" * 60
    segments.close()


def test_a_read_ends_at_the_end_of_its_file(disk):
    segments = filled(disk, 60, 40, 50)

    assert segments.read(90, 1000) == b"b" * 10
    assert segments.read(149, 1000) == b"c"
    assert segments.read(150, 1000) == b""
    segments.close()


def test_a_write_larger_than_a_file_gets_its_own_file(disk):
    segments = filled(disk, 10, 250, 10)

    assert segments.extents() == [Extent(0, 10), Extent(10, 260), Extent(260, 270)]
    segments.close()


def test_the_oldest_file_can_be_dropped(disk):
    segments = filled(disk, 60, 60, 60)

    assert segments.drop_first() == 60
    assert segments.read(0, 10) == b""
    assert segments.read(60, 10) == b"b" * 10
    assert disk.names("log") == [f"{name_of(60)}.log", f"{name_of(120)}.log"]
    segments.close()


def test_foreign_files_in_the_folder_are_ignored(disk):
    filled(disk, 10).close()
    for name in ("5.log", "notes.txt", f"{name_of(10)}.log.new", f"{name_of(10)}", "x.log"):
        rewrite(disk, f"log/{name}", b"?")

    segments = opened(disk)

    assert segments.extents() == [Extent(0, 10)]
    segments.close()


@pytest.mark.parametrize("position", [0, 1, 59, 60, 61, 119, 120, 150])
def test_the_log_can_be_cut_anywhere(disk, position):
    segments = filled(disk, 60, 60, 60)

    segments.cut(position)

    segments.append(b"new")
    assert segments.read(position, 10) == b"new"
    assert segments.end == position + 3
    segments.close()
    again = opened(disk)
    assert again.extents() == segments.extents()
    again.close()


# --- a disk that fails ---


@pytest.mark.fault("S7")
def test_a_full_disk_or_quota_is_distinguished_from_other_write_errors():
    for code, error in [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EIO, WriteFailed),
        (errno.EROFS, WriteFailed),
    ]:
        disk = MemoryDisk()
        segments = filled(disk, 10)
        disk.fail_writes(error=code)

        with pytest.raises(error):
            segments.append(b"x")


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
@pytest.mark.parametrize("before", [10, 90], ids=["into the old file", "into a new file"])
def test_a_write_after_failed_ones_takes_their_position(before, failures):
    disk = MemoryDisk()
    segments = filled(disk, before)
    disk.fail_writes(times=failures)

    with pytest.raises(WriteFailed):
        segments.append(b"lost" * 8)
    while segments.end == before:
        with suppress(WriteFailed):
            segments.append(b"kept" * 2)

    assert segments.end == before + 8
    assert segments.read(before, 100) == b"kept" * 2
    segments.close()
    again = opened(disk)
    assert again.end == before + 8
    assert again.read(before, 100) == b"kept" * 2


def test_bytes_left_by_a_failed_write_never_overlap_the_next_file():
    disk = MemoryDisk()
    segments = filled(disk, 10)
    disk.fail_writes(times=2)  # the write, and cutting off what it left
    fail_a_write(segments)

    segments.append(b"y" * 95)

    segments.close()
    again = opened(disk)
    assert again.extents() == [Extent(0, 10), Extent(10, 105)]
    assert again.read(0, 100) == b"a" * 10


def test_a_file_whose_creation_failed_is_removed_when_the_log_goes_on_before_it():
    disk = MemoryDisk()
    segments = filled(disk, 90)
    disk.fail_next_sync()  # of the folder
    fail_a_write(segments)

    segments.append(b"y" * 5)

    segments.close()
    assert opened(disk).extents() == [Extent(0, 95)]


@pytest.mark.fault("S5")
def test_a_file_created_at_the_second_attempt_has_a_durable_name():
    disk = MemoryDisk()
    segments = filled(disk, 90)
    disk.fail_next_sync()
    fail_a_write(segments)

    segments.append(b"x" * 50)
    segments.files[-1].sync()

    disk.crash(loss=Loss.EVERYTHING)
    assert opened(disk).read(90, 100) == b"x" * 50


def test_writes_are_refused_while_a_failed_write_cannot_be_cut_off():
    disk = MemoryDisk()
    segments = filled(disk, 10)
    disk.fail_writes()
    fail_a_write(segments)

    with pytest.raises(WriteFailed):
        segments.append(b"y")

    assert segments.end == 10


def test_a_write_on_a_full_disk_fails_and_keeps_earlier_bytes():
    disk = MemoryDisk()
    segments = filled(disk, 90)
    disk.capacity = disk.space().used

    fail_a_write(segments, DiskFull)

    disk.capacity = None
    segments.append(b"y" * 50)
    assert segments.read(0, 100) == b"a" * 90
    assert segments.read(90, 100) == b"y" * 50


def test_a_write_larger_than_a_file_reuses_the_file_of_a_failed_write():
    disk = MemoryDisk()
    segments = filled(disk, 90)
    disk.capacity = disk.space().used
    fail_a_write(segments, DiskFull)
    disk.capacity = None

    segments.append(b"y" * 500)

    assert segments.extents() == [Extent(0, 90), Extent(90, 590)]


def test_a_read_error_of_the_disk_is_reported_as_damage():
    disk = MemoryDisk()
    segments = filled(disk, 10)
    disk.fail_reads()

    with pytest.raises(CorruptRecord, match="cannot read"):
        segments.read(0, 10)


def test_a_file_that_cannot_be_deleted_stays_readable():
    disk = MemoryDisk()
    segments = filled(disk, 60, 60)
    disk.fail_writes(times=1)

    with pytest.raises(OSError, match="Input/output"):
        segments.drop_first()

    assert segments.read(0, 60) == b"a" * 60
    assert segments.drop_first() == 60


# --- what a crash leaves ---


def test_a_file_that_lost_its_end_is_opened_with_the_file_after_it():
    disk = MemoryDisk()
    filled(disk, 90, 60).close()
    rewrite(disk, path(0), b"a" * 70)

    segments = opened(disk)

    assert segments.extents() == [Extent(0, 90), Extent(90, 150)]
    assert [segments.reach(extent) for extent in segments.extents()] == [70, 150]
    assert [segments.goes_on_at(at) for at in (0, 70, 89, 90, 149)] == [90, 90, 90, None, None]


def test_bytes_beyond_the_start_of_the_next_file_are_cut_off():
    disk = MemoryDisk()
    filled(disk, 90, 60).close()
    rewrite(disk, path(0), b"a" * 90 + b"failed")

    segments = opened(disk)

    assert segments.extents() == [Extent(0, 90), Extent(90, 150)]
    assert segments.read(0, 1000) == b"a" * 90


def test_an_empty_file_in_the_middle_of_another_is_deleted():
    disk = MemoryDisk()
    filled(disk, 90).close()
    rewrite(disk, path(80), b"")

    segments = opened(disk)

    assert segments.extents() == [Extent(0, 90)]
    assert disk.names("log") == [f"{name_of(0)}.log"]


def test_an_empty_file_at_the_end_continues_the_log():
    disk = MemoryDisk()
    filled(disk, 90).close()
    rewrite(disk, path(90), b"")

    segments = opened(disk)
    segments.append(b"b" * 5)

    assert segments.extents() == [Extent(0, 90), Extent(90, 95)]
