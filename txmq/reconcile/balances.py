"""The balances of each account over a day, as an aggregation.

Each table that tells something about accounts gives rows with those columns of ``BALANCES`` that it
knows. All rows of an account are added up.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txmq.reconcile.frames import Frames, rows_of
from txmq.reconcile.ledgers import Role
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import BALANCES
from txmq.reconcile.transfer import ARRIVED

__all__ = ["ACCOUNT", "KINDS", "WIDE", "balances"]

KINDS: Final = ("debit", "return", "credit", "other")
"""The kinds of bookings, which are columns of ``BALANCES``."""
ACCOUNT: Final = ("bank", "account", "currency")
"""The columns that name an account."""
WIDE: Final = "decimal(38,0)"
"""A type with room for any sum of 64-bit numbers."""
_STATED: Final = {
    Role.OPENING: {"amount": "opening", "rows": "opening_rows"},
    Role.LATER: {"amount": "later"},
    Role.ACCOUNTS: {"balance": "told"},
    # An account without rows stays an account, with its last number.
    Role.BALANCES: {"closing": "closed", "closing_rows": "closed_rows", "last_id": "closed_id"},
}
"""The tables that state balances: the column of ``BALANCES`` for each of theirs."""
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
"""The greatest one counts, where the tables differ."""
_MONEY: Final = (*KINDS, "opening", "later", "told", "closed")
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


def balances(frames: Frames, rules: Rules, window: DayWindow) -> DataFrame:
    """The balances of each account, as ``BALANCES``; a number that does not fit into 64 bits is
    NULL.
    """
    entries = rows_of(Role.ENTRIES, frames[Role.ENTRIES], window)
    facts = [_of_entries(entries, rules.banks(lambda bank: bank.entries.gapless))]
    facts += [
        frames[role].select(
            *ACCOUNT, *([_role()] if "role" in frames[role].columns else []),
            *(F.col(own).cast("bigint").alias(name) for own, name in columns.items()),
        )
        for role, columns in _STATED.items()
        if role in frames
    ]  # fmt: skip
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), facts)
    rows = rows.withColumns({name: F.lit(None).cast("bigint") for name in _all()
                             if name not in rows.columns})  # fmt: skip
    sums = rows.groupBy(*ACCOUNT).agg(
        F.max("role").alias("role"),
        *(F.coalesce(F.sum(F.col(name).cast("decimal(20,0)")).cast(WIDE), F.lit(0).cast(WIDE))
          .alias(name) for name in _MONEY),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name)
          for name in ("rows", "opening_rows", "closed_rows")),
        F.count("told").alias("is_told"),
        F.max("closed_id").alias("closed_id"),
        F.min("first_id").alias("first_id"), F.max("last_id").alias("last_id"),
    )  # fmt: skip
    moved = reduce(Column.__add__, map(F.col, KINDS))
    numbers = {name: F.coalesce(_fitted(F.col(name)), F.lit(0)) for name in _MONEY}
    columns = numbers | {
        "role": F.get(F.array(*map(F.lit, _ROLES)), F.coalesce("role", F.lit(0))),
        "told": F.when(F.col("is_told") > 0, numbers["told"]),
        "moved": _fitted(moved),
        "closing": _fitted(F.col("opening") + moved),
        "closing_rows": F.col("opening_rows") + F.col("rows"),
        "last_id": F.greatest("last_id", "closed_id"),
    }
    return sums.select(*(columns.get(name, F.col(name)).alias(name) for name in BALANCES.names))


def _all() -> set[str]:
    stated = {name for columns in _STATED.values() for name in columns.values()}
    return {*KINDS, "rows", "first_id", "last_id", *stated}


def _of_entries(rows: DataFrame, gapless: list[str]) -> DataFrame:
    kind = F.when(F.col("kind").isin(*ARRIVED), "credit").when(
        F.col("kind").isin(*KINDS), F.col("kind")
    ).otherwise("other")  # fmt: skip
    id_ = F.when(F.col("bank").isin(*gapless), F.col("id"))
    return rows.select(
        *ACCOUNT, _role(),
        *(F.when(kind == name, F.col("amount")).otherwise(0).alias(name) for name in KINDS),
        F.lit(1).cast("bigint").alias("rows"), id_.alias("first_id"), id_.alias("last_id"),
    )  # fmt: skip


def _role() -> Column:
    return (
        (F.array_position(F.array(*map(F.lit, _ROLES)), F.col("role")) - 1)
        .cast("int")
        .alias("role")
    )


def _fitted(sum_: Column) -> Column:
    """A sum as a number of 64 bits; NULL if it does not fit."""
    return F.when(sum_.between(_LEAST, _GREATEST), sum_).cast("bigint")
