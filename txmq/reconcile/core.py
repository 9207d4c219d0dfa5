"""A day's reconciliation: DataFrames in, DataFrames out; nothing is read or written here.

The sieve finds the transfers that plainly agree. Every other transfer is assembled from all of
its rows, classified, and joined with the open items of earlier days. The balances of accounts
are proved beside it.
"""

from __future__ import annotations

from datetime import date
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from txmq.reconcile import tables
from txmq.reconcile.balances import ProofInputs, balances_of, proofs_of
from txmq.reconcile.classes import Class
from txmq.reconcile.classification import classify, group_of_class
from txmq.reconcile.ledgers import EarlierDays, Ledgers, ReconciledDay
from txmq.reconcile.lifecycle import FACTS_OF_ITEMS, carry, split_closed
from txmq.reconcile.rows import (
    as_known,
    broadcast_if_few,
    entries_of,
    hash_of,
    legs_of,
    materialize,
    messages_of,
    rows_with_hashes,
    rows_with_keys,
    transfers_of,
    union,
)
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.sieve import PLAIN, SUSPECT, plain_class, plain_currency, sift
from txmq.reconcile.units import last_known, units_of

__all__ = ["reconcile"]

_SUMS: Final = {"debited": ("debit", -1), "returned": ("return", 1), "credited": ("credit", 1)}


def reconcile(
    ledgers: Ledgers, yesterday: EarlierDays, rules: Rules, day: date, as_of_ms: int
) -> ReconciledDay:
    """Reconcile a day.

    Args:
        ledgers: The day's extract.
        yesterday: The state that earlier days left.
        rules: The meaning of columns, and the tolerances.
        day: The business date.
        as_of_ms: The end of the day, or the time of reading if that was earlier.
    """
    window = rules.day.window(day)
    as_of_ms = min(as_of_ms, window.end_ms)
    entries = entries_of(ledgers.entries, window)
    transfers = transfers_of(entries)
    messages = messages_of(ledgers.messages, window)
    carried = _keys(yesterday)

    passed = materialize(sift(transfers, messages, carried, rules, window))
    others = broadcast_if_few(passed.where(f.col("hash").isNotNull()).select("hash", "plain"))
    is_suspect, is_rolled_back = (
        f.col("plain") == code for code in (SUSPECT, PLAIN[Class.ROLLED_BACK])
    )
    # From here on only rows of suspects are needed.
    suspects = others.where(is_suspect).select("hash")
    booked = materialize(rows_with_hashes(transfers, suspects).repartition("key"))
    # A rolled-back transfer has no debit to find it by later, and operators' decisions are
    # always listed.
    looked_up = others.where(is_suspect | is_rolled_back)
    is_by_hand = f.col("decided_by") == "operator"
    named = rows_with_hashes(messages, looked_up, "left")
    found = materialize(named.where(f.col("plain").isNotNull() | is_by_hand).repartition("key"))
    ordered, voids = found.where(is_suspect).drop("plain"), found.where(is_rolled_back)
    history = yesterday.history
    if history is not None:
        history = _history(_orphans(suspects, booked, ordered, carried), history, window)
    before = _union_if_any(yesterday.entries, None if history is None else history.entries)
    booked = union(booked, before)
    earlier = _union_if_any(yesterday.messages, None if history is None else history.messages)
    ordered = ordered if earlier is None else last_known(union(ordered, earlier))
    given_back = union(ledgers.failures, yesterday.failures).where(
        f.col("key").isNotNull() & (f.col("stored_ms") < window.end_ms)
    )

    units = units_of(booked, ordered, given_back, ledgers.offsets, rules, window)
    judged = materialize(classify(_with_was_open(units, carried), rules, as_of_ms))
    lived = carry(
        judged.where((f.col("group") != "agreed") | f.col("was_open")).select(*FACTS_OF_ITEMS),
        yesterday.items,
        yesterday.explanations,
        rules,
        day,
        agreed_before=_agreed_before(history, yesterday.closed),
    )
    items, closed = split_closed(materialize(lived))
    open_ = broadcast_if_few(items.select("key"))
    final = materialize(_with_final_class(judged, items))
    totals = materialize(_totals(passed.where(f.col("plain") != SUSPECT), final, booked, rules))
    accounts = materialize(balances_of(entries, ledgers, yesterday.balances, rules))
    was_closed = yesterday.balances is not None
    books = ProofInputs(entries, before, booked, accounts, totals, was_closed, rules)
    return ReconciledDay(
        matches=_matches(transfers, others, voids, final),
        items=items,
        closed=closed,
        entries=rows_with_keys(booked, open_),
        messages=rows_with_keys(ordered, open_),
        failures=rows_with_keys(given_back, open_),
        by_hand=found.where(is_by_hand).drop("plain"),
        balances=accounts.select(*tables.BALANCES.names),
        proofs=materialize(proofs_of(books)),
        totals=totals,
    )


def _keys(yesterday: EarlierDays) -> DataFrame | None:
    """The transfers that were left open."""
    some = [table for table in (yesterday.entries, yesterday.messages) if table is not None]
    if not some:
        return None
    return broadcast_if_few(union(*(table.select("key") for table in some)).distinct())


def _orphans(
    suspects: DataFrame, booked: DataFrame, ordered: DataFrame, carried: DataFrame | None
) -> DataFrame:
    """Transfers with rows today that were not open and lack a debit or a message. They may have
    been agreed on another day.
    """
    complete = legs_of(booked).where(f.col("kind") == "debit").select("key")
    complete = complete.join(ordered.select("key"), "key", "left_semi")
    known = complete if carried is None else union(complete, carried)
    return broadcast_if_few(suspects.join(known.select(hash_of("key")), "hash", "left_anti"))


def _history(orphans: DataFrame, history: Ledgers, window: DayWindow) -> Ledgers:
    """The orphans' rows of the earlier days."""
    entries = history.entries.where(f.col("recorded_ms") < window.start_ms)
    messages = as_known(history.messages, window.end_ms).where(f.col("stored_ms") < window.start_ms)
    return history._replace(
        entries=materialize(rows_with_hashes(entries, orphans)),
        messages=materialize(rows_with_hashes(messages, orphans)),
    )


def _agreed_before(history: Ledgers | None, closed: DataFrame | None) -> DataFrame | None:
    """Transfers that were agreed on one of the earlier days, with their history if they were
    closed then. Rows that belong to no transfer, such as fees, do not count.
    """
    if history is None:
        return closed
    no_history = f.lit(None).cast("string").alias("history")
    rows = (legs_of(history.entries), history.messages)
    return union(*(table.select("key", no_history) for table in rows), closed)


def _union_if_any(*some: DataFrame | None) -> DataFrame | None:
    there = [table for table in some if table is not None]
    return union(*there) if there else None


def _with_was_open(units: DataFrame, carried: DataFrame | None) -> DataFrame:
    """Units, marked if they were left open before."""
    if carried is None:
        return units.withColumn("was_open", f.lit(False))
    marks = carried.withColumn("was_open", f.lit(True))
    found = units.join(marks, "key", "left")
    return found.withColumn("was_open", f.coalesce("was_open", f.lit(False)))


def _with_final_class(judged: DataFrame, items: DataFrame) -> DataFrame:
    """Units with the class at the end of the day, which may be ``explained``."""
    ended = items.select("key", f.col("class").alias("ended"))
    return judged.join(ended, "key", "left").withColumn("class", f.coalesce("ended", "class"))


def _totals(plain: DataFrame, final: DataFrame, booked: DataFrame, rules: Rules) -> DataFrame:
    """The totals of each class. Sums are taken from the rows, in the rows' own currencies."""
    zero = f.lit(0).cast("long")
    class_, amount = plain_class(f.col("plain")), f.col("amount")
    of_plain = plain.select(
        class_.alias("class"),
        plain_currency(f.col("money"), rules).alias("currency"),
        "transfers",
        amount.alias("debited"),
        f.when(class_ == Class.RETURNED.value, amount).otherwise(zero).alias("returned"),
        f.when(class_ == Class.MATCHED.value, amount).otherwise(zero).alias("credited"),
        f.when(f.col("is_ordered"), amount).otherwise(zero).alias("ordered"),
        zero.alias("at_risk"),
    )
    is_agreed = group_of_class() == "agreed"
    of_units = final.select(
        "class",
        "currency",
        f.lit(1).cast("long").alias("transfers"),
        *(zero.alias(name) for name in _SUMS),
        f.col("ordered").cast("long").alias("ordered"),
        f.when(is_agreed, zero).otherwise(f.col("amount")).alias("at_risk"),
    )
    of_rows = (
        legs_of(booked)
        .join(final.select("key", "class"), "key")
        .select(
            "class",
            "currency",
            zero.alias("transfers"),
            *(
                f.when(f.col("kind") == kind, f.col("amount") * sign).otherwise(zero).alias(name)
                for name, (kind, sign) in _SUMS.items()
            ),
            zero.alias("ordered"),
            zero.alias("at_risk"),
        )
    )
    numbers = ("transfers", *_SUMS, "ordered", "at_risk")
    found = (
        union(of_plain, of_units, of_rows)
        .groupBy("class", "currency")
        .agg(*(f.sum(name).alias(name) for name in numbers))
    )
    return found.withColumn("group", group_of_class()).select(*tables.TOTALS.names)


def _matches(
    transfers: DataFrame, others: DataFrame, voids: DataFrame, final: DataFrame
) -> DataFrame:
    """The agreed transfers of both passes."""
    debits = transfers.where((f.col("kind") == "debit") & (f.col("role") == "customer"))
    # A debit with no other class is matched; rolled-back transfers, most of the rest, have none.
    not_matched = others.where(f.col("plain") != PLAIN[Class.ROLLED_BACK])
    moved = rows_with_hashes(debits, not_matched, "left")
    plain = f.coalesce("plain", f.lit(PLAIN[Class.MATCHED]))
    of_debits = moved.where(plain != SUSPECT).select(
        "key",
        plain_class(plain).alias("class"),
        (-f.col("amount")).alias("amount"),
        "currency",
    )
    of_voids = voids.select(
        "key",
        f.lit(Class.ROLLED_BACK.value).alias("class"),
        f.lit(0).cast("long").alias("amount"),
        f.lit("").alias("currency"),
    ).distinct()
    looked_at = final.where(group_of_class() == "agreed").select(*tables.MATCHES.names)
    return union(of_debits, union(of_voids, looked_at).sortWithinPartitions("key"))
