"""Decides which log files to delete and when to refuse sends; it deletes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from txmq_broker.config import RetentionSettings

__all__ = ["Age", "RetentionVerdict", "decide"]

FORCED_PER_ROUND: Final = 10
"""Files deleted early in one round: enough to free space, few enough for operators to react."""


class Age(NamedTuple):
    """A complete file of the log, and the store time of its last message."""

    start: int
    end: int
    last_ms: int


class RetentionVerdict(NamedTuple):
    """The decision for this moment."""

    delete: int
    """The number of the oldest files to delete."""
    refuse_sends: bool


def decide(
    settings: RetentionSettings,
    files: Sequence[Age],
    now_ms: int,
    hour: int,
    disk_used: float,
    pinned: int | None = None,
) -> RetentionVerdict:
    """Decide for this moment.

    Args:
        settings: The marks.
        files: The complete files, oldest first, without the current one.
        now_ms: The wall clock.
        hour: The hour of the day, 0 to 23.
        disk_used: The used part of the disk, 0.0 to 1.0.
        pinned: A log position that must stay readable, such as an undecided transaction's.
    """
    hours = {int(part) for part in settings.delete_at.split(";") if part.strip().isdecimal()}
    oldest_kept = now_ms - int(settings.keep * 1000)
    may_delete = hour in hours or disk_used > settings.delete_above
    forced = FORCED_PER_ROUND if disk_used > settings.force_above else 0
    delete = 0
    for file in files:
        if pinned is not None and file.end > pinned:
            break
        is_old = file.last_ms < oldest_kept
        if not (is_old and may_delete) and delete >= forced:
            break
        delete += 1
    return RetentionVerdict(delete, disk_used > settings.refuse_above)
