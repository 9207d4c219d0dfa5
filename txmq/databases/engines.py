"""Create the engine for the database URL of a command."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.event import listen
from sqlalchemy.exc import ArgumentError

from txmq.databases.dialects import kind_of
from txmq.errors import ConfigError

__all__ = ["engine_of"]

_INSTALLS: Final = {
    "MySQLdb": "pip install mysqlclient, or pip install pymysql and write mysql+pymysql://",
    "psycopg": "pip install 'txmq[sql]'",
    "psycopg2": "pip install psycopg2-binary, or write postgresql+psycopg://",
}
"""For drivers whose package has another name, or that have a better alternative."""


def engine_of(url: str, *, limit_s: int | None = None) -> Engine:
    """A blocking engine for a database URL, even if the URL names an asyncio driver.

    Args:
        url: The URL.
        limit_s: The time limit for connecting and for each statement, where the database has one;
            without it the database decides. An engine with a limit checks its connections before
            each use, so it survives a restart of the database.

    Raises:
        ConfigError: The URL is invalid, its database cannot have a fence, or its driver is missing.
    """
    try:
        parsed = make_url(url)
        kind_of(parsed.get_backend_name())
        blocking = _blocking(parsed)
        return create_engine(blocking) if limit_s is None else _limited(blocking, limit_s)
    except ArgumentError as error:
        raise ConfigError(f"{error}; use a URL such as postgresql://user@host/database") from error
    except ModuleNotFoundError as error:
        name = error.name or "it names"
        install = _INSTALLS.get(name, f"pip install {name}")
        raise ConfigError(f"the database's driver {name} is not installed: {install}") from error


def _limited(url: URL, limit_s: int) -> Engine:
    kind = kind_of(url.get_backend_name())
    # Settings in the URL take precedence.
    names = {"sqlite": "timeout", "mysql": "connect_timeout", "postgresql": "connect_timeout"}
    if url.drivername == "mysql+mysqlconnector":
        names["mysql"] = "connection_timeout"
    given = {} if names[kind] in url.query else {names[kind]: limit_s}
    engine = create_engine(url, connect_args=given, pool_pre_ping=True, pool_timeout=limit_s)
    limits = {
        "postgresql": f"SET statement_timeout = {limit_s * 1000}",
        "mysql": f"SET SESSION max_execution_time = {limit_s * 1000}",
    }
    statement = limits.get(kind)
    if statement is not None:

        def set_limit(connection: Any, _record: Any) -> None:
            # MariaDB does not have this setting.
            with suppress(Exception), connection.cursor() as cursor:
                cursor.execute(statement)
            connection.commit()

        listen(engine, "connect", set_limit)
    return engine


def _blocking(url: URL) -> URL:
    backend = url.get_backend_name()
    if backend == "postgresql" and url.drivername in {"postgresql", "postgresql+asyncpg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.get_dialect().is_async and backend == "sqlite":
        return url.set(drivername="sqlite")
    if url.get_dialect().is_async and not url.drivername.endswith("+psycopg"):
        raise ConfigError(f"{url.drivername} is an asyncio driver; name a blocking one")
    return url
