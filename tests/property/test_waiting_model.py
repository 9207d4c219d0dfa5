"""Waiting messages against a model: a list of what was done, and of that so much is seen.

Messages join, leave in rounds and are recalled, between writes that fail, syncs, checkpoints and
their halves, restarts of every kind, lost indexes, deleted files, other delay levels, and a clock
that jumps. What is left of the list says at any time who has come, who waits, and who never comes.
"""

import errno
from contextlib import suppress
from typing import NamedTuple

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.unit.store.delay_shelf import DelayShelf
from tests.unit.store.shelf import HOST, START_MS, Sizes
from txmq.errors import DiskFull, IllegalOperation, WriteFailed
from txmq.protocol import properties
from txmq.protocol.bodies import TopicConfig, TopicConfigs
from txmq.testing import Loss, MemoryDisk, SeededEntropy
from txmq_broker.config import BrokerSettings, DelaySettings, TopicDefaults
from txmq_broker.core.schedule import Schedule
from txmq_broker.core.topics import Topics, system_topics
from txmq_broker.store.delay_lines import LEVELS_MAX
from txmq_broker.store.delay_store import Unstored

GROUP = "g"
TOPIC, FILL = f"%RETRY%{GROUP}", "U"
LEVELS = ["1s 5s 2m", "5s 1s", "3m 1s 1s 10s"]
WAITS_MS = [1, 700, 1000, 1001, 4000, 61_000, 700_000, 4_000_000]
STEPS_MS = [1, 300, 1000, 5000, 70_000]
JUMPS_MS = [-100_000_000, -60_000, -1500, 1500, 800_000, 100_000_000]
FOR_EVER = 1 << 50


class Deed(NamedTuple):
    what: str
    """It came to wait, it left, it was recalled; or something else was stored."""
    name: str
    position: int
    due_ms: int = 0
    wish_ms: int = 0


class Waits(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.disk = MemoryDisk(SeededEntropy(0))
        self.shelf = DelayShelf(self.disk, Sizes(segment_size=4096))
        self.levels = LEVELS[0]
        self.now = START_MS
        self.count = 0
        self.log: list[Deed] = []
        self.seen = self.durable = 0
        self.staged: list[Deed] = []
        self.unsynced = []
        self.syncing = self.saving = None
        self.waits_for_disk = True
        self.on_wheel: set[str] = set()
        """The messages that wait on the wheel; a start counts none of them as retries."""
        self._opened()

    @initialize(waits_for_disk=st.booleans())
    def choose(self, waits_for_disk):
        self.waits_for_disk = waits_for_disk

    def teardown(self):
        self.shelf.close()

    @property
    def delays(self):
        return self.shelf.store.delays

    def _opened(self):
        self.staged, self.unsynced, self.syncing, self.saving = [], [], None, None
        delay = DelaySettings(levels=self.levels)
        topics = Topics(self.shelf.store, TopicDefaults())
        topics.load(TopicConfigs(), system_topics(BrokerSettings(delay=delay)))
        self.schedule = Schedule(self.shelf.store, topics, delay)
        self.topic = topics.put(TopicConfig(TOPIC, 1, 1), self.now)
        self.never_counted = {name for name in self.waiting() if name in self.on_wheel}

    def _stored_ms(self):
        return max(self.now, self.shelf.store.log.last_ms)

    def _postmark(self):
        return (0, self.now, HOST, self._stored_ms(), HOST, 0, 0)

    # --- messages ---

    def _put(self, due_time, size):
        self.count += 1
        name, held_back = f"{self.count}", self.schedule.held_back
        data = properties.render({"UNIQ_KEY": name}).encode()
        body = name.encode() + b"." * size
        message = Unstored(self._postmark(), 0, body, data)
        _, position = self.schedule.put(TOPIC, 0, message, due_time, self.now)
        due_ms = self.delays._joined[-1].due_ms
        if self.delays._joined[-1].line >= LEVELS_MAX:
            self.on_wheel.add(name)
        assert due_ms >= due_time.due_ms
        assert due_ms == due_time.due_ms or self.schedule.held_back == held_back + 1
        self.staged.append(Deed("joins", name, position, due_ms, due_time.due_ms))

    @rule(level=st.integers(1, 5), size=st.sampled_from([0, 300]))
    def put_at_level(self, level, size):
        due_time = self.schedule.due_time_in({"DELAY": str(level)}, self.now)
        self._put(due_time, size)

    @rule(wait_ms=st.sampled_from(WAITS_MS), size=st.sampled_from([0, 300]))
    def put_for_a_time(self, wait_ms, size):
        due_time = self.schedule.due_time_in({"TIMER_DELAY_MS": str(wait_ms)}, self.now)
        assert due_time.due_ms == self.now + wait_ms
        self._put(due_time, size)

    @rule(size=st.sampled_from([10, 1500, 3000]))
    def fill(self, size):
        placed = self.shelf.put(b"." * size, FILL, at_ms=self._stored_ms())
        self.staged.append(Deed("other", "", placed.position))

    @rule(at_most=st.sampled_from([1, 2, 3, 500]))
    def leave(self, at_most):
        assume(not self.delays.is_delivering)
        self._leave(at_most)

    @rule(step_ms=st.sampled_from(STEPS_MS), and_dies=st.booleans())
    def leave_while_somebody_joins_who_is_due_before(self, step_ms, and_dies):
        self.put_for_a_time(700, 0)
        self._settle()
        self.put_for_a_time(1, 0)
        self.now += step_ms
        self._leave(1)
        if and_dies:
            self.write()
            self.kill()

    def _leave(self, at_most):
        count = 0
        waiting = self.waiting()
        while count < at_most and (due := self.delays.first(self.now)) is not None:
            name = _name(self.delays.read(due).body)
            joined = waiting[name]
            assert name not in self._on_their_way("leaves", "recall"), "it went before"
            assert joined.wish_ms <= joined.due_ms == due.due_ms <= self.now
            position = self.shelf.store.log.next_position
            self.schedule.send(due, self._stored_ms())
            self.staged.append(Deed("leaves", name, position))
            count += 1
        return count

    def _on_their_way(self, *what):
        return {entry.name for entry in self.log[self.seen :] + self.staged if entry.what in what}

    def _done(self, *what):
        return {entry.name for entry in self.log[: self.seen] if entry.what in what}

    def waiting(self):
        """The waiting messages, by the visible log."""
        gone = self._done("leaves", "recall")
        return {
            entry.name: entry
            for entry in self.log[: self.seen]
            if entry.what == "joins" and entry.name not in gone
        }

    @precondition(lambda self: self._done("joins"))
    @rule(which=st.integers(0, 99))
    def recall(self, which):
        joined = [entry for entry in self.log[: self.seen] if entry.what == "joins"]
        chosen = joined[which % len(joined)]
        has_left = chosen.name in self._done("leaves") | self._on_their_way("leaves")
        is_recalled = chosen.name in self._done("recall") | self._on_their_way("recall")
        position = self.shelf.store.log.next_position
        try:
            record = self.schedule.find(TOPIC, chosen.name)
            is_news = self.schedule.recall(record, self._postmark())
        except IllegalOperation:
            assert has_left or chosen.position < self.shelf.store.log.start
            return
        assert not has_left, "what has left was recalled"
        assert is_news or is_recalled
        if is_news:
            self.staged.append(Deed("recall", chosen.name, position))

    # --- the disk ---

    @precondition(lambda self: self.staged)
    @rule()
    def write(self):
        span = self.shelf.store.write()
        self.log += self.staged
        self.staged = []
        if self.waits_for_disk:
            self.unsynced.append((span, len(self.log)))
        else:
            self.shelf.store.publish(span)
            self.seen = len(self.log)

    @precondition(lambda self: self.staged)
    @rule(pages=st.integers(0, 1))
    def write_to_a_full_disk(self, pages):
        self.disk.capacity = self.disk.space().used + 4096 * pages
        try:
            self.write()
        except DiskFull:
            self.staged = []
        finally:
            self.disk.capacity = None

    @precondition(lambda self: self.staged)
    @rule()
    def write_in_vain(self):
        self.disk.fail_writes(times=1, error=errno.EIO)
        with suppress(WriteFailed):
            self.shelf.store.write()
        self.staged = []

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
        while self.unsynced and self.unsynced[0][1] <= self.durable:
            span, self.seen = self.unsynced.pop(0)
            self.shelf.store.publish(span)

    def _settle(self):
        if self.syncing is not None:
            self.end_sync()
        if self.staged:
            self.write()
        self.begin_sync()
        self.end_sync()

    # --- checkpoints ---

    def _can_save(self):
        if self.saving is not None:
            return False
        stretch = self.shelf.store.checkpoints.next_range()
        return stretch is not None and stretch.end <= self.shelf.store.log.durable

    @precondition(lambda self: self._can_save())
    @rule(is_full=st.booleans())
    def begin_checkpoint(self, is_full):
        if is_full:
            self.disk.capacity = self.disk.space().used
        with suppress(OSError):
            self.saving = self.shelf.store.checkpoints.begin(
                self.shelf.store.checkpoints.next_range()
            )
        self.disk.capacity = None

    @precondition(lambda self: self.saving is not None)
    @rule()
    def end_checkpoint(self):
        self.saving.file.file.sync()
        self.shelf.store.checkpoints.confirm(self.saving)
        self.saving = None

    @rule()
    def checkpoint(self):
        if self.saving is not None:
            self.end_checkpoint()
        while self._can_save():
            self.begin_checkpoint(is_full=False)
            self.end_checkpoint()

    # --- restarts ---

    @rule()
    def kill(self):
        self.shelf.restart()

        self.durable = self.seen = len(self.log)
        self._opened()
        self._everybody_waits_who_should()

    @rule(seed=st.integers(0, 1000), loss=st.sampled_from(list(Loss)))
    def power_cut(self, seed, loss):
        self.disk.crash(SeededEntropy(seed), loss)
        self.shelf.restart()

        end = self.shelf.store.log.end
        self.seen = sum(entry.position < end for entry in self.log)
        assert self.durable <= self.seen
        del self.log[self.seen :]
        self.durable = self.seen
        self._opened()
        self._everybody_waits_who_should()

    @rule(levels=st.sampled_from(LEVELS))
    def stop_and_start_with_other_levels(self, levels):
        self._settle()
        self.checkpoint()
        assert self.shelf.restart()[:3] == (0, 0, 0)
        self.levels = levels
        self._opened()
        self._everybody_waits_who_should()

    @precondition(lambda self: self.shelf.index_files())
    @rule(which=st.sets(st.integers(0, 5), min_size=1))
    def lose_indexes(self, which):
        files = self.shelf.index_files()
        self.shelf.close()
        for path in {files[number % len(files)] for number in which}:
            self.disk.remove(path)
        self.kill()

    def _everybody_waits_who_should(self):
        assert sorted(map(_name, self.shelf.waits())) == sorted(self.waiting())

    # --- retries ---

    @rule(most=st.sampled_from([1, 2, 100]))
    def count_retries(self, most):
        self.delays.count_retries(most)

    @rule()
    def count_all_retries(self):
        while self.delays.count_retries(100):
            pass
        assert self.delays.waiting_retries() is not None

    # --- time ---

    @rule(step_ms=st.sampled_from(STEPS_MS))
    def time_passes(self, step_ms):
        self.now += step_ms

    @rule(jump_ms=st.sampled_from(JUMPS_MS))
    def the_clock_is_set(self, jump_ms):
        self.now = max(START_MS, self.now + jump_ms)

    @rule()
    def whoever_is_due_comes(self):
        self._settle()
        while self._leave(500):
            self._settle()

        assert min((entry.due_ms for entry in self.waiting().values()), default=FOR_EVER) > self.now

    @rule()
    def nobody_is_left(self):
        self._settle()
        self.now = max([self.now, *(entry.due_ms for entry in self.log)])
        self.whoever_is_due_comes()
        self.fill(10)
        self._settle()
        self.checkpoint()

        assert self.waiting() == {}
        assert self.delays.next_ms() is None
        assert self.delays.pinned() is None
        assert not self.delays._gone
        assert not self.delays._marks

    # --- retention ---

    def _may_delete(self):
        files, pinned = self.shelf.store.checkpoints.completed_files(), self.shelf.store.pinned()
        return files and (pinned is None or files[0].end <= pinned)

    @precondition(lambda self: self._may_delete())
    @rule()
    def delete_the_oldest_file(self):
        self.shelf.drop_first_file()

    # --- what can be seen ---

    @invariant()
    def whoever_has_left_has_come_once(self):
        start = self.shelf.store.log.start
        left = [entry for entry in self.log[: self.seen] if entry.what == "leaves"]
        assert len({entry.name for entry in left}) == len(left)
        bodies = self.shelf.bodies(TOPIC)
        assert [_name(body) for body in bodies.values()] == [
            entry.name for entry in left if entry.position >= start
        ]

    @invariant()
    def whoever_waits_counts_as_a_retry(self):
        counted = self.delays.waiting_retries()
        if counted is not None:
            expected = len(self.waiting().keys() - self.never_counted)
            assert sum(counted.of_group(GROUP).values()) == expected

    @invariant()
    def the_log_is_kept_for_those_who_wait(self):
        oldest = min((entry.position for entry in self.waiting().values()), default=None)
        if oldest is not None:
            assert self.shelf.store.log.start <= self.delays.pinned() <= oldest

    @invariant()
    def nothing_is_remembered_longer_than_need_be(self):
        delays = self.delays
        assert len(delays._going) == len(self._on_their_way("recall"))
        assert delays._leaving == len(self._on_their_way("leaves"))
        assert len(delays) <= len(self._done("joins"))


def _name(body):
    return body.rstrip(b".").decode()


TestWaits = Waits.TestCase
TestWaits.settings = settings(stateful_step_count=60)


def test_a_retry_that_is_staged_to_leave_is_counted_until_that_is_written():
    waits = Waits()
    waits.choose(waits_for_disk=False)
    waits.put_at_level(level=1, size=0)
    waits.stop_and_start_with_other_levels(levels="1s 5s 2m")
    waits.the_clock_is_set(jump_ms=1500)
    waits._leave(1)

    waits.count_all_retries()

    waits.whoever_waits_counts_as_a_retry()
    waits.write()
    waits.whoever_waits_counts_as_a_retry()
    waits.teardown()
