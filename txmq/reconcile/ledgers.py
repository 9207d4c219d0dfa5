"""The inputs and the result of a day's reconciliation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from txmq.reconcile.explanations import Explanation
from txmq.reconcile.second_pass import Sums

__all__ = ["EarlierDays", "Ledgers", "ReconciledDay", "Rows"]

Rows: TypeAlias = DataFrame | pa.Table
"""The rows of a table: of Spark if they may be many, else in this process."""


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
    """All entries of these items, of any day; as ``BOOKED``."""
    messages: DataFrame | None = None
    """The messages of these items, as known when that day ended; as ``MESSAGES``."""
    failures: DataFrame | None = None
    """The failures of these items, as ``FAILURES``."""
    balances: DataFrame | None = None
    """The closing balances of the day before."""
    history: Ledgers | None = None
    """The extracts of the days of ``day.history``."""
    agreed: DataFrame | None = None
    """The transfers that were agreed on these days, as ``MATCHES``; only their keys are read."""
    closed: DataFrame | None = None
    """The items closed on these days, as ``ITEMS``; only their keys and histories are read."""
    explanations: Mapping[str, Explanation] = {}
    """The valid explanations, by break id."""


class ReconciledDay(NamedTuple):
    """The result of a day."""

    tables: dict[str, Rows]
    """The tables of the run except ``proofs``: ``items`` that are not agreed when the day ends, and
    ``closed`` ones that are agreed now; all ``entries``, ``messages`` and ``failures`` of the open
    items, from which the next day continues; ``by_hand``, the messages that operators decided on
    the day; and ``matches``, ``balances`` and ``totals``."""
    broken: Rows
    """The proofs of single transfers that do not hold; as ``PROOFS``."""
    sums: Sums
    """The sums for the other proofs."""
    was_closed: bool
    """True if the day before has a result."""
