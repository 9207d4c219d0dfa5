"""The manifest of an extract: what was read when, its control totals, and its files.

It is written last: a directory with a manifest holds a whole extract.
"""

from __future__ import annotations

import hashlib
import os
from datetime import date
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused
from txmq.reconcile.rules import Rules, Window
from txmq.reconcile.summary import Control

__all__ = [
    "FILE",
    "Extracted",
    "Manifest",
    "Part",
    "Source",
    "extract_id",
    "place",
    "read_manifest",
    "write_manifest",
]

FILE: Final = "manifest.json"
_FORMAT: Final = 1


class Part(Struct, frozen=True, order=True):
    """A file of a table."""

    path: str
    """From the extract's directory on."""
    rows: int
    bytes: int
    sha256: str


class Extracted(Struct, frozen=True):
    """A table as it was extracted."""

    table: str
    told: Control
    """What the source has counted."""
    written: Control
    """What was counted while it was written; the same."""
    content: str
    """What its rows hold, in a word: the same in whatever order and parts they are."""
    parts: tuple[Part, ...]


class Source(Struct, frozen=True):
    """A bank, or the log."""

    name: str
    kind: Literal["postgresql", "sqlite", "jdbc", "log"]
    snapshot: str
    """What it calls the state that was read; nothing where it has no name."""
    taken_ms: int
    """When that was, by our clock."""
    source_ms: int
    """And by its own."""
    tables: tuple[Extracted, ...]
    watermark: int | None = None
    """How far the log was read."""


class Manifest(Struct, frozen=True):
    """A day's extract."""

    extract_id: str
    """The same for the same books, day and rules."""
    name: str
    """The rules'."""
    rules_version: str
    reading_digest: str
    """Of the rules, as far as they say how ledgers are read."""
    business_date: str
    start_ms: int
    end_ms: int
    as_of_ms: int
    """The end of the day, or when the books were read where it was not over yet."""
    sources: tuple[Source, ...]
    format: int = _FORMAT

    @property
    def is_final(self) -> bool:
        """Whether the day was over when its books were read."""
        return self.as_of_ms >= self.end_ms

    @property
    def controls(self) -> tuple[Control, ...]:
        """All control totals."""
        return tuple(table.written for source in self.sources for table in source.tables)

    @classmethod
    def of(cls, rules: Rules, day: date, sources: tuple[Source, ...]) -> Manifest:
        """The manifest of what was extracted."""
        window = rules.day.window(day)
        as_of_ms = min(
            window.end_ms, *(min(source.taken_ms, source.source_ms) for source in sources)
        )
        return cls(
            extract_id(rules.reading_digest, window, as_of_ms, sources),
            rules.name,
            rules.version,
            rules.reading_digest,
            day.isoformat(),
            window.start_ms,
            window.end_ms,
            as_of_ms,
            sources,
        )


def extract_id(
    reading_digest: str, window: Window, as_of_ms: int, sources: tuple[Source, ...]
) -> str:
    """The name of an extract: nothing of it depends on when the books of a past day were read."""
    held = [(table.written, table.content) for source in sources for table in source.tables]
    text = msgspec.json.encode((reading_digest, window, as_of_ms, held), order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]


def place(directory: str | Path, manifest: Manifest) -> Path:
    """Where an extract is kept.

    Args:
        directory: The one that the rules name.
        manifest: The extract's.
    """
    return Path(directory) / "extracts" / manifest.business_date / manifest.extract_id


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Put it into the extract's directory, whole or not at all.

    Raises:
        ReconcileRefused: It cannot be written.
    """
    early = directory / f".{FILE}.writing"
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    try:
        with early.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        early.rename(directory / FILE)
    except OSError as error:
        raise ReconcileRefused(f"the manifest cannot be written: {error}") from error


def read_manifest(directory: Path) -> Manifest:
    """The manifest in an extract's directory.

    Raises:
        ReconcileRefused: There is none, or none that this version reads.
    """
    path = directory / FILE
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise ReconcileRefused(f"there is no whole extract in {directory}") from error
    except (OSError, msgspec.DecodeError) as error:
        raise ReconcileRefused(f"{path} cannot be read: {error}") from error
    if manifest.format != _FORMAT:
        raise ReconcileRefused(f"{path} is of format {manifest.format}, and this reads {_FORMAT}")
    window = Window(manifest.start_ms, manifest.end_ms)
    known = extract_id(manifest.reading_digest, window, manifest.as_of_ms, manifest.sources)
    if known != manifest.extract_id:
        raise ReconcileRefused(f"{path} was changed: its control totals are not those of its id")
    return manifest
