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

from msgspec import Struct
from msgspec.structs import asdict, fields
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
from txmq.reconcile.rules import Recon
from txmq.reconcile.summary import Proof, Run, SignOff, Total
from txmq.reconcile.tables import ITEMS

__all__ = ["ReconSchema"]

_BATCH: Final = 1_000
"""The number of rows in one insert."""

_TYPES: Final[Mapping[Any, Any]] = {
    "string": Text, "long": BigInteger, "int": Integer, "boolean": Boolean,
    str: Text, int: BigInteger, bool: Boolean,
}  # fmt: skip
"""The SQL types of the types in Parquet files, and of those of fields."""
_RENAMED: Final[Mapping[str, str]] = {"group": "group_", "class_": "class"}
"""Names that are reserved words: of columns in SQL, and of fields in Python."""

_RUN: Final = (
    "name", "business_date", "is_current", "is_final", "verdict", "why", "transfers", "match_rate",
    "breaks", "closed", "broken_proofs", "start_ms", "end_ms", "as_of_ms", "began_ms", "ended_ms",
    "result_digest", "rules_version", "rules_digest", "extract_id", "txmq_version",
    "previous_run_id",
)  # fmt: skip
_COUNTS: Final = ("transfers", "breaks", "closed", "broken_proofs")


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
        self._name = recon.schema
        has_schemas = kind_of(self._engine.dialect.name) == "postgresql"
        self._metadata = MetaData(schema=recon.schema if has_schemas else None)
        prefix = "" if has_schemas else f"{recon.schema}_"

        def table(name: str, *columns: Column[Any]) -> Table:
            return Table(f"{prefix}{name}", self._metadata, *columns)

        self.runs = table("runs", _key("run_id"), *map(_run_column, _RUN))
        self.items = table("items", _key("run_id"), _key("break_id"), *_item_columns())
        self.proofs = table("proofs", _key("run_id"), _number(), *_columns_of(Proof))
        self.totals = table("totals", _key("run_id"), _number(), *_columns_of(Total))
        self.signoffs = table(
            "signoffs",
            _key("result_digest"),
            *map(_run_column, ("name", "business_date", "run_id")),
            *_columns_of(SignOff)[1:],
        )

    def create(self) -> None:
        """Create the missing tables.

        Raises:
            DatabaseFailed: The database refuses, or does not answer; or a table of an older txmq
                has fewer columns.
        """
        with self._transaction() as connection:
            there, schema = inspect(connection), self._metadata.schema
            # A user without the right to create a schema may still use an existing one.
            if schema is not None and not there.has_schema(schema):
                connection.execute(CreateSchema(schema, if_not_exists=True))
            self._metadata.create_all(connection, checkfirst=True)
            for table in self._metadata.sorted_tables:
                names = {
                    column["name"] for column in inspect(connection).get_columns(table.name, schema)
                }
                for column in table.columns:
                    if column.name not in names:
                        type_ = column.type.compile(connection.dialect)
                        raise DatabaseFailed(
                            f"the table {table} was created by an older txmq and has no column "
                            f"{column.name}: add it with ALTER TABLE {table} ADD COLUMN "
                            f"{column.name} {type_}, and run the date again"
                        )

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
            connection.execute(insert(self.runs), [of_run | _run_row(run)])
            for table, parts in ((self.proofs, result.proofs), (self.totals, result.totals)):
                numbered = enumerate(map(asdict, parts))
                _put(connection, table, (of_run | {"number": n} | part for n, part in numbered))
            written = _put(connection, self.items, (of_run | dict(item) for item in items))
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
        if run.sign_off is None or run.signature == "invalidated":
            return
        of_result = self.signoffs.c.result_digest == run.result_digest
        connection.execute(delete(self.signoffs).where(of_result))
        about = {"name": run.result.name, "business_date": run.result.business_date}
        row = asdict(run.sign_off) | about | {"run_id": run.run_id}
        connection.execute(insert(self.signoffs), [row])

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


def _run_column(name: str) -> Column[Any]:
    """A figure of a run; its name tells its type."""
    is_number = name in _COUNTS or name.endswith("_ms")
    type_: Any = Boolean if name.startswith("is_") else BigInteger if is_number else Text
    type_ = Double if name == "match_rate" else type_
    return Column(name, type_, nullable=name == "previous_run_id")


def _item_columns() -> list[Column[Any]]:
    return [_column(name, type_, is_optional) for name, type_, is_optional in ITEMS.columns[1:]]


def _columns_of(part: type[Struct]) -> list[Column[Any]]:
    """The columns for the fields of a part of a run."""
    types = {field.name: get_args(field.type) or (field.type,) for field in fields(part)}
    return [_column(name, some[0], NoneType in some) for name, some in types.items()]


def _column(name: str, type_: object, is_optional: bool) -> Column[Any]:
    """A column; its key is the name in rows."""
    return Column(_RENAMED.get(name, name), _TYPES[type_], key=name, nullable=is_optional)


def _run_row(run: Run) -> dict[str, Any]:
    known = {"why": "\n".join(run.result.why), "is_current": True}
    sources = {
        name: run if hasattr(run, name) else run.result for name in _RUN if name not in known
    }
    return known | {name: getattr(source, name) for name, source in sources.items()}


def _put(connection: Connection, table: Table, rows: Iterator[Mapping[str, Any]]) -> int:
    """Insert rows in batches; returns their number."""
    written = 0
    while batch := list(islice(rows, _BATCH)):
        connection.execute(insert(table), batch)
        written += len(batch)
    return written
