"""Creates the fence in a database, for applications without migrations."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Engine, select, text
from sqlalchemy.exc import SQLAlchemyError

from txmq.databases.dialects import kind_of
from txmq.databases.failures import words
from txmq.errors import DatabaseFailed
from txmq.transaction.resources.fence import Fence
from txmq.transaction.resources.sql import SQLResource

__all__ = ["create_fence"]


def create_fence(engine: Engine, name: str = "txmq_fence", schema: str | None = None) -> bool:
    """Create the missing tables of the fence and verify it; returns whether any was missing.

    Raises:
        ConfigError: The name needs quotes in some database.
        DatabaseFailed: The database refuses, or does not answer.
        ResourceError: The fence exists but is not usable; see :meth:`SQLResource.verify`.
    """
    fence = Fence(name, schema)
    try:
        with engine.begin() as connection:
            fence.metadata.create_all(connection, checkfirst=True)
            is_new = not connection.execute(select(fence.mark.c.version)).all()
            if is_new:
                connection.execute(text(fence.first_mark(kind_of(engine.dialect.name))))
    except SQLAlchemyError as error:
        raise DatabaseFailed(f"{fence.name} could not be made: {words(error)}") from error
    resource = SQLResource(engine, fence=name, schema=schema)
    try:
        with ThreadPoolExecutor(1) as apart:  # The caller's thread may have a running event loop.
            apart.submit(asyncio.run, resource.verify()).result()
    finally:
        resource.close()
    return is_new
