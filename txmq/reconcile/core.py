"""A day's reconciliation: tables in, tables out; nothing is written here.

The sieve finds the transfers that plainly agree. Every other transfer is decided in the second
pass from all of its rows, which are collected here. The balances of accounts are added up beside
it.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from txmq.reconcile.balances import balances_of, count_ids
from txmq.reconcile.classes import Class
from txmq.reconcile.extract.controls import join_halves
from txmq.reconcile.extract.table_writer import arrow_table
from txmq.reconcile.id_doubts import with_doubts
from txmq.reconcile.ledgers import EarlierDays, Ledgers, ReconciledDay, Rows
from txmq.reconcile.rows import (
    as_known,
    entries_of,
    join_hashes,
    materialize,
    messages_of,
    transfers_of,
    union,
)
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.second_pass import (
    CARRIED,
    EARLIER,
    RESULTS,
    TODAY,
    SecondPass,
    Sums,
    batch_sql,
    row_sql,
)
from txmq.reconcile.sieve import PLAIN, SUSPECT, plain_class, plain_currency, sift
from txmq.reconcile.tables import BOOKED, FAILURES, ITEMS, MATCHES, MESSAGES, TOTALS, TableSchema

__all__ = ["FEW", "reconcile"]

FEW: Final = 100_000
"""Up to so many transfers are decided in this process; Spark's workers decide more."""
_SENT_MAX: Final = 2_000_000
"""The most keys to broadcast: some 30 bytes each in the memory of every worker."""
_NUMBERS: Final = ("transfers", "debited", "returned", "credited", "ordered", "at_risk")


def reconcile(
    ledgers: Ledgers,
    yesterday: EarlierDays,
    rules: Rules,
    day: date,
    as_of_ms: int,
    *,
    few: int = FEW,
) -> ReconciledDay:
    """Reconcile a day.

    Args:
        ledgers: The day's extract.
        yesterday: The state that earlier days left.
        rules: The meaning of columns, and the tolerances.
        day: The business date.
        as_of_ms: The end of the day, or the time of reading if that was earlier.
        few: Up to so many transfers are decided in this process.
    """
    window = rules.day.window(day)
    entries = entries_of(ledgers.entries, window)
    transfers = transfers_of(entries)
    messages = messages_of(ledgers.messages, window)
    carried = _keys(yesterday)

    count = Observation()
    passed = materialize(
        sift(transfers, messages, carried, yesterday.agreed, rules, window).observe(
            count,
            f.count("hash").alias("others"),
            f.count_if(f.col("plain") == SUSPECT).alias("suspects"),
            f.count_if("is_seen").alias("seen"),
        )
    )
    others = passed.where(f.col("hash").isNotNull()).select("hash", "plain", "is_seen")
    are_sent = count.get["others"] <= _SENT_MAX
    if are_sent:
        # Spark cannot know the number in advance, and without a broadcast it sorts the ledgers.
        others = f.broadcast(others)
    if not count.get["seen"]:
        yesterday = yesterday._replace(history=None)
    evidence = _evidence(ledgers, yesterday, transfers, messages, others, window)
    offsets = {
        (row["group"], row["topic"], row["queue"]): row["next_offset"]
        for row in ledgers.offsets.collect()
    }
    second = SecondPass(rules, day, min(as_of_ms, window.end_ms), offsets, yesterday.explanations)
    found, sums = _decide(second, evidence, is_small=are_sent and count.get["suspects"] <= few)
    if isinstance(items := found["items"], pa.Table):
        # After a mishap with more items, single suggestions would not help.
        found["items"] = with_doubts(items)
    _add_plain(sums, passed, rules)
    sums.update(count_ids(entries, yesterday.balances, rules))
    return ReconciledDay(
        matches=_matches(transfers, others, found["matches"]),
        items=found["items"],
        closed=found["closed"],
        entries=found["entries"],
        messages=found["messages"],
        failures=found["failures"],
        by_hand=found["by_hand"],
        balances=balances_of(entries, ledgers, yesterday.balances, rules),
        totals=_totals(sums),
        broken=found["proofs"],
        sums=sums,
        was_closed=yesterday.balances is not None,
    )


def _keys(yesterday: EarlierDays) -> DataFrame | None:
    """The transfers that were left open."""
    some = [table for table in (yesterday.entries, yesterday.messages) if table is not None]
    return union(*(table.select("key") for table in some)) if some else None


def _evidence(
    ledgers: Ledgers,
    yesterday: EarlierDays,
    transfers: DataFrame,
    messages: DataFrame,
    others: DataFrame,
    window: DayWindow,
) -> DataFrame:
    """All rows of the transfers that do not plainly agree, of this day and of earlier ones."""
    is_suspect, is_seen = f.col("plain") == SUSPECT, f.col("is_seen")

    def rows(
        table: DataFrame | None, schema: TableSchema, name: str, origin: int, which: Column
    ) -> DataFrame | None:
        if table is None:
            return None
        chosen = join_hashes(table, others).where(which)
        return chosen.select("key", f.lit(origin).alias("origin"), _row(schema).alias(name))

    # A rolled-back transfer has no debit to find it by later, and decisions of operators are
    # always listed.
    is_void = f.col("plain") == PLAIN[Class.ROLLED_BACK]
    is_by_hand = f.col("decided_by") == "operator"
    some = join_hashes(messages, others, "left").where(is_suspect | is_void | is_by_hand)
    of_today = some.select(
        "key",
        f.lit(TODAY).alias("origin"),
        f.when(is_suspect, _row(MESSAGES)).alias("message"),
        f.when(is_by_hand, _row(MESSAGES)).alias("by_hand"),
        is_void.alias("is_void"),
    )
    given_back = (f.col("stored_ms") < window.end_ms) & is_suspect
    history, closed = yesterday.history, yesterday.closed
    before = None if history is None else transfers_of(history.entries)
    known = None if history is None else as_known(history.messages, window.end_ms)
    if closed is not None:
        closed = join_hashes(closed, others).where(is_suspect).select("key", "history")
    return union(
        rows(transfers, BOOKED, "entry", TODAY, is_suspect),
        of_today,
        rows(ledgers.failures, FAILURES, "failure", TODAY, given_back),
        rows(yesterday.items, ITEMS, "item", CARRIED, is_suspect),
        rows(yesterday.entries, BOOKED, "entry", CARRIED, is_suspect),
        rows(yesterday.messages, MESSAGES, "message", CARRIED, is_suspect),
        rows(yesterday.failures, FAILURES, "failure", CARRIED, given_back),
        rows(before, BOOKED, "entry", EARLIER, is_seen & (f.col("recorded_ms") < window.start_ms)),
        rows(known, MESSAGES, "message", EARLIER, is_seen & (f.col("stored_ms") < window.start_ms)),
        closed,
    )


def _row(schema: TableSchema) -> Column:
    # Other kinds of rows leave it empty, so its fields may be empty too. SQL text needs one call to
    # Java, and column objects would need one for each field.
    names = ", ".join(f"`{name}`" for name in schema.names)
    return f.expr(f"CAST(struct({names}) AS {row_sql(schema)})")


def _decide(
    second: SecondPass, evidence: DataFrame, *, is_small: bool
) -> tuple[dict[str, Rows], Sums]:
    """Decide the transfers of the evidence, here or in Spark's workers."""
    if is_small:
        found = second.decide(evidence.toArrow())
        return dict(found.tables()), found.sums
    batches = materialize(
        evidence.repartition("key")
        .sortWithinPartitions("key")
        .mapInArrow(second.batches, batch_sql())
    )
    parts = batches.where("sums IS NOT NULL").select("sums.*")
    value = f.sum(f.col("value").cast("decimal(38,0)")).alias("value")
    added = parts.groupBy("name", "of", "currency").agg(value).collect()
    sums: Sums = Counter(
        {(row["name"], row["of"], row["currency"]): int(row["value"]) for row in added}
    )
    tables = {name: batches.where(f.col(name).isNotNull()).select(f"{name}.*") for name in RESULTS}
    return dict(tables), sums


def _add_plain(sums: Sums, passed: DataFrame, rules: Rules) -> None:
    """Add the plainly agreed transfers to the totals of their classes."""
    plain = passed.where(f.col("plain") != SUSPECT)
    groups = plain.groupBy("plain", "money", "is_ordered").agg(
        *(f.sum(name).alias(name) for name in ("transfers", "low", "high"))
    )
    named = groups.select(
        plain_class(f.col("plain")).alias("class"),
        plain_currency(f.col("money"), rules).alias("currency"),
        *("transfers", "low", "high", "is_ordered"),
    )
    for row in named.collect():
        place, amount = (row["class"], row["currency"]), join_halves(row["low"], row["high"])
        sums["transfers", *place] += row["transfers"]
        sums["debited", *place] += amount
        if row["class"] == Class.RETURNED:
            sums["returned", *place] += amount
        if row["class"] == Class.MATCHED:
            sums["credited", *place] += amount
        if row["is_ordered"]:
            sums["ordered", *place] += amount


def _totals(sums: Sums) -> pa.Table:
    """The totals of each class."""
    places = sorted({(of, currency) for name, of, currency in sums if name in _NUMBERS})
    rows = [
        [
            *(class_, Class(class_).group, currency),
            *(sums[name, class_, currency] for name in _NUMBERS),
        ]
        for class_, currency in places
    ]
    return arrow_table(TOTALS, rows)


def _matches(transfers: DataFrame, others: DataFrame, decided: Rows) -> DataFrame:
    """The agreed transfers of both passes."""
    debits = transfers.where((f.col("kind") == "debit") & (f.col("role") == "customer"))
    # A debit with no other class is matched.
    plain = f.coalesce("plain", f.lit(PLAIN[Class.MATCHED]))
    of_debits = join_hashes(debits, others, "left").where(plain != SUSPECT).select(
        "key",
        plain_class(plain).alias("class"),
        (-f.col("amount")).alias("amount"),
        "currency",
    )  # fmt: skip
    if isinstance(decided, pa.Table):
        decided = transfers.sparkSession.createDataFrame(decided, MATCHES.ddl)
    return union(of_debits, decided)
