"""How days hang together: each goes on from the result of the day before, and holds for as long as
that is the one in force.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused
from txmq.reconcile.summary import Run

__all__ = ["days", "in_force", "outdated", "said_of"]

Said = TypeVar("Said")


class _Span(Struct, frozen=True):
    """As much of a result as is asked here; the rest of its file is passed over."""

    start_ms: int
    end_ms: int


class _Link(Struct, frozen=True):
    """As much of a run."""

    result: _Span
    result_digest: str
    previous_digest: str | None = None


def days(directory: Path) -> list[date]:
    """The days that have a run in force, oldest first."""
    found = (directory / "runs").glob("????-??-??/current")
    return sorted(date.fromisoformat(file.parent.name) for file in found)


def in_force(directory: Path, day: date) -> Path | None:
    """Where the run of a day stands that is in force; nowhere before the first.

    Raises:
        ReconcileRefused: What names it cannot be read.
    """
    place = directory / "runs" / day.isoformat()
    try:
        named = msgspec.json.decode((place / "current").read_bytes(), type=dict[str, str])
        return place / named["run_id"] / "run.json"
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, KeyError) as error:
        raise ReconcileRefused(f"{place / 'current'} names no run: {error}") from error


def outdated(directory: Path, run: Run, last: date | None = None) -> str | None:
    """Why a run does not hold any more, or one that it goes on from; none where all of them do.

    A day that was run again leaves other items to the next one, and these would be on no later
    report. All days before are looked at: the one before may have been run before its own was.

    Args:
        directory: The one that the rules name.
        run: A run, in force or not.
        last: Up to where it has to be run again; the run's own day where it is left out.

    Raises:
        ReconcileRefused: What is said of a day before cannot be read.
    """
    day = own = date.fromisoformat(run.result.business_date)
    link: _Link | Run = run
    first: tuple[date, date] | None = None
    for earlier in reversed(days(directory)):
        if earlier >= own or (path := in_force(directory, earlier)) is None:
            continue
        before = said_of(path, _Link)
        if before.result.end_ms < link.result.start_ms:
            break  # There are days between that have none: here it has begun anew.
        if link.previous_digest != before.result_digest:
            first = day, earlier
        day, link = earlier, before
    if first is None:
        return None
    return (
        f"{first[0]} was not made from the result of {first[1]} that is in force: run it again, "
        f"and all after it, with --from {first[0]} --to {last or own}"
    )


def said_of(path: Path, type_: type[Said]) -> Said:
    """What is said of a run, or as much of it as a type asks for.

    Raises:
        ReconcileRefused: It cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except (OSError, msgspec.DecodeError) as error:
        raise ReconcileRefused(f"{path} says of no run what it came to: {error}") from error
