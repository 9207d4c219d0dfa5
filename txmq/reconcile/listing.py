"""The items of a day and its extracts, read without Spark."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.classes import ABOUT, Class
from txmq.reconcile.extract.manifest import FILE, read_manifest
from txmq.reconcile.report.masking import mask
from txmq.reconcile.summary import Run

__all__ = ["items_of", "latest_extract", "one_of"]


def items_of(
    directory: str | Path,
    run: Run,
    *,
    class_: Class | None = None,
    status: str | None = None,
    is_complete: bool = False,
    is_masked: bool = True,
) -> list[dict[str, Any]]:
    """What a run has left that is not agreed, oldest and worth most first.

    Args:
        directory: The one that the rules name.
        run: The run.
        class_: Only items of this class.
        status: Only those of this status.
        is_complete: Whether those are in it too that only wait, or are explained. Whoever asks
            for a class or a status gets them in any case.
        is_masked: Whether account numbers are hidden.

    Raises:
        ReconcileRefused: They cannot be read.
    """
    day = run.result.business_date
    place = Path(directory, "results", "items", f"business_date={day}", f"run={run.run_id}")
    try:
        read = [parquet.ParquetFile(path).read() for path in sorted(place.glob("*.parquet"))]
        rows: list[dict[str, Any]] = pa.concat_tables(read).to_pylist() if read else []
    except (OSError, pa.ArrowException) as error:
        raise ReconcileRefused(f"the items of {day} cannot be read: {error}") from error
    if not read:
        raise ReconcileRefused(f"the items of {day} are gone from {place}: run the day again")
    takes_all = is_complete or class_ is not None or status is not None
    found = [
        item
        for item in rows
        if (takes_all or ABOUT[Class(item["class"])].group == "break")
        and class_ in {None, item["class"]}
        and status in {None, item["status"]}
    ]
    if is_masked:
        for item in found:
            for side in ("payer", "payee"):
                item[side] = item[side] and mask(item[side])
    return sorted(found, key=lambda item: (-item["age_days"], -item["amount"], item["break_id"]))


def one_of(items: list[dict[str, Any]], break_id: str) -> dict[str, Any]:
    """The item that somebody means, who may have written the beginning of its id alone.

    Raises:
        UsageError: There is none, or more than one.
    """
    found = [item for item in items if item["break_id"].startswith(break_id)]
    if len(found) != 1 or not break_id:
        many = "is of several breaks" if found else "is of no break of this day"
        raise UsageError(f"{break_id!r} {many}; see txmq reconcile breaks --all")
    return found[0]


def latest_extract(directory: str | Path, day: date) -> str:
    """The id of a day's extract that was taken last.

    Raises:
        ReconcileRefused: There is none.
    """
    places = Path(directory, "extracts", day.isoformat()).glob(f"*/{FILE}")
    found = [
        read_manifest(place.parent) for place in places if not place.parent.name.startswith(".")
    ]
    if not found:
        raise ReconcileRefused(f"{day} has no extract yet: leave --reuse-extract out")
    last = max(
        found, key=lambda one: (max(source.taken_ms for source in one.sources), one.extract_id)
    )
    return last.extract_id
