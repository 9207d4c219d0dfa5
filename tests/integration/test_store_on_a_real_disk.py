"""The store on a disk of this machine: restarts, cuts, short writes, and files left open."""

import errno
import os

import pytest

from tests.unit.store.shelf import Shelf
from txmq.errors import DiskFull
from txmq.runtime.disk import LocalDisk
from txmq_broker.store.log.commit_log import PATH as HIGH_WATER

BIG = b"x" * 1500
"""Two spans with a body like this one fill a file of 4096 bytes."""


def test_a_log_on_a_real_disk_survives_restarts_of_every_kind(tmp_path):
    shelf = Shelf(LocalDisk(tmp_path))
    expected = {}
    for number in range(12):
        body = b"%d" % number + BIG
        expected[shelf.add(body)[0].offset] = body
        (shelf.restart, shelf.restart_cleanly, shelf.checkpoint)[number % 3]()

        assert shelf.bodies() == expected
    shelf.close()


@pytest.mark.fault("S1")
def test_a_log_on_a_real_disk_that_is_cut_keeps_its_whole_spans(tmp_path):
    shelf = Shelf(LocalDisk(tmp_path))
    shelf.add(b"one", b"two", b"three")
    end = shelf.store.log.end
    shelf.close()
    (name,) = shelf.disk.names("log")
    path = tmp_path / "log" / name

    for length in range(end - 1, end - 200, -17):
        (tmp_path / HIGH_WATER).unlink()  # What is cut here was never durable.
        with path.open("r+b") as file:
            file.truncate(length)
        again = Shelf(LocalDisk(tmp_path))

        assert again.bodies() in ({0: b"one", 1: b"two"}, {0: b"one"})
        again.close()


@pytest.mark.fault("S7")
@pytest.mark.parametrize("ends", ["no space", "nothing written"])
def test_short_writes_of_a_real_disk_are_finished_or_refused(tmp_path, monkeypatch, ends):
    shelf = Shelf(LocalDisk(tmp_path))
    pwrite, room, kept = os.pwrite, 2000, []

    def write_some(descriptor, data, position):
        nonlocal room
        size = min(7, len(data), room)
        room -= size
        if not size and ends == "no space":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data[:size], position)

    monkeypatch.setattr(os, "pwrite", write_some)
    for number in range(6):
        body = b"%d" % number * 300
        try:
            shelf.add(body)
        except DiskFull:
            continue
        kept.append(body)
    assert 0 < len(kept) < 6
    assert list(shelf.bodies().values()) == kept

    room = 1 << 30
    shelf.add(b"last")

    expected = dict(enumerate([*kept, b"last"]))
    assert shelf.bodies() == expected
    shelf.restart()
    assert (shelf.bodies(), shelf.recovery.cut_bytes) == (expected, 0)
    shelf.close()


def test_closing_the_store_closes_every_file(tmp_path):
    def open_files():
        return [path for path in map(_target, os.listdir("/proc/self/fd")) if str(tmp_path) in path]

    shelf = Shelf(LocalDisk(tmp_path))
    shelf.add(*[BIG] * 9)
    shelf.checkpoint()
    shelf.drop_first_file()
    assert open_files()

    shelf.close()

    assert open_files() == []
    shelf.open()
    shelf.close()
    assert open_files() == []


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
