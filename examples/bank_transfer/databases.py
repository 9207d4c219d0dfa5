"""Engines for a bank's database, and its tables; PostgreSQL or SQLite."""

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
from examples.bank_transfer.texts import words
from txmq import RelaySettings, create_fence, create_outbox
from txmq.errors import ConfigError, DatabaseFailed
from txmq.idempotent import create_done

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
"""By the kind of database: the blocking driver, and the one for asyncio."""

POOL_S: Final = 20.0
"""How long a transfer waits for a connection before it fails."""
POSTGRES: Final = {"options": "-c lock_timeout=3s"}
"""A killed program may leave an account locked by a prepared transaction. Transfers that wait for
it must give up their connections, so that the recovery gets one."""

RELAYING: Final = RelaySettings(lease=5.0, poll_interval=0.1)
"""A killed bank is back soon, and takes over from itself. SQLite does not notify the relay of new
rows, so the relay polls often."""

SQLITE: Final = (
    "PRAGMA journal_mode = WAL",  # Readers do not block writers.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 20000",
)


@dataclass(frozen=True, slots=True)
class Opening:
    """An account to open."""

    number: str
    holder: str
    balance: int
    currency: str = "CNY"
    is_open: bool = True


def engine(url: str) -> Engine:
    """A blocking engine.

    Raises:
        ConfigError: The database is of another kind.
    """
    made = create_engine(driven(url))
    _prepare(made)
    return made


def async_engine(url: str, size: int = 16) -> AsyncEngine:
    """An engine for asyncio, with a number of connections. SQLite has one writer at a time, so it
    gets one connection: transfers wait for it in order, and none is passed over.

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
    """Create the missing tables of a bank, and those of txmq.

    Raises:
        TxmqError: The database does not answer, or has other tables under these names.
    """
    made = engine(url)
    try:
        try:
            Base.metadata.create_all(made)
        except SQLAlchemyError as error:
            raise DatabaseFailed(
                f"the books cannot be created in {made.url!r}: {words(error)}"
            ) from error
        create_fence(made, "txmq_fence", None)
        create_done(made)
        create_outbox(made)
    finally:
        made.dispose()


def open_accounts(url: str, accounts: Iterable[Opening], now_ms: int) -> None:
    """Open accounts; their first balance comes from the bank's capital."""
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
    """The URL with the driver of the banks.

    Raises:
        ConfigError: The database is of another kind, or the URL is invalid.
    """
    try:
        given = make_url(url)
    except (ArgumentError, ValueError):  # The latter for a port that is not a number.
        raise ConfigError(
            "the URL is not one of a database; write postgresql://user:password@host/name, or "
            "sqlite:///file"
        ) from None  # The original error may quote a password.
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
        # The task of a statement was cancelled. A connection that is closed with an open statement
        # keeps its lock until that statement is freed.
        if isinstance(error, asyncio.CancelledError):
            with suppress(sqlite3.Error):
                connection.rollback()
