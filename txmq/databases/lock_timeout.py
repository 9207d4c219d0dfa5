"""Sessions with a short lock timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from txmq.databases import dialects
from txmq.databases.adapter import DatabaseAdapter, DatabaseSession
from txmq.databases.failures import Failure, failure

__all__ = ["lock_timeout", "open_with_lock_timeout"]


@asynccontextmanager
async def open_with_lock_timeout(
    adapter: DatabaseAdapter[object], wait_ms: int
) -> AsyncIterator[DatabaseSession[object]]:
    """A new session with a short lock timeout; it sees the latest commits."""
    db = await adapter.open()
    try:
        if (level := dialects.ISOLATION.get(adapter.kind)) is not None:
            await db.execute(level)
        async with lock_timeout(adapter, db, wait_ms):
            yield db
    finally:
        await db.close()


@asynccontextmanager
async def lock_timeout(
    adapter: DatabaseAdapter[object], db: DatabaseSession[object], wait_ms: int
) -> AsyncIterator[None]:
    """Set a short lock timeout inside the block, and restore the session's own afterwards."""
    before = await _lock_timeout(adapter, db)
    await db.execute(dialects.set_lock_timeout(adapter.kind, wait_ms))
    try:
        yield
    finally:
        if before is not None:
            await _restore(adapter, db, before)


async def _lock_timeout(
    adapter: DatabaseAdapter[object], db: DatabaseSession[object]
) -> tuple[object, ...] | None:
    question = dialects.LOCK_TIMEOUTS.get(adapter.kind)
    return None if question is None else (await db.execute(question)).rows[0]


async def _restore(
    adapter: DatabaseAdapter[object], db: DatabaseSession[object], before: tuple[object, ...]
) -> None:
    try:
        await db.execute(dialects.restore_lock_timeout(adapter.kind, before))
    except adapter.problems as error:
        # The block's error says more, and a lost connection is not used again.
        if failure(error) is not Failure.LOST:
            raise
