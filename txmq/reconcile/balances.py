"""The balances of each account over a day, added up by Arrow.

Each part of a table gives a row for each account, with those columns of ``BALANCES`` that the table
knows. The rows of an account meet at one place and are added up there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.columns import Numbers, index_in, is_in, numbers
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.ledgers import Role
from txmq.reconcile.tables import BALANCES, LIMIT
from txmq.reconcile.transfer import ARRIVED

__all__ = ["ACCOUNT", "KINDS", "NO_BALANCES", "STATED", "add_up", "balances_of", "facts_of"]

KINDS: Final = ("debit", "return", "credit", "other")
"""The kinds of bookings, which are columns of ``BALANCES``."""
STATED: Final = {
    Role.OPENING: {"amount": "opening", "rows": "opening_rows"},
    Role.LATER: {"amount": "later"},
    Role.ACCOUNTS: {"balance": "told"},
    # An account without rows stays an account, with its last number.
    Role.BALANCES: {"closing": "closed", "closing_rows": "closed_rows", "last_id": "closed_id"},
}
"""The tables that state balances: the column of ``BALANCES`` for each of theirs."""
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
ACCOUNT: Final = ["bank", "account", "currency"]
"""The columns that name an account."""
_SUMS: Final = (*KINDS, "opening", "later", "told", "closed")
_HOW: Final = {
    **dict.fromkeys((*_SUMS, "rows", "opening_rows", "closed_rows"), "sum"),
    **dict.fromkeys(("role", "closed_id", "last_id"), "max"),
    "first_id": "min",
}
"""How the rows of an account are added up."""
_WIDE: Final = pa.decimal128(30, 0)
"""Decimals with room for any sum of 64-bit numbers, and for more digits in sums of these."""
_SMALL: Final = 1 << 36
"""Numbers below need no decimals to be added up."""
_SCHEMA: Final = pa.schema(
    [(name, pa.string()) for name in ACCOUNT]
    + [(name, _WIDE if name in _SUMS else pa.int64()) for name in _HOW]
)
NO_BALANCES: Final = pa.schema([(one.name, one.type) for one in arrow_schema(BALANCES)])
"""The columns of ``BALANCES``. A number that does not fit into 64 bits is NULL, since an error of
Arrow would not name the account."""


def facts_of(role: Role, rows: pa.Table, gapless: Sequence[str]) -> pa.Table:
    """What rows of ``entries`` or of a table in ``STATED`` tell about accounts.

    ``gapless`` are the banks whose ids have no gaps.
    """
    columns = {name: rows[name] for name in ACCOUNT}
    if "role" in rows.column_names:
        columns["role"] = pa.array(index_in(rows["role"], _ROLES), pa.int8())
    if role in STATED:
        found = {name: rows[own] for own, name in STATED[role].items()}
        wide = {name: _wide(numbers(found[name])) for name in found if name in _SUMS}
        return pa.table(columns | found | wide)
    kind = index_in(rows["kind"], KINDS)
    kind[index_in(rows["kind"], ARRIVED) >= 0] = KINDS.index("credit")
    amount = numbers(rows["amount"])
    # A file has fewer than 2**27 rows, whose sums then fit into 64 bits.
    is_small = len(amount) == 0 or (amount.min() > -_SMALL and amount.max() < _SMALL)
    for place, name in enumerate(KINDS):
        of_kind = np.where(kind == place, amount, 0)
        columns[name] = of_kind if is_small else _wide(of_kind)
    columns["rows"] = pa.repeat(1, len(rows))
    if gapless:
        id_ = pc.if_else(is_in(rows["bank"], gapless), rows["id"], None)
        columns |= {"first_id": id_, "last_id": id_}
    return pa.table(columns)


def add_up(pieces: Iterable[pa.Table]) -> pa.Table:
    """The sums of some pieces: a row for each account."""
    rows = pa.concat_tables(pieces, promote_options="permissive")
    how = {name: how for name, how in _HOW.items() if name in rows.column_names}
    sums = rows.group_by(ACCOUNT, use_threads=False).aggregate(list(how.items()))
    return sums.rename_columns([*ACCOUNT, *how])


def balances_of(sums: Iterable[pa.Table]) -> pa.Table:
    """The balances of some accounts, in an order of their own; see :data:`NO_BALANCES`."""
    rows = add_up([_SCHEMA.empty_table(), *sums]).cast(_SCHEMA)
    rows = rows.sort_by([(name, "ascending") for name in ACCOUNT])
    columns = {name: rows[name] for name in rows.column_names}
    for name in (name for name, how in _HOW.items() if how == "sum" or name == "role"):
        columns[name] = pc.fill_null(rows[name], 0)
    moved = reduce(pc.add, (columns[kind] for kind in KINDS))
    closing = pc.add(columns["opening"], moved)
    columns |= {name: pc.fill_null(_fitted(columns[name]), 0) for name in _SUMS}
    columns |= {
        "role": pa.array(_ROLES).take(columns["role"]),
        "told": pc.if_else(rows["told"].is_valid(), columns["told"], None),
        "moved": _fitted(moved),
        "closing": _fitted(closing),
        "closing_rows": pc.add(columns["opening_rows"], columns["rows"]),
        "last_id": pc.max_element_wise(rows["last_id"], rows["closed_id"]),
    }
    return pa.table([columns[name] for name in BALANCES.names], schema=NO_BALANCES)


def _wide(values: Numbers) -> pa.Array:
    """Numbers as decimals; Arrow's own cast takes twenty times as long."""
    halves = np.stack([values, values >> 63], axis=1)
    return pa.Array.from_buffers(_WIDE, len(values), [None, pa.py_buffer(halves)])


def _fitted(sums: pa.ChunkedArray) -> pa.ChunkedArray:
    """Sums as numbers of 64 bits; NULL instead of one that does not fit."""
    least, most = (pa.scalar(Decimal(end), _WIDE) for end in (-LIMIT, LIMIT - 1))
    fits = pc.and_(pc.greater_equal(sums, least), pc.less_equal(sums, most))
    return pc.if_else(fits, sums, None).cast(pa.int64())
