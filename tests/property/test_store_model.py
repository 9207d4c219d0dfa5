"""The store against a model: a list of messages, of which so many are durable and so many seen.

Writes, syncs, checkpoints and their halves happen in any order, between restarts of every kind,
failing disks, deleted topics, deleted files and damaged indexes. After each step everything that
can be read is compared with the list.
"""

import errno
from contextlib import suppress
from typing import NamedTuple

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.store.shelf import Placed, Shelf, Sizes
from txmq.errors import CorruptRecord, DiskFull, WriteFailed
from txmq.testing import Loss, MemoryDisk, SeededEntropy

PLACES = [(topic, number) for topic in "TU" for number in (0, 1)]
KEYS = ["k0", "k1", "k2"]
BODY_SIZES = [0, 10, 300, 1500, 5000]


class Message(NamedTuple):
    placed: Placed
    key: str
    at_ms: int

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
        self.lows = dict.fromkeys(PLACES, 0)
        self.syncing = None
        self.saving = None

    def teardown(self):
        self.shelf.close()

    # --- messages ---

    @rule(
        place=st.sampled_from(PLACES),
        size=st.sampled_from(BODY_SIZES),
        key=st.sampled_from(KEYS),
    )
    def put(self, place, size, key):
        self.count += 1
        before = [each.placed.offset for each in self.log + self.staged if each.place == place]

        placed = self.shelf.put(b"%d" % self.count + b"." * size, *place, keys=key)

        assert placed.offset == max([self.lows[place], *(offset + 1 for offset in before)])
        self.staged.append(Message(placed, key, self.shelf.store.last_ms))

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
        self.syncing = log.files_to_sync(), log.end, len(self.log)
        for file in self.syncing[0]:
            file.sync()

    @precondition(lambda self: self.syncing is not None)
    @rule()
    def end_sync(self):
        files, end, self.durable = self.syncing
        self.syncing = None
        self.shelf.store.log.synced(files, end)
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
            for file in self.shelf.store.log.files_to_sync():
                file.sync()
        self.disk.repair()
        self._stop_at_once(is_power_cut, seed)

    # --- checkpoints ---

    @precondition(lambda self: self.saving is None)
    @rule(is_full=st.booleans())
    def begin_checkpoint(self, is_full):
        stretch = self.shelf.store.next_stretch()
        assume(stretch is not None)
        if is_full:
            self.disk.capacity = self.disk.space().used
        with suppress(OSError):
            self.saving = self.shelf.store.begin_checkpoint(stretch)
        assert is_full or self.saving is not None
        self.disk.capacity = None

    @precondition(lambda self: self.saving is not None)
    @rule()
    def end_checkpoint(self):
        self.saving.file.file.sync()
        self.shelf.store.confirm_checkpoint(self.saving)
        self.saving = None

    @precondition(lambda self: self.saving is None)
    @rule()
    def checkpoint(self):
        while self.shelf.store.next_stretch() is not None:
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

        assert recovery == (0, 0, 0)
        self._reopened()

    @rule(seed=st.integers(0, 1000), loss=st.sampled_from(list(Loss)))
    def power_cut(self, seed, loss):
        self.disk.crash(SeededEntropy(seed), loss)
        self.shelf.restart()

        ends = {place: queue.max_offset for place, queue in self.shelf.queues().items()}
        self.seen = sum(each.placed.offset < ends.get(each.place, 0) for each in self.log)
        assert self.durable <= self.seen <= len(self.log)
        del self.log[self.seen :]
        self.durable = self.seen
        self._reopened()

    # --- what operators and their disks do ---

    @precondition(lambda self: self.shelf.store.completed_files())
    @rule()
    def delete_the_oldest_file(self):
        self.shelf.drop_first_file()

        start = self.shelf.store.start
        for place in PLACES:
            mine = [each.placed for each in self.log[: self.seen] if each.place == place]
            kept = [each.offset for each in mine if each.position >= start]
            end = mine[-1].offset + 1 if mine else 0
            self.lows[place] = max(self.lows[place], kept[0] if kept else end)

    @rule(topic=st.sampled_from("TU"))
    def delete_a_topic(self, topic):
        self.shelf.forget(topic)

        for each in self.log[: self.seen]:
            if each.placed.topic == topic:
                self.lows[each.place] = max(self.lows[each.place], each.placed.offset + 1)

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
        self.kill()
        if harm == "flip":
            self._follow_the_advice(path)

    def _follow_the_advice(self, path):
        advice = ""
        try:
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
        for place in PLACES:
            mine = [each.placed for each in seen if each.place == place]
            low, high = self.lows[place], mine[-1].offset + 1 if mine else self.lows[place]
            expected = {each.offset: each.body for each in mine if each.offset >= low}
            if place in queues:
                assert self.shelf.bodies(*place) == expected
                assert queues[place].min_offset == low
                assert queues[place].max_offset == max(low, high)
            else:
                assert not expected

    @invariant()
    def every_message_is_found_by_its_key(self):
        seen = [
            each for each in self.log[: self.seen] if each.placed.offset >= self.lows[each.place]
        ]
        for topic in "TU":
            for key in KEYS:
                expected = [
                    each.placed.body
                    for each in reversed(seen)
                    if (each.placed.topic, each.key) == (topic, key)
                ]
                assert self.shelf.found_by_key(key, topic) == expected
        for each in seen[:1] + seen[-1:]:
            found = self.shelf.found_by_key(each.key, each.placed.topic, each.at_ms, each.at_ms)
            assert each.placed.body in found


TestStore = Store.TestCase
TestStore.settings = settings(stateful_step_count=40)
