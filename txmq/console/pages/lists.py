"""Long lists in pages, and questions about many things at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from txmq.limits import CONSOLE_ROWS

__all__ = ["ListPage", "ask_together", "list_page"]

ASKED_TOGETHER_MAX: Final = 8
"""Requests of one page that wait for brokers at the same time."""

T = TypeVar("T")
R = TypeVar("R")


class ListPage(NamedTuple, Generic[T]):
    """The rows of one page."""

    rows: Sequence[T]
    number: int
    """From 1."""
    pages: int
    total: int
    """The rows of all pages."""
    search: str


def list_page(names: Iterable[str], number: int, search: str) -> ListPage[str]:
    """The names that contain the text of a search, cut into pages."""
    wanted = search.casefold()
    found = sorted(name for name in names if wanted in name.casefold())
    pages = max(1, -(-len(found) // CONSOLE_ROWS))
    number = min(number, pages)
    rows = found[(number - 1) * CONSOLE_ROWS : number * CONSOLE_ROWS]
    return ListPage(rows, number, pages, len(found), search)


async def ask_together(things: Iterable[T], question: Callable[[T], Awaitable[R]]) -> list[R]:
    """The answers to a question about several things, in their order.

    Raises:
        TxmqError: The first error of a question; the others are cancelled.
    """
    limit = asyncio.Semaphore(ASKED_TOGETHER_MAX)

    async def ask_one(thing: T) -> R:
        async with limit:
            return await question(thing)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask_one(thing)) for thing in things]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]
