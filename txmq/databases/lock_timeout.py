"""Sessions with a short lock timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from txmq.databases import dialects
from txmq.databases.adapter import DatabaseAdapter, DatabaseSession
from txmq.databases.failures import Failure, failure

__all__ = ["impatient", "waiting"]


@asynccontextmanager
async def impatient(
    adapter: DatabaseAdapter[object], wait_ms: int
) -> AsyncIterator[DatabaseSession[object]]:
    """A new session with a short lock timeout; it sees the latest commits."""
    db = await adapter.open()
    try:
        if (level := dialects.ISOLATION.get(adapter.kind)) is not None:
            await db.execute(level)
        async with waiting(adapter, db, wait_ms):
            yield db
    finally:
        await db.close()


@asynccontextmanager
async def waiting(
    adapter: DatabaseAdapter[object], db: DatabaseSession[object], wait_ms: int
) -> AsyncIterator[None]:
    """Set a short lock timeout inside the block, and restore the session's own afterwards."""
    waited = await _waited(adapter, db)
    await db.execute(dialects.patience(adapter.kind, wait_ms))
    try:
        yield
    finally:
        if waited is not None:
            await _be_patient(adapter, db, waited)


async def _waited(
    adapter: DatabaseAdapter[object], db: DatabaseSession[object]
) -> tuple[object, ...] | None:
    question = dialects.PATIENCE.get(adapter.kind)
    return None if question is None else (await db.execute(question)).rows[0]


async def _be_patient(
    adapter: DatabaseAdapter[object], db: DatabaseSession[object], waited: tuple[object, ...]
) -> None:
    try:
        await db.execute(dialects.patience_again(adapter.kind, waited))
    except adapter.problems as error:
        # The block's error says more, and a lost connection is not used again.
        if failure(error) is not Failure.LOST:
            raise
