"""The audit is read from its newest entry back, in pieces, over files that come and go."""

import msgspec
import pytest

from tests.unit.names.names_peer import SetClock
from txmq.errors import InvalidParameter
from txmq.protocol.operations import ListAudit
from txmq.testing import MemoryDisk
from txmq_broker.access import audit
from txmq_broker.access import audit as audit_pages
from txmq_broker.access.audit import AuditEntry, AuditLog, audit_page

COUNT = 60


@pytest.fixture
def disk(monkeypatch):
    """Sixty entries in several files; the third of each ten is refused."""
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(audit_pages, "READ_BYTES", 100)
    monkeypatch.setattr(audit_pages, "REQUEST_BYTES_MAX", 700)
    disk = MemoryDisk()
    log = AuditLog(disk, SetClock())
    log.open("me")
    for number in range(COUNT):
        refused = "not today" if number % 10 == 3 else ""
        fields = {"operator": f"Person-{number % 3}", "name": "x" * (number * 5)}
        log.append(AuditEntry(number, "DELETE_TOPIC_IN_BROKER", "p:1", "", fields, "", refused))
    log.append(AuditEntry(COUNT, "CHANGE_SET", "p:2", "root"))
    log.close()
    assert len(audit_pages.audit_files(disk)) > 3
    return disk


def read(disk, most=10_000, **wanted):
    """All entries that several requests list, and how many requests that took."""
    found, before = [], ""
    for asked in range(1, most + 1):
        page = audit_page(disk, ListAudit(before=before, **wanted))
        found += page.entries
        before = page.next
        if not before:
            return [entry.at_ms for entry in found], asked
    return [entry.at_ms for entry in found], asked


def test_every_entry_is_listed_once_and_newest_first(disk):
    for count in (1, 7, 100):
        found, _ = read(disk, count=count)
        assert found == list(range(COUNT, -1, -1)), count


def test_a_request_reads_a_limited_part_and_the_next_one_continues(disk):
    found, asked = read(disk, person="nobody like this")
    assert found == []
    assert asked > 5


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"refused": True}, [53, 43, 33, 23, 13, 3]),
        ({"person": "ROOT"}, [60]),
        ({"person": "person-1", "since_ms": 50}, [58, 55, 52]),
        ({"action": "change"}, [60]),
        ({"since_ms": 57}, [60, 59, 58, 57]),
        ({"until_ms": 2}, [1, 0]),
        ({"person": "p:2"}, [60]),
    ],
)
def test_only_entries_that_match_the_filters_are_listed(disk, wanted, expected):
    assert read(disk, **wanted)[0] == expected


def test_a_torn_line_and_a_deleted_file_hide_no_other_entry(disk):
    names = audit_pages.audit_files(disk)
    newest = disk.open(f"{audit_pages.FOLDER}/{names[-1]}")
    newest.write(newest.size(), b'{"at_ms":61,"requ')
    newest.close()
    page = audit_page(disk, ListAudit(count=1))
    assert [entry.at_ms for entry in page.entries] == [COUNT]

    second = int(names[1].removesuffix(".jsonl"))
    disk.remove(f"{audit_pages.FOLDER}/{names[1]}")
    page = audit_page(disk, ListAudit(before=f"{second}:200", count=1))
    oldest, _ = read(disk)
    assert page.entries[0].at_ms in oldest
    assert oldest[-1] == 0


@pytest.mark.parametrize("before", ["x", "1", "1:-1", "1:2:3", "9" * 40 + ":1"])
def test_a_forged_page_position_is_refused(disk, before):
    with pytest.raises(InvalidParameter, match="place of an answer"):
        audit_page(disk, ListAudit(before=before))


def test_without_entries_the_page_is_empty():
    assert msgspec.structs.astuple(audit_page(MemoryDisk(), ListAudit())) == ([], "")
