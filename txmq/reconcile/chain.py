"""The chain of days: each day continues the result of the day before, and is valid as long as that
result is in force.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused
from txmq.reconcile.summary import Run

__all__ = ["current_run_file", "days_with_run", "read_run_file", "why_outdated"]

RunPart = TypeVar("RunPart")


class _Window(Struct, frozen=True):
    start_ms: int
    end_ms: int


class _Link(Struct, frozen=True):
    """The fields of a run that are needed here."""

    result: _Window
    result_digest: str
    previous_digest: str | None = None


def days_with_run(directory: Path) -> list[date]:
    """The days that have a run in force, oldest first."""
    found = (directory / "runs").glob("????-??-??/current")
    return sorted(date.fromisoformat(file.parent.name) for file in found)


def current_run_file(directory: Path, day: date) -> Path | None:
    """The file of a day's run that is in force; ``None`` before the first run.

    Raises:
        ReconcileRefused: The file ``current`` cannot be read.
    """
    place = directory / "runs" / day.isoformat()
    try:
        named = msgspec.json.decode((place / "current").read_bytes(), type=dict[str, str])
        return place / named["run_id"] / "run.json"
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, KeyError) as error:
        raise ReconcileRefused(f"{place / 'current'} does not name a run: {error}") from error


def why_outdated(directory: Path, run: Run, last: date | None = None) -> str | None:
    """The reason why a run, or an earlier one in its chain, is outdated; ``None`` if none is.

    A day that was run again may leave other items to the next day, which no later report would
    show. All earlier days are checked: the day before may itself be outdated. The reason names
    ``last`` as the last day to run again; the run's own day if left out.

    Raises:
        ReconcileRefused: The file of an earlier run cannot be read.
    """
    day = own = date.fromisoformat(run.result.business_date)
    link: _Link | Run = run
    first: tuple[date, date] | None = None
    for earlier in reversed(days_with_run(directory)):
        if earlier >= own or (path := current_run_file(directory, earlier)) is None:
            continue
        before = read_run_file(path, _Link)
        if before.result.end_ms < link.result.start_ms:
            break  # Days between have no run: the chain begins here.
        if link.previous_digest != before.result_digest:
            first = day, earlier
        day, link = earlier, before
    if first is None:
        return None
    return (
        f"{first[0]} was not made from the result of {first[1]} that is in force: run it again, "
        f"and all after it, with --from {first[0]} --to {last or own}"
    )


def read_run_file(path: Path, type_: type[RunPart]) -> RunPart:
    """Read a run's file, or the part of it that a type declares.

    Raises:
        ReconcileRefused: The file cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except (OSError, msgspec.DecodeError) as error:
        raise ReconcileRefused(f"{path} is not the file of a run: {error}") from error
