"""Makes the table of what is done in a database, for those who have no migrations of their own."""

from __future__ import annotations

from sqlalchemy import Engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from txmq.databases.door import drive
from txmq.databases.failures import words
from txmq.errors import DatabaseFailed
from txmq.idempotent.done import Done
from txmq.idempotent.unique_key import UniqueKeyTable

__all__ = ["create_done"]


def create_done(engine: Engine, name: str = "txmq_done", schema: str | None = None) -> bool:
    """Make the table if it is missing, and verify it; returns whether it was missing.

    Raises:
        ConfigError: A name is none that every database takes.
        DatabaseFailed: The database refused, or does not answer.
        ResourceError: It is there, and cannot be used; see :meth:`UniqueKeyTable.verify`.
    """
    done = Done(name, schema)
    try:
        with engine.begin() as connection:
            is_new = not inspect(connection).has_table(name, schema)
            done.metadata.create_all(connection, checkfirst=True)
    except SQLAlchemyError as problem:
        raise DatabaseFailed(f"{done.name} could not be made: {words(problem)}") from problem
    guard = UniqueKeyTable(engine, table=name, schema=schema)
    drive(guard.verified())  # A blocking engine's never waits, and a loop may run here.
    return is_new
