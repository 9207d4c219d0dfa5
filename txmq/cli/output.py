"""The output of commands: tables for people, one line of JSON for programs.

No other command module writes to the standard streams, so every name, key and reason from the wire
passes through :func:`txmq.text.printable`.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from txmq.message import ReceivedMessage
from txmq.text import printable, printable_json

__all__ = [
    "as_json",
    "body_fields",
    "clear",
    "flush",
    "listing",
    "message_fields",
    "message_listing",
    "note",
    "note_lines",
    "progress_bar",
    "say",
    "say_lines",
    "say_now",
    "shortened",
    "table",
]

WIDTH: Final = 1000
"""Columns in a file or a pipe, where no line may be cut to the width of a screen."""
_CELL_CHARS_MAX: Final = 64


def shortened(text: str) -> str:
    """A text without its middle if it has more than 64 characters: ids often differ at the end.

    In a file or a pipe, one long cell would lengthen all lines of its table.
    """
    return text if len(text) <= _CELL_CHARS_MAX else f"{text[:40]}…{text[-20:]}"


def as_json(value: object) -> None:
    """Print a value as one line."""
    sys.stdout.write(printable_json(msgspec.json.encode(value).decode()) + "\n")


def say(text: str) -> None:
    """Print one line; control characters in it are escaped."""
    sys.stdout.write(printable(text) + "\n")


def say_lines(text: str) -> None:
    """Print a text of several lines, such as a page of the documentation."""
    for line in text.split("\n"):
        say(line)


def note(text: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def note_lines(text: str) -> None:
    """Print a text of several lines, such as a traceback, to standard error."""
    for line in text.split("\n"):
        note(line)


def say_now(text: str) -> None:
    """Print one line and flush it: a program may wait for it at a pipe."""
    say(text)
    flush()


def flush() -> None:
    """Send the printed lines now."""
    sys.stdout.flush()


def clear() -> None:
    """Clear the screen, if the output is a terminal: the next lines replace those shown before."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[2J")


def table(columns: Iterable[str], rows: Iterable[Iterable[object]], *, empty: str = "") -> None:
    """Print rows under headings; numbers are right-aligned.

    If the table is too wide without breaking words, each row is printed as several lines instead.

    Args:
        columns: The headings.
        rows: The rows.
        empty: The line to print if there are no rows; without it, only the headings are printed.
    """
    headings = list(columns)
    kept = [list(row) for row in rows]
    if empty and not kept:
        say(empty)
        return
    cells = [[printable(str(cell)) for cell in row] for row in kept]
    # A bracketed word in a name must not become a style, nor ":name:" an emoji.
    console = Console(width=_width(), markup=False, highlight=False, emoji=False)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        is_numeric = bool(kept) and all(isinstance(row[index], int) for row in kept)
        drawn.add_column(heading, justify="right" if is_numeric else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*row)
    whole = Measurement.get(console, console.options.update(max_width=WIDTH), drawn).maximum
    if whole > console.width:
        texts = [[heading, *column] for heading, *column in zip(headings, *cells, strict=True)]
        lengths = [max(map(cell_len, column)) for column in texts]
        words = [max(map(cell_len, " ".join(column).split()), default=0) for column in texts]
        widths = _fitted(words, lengths, console.width - (whole - sum(lengths)))
        if widths is None:
            _records(headings, cells)
            return
        for column, width in zip(drawn.columns, widths, strict=True):
            column.width = width
    console.print(drawn)


def _fitted(least: list[int], most: list[int], room: int) -> list[int] | None:
    """The widths of columns, each between two bounds; ``None`` if the lower bounds do not fit.

    Columns that need little more get it first.
    """
    left = room - sum(least)
    if left < 0:
        return None
    widths = least.copy()
    by_lack = sorted(range(len(least)), key=lambda index: most[index] - least[index])
    for place, index in enumerate(by_lack):
        more = min(most[index] - least[index], left // (len(by_lack) - place))
        widths[index] += more
        left -= more
    return widths


def _width() -> int | None:
    """The columns of a table: ``COLUMNS``, or those of the terminal."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    return None if sys.stdout.isatty() else WIDTH


def _records(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    widest = max(map(len, headings))
    for row in rows:
        say("")
        for heading, cell in zip(headings, row, strict=True):
            say(f"{heading:{widest}}  {cell}".rstrip())


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Show the progress of long work, if it has a label and standard error is a terminal.

    Yields a function to call after each step, or with the number of steps.
    """
    is_hidden = not (label and sys.stderr.isatty())
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as bar:
        task = bar.add_task(label, total=total)
        yield partial(bar.advance, task)


def listing(fields: Mapping[str, object]) -> None:
    """Print one field a line; further lines of a long text stay in the same column."""
    for name, value in fields.items():
        first, *more = str(value).split("\n")
        say(f"{name:12} {first}")
        for line in more:
            say(f"{'':12} {line}")


def message_listing(message: ReceivedMessage) -> dict[str, object]:
    """A message for people, as :func:`listing` prints it."""
    queue = f"{message.queue.broker}:{message.queue.number}"
    return message_fields(message) | {"queue": queue, "keys": " ".join(message.keys)}


def message_fields(message: ReceivedMessage) -> dict[str, object]:
    """A message for JSON; a body that is not text is in ``body_base64``."""
    fields: dict[str, object] = {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "id": message.id,
        "offset_id": message.offset_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "born_ms": message.born_ms,
        "stored_ms": message.stored_ms,
        "attempts": message.attempts,
    }
    if message.unreadable:
        fields["unreadable"] = message.unreadable
    return fields | body_fields(message.body)


def body_fields(body: bytes) -> dict[str, object]:
    """A body for JSON: ``body`` if it is text, otherwise ``body_base64``."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
