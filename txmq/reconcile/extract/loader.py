"""Load an extract after checking that it is exactly what was written.

First the files are checked: each exists once and unchanged, and no other file exists. Then their
control totals are computed again. At the end of a run the accounts' sums are compared with the same
totals, which proves that Spark has read everything (:mod:`txmq.reconcile.verdict`).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import pyarrow as pa

from txmq.errors import ReconcileRefused
from txmq.quantity import quantity
from txmq.reconcile.extract.manifest import FILE, ExtractedTable, Manifest, Part
from txmq.reconcile.extract.table_writer import ControlSums
from txmq.reconcile.ledgers import Files, Role, TableFile
from txmq.reconcile.storage import Folder
from txmq.reconcile.tables import BANK_TABLES, LOG_TABLES

__all__ = ["check_totals", "files_in", "load"]

_TABLES: Final = {**BANK_TABLES, **LOG_TABLES}


def load(manifest: Manifest, folder: Folder) -> Files:
    """The ledgers of a day, after the extract was checked.

    Raises:
        ReconcileRefused: A file is missing, changed or extra, or a control total differs; the
            message names it.
    """
    try:
        _check_files(manifest, folder)
        check_totals(manifest, folder)
    except (OSError, pa.ArrowException) as error:
        raise ReconcileRefused(f"the extract cannot be read: {error}") from error
    return files_in(manifest, folder)


def files_in(manifest: Manifest, folder: Folder) -> Files:
    """The ledgers of an extract that was checked before."""
    found: Files = {Role(name): [] for name in _TABLES}
    for table in manifest.tables:
        bank = table.written.source if table.table in BANK_TABLES else None
        found[Role(table.table)] += [
            TableFile(folder.uri_of(part.path), bank) for part in table.parts
        ]
    return found


def _check_files(manifest: Manifest, folder: Folder) -> None:
    """Check that exactly the extracted files exist, unchanged."""
    parts = [part for table in manifest.tables for part in table.parts]
    names = {path: path.rpartition("/")[2] for path in folder.files()}
    found = {path for path in names if names[path] != FILE and names[path][0] not in "._"}
    for table in manifest.tables:
        _check_names(table, found, folder)
    for path in sorted(found - {part.path for part in parts}):
        raise ReconcileRefused(f"{path} is there, and was not extracted")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(_check_content, folder), parts))


def check_totals(manifest: Manifest, folder: Folder) -> None:
    """Check the control totals of the files against those computed while writing.

    The files are read in any case to compare their hashes.

    Raises:
        ReconcileRefused: A control total differs; the message names it.
        OSError: A file cannot be read.
        pyarrow.ArrowException: A file is not Parquet.
    """
    for table in manifest.tables:
        sums = ControlSums(_TABLES[table.table])
        folder.read_rows([part.path for part in table.parts], sums.add, sums.columns)
        now = sums.control(table.written.source)
        if (differs := table.written.difference(now)) is not None:
            raise ReconcileRefused(differs)


def _check_names(table: ExtractedTable, found: set[str], folder: Folder) -> None:
    """Check that each part exists once; the message counts rows and names files."""
    rows = {part.path: part.rows for part in table.parts}
    paths = {path for path in found if path.startswith(f"{table.place}/")}
    missing, foreign = sorted(rows.keys() - paths), sorted(paths - rows.keys())
    if not missing and not foreign:
        return
    now = sum(rows[path] if path in rows else _rows(folder, path) for path in paths)
    why = [f"{path} is missing" for path in missing]
    why += [f"{path} was not extracted" for path in foreign]
    raise ReconcileRefused(
        f"{table.place}: {quantity(sum(rows.values()), 'row was', 'rows were')} "
        f"extracted and {quantity(now, 'is', 'are')} there; {', '.join(why)}"
    )


def _rows(folder: Folder, name: str) -> int:
    try:
        return sum(batch.num_rows for batch in folder.batches(name))
    except pa.ArrowInvalid:
        return 0


def _check_content(folder: Folder, part: Part) -> None:
    if (size := folder.size(part.path)) != part.bytes:
        was, now = quantity(part.bytes, "byte was", "bytes were"), quantity(size, "is", "are")
        raise ReconcileRefused(f"{part.path}: {was} extracted and {now} there")
    if (digest := folder.sha256(part.path)) != part.sha256:
        hashes = f"their hash (SHA-256) was {part.sha256[:12]}… and is {digest[:12]}…"
        raise ReconcileRefused(f"{part.path}: its bytes changed since it was extracted; {hashes}")
