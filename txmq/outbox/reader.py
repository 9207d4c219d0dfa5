"""Chooses the rows that a relay reads next, without missing rows that were committed late.

Ids are assigned before the commit, so rows with lower ids than the highest id read may still
appear. Forward reads start from that highest id. One sweep rereads the ids of the last half second,
many times a second; another rereads all earlier ids. While a transaction stays open for hours, the
database cannot remove deleted rows, and a sweep scans all of them. So each sweep has a limited
share of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from txmq.client.send_request import travels_alone
from txmq.errors import TxmqError
from txmq.outbox.lanes import LanePosition, Lanes, OutboxRow, Slots
from txmq.outbox.publisher import PublishedRows
from txmq.outbox.settings import RelaySettings
from txmq.outbox.store import OutboxStore, Page
from txmq.outbox.table import unpack
from txmq.protocol import properties
from txmq.runtime.clock import Clock

__all__ = ["OutboxReader"]

RECENT_S: Final = 0.5
"""Most transactions end within this time; rows of the others wait for the long sweep."""

PAGE_ROWS: Final = 1_000
LANES_AT_ONCE: Final = 200
_ID_MAX: Final = 2**62


class SweepPace:
    """The schedule of a sweep: as often as its share of the time allows.

    Args:
        share: The share of the time that it may take.
        often_s: The interval after a notification or after skipped rows.
        seldom_s: The interval otherwise.
    """

    def __init__(self, share: float, often_s: float, seldom_s: float) -> None:
        self._share = share
        self._often_s = often_s
        self._seldom_s = seldom_s
        self._ended = 0.0
        self._took_s = 0.0

    def is_due(self, now: float, *, has_reason: bool) -> bool:
        """Whether a sweep is due now."""
        pause_s = max(self._often_s if has_reason else self._seldom_s, self._took_s / self._share)
        return now - self._ended >= pause_s

    def record(self, began: float, ended: float) -> None:
        """Record the time of a sweep."""
        self._ended, self._took_s = ended, ended - began


class _RawRow(NamedTuple):
    """The columns of a row, as the statements select them."""

    id: int
    slot: int
    lane: str | None
    message_id: str
    topic: str
    tags: str
    keys_: str
    properties: str
    flag: int
    delay: str | None
    body: bytes
    there: int


class OutboxReader:
    """Reads rows into the lanes.

    Args:
        store: The database.
        lanes: The rows in memory.
        slots: The slots whose rows are read.
        published: Published rows, which a read may still return.
        settings: The maximum number of rows and bytes in memory.
        clock: The source of the time.
        mark: The outbox's name in log lines.
    """

    def __init__(
        self,
        store: OutboxStore,
        lanes: Lanes,
        slots: Slots,
        published: PublishedRows,
        settings: RelaySettings,
        clock: Clock,
        mark: str,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._slots = slots
        self._published = published
        self._settings = settings
        self._clock = clock
        self._mark = mark
        self._recent = SweepPace(0.05, 0.005, 0.25)
        self._all = SweepPace(0.05, 0.02, 1.0)
        self.has_more: bool = False
        """True if the last look probably left rows unread."""
        self.restart()

    def restart(self) -> None:
        """Read everything again, because there are new slots."""
        self._high = self._floor = self._swept = 0
        self._marks: deque[tuple[float, int]] = deque()

    async def look(self, *, has_reason: bool) -> int:
        """Read as many rows as fit; return the number of new and skipped ones.

        Args:
            has_reason: Whether a notification announced rows.

        Raises:
            Exception: Any error of the store.
        """
        self.has_more = False
        now = self._clock.monotonic()
        self._lanes.wake_resting(now)
        count = await self._read_lanes(now)
        count += await self._read_forward()
        wants = has_reason and not count
        self._raise_floor(now)
        if self._high and self._recent.is_due(now, has_reason=wants):
            count += await self._sweep(self._recent, self._floor, self._high)
        wants = wants or self._lanes.has_left_some
        if self._floor and self._all.is_due(now, has_reason=wants and not count):
            self._lanes.has_left_some = False
            count += await self._sweep(self._all, self._swept, self._floor)
        return count

    def _raise_floor(self, now: float) -> None:
        """Set the floor to the highest id as of ``RECENT_S`` ago."""
        if not self._marks or self._marks[-1][1] != self._high:
            self._marks.append((now, self._high))
        while self._marks and self._marks[0][0] <= now - RECENT_S:
            self._floor = self._marks.popleft()[1]

    @property
    def _room(self) -> tuple[int, int]:
        size = self._settings.size_max - self._lanes.bytes
        rows = min(self._lanes.room, PAGE_ROWS) if size > 0 else 0
        return max(0, rows), size

    # The three kinds of reads

    async def _read_forward(self) -> int:
        count, size = self._room
        slots, low = self._slots.working, self._high
        if not count or not slots:
            return 0
        turns = self._begin()
        page = await self._store.forward(slots, low, count, size)
        if self._high != low:
            return 0  # New slots arrived during the read.
        if page.rows:
            self._high = int(page.rows[-1][0])
        self.has_more = self.has_more or page.is_cut
        rows = self._rows(page, turns)
        await self._take_in(rows, low)
        return len(rows)  # Skipped rows count: rows of other topics may follow them.

    async def _sweep(self, pace: SweepPace, low: int, high: int) -> int:
        count, size = self._room
        slots = self._slots.working
        if not count or not slots:
            self._lanes.has_left_some = True
            return 0
        known = [*self._lanes.known(low, high), *self._published.between(low, high)]
        turns, began = self._begin(), self._clock.monotonic()
        page = await self._store.sweep(slots, low, high, known, self._lanes.behind(), count, size)
        pace.record(began, self._clock.monotonic())
        if page.is_cut:
            self._lanes.has_left_some = self.has_more = True
        taken = await self._take_in(self._rows(page, turns), low)
        if pace is self._all:
            # If skipped rows alone filled the page, the next sweep starts after them.
            is_stuck = page.is_cut and page.rows and not taken
            self._swept = int(page.rows[-1][0]) if is_stuck else 0
        return taken

    async def _read_lanes(self, now: float) -> int:
        count, size = self._room
        wanted = self._lanes.wanted(now, LANES_AT_ONCE) if count else []
        if not wanted:
            return 0
        turns = self._begin()
        page = await self._store.lanes(wanted, _ID_MAX, count, size)
        self.has_more = True
        wanted = [position for position in wanted if self._is_same(position.slot, turns)]
        rows = self._rows(page, turns)
        return self._lanes.add_fetched(wanted, rows, self._clock.monotonic(), is_cut=page.is_cut)

    async def _take_in(self, rows: list[OutboxRow], low: int) -> int:
        """Add rows to the lanes; first look for earlier rows of a lane that were committed late, so
        that no row overtakes them.
        """
        gaps = self._lanes.gaps(rows, low)
        if gaps:
            rows, low = await self._look_back(rows, gaps, low)
        return self._lanes.add(rows, low, self._clock.monotonic())

    async def _look_back(
        self, rows: list[OutboxRow], gaps: list[LanePosition], low: int
    ) -> tuple[list[OutboxRow], int]:
        turns = self._slots.turns()  # Not _begin: `gone` must keep the rows of the first read.
        page = await self._store.lanes(gaps, low, PAGE_ROWS, self._settings.size_max)
        if page.is_cut:
            self._lanes.leave_behind(gaps)
            self.has_more = True
            return rows, low
        rows = [row for row in rows if self._is_same(row.slot, turns) and self._is_new(row.id)]
        return sorted([*self._rows(page, turns), *rows], key=lambda row: row.id), 0

    # Rows

    def _begin(self) -> dict[int, int]:
        self._published.gone.clear()
        return self._slots.turns()

    def _is_same(self, slot: int, turns: dict[int, int]) -> bool:
        return self._slots.turns().get(slot) == turns.get(slot, -1)

    def _is_new(self, row_id: int) -> bool:
        return row_id not in self._published and not self._lanes.holds(row_id)

    def _rows(self, page: Page, turns: dict[int, int]) -> list[OutboxRow]:
        """The rows of a page that still belong to this relay, and are new to it."""
        now = self._slots.turns()
        return [
            self._row(columns)
            for columns in page.rows
            if now.get(columns[1]) == turns.get(columns[1], -1) and self._is_new(columns[0])
        ]

    def _row(self, columns: Iterable[Any]) -> OutboxRow:
        row = _RawRow(*columns)
        try:
            message = unpack(row)
        except (TxmqError, ValueError, TypeError) as error:
            # Only a manual change makes a row unreadable.
            return OutboxRow(
                row.id, row.slot, row.lane, row.topic, len(row.body),
                is_alone=True, problem=f"the row holds no message: {error}",
            )  # fmt: skip
        message.properties[properties.OUTBOX] = f"{self._mark}:{row.id}"
        if row.lane is not None:
            message.properties.setdefault(properties.SHARDING_KEY, row.lane)
        is_alone = travels_alone(message) or len(message.body) > self._settings.batch_size
        return OutboxRow(
            row.id, row.slot, row.lane, row.topic, len(message.body), message, is_alone=is_alone
        )
