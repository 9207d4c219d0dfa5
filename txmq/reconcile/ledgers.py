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
    facts: DataFrame | None = None
    """All that was known of these, as ``FACTS``."""
    balances: DataFrame | None = None
    """What accounts had then."""
    matches: DataFrame | None = None
    """What was agreed on the days that are looked back, as ``MATCHES``."""
    explanations: DataFrame | None = None
    """What people have said about breaks: break_id, class, explained_by, explanation."""


class Outcome(NamedTuple):
    """What a day comes to; each is a table of :mod:`txmq.reconcile.tables`."""

    matches: DataFrame
    items: DataFrame
    """Those that are not agreed when the day ends."""
    closed: DataFrame
    """Those that were not, and are agreed now; also ``ITEMS``."""
    facts: DataFrame
    balances: DataFrame
    proofs: DataFrame
    totals: DataFrame
