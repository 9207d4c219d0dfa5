"""Balance proofs: each account over the day, each bank, and all of them together.

Several independent sources state an account's balance: the journal, the table of accounts, the
result of the day before, and the transfers in flight. They are added up for each account
(:mod:`txmq.reconcile.balances`). A proof
states which two of them must be equal. The balances are then read in pieces, so that few of them
are in memory at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ReconcileRefused
from txmq.reconcile.balances import KINDS
from txmq.reconcile.differences import ABOUT_PROOFS, OF_TRANSFERS, OTHER, Place
from txmq.reconcile.extract.manifest import ExtractedSource
from txmq.reconcile.extract.table_writer import arrow_table
from txmq.reconcile.ledgers import ReconciledDay
from txmq.reconcile.report.words import mask
from txmq.reconcile.rules import Rules
from txmq.reconcile.tables import PROOFS, Sums
from txmq.reconcile.written_table import sum_groups

__all__ = ["proofs_of"]

_Row: TypeAlias = tuple[str, str | None, str | None, str | None, int, int, bool, str, None]
_IDS: Final = (("rows", "sum"), ("closed_id", "max"), ("first_id", "min"), ("last_id", "max"))
"""Of the entries of a bank: their number, and the range of their ids."""
_CLASSED: Final = (("debit", "debited", -1), ("return", "returned", 1), ("credit", "credited", 1))


def proofs_of(
    day: ReconciledDay,
    balances: Iterable[pa.Table],
    rules: Rules,
    sources: Iterable[ExtractedSource] = (),
) -> pa.Table:
    """The proofs of a day, without what earlier days left: the accounts and transfers that differ,
    and each proof as a whole; as ``PROOFS``.

    ``balances`` has all accounts in pieces, as ``BALANCES``; ``sources`` the rows in quarantine.
    """
    books = _Books(rules, was_closed=day.was_closed)
    for piece in balances:
        books.add(piece)
    books.add_bookings(day.sums)
    books.add_quarantine(sources)
    rows = [*books.added_up(), *books.of_all_banks(day.sums), *books.gapless(day.sums)]
    rows += (tuple(row.values()) for row in day.broken.to_pylist())
    return arrow_table(PROOFS, sorted(rows, key=lambda row: [name or "" for name in row[:4]]))


class _Books:
    """The sums of all banks."""

    def __init__(self, rules: Rules, *, was_closed: bool) -> None:
        self._rules = rules
        self._was_closed = was_closed
        self._by_role: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        """The sums of columns, by bank, role and currency."""
        self._sums: defaultdict[Place, Counter[str]] = defaultdict(Counter)
        """The values ``expected`` and ``found`` of an account or a transfer that differs. Without
        one, of the whole proof, with its number of ``rows`` and of those that are ``wrong``."""
        self._ids: list[pa.Table] = []

    def add(self, piece: pa.Table) -> None:
        """Add some accounts; :class:`ReconcileRefused` if a balance does not fit into 64 bits."""
        for row in piece.filter(pc.field("closing").is_null()).slice(0, 1).to_pylist():
            raise ReconcileRefused(
                f"{row['bank']}: the bookings of account {mask(row['account'])} on the day, or its "
                f"balance, do not fit into 64 bits in {row['currency']}: correct the wrong entry"
            )
        numbers = (*KINDS, "moved")
        sums = sum_groups([piece], ("bank", "role", "currency"), numbers)
        for place, (_, *values) in sums.items():
            self._by_role[place].update(dict(zip(numbers, values, strict=True)))
        self._ids.append(piece.group_by("bank").aggregate(list(_IDS)))
        if self._was_closed:
            self._compare("roll-forward", piece, "closed", "opening")
            self._compare("roll-forward-rows", piece, "closed_rows", "opening_rows")
        if named := self._rules.banks(lambda bank: bank.accounts):
            is_listed = (pc.field("role") == "customer") | pc.field("told").is_valid()
            listed = piece.filter(pc.field("bank").isin(named) & is_listed)
            self._compare("account-table", listed, "told", "closing", "later")

    def _compare(self, proof: str, accounts: pa.Table, expected: str, *found: str) -> None:
        """Add a proof that a column equals the sum of others in each account."""
        rows = accounts.select(["bank", "account", "currency"])
        if proof == "roll-forward-rows":  # A count has no currency, so materiality does not apply.
            rows = rows.set_column(2, "currency", pa.nulls(len(rows), pa.string()))
        rows = rows.append_column("expected", _sum_columns(accounts, [expected]))
        rows = rows.append_column("found", _sum_columns(accounts, found))
        sums = sum_groups([rows], ("bank", "currency"), ("expected", "found"))
        for (bank, currency), (count, one, other) in sums.items():
            self._sums[proof, bank, None, currency].update(rows=count, expected=one, found=other)
        for row in rows.filter(pc.field("expected") != pc.field("found")).to_pylist():
            *place, one, other = row.values()
            self._add_wrong((proof, *place), int(one), int(other))

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
        """Add the rows that cannot be read: the rows read are those taken and these."""
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
                # The differences of its accounts may add up to zero.
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
                # The proof of a transfer itself has the rows that do not add up.
                yield _row(("clearing-total", *where), transit + of["unbalanced"], of["cleared"])

    def _by_currency(self, sums: Sums) -> dict[str, Counter[str]]:
        """The sums over all banks and classes, and the money that was in flight before."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (name, of, currency), value in sums.items():
            # Without money there is no currency.
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
                # A bank without capital accounts gets money from outside by every other booking.
                total["outside"] += of_role["other"] if bank not in named else 0
        return found

    def gapless(self, sums: Sums) -> Iterator[_Row]:
        """The proofs that a bank's ids have no gaps."""
        named = self._rules.banks(lambda bank: bank.entries.gapless)
        if not self._ids or not named:
            return
        again = [(f"{name}_{how}", how) for name, how in _IDS]
        for row in pa.concat_tables(self._ids).group_by("bank").aggregate(again).to_pylist():
            count, before, first, last = (row[f"{name}_{how}_{how}"] for name, how in _IDS)
            if before is None and first is not None:
                before = first - 1
            if row["bank"] in named:
                expected = 0 if before is None or last is None else last - before
                # A row that is there twice must not make up for one that is missing.
                ids = sums["ids", row["bank"], ""]
                found = count if ids >= expected else ids
                yield _row(("gapless", row["bank"], None, None), expected, found)


def _sum_columns(piece: pa.Table, names: Iterable[str]) -> pa.ChunkedArray:
    """The sum of some columns, with room for any; NULL counts as zero."""
    wide = (pc.fill_null(piece[name], 0).cast(pa.decimal128(20, 0)) for name in names)
    return reduce(pc.add, wide)


def _row(place: Place, expected: int, found: int) -> _Row:
    return (*place, expected, found, expected == found, ABOUT_PROOFS[place[0]], None)
