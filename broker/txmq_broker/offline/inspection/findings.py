"""The findings of an inspection of a broker's directory, as commands show and print them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from txmq.protocol.span import Found
from txmq_broker.store.index_check import HalfFinder, QueueKey, indexed
from txmq_broker.store.log.segments import path_of as log_path_of

__all__ = [
    "Finding",
    "InspectionSummary",
    "OffsetRange",
    "Severity",
    "joined_offsets",
    "log_finding",
    "offsets_in",
]

_RANGES_MAX: Final = 1000
"""The maximum number of offset ranges in one finding."""


class Severity(StrEnum):
    """The severity of a finding."""

    NOTE = "note"
    """Nothing is lost: a crash or an operator caused this."""
    DAMAGE = "damage"
    """Bytes differ from those that were written."""
    LOSS = "loss"
    """Bytes or messages are missing."""


class OffsetRange(msgspec.Struct, gc=False):
    """A run of offsets of one queue."""

    topic: str
    queue: int
    first: int
    last: int


class Finding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One finding."""

    kind: str
    severity: Severity
    file: str
    text: str
    """The facts, their meaning, and the next step."""
    position: int | None = None
    """The position of the log at which it begins."""
    offset: int | None = None
    """The place in the file at which it begins."""
    size: int | None = None
    """Its size in bytes."""
    offsets: list[OffsetRange] = []
    """The affected messages, if known."""
    refuses_start: bool = False
    """True if it prevents the broker's start."""
    cut_at: int | None = None
    """The position at which to end the log so that the broker starts."""
    remove: str | None = None
    """The index file to delete as a repair."""
    is_acceptable: bool = False
    """True if the broker can start once an operator has accepted the loss."""


def log_finding(
    kind: str, severity: Severity, text: str, *, start: int, position: int, **more: Any
) -> Finding:
    """A finding at a position of the log, in the file that starts at ``start``."""
    return Finding(
        kind=kind,
        severity=severity,
        text=text,
        file=log_path_of(start),
        position=position,
        offset=position - start,
        **more,
    )


class InspectionSummary(msgspec.Struct, kw_only=True):
    """The totals of an inspection, and its number of findings of each severity."""

    kind: str = "summary"

    start: int = 0
    end: int = 0
    epoch: int = 0
    """The newest epoch of the spans."""
    files: int = 0
    spans: int = 0
    messages: int = 0
    halves: int = 0
    decisions: int = 0
    open_transactions: int = 0
    notes: int = 0
    damages: int = 0
    losses: int = 0


def joined_offsets(items: Iterable[tuple[str, int, int, int]]) -> list[OffsetRange]:
    """Runs of offsets, with adjacent ones joined."""
    found: dict[QueueKey, list[OffsetRange]] = {}
    count = 0
    for topic, queue, first, last in items:
        runs = found.setdefault((topic, queue), [])
        if runs and first == runs[-1].last + 1:
            runs[-1].last = last
        elif count < _RANGES_MAX:
            runs.append(OffsetRange(topic, queue, first, last))
            count += 1
    return [run for runs in found.values() for run in runs]


def offsets_in(
    records: Iterable[tuple[Found, int, bytes]], find_half: HalfFinder
) -> tuple[int, list[OffsetRange]]:
    """The number of records, and their offsets in their queues."""
    count = 0

    def places() -> Iterator[tuple[str, int, int, int]]:
        nonlocal count
        for found, position, data in records:
            count += 1
            for entry in indexed(find_half, found, position, data):
                yield *entry.queue, entry.offset, entry.offset

    ranges = joined_offsets(places())
    return count, ranges
