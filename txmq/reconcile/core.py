"""A day's reconciliation: DataFrames in, DataFrames out; nothing is read or written here.

The rows of the three ledgers go through the sieve. What does not fall through is put together from
all of its rows, gets its class, and joins what was left open before. Beside it accounts are proved.
"""

from __future__ import annotations

from datetime import date
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from txmq.reconcile import tables
from txmq.reconcile.balances import Books, balances_of, proofs_of
from txmq.reconcile.classes import Class
from txmq.reconcile.ledgers import Ledgers, Outcome, Yesterday
from txmq.reconcile.lifecycle import FACTS_OF_ITEMS, carry, parted
from txmq.reconcile.matching import classified, group_of_class
from txmq.reconcile.rows import (
    as_known,
    entries_of,
    few,
    hash_of,
    hashed_in,
    legs_of,
    messages_of,
    one_of,
    settled,
    together,
    transfers_of,
)
from txmq.reconcile.rules import Rules, Window
from txmq.reconcile.sieve import PLAIN, SUSPECT, plain_class, plain_currency, sieved
from txmq.reconcile.units import last_known, units_of

__all__ = ["reconcile"]

_SUMS: Final = {"debited": ("debit", -1), "returned": ("return", 1), "credited": ("credit", 1)}


def reconcile(
    ledgers: Ledgers, yesterday: Yesterday, rules: Rules, day: date, as_of_ms: int
) -> Outcome:
    """Reconcile a day.

    Args:
        ledgers: What was extracted for it.
        yesterday: What earlier days have left.
        rules: What columns mean, and what is forgiven.
        day: The business date.
        as_of_ms: When the day ended, or the books were read before that.
    """
    window = rules.day.window(day)
    as_of_ms = min(as_of_ms, window.end_ms)
    entries = entries_of(ledgers.entries, window)
    transfers = transfers_of(entries)
    messages = messages_of(ledgers.messages, window)
    carried = _keys(yesterday)

    passed = settled(sieved(transfers, messages, carried, rules, window))
    others = few(passed.where(f.col("hash").isNotNull()).select("hash", "plain"))
    is_suspect, is_rolled_back = (
        f.col("plain") == code for code in (SUSPECT, PLAIN[Class.ROLLED_BACK])
    )
    # Of all rows but these only those that are suspect are kept.
    suspects = others.where(is_suspect).select("hash")
    booked = settled(hashed_in(transfers, suspects).repartition("key"))
    # What was rolled back has no debit by which it could be found later, and what operators have
    # decided is listed whatever it is.
    looked_up = others.where(is_suspect | is_rolled_back)
    is_by_hand = f.col("decided_by") == "operator"
    named = hashed_in(messages, looked_up, "left")
    found = settled(named.where(f.col("plain").isNotNull() | is_by_hand).repartition("key"))
    told, voids = found.where(is_suspect).drop("plain"), found.where(is_rolled_back)
    history = yesterday.history
    if history is not None:
        history = _history(_orphans(suspects, booked, told, carried), history, window)
    before = _under(yesterday.entries, None if history is None else history.entries)
    booked = together(booked, before)
    earlier = _under(yesterday.messages, None if history is None else history.messages)
    told = told if earlier is None else last_known(together(told, earlier))
    given_back = together(ledgers.failures, yesterday.failures).where(
        f.col("key").isNotNull() & (f.col("stored_ms") < window.end_ms)
    )

    units = units_of(booked, told, given_back, ledgers.offsets, rules, window)
    judged = settled(classified(_marked(units, carried), rules, as_of_ms))
    lived = carry(
        judged.where((f.col("group") != "agreed") | f.col("was_open")).select(*FACTS_OF_ITEMS),
        yesterday.items,
        yesterday.explanations,
        rules,
        day,
        agreed_before=_agreed_before(history, yesterday.closed),
    )
    items, closed = parted(settled(lived))
    open_ = few(items.select("key"))
    final = settled(_final(judged, items))
    totals = settled(_totals(passed.where(f.col("plain") != SUSPECT), final, booked, rules))
    accounts = settled(balances_of(entries, ledgers, yesterday.balances, rules))
    was_closed = yesterday.balances is not None
    books = Books(entries, before, booked, accounts, totals, was_closed, rules)
    return Outcome(
        matches=_matches(transfers, others, voids, final),
        items=items,
        closed=closed,
        entries=one_of(booked, open_),
        messages=one_of(told, open_),
        failures=one_of(given_back, open_),
        by_hand=found.where(is_by_hand).drop("plain"),
        balances=accounts.select(*tables.BALANCES.names),
        proofs=settled(proofs_of(books)),
        totals=totals,
    )


def _keys(yesterday: Yesterday) -> DataFrame | None:
    """The transfers that were left open."""
    some = [table for table in (yesterday.entries, yesterday.messages) if table is not None]
    if not some:
        return None
    return few(together(*(table.select("key") for table in some)).distinct())


def _orphans(
    suspects: DataFrame, booked: DataFrame, told: DataFrame, carried: DataFrame | None
) -> DataFrame:
    """Transfers of which somebody hears today, that were not left open, and that have no beginning:
    no debit, or no message. Perhaps they were agreed on another day.
    """
    begun = legs_of(booked).where(f.col("kind") == "debit").select("key")
    begun = begun.join(told.select("key"), "key", "left_semi")
    known = begun if carried is None else together(begun, carried)
    return few(suspects.join(known.select(hash_of("key")), "hash", "left_anti"))


def _history(orphans: DataFrame, history: Ledgers, window: Window) -> Ledgers:
    """Their rows of the days that are looked back."""
    entries = history.entries.where(f.col("recorded_ms") < window.start_ms)
    messages = as_known(history.messages, window.end_ms).where(f.col("stored_ms") < window.start_ms)
    return history._replace(
        entries=settled(hashed_in(entries, orphans)),
        messages=settled(hashed_in(messages, orphans)),
    )


def _agreed_before(history: Ledgers | None, closed: DataFrame | None) -> DataFrame | None:
    """Transfers that were agreed on a day that is looked back, with what was told when they were
    closed: all that are there and were not left open. A row that no transfer has made, such as a
    fee, makes none.
    """
    if history is None:
        return closed
    told = f.lit(None).cast("string").alias("history")
    rows = (legs_of(history.entries), history.messages)
    return together(*(table.select("key", told) for table in rows), closed)


def _under(*some: DataFrame | None) -> DataFrame | None:
    there = [table for table in some if table is not None]
    return together(*there) if there else None


def _marked(units: DataFrame, carried: DataFrame | None) -> DataFrame:
    """Units, and which of them were left open before."""
    if carried is None:
        return units.withColumn("was_open", f.lit(False))
    marks = carried.withColumn("was_open", f.lit(True))
    found = units.join(marks, "key", "left")
    return found.withColumn("was_open", f.coalesce("was_open", f.lit(False)))


def _final(judged: DataFrame, items: DataFrame) -> DataFrame:
    """Units with the class that they end the day in: what was explained is explained."""
    ended = items.select("key", f.col("class").alias("ended"))
    return judged.join(ended, "key", "left").withColumn("class", f.coalesce("ended", "class"))


def _totals(plain: DataFrame, final: DataFrame, booked: DataFrame, rules: Rules) -> DataFrame:
    """What each class has. Sums are those of the rows, in the rows' own currencies."""
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
        together(of_plain, of_units, of_rows)
        .groupBy("class", "currency")
        .agg(*(f.sum(name).alias(name) for name in numbers))
    )
    return found.withColumn("group", group_of_class()).select(*tables.TOTALS.names)


def _matches(
    transfers: DataFrame, others: DataFrame, voids: DataFrame, final: DataFrame
) -> DataFrame:
    """What is agreed, by the first pass and by the second."""
    debits = transfers.where((f.col("kind") == "debit") & (f.col("role") == "customer"))
    # Whatever is neither suspect nor anything else is matched; what was rolled back has no debit,
    # and is most of the rest.
    not_matched = others.where(f.col("plain") != PLAIN[Class.ROLLED_BACK])
    moved = hashed_in(debits, not_matched, "left")
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
    return together(of_debits, together(of_voids, looked_at).sortWithinPartitions("key"))
