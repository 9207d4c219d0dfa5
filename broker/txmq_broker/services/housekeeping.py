"""The periodic chores of a broker: save tables, drop silent clients, sample counters, delete old
files of the log, and refuse sends while the disk is too full.

The chores are independent: one that fails is logged and tried again, and the others run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

from msgspec.structs import replace

from txmq.errors import CorruptRecord
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk
from txmq.text import quantity
from txmq_broker.config import RetentionSettings
from txmq_broker.core.admission import FULL, Admission
from txmq_broker.core.statistics import SAMPLE_S, Statistics
from txmq_broker.services.keeper import Keeper, Tables
from txmq_broker.store.checkpoints import Age
from txmq_broker.store.message_store import MessageStore

__all__ = ["Housekeeping", "RetentionVerdict", "local_time", "retention_verdict"]

log = logging.getLogger(__name__)

ROUND_S: Final = 5.0
"""The pause between two rounds of all chores."""

SAVE_S: Final = 1.0
"""The pause between two saves of changed groups and offsets. After a crash consumers receive again
only messages that they reported within this time.
"""


FORCED_PER_ROUND: Final = 10
"""Files deleted early in one round: enough to free space, few enough for operators to react."""


class Housekeeping:
    """The chores of one broker, and the floors of its queues after deletions."""

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        clock: Clock,
        keeper: Keeper,
        tables: Tables,
        statistics: Statistics,
        admission: Admission,
        retention: RetentionSettings,
    ) -> None:
        self._store = store
        self._disk = disk
        self._clock = clock
        self._keeper = keeper
        self._topics, self._groups, self._offsets = tables
        self._statistics = statistics
        self._admission = admission
        self.retention = retention
        self.floors: dict[str, dict[int, int]] = {}
        self._sample_at = 0.0

    async def run(self, *more: Callable[[], None]) -> None:
        """Run the chores, and those in ``more``, until cancelled."""
        while True:
            for chore in (*more, self._sample, self._retain):
                try:
                    chore()
                except OSError as error:
                    log.warning("housekeeping could not write: %s", error)
                except Exception:
                    log.exception("housekeeping failed")
            began = self._clock.monotonic()
            try:
                await self._write_tables()
            except OSError as error:
                log.warning("housekeeping could not write: %s", error)
            except Exception:
                log.exception("housekeeping failed")
            for _ in range(round(ROUND_S / SAVE_S) - 1):
                began = await self._next_save(began)
                with suppress(OSError):  # The next round of all chores reports it.
                    await self._write_tables()
                await self._merge_changes()
            await self._next_save(began)

    async def _next_save(self, began: float) -> float:
        """Wait until a second after the last save began, and return the time.

        Counting from the end of the save would make the saved offsets older on a slow disk.
        """
        await asyncio.sleep(max(0.0, began + SAVE_S - self._clock.monotonic()))
        return self._clock.monotonic()

    async def _write_tables(self) -> None:
        """Do the same as :meth:`save_tables`, but in parts and in a thread."""
        if not self._complete_if_due():
            try:
                self.end_deletion()
                await self._keeper.write_groups(self._groups)
            except OSError:
                await self._keeper.write_offsets(self._offsets)
                raise
            await self._keeper.write_offsets(self._offsets)

    async def _merge_changes(self) -> None:
        if not self._keeper.has_many_changes or self._keeper.is_incomplete:
            return
        try:
            await self._keeper.merge_changes(self._topics.saved())
        except OSError as error:
            log.warning("the file of all topics could not be written anew: %s", error)

    def save_tables(self) -> None:
        """Save changed groups and offsets, and the tables that the start could not save.

        Raises:
            OSError: The write failed.
        """
        if not self._complete_if_due():
            try:
                self.end_deletion()
                self._keeper.save_groups(self._groups)
            finally:
                self._keeper.save_offsets(self._offsets)

    def _complete_if_due(self) -> bool:
        """Save what the start could not save; returns whether there was anything."""
        if not self._keeper.is_incomplete:
            return False
        self.complete_tables()
        return True

    def complete_tables(self) -> None:
        """Write every table whose file differs from memory.

        Raises:
            OSError: The write failed.
        """
        self._keeper.complete(self._topics, self._groups, self._offsets, self.floors)

    def forget_topic(self, name: str, save_topics: Callable[[], None]) -> None:
        """Hide a deleted topic's messages for good.

        Args:
            name: The topic.
            save_topics: Saves the topics without it.

        Raises:
            OSError: The write failed; the messages stay visible.
        """
        hidden = {queue.number: queue.max_offset for queue in self._store.queues_of(name)}
        # Saved first: a later topic of this name must never show the messages.
        self._keeper.begin_deletion(self.floors, self._store.log.durable, name, hidden)
        save_topics()
        self.floors[name] = self._store.queues.forget_topic(name)
        self._statistics.forget_topic(name)
        with suppress(OSError):  # The chores try again every second.
            self.end_deletion()

    def end_deletion(self) -> None:
        """Save the floors again if a deletion has begun, so that they no longer depend on topics.

        Raises:
            OSError: The write failed; no topic may be created.
        """
        if self._keeper.has_begun_deletion:
            self._keeper.save_floors(self.floors, self._store.log.durable)

    def retain_now(self) -> None:
        """Delete the old files of the log at any hour.

        Raises:
            OSError: A disk operation failed.
        """
        hour = local_time(self._clock).hour
        self._delete_old(replace(self.retention, delete_at=str(hour)))

    def _sample(self) -> None:
        now = self._clock.monotonic()
        if now >= self._sample_at:
            self._sample_at = now + SAMPLE_S
            self._statistics.count_puts(self._topics)
            self._statistics.sample(now, local_time(self._clock).toordinal())

    def _retain(self) -> None:
        self._delete_old(self.retention)

    def _delete_old(self, settings: RetentionSettings) -> None:
        used = self._disk.space().used_part
        files = self._store.checkpoints.completed_files()
        now_ms = self._clock.wall_ms()
        hour = local_time(self._clock).hour
        verdict = retention_verdict(settings, files, now_ms, hour, used, self._pinned())
        self._admit_halves(used > settings.refuse_halves_above, settings.refuse_halves_above)
        self._admit(verdict.refuse_sends, settings.refuse_above, used)
        if verdict.delete:
            # Saved first: no offset may ever be assigned twice.
            floors = self._store.floors_after(verdict.delete)
            self._keeper.save_floors(floors, self._store.log.durable)
            self.floors = floors
            for _ in range(verdict.delete):
                self._store.drop_first_file()
            log.info("deleted %s of the log", quantity(verdict.delete, "old file"))

    def _pinned(self) -> int | None:
        try:
            return self._store.pinned()
        except CorruptRecord as error:
            log.warning("nothing of the log is deleted: %s", error)
            return self._store.log.start

    def _admit_halves(self, refuse: bool, mark: float) -> None:
        if refuse:
            reason = f"the disk is more than {mark:.0%} full; the rest is for decisions"
            if self._admission.set_cause(FULL, reason, halves_only=True):
                log.error("refusing half messages: the disk is more than %.0f%% full", mark * 100)
        elif self._admission.clear_cause(FULL, halves_only=True):
            log.info("taking half messages again")

    def _admit(self, refuse: bool, mark: float, used: float) -> None:
        if refuse:
            if self._admission.set_cause(FULL, f"the disk is more than {mark:.0%} full"):
                log.error("refusing sends: the disk is %.1f%% full", used * 100)
        elif self._admission.clear_cause(FULL):
            log.info("taking sends again: the disk is %.1f%% full", used * 100)


def local_time(clock: Clock) -> datetime:
    """The time in the local time zone, which operators mean by hours and days."""
    return datetime.fromtimestamp(clock.wall_ms() / 1000)  # noqa: DTZ006


class RetentionVerdict(NamedTuple):
    """What to do about the log's files and about sends, given the room on the disk."""

    delete: int
    """The number of the oldest files to delete."""
    refuse_sends: bool


def retention_verdict(
    settings: RetentionSettings,
    files: Sequence[Age],
    now_ms: int,
    hour: int,
    disk_used: float,
    pinned: int | None = None,
) -> RetentionVerdict:
    """Decide which old files of the log to delete, and whether to refuse sends.

    Args:
        settings: The retention settings.
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
