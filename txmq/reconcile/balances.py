"""Balance proofs: each account over the day, each bank, and all of them together.

Several independent sources state an account's balance: the journal, the table of accounts, the
result of the day before, and the transfers in flight. A proof states which two of them must be
equal.
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
from txmq.reconcile.rows import index_in, is_transfer, materialize, union
from txmq.reconcile.rules import Rules

__all__ = ["ProofInputs", "balances_of", "proofs_of"]

_ACCOUNT: Final = ("bank", "account", "currency")
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
_HELD: Final = ("customer", "suspense")
_KINDS: Final = ("debit", "return", "credit", "other")
_CLASSED: Final = (("debit", "debited", -1), ("return", "returned", 1), ("credit", "credited", 1))
_NUMBERS: Final = ("first_id", "last_id", "closed_id")
_SUMS: Final = (
    *("opening", "opening_rows", "rows", "later", "told", "closed", "closed_rows"),
    *_NUMBERS,
    *_KINDS,
)
_OPTIONAL: Final = ("told", *_NUMBERS)
_PROOFS_ALONE: Final = ("opening_rows", "closed", "closed_rows", "first_id", "closed_id")
"""Columns of accounts for proofs alone, besides ``BALANCES`` and the sums by kind."""


class ProofInputs(NamedTuple):
    """The inputs of the proofs."""

    entries: DataFrame
    """The entries of the day."""
    before: DataFrame | None
    """Earlier entries of transfers in today's second pass."""
    booked: DataFrame
    """All entries of transfers in the second pass, earlier and today."""
    balances: DataFrame
    totals: DataFrame
    was_closed: bool
    """True if the day before has a result."""
    rules: Rules

    def banks(self, which: str) -> list[str]:
        """The names of the banks whose rules have a property."""
        return [
            bank.name
            for bank in self.rules.bank
            if (bank.accounts if which == "accounts" else getattr(bank.entries, which))
        ]


def balances_of(
    entries: DataFrame, ledgers: Ledgers, closed: DataFrame | None, rules: Rules
) -> DataFrame:
    """The balances of each account over the day: ``BALANCES``, the sums by kind of booking, and
    the closing balances of the day before.

    Args:
        entries: The entries of the day.
        ledgers: The sums before and after the day, and the tables of accounts.
        closed: The closing balances of the day before.
        rules: They name the banks whose ids have no gaps.
    """
    amount = f.col("amount")
    # The day's rows are added up before the shuffle, so a busy account does not become a hot spot.
    kind = index_in("kind", _KINDS)
    numbered = [bank.name for bank in rules.bank if bank.entries.gapless]
    number = f.when(f.col("bank").isin(numbered), f.col("id"))
    # Without gapless banks the numbers are not read.
    numbers = {"first_id": f.min(number), "last_id": f.max(number)} if numbered else {}
    moved = _with_role_code(entries).withColumn("kind", kind).groupBy(*_ACCOUNT).agg(
        f.max("role_code").alias("role_code"),
        f.count(f.lit(1)).alias("rows"),
        *(column.alias(name) for name, column in numbers.items()),
        *(f.sum(f.when(f.col("kind") == at, amount)).alias(k) for at, k in enumerate(_KINDS)),
    )  # fmt: skip
    parts = union(
        _part(_with_role_code(ledgers.opening), opening="amount", opening_rows="rows"),
        _part(moved, **{name: name for name in ("rows", *numbers, *_KINDS)}),
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
    found = found.withColumn("moved", reduce(add, map(f.col, _KINDS)))
    names = f.array(*map(f.lit, _ROLES))
    return found.withColumns({
        "role": f.get(names, f.coalesce("role_code", f.lit(0))),
        "closing": f.col("opening") + f.col("moved"),
        "closing_rows": f.col("opening_rows") + f.col("rows"),
        "last_id": f.greatest("last_id", "closed_id"),
    }).select(*tables.BALANCES.names, *_KINDS, *_PROOFS_ALONE)  # fmt: skip


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


def proofs_of(books: ProofInputs) -> DataFrame:
    """All proofs: the single rows that do not hold, and each proof as a whole."""
    return union(*_proofs(books)).select(*tables.PROOFS.names)


def _proofs(books: ProofInputs) -> Iterator[DataFrame]:
    if books.was_closed:
        yield from _single_and_whole(_roll_forward(books.balances))
        yield from _roll_forward_rows(books.balances)
    if named := books.banks("accounts"):
        yield from _single_and_whole(
            _account_table(books.balances.where(f.col("bank").isin(named)))
        )
    sums = _by_currency(books)
    yield _conservation(sums)
    yield from _class_sums(sums)
    if len(books.banks("clearing")) == len(books.rules.bank):
        yield from _single_and_whole(_clearing(books))
        yield _clearing_total(sums)
    if named := books.banks("double_entry"):
        yield from _single_and_whole(_double_entry(books, named))
    if named := books.banks("gapless"):
        yield _gapless(books.balances.where(f.col("bank").isin(named)))


def _single_and_whole(found: DataFrame) -> Iterator[DataFrame]:
    """The rows that do not hold, and one row for each bank and currency."""
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


def _proof_rows(
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


def _roll_forward(balances: DataFrame) -> DataFrame:
    """Today's opening balance is yesterday's closing balance."""
    return _proof_rows(
        balances,
        "roll-forward",
        account=f.col("account"),
        expected=f.col("closed"),
        found=f.col("opening"),
        about="the opening balance equals the closing balance of the day before, so no earlier "
        "entry changed",
    )


def _roll_forward_rows(balances: DataFrame) -> Iterator[DataFrame]:
    """The number of earlier entries is unchanged. Materiality does not apply to a count."""
    found = _proof_rows(
        balances.drop("currency"),
        "roll-forward-rows",
        account=f.col("account"),
        expected=f.col("closed_rows"),
        found=f.col("opening_rows"),
        about="the number of entries of earlier days is unchanged",
    )
    differing, whole = _single_and_whole(found)
    # An account has a row for each of its currencies.
    yield differing.groupBy("proof", "bank", "account", "currency", "about", "holds").agg(
        f.sum("expected").alias("expected"), f.sum("found").alias("found")
    )
    yield whole


def _account_table(balances: DataFrame) -> DataFrame:
    """The journal and the table of accounts agree."""
    return _proof_rows(
        balances.where((f.col("role") == "customer") | f.col("told").isNotNull()),
        "account-table",
        account=f.col("account"),
        expected=f.col("told"),
        found=f.col("closing") + f.col("later"),
        about="the balance in the table of accounts equals the sum of the journal's entries",
    )


def _by_currency(books: ProofInputs) -> DataFrame:
    """The sums of each currency over all banks, from the books and from the classes."""
    kind, role, amount = f.col("kind"), f.col("role"), f.col("amount")
    # For a bank without capital accounts, every other booking counts as money from outside.
    from_outside = f.when(
        f.col("bank").isin(books.banks("capital")), f.when(role == "capital", -f.col("moved"))
    ).otherwise(f.when(role.isin(*_HELD), f.col("other")))
    rows = books.balances.select(
        *("role", "currency", *_KINDS, "moved"),
        from_outside.alias("outside"),
        f.lit(0).alias("began"),
    )
    if books.before is not None:
        legs = books.before.where(is_transfer()).select(
            "role",
            "currency",
            *(f.when(kind == kind_, amount).alias(kind_) for kind_, _, _ in _CLASSED),
            (-amount).alias("began"),
        )
        rows = rows.unionByName(legs, allowMissingColumns=True)
    booked = rows.groupBy("currency").agg(
        f.sum("outside").alias("outside"),
        f.sum(f.when(role.isin(*_HELD), f.col("moved"))).alias("moved"),
        f.sum(f.when(role == "clearing", f.col("moved"))).alias("cleared"),
        *(
            f.sum(f.when(role != "clearing", f.col(name))).alias(name)
            for name in ("began", *(kind for kind, _, _ in _CLASSED))
        ),
    )
    classed = books.totals.groupBy("currency").agg(
        *(f.sum(name).alias(name) for _, name, _ in _CLASSED)
    )
    ended = f.col("debited") - f.col("returned") - f.col("credited")
    found = booked.join(classed, "currency", "full_outer").na.fill(0)
    return materialize(found.withColumn("in_transit", ended - f.col("began")))


def _conservation(sums: DataFrame) -> DataFrame:
    """No money is created or lost between the banks.

    The customers' gain over the day came from outside, or was in flight when the day began and
    arrived.
    """
    found = _proof_rows(
        sums,
        "conservation",
        expected=f.col("outside") - f.col("in_transit"),
        found=f.col("moved"),
        about="the gain of all banks' customers equals the money from outside and the transfers "
        "that arrived",
    )
    return _whole(found)


def _class_sums(sums: DataFrame) -> Iterator[DataFrame]:
    """Every cent is in exactly one class: the classes add up to the banks' entries."""
    for kind, name, sign in _CLASSED:
        found = _proof_rows(
            sums,
            f"classes-{kind}",
            expected=f.col(kind) * sign,
            found=f.col(name),
            about=f"the sum {name} in all classes equals the sum {name} by all banks",
        )
        yield _whole(found)


def _whole(found: DataFrame) -> DataFrame:
    return found.withColumn("holds", f.col("expected") == f.col("found"))


def _clearing(books: ProofInputs) -> DataFrame:
    """The clearing accounts hold exactly what is in flight of each transfer."""
    amount, is_clearing = f.col("amount"), f.col("role") == "clearing"
    found = (
        books.booked.where(f.col("kind") != "other")
        .groupBy("key", "currency")
        .agg(
            f.sum(f.when(is_clearing, amount).otherwise(0)).alias("clearing"),
            f.sum(f.when(is_clearing, 0).otherwise(-amount)).alias("way"),
        )
    )
    return _proof_rows(
        found,
        "clearing",
        account=f.col("key"),
        expected=f.col("way"),
        found=f.col("clearing"),
        about="the clearing accounts hold the money in transit of each transfer",
    )


def _clearing_total(sums: DataFrame) -> DataFrame:
    """Only transfers moved the clearing accounts. The proof of each transfer does not see a booking
    without a transfer.
    """
    found = _proof_rows(
        sums,
        "clearing-total",
        expected=f.col("in_transit"),
        found=f.col("cleared"),
        about="the gain of all clearing accounts equals the money newly in transit",
    )
    return _whole(found)


def _double_entry(books: ProofInputs, named: list[str]) -> DataFrame:
    """Both sides of each booking add up to zero."""
    of_transfers = books.booked.where(f.col("bank").isin(named) & f.col("key").isNotNull())
    others = books.entries.where(f.col("bank").isin(named) & ~is_transfer())
    others = others.withColumn("key", f.lit(None).cast("string"))
    rows = union(of_transfers, others)
    found = rows.groupBy("bank", "currency", "key", "kind").agg(f.sum("amount").alias("sum"))
    return _proof_rows(
        found,
        "double-entry",
        account=f.coalesce("key", "kind"),
        expected=f.lit(0),
        found=f.col("sum"),
        about="the rows of each booking add up to zero",
    )


def _gapless(balances: DataFrame) -> DataFrame:
    """No number is missing, neither within the day nor since the day before."""
    found = balances.groupBy("bank").agg(
        f.sum("rows").alias("rows"),
        f.coalesce(f.max("closed_id"), f.min("first_id") - 1).alias("before"),
        f.max("last_id").alias("last_id"),
    )
    return _whole(
        _proof_rows(
            found,
            "gapless",
            expected=f.col("last_id") - f.col("before"),
            found=f.col("rows"),
            about="the ids of the entries have no gaps, within the day and since the day before",
        )
    )
