"""Classifies database exceptions. Pure: imports no driver.

Drivers differ in what their exceptions carry. PostgreSQL's have an SQLSTATE, SQLite's the name of a
result code, MySQL's a number. Some MySQL drivers add an SQLSTATE, but it is the same for a
duplicate key and for any other constraint. SQLAlchemy wraps them and keeps the original.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

__all__ = ["Failure", "failure", "has_unread_rows", "is_settled", "words"]


class Failure(Enum):
    """The kind of failure of a statement or transaction."""

    RETRY = "retry"
    """A serialization failure or a deadlock: the transaction left no trace, and a retry may
    succeed."""
    LOCKED = "locked"
    """A lock was not released in time."""
    DUPLICATE = "duplicate"
    """A row with this key exists."""
    REFUSED = "refused"
    """A rule of the database or the application forbids it; a retry will fail again."""
    MISSING = "missing"
    """The table does not exist."""
    CHANGED = "changed"
    """The table exists, but the column does not."""
    LOST = "lost"
    """The connection was lost or not available: the outcome of the last statement is unknown."""
    OTHER = "other"
    """Any other exception."""


_SQLSTATES: Final = (
    ("40001", Failure.RETRY),
    ("40P01", Failure.RETRY),
    ("40003", Failure.LOST),
    ("40", Failure.REFUSED),
    ("55P03", Failure.LOCKED),
    ("23505", Failure.DUPLICATE),
    ("42P01", Failure.MISSING),
    ("3F000", Failure.MISSING),
    ("42703", Failure.CHANGED),
    ("22", Failure.REFUSED),
    ("23", Failure.REFUSED),
    ("44", Failure.REFUSED),
    ("42501", Failure.REFUSED),
    ("25006", Failure.REFUSED),
    ("25P02", Failure.REFUSED),
    ("P0", Failure.REFUSED),
    ("08", Failure.LOST),
    ("57P", Failure.LOST),
)
"""The first matching prefix counts."""

_MYSQL: Final = {
    1213: Failure.RETRY,
    1020: Failure.RETRY,  # MariaDB: the record changed since it was last read.
    3101: Failure.RETRY,  # Group replication rejected the commit.
    1205: Failure.LOCKED,
    3572: Failure.LOCKED,
    1062: Failure.DUPLICATE,
    1146: Failure.MISSING,
    1054: Failure.CHANGED,
    **dict.fromkeys((1048, 1406, 1264, 1451, 1452, 3819, 4025, 1142, 1290, 1792), Failure.REFUSED),
    1665: Failure.REFUSED,  # READ COMMITTED, with a binary log of statements.
    **dict.fromkeys((2002, 2003, 2006, 2013, 2055, 1053, 1927, 4031), Failure.LOST),
}

_SQLITE: Final = (
    ("SQLITE_CONSTRAINT_PRIMARYKEY", Failure.DUPLICATE),
    ("SQLITE_CONSTRAINT_UNIQUE", Failure.DUPLICATE),
    ("SQLITE_CONSTRAINT", Failure.REFUSED),
    ("SQLITE_BUSY_SNAPSHOT", Failure.RETRY),
    ("SQLITE_BUSY", Failure.LOCKED),
    ("SQLITE_LOCKED", Failure.LOCKED),
    ("SQLITE_READONLY", Failure.REFUSED),
    ("SQLITE_TOOBIG", Failure.REFUSED),
    ("SQLITE_MISMATCH", Failure.REFUSED),
    ("SQLITE_IOERR", Failure.LOST),
)

_SETTLED: Final = {Failure.RETRY, Failure.LOCKED, Failure.DUPLICATE, Failure.REFUSED}


def failure(problem: BaseException) -> Failure:
    """Classify an exception of a driver, bare or wrapped by SQLAlchemy."""
    seen: BaseException | None = problem
    while (inner := getattr(seen, "orig", None)) is not None:
        if getattr(seen, "connection_invalidated", False):
            return Failure.LOST
        seen = inner
    # SQLAlchemy's asyncio adapters keep the driver's error as the cause.
    for cause in (seen, getattr(seen, "__cause__", None)):
        if (found := _by_mark(cause)) is not None:
            return found
    if _named(seen, "TimeoutError"):
        return Failure.LOST  # Includes SQLAlchemy's pool timeout.
    if isinstance(seen, OSError | EOFError):
        return Failure.LOST if isinstance(seen, ConnectionError | EOFError) else Failure.OTHER
    # A number is meaningful only if SQLAlchemy says that the database raised the error.
    number = None if seen is problem else _number(seen)
    return Failure.OTHER if number is None else _MYSQL.get(number, Failure.OTHER)


def words(problem: BaseException) -> str:
    """An exception's text in one line, without the statement and links that SQLAlchemy adds.

    The full exception is the cause of the error that carries this text.
    """
    seen = problem
    while (inner := getattr(seen, "orig", None)) is not None:
        seen = inner
    return str(seen).strip().partition("\n")[0] or type(seen).__name__


def is_settled(problem: BaseException) -> bool:
    """Whether a COMMIT that failed with this error certainly did not commit.

    Only a database's refusal of the commit is certain. A lost connection, a shutdown, a full disk
    and any unknown error leave the outcome open.
    """
    return failure(problem) in _SETTLED


def has_unread_rows(problem: BaseException) -> bool:
    """Whether SQLite refused to end a savepoint or a transaction because not all rows of a writing
    statement were read. The transaction stays open.
    """
    return "SQL statements in progress" in words(problem)


def _by_mark(problem: BaseException | None) -> Failure | None:
    state = getattr(problem, "sqlstate", None) or getattr(problem, "pgcode", None)
    if isinstance(state, str):
        if (number := _number(problem)) is not None:
            return _MYSQL.get(number, Failure.OTHER)
        return next((found for code, found in _SQLSTATES if state.startswith(code)), Failure.OTHER)
    name = getattr(problem, "sqlite_errorname", None)
    if isinstance(name, str):
        return _by_sqlite(name, str(problem))
    # psycopg has no SQLSTATE for errors that the client detected: no server sent one.
    if type(problem).__module__.startswith("psycopg"):
        return Failure.LOST if _named(problem, "OperationalError", "InterfaceError") else None
    return None


def _number(problem: BaseException | None) -> int | None:
    """MySQL's error number: most drivers put it in ``args``, one in an attribute."""
    if isinstance(problem, OSError):
        return None
    first = problem.args[0] if problem is not None and problem.args else None
    found = first if isinstance(first, int) else getattr(problem, "errno", None)
    return found if isinstance(found, int) else None


def _by_sqlite(name: str, text: str) -> Failure:
    if name == "SQLITE_ERROR":
        if re.search(r"no such table|unknown database", text):
            return Failure.MISSING
        is_changed = re.search(r"no such column|has no column named", text)
        return Failure.CHANGED if is_changed else Failure.OTHER
    return next((found for code, found in _SQLITE if name.startswith(code)), Failure.OTHER)


def _named(problem: BaseException | None, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(problem).__mro__)
