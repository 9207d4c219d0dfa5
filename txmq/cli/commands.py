"""Turns functions into commands: groups of options, ``--json``, lists, and ``--watch``."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

import typer

from txmq.cli.common import FAILED, WRONGLY_CALLED, AsJson, duration_of, fail
from txmq.cli.output import as_json, clear, flush, note, say, table
from txmq.ops.known_names import nearest
from txmq.ops.rows import ListColumn
from txmq.text import quantity

__all__ = ["Answer", "Commands", "Every", "Listing", "Watching", "listed"]

F = TypeVar("F", bound=Callable[..., Any])

Watch = Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")]
Every = Annotated[str, typer.Option("--every", metavar="DURATION", help="How often, with --watch.")]
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


class Answer(NamedTuple):
    """The result of a command, which gets the option ``--json``."""

    value: object
    """The value for programs."""
    text: str | Callable[[], None]
    """The line for people, or a function that prints their lines."""
    code: int = 0
    """The exit code."""

    def show(self, *, json: bool) -> None:
        """Print it.

        Raises:
            typer.Exit: Its exit code is not 0.
        """
        if json:
            as_json(self.value)
        elif isinstance(self.text, str):
            say(self.text)
        else:
            self.text()
        if self.code:
            raise typer.Exit(self.code)


class Commands(typer.Typer):
    """A group of commands.

    A parameter whose type is a named tuple stands for one option for each of its fields. A function
    that returns an :class:`Answer` gets ``--json``, and its answer is printed.
    """

    def __init__(self, text: str = "", **settings: Any) -> None:
        if text:
            settings |= {"help": text, "no_args_is_help": True}
        super().__init__(**settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """See typer."""
        return _register(super().command(name, **settings))

    def callback(self, **settings: Any) -> Callable[[F], F]:
        """See typer."""
        return _register(super().callback(**settings))


def _register(register: Callable[[Any], Any]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        own = signature.parameters
        returned = signature.return_annotation
        if Answer not in (returned, *get_args(returned)):
            register(_expanded(function, own.values()))
            return function

        @wraps(function)
        def command(*words: Any, json: bool, **options: Any) -> None:
            if "json" in own:
                options["json"] = json
            answer = function(*words, **options)
            if answer is not None:
                answer.show(json=json)

        parameters = [*own.values()] if "json" in own else [*own.values(), _AS_JSON]
        register(_expanded(command, parameters))
        return function

    return decorate


def _expanded(function: Callable[..., Any], parameters: Iterable[Parameter]) -> Callable[..., Any]:
    """A function with an option for each field of the named tuples among its parameters."""
    flat: list[Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in parameters:
        kind: Any = parameter.annotation
        if not hasattr(kind, "_field_defaults"):
            flat.append(parameter)
            continue
        fields = get_type_hints(kind, include_extras=True)
        has_defaults = parameter.default is not Parameter.empty
        defaults = parameter.default._asdict() if has_defaults else kind._field_defaults
        groups[parameter.name] = kind, list(fields)
        flat += [
            _option(name, annotation, defaults.get(name, Parameter.empty))
            for name, annotation in fields.items()
        ]

    @wraps(function)
    def command(*words: Any, **options: Any) -> Any:
        for name, (kind, fields) in groups.items():
            options[name] = kind(*[options.pop(field) for field in fields])
        return function(*words, **options)

    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return command


def _option(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_AS_JSON: Final = _option("json", AsJson, default=False)


class Watching(NamedTuple):
    """Whether a command repeats its output, and how often."""

    watch: Watch = False
    every: Every = "2s"

    def show(
        self, collect: Callable[[], Any], show: Callable[[Any], None], *, clears: bool = True
    ) -> None:
        """Show something once, or again and again until Ctrl-C.

        A round that fails prints the reason, and the next round tries again: a broker that restarts
        must not end a watch.

        Args:
            collect: Reads what to show.
            show: Prints it.
            clears: Whether each round replaces the previous one on the screen.

        Raises:
            typer.Exit: It failed, or was called wrongly.
        """
        if not self.watch:
            show(collect())
            return
        pause_s = duration_of(self.every, "--every")
        if pause_s < EVERY_MIN_S:
            least = f"{EVERY_MIN_S * 1000:.0f}ms"
            fail(f"--every takes {least} or more, not {self.every!r}", WRONGLY_CALLED)
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
    """Makes the value for programs from the chosen rows, if that is not simply their list."""
    for_people: Callable[[], None] | None = None
    """Prints the rows for people, if they are not a table."""


class _Order(NamedTuple):
    """Which rows to show, and in which order."""

    match: Match = ""
    sort: SortBy = ""

    def chosen(self, rows: Iterable[Any], columns: Sequence[ListColumn]) -> list[Any]:
        """The rows that match, sorted."""
        found = [row for row in rows if not self.match or self._matches(row, columns)]
        if not self.sort:
            return found
        column = self._sort_column(columns)
        # Missing values come last in either order.
        known = [row for row in found if column.value_in(row) is not None]
        known.sort(key=column.sort_key, reverse=self.sort.startswith("-"))
        return known + [row for row in found if column.value_in(row) is None]

    def _matches(self, row: Any, columns: Sequence[ListColumn]) -> bool:
        wanted = self.match.casefold()
        return any(wanted in str(column.cell(row)).casefold() for column in columns)

    def _sort_column(self, columns: Sequence[ListColumn]) -> ListColumn:
        wanted = self.sort.removeprefix("-").casefold()
        for column in columns:
            if wanted in (column.heading.casefold(), column.key.casefold()):
                return column
        names = [column.heading for column in columns]
        text = f"there is no column {wanted!r}{nearest(wanted, names)}"
        return fail(f"{text}; the columns are {', '.join(names)}", WRONGLY_CALLED)


class _Paging(NamedTuple):
    limit: Limit = None
    page: Page = 1

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


_WHOLE: Final = _Paging()


def listed(
    columns: Iterable[ListColumn | str], *, empty: str
) -> Callable[[Callable[..., Listing]], Callable[..., None]]:
    """Turn a function that returns rows into a command.

    The command has the function's own options and the common options of lists. A function with its
    own option ``limit`` reads no more rows than that, so its command has no pages.

    Args:
        columns: The columns that people see; JSON has whole rows. A text is the heading of a plain
            column.
        empty: The line for people if there is no row.
    """
    shown = [ListColumn(column) if isinstance(column, str) else column for column in columns]

    def decorate(collect: Callable[..., Listing]) -> Callable[..., None]:
        own = inspect.signature(collect, eval_str=True).parameters
        groups: dict[str, type] = {"order": _Order, "paging": _Paging, "watching": Watching}
        if "limit" in own:
            del groups["paging"]

        @wraps(collect)
        def command(
            *words: Any,
            order: _Order,
            watching: Watching,
            json: bool,
            paging: _Paging = _WHOLE,
            **options: Any,
        ) -> None:
            def show(found: Listing) -> None:
                chosen = order.chosen(found.rows, shown)
                _print(found, chosen, shown, paging, empty, json=json)
                if found.code and not watching.watch:
                    raise typer.Exit(found.code)

            watching.show(lambda: collect(*words, **options), show)

        more = [_option(name, kind) for name, kind in groups.items()]
        return _expanded(command, [*own.values(), *more, _AS_JSON])

    return decorate


def _print(
    found: Listing,
    chosen: list[Any],
    columns: Sequence[ListColumn],
    paging: _Paging,
    empty: str,
    *,
    json: bool,
) -> None:
    rows = paging.cut(chosen)
    if json:
        as_json(found.as_json(rows) if found.as_json else rows)
    elif not chosen:
        say("no row matches" if found.rows else found.empty or empty)
    elif found.for_people is not None:
        found.for_people()
    else:
        cells = [[column.cell(row) for column in columns] for row in rows]
        table([column.heading for column in columns], cells)
        for line in filter(None, (paging.rest(len(chosen)), *found.remarks)):
            say(line)
    for line in found.warnings:
        note(f"txmq: {line}")
