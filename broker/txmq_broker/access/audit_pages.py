"""Pages of the audit, read from the newest entry back, so that a request reads little of it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from txmq.errors import InvalidParameter
from txmq.protocol.operations import AuditedRequest, AuditPage, ListAudit
from txmq.runtime.disk import Disk, File

__all__ = ["FOLDER", "audit_files", "audit_page", "is_wanted"]

FOLDER: Final = "audit"

PAGE_ENTRIES_MAX: Final = 500
READ_BYTES: Final = 256 * 1024
"""The bytes that are read at once."""
REQUEST_BYTES_MAX: Final = 512 * 1024
"""The bytes that one request reads, some milliseconds of the broker; the answer then goes on."""

_END: Final = 10**12 - 1
"""The end of a file, whatever its size."""
_PLACE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,12})")


class AuditPlace(NamedTuple):
    """A file of the audit, and the end of the entries that are still to be read in it."""

    number: int
    end: int

    def __str__(self) -> str:
        return f"{self.number}:{self.end}"


def audit_files(disk: Disk) -> list[str]:
    """The names of the files, the oldest first."""
    return sorted(name for name in disk.names(FOLDER) if name.endswith(".jsonl"))


def audit_page(disk: Disk, wanted: ListAudit) -> AuditPage:
    """The entries that a request wants.

    Raises:
        InvalidParameter: The place to begin at is invalid.
        OSError: The disk fails.
    """
    numbers = [int(name.removesuffix(".jsonl")) for name in audit_files(disk)]
    place = _start(numbers, wanted.before)
    count = max(1, min(wanted.count, PAGE_ENTRIES_MAX))
    found: list[AuditedRequest] = []
    room = REQUEST_BYTES_MAX
    while place is not None and room > 0:
        file = disk.open(f"{FOLDER}/{place.number:06}.jsonl")
        try:
            end = min(place.end, file.size())
            start, lines = _lines_before(file, end)
        finally:
            file.close()
        room -= end - start
        for at, line in reversed(lines):
            entry = _entry(line)
            if entry is None:
                continue
            if entry.at_ms < wanted.since_ms:
                return AuditPage(found)
            if is_wanted(entry, wanted):
                found.append(entry)
                if len(found) == count:
                    return AuditPage(found, str(AuditPlace(place.number, at)))
        place = AuditPlace(place.number, start) if start > 0 else _file_before(numbers, place)
    return AuditPage(found, "" if place is None else str(place))


def _start(numbers: list[int], before: str) -> AuditPlace | None:
    if not before:
        return AuditPlace(numbers[-1], _END) if numbers else None
    match = _PLACE.fullmatch(before)
    if match is None:
        raise InvalidParameter(f"before must be a place of an answer, not {before[:40]!r}")
    place = AuditPlace(int(match[1]), int(match[2]))
    # Old files are deleted meanwhile.
    return place if place.number in numbers else _file_before(numbers, place)


def _file_before(numbers: list[int], place: AuditPlace) -> AuditPlace | None:
    older = [number for number in numbers if number < place.number]
    return AuditPlace(older[-1], _END) if older else None


def _lines_before(file: File, end: int) -> tuple[int, list[tuple[int, bytes]]]:
    """The last whole lines before a position, each with its own; and where the first begins."""
    size = READ_BYTES
    while True:
        start = max(0, end - size)
        data = file.read(start, end - start)
        cut = data.find(b"\n") + 1 if start else 0
        if start == 0 or 0 < cut < len(data):
            break
        size *= 2  # One line is longer than all this.
    lines = []
    at = start + cut
    for line in data[cut:].splitlines(keepends=True):
        lines.append((at, line))
        at += len(line)
    return start + cut, lines


def _entry(line: bytes) -> AuditedRequest | None:
    try:
        return msgspec.json.decode(line, type=_StoredEntry).shown()
    except msgspec.DecodeError:
        return None  # The head of a file, or a line that a crash has torn.


class _StoredEntry(msgspec.Struct):
    at_ms: int
    request: str
    peer: str
    account: str = ""
    fields: dict[str, str] = {}
    body: str = ""
    refused: str = ""

    def shown(self) -> AuditedRequest:
        return AuditedRequest(**msgspec.structs.asdict(self))


def is_wanted(entry: AuditedRequest, wanted: ListAudit) -> bool:
    """Whether an entry has what a request looks for; its first moment is left to the caller."""
    if wanted.until_ms and entry.at_ms >= wanted.until_ms:
        return False
    if wanted.refused and not entry.refused:
        return False
    if wanted.action.casefold() not in entry.request.casefold():
        return False
    people = (entry.account, entry.fields.get("operator", ""), entry.peer)
    return any(wanted.person.casefold() in person.casefold() for person in people)
