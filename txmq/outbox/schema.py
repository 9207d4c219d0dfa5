"""Makes the outbox in a database, for those who have no migrations of their own."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from txmq.databases.dialects import kind_of
from txmq.databases.failures import words
from txmq.errors import DatabaseFailed, TableMissing
from txmq.limits import SLOTS
from txmq.outbox.table import LANES, Outbox
from txmq.quantity import quantity

__all__ = ["create_outbox"]


def create_outbox(engine: Engine, name: str, schema: str | None) -> bool:
    """Make what is missing of the outbox, and look at it; returns whether anything was missing.

    Raises:
        ConfigError: A name is none that every database takes.
        DatabaseFailed: The database refused, or does not answer.
        TableMissing: It is there, but not as it should be.
    """
    outbox = Outbox(name, schema)
    kind = kind_of(engine.dialect.name)
    try:
        with engine.begin() as connection:
            tables = outbox.tables(kind)
            there = inspect(connection)
            is_new = not all(there.has_table(each.name, schema) for each in tables)
            outbox.metadata.create_all(connection, tables=tables, checkfirst=True)
        with engine.connect() as connection:
            _see(outbox, kind, connection)
    except SQLAlchemyError as problem:
        raise DatabaseFailed(f"{outbox.name} could not be made: {words(problem)}") from problem
    return is_new


def _see(outbox: Outbox, kind: str, connection: Connection) -> None:
    for each in outbox.tables(kind):
        connection.execute(select(each).limit(0))
    wanted = {outbox.slots: SLOTS, **({outbox.lanes: LANES} if kind == "mysql" else {})}
    for table, rows in wanted.items():
        found = connection.execute(select(func.count()).select_from(table)).scalar_one()
        if found != rows:
            raise TableMissing(
                f"{table.fullname} has {quantity(found, 'row')}, not {rows}: drop it, and make "
                "it anew"
            )
