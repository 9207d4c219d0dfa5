"""The rows of a file with columns: CSV, JSON lines or Parquet. Few rows are in memory at a time.

Nothing is guessed: a row with too few values is damaged, and a wrong byte or a file that changes
is an error that names the file, the line and the value.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from io import BufferedReader
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.bank_statements import damaged_row, refuse
from txmq.reconcile.extract.books import check_columns
from txmq.reconcile.extract.manifest import QuarantinedRow
from txmq.reconcile.rules import BankFiles

__all__ = ["FileRows", "decoded_lines", "open_unchanged", "read_rows", "value_at"]

FileRows: TypeAlias = Iterator[tuple[int, Sequence[Any]] | QuarantinedRow]
"""The line of each row, and its values of the wanted columns."""

_BATCH: Final = 1 << 14
_STATE: Final = attrgetter("st_ino", "st_size", "st_mtime_ns")


@contextmanager
def open_unchanged(path: Path) -> Iterator[BufferedReader]:
    """Open a file, and check at the end of the block that it did not change meanwhile.

    Raises:
        ReconcileRefused: It changed.
    """
    with path.open("rb") as file:
        before = _STATE(os.fstat(file.fileno()))
        yield file
    if _STATE(path.stat()) != before:
        why = "changed while it was read; wait until it is complete, and run again"
        raise ReconcileRefused(f"{path.name} {why}")


def decoded_lines(name: str, file: BinaryIO, charset: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file, with their ends.

    Raises:
        ReconcileRefused: A byte is not of the charset.
    """
    for number, raw in enumerate(file, 1):
        try:
            line = raw.decode(charset)
        except UnicodeDecodeError as error:
            before = raw[: error.start].decode(charset, "replace")[-30:]
            wrong = f"the byte 0x{raw[error.start]:02x} after {before!r}"
            refuse(name, number, f"{wrong} is not {charset}: set files.charset")
        yield number, line.removeprefix("\ufeff") if number == 1 else line


def read_rows(name: str, file: BinaryIO, columns: Sequence[str], files: BankFiles) -> FileRows:
    """The rows of a file with the values of these columns; in JSON a missing field is empty.

    Raises:
        ReconcileRefused: It lacks a column, or is truncated.
    """
    if files.format == "parquet":
        return _parquet_rows(name, file, columns)
    lines = decoded_lines(name, file, files.charset)
    if files.format == "csv":
        return _csv_rows(name, lines, columns, files)
    return _json_rows(name, lines, columns)


def _csv_rows(
    name: str, lines: Iterable[tuple[int, str]], columns: Sequence[str], files: BankFiles
) -> FileRows:
    last = "\n"
    reader = csv.reader(
        (last := line for _, line in lines),
        delimiter=files.delimiter,
        quotechar=files.quote or None,
        quoting=csv.QUOTE_MINIMAL if files.quote else csv.QUOTE_NONE,
        strict=True,
    )
    try:
        header = list(files.columns) or next(filter(None, reader), [])
        _check_names(name, header, columns)
        take = itemgetter(*map(header.index, columns))
        for row in reader:
            if len(row) == len(header):
                yield reader.line_num, take(row)
            elif row:
                why = f"it has {len(row)} values, not {len(header)}: {row}"
                yield damaged_row(name, reader.line_num, why)
    except csv.Error as error:
        refuse(name, reader.line_num, f"{last[:40]!r} is not CSV: {error}")
    if not last.endswith("\n"):
        why = "has no line end, so the file may be truncated; get it again, or end the line"
        refuse(name, reader.line_num, f"{last[-40:]!r} {why}")


def _check_names(name: str, header: Sequence[str], columns: Iterable[str]) -> None:
    for column in header:
        if header.count(column) > 1:
            refuse(name, 1, f"two columns are called {column!r}")
    check_columns(name, columns, header)


def _json_rows(name: str, lines: Iterable[tuple[int, str]], columns: Sequence[str]) -> FileRows:
    decode = json.JSONDecoder(object_pairs_hook=_json_object, parse_float=Decimal).decode
    for number, line in lines:
        if not line.strip():
            continue
        shown = repr(line.strip()[:40])
        try:
            row = decode(line)
        except (ValueError, RecursionError) as error:
            if not line.endswith("\n"):
                why = "is not JSON and has no line end, so the file may be truncated; get it again"
                refuse(name, number, f"{shown} {why}")
            yield damaged_row(name, number, f"{shown} is not JSON: {error}")
            continue
        if isinstance(row, dict):
            yield number, [value_at(row, column) for column in columns]
        else:
            yield damaged_row(name, number, f"{shown} is not a JSON object")


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


def _parquet_rows(name: str, file: BinaryIO, columns: Sequence[str]) -> FileRows:
    heads, line = sorted({column.partition(".")[0] for column in columns}), 0
    try:
        with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as source:
            _check_names(name, source.schema_arrow.names, heads)
            for batch in source.iter_batches(_BATCH, columns=heads):
                for row in batch.to_pylist():
                    line += 1
                    yield line, [value_at(row, column) for column in columns]
    except (pa.ArrowException, OSError) as error:
        refuse(name, line + 1, f"it is not complete Parquet: {str(error).splitlines()[0]}")
