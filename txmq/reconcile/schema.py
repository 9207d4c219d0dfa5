"""Results in a database for other programs: the ``recon`` schema.

One transaction replaces the rows of a run and makes it the day's current one. Signatures belong to
results, and outlive their runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    insert,
    inspect,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from txmq.databases.dialects import kind_of
from txmq.databases.engines import engine_of
from txmq.databases.failures import words
from txmq.databases.tables import any_text, plain_names
from txmq.errors import DatabaseFailed
from txmq.reconcile import tables
from txmq.reconcile.rules import Recon
from txmq.reconcile.summary import Run, SignOff

__all__ = ["ReconSchema"]

_BATCH: Final = 1_000
"""The number of rows in one insert."""

_TYPES: Final[Mapping[str, Any]] = {
    "string": Text, "long": BigInteger, "int": Integer, "boolean": Boolean,
}  # fmt: skip
_RENAMED: Final[Mapping[str, str]] = {"group": "group_", "class_": "class"}
"""Names that are reserved words: of columns in SQL, and of fields in Python."""

_RUN_COLUMNS: Final = (
    "name", "business_date", "is_current", "is_final", "verdict", "why", "transfers", "match_rate",
    "breaks", "closed", "broken_proofs", "start_ms", "end_ms", "as_of_ms", "began_ms", "ended_ms",
    "result_digest", "rules_version", "rules_digest", "extract_id", "txmq_version",
)  # fmt: skip
_SIGN_OFF_COLUMNS: Final = ("name", "business_date", "run_id", *SignOff.__struct_fields__[1:])
_COUNTS: Final = ("transfers", "breaks", "closed", "broken_proofs", "by_items", "by_person")


class ReconSchema:
    """The tables runs, items, proofs, totals and signoffs.

    In a database without schemas, such as SQLite, their names are ``recon_runs`` and so on.

    Args:
        recon: The database and the schema.

    Raises:
        ConfigError: The database is unknown, or its driver is missing.
    """

    def __init__(self, recon: Recon) -> None:
        plain_names(recon.schema)
        self._engine = engine_of(recon.database)
        has_schemas = kind_of(self._engine.dialect.name) == "postgresql"
        self._schema = recon.schema if has_schemas else None
        self._prefix = "" if has_schemas else f"{recon.schema}_"
        self._name = recon.schema
        self._metadata = MetaData(schema=self._schema)
        self.runs = self._table(
            "runs", _key("run_id"), *_columns(*_RUN_COLUMNS), Column("previous_run_id", Text)
        )
        self.items = self._table(
            "items", _key("run_id"), _key("break_id"), *_columns_of(tables.ITEMS.columns[1:])
        )
        self.proofs = self._table(
            "proofs",
            *(_key("run_id"), _number(), *_columns_of(tables.PROOFS.columns)),
            *_columns("is_open", "by_items", "by_person"),
            *(Column(name, Text) for name in ("explained_by", "explanation", "until")),
        )
        self.totals = self._table(
            "totals", _key("run_id"), _number(), *_columns_of(tables.TOTALS.columns)
        )
        self.signoffs = self._table(
            "signoffs", _key("result_digest"), *_columns(*_SIGN_OFF_COLUMNS)
        )

    def create(self) -> None:
        """Create the missing tables.

        Raises:
            DatabaseFailed: The database refuses, or does not answer.
        """
        with self._transaction() as connection:
            # A user without the right to create a schema may still use an existing one.
            if self._schema is not None and not inspect(connection).has_schema(self._schema):
                connection.execute(CreateSchema(self._schema, if_not_exists=True))
            self._metadata.create_all(connection, checkfirst=True)

    def write(self, run: Run, items: Iterable[Mapping[str, Any]]) -> int:
        """Write a run, and make it the day's current one.

        Args:
            run: The run; its totals, proofs and signatures are written too.
            items: The rows of its table ``items``.

        Returns:
            The number of items.

        Raises:
            DatabaseFailed: The database refuses, or does not answer; it is unchanged.
        """
        self.create()
        result, of_run = run.result, {"run_id": run.run_id}
        with self._transaction() as connection:
            for table in (self.items, self.proofs, self.totals, self.runs):
                connection.execute(delete(table).where(table.c.run_id == run.run_id))
            of_day = self.runs.c.business_date == result.business_date
            former = update(self.runs).where(of_day, self.runs.c.name == result.name)
            connection.execute(former.values(is_current=False))
            connection.execute(insert(self.runs), [_row_of(run)])
            for table, parts in ((self.proofs, result.proofs), (self.totals, result.totals)):
                numbered = enumerate(parts)
                _put(
                    connection,
                    table,
                    (of_run | {"number": n} | _struct_row(p) for n, p in numbered),
                )
            written = _put(connection, self.items, (of_run | _rename(item) for item in items))
            self._sign(connection, run)
        return written

    def sign(self, run: Run) -> None:
        """Write the signatures of a run's result.

        Raises:
            DatabaseFailed: The database refuses, or does not answer.
        """
        self.create()
        with self._transaction() as connection:
            self._sign(connection, run)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _sign(self, connection: Connection, run: Run) -> None:
        if run.sign_off is None or run.sign_off.result_digest != run.result_digest:
            return
        of_result = self.signoffs.c.result_digest == run.sign_off.result_digest
        connection.execute(delete(self.signoffs).where(of_result))
        about = {
            "name": run.result.name,
            "business_date": run.result.business_date,
            "run_id": run.run_id,
        }
        connection.execute(insert(self.signoffs), [about | _struct_row(run.sign_off)])

    def _table(self, name: str, *columns: Column[Any]) -> Table:
        return Table(f"{self._prefix}{name}", self._metadata, *columns)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise DatabaseFailed(
                f"the tables of {self._name} could not be written: {words(error)}"
            ) from error


def _key(name: str) -> Column[Any]:
    return Column(name, any_text(64), primary_key=True)


def _number() -> Column[Any]:
    return Column("number", Integer, primary_key=True, autoincrement=False)


def _columns(*names: str) -> list[Column[Any]]:
    return [Column(name, _type_of(name), nullable=False) for name in names]


def _type_of(name: str) -> Any:
    """The type of a figure of a run, by its name."""
    if name == "match_rate":
        return Double
    if name.startswith("is_"):
        return Boolean
    return BigInteger if name in _COUNTS or name.endswith("_ms") else Text


def _columns_of(columns: Sequence[tables.Column]) -> list[Column[Any]]:
    """The SQL columns for a table of a run."""
    return [
        Column(
            _RENAMED.get(column.name, column.name), _TYPES[column.type], nullable=column.is_optional
        )
        for column in columns
    ]


def _row_of(run: Run) -> dict[str, Any]:
    """The columns of a run."""
    result = run.result
    sources = {"why": "\n".join(result.why), "is_current": True, "run_id": run.run_id}
    for name in (*_RUN_COLUMNS, "previous_run_id"):
        if name not in sources:
            sources[name] = getattr(run if hasattr(run, name) else result, name)
    return sources


def _struct_row(part: msgspec.Struct) -> dict[str, Any]:
    return _rename(msgspec.structs.asdict(part))


def _rename(row: Mapping[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in row.items()}


def _put(connection: Connection, table: Table, rows: Iterator[Mapping[str, Any]]) -> int:
    """Insert rows in batches; returns their number."""
    written = 0
    while batch := list(islice(rows, _BATCH)):
        connection.execute(insert(table), batch)
        written += len(batch)
    return written
