"""The items of a day and its extracts, read without Spark."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.classes import ABOUT, Class
from txmq.reconcile.extract.manifest import FILE, read_manifest
from txmq.reconcile.report.account_mask import mask
from txmq.reconcile.summary import Run
from txmq.reconcile.written_table import WrittenTable

__all__ = ["find_item", "items_of", "latest_extract"]


def items_of(
    directory: str | Path,
    run: Run,
    *,
    class_: Class | None = None,
    status: str | None = None,
    is_complete: bool = False,
    is_masked: bool = True,
) -> list[dict[str, Any]]:
    """The items of a run that are not agreed: the oldest first, then the largest.

    Args:
        directory: The directory that the rules name.
        run: The run.
        class_: Only items of this class.
        status: Only items of this status.
        is_complete: Include items in flight and explained ones; implied by a class or a status.
        is_masked: Hide account numbers.

    Raises:
        ReconcileRefused: The items cannot be read.
    """
    day = run.result.business_date
    place = Path(directory, "results", "items", f"business_date={day}", f"run={run.run_id}")
    table = WrittenTable(f"items of {day}", sorted(place.glob("*.parquet")))
    if not table.parts:
        raise ReconcileRefused(f"the items of {day} are missing in {place}: run the day again")
    rows: list[dict[str, Any]] = [row for piece in table.pieces() for row in piece.to_pylist()]
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


def find_item(items: list[dict[str, Any]], break_id: str) -> dict[str, Any]:
    """The item whose id begins with ``break_id``.

    Raises:
        UsageError: No item matches, or several do.
    """
    found = [item for item in items if item["break_id"].startswith(break_id)]
    if len(found) != 1 or not break_id:
        many = "matches several breaks" if found else "matches no break"
        raise UsageError(f"{break_id!r} {many} of this day; see txmq reconcile breaks --all")
    return found[0]


def latest_extract(directory: str | Path, day: date) -> str:
    """The id of the latest extract of a day.

    Raises:
        ReconcileRefused: The day has no extract.
    """
    places = Path(directory, "extracts", day.isoformat()).glob(f"*/{FILE}")
    found = [
        read_manifest(place.parent) for place in places if not place.parent.name.startswith(".")
    ]
    if not found:
        raise ReconcileRefused(f"{day} has no extract yet: omit --reuse-extract")
    last = max(
        found, key=lambda one: (max(source.taken_ms for source in one.sources), one.extract_id)
    )
    return last.extract_id
