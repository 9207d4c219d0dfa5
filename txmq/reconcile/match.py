"""The match: it groups the rows of all ledgers by the key of their transfer.

On most days nearly all transfers are a debit, a message and a credit that agree; most of the others
were paid back, or rolled back before money moved. One aggregation by key finds these: it counts
rows and checks that their values are equal. A transfer with any deviation is a suspect. Spark
collects all of its rows again, and Python compares them exactly (:mod:`txmq.reconcile.decisions`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txmq.reconcile.classes import Class
from txmq.reconcile.decisions import DECIDED, Decider
from txmq.reconcile.frames import Frames, rows_of, with_keys
from txmq.reconcile.ledgers import EVIDENCE, OLD, Role
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.transfer import VISIBLE

__all__ = ["decide", "verdicts"]

_PLAIN_ROWS_MAX: Final = 15
"""A transfer with more rows is never plain."""
_AMOUNT_MAX: Final = 1 << 58
"""A row with a greater amount is never plain, so that no sum of plain rows overflows."""
_TAGS: Final = ("debit", "credit", "return", "ordered", "void", "clearing", "other", "agreed")
_MOVES: Final = ("debit", "credit", "return")
_SAME: Final = ("payer", "payee", "id", "amount", "money")
"""The values that must be equal in all rows of a plain transfer that have them."""
_KEYS_AT_A_PLACE: Final = 20_000
"""How many suspects Python decides at once; the rows of one take about 10 kB."""
_FEW: Final = 1_000_000
"""Up to this many keys are broadcast, so that only rows of suspects are shuffled."""


def verdicts(frames: Frames, rules: Rules, window: DayWindow) -> DataFrame:
    """Each transfer of the day, with its class if it plainly agrees.

    The columns are ``key``, ``class`` (NULL for a suspect), ``amount``, ``currency``, ``ordered``
    (whether a visible message orders it), and ``was_agreed`` (on an earlier day).
    """
    rows = [
        _entries(with_keys(Role.ENTRIES, rows_of(Role.ENTRIES, frames[Role.ENTRIES], window)),
                 rules, window),
        _messages(rows_of(Role.MESSAGES, frames[Role.MESSAGES], window), rules),
    ]  # fmt: skip
    # Transfers that the day before left open are never plain.
    carried = {Role.OPEN_ENTRIES: "other", Role.OPEN_MESSAGES: "other", Role.AGREED: "agreed"}
    rows += [
        frames[role].select("key", F.lit(tag).alias("tag"))
        for role, tag in carried.items()
        if role in frames
    ]
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), rows)
    counts = [F.count_if(F.col("tag") == tag).alias(tag) for tag in _TAGS]
    ends = [end(name).alias(f"{how}_{name}") for name in _SAME
            for how, end in (("least", F.min), ("most", F.max))]  # fmt: skip
    sums = [F.try_sum(condition * F.col("signed")).alias(f"sum_{number}")
            for number, condition in enumerate(_zero_sums(rules))]  # fmt: skip
    # Shuffle rows, not partial sums: few keys have several rows in one task, and rows are smaller.
    by_key = together.repartition("key").groupBy("key").agg(*counts, *ends, *sums)
    of_day = by_key.where(sum((F.col(tag) for tag in _TAGS[:-1]), F.lit(0)) > 0)
    class_, is_void = _class(len(sums)), F.col("class") == Class.ROLLED_BACK.value
    currencies = F.array(*map(F.lit, ["", *sorted(rules.money)]))
    return of_day.withColumn("class", class_).select(
        "key",
        "class",
        # A rolled-back transfer has no money, though its clearing rows may have some.
        F.when(is_void, 0).otherwise(F.col("most_amount")).alias("amount"),
        F.when(is_void, "").otherwise(F.get(currencies, F.col("most_money"))).alias("currency"),
        (F.col("ordered") > 0).alias("ordered"),
        (F.col("agreed") > 0).alias("was_agreed"),
    )


def _class(sums: int) -> Column:
    """The class of a transfer that plainly agrees, by the counts and equal values of its rows; else
    NULL.
    """
    n = {tag: F.col(tag) for tag in _TAGS}
    was_agreed = n["agreed"] > 0
    is_equal = [F.col(f"most_{name}").eqNullSafe(F.col(f"least_{name}")) for name in _SAME]
    is_zero = [F.col(f"sum_{number}").eqNullSafe(0) for number in range(sums)]
    is_small = sum((n[tag] for tag in _TAGS[:-1]), F.lit(0)) <= _PLAIN_ROWS_MAX
    is_whole = reduce(lambda one, other: one & other, [is_small, *is_equal, *is_zero])
    # The money of a transfer that was agreed before must not move again.
    is_moved = ~was_agreed & (n["debit"] == 1) & (n["other"] == 0)
    was_credited = (n["credit"] == 1) & (n["return"] == 0) & (n["ordered"] > 0) & (n["void"] == 0)
    was_returned = (n["credit"] == 0) & (n["return"] == 1) & ((n["ordered"] > 0) != (n["void"] > 0))
    # A new order that was rolled back changes nothing about a transfer that is agreed.
    moved = n["debit"] + n["credit"] + n["return"] + n["other"] + n["ordered"]
    is_void = (moved == 0) & (n["void"] > 0)
    return (
        F.when(is_whole & is_moved & was_credited, Class.MATCHED.value)
        .when(is_whole & is_moved & was_returned, Class.RETURNED.value)
        .when(is_whole & is_void, Class.ROLLED_BACK.value)
    )


def _zero_sums(rules: Rules) -> Iterator[Column]:
    """For each sum that must be zero in a transfer: 1 for an entry that counts in it, else 0."""
    for bank in rules.both_sides:
        for kind in _MOVES:
            yield ((F.col("bank") == bank) & (F.col("kind") == kind)).cast("int")
    if rules.proves_clearing:
        yield (F.col("tag") == "clearing").cast("int")


def _entries(rows: DataFrame, rules: Rules, window: DayWindow) -> DataFrame:
    """The columns of entries that the match reads."""
    has_sums = rules.both_sides or rules.proves_clearing
    if not has_sums:
        rows = rows.where(F.col("role") != "clearing")
    kind, amount = F.col("kind"), F.col("amount")
    is_theirs = (F.col("role") == "customer") & (F.col("booked_ms") >= window.start_ms)
    # A debit must be negative and a credit positive, else the row is not plain.
    has_sign = F.when(kind == "debit", amount < 0).otherwise(amount > 0)
    is_plain = is_theirs & has_sign & kind.isin(*_MOVES) & _is_at_its_bank(rules)
    tag = F.when(F.col("role") == "clearing", "clearing").when(is_plain, kind).otherwise("other")
    is_known = _is_known(amount, F.col("currency"), rules)
    payer = F.when(tag.isin("debit", "return"), _mark("account"))
    found = {
        "tag": F.when(is_known, tag).otherwise("other"),
        "payer": payer,
        "payee": F.when(tag == "credit", _mark("account")),
        "amount": F.when(is_known, F.abs(amount)),
        "money": _money(rules),
    }
    more = {"bank": F.col("bank"), "kind": kind, "signed": F.when(is_known, amount)}
    found |= more if has_sums else {}
    return rows.select("key", *(column.alias(name) for name, column in found.items()))


def _is_at_its_bank(rules: Rules) -> Column:
    """True for an entry that its bank may book, whichever flow ordered the transfer."""
    found = F.lit(True)
    for namespace, banks in rules.sure_banks.items():
        for kind in _MOVES:
            is_its = F.col("key").startswith(f"{namespace}/") & (F.col("kind") == kind)
            found &= ~is_its | F.col("bank").isin(*banks.for_kind(kind))
    return found


def _messages(rows: DataFrame, rules: Rules) -> DataFrame:
    """The columns of messages that the match reads.

    A rolled-back message must agree only on its transfer and its payer.
    """
    is_visible, is_void = F.col("state").isin(*VISIBLE), F.col("state") == "rolled_back"
    amount = F.col("amount")
    is_known = (amount >= 0) & _is_known(amount, F.col("currency"), rules)
    is_read = is_visible & F.coalesce(is_known, F.lit(False))
    has_payer = (is_visible & F.col("payer").isNotNull()) | is_void
    found = {
        "tag": F.when(is_read, "ordered").when(is_void, "void").otherwise("other"),
        "payer": F.when(has_payer, _mark("payer")),
        "payee": F.when(is_visible & F.col("payee").isNotNull(), _mark("payee")),
        "id": F.when(is_visible, _mark("id")),
        "amount": F.when(is_read, amount),
        "money": F.when(is_read, _money(rules)),
    }
    return rows.select("key", *(column.alias(name) for name, column in found.items()))


def _is_known(amount: Column, currency: Column, rules: Rules) -> Column:
    return amount.between(-_AMOUNT_MAX, _AMOUNT_MAX) & currency.isin(*rules.money)


def _money(rules: Rules) -> Column:
    """A currency as a number, from 1 on; Spark aggregates numbers faster than texts."""
    known = F.array(*map(F.lit, sorted(rules.money))) if rules.money else F.array(F.lit(""))
    return F.array_position(known, F.col("currency"))


def _mark(name: str) -> Column:
    """A text as a 64-bit hash. The key is part of it: two texts that collide in one transfer do not
    in another, so nobody can choose names that collide.
    """
    return F.xxhash64(F.col("key"), F.col(name))


def decide(frames: Frames, suspects: DataFrame, window: DayWindow, decider: Decider) -> DataFrame:
    """Decide the suspects from all of their rows; each row of the result fills one column of
    ``DECIDED``.

    ``suspects`` has their keys, and whether they were agreed on an earlier day.
    """
    count = suspects.count()
    keys = {
        # Old rows matter only for transfers that were agreed and moved again.
        is_old: F.broadcast(some) if count <= _FEW else some
        for is_old, some in ((False, suspects), (True, suspects.where("was_agreed")))
    }
    rows = []
    for role in (role for role in EVIDENCE if role in frames):
        found = with_keys(role, rows_of(role, frames[role], window))
        found = found.join(keys[role in OLD], "key", "left_semi")
        rows.append(_shaped(role, found))
    evidence = reduce(DataFrame.unionByName, rows)
    # Many keys at a time: calling Python for each one would cost more than the decision.
    place = F.pmod(F.xxhash64("key"), F.lit(count // _KEYS_AT_A_PLACE + 1))

    # Spark reads the type hints.
    def decided(rows: pa.Table) -> pa.Table:
        return decider.decide_rows(rows)

    return evidence.groupBy(place).applyInArrow(decided, DECIDED)


def _shaped(role: Role, rows: DataFrame) -> DataFrame:
    """Rows as structs in the column of their table; the columns of the other tables are NULL."""
    shape = EVIDENCE[role]
    others = {table.name: table for table in EVIDENCE.values()}
    del others[shape.name]
    return rows.select(
        F.lit(role.name).alias("role"), "key", F.struct(*shape.names).alias(shape.name),
        *(F.lit(None).cast(f"struct<{table.ddl}>").alias(name) for name, table in others.items()),
    )  # fmt: skip
