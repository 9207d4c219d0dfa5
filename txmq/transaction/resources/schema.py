"""Makes the fence in a database, for those who have no migrations of their own."""

from __future__ import annotations

import asyncio

from sqlalchemy import Engine, select, text
from sqlalchemy.exc import SQLAlchemyError

from txmq.databases.dialects import kind_of
from txmq.databases.failures import words
from txmq.errors import DatabaseFailed
from txmq.transaction.resources.fence import Fence
from txmq.transaction.resources.sql import SQLResource

__all__ = ["create_fence"]


def create_fence(engine: Engine, name: str, schema: str | None) -> bool:
    """Make what is missing of the fence, and verify it; returns whether anything was missing.

    Raises:
        ConfigError: A name is none that every database takes.
        DatabaseFailed: The database refused, or does not answer.
        ResourceError: It is there, and cannot be used; see :meth:`SQLResource.verify`.
    """
    fence = Fence(name, schema)
    try:
        with engine.begin() as connection:
            fence.metadata.create_all(connection, checkfirst=True)
            is_new = not connection.execute(select(fence.mark.c.version)).all()
            if is_new:
                connection.execute(text(fence.first_mark(kind_of(engine.dialect.name))))
    except SQLAlchemyError as problem:
        raise DatabaseFailed(f"{fence.name} could not be made: {words(problem)}") from problem
    resource = SQLResource(engine, fence=name, schema=schema)
    try:
        asyncio.run(resource.verify())
    finally:
        resource.close()
    return is_new
