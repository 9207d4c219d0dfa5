"""Creates the table of done keys, for services without migrations of their own."""

from __future__ import annotations

from txmq.settings.extras import named_extra

with named_extra():
    from sqlalchemy import Engine, inspect
    from sqlalchemy.exc import SQLAlchemyError

from txmq.databases.failures import words
from txmq.databases.guarded_transaction import drive
from txmq.errors import DatabaseFailed
from txmq.idempotent.done_table import DoneTable
from txmq.idempotent.unique_key import UniqueKeyTable

__all__ = ["create_done"]


def create_done(engine: Engine, name: str = "txmq_done", schema: str | None = None) -> bool:
    """Create the table if it is missing, and verify it; returns whether it was missing.

    Raises:
        ConfigError: Not every database takes a name unquoted.
        DatabaseFailed: The database refused, or does not answer.
        ResourceError: It exists but cannot be used; see :meth:`UniqueKeyTable.verify`.
    """
    done = DoneTable(name, schema)
    try:
        with engine.begin() as connection:
            is_new = not inspect(connection).has_table(name, schema)
            done.metadata.create_all(connection, checkfirst=True)
    except SQLAlchemyError as error:
        raise DatabaseFailed(f"could not create {done.name}: {words(error)}") from error
    guard = UniqueKeyTable(engine, table=name, schema=schema)
    drive(guard.verify_here())  # On a blocking engine it never awaits; an event loop may run here.
    return is_new
