"""In any order of commits, and with failing sends, lanes keep their order and every row is sent.

The database is a model: ids are assigned before commits, writers of one lane wait for each other,
and a read sees the rows committed when it began, even if some are deleted while it runs.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from txmq.databases.guarded_transaction import drive
from txmq.outbox.lanes import Lanes, Slots
from txmq.outbox.publisher import PublishedRows
from txmq.outbox.reader import OutboxReader
from txmq.outbox.settings import RelaySettings
from txmq.outbox.store import Page

LANES = ["a", "b", "c"]
TOPICS = ["T", "U"]
SLOTS = {"a": 0, "b": 1, "c": 1, None: 2}


@dataclass
class Stored:
    id: int
    lane: str | None
    topic: str
    is_committed: bool = False
    is_deleted: bool = False
    is_failed: bool = False

    def read(self, there):
        slot = SLOTS[self.lane]
        told = "", "[]", "{}", 0, None, b"x"
        return self.id, slot, self.lane, f"M{self.id}", self.topic, *told, there


class Base:
    """A store over a list; while it reads, something else may happen."""

    def __init__(self):
        self.rows = []
        self.meanwhile = lambda: None

    def _page(self, wanted, count):
        seen = [
            row
            for row in self.rows
            if row.is_committed and not row.is_deleted and not row.is_failed and wanted(row)
        ]
        seen.sort(key=lambda row: row.id)
        chosen = seen[:count]
        self.meanwhile()
        return Page([row.read(len(chosen)) for row in chosen], len(chosen) >= count)

    async def forward(self, slots, low, count, size):
        return self._page(lambda row: row.id > low and SLOTS[row.lane] in slots, count)

    async def sweep(self, slots, low, high, known, behind, count, size):
        known, behind = set(known), set(behind)
        return self._page(
            lambda row: (
                low < row.id <= high
                and SLOTS[row.lane] in slots
                and row.id not in known
                and row.lane not in behind
            ),
            count,
        )

    async def lanes(self, asked, high, count, size):
        seen = {position.lane: position.seen for position in asked}
        return self._page(
            lambda row: row.lane in seen and seen[row.lane] < row.id <= high, min(count, 6)
        )


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


class Relaying(RuleBasedStateMachine):
    begun = Bundle("transactions")
    loads = Bundle("loads")

    def __init__(self):
        super().__init__()
        self.base, self.clock, self.removable = Base(), Clock(), PublishedRows(None, None, None)
        self.lanes = Lanes(8, 3, 3, 1_000, 1_000)
        self.slots = Slots(10.0)
        self.reader = OutboxReader(
            self.base, self.lanes, self.slots, self.removable, RelaySettings(), self.clock, "o"
        )
        self.locked = {}
        self.next_id = 1
        self.sent = []
        self.flying = []
        self.is_disturbed = False
        self.take_slots({0, 1, 2})

    def take_slots(self, held):
        change = self.slots.renew(held, 1, self.clock.now)
        self.lanes.lose(change.lost)
        if change.taken:
            self.lanes.open(change.taken)
            self.reader.restart()

    # The writers

    @rule(
        target=begun,
        lane=st.sampled_from([None, *LANES]),
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4),
    )
    def begin(self, lane, topics):
        if lane is not None and lane in self.locked:
            return []
        if lane is not None:
            self.locked[lane] = True
        rows = [Stored(self.next_id + at, lane, topic) for at, topic in enumerate(topics)]
        self.next_id += len(rows)
        self.base.rows += rows
        return rows

    @rule(rows=consumes(begun), commits=st.booleans())
    def end(self, rows, commits):
        for row in rows:
            row.is_committed = commits
            self.locked.pop(row.lane, None)
        if rows and not commits:
            self.base.rows = [row for row in self.base.rows if row not in rows]

    @rule(
        lane=st.sampled_from([None, *LANES]),
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4),
    )
    def transact(self, lane, topics):
        self.end(self.begin(lane, topics), True)

    # The relay

    @rule(reason=st.booleans(), deletes=st.booleans())
    def look(self, reason, deletes):
        self.base.meanwhile = self.delete if deletes else lambda: None
        drive(self.reader.look(has_reason=reason))
        self.base.meanwhile = lambda: None

    @rule(target=loads, reason=st.booleans())
    def work(self, reason):
        self.look(reason, False)
        return self.take()

    @rule(target=loads)
    def take(self):
        load = self.lanes.take(self.clock.now)
        rows = [] if load is None else load.rows
        for row in rows:
            self.see_nothing_is_overtaken(row)
            assert self.is_disturbed or row.id not in self.published, "it is sent twice"
            self.sent.append(row.id)
        self.flying += rows
        return rows

    def see_nothing_is_overtaken(self, row):
        if row.lane is None:
            return
        before = [
            other.id
            for other in self.base.rows
            if other.lane == row.lane and other.is_committed and other.id < row.id
            and not other.is_deleted and not other.is_failed and other.id not in self.published
        ]  # fmt: skip
        missing = set(before) - {other.id for other in self.flying} - set(self.sent)
        assert not missing, f"{row.id} overtakes {missing}"

    @property
    def published(self):
        return {row.id for row in self.base.rows if row.is_deleted} | set(self.removable._slots)

    def land_some(self, rows, count, then):
        self.flying = [row for row in self.flying if row not in rows]
        self.removable.add(rows[:count])
        for row in rows[:count]:
            self.lanes.works(row.topic)
        self.lanes.land(rows[:count])
        then(rows[count:])

    @rule(rows=consumes(loads), count=st.integers(0, 4))
    def land(self, rows, count):
        def back(rest):
            for row in rest:
                self.sent.remove(row.id)
            self.lanes.give_back(rest)

        self.land_some(rows, count, back)

    @rule(rows=consumes(loads))
    def refuse(self, rows):
        for row in rows:
            self.sent.remove(row.id)
        self.flying = [row for row in self.flying if row not in rows]
        if len(rows) == 1:
            self.lanes.rest(rows[0], self.clock.now + 60)
        else:
            for row in rows:
                row.is_alone = True
            self.lanes.give_back(rows)

    @rule()
    def delete(self):
        ids = list(self.removable._slots)
        for row in self.base.rows:
            if row.id in ids:
                row.is_deleted = True
        self.removable.drop(ids)

    @rule(seconds=st.sampled_from([0.01, 0.6]))
    def tick(self, seconds):
        self.clock.now += seconds

    @rule(reason=st.booleans())
    def wake(self, reason):
        """The rows at rest have rested long enough."""
        self.clock.now += 70
        self.look(reason, False)

    @rule(lane=st.sampled_from(LANES), kind=st.sampled_from(["lost", "paused", "repaired"]))
    def have_trouble(self, lane, kind):
        if kind == "paused":
            self.lanes.pause("T", self.clock.now + 2)
            return
        self.is_disturbed = True
        if kind == "lost":
            # Some slots are lost and come back, without waiting for rows in flight.
            self.take_slots({0, 1, 2} - {SLOTS[lane]})
            self.take_slots({0, 1, 2})
        else:
            self.delete_the_first_of(lane)

    def delete_the_first_of(self, lane):
        ours = {row.id for row in self.flying} | set(self.sent)
        waiting = [
            row
            for row in self.base.rows
            if row.lane == lane and row.is_committed and not row.is_deleted
        ]
        if waiting and waiting[0].id not in ours:
            waiting[0].is_deleted = True

    @invariant()
    def there_is_no_more_than_may_be(self):
        assert len(self.lanes) <= 8 + len(self.flying)

    def teardown(self):
        """In the end every committed row is sent."""
        for load in list(self.flying):
            self.flying.remove(load)
            if self.lanes.is_ours(load):
                self.sent.remove(load.id)
                self.lanes.give_back([load])
        for _ in range(60):
            self.tick(7.0)
            self.look(True, False)
            while rows := self.take():
                self.land_some(rows, len(rows), lambda rest: None)
            self.delete()
            left = [row.id for row in self.base.rows if row.is_committed and not row.is_deleted]
            if not left:
                break
        assert left == []
        assert len(self.lanes) == 0


TestRelaying = Relaying.TestCase
TestRelaying.settings = settings(stateful_step_count=40)
