"""What all lists of the commands can do: filter, sort, page, and repeat themselves."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Annotated, Any, Final, NamedTuple

import typer

from txmq.cli.common import FAILED, WRONGLY_CALLED, AsJson, fail
from txmq.cli.output import as_json, clear, flush, note, say, table
from txmq.ops.known_names import nearest
from txmq.ops.rows import ListColumn
from txmq.settings.units import parse_duration
from txmq.text import quantity

__all__ = ["Every", "Listing", "Watch", "listed", "watched"]

Watch = Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")]
Every = Annotated[str, typer.Option("--every", metavar="DURATION", help="How often, with --watch.")]
EVERY_DEFAULT: Final = "2s"
EVERY_MIN_S: Final = 0.05

Match = Annotated[
    str, typer.Option("--match", metavar="TEXT", help="Only rows with this text in a column.")
]
SortBy = Annotated[
    str,
    typer.Option(
        "--sort", metavar="COLUMN", help="Sort by this column; -COLUMN begins with the largest."
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="The most rows of a page.")]
Page = Annotated[int, typer.Option("--page", min=1, help="The page, with --limit.")]


class Listing(NamedTuple):
    """The rows of a list, and what people should know about them."""

    rows: Sequence[Any]
    """Mappings or objects."""
    remarks: Sequence[str] = ()
    """Lines to print below the table, for people."""
    warnings: Sequence[str] = ()
    """Lines for standard error, such as brokers that do not answer."""
    code: int = 0
    """The exit code, for scripts that watch something."""
    empty: str = ""
    """The line for people if there is no row, instead of the command's."""
    as_json: Callable[[Sequence[Any]], object] | None = None
    """Makes the value for programs of the chosen rows, if that is not their list."""
    for_people: Callable[[], None] | None = None
    """Prints the rows for people, if they are not a table."""


class _View(NamedTuple):
    columns: Sequence[ListColumn]
    match: str
    sort: str
    limit: int | None
    page: int

    def chosen(self, rows: Iterable[Any]) -> list[Any]:
        """The rows that match, in order; all pages."""
        found = [row for row in rows if not self.match or self._matches(row)]
        if not self.sort:
            return found
        column = self._sort_column()
        # Values that are missing come last, whichever end the list begins with.
        known = [row for row in found if column.value_in(row) is not None]
        known.sort(key=column.sort_key, reverse=self.sort.startswith("-"))
        return known + [row for row in found if column.value_in(row) is None]

    def _matches(self, row: Any) -> bool:
        wanted = self.match.casefold()
        return any(
            wanted in str(column.show(column.value_in(row))).casefold() for column in self.columns
        )

    def _sort_column(self) -> ListColumn:
        wanted = self.sort.removeprefix("-").casefold()
        for column in self.columns:
            if wanted in (column.heading.casefold(), column.key.casefold()):
                return column
        names = [column.heading for column in self.columns]
        text = f"there is no column {wanted!r}{nearest(wanted, names)}"
        return fail(f"{text}; the columns are {', '.join(names)}", WRONGLY_CALLED)

    def cut(self, rows: list[Any]) -> list[Any]:
        """The rows of the wanted page."""
        if self.limit is None:
            return rows
        return rows[(self.page - 1) * self.limit : self.page * self.limit]

    def rest(self, count: int) -> str:
        """A line about the other pages; empty if there are none."""
        if self.limit is None or count <= self.limit:
            return ""
        pages = math.ceil(count / self.limit)
        more = f"; the next one: --page {self.page + 1}" if self.page < pages else ""
        return f"page {self.page} of {pages}, {quantity(count, 'row')}{more}"


def listed(
    columns: Sequence[ListColumn], *, empty: str
) -> Callable[[Callable[..., Listing]], Callable[..., None]]:
    """Make a command of a function that returns rows.

    The command has the function's own options and those of all lists. A function with an option
    ``limit`` of its own reads no more rows than that, so its command has no pages.

    Args:
        columns: The columns that people see; JSON has whole rows.
        empty: The line for people if there is no row.
    """

    def decorate(collect: Callable[..., Listing]) -> Callable[..., None]:
        own = inspect.signature(collect, eval_str=True)
        limits = "limit" in own.parameters

        @wraps(collect)
        def command(
            *words: Any, match: str, sort: str, watch: bool, every: str, json: bool, **options: Any
        ) -> None:
            limit, page = (None, 1) if limits else (options.pop("limit"), options.pop("page"))
            view = _View(columns, match, sort, limit, page)

            def show(found: Listing) -> None:
                _print(found, view, empty, json=json)
                if found.code and not watch:
                    raise typer.Exit(found.code)

            watched(lambda: collect(*words, **options), show, watch=watch, every=every)

        more = [option for option in _PARAMETERS if not (limits and option.name in _PAGES)]
        parameters = [*own.parameters.values(), *more]
        command.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=None
        )
        command.__annotations__ = {name.name: name.annotation for name in parameters}
        return command

    return decorate


def _parameters(
    *,
    match: Match = "",
    sort: SortBy = "",
    limit: Limit = None,
    page: Page = 1,
    watch: Watch = False,
    every: Every = EVERY_DEFAULT,
    json: AsJson = False,
) -> None:
    """The options of all lists; typer reads them from here."""


_PAGES: Final = frozenset(("limit", "page"))
_PARAMETERS: Final = tuple(inspect.signature(_parameters, eval_str=True).parameters.values())


def _print(found: Listing, view: _View, empty: str, *, json: bool) -> None:
    chosen = view.chosen(found.rows)
    shown = view.cut(chosen)
    if json:
        as_json(found.as_json(shown) if found.as_json else shown)
    elif found.for_people is not None and chosen:
        found.for_people()
    elif not chosen:
        say("no row matches" if found.rows else found.empty or empty)
    else:
        columns = view.columns
        cells = [[column.show(column.value_in(row)) for column in columns] for row in shown]
        table([column.heading for column in columns], cells)
        for line in (view.rest(len(chosen)), *found.remarks):
            if line:
                say(line)
    for line in found.warnings:
        note(f"txmq: {line}")


def watched(
    collect: Callable[[], Any],
    show: Callable[[Any], None],
    *,
    watch: bool,
    every: str,
    clears: bool = True,
) -> None:
    """Show something once, or again and again until Ctrl-C.

    A round that fails prints the reason, and the next round tries again: a broker that restarts
    must not end a watch.

    Args:
        collect: Reads what to show.
        show: Prints it.
        watch: Whether to repeat it.
        every: The pause between two rounds.
        clears: Whether each round replaces the one before on the screen.

    Raises:
        typer.Exit: It failed, or was called wrongly.
    """
    if not watch:
        show(collect())
        return
    pause_s = pause_of(every)
    try:
        while True:
            try:
                found = collect()
                if clears:
                    clear()
                show(found)
            except typer.Exit as ended:
                if ended.exit_code != FAILED:
                    raise
            flush()
            time.sleep(pause_s)
    except KeyboardInterrupt:
        return


def pause_of(every: str) -> float:
    """The seconds between two rounds.

    Raises:
        typer.Exit: The text is not a duration, or is too short.
    """
    try:
        pause_s = float(parse_duration(every))
    except ValueError as error:
        fail(f"--every takes {error}, not {every!r}", WRONGLY_CALLED)
    if pause_s < EVERY_MIN_S:
        fail(f"--every takes {EVERY_MIN_S * 1000:.0f}ms or more, not {every!r}", WRONGLY_CALLED)
    return pause_s
