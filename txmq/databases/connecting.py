"""What gives connections, by its shape: pools of psycopg's, and Django."""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["AsyncPool", "DjangoConnection", "Pool"]

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
        """Which of the databases in the settings."""
        ...

    @property
    def vendor(self) -> str:
        """The family of databases."""
        ...
