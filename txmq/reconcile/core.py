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

from txmq.reconcile.classes import Class
from txmq.reconcile.extract.table_writer import arrow_table
from txmq.reconcile.items import with_doubts
from txmq.reconcile.ledgers import EarlierDays, Ledgers, ReconciledDay, Rows, union
from txmq.reconcile.proofs import balances_of, count_ids
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.second_pass import CARRIED, EARLIER, TODAY, SecondPass, Sums, batch_sql
from txmq.reconcile.sieve import HASH, PLAIN, SUSPECT, sift
from txmq.reconcile.tables import EVIDENCE, MATCHES, RESULTS, TOTALS, join_halves

__all__ = ["FEW", "reconcile"]

FEW: Final = 100_000
"""Up to so many transfers are decided in this process; Spark's workers decide more."""
_SENT_MAX: Final = 2_000_000
"""The most keys to broadcast: some 30 bytes each in the memory of every worker."""


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

    ``as_of_ms`` is the end of the day, or the time of reading if that was earlier. Up to ``few``
    transfers are decided in this process.
    """
    window = rules.day.window(day)
    today = ledgers.of_day(window)
    transfers, messages = today.transfers, today.messages

    count = Observation()
    passed = sift(transfers, messages, yesterday, rules, window).observe(
        count,
        f.expr("count(hash) AS others"),
        f.expr(f"count_if(plain = {SUSPECT}) AS suspects"),
        f.expr("count_if(is_seen) AS seen"),
    )
    # Computed once, and without its plan: Spark would analyse it again for each query.
    passed = passed.localCheckpoint()
    others = passed.where("hash IS NOT NULL").select("hash", "plain", "is_seen")
    are_sent = count.get["others"] <= _SENT_MAX
    if are_sent:
        # Spark cannot know the number in advance, and without a broadcast it sorts the ledgers.
        others = f.broadcast(others)
    if not count.get["seen"]:
        yesterday = yesterday._replace(history=None)
    evidence = _evidence(ledgers, yesterday, transfers, messages, others, window)
    offsets = {tuple(place): after for *place, after in ledgers.offsets.collect()}
    second = SecondPass(rules, day, min(as_of_ms, window.end_ms), offsets, yesterday.explanations)
    found, sums = _decide(second, evidence, is_small=are_sent and count.get["suspects"] <= few)
    if isinstance(items := found["items"], pa.Table):
        # After a mishap with more items, single suggestions would not help.
        found["items"] = with_doubts(items)
    _add_plain(sums, passed, rules)
    sums.update(count_ids(today.entries, yesterday.balances, rules))
    broken = found.pop("proofs")
    found["matches"] = _matches(transfers, others, found["matches"])
    found["balances"] = balances_of(today, yesterday.balances, rules)
    names = TOTALS.names[3:]
    places = sorted({(of, currency) for name, of, currency in sums if name in names})
    rows = [
        (class_, Class(class_).group, currency, *(sums[name, class_, currency] for name in names))
        for class_, currency in places
    ]
    found["totals"] = arrow_table(TOTALS, rows)
    return ReconciledDay(found, broken, sums, was_closed=yesterday.balances is not None)


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

    def rows(table: DataFrame | None, name: str, origin: int, which: str) -> DataFrame | None:
        if table is None:
            return None
        chosen = _join(table, others).where(which)
        return chosen.selectExpr("key", f"{origin} AS origin", f"{_row(name)} AS {name}")

    # A rolled-back transfer has no debit to find it by later, and decisions of operators are
    # always listed.
    is_by_hand, message = "decided_by = 'operator'", _row("message")
    some = _join(messages, others, "left")
    of_today = some.where(f"{is_suspect} OR {is_void} OR {is_by_hand}").selectExpr(
        "key",
        f"{TODAY} AS origin",
        f"IF({is_suspect}, {message}, NULL) AS message",
        f"IF({is_by_hand}, {message}, NULL) AS by_hand",
        f"{is_void} AS is_void",
    )
    given_back = f"stored_ms < {window.end_ms} AND {is_suspect}"
    earlier_entry = f"is_seen AND recorded_ms < {window.start_ms}"
    earlier_message = f"is_seen AND stored_ms < {window.start_ms}"
    history, closed = yesterday.history, yesterday.closed
    before = None if history is None else history.transfers
    known = None if history is None else history.messages_at(window.end_ms)
    if closed is not None:
        closed = _join(closed, others).where(is_suspect).select("key", "history")
    return union(
        rows(transfers, "entry", TODAY, is_suspect),
        of_today,
        rows(ledgers.failures, "failure", TODAY, given_back),
        rows(yesterday.items, "item", CARRIED, is_suspect),
        rows(yesterday.entries, "entry", CARRIED, is_suspect),
        rows(yesterday.messages, "message", CARRIED, is_suspect),
        rows(yesterday.failures, "failure", CARRIED, given_back),
        rows(before, "entry", EARLIER, earlier_entry),
        rows(known, "message", EARLIER, earlier_message),
        closed,
    )


def _row(name: str) -> str:
    # Other kinds of rows leave it empty, so its fields may be empty too.
    schema = EVIDENCE[name]
    names = ", ".join(f"`{name}`" for name in schema.names)
    return f"CAST(struct({names}) AS {schema.struct})"


def _join(rows: DataFrame, others: DataFrame, how: str = "inner") -> DataFrame:
    """Rows with the columns that ``others`` has for the hash of their key."""
    return rows.selectExpr("*", HASH).join(others, "hash", how).drop("hash")


def _decide(
    second: SecondPass, evidence: DataFrame, *, is_small: bool
) -> tuple[dict[str, Rows], Sums]:
    if is_small:
        found = second.decide(evidence.toArrow())
        return dict(found.tables()), found.sums
    pieces = evidence.repartition("key").sortWithinPartitions("key")
    batches = pieces.mapInArrow(second.batches, batch_sql()).localCheckpoint()
    sums: Sums = Counter()
    for name, of, currency, value in batches.where("sums IS NOT NULL").select("sums.*").collect():
        sums[name, of, currency] += int(value)
    tables = {name: batches.where(f"{name} IS NOT NULL").select(f"{name}.*") for name in RESULTS}
    return dict(tables), sums


def _add_plain(sums: Sums, passed: DataFrame, rules: Rules) -> None:
    """Add the plainly agreed transfers to the totals of their classes."""
    plain = passed.where(f"plain != {SUSPECT}").groupBy("plain", "money", "is_ordered")
    classes = {code: class_.value for class_, code in PLAIN.items()}
    currencies = [*sorted(rules.money), ""]
    for code, money, is_ordered, count, *halves in plain.sum("transfers", "low", "high").collect():
        # A rolled-back transfer has no currency.
        place = classes[code], currencies[-1 if money is None else money]
        amount = join_halves(*halves)
        sums["transfers", *place] += count
        sums["debited", *place] += amount
        if code == PLAIN[Class.RETURNED]:
            sums["returned", *place] += amount
        if code == PLAIN[Class.MATCHED]:
            sums["credited", *place] += amount
        if is_ordered:
            sums["ordered", *place] += amount


def _matches(transfers: DataFrame, others: DataFrame, decided: Rows) -> DataFrame:
    debits = transfers.where("kind = 'debit' AND role = 'customer'")
    # A debit with no other class is matched.
    plain = f"coalesce(plain, {PLAIN[Class.MATCHED]})"
    class_ = " ".join(f"WHEN {code} THEN '{class_}'" for class_, code in PLAIN.items())
    columns = "key", f"CASE {plain} {class_} END AS class", "-amount AS amount", "currency"
    of_debits = _join(debits, others, "left").where(f"{plain} != {SUSPECT}").selectExpr(*columns)
    if isinstance(decided, pa.Table):
        decided = transfers.sparkSession.createDataFrame(decided, MATCHES.ddl)
    return union(of_debits, decided)
