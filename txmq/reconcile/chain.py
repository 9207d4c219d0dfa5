"""The chain of days: each day continues the result of the day before, and is valid as long as that
result is in force.
"""

from __future__ import annotations

from datetime import date

import msgspec

from txmq.errors import ReconcileRefused
from txmq.reconcile.storage import Folder
from txmq.reconcile.summary import Run

__all__ = ["current_run", "days_with_run", "read_run_file", "why_outdated"]


def days_with_run(folder: Folder) -> list[date]:
    """The days that have a run in force, oldest first."""
    found = folder.at("runs").files("????-??-??/current")
    return [date.fromisoformat(name.partition("/")[0]) for name in found]


def current_run(folder: Folder, day: date) -> Run | None:
    """A day's run that is in force, without signatures; ``None`` before the first run.

    Raises:
        ReconcileRefused: The file ``current`` or that of the run cannot be read.
    """
    place = folder.at("runs", day.isoformat())
    try:
        named = msgspec.json.decode(place.read("current"), type=dict[str, str])
        run_id = named["run_id"]
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, KeyError) as error:
        raise ReconcileRefused(f"{place}/current does not name a run: {error}") from error
    return read_run_file(place.at(run_id))


def why_outdated(folder: Folder, run: Run, last: date | None = None) -> str | None:
    """The reason why a run, or an earlier one in its chain, is outdated; ``None`` if none is.

    A day that was run again may leave other items to the next day, which no later report would
    show. All earlier days are checked: the day before may itself be outdated. The reason names
    ``last`` as the last day to run again; the run's own day if left out.

    Raises:
        ReconcileRefused: The file of an earlier run cannot be read.
    """
    day = own = run.day
    first: tuple[date, date] | None = None
    for earlier in reversed(days_with_run(folder)):
        if earlier >= own or (before := current_run(folder, earlier)) is None:
            continue
        if before.result.end_ms < run.result.start_ms:
            break  # Days between have no run: the chain begins here.
        if run.previous_digest != before.result_digest:
            first = day, earlier
        day, run = earlier, before
    if first is None:
        return None
    return (
        f"{first[0]} was not made from the result of {first[1]} that is in force: run it again, "
        f"and all after it, with --from {first[0]} --to {last or own}"
    )


def read_run_file(folder: Folder) -> Run:
    """Read the file of a run in its folder.

    Raises:
        ReconcileRefused: The file cannot be read.
    """
    try:
        return msgspec.json.decode(folder.read("run.json"), type=Run)
    except (OSError, msgspec.DecodeError) as error:
        raise ReconcileRefused(f"{folder}/run.json is not the file of a run: {error}") from error
