"""Which rows of an outbox a relay has at hand, and which of them may be sent now. Pure.

In one lane the order of the ids is the order of the commits: once a row has been seen, every row of
its lane before it is there to be seen as well. So a lane is known up to the last row that was taken
in, and a row further on is taken in only if nothing can be between: if it was read from there on,
or if somebody has looked. A lane of which that cannot be said, or which has more rows than there is
room for, is behind, and is fetched by itself from where it is known. A lane that has nothing at
hand can be forgotten at any time; that costs a look and nothing else.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from txmq.limits import OUTBOX_LANES_KEPT, OUTBOX_RESTING_MAX
from txmq.message import Message

__all__ = ["Lanes", "Load", "Row", "Stretch"]

TROUBLE_REST_S: Final = 1.0
"""How long a lane is left alone whose topic is in trouble, and has its share of the room."""

_by_id: Final = attrgetter("id")


class Row:
    """A row at hand."""

    __slots__ = (
        "attempts",
        "id",
        "is_alone",
        "lane",
        "message",
        "problem",
        "size",
        "slot",
        "topic",
    )

    def __init__(
        self,
        id: int,  # noqa: A002 - it is called so
        slot: int,
        lane: str | None,
        topic: str,
        size: int,
        message: Message | None = None,
        *,
        is_alone: bool = False,
        problem: str = "",
    ) -> None:
        self.id = id
        self.slot = slot
        self.lane = lane
        self.topic = topic
        self.size = size
        self.message = message
        self.is_alone = is_alone
        """Whether it must not travel with others."""
        self.problem = problem
        """Why there is no message in it."""
        self.attempts = 0
        """How often it was refused in a way that may have been its fault."""


class Stretch(NamedTuple):
    """A lane, and up to where it is known."""

    slot: int
    lane: str
    seen: int


class Load(NamedTuple):
    """Rows of one topic that may be sent now, at the same time or one after the other."""

    topic: str
    rows: list[Row]
    is_laned: bool


class _Lane:
    __slots__ = ("flying", "is_behind", "name", "rests_until", "rows", "seen", "slot")

    def __init__(self, slot: int, name: str) -> None:
        self.slot = slot
        self.name = name
        self.seen = 0
        self.rows: deque[Row] = deque()
        self.flying = 0
        self.is_behind = False
        self.rests_until = 0.0


class Lanes:
    """The rows at hand of the slots that a relay has.

    Args:
        rows_max: How many there may be.
        lane_rows_max: How many of one lane.
        load_rows: How many travel together.
        load_bytes: How many bytes of them, if it is more than one.
        bytes_max: How many bytes there may be at hand.
    """

    def __init__(
        self,
        rows_max: int,
        lane_rows_max: int,
        load_rows: int,
        load_bytes: int,
        bytes_max: int,
    ) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._lane_rows_max = lane_rows_max
        self._load_rows = load_rows
        self._load_bytes = load_bytes
        self._slots: set[int] = set()
        self._rows: dict[int, Row] = {}
        self._flying: dict[int, Row] = {}
        self._flying_of: Counter[int] = Counter()
        self._of_topic: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._lanes: dict[str, _Lane] = {}
        self._idle: dict[str, None] = {}
        self._behind: dict[str, None] = {}
        self._resting: dict[int, float] = {}
        self._paused: dict[str, float] = {}
        self._loose: dict[str, deque[Row]] = {}
        self._ready: dict[str, dict[str, None]] = {}
        self._turns: dict[tuple[str, bool], None] = {}
        self.bytes = 0
        """The bodies at hand."""
        self.has_left_some = False
        """Whether rows without a lane were passed over, which only a sweep finds again."""

    def __len__(self) -> int:
        return len(self._rows)

    # Slots

    def open(self, slots: Iterable[int]) -> None:
        """Take in rows of these slots from now on."""
        self._slots.update(slots)

    def close(self, slots: Iterable[int]) -> None:
        """Take in no more of them, and drop those that are not on their way."""
        gone = set(slots)
        self._slots -= gone
        for topic, rows in list(self._loose.items()):
            kept = deque(each for each in rows if each.slot not in gone)
            for each in rows:
                if each.slot in gone:
                    self._drop(each)
            self._loose[topic] = kept
            if not kept:
                self._loose.pop(topic)
        for lane in [each for each in self._lanes.values() if each.slot in gone]:
            self._forget(lane)
        # A row that rests is found again by whoever has its slot then; of ours, some come early.
        self._resting.clear()
        self.has_left_some = True

    def lose(self, slots: Iterable[int]) -> None:
        """They are somebody else's now: what is on its way is not ours to wait for, either."""
        gone = set(slots)
        self.close(gone)
        for each in [each for each in self._flying.values() if each.slot in gone]:
            del self._flying[each.id]
            self._flying_of[each.slot] -= 1
            self._drop(each)

    def is_clear(self, slot: int) -> bool:
        """Whether nothing of a slot is on its way."""
        return not self._flying_of[slot]

    # Taking in

    @property
    def room(self) -> int:
        """How many more rows there may be."""
        return max(0, self._rows_max - len(self._rows))

    def holds(self, row_id: int) -> bool:
        """Whether a row is at hand, or rests."""
        return row_id in self._rows or row_id in self._resting

    def known(self, low: int, high: int) -> list[int]:
        """The ids in a stretch that need not be read again."""
        at_hand = [each for each in self._rows if low < each <= high]
        return at_hand + [each for each in self._resting if low < each <= high]

    def behind(self) -> list[str]:
        """The lanes that are fetched by themselves."""
        return list(self._behind)

    def gaps(self, rows: Sequence[Row], low: int) -> list[Stretch]:
        """The lanes of rows, all after ``low``, that may have rows before it which nobody has seen.

        Look there, and not before these rows were read; then take all in by ``add(..., 0)``.
        """
        found: dict[str, Stretch] = {}
        if low > 0:
            for each in rows:
                if each.lane is None or each.lane in found or each.slot not in self._slots:
                    continue
                lane = self._lanes.get(each.lane)
                seen = 0 if lane is None else lane.seen
                if seen < low and not (lane is not None and lane.is_behind):
                    found[each.lane] = Stretch(each.slot, each.lane, seen)
        return list(found.values())

    def leave_behind(self, stretches: Iterable[Stretch]) -> None:
        """Nobody could look at these to the end."""
        for each in stretches:
            if each.slot in self._slots:
                self._set_behind(self._lane(each.slot, each.lane))

    def add(self, rows: Iterable[Row], low: int, now: float) -> int:
        """Take in rows that were read; returns how many.

        Args:
            rows: By their ids; of each lane all that are there from ``low`` on, up to its last one.
            low: Where reading began; 0 if nothing can have been left out.
            now: The time.
        """
        before = len(self._rows)
        for row in rows:
            if row.slot not in self._slots or self.holds(row.id):
                continue
            if row.lane is not None:
                self._add_laned(row, low, now)
            elif self._has_its_share(row.topic):
                self.has_left_some = True
            else:
                self._keep(row)
                self._loose.setdefault(row.topic, deque()).append(row)
                self._turns.setdefault((row.topic, False))
        return len(self._rows) - before

    def _add_laned(self, row: Row, low: int, now: float) -> None:
        assert row.lane is not None, "it has a lane"
        lane = self._lane(row.slot, row.lane)
        if lane.is_behind:
            return
        if row.id <= lane.seen:
            # It was put aside, and somebody has repaired it since.
            self._keep(row)
            if lane.rows:
                self._unready(lane.rows[0].topic, lane.name)
            insort(lane.rows, row, key=_by_id)
        elif lane.seen < low or len(lane.rows) >= self._lane_rows_max:
            self._set_behind(lane)
        elif self._has_its_share(row.topic):
            lane.rests_until = now + TROUBLE_REST_S
            self._set_behind(lane)
        else:
            self._keep(row)
            lane.rows.append(row)
            lane.seen = row.id
        self._place(lane)

    def _has_its_share(self, topic: str) -> bool:
        """Whether topics in trouble, of which this is one, have so much of the room that others
        would be held up.
        """
        # Of each there is a row, by which it is seen when the trouble is over.
        if topic not in self._paused or not self._of_topic[topic]:
            return False
        rows = sum(self._of_topic[each] for each in self._paused)
        size = sum(self._bytes_of[each] for each in self._paused)
        return 2 * rows >= self._rows_max or 2 * size >= self._bytes_max

    def wanted(self, now: float, count: int) -> list[Stretch]:
        """Some lanes that are behind and have nothing at hand, to be fetched."""
        found = []
        for name in list(islice(self._behind, 4 * count)):
            lane = self._lanes[name]
            # Those that were looked at come last next time.
            del self._behind[name]
            self._behind[name] = None
            if not lane.rows and not lane.flying and lane.rests_until <= now:
                found.append(Stretch(lane.slot, name, lane.seen))
                if len(found) >= count:
                    break
        return found

    def fetched(
        self, asked: Sequence[Stretch], rows: Iterable[Row], now: float, *, is_cut: bool
    ) -> int:
        """Take in what was read of lanes from where they are known; returns how many.

        Args:
            asked: The lanes.
            rows: All their rows, by their ids; the first of them where that was cut short.
            now: The time.
            is_cut: Whether it was.
        """
        lanes = [self._lanes[each.lane] for each in asked if each.lane in self._lanes]
        for lane in lanes:
            lane.is_behind, lane.rests_until = False, 0.0
            self._behind.pop(lane.name, None)
        count = self.add(rows, 0, now)
        for lane in lanes:
            if is_cut:
                self._set_behind(lane)
            self._place(lane)
        return count

    # Sending

    def pause(self, topic: str, until: float) -> None:
        """Send nothing to a topic for a while; until one of its rows is sent, it is in trouble."""
        self._paused[topic] = until
        loose = self._loose.get(topic, deque())
        while loose and self._has_its_share(topic):
            self._drop(loose.pop())
            self.has_left_some = True
        for name in reversed(list(self._ready.get(topic, {}))):
            if not self._has_its_share(topic):
                break
            self._leave(self._lanes[name], until)

    def works(self, topic: str) -> None:
        """A row of it was sent."""
        self._paused.pop(topic, None)

    def is_paused(self, topic: str, now: float) -> bool:
        """Whether a topic has to wait."""
        return self._paused.get(topic, 0.0) > now

    def paused_until(self) -> float | None:
        """When the first pause ends of a topic that has rows."""
        return min((self._paused.get(topic, 0.0) for topic, _ in self._turns), default=None)

    def take(self, now: float) -> Load | None:
        """What may be sent now; of a lane nothing more until all of it has landed."""
        for topic, is_laned in list(self._turns):
            if self._paused.get(topic, 0.0) > now:
                continue
            del self._turns[topic, is_laned]
            rows = self._take_laned(topic) if is_laned else self._take_loose(topic)
            if (self._ready if is_laned else self._loose).get(topic):
                self._turns[topic, is_laned] = None
            if rows:
                for each in rows:
                    self._flying[each.id] = each
                    self._flying_of[each.slot] += 1
                return Load(topic, rows, is_laned)
        return None

    def _take_loose(self, topic: str) -> list[Row]:
        waiting = self._loose.get(topic, deque())
        rows = self._run(waiting, topic, [], 0)[0]
        if not waiting:
            self._loose.pop(topic, None)
        return rows

    def _take_laned(self, topic: str) -> list[Row]:
        rows: list[Row] = []
        size = 0
        for name in list(islice(self._ready.get(topic, {}), self._load_rows)):
            lane = self._lanes[name]
            count = len(rows)
            rows, size = self._run(lane.rows, topic, rows, size)
            lane.flying = len(rows) - count
            if lane.flying:
                self._unready(topic, name)
            if not lane.flying or rows[-1].is_alone:
                break
        return rows

    def _run(
        self, waiting: deque[Row], topic: str, rows: list[Row], size: int
    ) -> tuple[list[Row], int]:
        """Those in front that may travel with some."""
        while waiting and waiting[0].topic == topic and len(rows) < self._load_rows:
            row = waiting[0]
            if rows and (row.is_alone or size + row.size > self._load_bytes):
                break
            rows.append(waiting.popleft())
            size += row.size
            if row.is_alone:
                break
        return rows, size

    # Landing

    def is_ours(self, row: Row) -> bool:
        """Whether a row on its way is one that this waits for."""
        return self._flying.get(row.id) is row

    def land(self, rows: Iterable[Row]) -> None:
        """They are sent, or otherwise done with."""
        for row in rows:
            lane = self._landed(row)
            if lane is not None:
                self._place(lane)

    def give_back(self, rows: Sequence[Row]) -> None:
        """They are not sent, and may be again."""
        for row in reversed(rows):
            if not self.is_ours(row):
                continue
            lane = self._landed(row)
            if row.slot not in self._slots or (row.lane is not None and lane is None):
                continue
            if lane is not None and row.id > lane.seen:
                # One before it was left meanwhile: both are fetched again, in their order.
                self._set_behind(lane)
                self._place(lane)
                continue
            if self._has_its_share(row.topic):
                if lane is None:
                    self.has_left_some = True
                else:
                    self._leave(lane, self._paused[row.topic], row.id)
                continue
            self._keep(row)
            if lane is not None:
                insort(lane.rows, row, key=_by_id)
                self._place(lane)
            else:
                self._loose.setdefault(row.topic, deque()).appendleft(row)
                self._turns.setdefault((row.topic, False))

    def rest(self, row: Row, until: float) -> None:
        """Nobody takes it, and its lane waits with it, or without a lane it alone."""
        if not self.is_ours(row):
            return
        lane = self._landed(row)
        if lane is not None:
            assert not lane.flying, "what is refused for good was sent alone"
            self._leave(lane, until, row.id)
        elif row.lane is None:
            if len(self._resting) >= OUTBOX_RESTING_MAX:
                del self._resting[next(iter(self._resting))]
            self._resting[row.id] = until

    def wake_resting(self, now: float) -> None:
        """Those that have rested are found by a sweep."""
        for each in [each for each, until in self._resting.items() if until <= now]:
            del self._resting[each]
            self.has_left_some = True

    def _landed(self, row: Row) -> _Lane | None:
        if not self.is_ours(row):
            return None
        del self._flying[row.id]
        self._flying_of[row.slot] -= 1
        self._drop(row)
        lane = None if row.lane is None else self._lanes.get(row.lane)
        if lane is not None:
            lane.flying -= 1
        return lane

    # Inside

    def _keep(self, row: Row) -> None:
        self._rows[row.id] = row
        self._of_topic[row.topic] += 1
        self._bytes_of[row.topic] += row.size
        self.bytes += row.size

    def _drop(self, row: Row) -> None:
        del self._rows[row.id]
        self._of_topic[row.topic] -= 1
        self._bytes_of[row.topic] -= row.size
        if not self._of_topic[row.topic]:
            del self._of_topic[row.topic], self._bytes_of[row.topic]
        self.bytes -= row.size

    def _lane(self, slot: int, name: str) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(slot, name)
            self._idle[name] = None
            if len(self._idle) > OUTBOX_LANES_KEPT:
                oldest = next(iter(self._idle))
                if oldest != name:
                    self._forget(self._lanes[oldest])
        return lane

    def _leave(self, lane: _Lane, until: float, *ids: int) -> None:
        """Have nothing more of a lane at hand, and rows of it that have come back neither."""
        if lane.rows:
            self._unready(lane.rows[0].topic, lane.name)
        for each in lane.rows:
            self._drop(each)
        lane.seen = min(lane.seen, *(each - 1 for each in (*ids, *(row.id for row in lane.rows))))
        lane.rows.clear()
        lane.rests_until = until
        self._set_behind(lane)
        self._place(lane)

    def _forget(self, lane: _Lane) -> None:
        for each in lane.rows:
            self._drop(each)
        if lane.rows:
            self._unready(lane.rows[0].topic, lane.name)
        for table in (self._lanes, self._idle, self._behind):
            table.pop(lane.name, None)

    def _set_behind(self, lane: _Lane) -> None:
        lane.is_behind = True
        if lane.name not in self._behind and len(self._behind) >= OUTBOX_RESTING_MAX:
            # It comes again with the next sweep.
            for name in islice(self._behind, 1):
                oldest = self._lanes[name]
                if not oldest.rows and not oldest.flying:
                    self._forget(oldest)
        self._behind[lane.name] = None

    def _place(self, lane: _Lane) -> None:
        """Put a lane where it belongs by what it has now."""
        if self._lanes.get(lane.name) is not lane:
            return
        self._idle.pop(lane.name, None)
        if lane.rows and not lane.flying:
            topic = lane.rows[0].topic
            self._ready.setdefault(topic, {})[lane.name] = None
            self._turns.setdefault((topic, True))
        elif not lane.rows and not lane.flying and not lane.is_behind:
            self._idle[lane.name] = None

    def _unready(self, topic: str, name: str) -> None:
        there = self._ready.get(topic)
        if there is not None:
            there.pop(name, None)
            if not there:
                del self._ready[topic]
