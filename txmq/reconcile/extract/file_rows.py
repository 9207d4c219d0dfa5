"""A bank's file, and its rows if it has columns: CSV, JSON lines or Parquet.

Few rows are in memory at a time. Nothing is guessed: a row with too few values is damaged, and a
wrong byte or a file that changes is an error that names the file, the line and the value.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from txmq.errors import ReconcileRefused
from txmq.protocol.properties import one_line
from txmq.reconcile.extract.books import check_columns
from txmq.reconcile.rules import BankFiles

__all__ = ["DAMAGE", "BankFile", "FileRows", "damaged", "open_unchanged", "read_rows", "value_at"]

FileRows: TypeAlias = Iterator[tuple[int, Mapping[str, Any]]]
"""The line of each row, and its values by their columns."""
DAMAGE: Final = "txmq_damage"
"""The only column with a value in a damaged row: the reason."""

_BATCH: Final = 1 << 14
_STATE: Final = attrgetter("st_ino", "st_size", "st_mtime_ns")
_SHOWN: Final = 300
"""The most characters of a reason, which may contain the whole line."""


class BankFile(Struct):
    """A file that is open for reading."""

    name: str
    stream: BinaryIO
    sha256: str = ""
    """The hash of its content, once it has been read."""

    def refuse(self, line: int, why: str) -> NoReturn:
        """Refuse the file.

        Raises:
            ReconcileRefused: Always; the message begins with the place.
        """
        raise ReconcileRefused(f"{self.name} line {line}: {why}")

    def lines(self, charset: str) -> Iterator[tuple[int, str]]:
        """Its numbered lines of text, with their line ends.

        Raises:
            ReconcileRefused: A byte is not valid in the charset.
        """
        for number, raw in enumerate(self.stream, 1):
            try:
                line = raw.decode(charset)
            except UnicodeDecodeError as error:
                before = raw[: error.start].decode(charset, "replace")[-30:]
                wrong = f"the byte 0x{raw[error.start]:02x} after {before!r}"
                self.refuse(number, f"{wrong} is not {charset}: set files.charset")
            yield number, line.removeprefix("\ufeff") if number == 1 else line


def damaged(why: object) -> Mapping[str, str]:
    """The values of a row that cannot be read."""
    return {DAMAGE: one_line(str(why), _SHOWN)}


@contextmanager
def open_unchanged(path: Path) -> Iterator[BankFile]:
    """Open a file, and check at the end of the block that it has not changed.

    Raises:
        ReconcileRefused: It changed.
    """
    with path.open("rb") as stream:
        before = _STATE(os.fstat(stream.fileno()))
        file = BankFile(path.name, stream)
        yield file
        stream.seek(0)
        file.sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if _STATE(path.stat()) != before:
        why = "changed while it was read; wait until it is complete, and run again"
        raise ReconcileRefused(f"{path.name} {why}")


def read_rows(file: BankFile, columns: Collection[str], files: BankFiles) -> FileRows:
    """The rows of a file with the values of these columns; in JSON a missing field is empty.

    Raises:
        ReconcileRefused: It lacks a column, or is truncated.
    """
    match files.format:
        case "parquet":
            return _parquet_rows(file, columns)
        case "csv":
            return _csv_rows(file, columns, files)
    return _json_rows(file, columns, files.charset)


def _csv_rows(file: BankFile, columns: Collection[str], files: BankFiles) -> FileRows:
    last = "\n"
    reader = csv.reader(
        (last := line for _, line in file.lines(files.charset)),
        delimiter=files.delimiter,
        quotechar=files.quote or None,
        quoting=csv.QUOTE_MINIMAL if files.quote else csv.QUOTE_NONE,
        strict=True,
    )
    try:
        header = list(files.columns) or next(filter(None, reader), [])
        _check_names(file, header, columns)
        for row in reader:
            if len(row) == len(header):
                yield reader.line_num, dict(zip(header, row, strict=True))
            elif row:
                why = f"it has {len(row)} values, not {len(header)}: {row}"
                yield reader.line_num, damaged(why)
    except csv.Error as error:
        file.refuse(reader.line_num, f"{last[:40]!r} is not CSV: {error}")
    if not last.endswith("\n"):
        why = "has no line end, so the file may be truncated; get it again, or end the line"
        file.refuse(reader.line_num, f"{last[-40:]!r} {why}")


def _check_names(file: BankFile, header: Sequence[str], columns: Collection[str]) -> None:
    for column in header:
        if header.count(column) > 1:
            file.refuse(1, f"two columns are called {column!r}")
    check_columns(file.name, columns, header)


def _json_rows(file: BankFile, columns: Collection[str], charset: str) -> FileRows:
    decode = json.JSONDecoder(object_pairs_hook=_json_object, parse_float=Decimal).decode
    for number, line in file.lines(charset):
        if not line.strip():
            continue
        shown = repr(line.strip()[:40])
        try:
            row = decode(line)
        except (ValueError, RecursionError) as error:
            if not line.endswith("\n"):
                why = "is not JSON and has no line end, so the file may be truncated; get it again"
                file.refuse(number, f"{shown} {why}")
            yield number, damaged(f"{shown} is not JSON: {error}")
            continue
        if isinstance(row, dict):
            yield number, {column: value_at(row, column) for column in columns}
        else:
            yield number, damaged(f"{shown} is not a JSON object")


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a field occurs twice in {', '.join(name for name, _ in pairs)}")
    return found


def value_at(row: Any, path: str) -> Any:
    """The value of a field; a dot leads into an object. ``None`` if it does not exist."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, dict) else None
    return row


def _parquet_rows(file: BankFile, columns: Collection[str]) -> FileRows:
    heads, line = sorted({column.partition(".")[0] for column in columns}), 0
    try:
        with pq.ParquetFile(file.stream, coerce_int96_timestamp_unit="us") as source:
            _check_names(file, source.schema_arrow.names, heads)
            for batch in source.iter_batches(_BATCH, columns=heads):
                for row in batch.to_pylist():
                    line += 1
                    yield line, {column: value_at(row, column) for column in columns}
    except (pa.ArrowException, OSError) as error:
        file.refuse(line + 1, f"it is not complete Parquet: {str(error).splitlines()[0]}")
