"""The first pass over a day: what is plainly agreed falls through, and all else is kept.

On most days nearly all transfers are a debit, a message and a credit that agree; of the others most
were paid back, or rolled back before any money moved. To see that, the rows of all three ledgers
are made one narrow shape and meet in one shuffle; no ledger is joined to another. Each row carries
marks of what it says: a debit and a return of who pays, a credit of who is paid, a message of both
and of its own id. Where the least mark of a kind is also the greatest, all rows say the same.
A transfer of which anything is more, less or other is looked at again, row by row and letter by
letter (:mod:`txmq.reconcile.units`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.classes import Class
from txmq.reconcile.rows import VISIBLE
from txmq.reconcile.rules import Rules, Window

__all__ = ["plain_class", "plain_currency", "sieved"]

_DEBIT, _CREDIT, _RETURN, _MESSAGE, _VOID, _CLEARING, _OTHER = range(7)
_COUNTED: Final = {
    "debits": _DEBIT,
    "credits": _CREDIT,
    "returns": _RETURN,
    "messages": _MESSAGE,
    "voids": _VOID,
    "others": _OTHER,
}
_ONE_THING: Final = ("payer", "payee", "twin", "amount", "money")
"""What all rows of a plain transfer say alike, as far as they say it."""
_UNKNOWN: Final = -1
"""An amount or a currency that nobody can read, or that the rules do not know."""
_PLAIN: Final = {Class.MATCHED: 1, Class.RETURNED: 2, Class.ROLLED_BACK: 3}


def sieved(
    entries: DataFrame,
    messages: DataFrame,
    carried: DataFrame | None,
    rules: Rules,
    window: Window,
) -> DataFrame:
    """Every transfer of the day, and whether it is plainly agreed.

    Args:
        entries: What was booked on the day (:func:`~txmq.reconcile.rows.entries_of`).
        messages: What was told (:func:`~txmq.reconcile.rows.messages_of`).
        carried: The keys of what was left open before; none of them is plain.
        rules: They say which banks keep both sides of a booking, and which currencies there are.
        window: The day.

    Returns:
        ``key`` and ``plain``, which is 0 for what is suspect. For all else it stands for a class
        (:func:`plain_class`), and there are ``amount``, ``money`` (:func:`plain_currency`),
        ``first_ms`` and ``last_ms``.
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
        *(_number(tag).alias(name) for name, tag in _COUNTED.items()),
        *(f.min(each).alias(each) for each in _ONE_THING),
        *(f.max(each).alias(f"{each}_hi") for each in _ONE_THING),
        f.min("ms").alias("first_ms"),
        f.max("ms").alias("last_ms"),
        *(f.sum(each).alias(each) for each in sums),
    )  # fmt: skip
    return met.select(
        "key",
        _plain(sums).alias("plain"),
        f.coalesce("amount", f.lit(0)).alias("amount"),
        "money",
        (f.col("messages") > 0).alias("is_ordered"),
        "first_ms",
        "last_ms",
    )


def plain_class(plain: Column) -> Column:
    """The class of what fell through."""
    return f.get(f.array(*(f.lit(each.value) for each in _PLAIN)), plain - 1)


def plain_currency(money: Column, rules: Rules) -> Column:
    """The currency of what fell through; what was rolled back has none."""
    names = f.array(*(f.lit(each) for each in sorted(rules.money)))
    return f.coalesce(f.get(names, money), f.lit(""))


def _number(tag: int) -> Column:
    return f.sum(f.when(f.col("tag") == tag, 1).otherwise(0))


def _plain(sums: dict[str, Column]) -> Column:
    col = f.col
    adds_up = f.lit(True)
    for each in sums:
        adds_up &= f.coalesce(col(each), f.lit(0)) == 0
    is_agreed = adds_up & (col("others") == 0) & (col("amount") >= 0) & (col("money") >= 0)
    for each in _ONE_THING:
        # Where no row says anything of it, none says anything else.
        is_agreed &= f.coalesce(col(each) == col(f"{each}_hi"), f.lit(True))
    was_debited = col("debits") == 1
    was_credited = (col("credits") == 1) & (col("returns") == 0)
    was_returned = (col("credits") == 0) & (col("returns") == 1)
    is_told = (col("messages") > 0) & (col("voids") == 0)
    is_void = (col("messages") == 0) & (col("voids") > 0)
    moved = col("debits") + col("credits") + col("returns") + col("others")
    of_each = {
        Class.MATCHED: is_agreed & was_debited & was_credited & is_told,
        Class.RETURNED: is_agreed & was_debited & was_returned & (is_told | is_void),
        Class.ROLLED_BACK: adds_up & is_void & (moved == 0),
    }
    codes = (f.when(is_so, _PLAIN[class_]) for class_, is_so in of_each.items())
    return f.coalesce(*codes, f.lit(0))


def _sums(rules: Rules) -> dict[str, Column]:
    """What has to be nothing in each transfer, as far as the banks keep it."""
    amount, kind = f.col("amount"), f.col("kind")
    zero = f.lit(0).cast("long")
    found: dict[str, Column] = {}
    both_sides = [each.name for each in rules.bank if each.entries.double_entry]
    if both_sides:
        is_theirs = f.col("bank").isin(both_sides)
        for each in ("debit", "credit", "return"):
            found[f"{each}_sum"] = f.when(is_theirs & (kind == each), amount).otherwise(zero)
    if all(each.entries.clearing for each in rules.bank):
        found["cleared"] = f.when(f.col("role") == "clearing", amount).otherwise(zero)
    return found


def _of_entries(
    entries: DataFrame, rules: Rules, window: Window, sums: dict[str, Column]
) -> DataFrame:
    kind, role, amount = f.col("kind"), f.col("role"), f.col("amount")
    is_theirs = (role == "customer") & (f.col("booked_ms") >= window.start_ms)
    # A debit takes and a credit gives; a row that does the other is no plain one.
    is_debit = is_theirs & (kind == "debit") & (amount < 0)
    is_credit = is_theirs & (kind == "credit") & (amount > 0)
    is_return = is_theirs & (kind == "return") & (amount > 0)
    tag = f.when(is_debit, _DEBIT).when(is_credit, _CREDIT).when(is_return, _RETURN)
    is_clearing, mark = role == "clearing", f.xxhash64("account")
    if not sums:
        entries = entries.where(~is_clearing)
    return entries.where(kind.isin("debit", "credit", "return")).select(
        "key",
        f.when(is_clearing, _CLEARING).otherwise(f.coalesce(tag, f.lit(_OTHER))).alias("tag"),
        f.when(is_debit | is_return, mark).alias("payer"),
        f.when(is_credit, mark).alias("payee"),
        f.when(~is_clearing, f.abs(amount)).alias("amount"),
        f.when(~is_clearing, _code(rules)).alias("money"),
        f.col("recorded_ms").alias("ms"),
        *(each.alias(name) for name, each in sums.items()),
    )


def _of_messages(messages: DataFrame, rules: Rules) -> DataFrame:
    state = f.col("state")
    is_visible, is_void = state.isin(*VISIBLE), state == "rolled_back"

    def mark(name: str) -> Column:
        return f.when(is_visible & f.col(name).isNotNull(), f.xxhash64(name))

    return messages.select(
        "key",
        f.when(is_visible, _MESSAGE).when(is_void, _VOID).otherwise(_OTHER).alias("tag"),
        mark("payer").alias("payer"),
        mark("payee").alias("payee"),
        mark("id").alias("twin"),
        f.when(is_visible, f.coalesce("amount", f.lit(_UNKNOWN))).alias("amount"),
        f.when(is_visible, _code(rules)).alias("money"),
        f.when(is_void, f.col("decided_ms")).otherwise(f.col("stored_ms")).alias("ms"),
    )


def _code(rules: Rules) -> Column:
    """A row's currency as its place among those that the rules know."""
    code = f.lit(_UNKNOWN)
    for place, name in enumerate(sorted(rules.money)):
        code = f.when(f.col("currency") == name, place).otherwise(code)
    return code
