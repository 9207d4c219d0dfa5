"""Makes the fence in a database, for those who have no migrations of their own."""

from __future__ import annotations

import asyncio

from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from txmq.databases.dialects import kind_of
from txmq.databases.failures import words
from txmq.errors import ConfigError, DatabaseFailed
from txmq.transaction.resources.fence import Fence
from txmq.transaction.resources.sql import SQLResource

__all__ = ["create_fence", "engine_of"]


def engine_of(url: str) -> Engine:
    """A blocking engine for a database, whatever driver an application uses for it.

    Raises:
        ConfigError: That is no URL, of no database that can have a fence, or its driver is missing.
    """
    try:
        parsed = make_url(url)
        kind_of(parsed.get_backend_name())
        return create_engine(_blocking(parsed))
    except ArgumentError as problem:
        raise ConfigError(f"{problem}; a URL such as postgresql://user@host/database") from problem
    except ModuleNotFoundError as problem:
        raise ConfigError(f"the database's driver {problem.name} is not installed") from problem


def _blocking(url: URL) -> URL:
    backend = url.get_backend_name()
    if backend == "postgresql" and url.drivername in {"postgresql", "postgresql+asyncpg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.get_dialect().is_async and backend == "sqlite":
        return url.set(drivername="sqlite")
    if url.get_dialect().is_async and not url.drivername.endswith("+psycopg"):
        raise ConfigError(f"{url.drivername} does not block; name a driver that does")
    return url


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
