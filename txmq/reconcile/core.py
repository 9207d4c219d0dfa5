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
from pyspark.sql import DataFrame, Observation
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
from txmq.reconcile.sieve import PLAIN, SUSPECT, sift
from txmq.reconcile.tables import BOOKED, FAILURES, ITEMS, MATCHES, MESSAGES, TOTALS, TableSchema

__all__ = ["FEW", "reconcile"]

FEW: Final = 100_000
"""Up to so many transfers are decided in this process; Spark's workers decide more."""
_SENT_MAX: Final = 2_000_000
"""The most keys to broadcast: some 30 bytes each in the memory of every worker."""
_PLAIN: Final = ("transfers", "low", "high")
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
            f.expr("count(hash) AS others"),
            f.expr(f"count_if(plain = {SUSPECT}) AS suspects"),
            f.expr("count_if(is_seen) AS seen"),
        )
    )
    others = passed.where("hash IS NOT NULL").select("hash", "plain", "is_seen")
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
    is_suspect, is_void = f"plain = {SUSPECT}", f"plain = {PLAIN[Class.ROLLED_BACK]}"

    def rows(
        table: DataFrame | None, schema: TableSchema, name: str, origin: int, which: str
    ) -> DataFrame | None:
        if table is None:
            return None
        chosen = join_hashes(table, others).where(which)
        return chosen.selectExpr("key", f"{origin} AS origin", f"{_row(schema)} AS {name}")

    # A rolled-back transfer has no debit to find it by later, and decisions of operators are
    # always listed.
    is_by_hand = "decided_by = 'operator'"
    some = join_hashes(messages, others, "left")
    of_today = some.where(f"{is_suspect} OR {is_void} OR {is_by_hand}").selectExpr(
        "key",
        f"{TODAY} AS origin",
        f"IF({is_suspect}, {_row(MESSAGES)}, NULL) AS message",
        f"IF({is_by_hand}, {_row(MESSAGES)}, NULL) AS by_hand",
        f"{is_void} AS is_void",
    )
    given_back = f"stored_ms < {window.end_ms} AND {is_suspect}"
    earlier_entry = f"is_seen AND recorded_ms < {window.start_ms}"
    earlier_message = f"is_seen AND stored_ms < {window.start_ms}"
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
        rows(before, BOOKED, "entry", EARLIER, earlier_entry),
        rows(known, MESSAGES, "message", EARLIER, earlier_message),
        closed,
    )


def _row(schema: TableSchema) -> str:
    # Other kinds of rows leave it empty, so its fields may be empty too.
    names = ", ".join(f"`{name}`" for name in schema.names)
    return f"CAST(struct({names}) AS {row_sql(schema)})"


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
    value = f.expr("sum(CAST(value AS DECIMAL(38,0))) AS value")
    added = parts.groupBy("name", "of", "currency").agg(value).collect()
    sums: Sums = Counter(
        {(row["name"], row["of"], row["currency"]): int(row["value"]) for row in added}
    )
    tables = {name: batches.where(f"{name} IS NOT NULL").select(f"{name}.*") for name in RESULTS}
    return dict(tables), sums


def _add_plain(sums: Sums, passed: DataFrame, rules: Rules) -> None:
    """Add the plainly agreed transfers to the totals of their classes."""
    plain = passed.where(f"plain != {SUSPECT}").groupBy("plain", "money", "is_ordered")
    classes = {code: class_.value for class_, code in PLAIN.items()}
    currencies = [*sorted(rules.money), ""]
    for row in plain.agg(*(f.expr(f"sum({name}) AS {name}") for name in _PLAIN)).collect():
        # A rolled-back transfer has no currency.
        currency = currencies[-1 if row["money"] is None else row["money"]]
        place, amount = (classes[row["plain"]], currency), join_halves(row["low"], row["high"])
        sums["transfers", *place] += row["transfers"]
        sums["debited", *place] += amount
        if row["plain"] == PLAIN[Class.RETURNED]:
            sums["returned", *place] += amount
        if row["plain"] == PLAIN[Class.MATCHED]:
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
    debits = transfers.where("kind = 'debit' AND role = 'customer'")
    # A debit with no other class is matched.
    plain = f"coalesce(plain, {PLAIN[Class.MATCHED]})"
    class_ = " ".join(f"WHEN {code} THEN '{class_}'" for class_, code in PLAIN.items())
    of_debits = join_hashes(debits, others, "left").where(f"{plain} != {SUSPECT}").selectExpr(
        "key", f"CASE {plain} {class_} END AS class", "-amount AS amount", "currency"
    )  # fmt: skip
    if isinstance(decided, pa.Table):
        decided = transfers.sparkSession.createDataFrame(decided, MATCHES.ddl)
    return union(of_debits, decided)
