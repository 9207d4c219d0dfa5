"""The audit continues in a next file, and all clients wait while that begins."""

import tracemalloc
from types import SimpleNamespace

import pytest

from tests.unit.names.names_peer import SetClock
from txmq.protocol import command as commands
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import FrameReader
from txmq.testing import MemoryDisk
from txmq_broker.access import audit
from txmq_broker.access.audit import AuditLog, read_audit

PEER = SimpleNamespace(address="127.0.0.1:5", subject=None)


class CountingDisk(MemoryDisk):
    """Counts the files that are opened to be read."""

    reads = 0

    def open(self, path, *, create=False):
        self.reads += not create
        return super().open(path, create=create)


def requests(count):
    (frame,) = FrameReader().feed(commands.encode(RequestCode.DELETE_TOPIC_IN_BROKER, 1))
    return [commands.decode(frame)] * count


def test_beginning_the_next_file_does_not_read_the_full_one(monkeypatch):
    """16 MiB took half a second."""
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 500)
    disk = CountingDisk()
    log = AuditLog(disk, SetClock())
    log.open("me")

    for request in requests(20):
        log.note(PEER, request)
    log.close()

    assert disk.reads == 0
    assert len(disk.names("audit")) > 2
    assert len(list(read_audit(disk, pytest.fail))) == 20


def test_a_start_continues_the_newest_file():
    """Only the start reads it: all clients would wait for the first request of an operator."""
    disk = CountingDisk()
    for starts in range(2):
        disk.reads = 0
        log = AuditLog(disk, SetClock())
        log.open("me")
        for request in requests(2):
            log.note(PEER, request)
        log.close()
        assert disk.reads == starts

    assert disk.names("audit") == ["000001.jsonl"]
    assert len(list(read_audit(disk, pytest.fail))) == 4


def test_a_start_after_a_full_file_begins_the_next_one(monkeypatch):
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 500)
    disk = MemoryDisk()
    for _ in range(4):
        log = AuditLog(disk, SetClock())
        log.open("me")
        for request in requests(3):
            log.note(PEER, request)
        log.close()

    assert len(disk.names("audit")) > 2
    assert len(list(read_audit(disk, pytest.fail))) == 12


def test_a_start_after_a_torn_line_begins_a_new_line():
    disk, warnings = MemoryDisk(), []
    for _ in range(2):
        log = AuditLog(disk, SetClock())
        log.open("me")
        for request in requests(2):
            log.note(PEER, request)
        log.close()
        newest = disk.open("audit/000001.jsonl")
        newest.truncate(newest.size() - 10)

    assert len(list(read_audit(disk, warnings.append))) == 4
    (warning,) = warnings
    assert "line 3, 5 is torn" in warning


def test_a_request_with_an_invalid_field_is_still_recorded():
    """Handlers do not look at fields that they do not know."""
    disk = MemoryDisk()
    log = AuditLog(disk, SetClock())
    log.open("me")
    fields = {"topic": "T", "more": "xyz"}
    data = commands.encode(RequestCode.DELETE_TOPIC_IN_BROKER, 1, fields)
    (frame,) = FrameReader().feed(data.replace(b"xyz", b"\xf1yz"))

    log.note(PEER, commands.decode(frame))

    (entry,) = read_audit(disk, pytest.fail)
    assert entry.request == "DELETE_TOPIC_IN_BROKER"
    assert entry.fields == {"?": "text is not UTF-8: invalid continuation byte"}


def test_only_the_beginning_of_a_body_is_read():
    """A stranger may send 16 MiB that are not UTF-8, which took 0.2 s."""
    (request,) = requests(1)
    request.body = b"\xff" * 4 * 1024 * 1024
    disk = MemoryDisk()
    log = AuditLog(disk, SetClock())
    log.open("me")
    tracemalloc.start()

    log.note(PEER, request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    log.close()

    assert peak < 1024 * 1024
    (entry,) = read_audit(disk, pytest.fail)
    assert entry.body == "\ufffd" * 1999 + "…"
