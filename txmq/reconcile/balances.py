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

__all__ = ["KINDS", "NO_BALANCES", "AccountPart", "AccountSums", "account_parts", "shortened"]

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
_NOTHING_OF: Final = {"role": _NO_ROLE, "first_id": _NO_FIRST, "last_id": _NO_LAST}
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


def shortened(sums: pa.Table) -> pa.Table:
    """Rows on their way to another worker: of a column with one value, it is kept once."""
    ends = [pc.min_max(column) for column in sums.columns]
    is_one = [found["min"] == found["max"] for found in ends]
    columns = zip(sums.columns, is_one, strict=True)
    kept = [pc.run_end_encode(column) if is_run else column for column, is_run in columns]
    return pa.table(kept, sums.column_names)


def _lengthened(sums: pa.Table) -> pa.Table:
    is_run = pa.types.is_run_end_encoded
    kept = (pc.run_end_decode(one) if is_run(one.type) else one for one in sums.columns)
    return pa.table([*kept], schema=_SCHEMA)


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
        groups = _Groups(rows)
        added = [groups.added_up(rows, name) for name in _NUMBERS[1:]]
        return pa.table([*groups.names.columns, groups.of, *added], schema=_SCHEMA)

    def total(self, sums: Sequence[pa.Table]) -> pa.Table:
        """The balances of some accounts, in an order of their own; see :data:`NO_BALANCES`."""
        rows = pa.concat_tables([_SCHEMA.empty_table(), *map(_lengthened, sums)])
        groups = _Groups(rows)
        is_first = np.diff(groups.account, prepend=-1) > 0
        places = np.cumsum(is_first) - 1, groups.of

        def of_each(name: str) -> Numbers:
            """A row for each account, a column for each kind of amount."""
            found = np.full((int(is_first.sum()), len(_OF)), _NOTHING_OF.get(name, 0))
            found[places] = groups.added_up(rows, name)
            return found

        low, high, counts = of_each("low"), of_each("high"), of_each("rows")
        amounts = {kind: _joined(low[:, at], high[:, at]) for at, kind in enumerate(_OF)}
        count = {kind: counts[:, at] for at, kind in enumerate(_OF)}
        booked, last_ids = counts[:, : len(KINDS)].sum(axis=1), of_each("last_id")
        moved = reduce(pc.add, (amounts[kind] for kind in KINDS))
        role = np.maximum(of_each("role").max(axis=1, initial=0), 0)
        names = groups.names.filter(pa.array(is_first))
        columns = {name: names[name] for name in _ACCOUNT}
        columns |= {kind: pc.fill_null(_fitted(amount), 0) for kind, amount in amounts.items()}
        columns |= {
            "role": pa.array(_ROLES).take(pa.array(role)),
            "told": _unless(columns["told"], count["told"] == 0),
            "moved": _fitted(moved),
            "closing": _fitted(pc.add(amounts["opening"], moved)),
            "opening_rows": pa.array(count["opening"]),
            "rows": pa.array(booked),
            "closing_rows": pa.array(count["opening"] + booked),
            "closed_rows": pa.array(count["closed"]),
            "first_id": _unless(
                first := of_each("first_id")[:, : len(KINDS)].min(axis=1), first == _NO_FIRST
            ),
            "closed_id": _unless(last := last_ids[:, _OF.index("closed")], last == _NO_LAST),
            "last_id": _unless(last := last_ids.max(axis=1), last == _NO_LAST),
        }
        chosen = [columns[name] for name in BALANCES.names]
        order = [(name, "ascending") for name in _ACCOUNT]
        return pa.table(chosen, schema=NO_BALANCES).sort_by(order)

    @property
    def numbered(self) -> list[str]:
        """The banks whose ids have no gaps."""
        return [bank.name for bank in self.rules.bank if bank.entries.gapless]


class _Groups:
    """Rows in groups of the same account and kind of amount; the groups of an account are
    neighbours.
    """

    def __init__(self, rows: pa.Table) -> None:
        code = np.zeros(len(rows), np.int64)
        for name in _ACCOUNT:
            texts = rows[name].combine_chunks().dictionary_encode()
            code = code * (len(texts.dictionary) + 1) + texts.indices.to_numpy()
        code = code * len(_OF) + numbers(rows["of"])
        self._order = np.argsort(code)
        code = code[self._order]
        self._first = np.flatnonzero(np.diff(code, prepend=-1))
        self.account, self.of = np.divmod(code[self._first], len(_OF))
        self.names = rows.select(_ACCOUNT).take(self._order[self._first])

    def added_up(self, rows: pa.Table, name: str) -> Numbers:
        """A column of each group."""
        values = numbers(rows[name])
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
