"""The inputs and the result of a day's reconciliation, and the rows that belong to the day: those
inside its window, with a key, and as decided at its end.

A ledger that is read after the day ended has later facts too. They are masked here, so that a day
has the same result whenever it is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.explanations import Explanation
from txmq.reconcile.rules import TRANSFER_KINDS, DayWindow
from txmq.reconcile.second_pass import Sums
from txmq.reconcile.tables import LONE

__all__ = ["EarlierDays", "Ledgers", "ReconciledDay", "Rows", "index_in", "texts", "union"]

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

    @property
    def transfers(self) -> DataFrame:
        """The entries of transfers. All entries without a key that a bank wrote at one moment have
        one key (:mod:`txmq.reconcile.transfer`).
        """
        alone = f"coalesce(key, concat_ws('{LONE}', bank, CAST(recorded_ms AS STRING)))"
        known = self.entries.where(f"kind IN ({texts(TRANSFER_KINDS)})")
        return known.withColumn("key", f.expr(alone))

    def of_day(self, window: DayWindow) -> Ledgers:
        """With the entries recorded on a day, and the messages stored or decided on it."""
        moment = "IF(state IN ('prepared', 'sent'), stored_ms, coalesce(decided_ms, stored_ms))"
        is_in = f"BETWEEN {window.start_ms} AND {window.end_ms - 1}"
        was_there = f"stored_ms < {window.end_ms} AND {moment} {is_in}"
        return self._replace(
            entries=self.entries.where(f"recorded_ms {is_in}"),
            messages=self.messages_at(window.end_ms).where(was_there),
        )

    def messages_at(self, end_ms: int) -> DataFrame:
        """The messages as known at a moment: later decisions are masked."""
        is_known = f"state = 'sent' OR coalesce(decided_ms, stored_ms) < {end_ms}"
        masked = {
            "state": f"IF({is_known}, state, 'prepared')",
            "key": "coalesce(key, concat('log/#', CAST(position AS STRING)))",
        }
        for name in ("queue_offset", "decided_ms", "decided_by", "reason"):
            masked[name] = f"IF({is_known}, {name}, NULL)"
        return self.messages.withColumns({name: f.expr(value) for name, value in masked.items()})


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


def texts(values: Iterable[str]) -> str:
    """Plain names as SQL."""
    return ", ".join(f"'{value}'" for value in values)


def index_in(name: str, values: Sequence[str]) -> str:
    """The index of a column's text in a list of plain names, as SQL; NULL if it is not in it."""
    cases = "".join(f" WHEN '{value}' THEN {place}" for place, value in enumerate(values))
    return f"CASE {name}{cases} END" if cases else "CAST(NULL AS INT)"


def union(*some: DataFrame | None) -> DataFrame:
    """The union of tables, with all of their columns; ``None`` is ignored."""
    there = [table for table in some if table is not None]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), there)
