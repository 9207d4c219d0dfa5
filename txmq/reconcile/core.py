"""A day's reconciliation: DataFrames in, DataFrames out.

The match finds the transfers that plainly agree, in one aggregation by key. For every other
transfer, Spark collects all rows and Python decides. The account balances are summed from the same
frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from txmq.reconcile.arrow import arrow_table
from txmq.reconcile.balances import balances
from txmq.reconcile.classes import Class
from txmq.reconcile.decisions import Decider
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.frames import Frames, exact_sum, rows_of
from txmq.reconcile.items import with_doubts
from txmq.reconcile.ledgers import Role
from txmq.reconcile.match import decide, verdicts
from txmq.reconcile.refusals import raised_here
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.spark import setting
from txmq.reconcile.tables import ITEMS, MATCHES, MESSAGES, RESULTS, TOTALS, Sums

__all__ = ["ReconciledDay", "reconcile_frames"]

_ITEMS_AT_A_PLACE: Final = 100_000
_ADAPTS: Final = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


class ReconciledDay(NamedTuple):
    """The result of a day."""

    tables: dict[str, DataFrame]
    """The tables of the run except ``proofs``: ``items`` that are not agreed at the end of the day,
    and earlier ones that are now ``closed``; all ``entries``, ``messages`` and ``failures`` of the
    open items, which the next day continues; ``by_hand``, the messages that operators decided on
    the day; and ``matches``, ``balances`` and ``totals``."""
    broken: DataFrame
    """The proofs of single transfers that fail, or hold again; as ``PROOFS``."""
    sums: Sums
    """The sums for the other proofs."""
    was_closed: bool
    """True if the day before has a result."""
    kept: tuple[DataFrame, ...]
    """The frames that Spark caches until :meth:`release`."""

    def release(self) -> None:
        """Free the cached frames; reading a table after that computes it again."""
        for frame in self.kept:
            frame.unpersist()


def reconcile_frames(
    frames: Frames,
    explanations: Mapping[str, Explanation],
    rules: Rules,
    day: date,
    as_of_ms: int,
) -> ReconciledDay:
    """Reconcile the ledgers of a day.

    ``explanations`` has the valid explanations by break id. ``as_of_ms`` is the end of the day, or
    the time of reading if that was earlier.

    Raises:
        ReconcileRefused: A sum does not fit into 64 bits; the message names its row.
    """
    window = rules.day.window(day)
    offsets = {
        (row["group"], row["topic"], row["queue"]): row["next_offset"]
        for row in (frames[Role.OFFSETS].collect() if Role.OFFSETS in frames else ())
    }
    # Otherwise cached frames keep the partitions of a shuffle, 200 by default, even with few rows.
    with setting(frames[Role.ENTRIES].sparkSession, _ADAPTS, "true"):
        found = verdicts(frames, rules, window).persist()
        suspects = found.where(F.col("class").isNull()).select("key", "was_agreed")
        decider = Decider(rules, day, as_of_ms, offsets, explanations)
        decided = decide(frames, suspects, window, decider).persist()
        of_accounts = balances(frames, rules, window).persist()

    tables = {name: _table(decided, name) for name in RESULTS if name != "by_hand"}
    broken = tables.pop("proofs")
    plain = found.where(F.col("class").isNotNull())
    tables["matches"] = plain.select(*MATCHES.names).unionByName(tables["matches"])
    with raised_here():
        places = 1 + tables["items"].count() // _ITEMS_AT_A_PLACE
    place = F.pmod(F.xxhash64("fold"), F.lit(places))
    tables["items"] = tables["items"].groupBy(place).applyInArrow(with_doubts, ITEMS.ddl)
    messages = rows_of(Role.MESSAGES, frames[Role.MESSAGES], window)
    by_hand = messages.where(F.col("decided_by") == "operator")
    tables["by_hand"] = by_hand.select(*MESSAGES.names)
    tables["balances"] = of_accounts

    sums: Sums = Counter()
    of_decided = _table(decided, "sums").groupBy("name", "of", "currency")
    with raised_here():
        _add(sums, of_decided.agg(F.sum("value").alias("value")).collect())
    _add_plain(sums, plain)
    _add(sums, _new_ids(frames, rules, window))
    tables["totals"] = _totals(of_accounts, sums)
    was_closed = Role.BALANCES in frames
    return ReconciledDay(tables, broken, sums, was_closed, (found, decided, of_accounts))


def _table(decided: DataFrame, name: str) -> DataFrame:
    """The rows of one of the tables that Python fills."""
    return decided.where(F.col(name).isNotNull()).select(f"{name}.*")


def _add(sums: Sums, rows: Iterable[Row]) -> None:
    for row in rows:
        sums[row["name"], row["of"], row["currency"]] += int(row["value"])


def _add_plain(sums: Sums, plain: DataFrame) -> None:
    """Add the plain transfers to the sums of their classes."""
    received = {Class.MATCHED: "credited", Class.RETURNED: "returned"}
    by_class = plain.groupBy("class", "currency", "ordered").agg(
        F.count("*").alias("transfers"), exact_sum(F.col("amount")).alias("amount")
    )
    for row in by_class.collect():
        class_, amount = Class(row["class"]), int(row["amount"])
        place = class_.value, row["currency"]
        sums["transfers", *place] += row["transfers"]
        sums["debited", *place] += amount
        if class_ in received:
            sums[received[class_], *place] += amount
        if row["ordered"]:
            sums["ordered", *place] += amount


def _new_ids(frames: Frames, rules: Rules, window: DayWindow) -> list[Row]:
    """The number of new ids, for each bank whose ids have no gaps."""
    banks = rules.banks(lambda bank: bank.entries.gapless)
    if not banks:
        return []
    entries = rows_of(Role.ENTRIES, frames[Role.ENTRIES], window).where(F.col("bank").isin(*banks))
    if Role.BALANCES in frames:
        known = frames[Role.BALANCES].groupBy("bank").agg(F.max("last_id").alias("known"))
        entries = entries.join(F.broadcast(known), "bank", "left")
        entries = entries.where(F.col("known").isNull() | (F.col("id") > F.col("known")))
    counts = entries.groupBy(F.col("bank").alias("of")).agg(F.count_distinct("id").alias("value"))
    return counts.select(F.lit("ids").alias("name"), "of", F.lit("").alias("currency"),
                         "value").collect()  # fmt: skip


def _totals(any_frame: DataFrame, sums: Sums) -> DataFrame:
    names = TOTALS.names[3:]
    groups = sorted({(of, currency) for name, of, currency in sums if name in names})
    rows = [
        (class_, Class(class_).group, currency, *(sums[name, class_, currency] for name in names))
        for class_, currency in groups
    ]
    return any_frame.sparkSession.createDataFrame(arrow_table(TOTALS, rows))
