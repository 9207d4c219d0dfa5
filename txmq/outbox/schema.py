"""Creates the outbox in a database, for services without migrations of their own."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from txmq.databases.dialects import kind_of
from txmq.databases.failures import words
from txmq.errors import DatabaseFailed, TableMissing
from txmq.limits import SLOTS
from txmq.outbox.table import LANES, Outbox
from txmq.text import quantity

__all__ = ["create_outbox"]


def create_outbox(engine: Engine, name: str = "txmq_outbox", schema: str | None = None) -> bool:
    """Create what is missing of the outbox and check it; returns whether anything was missing.

    Raises:
        ConfigError: Not every database takes a name unquoted.
        DatabaseFailed: The database refused, or does not answer.
        TableMissing: A table exists, but not all of its rows.
    """
    outbox = Outbox(name, schema)
    kind = kind_of(engine.dialect.name)
    try:
        with engine.begin() as connection:
            tables = outbox.tables(kind)
            there = inspect(connection)
            is_new = not all(there.has_table(table.name, schema) for table in tables)
            outbox.metadata.create_all(connection, tables=tables, checkfirst=True)
        with engine.connect() as connection:
            _check(outbox, kind, connection)
    except SQLAlchemyError as error:
        raise DatabaseFailed(f"could not create {outbox.name}: {words(error)}") from error
    return is_new


def _check(outbox: Outbox, kind: str, connection: Connection) -> None:
    for table in outbox.tables(kind):
        connection.execute(select(table).limit(0))
    wanted = {outbox.slots: SLOTS, **({outbox.lanes: LANES} if kind == "mysql" else {})}
    for table, rows in wanted.items():
        found = connection.execute(select(func.count()).select_from(table)).scalar_one()
        if found != rows:
            raise TableMissing(
                f"{table.fullname} has {quantity(found, 'row')}, not {rows}: drop the table, and "
                "create it again"
            )
