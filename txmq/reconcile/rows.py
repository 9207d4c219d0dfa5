"""The rows of one day as they count on it: in the window, with a key, and as far as was decided by
its end.

Whatever is read later than the day ended says more than was known then. It is masked here, so that
a day comes to the same whenever it is worked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from txmq.reconcile.rules import Window

__all__ = [
    "UNDECIDED",
    "VISIBLE",
    "as_known",
    "entries_of",
    "few",
    "hash_of",
    "hashed_in",
    "is_transfer",
    "legs_of",
    "messages_of",
    "one_of",
    "place_of",
    "together",
    "transfers_of",
]

VISIBLE: Final = ("sent", "committed")
"""States of messages that consumers have seen, or may see."""
UNDECIDED: Final = ("prepared", "parked")

_SENT_MAX: Final = 2_000_000
"""Keys of some 30 bytes each, in the memory of every worker."""

_TRANSFERS: Final = ("debit", "credit", "return")


def entries_of(entries: DataFrame, window: Window) -> DataFrame:
    """What was recorded on the day."""
    at = f.col("recorded_ms")
    return entries.where((at >= window.start_ms) & (at < window.end_ms))


def transfers_of(entries: DataFrame) -> DataFrame:
    """Those of transfers. What no transfer's id stands at is a transfer of its own."""
    number = f.coalesce("id", "recorded_ms").cast("string")
    alone = f.concat_ws("/#", "bank", number)
    return entries.where(is_transfer()).withColumn("key", f.coalesce("key", alone))


def legs_of(entries: DataFrame) -> DataFrame:
    """Those that give a transfer's money to somebody, or take it."""
    return entries.where(is_transfer() & (f.col("role") != "clearing"))


def is_transfer() -> Column:
    """Whether an entry's kind says that it is of a transfer."""
    return f.col("kind").isin(*_TRANSFERS)


def messages_of(messages: DataFrame, window: Window) -> DataFrame:
    """What was stored or decided on the day, as it was known at its end."""
    stored = f.col("stored_ms")
    decided = f.coalesce("decided_ms", stored)
    moment = f.when(f.col("state").isin("prepared", "sent"), stored).otherwise(decided)
    return as_known(messages, window.end_ms).where(
        (stored < window.end_ms) & (moment >= window.start_ms) & (moment < window.end_ms)
    )


def as_known(messages: DataFrame, end_ms: int) -> DataFrame:
    """What was decided later was not decided then."""
    state = f.col("state")
    is_known = (state == "sent") | (f.coalesce("decided_ms", "stored_ms") < end_ms)
    masked = {
        "state": f.when(is_known, state).otherwise("prepared"),
        "key": f.coalesce("key", f.concat(f.lit("log/#"), f.col("position").cast("string"))),
        "queue_offset": f.when(is_known, f.col("queue_offset")),
    } | {name: f.when(is_known, f.col(name)) for name in ("decided_ms", "decided_by", "reason")}
    return messages.withColumns(masked)


def settled(rows: DataFrame) -> DataFrame:
    """Rows worked out once and for all, of which nobody has to know any more how.

    A frame that is only cached brings its whole past along to wherever it is used, and Spark goes
    through all of it for each query: what is used five times in what is used five times is slow to
    plan before a row is touched.
    """
    return rows.localCheckpoint()


def few(keys: DataFrame) -> DataFrame:
    """Keys that are sent to wherever rows are looked up by them, as long as they are not too many
    for that.
    """
    seen = Observation()
    found = settled(keys.observe(seen, f.count(f.lit(1)).alias("rows")))
    # Before they are counted nobody can know, and to be careful means to sort three whole ledgers.
    return f.broadcast(found) if seen.get["rows"] <= _SENT_MAX else found


def one_of(values: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows of some keys."""
    return values.join(keys, "key", "left_semi")


def hash_of(key: str) -> Column:
    """What stands for a key where all of a day's keys meet: a number is sent and compared sooner
    than a text.
    """
    return f.xxhash64(key).alias("hash")


def hashed_in(values: DataFrame, hashes: DataFrame, how: str = "left_semi") -> DataFrame:
    """The rows of some keys that are known by their hashes alone."""
    return values.withColumn("hash", hash_of("key")).join(hashes, "hash", how).drop("hash")


def place_of(name: str, values: Sequence[str]) -> Column:
    """Where the text of a column is among these, each of which is looked at once."""
    at = f.lit(None).cast("int")
    for place, value in reversed(list(enumerate(values))):
        at = f.when(f.col(name) == value, place).otherwise(at)
    return at


def together(*some: DataFrame | None) -> DataFrame:
    """One under the other, those that there are."""
    there = [table for table in some if table is not None]
    return reduce(DataFrame.unionByName, there)
