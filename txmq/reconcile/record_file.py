"""Files that people write: one record in each line, and records are only ever added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused
from txmq.reconcile.signatures import lock_signatures

__all__ = ["add_records", "read_records"]

Record = TypeVar("Record", bound=Struct)


def read_records(directory: Path, name: str, type_: type[Record]) -> list[Record]:
    """All records of a file, oldest first; none without the file.

    Raises:
        ReconcileRefused: The file cannot be read; it was changed by hand.
    """
    path = directory / name
    try:
        lines = path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=type_) for line in lines if line.strip()]
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        raise ReconcileRefused(f"{path} is not a file of {path.stem}: {error}") from error


def add_records(directory: Path, name: str, records: Sequence[Struct]) -> None:
    """Add records to a file: all of them, or none.

    Raises:
        UsageError: Another process writes the files of people.
        ReconcileRefused: The file cannot be read; it was changed by hand.
    """
    if not records:
        return
    with lock_signatures(directory) as disk:
        lines = [*read_records(directory, name, type(records[0])), *records]
        disk.replace(name, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
