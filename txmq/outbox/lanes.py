"""The rows in a relay's memory, those that may be sent now, and the relay's slots. Pure.

In one lane the order of the ids is the order of the commits: once a row is visible, all earlier
rows of its lane are visible too. So a lane is known up to its last loaded row. A later row is
loaded only if no other row can lie in between: the read began at that last row, or a second read
looked for rows in between. A lane is "behind" if neither holds, or if it has too many rows: the
relay then fetches it separately, from its known position. A lane without rows in memory can be
dropped at any time; the only cost is one more read.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from txmq.limits import OUTBOX_LANES_KEPT, OUTBOX_RESTING_MAX, SLOTS
from txmq.message import Message

__all__ = ["LanePosition", "Lanes", "OutboxRow", "RowBatch", "SlotChange", "Slots", "fair_share"]

TROUBLE_REST_S: Final = 1.0
"""How long a lane rests if its topic is in trouble and has used its share of the memory."""

_by_id: Final = attrgetter("id")


@dataclass(slots=True, eq=False)
class OutboxRow:
    """A row in memory."""

    id: int
    slot: int
    lane: str | None
    topic: str
    size: int
    message: Message | None = None
    is_alone: bool = field(default=False, kw_only=True)
    """True if it must be sent alone."""
    problem: str = field(default="", kw_only=True)
    """The reason why the row holds no message; empty otherwise."""
    attempts: int = field(default=0, init=False)
    """The number of failures that its message may have caused."""


class LanePosition(NamedTuple):
    """A lane, and the id up to which it is known."""

    slot: int
    lane: str
    seen: int


class RowBatch(NamedTuple):
    """Rows of one topic that may be sent now, together or one after the other."""

    topic: str
    rows: list[OutboxRow]
    is_laned: bool


@dataclass(slots=True, eq=False)
class LaneState:
    slot: int
    name: str
    seen: int = 0
    rows: deque[OutboxRow] = field(default_factory=deque)
    flying: int = 0
    is_behind: bool = False
    rests_until: float = 0.0


class Lanes:
    """The rows in memory of a relay's slots.

    Args:
        rows_max: The maximum number of rows in memory.
        lane_rows_max: The maximum for one lane.
        batch_rows: The maximum number of rows in one request.
        batch_bytes: The maximum size of one request; one row may exceed it.
        bytes_max: The maximum number of bytes in memory.
    """

    def __init__(
        self,
        rows_max: int,
        lane_rows_max: int,
        batch_rows: int,
        batch_bytes: int,
        bytes_max: int,
    ) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._lane_rows_max = lane_rows_max
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._slots: set[int] = set()
        self._rows: dict[int, OutboxRow] = {}
        self._flying: dict[int, OutboxRow] = {}
        self._flying_of: Counter[int] = Counter()
        self._of_topic: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._lanes: dict[str, LaneState] = {}
        self._idle: dict[str, None] = {}
        self._behind: dict[str, None] = {}
        self._resting: dict[int, float] = {}
        self._paused: dict[str, float] = {}
        self._loose: dict[str, deque[OutboxRow]] = {}
        self._ready: dict[str, dict[str, None]] = {}
        self._turns: dict[tuple[str, bool], None] = {}
        self.bytes: int = 0
        """The bytes of the bodies in memory."""
        self.has_left_some: bool = False
        """True if rows without a lane were skipped; only a sweep finds them again."""

    def __len__(self) -> int:
        return len(self._rows)

    # Slots

    def open(self, slots: Iterable[int]) -> None:
        """Accept rows of these slots from now on."""
        self._slots.update(slots)

    def close(self, slots: Iterable[int]) -> None:
        """Accept no more rows of these slots, and drop those that are not being sent."""
        gone = set(slots)
        self._slots -= gone
        for topic, rows in list(self._loose.items()):
            kept = deque(row for row in rows if row.slot not in gone)
            for row in rows:
                if row.slot in gone:
                    self._drop(row)
            self._loose[topic] = kept
            if not kept:
                self._loose.pop(topic)
        for lane in [lane for lane in self._lanes.values() if lane.slot in gone]:
            self._forget(lane)
        # The next owner of a slot finds its resting rows. Resting rows of the slots that we keep
        # return early.
        self._resting.clear()
        self.has_left_some = True

    def lose(self, slots: Iterable[int]) -> None:
        """Drop slots that another relay has taken over, and do not wait for sends in flight."""
        gone = set(slots)
        self.close(gone)
        for row in [row for row in self._flying.values() if row.slot in gone]:
            del self._flying[row.id]
            self._flying_of[row.slot] -= 1
            self._drop(row)

    def is_clear(self, slot: int) -> bool:
        """True if no row of a slot is being sent."""
        return not self._flying_of[slot]

    # Loading

    @property
    def room(self) -> int:
        """The number of rows that may still be loaded."""
        return max(0, self._rows_max - len(self._rows))

    def holds(self, row_id: int) -> bool:
        """True if a row is in memory, or rests."""
        return row_id in self._rows or row_id in self._resting

    def known(self, low: int, high: int) -> list[int]:
        """The ids after ``low``, up to ``high``, that need not be read again."""
        at_hand = [row_id for row_id in self._rows if low < row_id <= high]
        return at_hand + [row_id for row_id in self._resting if low < row_id <= high]

    def behind(self) -> list[str]:
        """The lanes that are behind and are therefore fetched separately."""
        return list(self._behind)

    def gaps(self, rows: Sequence[OutboxRow], low: int) -> list[LanePosition]:
        """The lanes of these rows, which were read after ``low``, that may have unseen rows up to
        ``low``.

        Read those lanes next; then load all rows with ``add(..., 0)``.
        """
        found: dict[str, LanePosition] = {}
        if low > 0:
            for row in rows:
                if row.lane is None or row.lane in found or row.slot not in self._slots:
                    continue
                lane = self._lanes.get(row.lane)
                seen = 0 if lane is None else lane.seen
                if seen < low and not (lane is not None and lane.is_behind):
                    found[row.lane] = LanePosition(row.slot, row.lane, seen)
        return list(found.values())

    def leave_behind(self, positions: Iterable[LanePosition]) -> None:
        """Mark lanes as behind, because the read of their unseen rows was cut short."""
        for position in positions:
            if position.slot in self._slots:
                self._set_behind(self._lane(position.slot, position.lane))

    def add(self, rows: Iterable[OutboxRow], low: int, now: float) -> int:
        """Load rows that were read; return the number loaded.

        Args:
            rows: In the order of their ids; for each lane, all rows from ``low`` to its last one.
            low: The start of the read; 0 if no row can be missing.
            now: The time.
        """
        before = len(self._rows)
        for row in rows:
            if row.slot not in self._slots or self.holds(row.id):
                continue
            if row.lane is not None:
                self._add_to_lane(row, low, now)
            elif self._has_its_share(row.topic):
                self.has_left_some = True
            else:
                self._keep(row)
                self._loose.setdefault(row.topic, deque()).append(row)
                self._turns.setdefault((row.topic, False))
        return len(self._rows) - before

    def _add_to_lane(self, row: OutboxRow, low: int, now: float) -> None:
        assert row.lane is not None, "it has a lane"
        lane = self._lane(row.slot, row.lane)
        if lane.is_behind:
            return
        if row.id <= lane.seen:
            # The row was set aside, and an operator has repaired it.
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
        """True if this topic is in trouble, and the topics in trouble use half of the memory."""
        # Each topic keeps one row; its send shows when the trouble is over.
        if topic not in self._paused or not self._of_topic[topic]:
            return False
        rows = sum(self._of_topic[paused] for paused in self._paused)
        size = sum(self._bytes_of[paused] for paused in self._paused)
        return 2 * rows >= self._rows_max or 2 * size >= self._bytes_max

    def wanted(self, now: float, count: int) -> list[LanePosition]:
        """Lanes to fetch: they are behind and have no rows in memory."""
        found = []
        for name in list(islice(self._behind, 4 * count)):
            lane = self._lanes[name]
            # A considered lane moves to the end.
            del self._behind[name]
            self._behind[name] = None
            if not lane.rows and not lane.flying and lane.rests_until <= now:
                found.append(LanePosition(lane.slot, name, lane.seen))
                if len(found) >= count:
                    break
        return found

    def add_fetched(
        self,
        positions: Sequence[LanePosition],
        rows: Iterable[OutboxRow],
        now: float,
        *,
        is_cut: bool,
    ) -> int:
        """Load the rows of lanes that were fetched separately; return the number loaded.

        Args:
            positions: The lanes, and the start of each read.
            rows: Their rows from there, in the order of their ids.
            now: The time.
            is_cut: Whether there may be more rows.
        """
        lanes = [
            self._lanes[position.lane] for position in positions if position.lane in self._lanes
        ]
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
        """Send nothing to a topic for a while; it is in trouble until one of its rows is sent."""
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
        """Note that a row of this topic was sent."""
        self._paused.pop(topic, None)

    def is_paused(self, topic: str, now: float) -> bool:
        """True if a topic must wait."""
        return self._paused.get(topic, 0.0) > now

    def paused_until(self) -> float | None:
        """The end of the first pause of a topic with rows."""
        return min((self._paused.get(topic, 0.0) for topic, _ in self._turns), default=None)

    def take(self, now: float) -> RowBatch | None:
        """Rows that may be sent now. A lane gives no more rows until all its sends have ended."""
        for topic, is_laned in list(self._turns):
            if self._paused.get(topic, 0.0) > now:
                continue
            del self._turns[topic, is_laned]
            if is_laned:
                rows = self._take_from_lanes(topic)
            else:
                rows = self._take_from(self._loose.get(topic, deque()), topic, [], 0)[0]
                if not self._loose.get(topic):
                    self._loose.pop(topic, None)
            if topic in (self._ready if is_laned else self._loose):
                self._turns[topic, is_laned] = None
            if rows:
                for row in rows:
                    self._flying[row.id] = row
                    self._flying_of[row.slot] += 1
                return RowBatch(topic, rows, is_laned)
        return None

    def _take_from_lanes(self, topic: str) -> list[OutboxRow]:
        rows: list[OutboxRow] = []
        size = 0
        for name in list(islice(self._ready.get(topic, {}), self._batch_rows)):
            lane = self._lanes[name]
            count = len(rows)
            rows, size = self._take_from(lane.rows, topic, rows, size)
            lane.flying = len(rows) - count
            if lane.flying:
                self._unready(topic, name)
            if not lane.flying or rows[-1].is_alone:
                break
        return rows

    def _take_from(
        self, waiting: deque[OutboxRow], topic: str, rows: list[OutboxRow], size: int
    ) -> tuple[list[OutboxRow], int]:
        """Extend a batch by the first waiting rows that may share its request."""
        while waiting and waiting[0].topic == topic and len(rows) < self._batch_rows:
            row = waiting[0]
            if rows and (row.is_alone or size + row.size > self._batch_bytes):
                break
            rows.append(waiting.popleft())
            size += row.size
            if row.is_alone:
                break
        return rows, size

    # Ends of sends

    def is_ours(self, row: OutboxRow) -> bool:
        """True if this row is in flight, and its slot is still held."""
        return self._flying.get(row.id) is row

    def land(self, rows: Iterable[OutboxRow]) -> None:
        """Remove rows that were sent, or otherwise finished."""
        for row in rows:
            lane = self._end_flight(row)
            if lane is not None:
                self._place(lane)

    def give_back(self, rows: Sequence[OutboxRow]) -> None:
        """Take back rows whose send failed; they are sent again."""
        for row in reversed(rows):
            if not self.is_ours(row):
                continue
            lane = self._end_flight(row)
            if row.slot not in self._slots or (row.lane is not None and lane is None):
                continue
            if lane is not None and row.id > lane.seen:
                # An earlier row was dropped: fetch both again, in their order.
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

    def rest(self, row: OutboxRow, until: float) -> None:
        """Block a row because every broker refuses its message, together with its lane if it has
        one.
        """
        if not self.is_ours(row):
            return
        lane = self._end_flight(row)
        if lane is not None:
            assert not lane.flying, "a row that is refused for good was sent alone"
            self._leave(lane, until, row.id)
        elif row.lane is None:
            if len(self._resting) >= OUTBOX_RESTING_MAX:
                del self._resting[next(iter(self._resting))]
            self._resting[row.id] = until

    def wake_resting(self, now: float) -> None:
        """End the rests that are over; a sweep finds the rows again."""
        for row_id in [row_id for row_id, until in self._resting.items() if until <= now]:
            del self._resting[row_id]
            self.has_left_some = True

    def _end_flight(self, row: OutboxRow) -> LaneState | None:
        if not self.is_ours(row):
            return None
        del self._flying[row.id]
        self._flying_of[row.slot] -= 1
        self._drop(row)
        lane = None if row.lane is None else self._lanes.get(row.lane)
        if lane is not None:
            lane.flying -= 1
        return lane

    # Internals

    def _keep(self, row: OutboxRow) -> None:
        self._rows[row.id] = row
        self._of_topic[row.topic] += 1
        self._bytes_of[row.topic] += row.size
        self.bytes += row.size

    def _drop(self, row: OutboxRow) -> None:
        del self._rows[row.id]
        self._of_topic[row.topic] -= 1
        self._bytes_of[row.topic] -= row.size
        if not self._of_topic[row.topic]:
            del self._of_topic[row.topic], self._bytes_of[row.topic]
        self.bytes -= row.size

    def _lane(self, slot: int, name: str) -> LaneState:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = LaneState(slot, name)
            self._idle[name] = None
            if len(self._idle) > OUTBOX_LANES_KEPT:
                oldest = next(iter(self._idle))
                if oldest != name:
                    self._forget(self._lanes[oldest])
        return lane

    def _leave(self, lane: LaneState, until: float, *ids: int) -> None:
        """Drop the rows of a lane until a time, including ``ids`` that just came back."""
        if lane.rows:
            self._unready(lane.rows[0].topic, lane.name)
        for row in lane.rows:
            self._drop(row)
        dropped = (*ids, *(row.id for row in lane.rows))
        lane.seen = min(lane.seen, *(row_id - 1 for row_id in dropped))
        lane.rows.clear()
        lane.rests_until = until
        self._set_behind(lane)
        self._place(lane)

    def _forget(self, lane: LaneState) -> None:
        for row in lane.rows:
            self._drop(row)
        if lane.rows:
            self._unready(lane.rows[0].topic, lane.name)
        for table in (self._lanes, self._idle, self._behind):
            table.pop(lane.name, None)

    def _set_behind(self, lane: LaneState) -> None:
        lane.is_behind = True
        if lane.name not in self._behind and len(self._behind) >= OUTBOX_RESTING_MAX:
            # The next sweep finds its rows again.
            for name in islice(self._behind, 1):
                oldest = self._lanes[name]
                if not oldest.rows and not oldest.flying:
                    self._forget(oldest)
        self._behind[lane.name] = None

    def _place(self, lane: LaneState) -> None:
        """List a lane as ready or idle, by the rows it has now."""
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


def fair_share(living: int) -> int:
    """The number of slots that one of ``living`` relays may hold."""
    return -(-SLOTS // max(1, living))


class SlotChange(NamedTuple):
    """The changes that a renewal made to the slots."""

    lost: set[int]
    taken: set[int]
    leaving: set[int]
    """Slots to release as soon as none of their rows is being sent."""


class Slots:
    """The slots that a relay has leased: which, how many, and until when.

    A lease only keeps two relays from sending the same rows at the same time. Correctness does not
    depend on it: every relay sends all rows of a lane in order, so two at once cause repeats but no
    disorder. That is why a lease may end by a clock, and why a relay that was suspended for a while
    may continue.

    Args:
        lease_s: The duration of a lease.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._held: dict[int, int] = {}
        self._turn = 0
        self._until = 0.0
        self.leaving: set[int] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def working(self) -> list[int]:
        """The slots whose rows are read."""
        return [slot for slot in self._held if slot not in self.leaving]

    def turns(self) -> dict[int, int]:
        """The held slots, each with the number of the renewal that took it; a slot may be lost and
        come back.
        """
        return dict(self._held)

    def renew(self, held: Collection[int], living: int, asked_at: float) -> SlotChange:
        """Apply the database's answer after a renewal.

        Args:
            held: The slots this relay holds.
            living: The number of living relays.
            asked_at: The time at which the renewal was sent, by the clock of :meth:`are_safe`.
        """
        self._until = asked_at + self._lease_s
        lost, taken = set(self._held) - set(held), set(held) - set(self._held)
        for slot in lost:
            self.release(slot)
        self._turn += 1
        self._held.update(dict.fromkeys(sorted(taken), self._turn))
        surplus = len(self._held) - fair_share(living)
        chosen = set(sorted(self._held)[-surplus:]) - self.leaving if surplus > 0 else set()
        self.leaving |= chosen
        return SlotChange(lost, taken, chosen)

    def release(self, slot: int) -> None:
        """Stop holding a slot."""
        self._held.pop(slot, None)
        self.leaving.discard(slot)

    def are_safe(self, now: float) -> bool:
        """True if no other relay can hold these slots now."""
        return bool(self._held) and now < self._until
