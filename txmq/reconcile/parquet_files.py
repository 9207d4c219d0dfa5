"""Folders that Spark has written: their files get names and bytes that are always the same, and are
put in place whole.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from txmq.reconcile.footers import TAIL, footer_size, with_encodings_in_order
from txmq.reconcile.tables import RECURRING

__all__ = ["are_same", "fingerprint", "laid_out", "put_in_place", "settled"]


def laid_out(names: Iterable[str]) -> dict[str, str]:
    """What Spark is told of a table's columns when it writes them."""
    layout: dict[str, str] = {}
    for option in ("parquet.enable.dictionary", "parquet.column.statistics.enabled"):
        layout[option] = "false"
        layout |= {f"{option}#{name}": "true" for name in names if name in RECURRING}
    return layout


def settled(folder: Path) -> None:
    """Have the files of a folder depend on nothing but what is in them, and make them durable; what
    else Spark has left there goes.
    """
    parts = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("part-"):
            parts.append(path)
        else:
            path.unlink()
    for number, part in enumerate(parts):
        named = part.rename(folder / f"part-{number:05d}.parquet")
        _put_in_order(named)
        _sync(named)
    _sync(folder)


def are_same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files, byte for byte."""
    if not other.is_dir():
        return False
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in other.iterdir()):
        return False
    _, *differing = filecmp.cmpfiles(one, other, names, shallow=False)
    return not any(differing)


def fingerprint(folder: Path) -> str:
    """A hash of a folder's files and their names, but for those that Spark does not read."""
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    parts = [path for path in there if not path.name.startswith((".", "_"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashes = pool.map(_sha256, parts)
        told = [f"{part.name} {hash_}\n" for part, hash_ in zip(parts, hashes, strict=True)]
    return hashlib.sha256("".join(told).encode()).hexdigest()


def put_in_place(draft: Path, place: Path) -> None:
    """Give a folder its name, durably."""
    draft.rename(place)
    _sync(place.parent)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put_in_order(path: Path) -> None:
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - TAIL, 0))
        start = end - TAIL - footer_size(file.read())
        file.seek(start)
        footer = file.read(end - TAIL - start)
        file.seek(start)
        file.write(with_encodings_in_order(footer))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
