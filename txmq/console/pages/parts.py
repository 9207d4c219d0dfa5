"""Parts that several pages share: a long list, a broker to choose, a body, a change's preview."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from markupsafe import Markup

from txmq.client.values import BrokerInfo
from txmq.console.body_view import body_view
from txmq.console.markup import link
from txmq.console.visits import PageContent, Visit, render
from txmq.errors import ConnectFailed, NoPermission, RequestNotSupported, UsageError
from txmq.limits import CONSOLE_ROWS, CONSOLE_SORTED_MAX
from txmq.ops.queries import for_each

__all__ = [
    "BrokerChoice",
    "ChangePreview",
    "ListOrder",
    "ListPage",
    "body_values",
    "choose_broker",
    "first_of",
    "known_brokers",
    "list_page",
    "order_of",
    "require_operator",
    "row_page",
    "sorted_rows",
]

T = TypeVar("T")
NAME: Final = "name"
"""The column by which lists are sorted unless the visitor chooses another one."""

# Rights and brokers


async def require_operator(visit: Visit) -> None:
    """Check that the visitor's account is an administrator of all brokers of the cluster.

    The console reads outboxes and reports with its own rights, so it asks the brokers whether the
    visitor is an administrator, with a request that only administrators may send. Visitors without
    an account pass: they use this machine, and no broker has accounts.

    Raises:
        NoPermission: The account is not an administrator, or the brokers cannot say whether it is.
        TransportError: A broker does not answer.
    """
    if visit.session.credentials is None:
        return
    try:
        await visit.admin.transactions(limit=1, cluster=visit.cluster)
    except NoPermission as error:
        raise NoPermission(
            f"outboxes and reports are for administrators: {str(error).strip()}"
        ) from error
    except RequestNotSupported as error:
        raise NoPermission(
            "these brokers cannot say whether an account is an administrator, so outboxes and "
            "reports are shown only by a console on loopback without accounts"
        ) from error


class BrokerChoice(NamedTuple):
    """One broker, and all brokers of the cluster."""

    name: str
    names: list[str]


async def known_brokers(visit: Visit) -> list[BrokerInfo]:
    """The brokers of the console's cluster.

    Raises:
        TransportError: No name server answers.
    """
    known = await visit.admin.cluster()
    return [broker for broker in known if visit.cluster in {None, broker.cluster}]


async def choose_broker(visit: Visit) -> BrokerChoice:
    """The broker in the address of a page, or the first one.

    Raises:
        UsageError: The cluster has no such broker.
        ConnectFailed: The name server knows no broker yet.
        TransportError: No name server answers.
    """
    names = [broker.name for broker in await known_brokers(visit)]
    wanted = visit.text("broker")
    if not names:
        raise ConnectFailed("the name server knows no broker yet; start one with: txmq serve")
    if wanted and wanted not in names:
        raise UsageError(f"{wanted!r} is not a broker of this cluster; choose {' or '.join(names)}")
    return BrokerChoice(wanted or names[0], names)


# Bodies


def body_values(visit: Visit, body: bytes, path: str, **fields: object) -> dict[str, Any]:
    """A body in the form that the address names, and the links of a page to its other forms."""
    forms = ("json", "text", "hex")
    return {
        "body": body_view(body, visit.text("as")),
        "body_link": {form: link(path, **fields, **{"as": form}) for form in forms},
    }


# Changes


def first_of(names: Sequence[str], most: int) -> str:
    """The first names of a list, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePreview:
    """The preview of one change."""

    title: str
    eyebrow: str
    """What the change is about."""
    sentences: Sequence[str]
    """What will happen."""
    action: Markup
    """The address of the form, with the names of what it changes."""
    button: str
    back: Markup | str
    """The page to return to without a change."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What the change concerns, by label."""
    ticks: Mapping[str, str] = field(default_factory=dict)
    """Checkboxes: their labels by field name."""
    wants_reason: bool = False
    reason_bytes: int = 0
    """The maximum bytes of the reason, if a broker limits them."""
    repeated: str = ""
    """What the visitor must type again to confirm; empty if nothing."""
    repeated_name: str = ""
    """What ``repeated`` is, such as ``name of the topic``."""
    refusal: str = ""
    """Why the change cannot be made; the page then has no form."""
    is_bad: bool = False
    """Whether the change destroys something."""

    def content(self) -> PageContent:
        """The page that shows it."""
        return render("preview.html", title=self.title, preview=self)


# Lists


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

    Rows of other pages are computed only to sort by a figure.

    Args:
        visit: Has the number of the page, the search and the order.
        path: The path of the list.
        names: All names.
        row_of: Returns the row of a name, with the figures that are known.
        figures: The columns other than the name.

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
