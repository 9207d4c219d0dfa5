"""Engines of a bank's database, and the tables in it; PostgreSQL or SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from examples.bank_transfer.books import CAPITAL, Account, Base, Entry, Kind
from txmq import RelaySettings
from txmq.databases.failures import words
from txmq.errors import ConfigError, DatabaseFailed
from txmq.idempotent.schema import create_done
from txmq.outbox.schema import create_outbox
from txmq.transaction.resources.schema import create_fence

__all__ = [
    "RELAYING",
    "Opening",
    "async_engine",
    "create_books",
    "driven",
    "engine",
    "open_accounts",
]

DRIVERS: Final = {
    "postgresql": ("postgresql+psycopg", "postgresql+psycopg"),
    "postgres": ("postgresql+psycopg", "postgresql+psycopg"),
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
}
"""By the kind of database: the driver that blocks, and the one of asyncio."""

POOL_S: Final = 20.0
"""How long a transfer waits for a connection; then it is not made."""
POSTGRES: Final = {"options": "-c lock_timeout=3s"}
"""Who waits for an account that a killed program has left prepared must not keep its connection
until there is none left for whoever ends that."""

RELAYING: Final = RelaySettings(lease_s=5.0, poll_s=0.1)
"""A bank that was killed is back soon, and takes over from itself. SQLite tells nobody that there
is something to be sent, so it is looked at often."""

SQLITE: Final = (
    "PRAGMA journal_mode = WAL",  # Who reads keeps nobody from writing.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 20000",
)


@dataclass(frozen=True, slots=True)
class Opening:
    """An account as it is opened."""

    number: str
    holder: str
    balance: int
    currency: str = "CNY"
    is_open: bool = True


def engine(url: str) -> Engine:
    """One that blocks.

    Raises:
        ConfigError: The database is of another kind.
    """
    made = create_engine(driven(url))
    _prepare(made)
    return made


def async_engine(url: str, size: int = 16) -> AsyncEngine:
    """One of asyncio, with so many connections; SQLite, which has one writer at a time, has one:
    those who wait for it wait in a line, and nobody is passed over.

    Raises:
        ConfigError: The database is of another kind.
    """
    address = driven(url, is_async=True)
    if address.get_backend_name() == "sqlite":
        size = 1
    # A PostgreSQL that was restarted has left dead connections behind.
    made = create_async_engine(
        address, pool_size=size, max_overflow=0, pool_timeout=POOL_S, pool_pre_ping=True,
        connect_args=POSTGRES if address.get_backend_name() == "postgresql" else {},
    )  # fmt: skip
    _prepare(made.sync_engine)
    return made


def create_books(url: str) -> None:
    """Make what is missing of a bank's tables, and of those that txmq stands on.

    Raises:
        TxmqError: The database does not answer, or has other tables under these names.
    """
    made = engine(url)
    try:
        try:
            Base.metadata.create_all(made)
        except SQLAlchemyError as error:
            raise DatabaseFailed(f"no books can be made in {made.url!r}: {words(error)}") from error
        create_fence(made, "txmq_fence", None)
        create_done(made)
        create_outbox(made, "txmq_outbox", None)
    finally:
        made.dispose()


def open_accounts(url: str, accounts: Iterable[Opening], now_ms: int) -> None:
    """Open accounts; what they begin with is the bank's capital."""
    made = engine(url)
    try:
        with Session(made) as session, session.begin():
            for account in accounts:
                session.add(Account(
                    number=account.number, holder=account.holder, currency=account.currency,
                    balance=account.balance, is_open=account.is_open,
                ))  # fmt: skip
                if account.balance:
                    session.add_all(
                        Entry(
                            transfer=None, kind=Kind.OPENING, account=name, amount=amount,
                            currency=account.currency, booked_ms=now_ms,
                        )
                        for name, amount in (
                            (account.number, account.balance),
                            (CAPITAL, -account.balance),
                        )
                    )  # fmt: skip
    finally:
        made.dispose()


def driven(url: str, *, is_async: bool = False) -> URL:
    """The URL with the driver that is used here.

    Raises:
        ConfigError: The database is of another kind, or that is no URL.
    """
    try:
        given = make_url(url)
    except (ArgumentError, ValueError):  # The latter for a port that is no number.
        raise ConfigError(
            "that is no URL of a database; write postgresql://user:password@host/name, or "
            "sqlite:///file"
        ) from None  # There may be a password in what was said.
    kind = given.get_backend_name()
    if kind not in DRIVERS:
        raise ConfigError(f"the banks keep their books in PostgreSQL or SQLite, not in {kind}")
    return given.set(drivername=DRIVERS[kind][is_async])


def _prepare(made: Engine) -> None:
    if made.dialect.name != "sqlite":
        return

    @event.listens_for(made, "connect")
    def connected(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        for pragma in SQLITE:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(made, "invalidate")
    def given_up(connection: Any, _: object, error: BaseException | None) -> None:
        # Where whoever ran a statement was cancelled. A connection that is closed while a statement
        # of it is open keeps its lock, until nobody holds that statement any more.
        if isinstance(error, asyncio.CancelledError):
            with suppress(sqlite3.Error):
                connection.rollback()
