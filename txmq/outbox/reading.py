"""What a relay reads next. No row is skipped because it was committed late.

Ids are given before commits are made, so behind the highest id that was read others may turn up
later. Reading goes forward from that highest id; a sweep looks at the last half second's ids again
many times a second, and another one at all before. Under a transaction of somebody else that lasts
for hours nothing that is deleted can be cleared away, and a sweep walks over all of it: so each has
a small share of the time and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from txmq.client.send_request import travels_alone
from txmq.errors import TxmqError
from txmq.outbox.finishing import Done
from txmq.outbox.lanes import Lanes, Row, Stretch
from txmq.outbox.ledger import Ledger, Page
from txmq.outbox.row import unpacked
from txmq.outbox.settings import RelaySettings
from txmq.outbox.slots import Slots
from txmq.protocol import properties
from txmq.runtime.clock import Clock

__all__ = ["Reading"]

RECENT_S: Final = 0.5
"""Most transactions are over this soon; rows of those that are not wait for the long sweep."""

PAGE_ROWS: Final = 1_000
LANES_AT_ONCE: Final = 200
_EVER: Final = 2**62


class Pace:
    """When a sweep is due: it has a share of the time, and is no rarer than need be.

    Args:
        share: The part of the time that it may take.
        often_s: How soon it comes again where there is reason to.
        seldom_s: How soon where there is none.
    """

    def __init__(self, share: float, often_s: float, seldom_s: float) -> None:
        self._share = share
        self._often_s = often_s
        self._seldom_s = seldom_s
        self._ended = 0.0
        self._took_s = 0.0

    def is_due(self, now: float, *, has_reason: bool) -> bool:
        """Whether it may be done now, and should."""
        pause_s = max(self._often_s if has_reason else self._seldom_s, self._took_s / self._share)
        return now - self._ended >= pause_s

    def took(self, began: float, ended: float) -> None:
        """It is done."""
        self._ended, self._took_s = ended, ended - began


class Reading:
    """Fills what a relay has at hand.

    Args:
        ledger: The database.
        lanes: What is filled.
        slots: Whose rows.
        done: The rows that are published and may still be seen.
        settings: How much there may be.
        clock: Where the time comes from.
        mark: How messages name the outbox.
    """

    def __init__(
        self,
        ledger: Ledger,
        lanes: Lanes,
        slots: Slots,
        done: Done,
        settings: RelaySettings,
        clock: Clock,
        mark: str,
    ) -> None:
        self._ledger = ledger
        self._lanes = lanes
        self._slots = slots
        self._done = done
        self._settings = settings
        self._clock = clock
        self._mark = mark
        self._recent = Pace(0.05, 0.005, 0.25)
        self._all = Pace(0.05, 0.02, 1.0)
        self.has_more = False
        """Whether there is more to be read, as far as can be known."""
        self.restart()

    def restart(self) -> None:
        """There are new slots: read everything."""
        self._high = self._floor = self._swept = 0
        self._marks: deque[tuple[float, int]] = deque()

    async def look(self, *, has_reason: bool) -> int:
        """Read what there is room for; returns how many rows are new, or were passed over.

        Args:
            has_reason: Whether somebody has said that there is something.

        Raises:
            Exception: What the ledger raises.
        """
        self.has_more = False
        now = self._clock.monotonic()
        self._lanes.wake_resting(now)
        count = await self._fetch(now)
        count += await self._forward()
        wants = has_reason and not count
        self._rise(now)
        if self._high and self._recent.is_due(now, has_reason=wants):
            count += await self._sweep(self._recent, self._floor, self._high)
        wants = wants or self._lanes.has_left_some
        if self._floor and self._all.is_due(now, has_reason=wants and not count):
            self._lanes.has_left_some = False
            count += await self._sweep(self._all, self._swept, self._floor)
        return count

    def _rise(self, now: float) -> None:
        """Let the floor follow the highest id, as it was a while ago."""
        if not self._marks or self._marks[-1][1] != self._high:
            self._marks.append((now, self._high))
        while self._marks and self._marks[0][0] <= now - RECENT_S:
            self._floor = self._marks.popleft()[1]

    @property
    def _room(self) -> tuple[int, int]:
        size = self._settings.bytes_max - self._lanes.bytes
        rows = min(self._lanes.room, PAGE_ROWS) if size > 0 else 0
        return max(0, rows), size

    # Each of the three ways

    async def _forward(self) -> int:
        count, size = self._room
        slots, low = self._slots.working, self._high
        if not count or not slots:
            return 0
        turns = self._begin()
        page = await self._ledger.forward(slots, low, count, size)
        if self._high != low:
            return 0  # There are new slots meanwhile.
        if page.rows:
            self._high = int(page.rows[-1][0])
        self.has_more = self.has_more or page.is_cut
        rows = self._rows(page, turns)
        await self._take_in(rows, low)
        return len(rows)  # Behind those of a topic in trouble there may be others.

    async def _sweep(self, pace: Pace, low: int, high: int) -> int:
        count, size = self._room
        slots = self._slots.working
        if not count or not slots:
            self._lanes.has_left_some = True
            return 0
        known = [*self._lanes.known(low, high), *self._done.between(low, high)]
        turns, began = self._begin(), self._clock.monotonic()
        page = await self._ledger.sweep(slots, low, high, known, self._lanes.behind(), count, size)
        pace.took(began, self._clock.monotonic())
        if page.is_cut:
            self._lanes.has_left_some = self.has_more = True
        taken = await self._take_in(self._rows(page, turns), low)
        if pace is self._all:
            # Cut short by nothing but what is passed over, it goes on behind that next time.
            is_stuck = page.is_cut and page.rows and not taken
            self._swept = int(page.rows[-1][0]) if is_stuck else 0
        return taken

    async def _fetch(self, now: float) -> int:
        count, size = self._room
        asked = self._lanes.wanted(now, LANES_AT_ONCE) if count else []
        if not asked:
            return 0
        turns = self._begin()
        page = await self._ledger.lanes(asked, _EVER, count, size)
        self.has_more = True
        asked = [each for each in asked if self._is_same(each.slot, turns)]
        rows = self._rows(page, turns)
        return self._lanes.fetched(asked, rows, self._clock.monotonic(), is_cut=page.is_cut)

    async def _take_in(self, rows: list[Row], low: int) -> int:
        """Where lanes may have rows that were committed late, look before anything is overtaken."""
        gaps = self._lanes.gaps(rows, low)
        if gaps:
            rows, low = await self._look_back(rows, gaps, low)
        return self._lanes.add(rows, low, self._clock.monotonic())

    async def _look_back(
        self, rows: list[Row], gaps: list[Stretch], low: int
    ) -> tuple[list[Row], int]:
        turns = self._slots.turns()  # What was read before stays: `gone` goes on from there.
        page = await self._ledger.lanes(gaps, low, PAGE_ROWS, self._settings.bytes_max)
        if page.is_cut:
            self._lanes.leave_behind(gaps)
            self.has_more = True
            return rows, low
        rows = [each for each in rows if self._is_same(each.slot, turns) and self._is_new(each.id)]
        return sorted([*self._rows(page, turns), *rows], key=lambda each: each.id), 0

    # Rows

    def _begin(self) -> dict[int, int]:
        self._done.gone.clear()
        return self._slots.turns()

    def _is_same(self, slot: int, turns: dict[int, int]) -> bool:
        return self._slots.turns().get(slot) == turns.get(slot, -1)

    def _is_new(self, row_id: int) -> bool:
        return row_id not in self._done and not self._lanes.holds(row_id)

    def _rows(self, page: Page, turns: dict[int, int]) -> list[Row]:
        """Those that are still ours, and not known."""
        now = self._slots.turns()
        return [
            self._row(each)
            for each in page.rows
            if now.get(each[1]) == turns.get(each[1], -1) and self._is_new(each[0])
        ]

    def _row(self, read: Iterable[Any]) -> Row:
        row = _Read(*read)
        try:
            message = unpacked(row)
        except (TxmqError, ValueError, TypeError) as problem:
            # Nobody but an operator can have written that.
            return Row(
                row.id, row.slot, row.lane, row.topic, len(row.body),
                is_alone=True, problem=f"the row holds no message: {problem}",
            )  # fmt: skip
        message.properties[properties.OUTBOX] = f"{self._mark}:{row.id}"
        if row.lane is not None:
            message.properties.setdefault(properties.SHARDING_KEY, row.lane)
        is_alone = travels_alone(message) or len(message.body) > self._settings.batch_bytes
        return Row(
            row.id, row.slot, row.lane, row.topic, len(message.body), message, is_alone=is_alone
        )


class _Read:
    """A row as it was read, by the names of its columns."""

    __slots__ = (
        "body", "delay", "flag", "id", "keys_", "lane", "message_id", "properties", "slot", "tags",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        id: int,  # noqa: A002 - it is called so
        slot: int,
        lane: str | None,
        message_id: str,
        topic: str,
        tags: str,
        keys_: str,
        properties: str,
        flag: int,
        delay: str | None,
        body: bytes,
        there: int,
    ) -> None:
        del there
        self.id = id
        self.slot = slot
        self.lane = lane
        self.message_id = message_id
        self.topic = topic
        self.tags = tags
        self.keys_ = keys_
        self.properties = properties
        self.flag = flag
        self.delay = delay
        self.body = body
