"""Results in a database for other programs: the ``recon`` schema.

One transaction replaces the rows of a run and makes it the day's current one. Signatures belong to
results, and outlive their runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import NoneType
from typing import Any, Final, get_args

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict, fields
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from txmq.databases.dialects import kind_of
from txmq.databases.engines import engine_of
from txmq.databases.failures import words
from txmq.databases.tables import any_text, plain_names
from txmq.errors import DatabaseFailed
from txmq.reconcile.rules import Recon
from txmq.reconcile.summary import Proof, Run, SignOff, Total
from txmq.reconcile.tables import ITEMS

__all__ = ["ReconSchema"]

_BATCH: Final = 1_000

_TYPES: Final[Mapping[Any, Any]] = {
    "string": sa.Text, "long": sa.BigInteger, "int": sa.Integer, "boolean": sa.Boolean,
    str: sa.Text, int: sa.BigInteger, bool: sa.Boolean, float: sa.Double,
}  # fmt: skip
"""The SQL type for each type of Parquet columns, and for each type of fields."""
_RENAMED: Final[Mapping[str, str]] = {"group": "group_", "class_": "class"}
"""Names that are reserved words: of columns in SQL, and of fields in Python."""
_RUN: Final[Mapping[str, type]] = {
    "name": str, "business_date": str, "is_current": bool, "is_final": bool, "verdict": str,
    "why": str, "transfers": int, "match_rate": float, "breaks": int, "closed": int,
    "broken_proofs": int, "start_ms": int, "end_ms": int, "as_of_ms": int, "began_ms": int,
    "ended_ms": int, "result_digest": str, "rules_version": str, "rules_digest": str,
    "extract_id": str, "txmq_version": str, "previous_run_id": str,
}  # fmt: skip


class ReconSchema:
    """The tables runs, items, proofs, totals and signoffs.

    In a database without schemas, such as SQLite, their names are ``recon_runs`` and so on.

    Raises:
        ConfigError: The database is unknown, or its driver is missing.
    """

    def __init__(self, recon: Recon) -> None:
        plain_names(recon.schema)
        self._engine = engine_of(recon.database)
        self._name = recon.schema
        has_schemas = kind_of(self._engine.dialect.name) == "postgresql"
        self._metadata = sa.MetaData(schema=recon.schema if has_schemas else None)
        prefix = "" if has_schemas else f"{recon.schema}_"

        def table(name: str, *columns: sa.Column[Any]) -> sa.Table:
            return sa.Table(f"{prefix}{name}", self._metadata, *columns)

        run = [_column(name, type_, name == "previous_run_id") for name, type_ in _RUN.items()]
        self.runs = table("runs", _key("run_id"), *run)
        items = [_column(*column[:3]) for column in ITEMS.columns[1:]]
        self.items = table("items", _key("run_id"), _key("break_id"), *items)
        self.proofs = table("proofs", _key("run_id"), _number(), *_columns_of(Proof))
        self.totals = table("totals", _key("run_id"), _number(), *_columns_of(Total))
        about = [_column(name, str) for name in ("name", "business_date", "run_id")]
        signed = _columns_of(SignOff)[1:]
        self.signoffs = table("signoffs", _key("result_digest"), *about, *signed)

    def write(self, run: Run, items: Iterable[Mapping[str, Any]]) -> None:
        """Write a run with its items, and make it the day's current one.

        Raises:
            DatabaseFailed: The database refuses, or does not answer; it is unchanged.
        """
        result, of_run = run.result, {"run_id": run.run_id}
        why = {"is_current": True, "why": "\n".join(result.why)}
        figures = {
            name: getattr(run if hasattr(run, name) else result, name) for name in _RUN.keys() - why
        }
        rows: dict[sa.Table, Iterable[Mapping[str, Any]]] = {
            self.runs: [figures | why],
            self.proofs: ({"number": n} | asdict(part) for n, part in enumerate(result.proofs)),
            self.totals: ({"number": n} | asdict(part) for n, part in enumerate(result.totals)),
            self.items: items,
        }
        with self._transaction() as connection:
            of_day = self.runs.c.business_date == result.business_date
            former = sa.update(self.runs).where(of_day, self.runs.c.name == result.name)
            connection.execute(former.values(is_current=False))
            for table, new in rows.items():
                connection.execute(sa.delete(table).where(table.c.run_id == run.run_id))
                some = (of_run | dict(row) for row in new)
                while batch := list(islice(some, _BATCH)):
                    connection.execute(sa.insert(table), batch)
            self._sign(connection, run)

    def sign(self, run: Run) -> None:
        """Write the signatures of a run's result.

        Raises:
            DatabaseFailed: As for :meth:`write`.
        """
        with self._transaction() as connection:
            self._sign(connection, run)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _sign(self, connection: sa.Connection, run: Run) -> None:
        if run.sign_off is None or run.signature == "invalidated":
            return
        of_result = self.signoffs.c.result_digest == run.result_digest
        connection.execute(sa.delete(self.signoffs).where(of_result))
        about = {"name": run.result.name, "business_date": run.result.business_date}
        row = asdict(run.sign_off) | about | {"run_id": run.run_id}
        connection.execute(sa.insert(self.signoffs), [row])

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A transaction in which all tables exist."""
        try:
            with self._engine.begin() as connection:
                self._create_tables(connection)
                yield connection
        except SQLAlchemyError as error:
            what = f"the tables of {self._name} could not be written"
            raise DatabaseFailed(f"{what}: {words(error)}") from error

    def _create_tables(self, connection: sa.Connection) -> None:
        schema = self._metadata.schema
        # A user without the right to create a schema may still use an existing one.
        if schema is not None and not sa.inspect(connection).has_schema(schema):
            connection.execute(CreateSchema(schema, if_not_exists=True))
        self._metadata.create_all(connection, checkfirst=True)
        there = sa.inspect(connection)
        for table in self._metadata.sorted_tables:
            names = {column["name"] for column in there.get_columns(table.name, schema)}
            for column in table.columns:
                if column.name not in names:  # An older txmq has created the table.
                    type_ = column.type.compile(connection.dialect)
                    connection.exec_driver_sql(
                        f"ALTER TABLE {table} ADD COLUMN {column.name} {type_}"
                    )


def _key(name: str) -> sa.Column[Any]:
    return sa.Column(name, any_text(64), primary_key=True)


def _number() -> sa.Column[Any]:
    return sa.Column("number", sa.Integer, primary_key=True, autoincrement=False)


def _columns_of(part: type[Struct]) -> list[sa.Column[Any]]:
    """The columns for the fields of a part of a run."""
    types = {field.name: get_args(field.type) or (field.type,) for field in fields(part)}
    return [_column(name, some[0], NoneType in some) for name, some in types.items()]


def _column(name: str, type_: object, is_optional: bool = False) -> sa.Column[Any]:
    """A column; its key is the name in rows."""
    return sa.Column(_RENAMED.get(name, name), _TYPES[type_], key=name, nullable=is_optional)
