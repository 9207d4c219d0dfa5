"""Files on disk: their hashes, and folders of Spark that appear only when they are complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq

from txmq.reconcile.extract.contents import ContentHash
from txmq.reconcile.tables import RECURRING, TableSchema

__all__ = [
    "content_of",
    "finalize_folder",
    "fingerprint",
    "move_into_place",
    "parquet_options",
    "sha256_of",
    "sync",
]


def parquet_options(names: Iterable[str]) -> dict[str, str]:
    """Spark's write options for a table with these columns."""
    layout: dict[str, str] = {}
    for option in ("parquet.enable.dictionary", "parquet.column.statistics.enabled"):
        layout[option] = "false"
        layout |= {f"{option}#{name}": "true" for name in names if name in RECURRING}
    return layout


def content_of(table: TableSchema, folder: Path) -> str:
    """A hash of the rows in a folder's files, in any order.

    Raises:
        OSError: A file cannot be read.
        pyarrow.ArrowException: A file is not Parquet, or has other columns.
    """
    contents = ContentHash(table)

    def add(path: Path) -> None:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(use_threads=False):
                contents.add(batch)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(add, folder.glob("part-*")))
    return contents.word


def finalize_folder(folder: Path) -> None:
    """Number the files of a folder, remove Spark's other files, and sync all of it."""
    parts = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("part-"):
            parts.append(path)
        else:
            path.unlink()
    for number, part in enumerate(parts):
        sync(part.rename(folder / f"part-{number:05d}.parquet"))
    sync(folder)


def fingerprint(folder: Path) -> str:
    """A hash of a folder's files and their names, without the files that Spark ignores."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    parts = [path for path in files if not path.name.startswith((".", "_"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashes = pool.map(sha256_of, parts)
        lines = [f"{part.name} {hash_}\n" for part, hash_ in zip(parts, hashes, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def move_into_place(draft: Path, place: Path) -> None:
    """Rename a folder durably."""
    draft.rename(place)
    sync(place.parent)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Sync a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
