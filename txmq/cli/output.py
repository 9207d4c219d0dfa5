"""What commands print: tables for people, one line of JSON for programs."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from txmq.message import ReceivedMessage

__all__ = ["as_json", "message_fields", "say", "table"]

WIDTH: Final = 1000
"""Columns where nobody looks: what goes into a file or a pipe is never cut to a screen's width."""


def as_json(value: object) -> None:
    """Print a value as one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows under headings; numbers stand to the right."""
    kept = [list(row) for row in rows]
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(columns):
        numeric = bool(kept) and all(isinstance(row[at], int) for row in kept)
        drawn.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        drawn.add_row(*(str(each) for each in row))
    # Names and bodies are other people's text: nothing in them is an instruction to the terminal.
    width = None if sys.stdout.isatty() else WIDTH
    Console(width=width, markup=False, highlight=False, emoji=False).print(drawn)


def message_fields(message: ReceivedMessage) -> dict[str, object]:
    """A message for JSON; a body that is no text stands in base64 under a name of its own."""
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
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    return fields
