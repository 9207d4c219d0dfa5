"""Long lists in pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from txmq.limits import CONSOLE_ROWS

__all__ = ["ListPage", "list_page"]

T = TypeVar("T")


class ListPage(NamedTuple, Generic[T]):
    """The rows of one page."""

    rows: list[T]
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
