"""Files of tables: how Spark writes them, and their hashes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from txmq.reconcile.tables import RECURRING

__all__ = [
    "parquet_options",
    "sha256_of",
    "sync",
]


def parquet_options(names: Iterable[str]) -> dict[str, str]:
    """Spark's write options for a table with these columns.

    Each column has one encoding. Java lists several in the order of its hash codes, which differ
    from one process to the next, so a rerun would write other bytes.
    """
    statistics = "parquet.column.statistics.enabled"
    layout = {"parquet.writer.version": "v2", "parquet.enable.dictionary": "false"}
    layout[statistics] = "false"
    return layout | {f"{statistics}#{name}": "true" for name in names if name in RECURRING}


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
