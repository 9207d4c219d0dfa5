"""The rows of one day: inside its window, with a key, and as decided at its end.

A ledger that is read after the day ended has later facts too. They are masked here, so that a day
has the same result whenever it is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.rules import TRANSFER_KINDS, DayWindow
from txmq.reconcile.transfer import LONE

__all__ = [
    "as_known",
    "entries_of",
    "hash_of",
    "index_in",
    "join_hashes",
    "materialize",
    "messages_of",
    "transfers_of",
    "union",
]


def entries_of(entries: DataFrame, window: DayWindow) -> DataFrame:
    """The entries recorded on the day."""
    at = f.col("recorded_ms")
    return entries.where((at >= window.start_ms) & (at < window.end_ms))


def transfers_of(entries: DataFrame) -> DataFrame:
    """The entries of transfers. All entries without a key that a bank wrote at one moment have one
    key (:mod:`txmq.reconcile.transfer`).
    """
    alone = f.concat_ws(LONE, "bank", f.col("recorded_ms").cast("string"))
    return entries.where(f.col("kind").isin(*TRANSFER_KINDS)).withColumn(
        "key", f.coalesce("key", alone)
    )


def messages_of(messages: DataFrame, window: DayWindow) -> DataFrame:
    """The messages stored or decided on the day, as known at its end."""
    stored = f.col("stored_ms")
    decided = f.coalesce("decided_ms", stored)
    moment = f.when(f.col("state").isin("prepared", "sent"), stored).otherwise(decided)
    return as_known(messages, window.end_ms).where(
        (stored < window.end_ms) & (moment >= window.start_ms) & (moment < window.end_ms)
    )


def as_known(messages: DataFrame, end_ms: int) -> DataFrame:
    """Messages as known at a moment: later decisions are masked."""
    state = f.col("state")
    is_known = (state == "sent") | (f.coalesce("decided_ms", "stored_ms") < end_ms)
    masked = {
        "state": f.when(is_known, state).otherwise("prepared"),
        "key": f.coalesce("key", f.concat(f.lit("log/#"), f.col("position").cast("string"))),
        "queue_offset": f.when(is_known, f.col("queue_offset")),
    } | {name: f.when(is_known, f.col(name)) for name in ("decided_ms", "decided_by", "reason")}
    return messages.withColumns(masked)


def materialize(rows: DataFrame) -> DataFrame:
    """Compute rows once, and forget the plan that made them: Spark would analyse it again for each
    query.
    """
    return rows.localCheckpoint()


def hash_of(key: str) -> Column:
    """The hash of a key, for joins of all keys of a day: numbers are shuffled and compared
    faster than texts.
    """
    return f.xxhash64(key).alias("hash")


def join_hashes(rows: DataFrame, others: DataFrame, how: str = "inner") -> DataFrame:
    """Rows with the columns that ``others`` has for the hash of their key."""
    return rows.withColumn("hash", hash_of("key")).join(others, "hash", how).drop("hash")


def index_in(name: str, values: Sequence[str]) -> Column:
    """The index of a column's text in a list of plain names; NULL if it is not in it."""
    cases = "".join(f" WHEN '{value}' THEN {place}" for place, value in enumerate(values))
    return f.expr(f"CASE {name}{cases} END" if cases else "CAST(NULL AS INT)")


def union(*some: DataFrame | None) -> DataFrame:
    """The union of tables, with all of their columns; ``None`` is ignored."""
    there = [table for table in some if table is not None]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), there)
