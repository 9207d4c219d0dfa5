"""What is done with a fence: claim it, check, verify, clean. One text for all doors.

Every insert is one statement, and who inserts first has decided. Nothing here keeps a lock when it
returns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from txmq.errors import (
    DatabaseFailed,
    FenceElsewhere,
    FenceMissing,
    FenceOutdated,
    FenceUnsafe,
    ResourceError,
    TransactionExpired,
)
from txmq.transaction.resources import dialects
from txmq.transaction.resources.door import Borrowed, Door
from txmq.transaction.resources.failures import Failure, failure
from txmq.transaction.resources.fence import (
    COMMITTED,
    FENCE_VERSION,
    TRIAL,
    Fence,
)

__all__ = ["Claim", "Row", "check", "claim", "clean", "verify"]

CLOCKS_APART_MS: Final = 600_000
"""How far the clock of a producer may be ahead of the database's before a row is removed too
early."""

ANNOUNCE_WAIT_MS: Final = 1_000
"""MySQL lets nobody pass who waits for the mark: all local transactions would wait as long."""

_ALWAYS_MS: Final = 2**62


class Claim(NamedTuple):
    """Who inserts which outcome of which transaction."""

    xid: str
    owner: str
    """The producer group."""
    outcome: int
    born_ms: int
    """When the transaction began, by its producer's clock."""
    identity: str
    """The fence it belongs in."""


class Row(NamedTuple):
    """A row that was there."""

    outcome: int
    owner: str


async def claim(
    fence: Fence, door: Door[object], borrowed: Borrowed[object], ours: Claim
) -> Row | None:
    """Insert a row; nothing is returned if it is in, else the row that was there first.

    Raises:
        FenceElsewhere: The session belongs to another fence.
        TransactionExpired: A row of so old a transaction may have been removed.
        Exception: Whatever the session's library raises; the row is not in.
    """
    values = {"of_xid": ours.xid, "as_outcome": ours.outcome, "by_owner": ours.owner}
    try:
        put = await borrowed.ask(
            fence.claims[door.kind], **values, known=ours.identity, born_ms=ours.born_ms
        )
    except door.problems as problem:
        if failure(problem) is not Failure.DUPLICATE:
            raise
    else:
        if put.changed == 1:
            return None
    # MySQL shows an old snapshot unless it is asked for the row as it is now.
    look = fence.outcome_now if door.kind == "mysql" else fence.outcome
    found = (await borrowed.ask(look, of_xid=ours.xid)).rows
    if found:
        return Row(*found[0])
    raise await _no_row(fence, borrowed, ours)


async def _no_row(fence: Fence, borrowed: Borrowed[object], ours: Claim) -> ResourceError:
    marks = (await borrowed.ask(fence.about)).rows
    if [mark[1] for mark in marks] != [ours.identity]:
        return FenceElsewhere(
            f"this session's {fence.name} is not the one that was verified at start: it is in "
            "another database or schema, or was made anew"
        )
    if marks[0][2] > ours.born_ms:
        return TransactionExpired(
            f"transaction {ours.xid} is older than what {fence.name} still remembers"
        )
    return DatabaseFailed(f"{fence.name} neither took nor shows transaction {ours.xid}")


async def check(fence: Fence, door: Door[object], theirs: Claim, wait_ms: int) -> Row:
    """Settle a transaction, if nobody else has: the row that is in the fence now, and stays.

    Raises:
        ResourceError: As for :func:`claim`.
        Exception: Whatever the door's library raises, also when a lock is not released in time.
    """
    async with _impatient(door, wait_ms) as borrowed:
        found = await claim(fence, door, borrowed, theirs)
        if found is not None:
            return found
        await borrowed.commit()
        return Row(theirs.outcome, theirs.owner)


@asynccontextmanager
async def _impatient(door: Door[object], wait_ms: int) -> AsyncIterator[Borrowed[object]]:
    """A session that waits for locks only shortly; for the next user it is patient again."""
    borrowed = await door.open()
    try:
        if (level := dialects.ISOLATION.get(door.kind)) is not None:
            await borrowed.ask(level)
        waited = await _waited_ms(door, borrowed)
        await borrowed.ask(dialects.patience(door.kind, wait_ms))
        try:
            yield borrowed
        finally:
            if waited is not None:
                await _be_patient(door, borrowed, waited)
    finally:
        await borrowed.close()


async def _waited_ms(door: Door[object], borrowed: Borrowed[object]) -> int | None:
    question = dialects.PATIENCE.get(door.kind)
    if question is None:
        return None
    return int((await borrowed.ask(question)).rows[0][0]) * (1000 if door.kind == "mysql" else 1)


async def _be_patient(door: Door[object], borrowed: Borrowed[object], waited_ms: int) -> None:
    try:
        await borrowed.ask(dialects.patience(door.kind, waited_ms))
    except door.problems as problem:
        # What led here says more, and a connection that takes no order is not used again.
        if failure(problem) is not Failure.LOST:
            raise


async def verify(fence: Fence, door: Door[object], trial: str) -> str:
    """See that the fence is there and holds; returns its identity.

    Args:
        fence: The tables.
        door: Where.
        trial: Something nobody else uses.

    Raises:
        FenceMissing: There is no such table.
        FenceOutdated: It is of another version.
        FenceElsewhere: Two sessions saw two different ones.
        FenceUnsafe: What is written is not kept, or is kept without a commit.
        DatabaseFailed: The database does not answer.
    """
    try:
        identity = await _look(fence, door)
        await _try_rollback(fence, door, Claim(TRIAL + trial, "", COMMITTED, _ALWAYS_MS, identity))
    except door.problems as problem:
        raise _refusal(fence, problem) from problem
    return identity


async def _look(fence: Fence, door: Door[object]) -> str:
    borrowed = await door.open()
    try:
        marks = (await borrowed.ask(fence.about)).rows
        if len(marks) != 1:
            raise FenceMissing(
                f"{fence.mark.fullname} has {len(marks)} rows, not one: run the statements of "
                "`txmq schema sql` that insert into it"
            )
        version, identity, _ = marks[0]
        if version != FENCE_VERSION:
            raise FenceOutdated(
                f"{fence.name} is of version {version}, and this is txmq for version "
                f"{FENCE_VERSION}: all services and the table change together"
            )
        await borrowed.ask(fence.shape)
        said: tuple[object, ...] = ()
        for question in dialects.DURABILITY[door.kind]:
            said += tuple((await borrowed.ask(question)).rows[0])
        if (doubt := dialects.doubts(door.kind, said)) is not None:
            raise FenceUnsafe(doubt)
        return str(identity)
    finally:
        await borrowed.close()


async def _try_rollback(fence: Fence, door: Door[object], trial: Claim) -> None:
    """What is rolled back must be gone: it is not with autocommit, nor in tables of MyISAM."""
    borrowed = await door.open()
    try:
        if await claim(fence, door, borrowed, trial) is not None:
            raise FenceUnsafe("this driver does not say how many rows an INSERT has put in")
    finally:
        await borrowed.close()
    borrowed = await door.open()
    try:
        if (await borrowed.ask(fence.outcome, of_xid=trial.xid)).rows:
            await borrowed.ask(fence.remove, of_xid=trial.xid)
            await borrowed.commit()
            raise FenceUnsafe(
                f"what is rolled back stays in {fence.name}: switch autocommit off, and keep the "
                "table in an engine that has transactions"
            )
        if [mark[1] for mark in (await borrowed.ask(fence.about)).rows] != [trial.identity]:
            raise FenceElsewhere(f"two sessions see two different tables {fence.name}")
    finally:
        await borrowed.close()


def _refusal(fence: Fence, problem: Exception) -> ResourceError:
    found = failure(problem)
    if found is Failure.MISSING:
        return FenceMissing(
            f"there is no table {fence.name} here: run `txmq schema create --database URL`, or "
            f"have a migration run what `txmq schema sql` prints ({problem})"
        )
    if found is Failure.CHANGED:
        return FenceOutdated(f"{fence.name} has other columns than this version uses ({problem})")
    if found is Failure.REFUSED:
        return FenceUnsafe(
            f"the database forbids what {fence.name} needs, which is SELECT and INSERT on it, and "
            f"UPDATE and DELETE to clean it: {problem}"
        )
    return DatabaseFailed(f"the database did not answer: {problem}")


async def clean(
    fence: Fence, door: Door[object], identity: str, older_than_ms: int, batch: int
) -> int:
    """Remove the rows that the last call announced, and announce those of ``older_than_ms``.

    From then on nobody inserts a row of a transaction that is older: not a check, which would
    presume a rollback, and not a local transaction that was asleep all the time. Rows are removed
    one call later, when no statement is under way any more that began before the announcement.

    Raises:
        FenceElsewhere: The fence is not the one that was verified.
        DatabaseFailed: The database does not answer, or somebody keeps a lock; call again.
    """
    try:
        announced_ms = await _announce(fence, door, identity, older_than_ms)
        removed, last = 0, batch
        while last >= batch:
            last = await _remove(fence, door, announced_ms - CLOCKS_APART_MS, batch)
            removed += last
    except door.problems as problem:
        raise DatabaseFailed(f"{fence.name} could not be cleaned now: {problem}") from problem
    return removed


async def _announce(fence: Fence, door: Door[object], identity: str, older_than_ms: int) -> int:
    """Returns what had been announced before."""
    async with _impatient(door, ANNOUNCE_WAIT_MS) as borrowed:
        marks = (await borrowed.ask(fence.about)).rows
        if [mark[1] for mark in marks] != [identity]:
            raise FenceElsewhere(f"{fence.name} is not the one that was verified at start")
        now_ms = (await borrowed.ask(f"SELECT {dialects.NOW_MS[door.kind]}")).rows[0][0]
        before_ms = int(now_ms) - older_than_ms
        await borrowed.ask(fence.announce, known=identity, before_ms=before_ms)
        await borrowed.commit()
        return int(marks[0][2])


async def _remove(fence: Fence, door: Door[object], before_ms: int, batch: int) -> int:
    borrowed = await door.open()
    try:
        gone = await borrowed.ask(fence.remove_old, before_ms=before_ms, batch=batch)
        await borrowed.commit()
        return gone.changed
    finally:
        await borrowed.close()
