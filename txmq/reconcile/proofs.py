"""Balance proofs: each account over the day, each bank, and all of them together.

Several independent sources state an account's balance: the journal, the table of accounts, the
result of the day before, and the transfers in flight. :mod:`txmq.reconcile.balances` adds them up
for each account. A proof states which two of them must be equal. Spark compares the accounts; this
module adds up only the sums over them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txmq.errors import ReconcileRefused
from txmq.reconcile.balances import KINDS
from txmq.reconcile.core import ReconciledDay
from txmq.reconcile.differences import ABOUT_PROOFS, OF_TRANSFERS, OTHER, Place
from txmq.reconcile.extract.manifest import ExtractedSource
from txmq.reconcile.frames import WIDE, exact_sum
from txmq.reconcile.report.words import mask
from txmq.reconcile.rules import Rules
from txmq.reconcile.tables import PROOFS, Sums

__all__ = ["proofs_of"]

_Row: TypeAlias = tuple[str, str | None, str | None, str | None, int, int, bool, str, None]
_OF_COUNTS: Final = {"roll-forward-rows"}
"""A count has no currency, so materiality does not apply."""
_CLASSED: Final = (("debit", "debited", -1), ("return", "returned", 1), ("credit", "credited", 1))


class _Comparison(NamedTuple):
    """A proof that two columns of ``BALANCES`` are equal in each account."""

    proof: str
    expected: Column
    found: Column
    where: Column
    """The accounts that it covers."""

    @property
    def is_wrong(self) -> Column:
        """True for a covered account that differs."""
        return self.where & (self.expected != self.found)


def proofs_of(
    day: ReconciledDay, rules: Rules, sources: Iterable[ExtractedSource] = ()
) -> DataFrame:
    """The proofs of a day as ``PROOFS``, without the differences that earlier days left.

    There is a row for each account and transfer that differs, and for each proof as a whole.
    ``sources`` has the rows in quarantine.

    Raises:
        ReconcileRefused: A balance does not fit into 64 bits.
    """
    accounts = day.tables["balances"]
    comparisons = list(_comparisons(rules, was_closed=day.was_closed))
    books = _Books(rules, _sums_of(accounts, comparisons), comparisons)
    books.add_bookings(day.sums)
    books.add_quarantine(sources)
    rows = [*books.added_up(), *books.of_all_banks(day.sums), *books.gapless(day.sums)]
    # A whole proof may have sums that do not fit into 64 bits only if an account has, too.
    whole = accounts.sparkSession.createDataFrame(rows, PROOFS.ddl)
    single = [day.broken, *(_differing(accounts, one) for one in comparisons)]
    return reduce(DataFrame.unionByName, single, whole)


def _comparisons(rules: Rules, *, was_closed: bool) -> Iterator[_Comparison]:
    def wide(*names: str) -> Column:
        """The sum of columns, in a type with room for any sum; NULL counts as zero."""
        columns = (F.coalesce(F.col(name), F.lit(0)).cast("decimal(20,0)") for name in names)
        return reduce(Column.__add__, columns)

    if was_closed:
        every = F.lit(True)
        yield _Comparison("roll-forward", wide("closed"), wide("opening"), every)
        yield _Comparison("roll-forward-rows", wide("closed_rows"), wide("opening_rows"), every)
    if named := rules.banks(lambda bank: bank.accounts):
        is_listed = (F.col("role") == "customer") | F.col("told").isNotNull()
        where = F.col("bank").isin(*named) & is_listed
        yield _Comparison("account-table", wide("told"), wide("closing", "later"), where)


def _sums_of(accounts: DataFrame, comparisons: Iterable[_Comparison]) -> list[dict[str, Any]]:
    """The sums over accounts that the proofs need, by bank, role and currency."""
    compared = []
    for one in comparisons:
        for name, value in (("expected", one.expected), ("found", one.found)):
            sum_ = F.sum(F.when(one.where, value)).cast(WIDE)
            compared.append(F.coalesce(sum_, F.lit(0)).alias(f"{one.proof} {name}"))
        compared.append(F.count_if(one.where).alias(f"{one.proof} rows"))
        compared.append(F.count_if(one.is_wrong).alias(f"{one.proof} wrong"))
    sums = accounts.groupBy("bank", "role", "currency").agg(
        *(exact_sum(F.col(name)).alias(name) for name in (*KINDS, "moved")),
        F.sum("rows").alias("rows"), F.max("closed_id").alias("closed_id"),
        F.min("first_id").alias("first_id"), F.max("last_id").alias("last_id"),
        F.count_if(F.col("closing").isNull()).alias("too_great"), *compared,
    )  # fmt: skip
    rows = [row.asDict() for row in sums.collect()]
    if any(row["too_great"] for row in rows):
        row = accounts.where(F.col("closing").isNull()).orderBy("bank", "account").first()
        assert row is not None
        raise ReconcileRefused(
            f"{row['bank']}: the bookings of account {mask(row['account'])} on the day, or its "
            f"balance, do not fit into 64 bits in {row['currency']}: correct the wrong entry"
        )
    return rows


def _differing(accounts: DataFrame, one: _Comparison) -> DataFrame:
    """The accounts that differ, as ``PROOFS``."""
    wrong = accounts.where(one.is_wrong)
    sums = {"expected": one.expected.cast(WIDE), "found": one.found.cast(WIDE)}
    if one.proof in _OF_COUNTS:
        wrong = wrong.withColumn("currency", F.lit(None).cast("string"))
    by_account = wrong.groupBy("bank", "account", "currency").agg(
        *(F.sum(column).cast("bigint").alias(name) for name, column in sums.items())
    )
    return by_account.select(
        F.lit(one.proof).alias("proof"), "bank", "account", "currency", "expected", "found",
        F.lit(False).alias("holds"), F.lit(ABOUT_PROOFS[one.proof]).alias("about"),
        F.lit(None).cast("string").alias("first_seen"),
    )  # fmt: skip


class _Books:
    """The sums of all banks."""

    def __init__(
        self,
        rules: Rules,
        sums: list[dict[str, Any]],
        comparisons: Iterable[_Comparison],
    ) -> None:
        self._rules = rules
        self._by_role = {
            (row["bank"], row["role"], row["currency"]): {
                name: int(row[name] or 0) for name in (*KINDS, "moved")
            }
            for row in sums
        }
        """The sums of columns, by bank, role and currency."""
        self._sums: defaultdict[Place, Counter[str]] = defaultdict(Counter)
        """The values ``expected`` and ``found`` of a difference, or of a whole proof with the
        numbers of its ``rows`` and of its ``wrong`` rows."""
        self._rows = sums
        for one in comparisons:
            for row in sums:
                currency = None if one.proof in _OF_COUNTS else row["currency"]
                if row[f"{one.proof} rows"]:
                    names = ("rows", "expected", "found", "wrong")
                    self._sums[one.proof, row["bank"], None, currency].update(
                        {name: int(row[f"{one.proof} {name}"]) for name in names}
                    )

    def _add_wrong(self, place: Place, expected: int, found: int) -> None:
        proof, bank, _, currency = place
        self._sums[place].update(expected=expected, found=found)
        self._sums[proof, bank, None, currency].update(wrong=1)

    def add_bookings(self, sums: Sums) -> None:
        """Add the proofs of transfers, and the bookings outside transfers as one more booking."""
        for (name, of, currency), value in sums.items():
            proof, _, part = name.rpartition(" ")
            if proof in OF_TRANSFERS:
                self._sums[proof, of or None, None, currency][part] += value
        for bank in self._rules.both_sides:
            others: Counter[str] = Counter()
            for (name, _, currency), of_role in self._by_role.items():
                others[currency] += of_role["other"] if name == bank else 0
            for currency, other in others.items():
                self._sums["double-entry", bank, None, currency].update(rows=1, found=other)
                if other:
                    self._add_wrong(("double-entry", bank, OTHER, currency), 0, other)

    def add_quarantine(self, sources: Iterable[ExtractedSource]) -> None:
        """Add the rows that cannot be read: they are expected, but not found."""
        for table in (table for source in sources for table in source.tables):
            bank, taken, count = table.written.source, table.written.rows, len(table.quarantine)
            for row in table.quarantine:
                name = f"{table.table}, {row.row}: {row.reason}"
                self._add_wrong(("readable-rows", bank, name, None), 1, 0)
            if count:
                whole = self._sums["readable-rows", bank, None, None]
                whole.update(rows=taken + count, expected=taken + count, found=taken)

    def added_up(self) -> Iterator[_Row]:
        """The proofs of accounts and bookings: those that differ, and each proof as a whole."""
        for place, of in self._sums.items():
            row = _row(place, of["expected"], of["found"])
            if wrong := of["wrong"]:
                # The differences of its accounts may cancel each other out.
                about = f"{wrong} of {of['rows']} do not: {ABOUT_PROOFS[place[0]]}"
                row = (*place, of["expected"], of["found"], False, about, None)
            yield row

    def of_all_banks(self, sums: Sums) -> Iterator[_Row]:
        """The proofs of all banks together, in each currency."""
        for currency, of in sorted(self._by_currency(sums).items()):
            transit = of["debited"] - of["returned"] - of["credited"]
            transit += sum(of[f"earlier {kind}"] for kind, _, _ in _CLASSED)
            where = None, None, currency
            yield _row(("conservation", *where), of["outside"] - transit, of["held"])
            for kind, name, sign in _CLASSED:
                booked = (of[kind] + of[f"earlier {kind}"]) * sign
                yield _row((f"classes-{kind}", *where), booked, of[name])
            if self._rules.proves_clearing:
                # Rows that do not add up are a difference of their own transfer, not of the total.
                yield _row(("clearing-total", *where), transit + of["unbalanced"], of["cleared"])

    def _by_currency(self, sums: Sums) -> dict[str, Counter[str]]:
        """The sums over all banks and classes, and the money that was in flight before."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (name, of, currency), value in sums.items():
            # Classes without money have no currency.
            is_money = name in {"earlier", "debited", "returned", "credited", "unbalanced"}
            if is_money and (currency or value):
                found[currency][f"earlier {of}" if name == "earlier" else name] += value
        named = self._rules.banks(lambda bank: bank.entries.capital)
        for (bank, role, currency), of_role in self._by_role.items():
            total, moved = found[currency], of_role["moved"]
            if role == "clearing":
                total["cleared"] += moved
                continue
            total.update({kind: of_role[kind] for kind in KINDS})
            if role == "capital":
                total["outside"] -= moved if bank in named else 0
            else:
                total["held"] += moved
                # At a bank without capital accounts, every other booking is money from outside.
                total["outside"] += of_role["other"] if bank not in named else 0
        return found

    def gapless(self, sums: Sums) -> Iterator[_Row]:
        """The proofs that a bank's ids have no gaps."""
        for bank in self._rules.banks(lambda bank: bank.entries.gapless):
            mine = [row for row in self._rows if row["bank"] == bank]
            ids = {
                name: [row[name] for row in mine if row[name] is not None]
                for name in ("closed_id", "first_id", "last_id")
            }
            count, last = sum(row["rows"] for row in mine), max(ids["last_id"], default=None)
            before = max(ids["closed_id"], default=None)
            if before is None and ids["first_id"]:
                before = min(ids["first_id"]) - 1
            if mine:
                expected = 0 if before is None or last is None else last - before
                # A duplicate row must not make up for a missing one.
                new = sums["ids", bank, ""]
                yield _row(("gapless", bank, None, None), expected,
                           count if new >= expected else new)  # fmt: skip


def _row(place: Place, expected: int, found: int) -> _Row:
    return (*place, expected, found, expected == found, ABOUT_PROOFS[place[0]], None)
