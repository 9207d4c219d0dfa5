"""PostgreSQL's two-phase commit: prepare, find and end prepared transactions.

A prepared transaction belongs to no session. It survives crashes, keeps its locks, and any session
with the privilege can end it by name. So this module verifies every answer.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final, NamedTuple

import psycopg
from sqlalchemy import bindparam, column, func, select, table, text

from txmq.databases import dialects
from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, SessionStatus
from txmq.errors import (
    ConfigError,
    DatabaseFailed,
    FenceUnsafe,
    LimitExceeded,
    OutcomeUnknown,
    ResourceError,
    TransactionBroken,
    TwoPhaseUnavailable,
    UsageError,
)
from txmq.limits import GID_CHARS_MAX
from txmq.transaction.state import LocalTransactionState

__all__ = [
    "Duty",
    "Gid",
    "Prepared",
    "can_name",
    "check_branch",
    "duty",
    "finish",
    "found",
    "gid_of",
    "is_prepared",
    "parse",
    "problems_of",
    "verify",
    "vote",
]

PREFIX: Final = "txmq:"
"""Prepared transactions without this prefix are not ours, and are never touched."""

_XID: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_BRANCH: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_GID: Final = re.compile(r"txmq:([A-Za-z0-9_.:-]+):([A-Za-z0-9_-]{1,32}):([A-Za-z0-9-]{1,36})")


class Gid(NamedTuple):
    """The parts of a prepared transaction's name: all that another process needs to end it."""

    xid: str
    branch: str
    fence: str
    """The identity of the fence that decides."""


class Duty(Enum):
    """What a recovery must do with a prepared transaction."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    ASK = "decide"
    """It is undecided, although its process has had time to decide."""
    WAIT = "wait"
    """It is undecided, and its process may still decide."""
    NONE = "none of ours"


def check_branch(name: str) -> None:
    """Check the name of a branch.

    Raises:
        ConfigError: The name is invalid.
    """
    if not _BRANCH.fullmatch(name):
        raise ConfigError(f"{name!r} names no branch: letters, digits, _ and -, at most 32")


def gid_of(xid: str, branch: str, fence: str) -> str:
    """The name under which a branch is prepared in its database.

    Raises:
        UsageError: The id contains an invalid character.
        LimitExceeded: The name is too long for PostgreSQL.
    """
    if not _XID.fullmatch(xid):
        raise UsageError(f"{xid!r} cannot name a prepared transaction")
    gid = f"{PREFIX}{xid}:{branch}:{fence}"
    if len(gid) > GID_CHARS_MAX:
        raise LimitExceeded("the length of a prepared transaction's name", GID_CHARS_MAX, len(gid))
    return gid


def can_name(xid: str, branch: str, fence: str) -> bool:
    """Whether :func:`gid_of` accepts the id; otherwise the transaction was never prepared."""
    try:
        gid_of(xid, branch, fence)
    except (UsageError, LimitExceeded):
        return False
    return True


def parse(gid: str) -> Gid | None:
    """The parts of a txmq name; ``None`` for any other name."""
    found = _GID.fullmatch(gid)
    return Gid(*found.groups()) if found else None


def duty(decided: LocalTransactionState | None, age_s: float, horizon: float) -> Duty:
    """Decide what a recovery must do.

    Args:
        decided: The fence's decision, if any.
        age_s: How long it has been prepared.
        horizon: The time within which its own process decides.
    """
    if decided is LocalTransactionState.COMMIT:
        return Duty.COMMIT
    if decided is LocalTransactionState.ROLLBACK:
        return Duty.ROLL_BACK
    return Duty.ASK if age_s >= horizon else Duty.WAIT


NO_ROOM: Final = ("53200", "55000")
"""``out_of_memory`` and ``object_not_in_prerequisite_state``; both have other causes too."""
IN_USE: Final = "42710"
"""The name is already prepared, in any database of the server."""

_XACTS = table(
    "pg_prepared_xacts", column("gid"), column("prepared"), column("owner"), column("database")
)
_HERE: Final = _XACTS.c.database == func.current_database()
_IS_PREPARED: Final = select(_XACTS.c.gid).where(_XACTS.c.gid == bindparam("of_gid"), _HERE)
_FOUND: Final = (
    select(
        _XACTS.c.gid,
        text("EXTRACT(EPOCH FROM clock_timestamp() - prepared)"),
        text("CAST(EXTRACT(EPOCH FROM prepared) * 1000 AS BIGINT)"),
        _XACTS.c.owner,
    )
    .where(_HERE)
    .order_by(_XACTS.c.prepared)
)
_ROOM: Final = "SELECT CAST(current_setting('max_prepared_transactions') AS INTEGER)"


class Prepared(NamedTuple):
    """A prepared transaction that has not ended."""

    gid: str
    parts: Gid | None
    """``None`` if the name is not ours."""
    age_s: float
    prepared_ms: int
    owner: str
    """The database user that prepared it; only this user or a superuser can end it."""


def problems_of(adapter: DatabaseAdapter[Any]) -> tuple[type[Exception], ...]:
    """The errors to expect: txmq's, the library's and the driver's."""
    return (ResourceError, *adapter.problems, psycopg.Error)


async def vote(db: DatabaseSession[Any], gid: str) -> None:
    """Prepare a transaction and verify it; any other result is a "no" vote.

    Raises:
        TransactionBroken: The server answered that it rolled back.
        TwoPhaseUnavailable: The server has no free slot for a prepared transaction.
        OutcomeUnknown: Another process has already prepared this name.
        DatabaseFailed: The server reports it as prepared, but does not list it.
        Exception: Whatever the driver raises.
    """
    try:
        answer = await db.prepare(f"PREPARE TRANSACTION '{gid}'")
    except psycopg.Error as error:
        if error.sqlstate in NO_ROOM and "prepared" in str(error):
            raise TwoPhaseUnavailable(
                "this server cannot prepare another transaction: raise "
                f"max_prepared_transactions, or find forgotten ones with `txmq xa list` ({error})"
            ) from error
        if error.sqlstate == IN_USE:
            raise OutcomeUnknown(
                f"{gid} is already prepared: another process runs this transaction ({error})"
            ) from error
        raise
    # PREPARE silently rolls back a failed transaction.
    if answer != "PREPARE TRANSACTION":
        raise TransactionBroken(f"the database answered {answer!r} to the prepare of {gid}")
    # Query in a new transaction and close it, so that no session stays idle in one until the second
    # phase.
    again = await db.begin_again()
    try:
        is_there = bool((await again.execute(_IS_PREPARED, of_gid=gid)).rows)
    finally:
        await again.close()
    if not is_there:
        raise DatabaseFailed(f"the database reported {gid} as prepared, but does not list it")


async def is_prepared(adapter: DatabaseAdapter[Any], gid: str) -> bool:
    """Whether a transaction is prepared in this database.

    Raises:
        Exception: Any error of the adapter's library.
    """
    db = await adapter.open()
    try:
        return bool((await db.execute(_IS_PREPARED, of_gid=gid)).rows)
    finally:
        await db.close()


async def finish(adapter: DatabaseAdapter[Any], gid: str, *, commits: bool) -> bool:
    """End a prepared transaction; false if it has already ended.

    Raises:
        Exception: Any error of the adapter's library; the transaction is still prepared.
    """
    verb = "COMMIT" if commits else "ROLLBACK"
    try:
        await adapter.execute_outside(f"{verb} PREPARED '{gid}'")
    except problems_of(adapter):
        # Another process may have been faster, or only the answer was lost.
        if await is_prepared(adapter, gid):
            raise
        return False
    return True


async def found(adapter: DatabaseAdapter[Any]) -> list[Prepared]:
    """All prepared transactions of this database, oldest first.

    Raises:
        TwoPhaseUnavailable: It prepares no transactions.
        Exception: Any error of the adapter's library.
    """
    db = await adapter.open()
    try:
        await _see_room(db)
        rows = (await db.execute(_FOUND)).rows
    finally:
        await db.close()
    return [
        Prepared(str(gid), parse(str(gid)), float(age_s), int(since_ms), str(owner))
        for gid, age_s, since_ms, owner in rows
    ]


async def verify(adapter: DatabaseAdapter[Any], trial: str) -> None:
    """Verify that a database can take part, by preparing and rolling back a transaction.

    Args:
        adapter: The database.
        trial: A unique name for that transaction.

    Raises:
        TwoPhaseUnavailable: It prepares no transactions.
        FenceUnsafe: Writes persist without a commit, or commits are not durable.
        DatabaseFailed: The database does not answer.
    """
    try:
        await _look(adapter)
        await _try(adapter, trial)
    except ResourceError:
        raise
    except problems_of(adapter) as error:
        raise DatabaseFailed(f"the database did not answer: {error}") from error


async def _look(adapter: DatabaseAdapter[Any]) -> None:
    db = await adapter.open()
    try:
        await _see_room(db)
        values: tuple[object, ...] = ()
        for question in dialects.DURABILITY[adapter.kind]:
            values += tuple((await db.execute(question)).rows[0])
        if (doubt := dialects.doubts(adapter.kind, values)) is not None:
            raise FenceUnsafe(doubt)
        if db.status() is not SessionStatus.OPEN:
            raise FenceUnsafe("writes persist without a commit: switch autocommit off")
    finally:
        await db.close()


async def _see_room(db: DatabaseSession[Any]) -> None:
    if not int((await db.execute(_ROOM)).rows[0][0]):
        raise TwoPhaseUnavailable(
            "max_prepared_transactions is 0: set it in postgresql.conf, at least to the number "
            "of connections, and restart the server"
        )


async def _try(adapter: DatabaseAdapter[Any], trial: str) -> None:
    db = await adapter.open()
    try:
        await db.execute("SELECT 1")
        await vote(db, trial)
    finally:
        await db.close()
    if not await finish(adapter, trial, commits=False):
        raise ResourceError(
            f"{trial} was prepared, and could not be rolled back: is this a pooler over several "
            "servers?"
        )
