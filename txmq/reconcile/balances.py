"""The balances of each account over a day, added up by Arrow.

Each part of a table gives one row for each account and each kind of amount in it: a kind of
bookings, or a statement of a balance. The rows of an account meet at one place and are added up
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.columns import index_in, is_in
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.ledgers import Ledgers, Table, TablePart, is_within
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import BALANCES, LIMIT, LOWER_HALF
from txmq.reconcile.transfer import ARRIVED

__all__ = ["KINDS", "NO_BALANCES", "AccountPart", "Accounts", "account_parts"]

KINDS: Final = ("debit", "return", "credit", "other")
"""The kinds of bookings, which are columns of ``BALANCES``."""
_STATED: Final = {
    "opening": ("amount", "rows"),
    "later": ("amount", None),
    "told": ("balance", None),
    # An account without rows stays an account, with its last number.
    "closed": ("closing", "closing_rows"),
}
"""Balances that a table states, with its columns of the amount and of the number of rows."""
_OF: Final = (*KINDS, *_STATED)
_ACCOUNT: Final = ["bank", "account", "currency"]
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
_WIDE: Final = pa.decimal128(38, 0)
"""Decimals with room for any sum of 64-bit numbers."""
_HOW: Final = {
    **dict.fromkeys(("rows", "low", "high"), "sum"),
    "role": "max", "first_id": "min", "last_id": "max",
}  # fmt: skip
"""How the rows of an account are added up. No sum of halves overflows, in whatever order."""
_SCHEMA: Final = pa.schema(
    [(name, pa.string()) for name in _ACCOUNT] + [(name, pa.int64()) for name in ("of", *_HOW)]
)
_NOTHING: Final = pa.scalar(None, pa.int64())
NO_BALANCES: Final = pa.schema([(one.name, one.type) for one in arrow_schema(BALANCES)])
"""The columns of ``BALANCES``. A number that does not fit into 64 bits is NULL, since an error of
Arrow would not name the account."""


class AccountPart(NamedTuple):
    """A part of a table with amounts of accounts: of entries if it has no other name."""

    part: TablePart
    of: str | None = None


def account_parts(ledgers: Ledgers, closed: Table) -> list[AccountPart]:
    """The tables with amounts of accounts; ``closed`` are the balances of the day before."""
    stated = zip(_STATED, (ledgers.opening, ledgers.later, ledgers.accounts, closed), strict=True)
    named = [AccountPart(part, of) for of, table in stated for part in table]
    return [*map(AccountPart, ledgers.entries), *named]


class Accounts(NamedTuple):
    """Adds up the accounts of a day."""

    rules: Rules
    window: DayWindow

    def read(self, source: AccountPart) -> pa.Table:
        """The sums of a part: a row for each account and kind of amount."""
        rows = self._stated(source) if source.of else self._booked(source.part)
        return _added_up([*_ACCOUNT, "of"], rows)

    def new_ids(self, part: TablePart) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """The ids of a day's entries, of the banks whose ids have no gaps."""
        for rows in part.pieces(("id", "recorded_ms", "bank")) if self._numbered else ():
            some = rows.filter(is_within(rows["recorded_ms"], self.window))
            for bank in self._numbered:
                yield bank, some.filter(pc.equal(some["bank"], bank))["id"].drop_null()

    def total(self, sums: Sequence[pa.Table]) -> pa.Table:
        """The balances of some accounts, in an order of their own; see :data:`NO_BALANCES`."""
        rows = pa.concat_tables([_SCHEMA.empty_table(), *sums])
        wanted = dict.fromkeys(("role", "first_id"), "")
        for place, of in enumerate(_OF):
            is_of = pc.equal(rows["of"], place)
            for name in ("rows", "low", "high", "last_id"):
                of_kind = pc.if_else(is_of, rows[name], _NOTHING)
                rows = rows.append_column(f"{of} {name}", of_kind)
                wanted[f"{of} {name}"] = name
        hows = [(name, _HOW[of or name]) for name, of in wanted.items()]
        found = rows.group_by(_ACCOUNT, use_threads=False).aggregate(hows)
        has = {f"{name}": found[f"{name}_{how}"] for name, how in hows}
        amounts = {of: _joined(has[f"{of} low"], has[f"{of} high"]) for of in _OF}
        counts = {of: pc.fill_null(has[f"{of} rows"], 0) for of in _OF}
        moved, last_id = amounts["debit"], has["debit last_id"]
        for kind in KINDS[1:]:
            moved = pc.add(moved, amounts[kind])
            last_id = pc.max_element_wise(last_id, has[f"{kind} last_id"])
        booked = reduce(pc.add, (counts[kind] for kind in KINDS))
        columns = {name: found[name] for name in _ACCOUNT}
        columns |= {of: pc.fill_null(_fitted(amount), 0) for of, amount in amounts.items()}
        columns |= {
            "role": pc.take(pa.array(_ROLES), pc.fill_null(has["role"], 0)),
            "told": pc.if_else(has["told low"].is_valid(), columns["told"], _NOTHING),
            "moved": _fitted(moved),
            "closing": _fitted(pc.add(amounts["opening"], moved)),
            "opening_rows": counts["opening"],
            "rows": booked,
            "closing_rows": pc.add(counts["opening"], booked),
            "closed_rows": counts["closed"],
            "first_id": has["first_id"],
            "closed_id": has["closed last_id"],
            "last_id": pc.max_element_wise(last_id, has["closed last_id"]),
        }
        chosen = [columns[name].cast(NO_BALANCES.field(name).type) for name in BALANCES.names]
        order = [(name, "ascending") for name in _ACCOUNT]
        return pa.table(chosen, schema=NO_BALANCES).sort_by(order)

    def _booked(self, part: TablePart) -> Iterator[pa.Table]:
        for piece in part.pieces((*_ACCOUNT, "role", "kind", "amount", "id", "recorded_ms")):
            rows = piece.filter(is_within(piece["recorded_ms"], self.window))
            of = index_in(rows["kind"], KINDS)
            of[index_in(rows["kind"], ARRIVED) >= 0] = KINDS.index("credit")
            # Without gapless banks the ids are not read.
            is_numbered = is_in(rows["bank"], self._numbered)
            id_ = pc.if_else(is_numbered, rows["id"], _NOTHING)
            one = pa.repeat(pa.scalar(1, pa.int64()), len(rows))
            sums = _as_sums(rows, pa.array(of), rows["amount"], one, id_, id_)
            yield _added_up([*_ACCOUNT, "of"], iter([sums]))

    def _stated(self, source: AccountPart) -> Iterator[pa.Table]:
        assert source.of is not None
        amount, count = _STATED[source.of]
        for rows in source.part.pieces((*_ACCOUNT, "role", "last_id", amount, count or amount)):
            of = pa.repeat(pa.scalar(_OF.index(source.of), pa.int64()), len(rows))
            none = pa.nulls(len(rows), pa.int64())
            last = rows["last_id"] if "last_id" in rows.column_names else none
            yield _as_sums(rows, of, rows[amount], rows[count] if count else none, none, last)

    @property
    def _numbered(self) -> list[str]:
        return [bank.name for bank in self.rules.bank if bank.entries.gapless]


def _as_sums(
    rows: pa.Table, of: pa.Array, amount: Any, count: Any, first: Any, last: Any
) -> pa.Table:
    if "role" in rows.column_names:
        role = pa.array(index_in(rows["role"], _ROLES))
        role = pc.if_else(pc.greater_equal(role, 0), role, _NOTHING)
    else:
        role = pa.nulls(len(rows), pa.int64())
    halves = pc.bit_wise_and(amount, LOWER_HALF), pc.shift_right(amount, 32)
    named = (rows[name] for name in _ACCOUNT)
    return pa.table([*named, of, count, *halves, role, first, last], schema=_SCHEMA)


def _added_up(by: list[str], tables: Iterator[pa.Table]) -> pa.Table:
    rows = pa.concat_tables([_SCHEMA.empty_table(), *tables])
    sums = rows.group_by(by, use_threads=False).aggregate(list(_HOW.items()))
    named = {f"{name}_{how}": name for name, how in _HOW.items()}
    return sums.rename_columns([named.get(name, name) for name in sums.column_names])


def _joined(low: pa.ChunkedArray, high: pa.ChunkedArray) -> pa.ChunkedArray:
    """The sum of numbers from the sums of their halves."""
    wide = [pc.fill_null(half, 0).cast(pa.decimal128(19, 0)) for half in (low, high)]
    unit = pa.scalar(Decimal(1 << 32), pa.decimal128(10, 0))
    return pc.add(pc.multiply(wide[1], unit), wide[0])


def _fitted(sums: pa.ChunkedArray) -> pa.ChunkedArray:
    """Sums as numbers of 64 bits; NULL instead of one that does not fit."""
    least, most = (pa.scalar(Decimal(end), _WIDE) for end in (-LIMIT, LIMIT - 1))
    fits = pc.and_(pc.greater_equal(sums, least), pc.less_equal(sums, most))
    return pc.if_else(fits, sums, pa.scalar(None, sums.type)).cast(pa.int64())
