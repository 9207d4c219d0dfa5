"""Balance proofs: each account over the day, each bank, and all of them together.

Several independent sources state an account's balance: the journal, the table of accounts, the
result of the day before, and the transfers in flight. A proof states which two of them must be
equal. The balances are read in pieces, so that few of them are in memory at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.balances import KINDS
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.ledgers import ReconciledDay, Rows
from txmq.reconcile.rows import union
from txmq.reconcile.rules import Bank, Rules
from txmq.reconcile.second_pass import ABOUT_PROOFS, Sums
from txmq.reconcile.tables import PROOFS
from txmq.reconcile.written_table import sum_groups

__all__ = ["proofs_of"]

_HELD: Final = ("customer", "suspense")
_CLASSED: Final = (("debit", "debited", -1), ("return", "returned", 1), ("credit", "credited", 1))
_ABOUT: Final = ABOUT_PROOFS | {
    "roll-forward": "the opening balance equals the closing balance of the day before, so no "
    "earlier entry changed",
    "roll-forward-rows": "the number of entries of earlier days is unchanged",
    "account-table": "the balance in the table of accounts equals the sum of the journal's entries",
    "conservation": "the gain of all banks' customers equals the money from outside and the "
    "transfers that arrived",
    "clearing-total": "the gain of all clearing accounts equals the money newly in transit",
    "gapless": "the ids of the entries have no gaps, within the day and since the day before",
}

_ORDER: Final = ("proof", "bank", "account", "currency")
_Row: TypeAlias = dict[str, Any]


class _Sum:
    """The two values of a proof, added up."""

    def __init__(self) -> None:
        self.rows = self.wrong = self.expected = self.found = 0


def proofs_of(day: ReconciledDay, balances: Iterable[pa.Table], rules: Rules) -> Rows:
    """All proofs: the accounts and transfers that differ, and each proof as a whole; as ``PROOFS``.

    Args:
        day: The day, for the proofs of transfers and for all sums.
        balances: The balances of all accounts, in pieces; as ``BALANCES``.
        rules: They name the banks with clearing accounts, double entry and so on.
    """
    books = _Books(rules, was_closed=day.was_closed)
    for piece in balances:
        books.add(piece)
    rows = [*books.wholes(day.sums), *books.accounts()]
    schema = arrow_schema(PROOFS)
    if isinstance(day.broken, pa.Table):
        rows += day.broken.to_pylist()
        rows.sort(key=lambda row: [row[name] or "" for name in _ORDER])
        return pa.Table.from_pylist(rows, schema)
    found = day.broken.sparkSession.createDataFrame(pa.Table.from_pylist(rows, schema), PROOFS.ddl)
    return union(day.broken, found)


class _AccountProof(NamedTuple):
    """A proof of each account."""

    name: str
    expected: str
    found: tuple[str, ...]
    """The columns whose sum must be the expected one."""
    where: pc.Expression | None = None
    has_currency: bool = True


class _Books:
    """The sums of all banks."""

    def __init__(self, rules: Rules, *, was_closed: bool) -> None:
        self._rules = rules
        self._by_role: Counter[tuple[str, str, str, str]] = Counter()
        """By column, bank, role and currency."""
        self._single: dict[tuple[str, str, str, str | None], _Sum] = {}
        self._whole: dict[tuple[str, str, str | None], _Sum] = {}
        self._ids: dict[str, dict[str, Any]] = {}
        self._proofs: list[_AccountProof] = []
        if was_closed:
            self._proofs += [
                _AccountProof("roll-forward", "closed", ("opening",)),
                # Materiality does not apply to a count.
                _AccountProof(
                    "roll-forward-rows", "closed_rows", ("opening_rows",), has_currency=False
                ),
            ]
        if named := self._banks(lambda bank: bank.accounts):
            is_listed = (pc.field("role") == "customer") | pc.field("told").is_valid()
            is_theirs = pc.field("bank").isin(named) & is_listed
            self._proofs += [
                _AccountProof("account-table", "told", ("closing", "later"), is_theirs)
            ]

    def _banks(self, has: Callable[[Bank], object]) -> list[str]:
        """The names of the banks whose rules have a property."""
        return [bank.name for bank in self._rules.bank if has(bank)]

    def add(self, piece: pa.Table) -> None:
        """Add some accounts."""
        numbers = (*KINDS, "moved")
        places = ("bank", "role", "currency")
        for place, (_, *values) in sum_groups([piece], places, numbers).items():
            for name, value in zip(numbers, values, strict=True):
                self._by_role[name, *place] += value
        for proof in self._proofs:
            self._add_proof(proof, piece)
        ids = piece.group_by(["bank"]).aggregate(
            [("rows", "sum"), ("closed_id", "max"), ("first_id", "min"), ("last_id", "max")]
        )
        for row in ids.to_pylist():
            so_far = self._ids.setdefault(row["bank"], {})
            so_far["rows"] = so_far.get("rows", 0) + row["rows_sum"]
            for name, choose in (
                ("closed_id_max", max),
                ("first_id_min", min),
                ("last_id_max", max),
            ):
                values = [value for value in (so_far.get(name), row[name]) if value is not None]
                so_far[name] = choose(values) if values else None

    def _add_proof(self, proof: _AccountProof, piece: pa.Table) -> None:
        if proof.where is not None:
            piece = piece.filter(proof.where)
        found = _sum_columns(piece, proof.found)
        rows = pa.table(
            {
                "bank": piece["bank"],
                "account": piece["account"],
                "currency": piece["currency"]
                if proof.has_currency
                else pa.nulls(len(piece), pa.string()),
                "expected": pc.fill_null(_sum_columns(piece, (proof.expected,)), 0),
                "found": pc.fill_null(found, 0),
            }
        )
        differing = rows.filter(pc.field("expected") != pc.field("found"))
        sides = ("expected", "found")
        for (bank, currency), (count, *values) in sum_groups(
            [rows], ("bank", "currency"), sides
        ).items():
            _count(self._whole, (proof.name, bank, currency), count, 0, *values)
        for row in differing.to_pylist():
            bank, account, currency, expected, now = row.values()
            place = (proof.name, bank, account, currency)
            _count(self._single, place, 1, 1, int(expected), int(now))
            self._whole[proof.name, bank, currency].wrong += 1

    def accounts(self) -> Iterator[_Row]:
        """The accounts whose values differ."""
        for (proof, bank, account, currency), one in self._single.items():
            yield _row(proof, bank, account, currency, one.expected, one.found, _ABOUT[proof])

    def wholes(self, sums: Sums) -> Iterator[_Row]:
        """Each proof as a whole."""
        self._add_transfers(sums)
        for (proof, bank, currency), one in self._whole.items():
            about = _ABOUT[proof]
            if one.wrong:
                about = f"{one.wrong} of {one.rows} do not: {about}"
            row = _row(proof, bank or None, None, currency, one.expected, one.found, about)
            yield row | {"holds": not one.wrong}
        clears = len(self._banks(lambda bank: bank.entries.clearing)) == len(self._rules.bank)
        totals = _by_currency(sums)
        held = self._by_currency(totals)
        for currency in sorted(held):
            of, classed = held[currency], totals[currency]
            transit = classed["debited"] - classed["returned"] - classed["credited"]
            transit += sum(classed[f"earlier {kind}"] for kind, _, _ in _CLASSED)
            yield _of_all("conservation", currency, of["outside"] - transit, of["held"])
            for kind, name, sign in _CLASSED:
                booked = (of[kind] + classed[f"earlier {kind}"]) * sign
                about = f"the sum {name} in all classes equals the sum {name} by all banks"
                yield _row(f"classes-{kind}", None, None, currency, booked, classed[name], about)
            if clears:
                yield _of_all("clearing-total", currency, transit, of["cleared"])
        for bank in self._banks(lambda bank: bank.entries.gapless):
            if (ids := self._ids.get(bank)) is None:
                continue
            before = ids["closed_id_max"]
            if before is None and ids["first_id_min"] is not None:
                before = ids["first_id_min"] - 1
            last = ids["last_id_max"]
            expected = 0 if before is None or last is None else last - before
            yield _row("gapless", bank, None, None, expected, ids["rows"], _ABOUT["gapless"])

    def _add_transfers(self, sums: Sums) -> None:
        """Add the proofs of single transfers, and the bookings outside transfers."""
        for (name, of, currency), value in sums.items():
            proof, _, part = name.rpartition(" ")
            if proof in ABOUT_PROOFS:
                one = self._whole.setdefault((proof, of, currency), _Sum())
                setattr(one, part, getattr(one, part) + value)
        for bank in self._banks(lambda bank: bank.entries.double_entry):
            others: Counter[str] = Counter()
            for (name, of, _, currency), value in self._by_role.items():
                if name == "other" and of == bank:
                    others[currency] += value
            for currency, other in others.items():
                _count(self._whole, ("double-entry", bank, currency), 1, int(other != 0), 0, other)
                if other:
                    _count(self._single, ("double-entry", bank, "other", currency), 1, 1, 0, other)

    def _by_currency(self, totals: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
        """The sums of each currency over all banks."""
        named = self._banks(lambda bank: bank.entries.capital)
        found: dict[str, Counter[str]] = {currency: Counter() for currency in totals}
        for (name, bank, role, currency), value in self._by_role.items():
            of = found.setdefault(currency, Counter())
            totals.setdefault(currency, Counter())
            # For a bank without capital accounts, every other booking counts as money from outside.
            if bank in named:
                of["outside"] -= value * (name == "moved" and role == "capital")
            else:
                of["outside"] += value * (name == "other" and role in _HELD)
            of["held"] += value * (name == "moved" and role in _HELD)
            of["cleared"] += value * (name == "moved" and role == "clearing")
            of[name] += value * (name in KINDS and role != "clearing")
        return found


def _sum_columns(piece: pa.Table, names: Iterable[str]) -> pa.ChunkedArray:
    """The sum of some columns, with room for any."""
    first, *others = (piece[name].cast(pa.decimal128(20, 0)) for name in names)
    for other in others:
        first = pc.add(first, other)
    return first


def _by_currency(sums: Sums) -> dict[str, Counter[str]]:
    """The totals of all classes, and the money that was in flight before, by currency."""
    found: dict[str, Counter[str]] = {}
    for (name, of, currency), value in sums.items():
        # Without money there is no currency.
        if name in {"earlier", "debited", "returned", "credited"} and (currency or value):
            kept = f"earlier {of}" if name == "earlier" else name
            found.setdefault(currency, Counter())[kept] += value
    return found


def _count(
    sums: dict[Any, _Sum], place: Any, rows: int, wrong: int, expected: int, found: int
) -> None:
    one = sums.setdefault(place, _Sum())
    one.rows += rows
    one.wrong += wrong
    one.expected += expected
    one.found += found


def _of_all(proof: str, currency: str, expected: int, found: int) -> _Row:
    return _row(proof, None, None, currency, expected, found, _ABOUT[proof])


def _row(
    proof: str,
    bank: str | None,
    account: str | None,
    currency: str | None,
    expected: int,
    found: int,
    about: str,
) -> _Row:
    return {
        "proof": proof,
        "bank": bank,
        "account": account,
        "currency": currency,
        "expected": expected,
        "found": found,
        "holds": expected == found,
        "about": about,
    }
