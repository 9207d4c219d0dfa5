"""The rows of one day: inside its window, with a key, and as decided at its end.

A ledger that is read after the day ended has later facts too. They are masked here, so that a day
has the same result whenever it is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from txmq.reconcile.rules import DayWindow

__all__ = [
    "UNDECIDED",
    "VISIBLE",
    "as_known",
    "broadcast_if_few",
    "entries_of",
    "hash_of",
    "index_in",
    "is_transfer",
    "legs_of",
    "messages_of",
    "rows_with_hashes",
    "rows_with_keys",
    "transfers_of",
    "union",
]

VISIBLE: Final = ("sent", "committed")
"""States of messages that are visible to consumers."""
UNDECIDED: Final = ("prepared", "parked")

_SENT_MAX: Final = 2_000_000
"""The most keys to broadcast: some 30 bytes each in the memory of every worker."""

_TRANSFERS: Final = ("debit", "credit", "return")


def entries_of(entries: DataFrame, window: DayWindow) -> DataFrame:
    """The entries recorded on the day."""
    at = f.col("recorded_ms")
    return entries.where((at >= window.start_ms) & (at < window.end_ms))


def transfers_of(entries: DataFrame) -> DataFrame:
    """The entries of transfers. An entry without a key becomes a transfer of its own."""
    number = f.coalesce("id", "recorded_ms").cast("string")
    alone = f.concat_ws("/#", "bank", number)
    return entries.where(is_transfer()).withColumn("key", f.coalesce("key", alone))


def legs_of(entries: DataFrame) -> DataFrame:
    """The entries that move a transfer's money into or out of an account other than clearing."""
    return entries.where(is_transfer() & (f.col("role") != "clearing"))


def is_transfer() -> Column:
    """A condition: the entry belongs to a transfer, by its kind."""
    return f.col("kind").isin(*_TRANSFERS)


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
    """Compute rows once, and forget the plan that made them.

    A frame that is only cached keeps its whole plan, and Spark analyses all of it for each query.
    If a frame is used five times inside another that is used five times, planning alone is slow.
    """
    return rows.localCheckpoint()


def broadcast_if_few(keys: DataFrame) -> DataFrame:
    """Keys for a look-up join; they are broadcast if there are few enough."""
    count = Observation()
    found = materialize(keys.observe(count, f.count(f.lit(1)).alias("rows")))
    # Spark cannot know the count in advance, and without a broadcast it sorts three whole
    # ledgers.
    return f.broadcast(found) if count.get["rows"] <= _SENT_MAX else found


def rows_with_keys(values: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows of some keys."""
    return values.join(keys, "key", "left_semi")


def hash_of(key: str) -> Column:
    """The hash of a key, for joins of all keys of a day: numbers are shuffled and compared
    faster than texts.
    """
    return f.xxhash64(key).alias("hash")


def rows_with_hashes(values: DataFrame, hashes: DataFrame, how: str = "left_semi") -> DataFrame:
    """The rows whose keys have these hashes."""
    return values.withColumn("hash", hash_of("key")).join(hashes, "hash", how).drop("hash")


def index_in(name: str, values: Sequence[str]) -> Column:
    """The index of a column's text in a list of values; NULL if it is not in it."""
    at = f.lit(None).cast("int")
    for place, value in reversed(list(enumerate(values))):
        at = f.when(f.col(name) == value, place).otherwise(at)
    return at


def union(*some: DataFrame | None) -> DataFrame:
    """The union of tables; ``None`` is ignored."""
    return reduce(DataFrame.unionByName, (table for table in some if table is not None))
