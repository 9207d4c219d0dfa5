"""The sources of database connections, and the adapter for each."""

from __future__ import annotations

import sys
from typing import Any, Protocol, TypeVar

from txmq.databases.adapter import DatabaseAdapter
from txmq.databases.alchemy import alchemy_adapter
from txmq.databases.postgres import psycopg_adapter
from txmq.errors import ConfigError

__all__ = ["AsyncPool", "DjangoConnection", "Pool", "adapter_of"]

S = TypeVar("S")


class Pool(Protocol[S]):
    """A pool of psycopg connections."""

    def getconn(self) -> S:
        """Take one."""
        ...

    def putconn(self, conn: S) -> None:
        """Give it back."""
        ...


class AsyncPool(Protocol[S]):
    """A pool of psycopg connections for asyncio."""

    async def getconn(self) -> S:
        """Take one."""
        ...

    async def putconn(self, conn: S) -> None:
        """Give it back."""
        ...


class DjangoConnection(Protocol):
    """``django.db.connection``, or one of ``django.db.connections``."""

    @property
    def alias(self) -> str:
        """The key of the database in Django's settings."""
        ...

    @property
    def vendor(self) -> str:
        """Django's name for the family of the database."""
        ...


def adapter_of(source: Any) -> DatabaseAdapter[Any]:
    """The adapter of a source.

    Raises:
        ConfigError: The source is not supported, or its sessions are not usable.
    """
    adapter = alchemy_adapter(source) or psycopg_adapter(source) or _django_adapter(source)
    if adapter is None:
        raise ConfigError(
            f"{type(source).__name__} gives no sessions: give an engine, a sessionmaker, a pool of "
            "psycopg's, or a function that connects"
        )
    return adapter


def _django_adapter(source: Any) -> DatabaseAdapter[Any] | None:
    # A Django connection exists only if Django, which is optional, is imported.
    if "django.db" not in sys.modules:
        return None
    from txmq.databases.django import django_adapter

    return django_adapter(source)
