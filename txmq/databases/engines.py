"""Create the engine for the database URL of a command."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
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


def engine_of(url: str) -> Engine:
    """A blocking engine for a database URL, even if the URL names an asyncio driver.

    Raises:
        ConfigError: The URL is invalid, its database cannot have a fence, or its driver is missing.
    """
    try:
        parsed = make_url(url)
        kind_of(parsed.get_backend_name())
        return create_engine(_blocking(parsed))
    except ArgumentError as error:
        raise ConfigError(f"{error}; a URL such as postgresql://user@host/database") from error
    except ModuleNotFoundError as error:
        name = error.name or "it names"
        install = _INSTALLS.get(name, f"pip install {name}")
        raise ConfigError(f"the database's driver {name} is not installed: {install}") from error


def _blocking(url: URL) -> URL:
    backend = url.get_backend_name()
    if backend == "postgresql" and url.drivername in {"postgresql", "postgresql+asyncpg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.get_dialect().is_async and backend == "sqlite":
        return url.set(drivername="sqlite")
    if url.get_dialect().is_async and not url.drivername.endswith("+psycopg"):
        raise ConfigError(f"{url.drivername} does not block; name a driver that does")
    return url
