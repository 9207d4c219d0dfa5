"""Several queries to a cluster at once, and the words for one that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from txmq.errors import ConnectFailed, Effect, NoPermission, TransportError, TxmqError
from txmq.remoting.pool import NO_SERVER

__all__ = ["ASKED_TOGETHER_MAX", "NO_ACCOUNT", "for_each", "in_doubt", "sentence_of"]

NO_ACCOUNT: Final = "no accesskey is configured"

T = TypeVar("T")
K = TypeVar("K")

ASKED_TOGETHER_MAX: Final = 16
"""The maximum number of topics, groups or consumers that are queried at the same time."""


async def for_each(
    things: list[K],
    query: Callable[[K], Awaitable[T]],
    *,
    counted: Callable[[], object] = lambda: None,
) -> list[T]:
    """Query a cluster about each thing, several at a time; the results are in order.

    Args:
        things: The things to ask about.
        query: Asks about one thing.
        counted: Called after each thing.
    """
    limit = asyncio.Semaphore(ASKED_TOGETHER_MAX)

    async def one(thing: K) -> T:
        async with limit:
            found = await query(thing)
        counted()
        return found

    return await asyncio.gather(*map(one, things))


def sentence_of(error: TxmqError) -> str:
    """The text of an error with its notes, and what to do about a missing server or account."""
    # Brokers begin some remarks with a space.
    text = "; ".join([str(error).strip(), *getattr(error, "__notes__", ())])
    if isinstance(error, ConnectFailed) and NO_SERVER in text:
        # `txmq serve` starts a broker together with its name server.
        return f"{text}; start a broker with: txmq serve"
    if isinstance(error, NoPermission) and NO_ACCOUNT in text.lower():
        return f"{text}; name yours with TXMQ_ACCESS_KEY and TXMQ_SECRET_KEY"
    return text


def in_doubt(error: TxmqError) -> str:
    """A clause for a failed change that took effect, or may have; otherwise empty."""
    if error.effect is Effect.APPLIED:
        return " (it took effect all the same)"
    # A refusal is an answer; only a missing answer leaves the effect in doubt.
    if error.effect is Effect.MAYBE and isinstance(error, TransportError):
        return " (it may have taken effect all the same)"
    return ""
