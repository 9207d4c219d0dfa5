"""Tables in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from txmq.errors import ReconcileRefused
from txmq.reconcile.report.words import mask, mask_sides
from txmq.reconcile.tables import LIMIT, TableSchema

__all__ = ["arrow_schema", "arrow_table"]

_PLACE: Final = (
    *("proof", "class", "key", "bank", "debit_bank", "payer", "credit_bank", "payee"),
    *("account", "currency"),
)
"""The columns that name a row in an error."""
_TYPES: Final = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "decimal(38,0)": pa.decimal128(38, 0),
    "binary": pa.binary(),
}


def arrow_schema(table: TableSchema) -> pa.Schema:
    """The Arrow schema of a table."""
    return pa.schema(
        [pa.field(column.name, _TYPES[column.type], column.is_optional) for column in table.columns]
    )


def arrow_table(table: TableSchema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows as an Arrow table; the values of each row are in the order of its columns.

    Raises:
        ReconcileRefused: A sum does not fit into 64 bits; the message names its row.
    """
    schema = arrow_schema(table)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    try:
        arrays = map(pa.array, columns, schema.types)
        return pa.table(list(arrays), schema=schema)
    except (OverflowError, pa.ArrowInvalid):
        for row in (dict(zip(table.names, row, strict=True)) for row in rows):
            for name, value in row.items():
                if isinstance(value, int) and not -LIMIT <= value < LIMIT:
                    where = f"{table.name} of {_place(row)}: {name} is {value}"
                    why = "which does not fit into 64 bits; correct the wrong booking or order"
                    raise ReconcileRefused(f"{where}, {why}") from None
        raise


def _place(row: dict[str, Any]) -> str:
    """The texts that name a row; accounts are masked."""
    row = mask_sides({"payer": None, "payee": None} | row)
    row["account"] = mask(row.get("account") or "")
    return ", ".join(row[name] for name in _PLACE if row.get(name))
