"""The manifest of an extract: its sources, moments, control totals and files.

It is written last, so a directory with a manifest holds a complete extract.
"""

from __future__ import annotations

from datetime import date
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused
from txmq.reconcile.rules import Rules
from txmq.reconcile.storage import Folder
from txmq.reconcile.summary import Control, digest_of
from txmq.text import quantity

__all__ = [
    "BOOKS",
    "FILE",
    "LOG",
    "ExtractedSource",
    "ExtractedTable",
    "Manifest",
    "Part",
    "QuarantinedRow",
    "SourceKind",
]

FILE: Final = "manifest.json"
BOOKS: Final = "books"
LOG: Final = "log"
"""The folders of an extract; ``LOG`` is also the name of the log's source."""
_FORMAT: Final = 1


class Part(Struct, frozen=True, order=True):
    """A file of a table."""

    path: str
    """Relative to the extract's directory."""
    rows: int
    bytes: int
    sha256: str


class QuarantinedRow(Struct, frozen=True, order=True):
    """A row that cannot be read, and is in no table of the extract."""

    row: str
    """What identifies it in the bank's book: its id and its key, or its file and line."""
    reason: str


class ExtractedTable(Struct, frozen=True):
    """A table as it was extracted."""

    table: str
    written: Control
    """The control totals of the written rows, which equal the source's own totals if it has any."""
    content: str
    """A hash of its rows, in any order and any parts."""
    parts: tuple[Part, ...]
    quarantine: tuple[QuarantinedRow, ...] = ()
    """The rows of the bank's table that cannot be read; for entries, those of any day."""

    @property
    def place(self) -> str:
        """The source and the table."""
        return f"{self.written.source}/{self.table}"


SourceKind: TypeAlias = Literal["postgresql", "sqlite", "jdbc", "files", "frames", "log"]


class ExtractedSource(Struct, frozen=True):
    """A bank, or the log."""

    name: str
    kind: SourceKind
    snapshot: str
    """The database's name for the snapshot, a hash of the files, or the brokers of a cluster; empty
    for other sources."""
    taken_ms: int
    """The time of the snapshot, by this machine's clock."""
    source_ms: int
    """The time of the snapshot, by the source's clock."""
    tables: tuple[ExtractedTable, ...]
    watermark: int | None = None
    """The log position up to which it was read: the greatest of several directories, 0 for a
    cluster."""
    notes: tuple[str, ...] = ()
    """What the source cannot tell."""


class Manifest(Struct, frozen=True):
    """A day's extract."""

    extract_id: str
    """Equal for equal books, day and rules."""
    name: str
    """The name of the rules."""
    rules_version: str
    reading_digest: str
    """A digest of the rules that say how ledgers are read."""
    business_date: str
    start_ms: int
    end_ms: int
    as_of_ms: int
    """The end of the day, or the time of reading if that was earlier."""
    sources: tuple[ExtractedSource, ...]
    format: int = _FORMAT

    @property
    def is_final(self) -> bool:
        """True if the day was over when its books were read."""
        return self.as_of_ms >= self.end_ms

    @property
    def tables(self) -> tuple[ExtractedTable, ...]:
        """The tables of all sources."""
        return tuple(table for source in self.sources for table in source.tables)

    @property
    def controls(self) -> tuple[Control, ...]:
        """All control totals."""
        return tuple(table.written for table in self.tables)

    @property
    def rows(self) -> int:
        """The number of rows in all tables."""
        return sum(table.written.rows for table in self.tables)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the sources cannot tell."""
        found = [note for source in self.sources for note in source.notes]
        for table in self.tables:
            if count := len(table.quarantine):
                read = quantity(table.written.rows + count, "row was", "rows were")
                one = quantity(count, "of them is", "of them are")
                found.append(f"{table.place}: {read} read, and {one} in quarantine")
        return tuple(found)

    @property
    def own_id(self) -> str:
        """The id computed from the content; for a past day, the time of reading does not matter."""
        held = [(table.written, table.content, *table.quarantine) for table in self.tables]
        named = self.reading_digest, (self.start_ms, self.end_ms), self.as_of_ms, held
        return digest_of(named)[:16]

    @classmethod
    def of(cls, rules: Rules, day: date, sources: tuple[ExtractedSource, ...]) -> Manifest:
        """Make the manifest of these sources."""
        window = rules.day.window(day)
        as_of_ms = min(window.end_ms, *(min(one.taken_ms, one.source_ms) for one in sources))
        named = "", rules.name, rules.version, rules.reading_digest
        found = cls(*named, day.isoformat(), *window, as_of_ms, sources)
        return msgspec.structs.replace(found, extract_id=found.own_id)

    @classmethod
    def read(cls, folder: Folder) -> Manifest:
        """The manifest in an extract's folder.

        Raises:
            ReconcileRefused: The manifest is missing, or this version cannot read it.
        """
        path = f"{folder}/{FILE}"
        try:
            manifest = msgspec.json.decode(folder.read(FILE), type=cls)
        except FileNotFoundError as error:
            raise ReconcileRefused(f"{folder} has no complete extract: take a new one") from error
        except (OSError, msgspec.DecodeError) as error:
            raise ReconcileRefused(f"{path} cannot be read: {error}") from error
        if manifest.format != _FORMAT:
            why = f"has format {manifest.format}, and this version of txmq reads {_FORMAT}"
            raise ReconcileRefused(f"{path} {why}")
        if manifest.own_id != manifest.extract_id:
            why = "its control totals do not belong to its id"
            raise ReconcileRefused(f"{path} was changed: {why}")
        return manifest

    def write(self, folder: Folder) -> None:
        """Write the manifest into the extract's folder.

        Raises:
            OSError: It cannot be written.
        """
        folder.replace(FILE, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
