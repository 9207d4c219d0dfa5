"""Reads the log again and again, to find bytes that the disk has changed.

A round compares every span with its checksum, in the newest file first. Spans written there since
the start wait until the file is full: they are still in the page cache, so reading them says
nothing about the disk.

A round reads one piece at a time, in the thread of the disk, and takes at most a tenth of the time.
A span that looks damaged is read a second time on the event loop, where nothing changes the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk, File
from txmq_broker.services.table_saves import run_in_thread
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.log.damaged_parts import DamagedPart, DamagedParts, look_at
from txmq_broker.store.log.segments import Extent, path_of
from txmq_broker.store.log.spans import whole_spans

__all__ = ["LogVerifier"]

log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 64 * 1024
_PAUSE_S: Final = 10.0
"""The pause between two rounds, which matters only for small logs."""
_REST: Final = 9
"""The pause after a piece is at least nine times as long as its read: many small spans take longer
than their bytes suggest, and a busy disk is left to others.
"""


class LogVerifier:
    """Verifies one log.

    Args:
        disk: The directory.
        clock: For the pace, and for the time of the last round.
        bytes_per_second: The highest rate of reading; 0 for no rounds.
        current: Returns the log; ``None`` while it is not open.
        damaged: Receives the damaged parts that are found.

    Attributes:
        verified_bytes: The bytes that were compared with their checksums.
        rounds: The number of finished rounds.
        last_round_ms: When the last round ended, by the wall clock; 0 before the first.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        bytes_per_second: int,
        current: Callable[[], CommitLog | None],
        damaged: DamagedParts,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._current = current
        self._suspects: set[int] = set()
        self._verified_at: dict[int, float] = {}
        """When each file was verified last, by its start."""
        self._opened: CommitLog | None = None
        self._opened_end = 0
        """Where the log ended when it was found open."""
        self._woken = asyncio.Event()
        self.damaged = damaged
        self.verified_bytes = 0
        self.rounds = 0
        self.last_round_ms = 0

    def suspect(self, position: int) -> None:
        """Verify the file that holds a position soon, because a reader met damage there."""
        if not self.damaged.holds(position) and not self._was_just_verified(position):
            self._suspects.add(position)
            self._woken.set()

    def _was_just_verified(self, position: int) -> bool:
        found = self._current()
        if found is None or not found.segments.starts:
            return False
        verified_at = self._verified_at.get(found.file_at(position), float("-inf"))
        return self._clock.monotonic() - verified_at < _PAUSE_S

    async def run(self) -> None:
        """Verify until cancelled."""
        next_round = self._clock.monotonic()
        while True:
            try:
                if self._bytes_per_second and self._clock.monotonic() >= next_round:
                    await self._round()
                    next_round = self._clock.monotonic() + _PAUSE_S
                await self._look_at_suspects()
            except OSError as error:
                log.warning("the log could not be verified: %s", error)
                next_round = self._clock.monotonic() + _PAUSE_S
            except Exception:
                log.exception("the log could not be verified")
                next_round = self._clock.monotonic() + _PAUSE_S
            left = max(0.0, next_round - self._clock.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(left if self._bytes_per_second else None):
                    await self._woken.wait()

    async def _round(self) -> None:
        found = self._current()
        if found is None:
            return
        self._verified_at.clear()
        self.damaged.keep_within(found.start, found.end)
        for part in self.damaged:
            if await self.is_whole(part):
                log.warning("the log is whole again %s", part)
                self.damaged.remove(part)
        if self._opened is not found:
            self._opened, self._opened_end = found, found.durable
        extents, durable = found.segments.extents(), found.durable
        for extent in reversed(extents):
            end = min(durable, self._opened_end if extent is extents[-1] else extent.end)
            await self._verify(found, extent.start, end, self.damaged.add, is_paced=True)
            if found is not self._current():
                return
            if end == extent.end:
                self._verified_at[extent.start] = self._clock.monotonic()
        self.rounds += 1
        self.last_round_ms = self._clock.wall_ms()

    async def _look_at_suspects(self) -> None:
        self._woken.clear()
        while self._suspects:
            position = min(self._suspects)
            self._suspects.remove(position)
            found = self._current()
            if found is None or not found.start <= position < found.durable:
                continue
            if not self._was_just_verified(position):
                start = found.file_at(position)
                await self._verify(found, start, found.durable, self.damaged.add)
                self._verified_at[start] = self._clock.monotonic()

    def vouches_for(self, position: int) -> bool:
        """Whether a verification just now found no damage at a position."""
        return self._was_just_verified(position) and not self.damaged.holds(position)

    async def is_whole(self, part: DamagedPart) -> bool:
        """Whether a part is no longer damaged."""
        found, damage = self._current(), list[DamagedPart]()
        if found is None or not found.start <= part.start < part.end <= found.end:
            return False
        await self._verify(found, part.start, part.end, damage.append)
        return not damage and found is self._current()

    async def _verify(
        self,
        verified: CommitLog,
        start: int,
        end: int,
        found: Callable[[DamagedPart], None],
        *,
        is_paced: bool = False,
    ) -> None:
        """Verify one file from the start of a span on, up to a position."""
        segments = verified.segments
        if start < segments.start:
            return
        extent = segments.extent_at(start)
        extent = Extent(extent.start, min(extent.end, end))
        # Opened again, because the log may close its file while the thread reads.
        try:
            file = self._disk.open(path_of(extent.start))
        except FileNotFoundError:
            log.error("the file %s is gone", path_of(extent.start))  # noqa: TRY400
            return
        try:
            at = start
            while at < extent.end:
                began = self._clock.monotonic()
                after = await self._whole_until(file, extent, at, segments.log_id)
                if verified is not self._current() or extent.start not in segments.starts:
                    return
                if after == at:
                    after, is_whole = look_at(segments, at)
                    if not is_whole:
                        found(DamagedPart(at, after))
                self.verified_bytes += after - at
                await self._pause(after - at, began, is_paced=is_paced)
                at = after
        finally:
            file.close()

    async def _whole_until(self, file: File, extent: Extent, at: int, log_id: int) -> int:
        """Where a piece of intact spans ends that begins at a position; ``at`` if it is empty."""
        ends = [at]

        def read() -> None:
            for _, last in whole_spans(file, extent, at, log_id, _PIECE_BYTES):
                ends.append(last.position + last.size)
                return

        try:
            await run_in_thread(self._disk, read)
        except OSError as error:
            log.debug("the disk could not read the log at %d: %s", at, error)
        return ends[-1]

    async def _pause(self, size: int, began: float, *, is_paced: bool) -> None:
        if not is_paced:
            return
        took = self._clock.monotonic() - began
        await asyncio.sleep(max(size / self._bytes_per_second, _REST * took))
        if self._suspects:
            await self._look_at_suspects()
