"""Bookings of transfers whose rows name no transfer; pure.

A row has no number of its booking, so all rows that a bank wrote at one moment meet first, under
:func:`~txmq.reconcile.rows.transfers_of`. Here each becomes a transfer of its own, together with
the row on the clearing account that has the opposite amount.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from txmq.reconcile.transfer import EntryRow

__all__ = ["LONE", "is_lone", "split_bookings"]

LONE: Final = "/@"
"""Between the bank and the moment of rows that name no transfer."""


def is_lone(entry: EntryRow) -> bool:
    """True if a row names no transfer."""
    return entry.key == f"{entry.bank}{LONE}{entry.recorded_ms}"


def split_bookings(entries: Iterable[EntryRow]) -> Iterator[EntryRow]:
    """Rows that a bank wrote at one moment, with the keys of their bookings.

    Which of several clearing rows with one amount belongs to which booking makes no difference.
    """
    legs: defaultdict[tuple[str, str, int], list[EntryRow]] = defaultdict(list)
    clearing: defaultdict[tuple[str, str, int], list[EntryRow]] = defaultdict(list)
    for entry in sorted(entries, key=_number):
        is_clearing = entry.role == "clearing"
        amount = -entry.amount if is_clearing else entry.amount
        (clearing if is_clearing else legs)[entry.kind, entry.currency, amount].append(entry)
    for fact, own in legs.items():
        others = clearing[fact]
        for leg in own:
            for entry in (leg, *others[:1]):
                yield _with_number(entry, _number(leg))
            del others[:1]
    for entry in (entry for others in clearing.values() for entry in others):
        yield _with_number(entry, _number(entry))


def _number(entry: EntryRow) -> int:
    return entry.recorded_ms if entry.id is None else entry.id


def _with_number(entry: EntryRow, number: int) -> EntryRow:
    return entry._replace(key=f"{entry.bank}/#{number}")
