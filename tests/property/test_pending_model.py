"""Open transactions compared with a dictionary, and their checkpoints with a list."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from txmq_broker.store.pending_transactions import Half, PendingTransactions
from txmq_broker.store.queue_store import ConsumeQueue

QUEUES = [ConsumeQueue(topic, number) for topic in "TU" for number in (0, 1)]
STEP = 64 << 20


class Transactions(RuleBasedStateMachine):
    """The log moves on with whatever happens; ``saved`` is what chunks told of it so far."""

    def __init__(self):
        super().__init__()
        self.pending = PendingTransactions()
        self.model: dict[int, Half] = {}
        self.parked: list[int] = []
        self.end = 0
        self.happened = []
        self.saved: dict[int, bool] = {}
        self.saved_to = 0

    @rule(
        gap=st.sampled_from([1, 100, STEP]),
        queue=st.sampled_from(QUEUES),
        group=st.sampled_from(["", "a", "b"]),
        origin=st.sampled_from(["", "1", "2"]),
        hashes=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
        tags_code=st.integers(-(2**31), 2**31 - 1),
        immunity_s=st.integers(0, 2**32 - 1),
        is_delayed=st.booleans(),
    )
    def open(self, gap, queue, group, origin, hashes, tags_code, immunity_s, is_delayed):
        self.end += gap
        key = len(self.happened)
        half = Half(
            key, self.end, 200 + gap % 100, tags_code, key, queue, group, origin, is_delayed,
            hashes, immunity_s,
        )  # fmt: skip
        self.pending.open(key, self.pending.pack(*half.parts))
        self.pending.opened.append(half.position)
        self.model[key] = half
        self.happened.append((self.end, "open", half.position))

    def _some(self, which):
        return list(self.model)[which % len(self.model)]

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 99))
    def close(self, which):
        key = self._some(which)
        self.end += 1
        self.pending.close_all([key], [self.pending.read(key)[0][5]])
        self.pending.note_closed(self.end, self.model[key].position)
        self.happened.append((self.end, "close", self.model.pop(key).position))
        if key in self.parked:
            self.parked.remove(key)

    @precondition(lambda self: len(self.parked) < len(self.model))
    @rule(which=st.integers(0, 99))
    def park(self, which):
        able = [key for key in self.model if key not in self.parked]
        key = able[which % len(able)]
        self.end += 1
        self.pending.park(key)
        self.pending.note_parked(self.end, self.model[key].position)
        self.model[key] = replace(self.model[key], is_parked=True)
        self.parked.append(key)
        self.happened.append((self.end, "park", self.model[key].position))

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 99), checks=st.integers(0, 70_000))
    def count(self, which, checks):
        key = self._some(which)
        self.pending.count_checks(key, checks)
        self.model[key] = replace(self.model[key], checks=min(checks, 0xFFFF))

    @rule(part=st.floats(0, 1))
    def save(self, part):
        """A checkpoint of some events; a restart would know exactly these."""
        end = self.saved_to + int((self.end + 1 - self.saved_to) * part)
        changes = self.pending.changes_before(end)
        self.pending.saved_before(end)
        self.saved_to = end

        self.saved |= dict.fromkeys(changes.opened, False)
        for position in changes.parked:
            if position in self.saved:
                self.saved[position] = True
        for position in changes.closed:
            del self.saved[position]

        expected = {}
        for at, what, position in self.happened:
            if at < end:
                if what == "close":
                    del expected[position]
                else:
                    expected[position] = what == "park"
        assert self.saved == expected

    @invariant()
    def all_are_as_they_should_be(self):
        pending = self.pending
        assert list(pending) == list(self.model)
        assert {key: pending.find(key) for key in pending} == self.model
        assert list(pending.parked_keys()) == self.parked
        assert (len(pending), pending.parked) == (len(self.model), len(self.parked))

    @invariant()
    def what_is_open_is_kept(self):
        oldest = min((half.position for half in self.model.values()), default=None)
        assert self.pending.pinned() == oldest

    @invariant()
    def nothing_is_shared_that_nobody_has(self):
        owners = {half.parts[2] for half in self.model.values()}
        assert set(self.pending._owner_numbers) == owners


TestTransactions = Transactions.TestCase
