"""The store against a model: a list of messages, of which so many are durable and so many seen.

Half messages and decisions are entries of that list like any other: they have queues of their own.

Writes, syncs, checkpoints and their halves happen in any order, between restarts of every kind,
failing disks, deleted topics, deleted files and damaged indexes. After each step everything that
can be read is compared with the list.
"""

import errno
from contextlib import suppress
from typing import NamedTuple
from unittest.mock import patch

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.store.shelf import Placed, Shelf, Sizes
from txmq.errors import CorruptRecord, DiskFull, WriteFailed
from txmq.protocol.span import DecisionKind
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC
from txmq.testing import Loss, MemoryDisk, SeededEntropy
from txmq_broker.store import half_store
from txmq_broker.store.pending_transactions import transaction_key

PLACES = [(topic, number) for topic in "TU" for number in (0, 1)]
HALVES, DECISIONS, PARKED = (HALF_TOPIC, 0), (OP_TOPIC, 0), (PARKED_TOPIC, 0)
EVERY_PLACE = [*PLACES, HALVES, DECISIONS, PARKED]
KEYS = ["k0", "k1", "k2"]
BODY_SIZES = [0, 10, 300, 1500, 5000]
SMALL = 300
TURN_BYTES = 1000
"""How much may be staged before it is written, where markers are among it."""


class Message(NamedTuple):
    placed: Placed
    key: str
    at_ms: int
    unique: str = ""
    kind: DecisionKind | None = None
    """What this entry decides, if it is a decision."""

    @property
    def place(self):
        return self.placed.topic, self.placed.number


class Store(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.disk = MemoryDisk(SeededEntropy(0))
        self.shelf = Shelf(self.disk, Sizes(segment_size=4096))
        self.count = 0
        self.log: list[Message] = []
        self.durable = 0
        self.seen = 0
        self.staged: list[Message] = []
        self.waiting = []
        self.lows = dict.fromkeys(EVERY_PLACE, 0)
        self.syncing = None
        self.saving = None
        # What is one turn's at most for a broker is little enough for files this small.
        self.turn = patch.object(half_store, "SPAN_BYTES_MAX", TURN_BYTES)
        self.turn.start()

    def teardown(self):
        self.turn.stop()
        self.shelf.close()

    # --- messages ---

    @rule(
        place=st.sampled_from(PLACES),
        size=st.sampled_from(BODY_SIZES),
        key=st.sampled_from(KEYS),
    )
    def put(self, place, size, key):
        self.count += 1
        self._make_room(size)
        before = [entry.placed.offset for entry in self.log + self.staged if entry.place == place]

        placed = self.shelf.put(b"%d" % self.count + b"." * size, *place, keys=key)

        assert placed.offset == max([self.lows[place], *(offset + 1 for offset in before)])
        self.staged.append(Message(placed, key, self.shelf.store.log.last_ms))

    def _make_room(self, size):
        """As a flusher does, end the turn before what follows a marker is too much."""
        is_much = size > SMALL or self.shelf.store.log.staged_bytes > TURN_BYTES
        if is_much and any(entry.kind for entry in self.staged):
            self.write()

    @rule(
        place=st.sampled_from(PLACES),
        size=st.sampled_from([0, 10, SMALL]),
        key=st.sampled_from(KEYS),
    )
    def prepare(self, place, size, key):
        self.count += 1
        self._make_room(size)
        unique, body = f"u{self.count}", b"%d" % self.count + b"." * size

        half = self.shelf.prepare(body, *place, unique=unique, keys=key)

        before = [entry for entry in self.log + self.staged if entry.place == HALVES]
        assert half.offset == max(self.lows[HALVES], len(before))
        placed = Placed(*HALVES, half.offset, half.position, body)
        self.staged.append(Message(placed, key, self.shelf.store.log.last_ms, unique))

    def open_halves(self):
        """The open transactions, and whether they are parked, by the visible log."""
        found = {}
        for entry in self.log[: self.seen]:
            if entry.place == HALVES:
                found[entry.unique] = entry, False
            elif entry.kind is DecisionKind.PARKED:
                found[entry.unique] = found[entry.unique][0], True
            elif entry.kind is not None:
                del found[entry.unique]
        return found

    @precondition(lambda self: self.open_halves())
    @rule(which=st.integers(0, 99), kind=st.sampled_from(DecisionKind))
    def decide(self, which, kind):
        halves, store = self.shelf.store.halves, self.shelf.store
        able = [
            half
            for half, is_parked in self.open_halves().values()
            if (key := transaction_key(half.unique)) not in halves.closing
            and not (kind is DecisionKind.PARKED and (is_parked or key in halves.parking))
        ]
        assume(able)
        half = able[which % len(able)]
        self._make_room(len(half.placed.body))
        before = len(store.queues.staged)

        self.shelf.decide(half.unique, kind)

        position = halves.markers[-1].positions[-1]
        staged = store.queues.staged[before:]
        messages = [entry for entry in staged if entry[0] is not halves.op_queue]
        assert len(messages) == (kind is not DecisionKind.ROLLED_BACK)
        self._stage(halves.op_queue, position, b"%d" % half.placed.offset, half, kind)
        for queue, where, *_ in messages:
            self._stage(queue, where, half.placed.body, half, None)

    def _stage(self, queue, position, body, half, kind):
        placed = Placed(queue.topic, queue.number, queue.next_offset - 1, position, body)
        at_ms = self.shelf.store.log.last_ms
        self.staged.append(Message(placed, half.key, at_ms, half.unique, kind))

    @precondition(lambda self: self.staged)
    @rule()
    def write(self):
        span = self.shelf.store.write()

        self.log += self.staged
        self.waiting.append((span, len(self.log)))
        self.staged = []

    @precondition(lambda self: self.staged)
    @rule(pages=st.integers(0, 2))
    def write_to_a_full_disk(self, pages):
        self.disk.capacity = self.disk.space().used + 4096 * pages
        try:
            self.write()
        except DiskFull:
            self.staged = []
        finally:
            self.disk.capacity = None

    @precondition(lambda self: self.staged)
    @rule(error=st.sampled_from([errno.EIO, errno.EROFS]))
    def write_in_vain(self, error):
        self.disk.fail_writes(times=1, error=error)
        try:
            self.shelf.store.write()
        except WriteFailed:
            self.staged = []
        else:
            raise AssertionError("the disk failed and nobody noticed")

    @precondition(lambda self: self.syncing is None)
    @rule()
    def begin_sync(self):
        log = self.shelf.store.log
        self.syncing = log.sync_point(), len(self.log)
        for file in self.syncing[0].files:
            file.sync()

    @precondition(lambda self: self.syncing is not None)
    @rule()
    def end_sync(self):
        point, self.durable = self.syncing
        self.syncing = None
        self.shelf.store.log.synced(point)
        while self.waiting and self.waiting[0][1] <= self.durable:
            span, self.seen = self.waiting.pop(0)
            self.shelf.store.publish(span)

    def _stop_at_once(self, is_power_cut, seed):
        if is_power_cut:
            self.power_cut(seed, Loss.ANY)
        else:
            self.kill()

    @precondition(lambda self: self.syncing is None and self.log)
    @rule(is_power_cut=st.booleans(), seed=st.integers(0, 1000))
    def sync_in_vain(self, is_power_cut, seed):
        self.disk.fail_next_sync()
        with suppress(OSError):
            for file in self.shelf.store.log.sync_point().files:
                file.sync()
        self.disk.repair()
        self._stop_at_once(is_power_cut, seed)

    # --- checkpoints ---

    @precondition(lambda self: self.saving is None)
    @rule(is_full=st.booleans())
    def begin_checkpoint(self, is_full):
        stretch = self.shelf.store.checkpoints.next_range()
        assume(stretch is not None)
        if is_full:
            self.disk.capacity = self.disk.space().used
        with suppress(OSError):
            self.saving = self.shelf.store.checkpoints.begin(stretch)
        assert is_full or self.saving is not None
        self.disk.capacity = None

    @precondition(lambda self: self.saving is not None)
    @rule()
    def end_checkpoint(self):
        self.saving.file.file.sync()
        self.shelf.store.checkpoints.confirm(self.saving)
        self.saving = None

    @precondition(lambda self: self.saving is None)
    @rule()
    def checkpoint(self):
        while self.shelf.store.checkpoints.next_range() is not None:
            self.begin_checkpoint(is_full=False)
            self.end_checkpoint()

    @precondition(lambda self: self.saving is not None)
    @rule(is_power_cut=st.booleans(), seed=st.integers(0, 1000))
    def end_checkpoint_in_vain(self, is_power_cut, seed):
        self.disk.fail_next_sync()
        with suppress(OSError):
            self.saving.file.file.sync()
        self._stop_at_once(is_power_cut, seed)

    # --- restarts ---

    def _reopened(self):
        self.staged, self.waiting, self.syncing, self.saving = [], [], None, None

    @rule()
    def kill(self):
        self.shelf.restart()

        self.durable = self.seen = len(self.log)
        self._reopened()

    @rule()
    def stop(self):
        if self.syncing is not None:
            self.end_sync()
        if self.saving is not None:
            self.end_checkpoint()
        if self.staged:
            self.write()
        self.begin_sync()
        self.end_sync()
        self.checkpoint()

        recovery = self.shelf.restart()

        assert recovery[:3] == (0, 0, 0)
        self._reopened()

    @rule(seed=st.integers(0, 1000), loss=st.sampled_from(list(Loss)))
    def power_cut(self, seed, loss):
        self.disk.crash(SeededEntropy(seed), loss)
        self.shelf.restart()

        ends = {place: queue.max_offset for place, queue in self.shelf.queues().items()}
        self.seen = sum(entry.placed.offset < ends.get(entry.place, 0) for entry in self.log)
        assert self.durable <= self.seen <= len(self.log)
        del self.log[self.seen :]
        self.durable = self.seen
        self._reopened()

    # --- what operators and their disks do ---

    def _may_delete(self):
        files = self.shelf.store.checkpoints.completed_files()
        is_open = [half.placed.position for half, _ in self.open_halves().values()]
        return files and files[0].end <= min(is_open, default=files[0].end)

    @precondition(lambda self: self._may_delete())
    @rule()
    def delete_the_oldest_file(self):
        self.shelf.drop_first_file()

        start = self.shelf.store.log.start
        for place in EVERY_PLACE:
            mine = [entry.placed for entry in self.log[: self.seen] if entry.place == place]
            kept = [entry.offset for entry in mine if entry.position >= start]
            end = mine[-1].offset + 1 if mine else 0
            self.lows[place] = max(self.lows[place], kept[0] if kept else end)

    @rule(topic=st.sampled_from("TU"))
    def delete_a_topic(self, topic):
        self.shelf.forget(topic)

        for entry in self.log[: self.seen]:
            if entry.placed.topic == topic:
                self.lows[entry.place] = max(self.lows[entry.place], entry.placed.offset + 1)

    @precondition(lambda self: self.shelf.index_files())
    @rule(
        harm=st.sampled_from(["delete", "cut", "flip"]),
        which=st.integers(0, 20),
        where=st.integers(0, 4000),
        bit=st.integers(0, 7),
    )
    def harm_an_index(self, harm, which, where, bit):
        path = self.shelf.index_files()[which % len(self.shelf.index_files())]
        size = len(self.shelf.contents(path))
        self.shelf.close()
        if harm == "delete" or not size:
            self.disk.remove(path)
        elif harm == "cut":
            file = self.disk.open(path)
            file.truncate(where % size)
            file.sync()
        else:
            self.disk.flip_bit(path, where % size, bit)
        if harm == "flip":
            self._follow_the_advice(path)
        else:
            self.kill()

    def _follow_the_advice(self, path):
        advice = ""
        try:
            self.kill()
            self.everything_is_as_it_should_be()
            self.every_message_is_found_by_its_key()
        except CorruptRecord as problem:
            advice = str(problem)
        if advice:
            assert path in advice
            self.shelf.close()
            self.disk.remove(path)
            self.kill()

    # --- what can be read ---

    @invariant()
    def everything_is_as_it_should_be(self):
        seen = self.log[: self.seen]
        queues = self.shelf.queues()
        for place in EVERY_PLACE:
            mine = [entry.placed for entry in seen if entry.place == place]
            low, high = self.lows[place], mine[-1].offset + 1 if mine else self.lows[place]
            expected = {entry.offset: entry.body for entry in mine if entry.offset >= low}
            if place in queues:
                assert self.shelf.bodies(*place) == expected
                assert queues[place].min_offset == low
                assert queues[place].max_offset == max(low, high)
            else:
                assert not expected

    @invariant()
    def every_message_is_found_by_its_key(self):
        seen = [
            entry
            for entry in self.log[: self.seen]
            if entry.placed.offset >= self.lows[entry.place]
        ]
        for topic in "TU":
            for key in KEYS:
                expected = [
                    entry.placed.body
                    for entry in reversed(seen)
                    if (entry.placed.topic, entry.key) == (topic, key)
                ]
                assert self.shelf.found_by_key(key, topic) == expected
        plain = [entry for entry in seen if entry.place in PLACES]
        for entry in plain[:1] + plain[-1:]:
            found = self.shelf.found_by_key(entry.key, entry.placed.topic, entry.at_ms, entry.at_ms)
            assert entry.placed.body in found

    @invariant()
    def every_transaction_is_open_until_it_is_decided(self):
        expected = {
            unique: (half.placed.offset, half.placed.position, half.placed.body, is_parked)
            for unique, (half, is_parked) in self.open_halves().items()
        }
        found = {
            unique: (half.offset, half.position, body, half.is_parked)
            for unique, (half, body) in self.shelf.transactions().items()
        }
        assert found == expected
        assert list(found) == list(expected)

    @invariant()
    def what_is_on_its_way_is_known_and_what_failed_is_not(self):
        halves, on_its_way = self.shelf.store.halves, self.log[self.seen :] + self.staged
        prepared = {entry.unique for entry in on_its_way if entry.place == HALVES}
        decided = {entry.unique: entry.kind for entry in on_its_way if entry.kind}
        parked = {entry.unique for entry in on_its_way if entry.kind is DecisionKind.PARKED}
        assert halves.opening.keys() == {transaction_key(unique) for unique in prepared}
        assert halves.closing == {
            transaction_key(unique): kind
            for unique, kind in decided.items()
            if kind is not DecisionKind.PARKED
        }
        assert halves.parking == {transaction_key(unique) for unique in parked}

    @invariant()
    def every_decision_is_found_by_its_half_message(self):
        halves, last = self.shelf.store.halves, {}
        seen = self.log[: self.seen]
        for entry in seen:
            if entry.kind is not None:
                last[entry.unique] = entry.kind
        mine = [entry for entry in seen if entry.place == HALVES]
        for entry in mine[:3] + mine[-3:]:
            known = halves.half_of(entry.placed.offset, entry.placed.position)
            assert (known is not None) == (entry.placed.offset >= self.lows[HALVES])
            if known is not None:
                decision = halves.decision_on(known[0])
                assert (decision and decision.kind) == last.get(entry.unique)


TestStore = Store.TestCase
TestStore.settings = settings(stateful_step_count=40)
