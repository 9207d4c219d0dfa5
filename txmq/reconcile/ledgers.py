"""The inputs and the result of a day's reconciliation, as DataFrames."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame

__all__ = ["EarlierDays", "Ledgers", "ReconciledDay"]


class Ledgers(NamedTuple):
    """The three ledgers; tables of banks have one more column, ``bank``."""

    entries: DataFrame
    opening: DataFrame
    later: DataFrame
    accounts: DataFrame
    messages: DataFrame
    failures: DataFrame
    offsets: DataFrame


class EarlierDays(NamedTuple):
    """The state that earlier days left for this one; all empty on the first day."""

    items: DataFrame | None = None
    """The open items when the day before ended, as ``ITEMS``."""
    entries: DataFrame | None = None
    """All entries of these items, of any day; as ``ENTRIES``, with their bank."""
    messages: DataFrame | None = None
    """The messages of these items, as known when that day ended; as ``MESSAGES``."""
    failures: DataFrame | None = None
    """The failures of these items, as ``FAILURES``."""
    balances: DataFrame | None = None
    """The closing balances of the day before."""
    history: Ledgers | None = None
    """The extracts of the days of ``day.history``."""
    closed: DataFrame | None = None
    """The items closed on these days: key and history."""
    explanations: DataFrame | None = None
    """Explanations of breaks, as ``EXPLANATIONS``."""


class ReconciledDay(NamedTuple):
    """The result of a day; each field is a table of :mod:`txmq.reconcile.tables`."""

    matches: DataFrame
    items: DataFrame
    """The items that are not agreed when the day ends."""
    closed: DataFrame
    """Former items that are agreed now; also as ``ITEMS``."""
    entries: DataFrame
    """All entries of the open items; the next day continues from them."""
    messages: DataFrame
    failures: DataFrame
    by_hand: DataFrame
    """Messages that operators decided on the day; as ``MESSAGES``."""
    balances: DataFrame
    proofs: DataFrame
    totals: DataFrame
