"""Load an extract after checking that it is exactly what was written.

First the files are checked: each exists once and unchanged, and no other file exists. Then their
control totals are computed again. Before the verdict, the accounts' sums are compared with the same
totals, which proves that Spark has read everything (:mod:`txmq.reconcile.day`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.bank_source import SHEETS
from txmq.reconcile.extract.manifest import BOOKS, LOG, ExtractedTable, Manifest, Part
from txmq.reconcile.extract.written_sheets import NO_CONTENT, add_up, hashes_in
from txmq.reconcile.ledgers import Files, Role, TableFile
from txmq.reconcile.log.day_source import LOG_SHEETS
from txmq.reconcile.storage import Folder
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import BANK_TABLES, LOG_TABLES
from txmq.text import quantity

__all__ = ["check_totals", "files_in", "load"]

_TABLES: Final = {**BANK_TABLES, **LOG_TABLES}


def load(spark: SparkSession, manifest: Manifest, folder: Folder) -> Files:
    """The ledgers of a day, after the extract was checked.

    Raises:
        ReconcileRefused: A file is missing, changed or extra, or a control total differs; the
            message names it.
    """
    try:
        _check_files(manifest, folder, hashes_in(spark, folder))
        check_totals(spark, manifest, folder)
    except OSError as error:
        raise ReconcileRefused(f"the extract cannot be read: {error}") from error
    return files_in(manifest, folder)


def files_in(manifest: Manifest, folder: Folder) -> Files:
    """The ledgers of an extract that was checked before."""
    found: Files = {Role(name): [] for name in _TABLES}
    for table in manifest.tables:
        bank = table.written.source if table.table in BANK_TABLES else None
        found[Role(table.table)] += [
            TableFile(f"{folder.spark_path}/{part.path}", bank) for part in table.parts
        ]
    return found


def _check_files(manifest: Manifest, folder: Folder, found: Mapping[str, tuple[int, str]]) -> None:
    """Check that exactly the extracted files exist, unchanged; ``found`` has what is there."""
    for table in manifest.tables:
        _check_names(table, found, folder)
    parts = {part.path: part for table in manifest.tables for part in table.parts}
    for path in sorted(found.keys() - parts.keys()):
        raise ReconcileRefused(f"{path} is there, and was not extracted")
    for path, part in parts.items():
        _check_content(part, *found[path])


def check_totals(spark: SparkSession, manifest: Manifest, folder: Folder) -> None:
    """Check the control totals of the files against those computed after they were written.

    Raises:
        ReconcileRefused: A control total differs; the message names it.
    """
    now = add_up(spark, folder, {BOOKS: SHEETS, LOG: LOG_SHEETS})
    for table in manifest.tables:
        of = table.written.source, table.table
        control, content = (now[of].control, now[of].content) if of in now else (None, NO_CONTENT)
        if (differs := table.written.difference(control or Control(*of, 0))) is not None:
            raise ReconcileRefused(differs)
        if content != table.content:
            raise ReconcileRefused(f"{table.place}: texts changed since they were extracted")


def _check_names(table: ExtractedTable, there: Mapping[str, object], folder: Folder) -> None:
    """Check that each part exists once; the message counts rows and names files."""
    rows = {part.path: part.rows for part in table.parts}
    paths = {
        path for path in there if f"/source={table.written.source}/table={table.table}/" in path
    }
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
        return sum(batch.num_rows for batch in folder.batches([name]))
    except pa.ArrowInvalid:
        return 0


def _check_content(part: Part, size: int, digest: str) -> None:
    if size != part.bytes:
        was, now = quantity(part.bytes, "byte was", "bytes were"), quantity(size, "is", "are")
        raise ReconcileRefused(f"{part.path}: {was} extracted and {now} there")
    if digest != part.sha256:
        hashes = f"their hash (SHA-256) was {part.sha256[:12]}… and is {digest[:12]}…"
        raise ReconcileRefused(f"{part.path}: its bytes changed since it was extracted; {hashes}")
