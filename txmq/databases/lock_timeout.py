"""Sessions with a short lock timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from txmq.databases import dialects
from txmq.databases.door import Borrowed, Door
from txmq.databases.failures import Failure, failure

__all__ = ["impatient", "waiting"]


@asynccontextmanager
async def impatient(door: Door[object], wait_ms: int) -> AsyncIterator[Borrowed[object]]:
    """A new session with a short lock timeout; it sees the latest commits."""
    borrowed = await door.open()
    try:
        if (level := dialects.ISOLATION.get(door.kind)) is not None:
            await borrowed.ask(level)
        async with waiting(door, borrowed, wait_ms):
            yield borrowed
    finally:
        await borrowed.close()


@asynccontextmanager
async def waiting(
    door: Door[object], borrowed: Borrowed[object], wait_ms: int
) -> AsyncIterator[None]:
    """Set a short lock timeout inside the block, and restore the session's own afterwards."""
    waited = await _waited(door, borrowed)
    await borrowed.ask(dialects.patience(door.kind, wait_ms))
    try:
        yield
    finally:
        if waited is not None:
            await _be_patient(door, borrowed, waited)


async def _waited(door: Door[object], borrowed: Borrowed[object]) -> tuple[object, ...] | None:
    question = dialects.PATIENCE.get(door.kind)
    return None if question is None else (await borrowed.ask(question)).rows[0]


async def _be_patient(
    door: Door[object], borrowed: Borrowed[object], waited: tuple[object, ...]
) -> None:
    try:
        await borrowed.ask(dialects.patience_again(door.kind, waited))
    except door.problems as error:
        # The block's error says more, and a lost connection is not used again.
        if failure(error) is not Failure.LOST:
            raise
