"""The first pass over a day: what is plainly matched falls through, and all else is kept.

On most days nearly all transfers are a debit, a message and a credit that agree. To see that, the
rows of all three ledgers are made one narrow shape and meet in one shuffle; no ledger is joined to
another. A debit carries a mark made from what it says of its account and its currency, a credit
another one, and a message both of what it says: where all agree, the marks cancel each other out.
A transfer of which anything is more, less or other is looked at again, row by row and letter by
letter (:mod:`txmq.reconcile.units`).
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.rows import VISIBLE
from txmq.reconcile.rules import Rules, Window

__all__ = ["sieved"]

_DEBIT, _CREDIT, _MESSAGE, _CLEARING, _OTHER = range(5)
_PAYER, _PAYEE = "payer", "payee"
"""What a mark is about."""


def sieved(
    entries: DataFrame,
    messages: DataFrame,
    carried: DataFrame | None,
    rules: Rules,
    window: Window,
) -> DataFrame:
    """Every transfer of the day, and whether it is plainly matched.

    Args:
        entries: What was booked on the day (:func:`~txmq.reconcile.rows.entries_of`).
        messages: What was told (:func:`~txmq.reconcile.rows.messages_of`).
        carried: The keys of what was left open before; none of them is plain.
        rules: They say which banks keep both sides of a booking, and which currencies there are.
        window: The day.

    Returns:
        ``key``, ``is_plain``, and for what is plain ``amount``, ``currency``, ``first_ms`` and
        ``last_ms``.
    """
    sums = _sums(rules)
    narrow = _of_entries(entries, rules, window, sums).unionByName(
        _of_messages(messages, rules), allowMissingColumns=True
    )
    if carried is not None:
        keys = carried.select("key", f.lit(_OTHER).alias("tag"))
        narrow = narrow.unionByName(keys, allowMissingColumns=True)
    # Sent to their places before they are grouped: rows travel as they are, and narrow. The places
    # have a number, so that the same day is parted in the same way each time.
    parts = int(narrow.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    met = narrow.repartition(parts, "key").groupBy("key").agg(
        *(_number(each).alias(f"n{each}") for each in (_DEBIT, _CREDIT, _MESSAGE, _OTHER)),
        f.bit_xor("mark").alias("mark"),
        f.min("amount").alias("amount"),
        f.max("amount").alias("amount_hi"),
        f.max("money").alias("money"),
        f.min("ms").alias("first_ms"),
        f.max("ms").alias("last_ms"),
        *(f.sum(each).alias(each) for each in sums),
    )  # fmt: skip
    once = (f.col(f"n{each}") == 1 for each in (_DEBIT, _CREDIT, _MESSAGE))
    is_plain = reduce(and_, once) & (f.col(f"n{_OTHER}") == 0) & (f.col("mark") == 0)
    is_plain &= f.col("amount") == f.col("amount_hi")
    is_plain &= f.col("money").isNotNull()
    for each in sums:
        is_plain &= f.coalesce(f.col(each), f.lit(0)) == 0
    return met.select(
        "key",
        f.coalesce(is_plain, f.lit(False)).alias("is_plain"),
        "amount",
        _name(f.col("money"), rules).alias("currency"),
        "first_ms",
        "last_ms",
    )


def _number(tag: int) -> Column:
    return f.sum(f.when(f.col("tag") == tag, 1).otherwise(0))


def _sums(rules: Rules) -> dict[str, Column]:
    """What has to be nothing in each transfer, as far as the banks keep it."""
    amount, kind = f.col("amount"), f.col("kind")
    zero = f.lit(0).cast("long")
    found: dict[str, Column] = {}
    both_sides = [each.name for each in rules.bank if each.entries.double_entry]
    if both_sides:
        is_theirs = f.col("bank").isin(both_sides)
        for each in ("debit", "credit"):
            found[f"{each}_sum"] = f.when(is_theirs & (kind == each), amount).otherwise(zero)
    if all(each.entries.clearing for each in rules.bank):
        found["cleared"] = f.when(f.col("role") == "clearing", amount).otherwise(zero)
    return found


def _of_entries(
    entries: DataFrame, rules: Rules, window: Window, sums: dict[str, Column]
) -> DataFrame:
    kind, role, amount = f.col("kind"), f.col("role"), f.col("amount")
    money = _code(f.col("currency"), rules)
    is_theirs = (role == "customer") & (f.col("booked_ms") >= window.start_ms)
    # A debit takes and a credit gives; a row that does the other is no plain one.
    is_debit = is_theirs & (kind == "debit") & (amount < 0)
    is_credit = is_theirs & (kind == "credit") & (amount > 0)
    tag = f.when(is_debit, _DEBIT).when(is_credit, _CREDIT)
    account = f.col("account")
    mark = f.when(is_debit, _mark(_PAYER, account, money)).when(
        is_credit, _mark(_PAYEE, account, money)
    )
    is_clearing = role == "clearing"
    if not sums:
        entries = entries.where(~is_clearing)
    return entries.where(kind.isin("debit", "credit", "return")).select(
        "key",
        tag.when(is_clearing, _CLEARING).otherwise(_OTHER).alias("tag"),
        mark.alias("mark"),
        f.when(~is_clearing, f.abs(amount)).alias("amount"),
        money.alias("money"),
        f.col("recorded_ms").alias("ms"),
        *(each.alias(name) for name, each in sums.items()),
    )


def _of_messages(messages: DataFrame, rules: Rules) -> DataFrame:
    money = _code(f.col("currency"), rules)
    marks = _mark(_PAYER, f.col("payer"), money), _mark(_PAYEE, f.col("payee"), money)
    return messages.select(
        "key",
        f.when(f.col("state").isin(*VISIBLE), _MESSAGE).otherwise(_OTHER).alias("tag"),
        marks[0].bitwiseXOR(marks[1]).alias("mark"),
        # None is no amount, and agrees with nothing.
        f.coalesce("amount", f.lit(-1)).alias("amount"),
        money.alias("money"),
        f.col("stored_ms").alias("ms"),
    )


def _mark(about: str, account: Column, money: Column) -> Column:
    return f.xxhash64(f.lit(about), account, money)


def _code(currency: Column, rules: Rules) -> Column:
    """A currency that the rules know as its place among them; with another one nothing is plain."""
    code = f.lit(None).cast("int")
    for place, name in enumerate(sorted(rules.money)):
        code = f.when(currency == name, place).otherwise(code)
    return code


def _name(code: Column, rules: Rules) -> Column:
    names = f.array(*(f.lit(each) for each in sorted(rules.money)))
    return f.get(names, code) if rules.money else f.lit(None).cast("string")
