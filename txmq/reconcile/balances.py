"""Balance proofs: each account over the day, each bank, and all of them together.

What an account has is told at several places that are written independently of each other: the
journal, the table of accounts, the result of the day before, and the list of what is on its way.
A proof says which two of them have to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from txmq.reconcile import tables
from txmq.reconcile.ledgers import Ledgers
from txmq.reconcile.rows import is_transfer, place_of, settled, together
from txmq.reconcile.rules import Rules

__all__ = ["Books", "balances_of", "proofs_of"]

_ACCOUNT: Final = ("bank", "account", "currency")
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
_KINDS: Final = ("debit", "return", "credit", "other")
_CLASSED: Final = (("debit", "debited", -1), ("return", "returned", 1), ("credit", "credited", 1))
_SUMS: Final = ("opening", "rows", "later", "told", *_KINDS)


class Books(NamedTuple):
    """All that proofs are made from."""

    entries: DataFrame
    """What was booked on the day."""
    before: DataFrame | None
    """What was booked earlier, of transfers that were looked at again today."""
    booked: DataFrame
    """All that was booked of what is not plainly agreed, then and now."""
    balances: DataFrame
    totals: DataFrame
    closed: DataFrame | None
    """The balances that the day before ended with."""
    rules: Rules

    def banks(self, which: str) -> list[str]:
        """The names of the banks whose rules say so."""
        return [
            each.name
            for each in self.rules.bank
            if (each.accounts if which == "accounts" else getattr(each.entries, which))
        ]


def balances_of(entries: DataFrame, ledgers: Ledgers) -> DataFrame:
    """Each account over the day, as the bank tells it: ``BALANCES``, and beside it what transfers
    and other bookings have moved.

    Args:
        entries: What was booked on the day.
        ledgers: For what was before and after it, and what the tables of accounts say.
    """
    amount = f.col("amount")
    # Rows of the day first add up where they are, so that an account of many is no heap of rows,
    # and with nothing beside them that is added later.
    kind = place_of("kind", _KINDS).alias("kind")
    moved = _coded(entries).select(*_ACCOUNT, "role_code", kind, amount).groupBy(*_ACCOUNT).agg(
        f.max("role_code").alias("role_code"),
        f.count(f.lit(1)).alias("rows"),
        *(f.sum(f.when(f.col("kind") == at, amount)).alias(k) for at, k in enumerate(_KINDS)),
    )  # fmt: skip
    parts = together(
        _part(_coded(ledgers.opening), opening=amount),
        _part(moved, **{each: f.col(each) for each in ("rows", *_KINDS)}),
        _part(_coded(ledgers.later), later=amount),
        _part(ledgers.accounts.withColumn("role_code", f.lit(None)), told=f.col("balance")),
    )
    # None of them says much twice of an account, so that to add up before rows travel is in vain.
    found = (
        parts.repartition(*_ACCOUNT)
        .groupBy(*_ACCOUNT)
        .agg(f.max("role_code").alias("role_code"), *(f.sum(each).alias(each) for each in _SUMS))
    )
    found = found.withColumn("moved", reduce(add, map(f.col, _KINDS)))
    names = f.array(*map(f.lit, _ROLES))
    return found.withColumns({
        "role": f.get(names, f.coalesce("role_code", f.lit(0))),
        "closing": f.col("opening") + f.col("moved"),
    }).select(*tables.BALANCES.names, *_KINDS)  # fmt: skip


def _coded(table: DataFrame) -> DataFrame:
    """With the role as a number: an aggregate over texts has to sort."""
    return table.withColumn("role_code", place_of("role", _ROLES))


def _part(table: DataFrame, **given: Column) -> DataFrame:
    none = {each: f.lit(None if each == "told" else 0) for each in _SUMS}
    return table.select(
        *_ACCOUNT,
        f.col("role_code").cast("int").alias("role_code"),
        *(
            f.coalesce(given.get(name, each), each).cast("long").alias(name)
            for name, each in none.items()
        ),
    )


def proofs_of(books: Books) -> DataFrame:
    """Everything that was proved: what does not hold by itself, and each proof as a whole."""
    return together(*_proofs(books)).select(*tables.PROOFS.names)


def _proofs(books: Books) -> Iterator[DataFrame]:
    if books.closed is not None:
        yield from _each(_rolled_forward(books.balances, books.closed))
    if named := books.banks("accounts"):
        yield from _each(_told(books.balances.where(f.col("bank").isin(named))))
    sums = _by_currency(books)
    yield _conserved(sums)
    yield from _adds_up(sums)
    if len(books.banks("clearing")) == len(books.rules.bank):
        yield from _each(_cleared(books))
    if named := books.banks("double_entry"):
        yield from _each(_balanced(books, named))
    if named := books.banks("gapless"):
        yield _without_gaps(books.entries.where(f.col("bank").isin(named)))


def _each(found: DataFrame) -> Iterator[DataFrame]:
    """What does not hold, and all of it as one for each bank and currency."""
    differs = f.col("expected") != f.col("found")
    yield found.where(differs).withColumn("holds", f.lit(False))
    wrong = f.count(f.when(differs, 1))
    yield (
        found.groupBy("proof", "bank", "currency")
        .agg(
            f.lit(None).cast("string").alias("account"),
            f.sum("expected").alias("expected"),
            f.sum("found").alias("found"),
            (wrong == 0).alias("holds"),
            f.when(
                wrong > 0,
                f.format_string("%d of %d do not: %s", wrong, f.count(f.lit(1)), f.min("about")),
            )
            .otherwise(f.min("about"))
            .alias("about"),
        )
        .select(*tables.PROOFS.names)
    )


def _is(
    rows: DataFrame,
    proof: str,
    *,
    expected: Column,
    found: Column,
    about: str,
    account: Column | None = None,
) -> DataFrame:
    none = f.lit(None).cast("string")
    return rows.select(
        f.lit(proof).alias("proof"),
        f.col("bank") if "bank" in rows.columns else none.alias("bank"),
        (none if account is None else account).alias("account"),
        f.col("currency") if "currency" in rows.columns else none.alias("currency"),
        f.coalesce(expected, f.lit(0)).cast("long").alias("expected"),
        f.coalesce(found, f.lit(0)).cast("long").alias("found"),
        f.lit(about).alias("about"),
    )


def _rolled_forward(balances: DataFrame, before: DataFrame) -> DataFrame:
    """The day begins with what the day before ended with."""
    closed = before.select(*_ACCOUNT, f.col("closing").alias("closed"))
    return _is(
        balances.join(closed, list(_ACCOUNT), "full_outer"),
        "roll-forward",
        account=f.col("account"),
        expected=f.col("closed"),
        found=f.col("opening"),
        about="the closing balance of the day before is the opening balance: what was booked "
        "then is what is booked now",
    )


def _told(balances: DataFrame) -> DataFrame:
    """The journal and the table of accounts agree."""
    return _is(
        balances.where((f.col("role") == "customer") | f.col("told").isNotNull()),
        "account-table",
        account=f.col("account"),
        expected=f.col("told"),
        found=f.col("closing") + f.col("later"),
        about="the balance in the table of accounts is the sum of the journal's entries",
    )


def _by_currency(books: Books) -> DataFrame:
    """What the banks' books and the classes say of each currency, at all banks together."""
    kind, amount = f.col("kind"), f.col("amount")
    rows = books.balances.select("role", "currency", *_KINDS, "moved", f.lit(0).alias("began"))
    if books.before is not None:
        legs = books.before.where(is_transfer()).select(
            "role",
            "currency",
            *(f.when(kind == each, amount).alias(each) for each, _, _ in _CLASSED),
            (-amount).alias("began"),
        )
        rows = rows.unionByName(legs, allowMissingColumns=True)
    is_held, is_leg = f.col("role").isin("customer", "suspense"), f.col("role") != "clearing"
    booked = rows.groupBy("currency").agg(
        *(f.sum(f.when(is_held, f.col(each))).alias(each) for each in ("other", "moved", "began")),
        *(f.sum(f.when(is_leg, f.col(each))).alias(each) for each, _, _ in _CLASSED),
    )
    classed = books.totals.groupBy("currency").agg(
        *(f.sum(each).alias(each) for _, each, _ in _CLASSED)
    )
    return settled(booked.join(classed, "currency", "full_outer").na.fill(0))


def _conserved(sums: DataFrame) -> DataFrame:
    """No money is made and none is lost between the banks.

    What customers have more at the end of the day, at all banks together, came from outside, or has
    been on its way when the day began and is not any more.
    """
    ended = f.col("debited") - f.col("returned") - f.col("credited")
    found = _is(
        sums,
        "conservation",
        expected=f.col("other") + f.col("began") - ended,
        found=f.col("moved"),
        about="what customers of all banks have more is what came from outside and what is no "
        "longer on its way",
    )
    return _whole(found)


def _adds_up(sums: DataFrame) -> Iterator[DataFrame]:
    """Every cent is in exactly one class: the classes add up to what the banks have booked."""
    for kind, name, sign in _CLASSED:
        found = _is(
            sums,
            f"classes-{kind}",
            expected=f.col(kind) * sign,
            found=f.col(name),
            about=f"what all classes have {name} is what all banks have {name}",
        )
        yield _whole(found)


def _whole(found: DataFrame) -> DataFrame:
    return found.withColumn("holds", f.col("expected") == f.col("found"))


def _cleared(books: Books) -> DataFrame:
    """What clearing accounts say of a transfer is what is on its way of it."""
    amount, is_clearing = f.col("amount"), f.col("role") == "clearing"
    found = (
        books.booked.where(f.col("kind") != "other")
        .groupBy("key", "currency")
        .agg(
            f.sum(f.when(is_clearing, amount).otherwise(0)).alias("clearing"),
            f.sum(f.when(is_clearing, 0).otherwise(-amount)).alias("way"),
        )
    )
    return _is(
        found,
        "clearing",
        account=f.col("key"),
        expected=f.col("way"),
        found=f.col("clearing"),
        about="what the clearing accounts hold is what is on its way, transfer by transfer",
    )


def _balanced(books: Books, named: list[str]) -> DataFrame:
    """Both sides of each booking add up to nothing."""
    of_transfers = books.booked.where(f.col("bank").isin(named) & f.col("key").isNotNull())
    others = books.entries.where(f.col("bank").isin(named) & ~is_transfer())
    others = others.withColumn("key", f.lit(None).cast("string"))
    rows = together(of_transfers, others)
    found = rows.groupBy("bank", "currency", "key", "kind").agg(f.sum("amount").alias("sum"))
    return _is(
        found,
        "double-entry",
        account=f.coalesce("key", "kind"),
        expected=f.lit(0),
        found=f.col("sum"),
        about="the rows of each booking add up to nothing",
    )


def _without_gaps(entries: DataFrame) -> DataFrame:
    """No number is missing."""
    found = entries.groupBy("bank").agg(
        f.count(f.lit(1)).alias("rows"), (f.max("id") - f.min("id") + 1).alias("numbers")
    )
    return _whole(
        _is(
            found,
            "gapless",
            expected=f.col("numbers"),
            found=f.col("rows"),
            about="the numbers of the day's entries follow each other",
        )
    )
