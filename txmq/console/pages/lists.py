"""Long lists in pages, sorted by the column that a visitor chose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from markupsafe import Markup

from txmq.console.markup import link
from txmq.console.visits import Visit
from txmq.errors import UsageError
from txmq.limits import CONSOLE_ROWS, CONSOLE_SORTED_MAX
from txmq.ops.queries import for_each

__all__ = ["ListOrder", "ListPage", "list_page", "order_of", "row_page", "sorted_rows"]

T = TypeVar("T")
NAME: Final = "name"
"""The column by which lists are sorted unless the visitor chooses another one."""


class ListPage(NamedTuple, Generic[T]):
    """The rows of one page."""

    rows: list[T]
    number: int
    """From 1."""
    pages: int
    total: int
    """The rows of all pages."""
    search: str
    sort: str = ""
    """See :class:`ListOrder`; empty if the list is sorted by name."""


class ListOrder(NamedTuple):
    """The order of a list, and the links in its head that change it."""

    path: str
    fields: Mapping[str, str]
    """The rest of the address."""
    sort: str
    """A column; with ``-`` in front, its largest value comes first."""
    is_fixed: bool = False
    """Whether the list is too long to be sorted by its figures."""

    def link_to(self, column: str, *, is_number: bool) -> Markup:
        """The address that sorts by a column: the largest number or the first name comes first."""
        first, other = (f"-{column}", column) if is_number else (column, f"-{column}")
        return link(self.path, **self.fields, sort=other if self.sort == first else first)

    def direction(self, column: str) -> str:
        """How the list is sorted by a column, in the words of ``aria-sort``; empty if it is not."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "")


def order_of(visit: Visit, columns: Sequence[str], default: str) -> str:
    """The order that the address names.

    Raises:
        UsageError: The list has no such column.
    """
    sort = visit.text("sort") or default
    if sort.removeprefix("-") not in columns:
        raise UsageError(f"the list is sorted by {', '.join(columns)}, not by {sort!r}")
    return sort


def sorted_rows(rows: list[T], sort: str, value_of: Callable[[T, str], Any]) -> list[T]:
    """Sort rows by a column; rows without a value come last."""
    column = sort.removeprefix("-")
    known = [row for row in rows if value_of(row, column) is not None]
    known.sort(key=lambda row: value_of(row, column), reverse=sort.startswith("-"))
    return known + [row for row in rows if value_of(row, column) is None]


def list_page(names: Iterable[str], number: int, search: str) -> ListPage[str]:
    """The names that contain the text of a search, cut into pages."""
    return _cut(_matching(names, search), number, search, NAME)


async def row_page(
    visit: Visit,
    path: str,
    names: Iterable[str],
    row_of: Callable[[str], Awaitable[dict[str, Any]]],
    figures: Sequence[str],
) -> tuple[ListPage[dict[str, Any]], ListOrder]:
    """A page of rows about names, in the order that the address names.

    The rows of other pages are needed only to sort by a figure.

    Args:
        visit: Has the number of the page, the search and the order.
        path: The path of the list.
        names: All names.
        row_of: Returns the row of a name, with the figures that are known.
        figures: The columns, beside the name.

    Raises:
        UsageError: The list has no such column.
    """
    search, number = visit.text("search"), visit.page_number()
    sort = order_of(visit, (NAME, *figures), NAME)
    found = _matching(names, search)
    is_fixed = len(found) > CONSOLE_SORTED_MAX
    if is_fixed and sort.removeprefix("-") != NAME:
        sort = NAME
    order = ListOrder(path, {"search": search}, sort, is_fixed)
    if sort.removeprefix("-") == NAME:
        cut = _cut(found if sort == NAME else found[::-1], number, search, sort)
        shown = await for_each(cut.rows, row_of)
        return ListPage(shown, cut.number, cut.pages, cut.total, cut.search, cut.sort), order
    rows = sorted_rows(await for_each(found, row_of), sort, dict.get)
    return _cut(rows, number, search, sort), order


def _matching(names: Iterable[str], search: str) -> list[str]:
    wanted = search.casefold()
    return sorted(name for name in names if wanted in name.casefold())


def _cut(rows: list[T], number: int, search: str, sort: str) -> ListPage[T]:
    pages = max(1, -(-len(rows) // CONSOLE_ROWS))
    number = min(number, pages)
    shown = rows[(number - 1) * CONSOLE_ROWS : number * CONSOLE_ROWS]
    return ListPage(shown, number, pages, len(rows), search, "" if sort == NAME else sort)
