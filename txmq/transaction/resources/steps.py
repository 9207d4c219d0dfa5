"""The operations on a fence beside a local transaction's claim: check, verify, clean.

Every insert is one statement, and the first insert decides. No function holds a lock when it
returns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from txmq.databases import dialects
from txmq.databases.adapter import DatabaseAdapter, open_with_lock_timeout
from txmq.databases.failures import Failure, failure, words
from txmq.databases.tables import create_command
from txmq.errors import (
    DatabaseFailed,
    FenceElsewhere,
    FenceMissing,
    FenceOutdated,
    FenceUnsafe,
    ResourceError,
)
from txmq.transaction.resources.fence import (
    COMMITTED,
    FENCE_VERSION,
    TRIAL,
    Fence,
)
from txmq.transaction.resources.local import Claim, FenceRow, claim, no_row

__all__ = ["check", "clean", "verify"]

CLOCKS_APART_MS: Final = 600_000
"""How far the clock of a producer may be ahead of the database's before a row is removed too
early."""

ANNOUNCE_WAIT_MS: Final = 1_000
"""In MySQL no session passes one that waits for the mark: all local transactions would wait."""

TRIAL_WAIT_MS: Final = 10_000
"""Only a migration keeps a trial waiting for its lock for long."""

SPENT_WAIT_MS: Final = 5
"""The lock timeout of each check in a batch that has already waited: a row still locked is in
progress."""

_ALWAYS_MS: Final = 2**62


async def check(
    fence: Fence, adapter: DatabaseAdapter[object], theirs: Sequence[Claim], wait_ms: int
) -> list[FenceRow | Exception]:
    """Settle undecided transactions; returns for each its final row in the fence, or an error.

    Several share a database transaction. If one of them is locked or fails, they are settled one by
    one, so that none affects another.
    """
    problems: tuple[type[Exception], ...] = (ResourceError, *adapter.problems)
    if len(theirs) > 1 and _are_alike(theirs):
        try:
            return await _check_together(fence, adapter, theirs, wait_ms)
        except problems as error:
            if failure(error) is Failure.LOST:
                return [error] * len(theirs)
            if failure(error) is Failure.LOCKED:
                wait_ms = min(wait_ms, SPENT_WAIT_MS)
    found: list[FenceRow | Exception] = []
    for one in theirs:
        try:
            found.append(await _check_alone(fence, adapter, one, wait_ms))
        except problems as error:
            found.append(error)
            if failure(error) is Failure.LOST:
                break
    return found + found[-1:] * (len(theirs) - len(found))


def _are_alike(theirs: Sequence[Claim]) -> bool:
    """Whether one statement is enough: the claims have one fence, and each transaction one
    claim.
    """
    is_one_fence = len({one.identity for one in theirs}) == 1
    return is_one_fence and len({one.xid for one in theirs}) == len(set(theirs))


async def _check_alone(
    fence: Fence, adapter: DatabaseAdapter[object], theirs: Claim, wait_ms: int
) -> FenceRow:
    async with open_with_lock_timeout(adapter, wait_ms) as db:
        found = await claim(fence, adapter, db, theirs)
        if found is not None:
            return found
        await db.commit()
        return FenceRow(theirs.outcome, theirs.owner)


async def _check_together(
    fence: Fence, adapter: DatabaseAdapter[object], theirs: Sequence[Claim], wait_ms: int
) -> list[FenceRow | Exception]:
    # Always in the same order, so that two checks of the same transactions cannot deadlock.
    wanted = sorted(set(theirs))
    rows = [{"xid": one.xid, "owner": one.owner, "born_ms": one.born_ms} for one in wanted]
    claims = json.dumps(rows)
    async with open_with_lock_timeout(adapter, wait_ms) as db:
        await db.execute(
            fence.claims_of_checks[adapter.kind], claims=claims, known=wanted[0].identity
        )
        there = (await db.execute(fence.outcomes[adapter.kind], claims=claims)).rows
        found: dict[str, FenceRow | Exception] = {row[0]: FenceRow(*row[1:]) for row in there}
        for one in wanted:
            if one.xid not in found:
                found[one.xid] = await no_row(fence, db, one)
        # This includes our own rows; answers are sent only after the commit.
        await db.commit()
    return [found[one.xid] for one in theirs]


async def verify(fence: Fence, adapter: DatabaseAdapter[object], trial: str) -> str:
    """Verify that the fence exists and works; returns its identity.

    Args:
        fence: The tables.
        adapter: The database.
        trial: A unique id for the trial rows.

    Raises:
        FenceMissing: The table does not exist.
        FenceOutdated: The fence has another version.
        FenceElsewhere: Two sessions see two different fences.
        FenceUnsafe: Commits are not durable, or writes persist without a commit.
        DatabaseFailed: The database does not answer.
    """
    try:
        identity = await _look(fence, adapter)
        await _try_rollback(
            fence, adapter, Claim(TRIAL + trial, "", COMMITTED, _ALWAYS_MS, identity)
        )
    except adapter.problems as error:
        raise _refusal(fence, error) from error
    return identity


async def _look(fence: Fence, adapter: DatabaseAdapter[object]) -> str:
    db = await adapter.open()
    try:
        marks = (await db.execute(fence.about)).rows
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
        await db.execute(fence.shape)
        values: tuple[object, ...] = ()
        for question in dialects.DURABILITY[adapter.kind]:
            values += tuple((await db.execute(question)).rows[0])
        if (doubt := dialects.doubts(adapter.kind, values)) is not None:
            raise FenceUnsafe(doubt)
        return str(identity)
    finally:
        await db.close()


async def _try_rollback(fence: Fence, adapter: DatabaseAdapter[object], trial: Claim) -> None:
    """Verify that a rollback works: it does not with autocommit, nor in MyISAM tables."""
    # Write as a check does: with statement-based logging MySQL refuses writes in READ COMMITTED.
    async with open_with_lock_timeout(adapter, TRIAL_WAIT_MS) as db:
        if await claim(fence, adapter, db, trial) is not None:
            raise FenceUnsafe("this driver does not say how many rows an INSERT has put in")
    db = await adapter.open()
    try:
        if (await db.execute(fence.outcome, of_xid=trial.xid)).rows:
            await db.execute(fence.remove, of_xid=trial.xid)
            await db.commit()
            raise FenceUnsafe(
                f"rolled-back rows stay in {fence.name}: switch autocommit off, and keep the "
                "table in an engine that has transactions"
            )
        if [mark[1] for mark in (await db.execute(fence.about)).rows] != [trial.identity]:
            raise FenceElsewhere(f"two sessions see two different tables {fence.name}")
    finally:
        await db.close()


def _refusal(fence: Fence, problem: Exception) -> ResourceError:
    found = failure(problem)
    if found is Failure.MISSING:
        return FenceMissing(
            f"table {fence.name} does not exist: run `{create_command('fence', fence.table)}`, "
            f"or have a migration run what `txmq schema sql` prints ({words(problem)})"
        )
    if found is Failure.CHANGED:
        return FenceOutdated(
            f"{fence.name} has other columns than this version uses ({words(problem)})"
        )
    if found is Failure.REFUSED:
        return FenceUnsafe(
            f"the database forbids what {fence.name} needs, which is SELECT and INSERT on it, and "
            f"UPDATE and DELETE to clean it: {words(problem)}"
        )
    return DatabaseFailed(f"the database did not answer: {words(problem)}")


async def clean(
    fence: Fence, adapter: DatabaseAdapter[object], identity: str, older_than_ms: int, batch: int
) -> int:
    """Remove the rows that the last call announced, and announce those of ``older_than_ms``.

    After the announcement, rows of older transactions can no longer be inserted: neither by a
    check, which would presume a rollback, nor by a local transaction that stalled. Rows are removed
    one call later, when every statement that began before the announcement has ended.

    Raises:
        FenceElsewhere: The fence is not the one that was verified.
        DatabaseFailed: The database does not answer, or a lock is held; call again.
    """
    try:
        announced_ms = await _announce(fence, adapter, identity, older_than_ms)
        removed, last = 0, batch
        while last >= batch:
            last = await _remove(fence, adapter, announced_ms - CLOCKS_APART_MS, batch)
            removed += last
    except adapter.problems as error:
        raise DatabaseFailed(f"{fence.name} could not be cleaned now: {words(error)}") from error
    return removed


async def _announce(
    fence: Fence, adapter: DatabaseAdapter[object], identity: str, older_than_ms: int
) -> int:
    """Announce a new limit; returns the previous one."""
    async with open_with_lock_timeout(adapter, ANNOUNCE_WAIT_MS) as db:
        marks = (await db.execute(fence.about)).rows
        if [mark[1] for mark in marks] != [identity]:
            raise FenceElsewhere(f"{fence.name} is not the one that was verified at start")
        now_ms = (await db.execute(f"SELECT {dialects.NOW_MS[adapter.kind]}")).rows[0][0]
        before_ms = int(now_ms) - older_than_ms
        await db.execute(fence.announce, known=identity, before_ms=before_ms)
        await db.commit()
        return int(marks[0][2])


async def _remove(
    fence: Fence, adapter: DatabaseAdapter[object], before_ms: int, batch: int
) -> int:
    old = {"before_ms": before_ms, "batch": batch}
    async with open_with_lock_timeout(adapter, ANNOUNCE_WAIT_MS) as db:
        if adapter.kind != "mysql":
            gone = (await db.execute(fence.remove_old, **old)).changed
        else:
            # A DELETE of many rows locks each row that it scans, including those of running local
            # transactions. It would wait for them, and others would wait for it.
            gone = 0
            for (xid,) in (await db.execute(fence.old, **old)).rows:
                gone += (await db.execute(fence.remove, of_xid=xid)).changed
        await db.commit()
        return gone
