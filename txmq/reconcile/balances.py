"""The balances of each account over a day, added up by Arrow.

Each part of a table gives one row for each account and each kind of amount in it: a kind of
bookings, or a statement of a balance. The rows of an account meet at one place and are added up
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.columns import Numbers, Truths, index_in, is_in, numbers
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.ledgers import Ledgers, Table, TablePart
from txmq.reconcile.rules import Rules
from txmq.reconcile.tables import BALANCES, LIMIT, LOWER_HALF
from txmq.reconcile.transfer import ARRIVED

__all__ = ["KINDS", "NO_BALANCES", "AccountPart", "AccountSums", "account_parts"]

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
_NUMBERS: Final = ("of", "rows", "low", "high", "role", "first_id", "last_id")
_NO_ROLE, _NO_FIRST, _NO_LAST = -1, LIMIT - 1, -LIMIT
_HOW: Final = {
    **dict.fromkeys(("rows", "low", "high"), np.add),
    **dict.fromkeys(("role", "last_id"), np.maximum),
    "first_id": np.minimum,
}
"""How the rows of an account are added up. No sum of halves overflows, in whatever order."""
_SCHEMA: Final = pa.schema(
    [*((name, pa.string()) for name in _ACCOUNT), *((name, pa.int64()) for name in _NUMBERS)]
)
_NOTHING: Final = pa.scalar(None, pa.int64())
NO_BALANCES: Final = pa.schema([(one.name, one.type) for one in arrow_schema(BALANCES)])
"""The columns of ``BALANCES``. A number that does not fit into 64 bits is NULL, since an error of
Arrow would not name the account."""


class AccountPart(NamedTuple):
    """A part of a table that states balances: ``opening``, ``later``, ``told`` or ``closed``."""

    of: str
    part: TablePart


def account_parts(ledgers: Ledgers, closed: Table) -> list[AccountPart]:
    """The tables that state balances; ``closed`` are those of the day before."""
    tables = ledgers.opening, ledgers.later, ledgers.accounts, closed
    stated = zip(_STATED, tables, strict=True)
    return [AccountPart(of, part) for of, table in stated for part in table]


class AccountSums(NamedTuple):
    """Adds up the accounts of a day."""

    rules: Rules

    def booked(self, rows: pa.Table) -> pa.Table:
        """The amounts in entries of the day; see :meth:`added_up`."""
        of = index_in(rows["kind"], KINDS)
        of[index_in(rows["kind"], ARRIVED) >= 0] = KINDS.index("credit")
        # Without gapless banks the ids are not read.
        id_ = pc.if_else(is_in(rows["bank"], self.numbered), rows["id"], _NOTHING)
        return _as_sums(rows, of, rows["amount"], np.ones(len(rows), np.int64), id_, id_)

    def stated(self, source: AccountPart) -> Iterator[pa.Table]:
        """The balances that a part states, in pieces; see :meth:`added_up`."""
        amount, count = _STATED[source.of]
        for rows in source.part.pieces((*_ACCOUNT, "role", "last_id", amount, count or amount)):
            of, none = np.full(len(rows), _OF.index(source.of)), pa.nulls(len(rows), pa.int64())
            counted = numbers(rows[count]) if count else np.ones(len(rows), np.int64)
            last = rows["last_id"] if "last_id" in rows.column_names else none
            yield _as_sums(rows, of, rows[amount], counted, none, last)

    def added_up(self, pieces: Iterable[pa.Table]) -> pa.Table:
        """The sums of some amounts: a row for each account and kind of amount."""
        rows = pa.concat_tables([_SCHEMA.empty_table(), *pieces])
        groups = _Groups(rows, [*_ACCOUNT, "of"])
        added = [groups.added_up(numbers(rows[name]), name) for name in _NUMBERS[1:]]
        chosen = groups.rows.select([*_ACCOUNT, "of"])
        return pa.table([*chosen.columns, *map(pa.array, added)], schema=_SCHEMA)

    def total(self, sums: Sequence[pa.Table]) -> pa.Table:
        """The balances of some accounts, in an order of their own; see :data:`NO_BALANCES`."""
        rows = pa.concat_tables([_SCHEMA.empty_table(), *sums])
        groups, of = _Groups(rows, _ACCOUNT), numbers(rows["of"])
        values = {name: numbers(rows[name]) for name in _HOW}

        def of_kind(name: str, *kinds: str) -> Numbers:
            wanted = np.isin(of, [_OF.index(kind) for kind in kinds])
            nothing = {"first_id": _NO_FIRST, "last_id": _NO_LAST}.get(name, 0)
            return groups.added_up(np.where(wanted, values[name], nothing), name)

        amounts = {kind: _joined(of_kind("low", kind), of_kind("high", kind)) for kind in _OF}
        counts = {kind: of_kind("rows", kind) for kind in _OF}
        moved = reduce(pc.add, (amounts[kind] for kind in KINDS))
        booked = of_kind("rows", *KINDS)
        role = np.maximum(groups.added_up(values["role"], "role"), 0)
        columns = {name: groups.rows[name] for name in _ACCOUNT}
        columns |= {kind: pc.fill_null(_fitted(amount), 0) for kind, amount in amounts.items()}
        columns |= {
            "role": pa.array(_ROLES).take(pa.array(role)),
            "told": _unless(columns["told"], counts["told"] == 0),
            "moved": _fitted(moved),
            "closing": _fitted(pc.add(amounts["opening"], moved)),
            "opening_rows": pa.array(counts["opening"]),
            "rows": pa.array(booked),
            "closing_rows": pa.array(counts["opening"] + booked),
            "closed_rows": pa.array(counts["closed"]),
            "first_id": _unless(first := of_kind("first_id", *KINDS), first == _NO_FIRST),
            "closed_id": _unless(last := of_kind("last_id", "closed"), last == _NO_LAST),
            "last_id": _unless(last := of_kind("last_id", *_OF), last == _NO_LAST),
        }
        chosen = [columns[name] for name in BALANCES.names]
        order = [(name, "ascending") for name in _ACCOUNT]
        return pa.table(chosen, schema=NO_BALANCES).sort_by(order)

    @property
    def numbered(self) -> list[str]:
        """The banks whose ids have no gaps."""
        return [bank.name for bank in self.rules.bank if bank.entries.gapless]


class _Groups:
    """The rows of a table in groups with the same values in some columns."""

    def __init__(self, rows: pa.Table, by: Sequence[str]) -> None:
        code = np.zeros(len(rows), np.int64)
        for name in by:
            values = rows[name].combine_chunks()
            if pa.types.is_string(values.type):
                texts = values.dictionary_encode()
                code = code * (len(texts.dictionary) + 1) + texts.indices.to_numpy()
            else:
                code = code * len(_OF) + values.to_numpy()
        self._order = np.argsort(code)
        self._first = np.flatnonzero(np.diff(code[self._order], prepend=-1))
        self.rows = rows.take(self._order[self._first])
        """One row of each group."""

    def added_up(self, values: Numbers, name: str) -> Numbers:
        """A column of each group."""
        if not len(self._first):
            return values
        found: Numbers = _HOW[name].reduceat(values[self._order], self._first)
        return found


def _as_sums(
    rows: pa.Table, of: Numbers, amount: pa.ChunkedArray, count: Numbers, first: Any, last: Any
) -> pa.Table:
    has_role = "role" in rows.column_names
    role = index_in(rows["role"], _ROLES) if has_role else np.full(len(rows), _NO_ROLE)
    halves = pc.bit_wise_and(amount, LOWER_HALF), pc.shift_right(amount, 32)
    ids = pc.fill_null(first, _NO_FIRST), pc.fill_null(last, _NO_LAST)
    named = (rows[name] for name in _ACCOUNT)
    return pa.table([*named, of, count, *halves, role, *ids], schema=_SCHEMA)


def _unless(values: Any, is_missing: Truths) -> pa.Array:
    return pc.if_else(pa.array(is_missing), _NOTHING, values)


def _joined(low: Numbers, high: Numbers) -> pa.Array:
    """The sum of numbers from the sums of their halves."""
    wide = [pa.array(half).cast(pa.decimal128(19, 0)) for half in (low, high)]
    unit = pa.scalar(Decimal(1 << 32), pa.decimal128(10, 0))
    return pc.add(pc.multiply(wide[1], unit), wide[0])


def _fitted(sums: pa.ChunkedArray) -> pa.ChunkedArray:
    """Sums as numbers of 64 bits; NULL instead of one that does not fit."""
    least, most = (pa.scalar(Decimal(end), _WIDE) for end in (-LIMIT, LIMIT - 1))
    fits = pc.and_(pc.greater_equal(sums, least), pc.less_equal(sums, most))
    return pc.if_else(fits, sums, pa.scalar(None, sums.type)).cast(pa.int64())
