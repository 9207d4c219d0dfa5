"""The balances of each account over a day, as an aggregation.

Each table that describes accounts contributes facts: amounts, each with the column of ``BALANCES``
that it belongs to. All facts of an account are added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txmq.reconcile.frames import Frames, exact_sum, rows_of
from txmq.reconcile.ledgers import Role
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import BALANCES
from txmq.reconcile.transfer import ARRIVED

__all__ = ["ACCOUNT", "KINDS", "balances"]

KINDS: Final = ("debit", "return", "credit", "other")
"""The kinds of bookings, which are columns of ``BALANCES``."""
ACCOUNT: Final = ("bank", "account", "currency")
"""The columns that name an account."""
_STATED: Final = {
    Role.OPENING: ("opening", "amount", "rows", "NULL"),
    Role.LATER: ("later", "amount", "NULL", "NULL"),
    Role.ACCOUNTS: ("told", "balance", "NULL", "NULL"),
    # An account without rows on the day is kept, with its last id.
    Role.BALANCES: ("closed", "closing", "closing_rows", "last_id"),
}
"""The tables that state balances: the name of the fact, and the columns with its amount, rows and
id."""
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
"""If the tables differ about an account, the last of these roles counts."""
_MONEY: Final = (*KINDS, "opening", "later", "told", "closed")
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


def balances(frames: Frames, rules: Rules, window: DayWindow) -> DataFrame:
    """The balances of each account, as ``BALANCES``; numbers beyond 64 bits are NULL."""
    facts = reduce(DataFrame.unionByName, _facts(frames, rules, window))
    fact, rows, id_ = F.col("fact"), F.col("rows"), F.col("id")
    is_booked = fact.isin(*KINDS)
    sums = facts.groupBy(*ACCOUNT).agg(
        F.max("role").alias("role"),
        *(exact_sum(F.when(fact == name, F.col("amount"))).alias(name) for name in _MONEY),
        *(F.coalesce(F.sum(F.when(counts, rows)), F.lit(0)).alias(name) for name, counts in (
            ("rows", is_booked), ("opening_rows", fact == "opening"),
            ("closed_rows", fact == "closed"))),
        F.count_if(fact == "told").alias("is_told"),
        F.min(F.when(is_booked, id_)).alias("first_id"), F.max("id").alias("last_id"),
        F.max(F.when(fact == "closed", id_)).alias("closed_id"),
    )  # fmt: skip
    moved = reduce(Column.__add__, map(F.col, KINDS))
    numbers = {name: F.coalesce(_fitted(F.col(name)), F.lit(0)) for name in _MONEY}
    columns = numbers | {
        "role": F.get(F.array(*map(F.lit, _ROLES)), F.coalesce("role", F.lit(0))),
        "told": F.when(F.col("is_told") > 0, numbers["told"]),
        "moved": _fitted(moved),
        "closing": _fitted(F.col("opening") + moved),
        "closing_rows": F.col("opening_rows") + F.col("rows"),
    }
    return sums.select(*(columns.get(name, F.col(name)).alias(name) for name in BALANCES.names))


def _facts(frames: Frames, rules: Rules, window: DayWindow) -> Iterator[DataFrame]:
    """The facts about accounts in each table."""
    entries = rows_of(Role.ENTRIES, frames[Role.ENTRIES], window)
    kind = F.when(F.col("kind").isin(*ARRIVED), "credit").when(
        F.col("kind").isin(*KINDS), F.col("kind")
    ).otherwise("other")  # fmt: skip
    gapless = F.col("bank").isin(*rules.banks(lambda bank: bank.entries.gapless))
    own_id = F.when(gapless, F.col("id"))
    yield _fact(entries, kind, F.col("amount"), F.lit(1), own_id)
    for role, (fact, *numbers) in _STATED.items():
        if role in frames:
            yield _fact(frames[role], F.lit(fact), *map(F.expr, numbers))


def _fact(table: DataFrame, fact: Column, amount: Column, rows: Column, id_: Column) -> DataFrame:
    known, none = F.array(*map(F.lit, _ROLES)), F.lit(None)
    role = F.array_position(known, F.col("role")) - 1 if "role" in table.columns else none
    numbers = {"amount": amount, "rows": rows, "id": id_}
    return table.select(
        *ACCOUNT, role.cast("int").alias("role"), fact.alias("fact"),
        *(number.cast("bigint").alias(name) for name, number in numbers.items()),
    )  # fmt: skip


def _fitted(sum_: Column) -> Column:
    """A sum as a 64-bit number; NULL if it does not fit."""
    return F.when(sum_.between(_LEAST, _GREATEST), sum_).cast("bigint")
