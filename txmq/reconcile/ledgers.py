"""What goes into a day's reconciliation and what comes out of it, as DataFrames."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame

__all__ = ["Ledgers", "Outcome", "Yesterday"]


class Ledgers(NamedTuple):
    """The three ledgers; tables of banks have one more column, ``bank``."""

    entries: DataFrame
    opening: DataFrame
    later: DataFrame
    accounts: DataFrame
    messages: DataFrame
    failures: DataFrame
    offsets: DataFrame


class Yesterday(NamedTuple):
    """What earlier days have left; none of it on the first day."""

    items: DataFrame | None = None
    """What was not agreed when the day before ended, as ``ITEMS``."""
    entries: DataFrame | None = None
    """What the banks had booked of these, whenever that was; as ``ENTRIES``, with their bank."""
    messages: DataFrame | None = None
    """What the log had of these, as it was known when that day ended; as ``MESSAGES``."""
    failures: DataFrame | None = None
    """Likewise, as ``FAILURES``."""
    balances: DataFrame | None = None
    """What accounts had when the day began, by the result of the day that ended then."""
    history: Ledgers | None = None
    """All that was read on the days that are looked back."""
    closed: DataFrame | None = None
    """What was closed on these days: key, and the history of each."""
    explanations: DataFrame | None = None
    """What people have said about breaks, as ``EXPLANATIONS``."""


class Outcome(NamedTuple):
    """What a day comes to; each is a table of :mod:`txmq.reconcile.tables`."""

    matches: DataFrame
    items: DataFrame
    """Those that are not agreed when the day ends."""
    closed: DataFrame
    """Those that were not, and are agreed now; also ``ITEMS``."""
    entries: DataFrame
    """All that the banks have booked of the items; the next day goes on from it."""
    messages: DataFrame
    failures: DataFrame
    by_hand: DataFrame
    """What operators have decided on the day, whatever became of it; as ``MESSAGES``."""
    balances: DataFrame
    proofs: DataFrame
    totals: DataFrame
