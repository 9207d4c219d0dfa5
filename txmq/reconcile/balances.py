"""The balances of accounts over the day, from the bank's entries, its table of accounts, and the
result of the day before.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import add
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from txmq.reconcile import tables
from txmq.reconcile.extract.controls import LOWER_HALF
from txmq.reconcile.ledgers import Ledgers
from txmq.reconcile.rows import index_in, union
from txmq.reconcile.rules import Rules
from txmq.reconcile.second_pass import Sums
from txmq.reconcile.transfer import ARRIVED

__all__ = ["KINDS", "balances_of", "count_ids"]

KINDS: Final = ("debit", "return", "credit", "other")
"""The kinds of bookings, which are columns of ``BALANCES``."""
_ACCOUNT: Final = ("bank", "account", "currency")
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
_NUMBERS: Final = ("first_id", "last_id", "closed_id")
_SUMS: Final = (
    *("opening", "opening_rows", "rows", "later", "told", "closed", "closed_rows", "overflows"),
    *_NUMBERS,
    *KINDS,
)
_OPTIONAL: Final = ("told", *_NUMBERS)


def balances_of(
    entries: DataFrame, ledgers: Ledgers, closed: DataFrame | None, rules: Rules
) -> DataFrame:
    """The balances of each account over the day, as ``BALANCES``, in an order of their own.

    ``moved`` and ``closing`` are NULL if they do not fit into 64 bits; Spark's error would not name
    the account.

    Args:
        entries: The entries of the day.
        ledgers: The sums before and after the day, and the tables of accounts.
        closed: The closing balances of the day before.
        rules: They name the banks whose ids have no gaps.
    """
    amount = f.col("amount")
    # The day's rows are added up before the shuffle, so a busy account does not become a hot spot.
    has_arrived = f.col("kind").isin(*ARRIVED)
    kind = f.when(has_arrived, KINDS.index("credit")).otherwise(index_in("kind", KINDS))
    numbered = [bank.name for bank in rules.bank if bank.entries.gapless]
    number = f.when(f.col("bank").isin(numbered), f.col("id"))
    # No sum of halves overflows, in whatever order Spark adds them up.
    halves = {"low": amount.bitwiseAND(LOWER_HALF), "high": f.shiftright(amount, 32)}
    # Without gapless banks the numbers are not read.
    numbers = {"first_id": f.min(number), "last_id": f.max(number)} if numbered else {}
    moved = _with_role_code(entries).withColumn("kind", kind).groupBy(*_ACCOUNT).agg(
        f.max("role_code").alias("role_code"),
        f.count(f.lit(1)).alias("rows"),
        *(column.alias(name) for name, column in numbers.items()),
        *(
            f.sum(f.when(f.col("kind") == at, half)).alias(f"{name}_{which}")
            for at, name in enumerate(KINDS)
            for which, half in halves.items()
        ),
    )  # fmt: skip
    moved = moved.withColumns({name: _joined(f"{name}_low", f"{name}_high") for name in KINDS})
    overflows = (f.col(name).isNull().cast("int") for name in KINDS)
    moved = moved.withColumn("overflows", reduce(add, overflows))
    parts = union(
        _part(_with_role_code(ledgers.opening), opening="amount", opening_rows="rows"),
        _part(moved, **{name: name for name in ("rows", "overflows", *numbers, *KINDS)}),
        _part(_with_role_code(ledgers.later), later="amount"),
        _part(ledgers.accounts, told="balance"),
        # An account without rows stays an account, with its last number.
        None if closed is None else _part(
            closed, closed="closing", closed_rows="closing_rows", closed_id="last_id"
        ),
    )  # fmt: skip
    # Each part has about one row for an account, so adding up before the shuffle gains nothing.
    found = (
        parts.repartition(*_ACCOUNT)
        .groupBy(*_ACCOUNT)
        .agg(f.max("role_code").alias("role_code"), *(f.sum(name).alias(name) for name in _SUMS))
    )
    sum_ = f.when(f.col("overflows") == 0, reduce(f.try_add, map(f.col, KINDS)))
    found = found.withColumn("moved", sum_)
    names = f.array(*map(f.lit, _ROLES))
    return found.withColumns({
        "role": f.get(names, f.coalesce("role_code", f.lit(0))),
        "closing": f.try_add("opening", "moved"),
        "closing_rows": f.col("opening_rows") + f.col("rows"),
        "last_id": f.greatest("last_id", "closed_id"),
    }).select(*tables.BALANCES.names).sortWithinPartitions(*_ACCOUNT)  # fmt: skip


def count_ids(entries: DataFrame, closed: DataFrame | None, rules: Rules) -> Sums:
    """The number of different new ids on the day, of the banks whose ids have no gaps."""
    banks = [bank.name for bank in rules.bank if bank.entries.gapless]
    if not banks:
        return Counter()
    ids = entries.where(f.col("bank").isin(banks))
    if closed is not None:
        known = closed.groupBy("bank").agg(f.max("last_id").alias("known"))
        ids = ids.join(f.broadcast(known), "bank", "left").where("id > coalesce(known, id - 1)")
    counts = ids.groupBy("bank").agg(f.count_distinct("id")).collect()
    return Counter({("ids", bank, ""): count for bank, count in counts})


def _joined(low: str, high: str) -> Column:
    """The sum of numbers from the sums of their halves; NULL if it does not fit into 64 bits."""
    lower, upper = f.coalesce(low, f.lit(0)), f.coalesce(high, f.lit(0))
    upper = upper + f.shiftright(lower, 32)
    fits = upper.between(-(1 << 31), (1 << 31) - 1)
    return f.when(fits, f.shiftleft(upper, 32).bitwiseOR(lower.bitwiseAND(LOWER_HALF)))


def _with_role_code(table: DataFrame) -> DataFrame:
    """Add the role as a number: an aggregate over texts has to sort."""
    return table.withColumn("role_code", index_in("role", _ROLES))


def _part(table: DataFrame, **given: str) -> DataFrame:
    """A table with all summed columns; ``given`` names the columns that it has."""
    code = "role_code" if "role_code" in table.columns else "NULL"
    numbers = []
    for name in _SUMS:
        none = "NULL" if name in _OPTIONAL else "0"
        found = f"coalesce(`{given[name]}`, {none})" if name in given else none
        numbers.append(f"CAST({found} AS BIGINT) AS `{name}`")
    return table.selectExpr(*_ACCOUNT, f"CAST({code} AS INT) AS role_code", *numbers)
