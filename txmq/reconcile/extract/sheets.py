"""The tables of a source in one frame, each row with the name of its table.

A source gives all of its tables in one reading. The frame has the columns of all tables; those that
a row's table lacks are NULL. Spark writes it into a folder for each table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from txmq.errors import ReconcileRefused
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.tables import TableSchema

__all__ = ["TABLE", "Sheets"]

TABLE: Final = "table"
"""The column with the name of a row's table."""


class Sheets:
    """Tables that can share a frame, because columns with the same name have the same type."""

    def __init__(self, tables: Mapping[str, TableSchema]) -> None:
        self._schemas = {name: arrow_schema(table) for name, table in tables.items()}
        types = {field.name: field.type for schema in self._schemas.values() for field in schema}
        self.schema = pa.schema(types | {TABLE: pa.string()})
        """The columns of the frame."""

    def schema_of(self, table: str | None) -> pa.Schema:
        """The columns of one table, or of the frame of all."""
        return self._schemas[table] if table else self.schema

    def rows(
        self, where: str, table: TableSchema, rows: pa.RecordBatch, *, is_alone: bool = False
    ) -> pa.RecordBatch:
        """Rows of a table, whose columns may be in any order, as rows of the frame, or of the
        table alone.

        Raises:
            ReconcileRefused: A required value is NULL, or a value does not fit.
        """
        schema = self._schemas[table.name]
        try:
            found = rows.select(schema.names).cast(schema)
        except (ValueError, pa.ArrowException) as error:
            raise ReconcileRefused(f"{where}: {error}") from error
        if is_alone:
            return found
        own = dict(zip(schema.names, found.columns, strict=True))
        own[TABLE] = pa.repeat(table.name, len(found))
        columns = [
            own[field.name] if field.name in own else pa.nulls(len(found), field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
