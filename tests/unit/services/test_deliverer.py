"""The deliverer in virtual time: on time, never busy, and patient with the disk."""

import asyncio
import errno
from collections import Counter
from functools import wraps

import pytest

from tests.unit.store.delay_shelf import DelayShelf
from tests.unit.store.press import Press, turns
from tests.unit.store.shelf import HOST, Sizes
from txmq.errors import ServiceUnavailable
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.bodies import TopicConfigs
from txmq.testing import MemoryDisk, simulate
from txmq_broker.config import BrokerSettings, DelaySettings, TopicDefaults
from txmq_broker.core.schedule import Schedule
from txmq_broker.core.topics import Topics, system_topics
from txmq_broker.services import deliverer as delivering
from txmq_broker.services.deliverer import LOOK_S, Deliverer
from txmq_broker.store.delay_lines import WHEEL_LINES
from txmq_broker.store.delay_store import Unstored

ASYNC = Sizes(flush="async")
BOTH = pytest.mark.parametrize("sizes", [Sizes(), ASYNC], ids=["sync", "async"])


def in_virtual_time(scenario):
    """Run a coroutine test in its own world."""

    @wraps(scenario)
    def test(**given):
        async def run(world):
            await scenario(**given)

        simulate(run, 0, timeout=30 * 24 * 3600.0)

    return test


class Stage(Press):
    """A press with a deliverer at work, and a note of when each message came."""

    def __init__(self, disk=None, sizes=None, levels="1s 5s 10s"):
        super().__init__(disk or MemoryDisk(), sizes)
        self.delays = self.store.delays
        delay = DelaySettings(levels=levels)
        topics = Topics(self.store, TopicDefaults())
        topics.load(TopicConfigs(), system_topics(BrokerSettings(delay=delay)))
        self.schedule = Schedule(self.store, topics, delay)
        self.topic = topics.put(topics.config_for_sending("T", "TBW102", 1), 1)
        self.deliverer = Deliverer(self.schedule, self.delays, self.flusher, self.clock)
        self.came = {}
        self.on_published = self._told
        self.rounds = 0
        self._round = self.deliverer.round
        self.deliverer.round = self._count_round
        self._count = Counter()
        self._task = None

    async def __aenter__(self):
        await super().__aenter__()
        self._task = asyncio.create_task(self.deliverer.run())
        return self

    async def __aexit__(self, *problem):
        assert not self._task.done()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await super().__aexit__(*problem)

    def _count_round(self, *given):
        self.rounds += 1
        moment = self.clock.monotonic()
        self._count[moment] += 1
        assert self._count[moment] < 20, "it spins"
        return self._round(*given)

    def _told(self, span):
        if span.delayed is not None:
            self.deliverer.published(span)
        for queue, position, *_ in span.staged:
            if queue.topic == "T":
                body = self.shelf.store.record_bytes(position)
                self.came.setdefault(_body(body), []).append(self.clock.wall_ms())

    def later(self, name, wait_ms, body=b""):
        now_ms, stored_ms = self.clock.wall_ms(), self.flusher.turn_ms()
        wish = self.schedule.due_time_in({"TIMER_DELAY_MS": str(wait_ms)}, now_ms)
        self._put(name, wish, stored_ms, body)
        return wish.due_ms

    def at_level(self, name, level):
        stored_ms = self.flusher.turn_ms()
        wish = self.schedule.due_time_of_level(level, self.clock.wall_ms())
        self._put(name, wish, stored_ms, b"")
        return wish.due_ms

    def in_line(self, name, line):
        """Let a message that is due soon wait in a given line."""
        stored_ms = self.flusher.turn_ms()
        data = f"UNIQ_KEY\x01{name}\x02".encode() + records.real_place("T", 0)
        postmark = (0, stored_ms, HOST, stored_ms, HOST, 0, 0)
        due_ms = self.clock.wall_ms() + 10
        self.delays.join(line, due_ms, Unstored(postmark, 0, name.encode(), data))

    def _put(self, name, wish, stored_ms, body):
        data = properties.render({"UNIQ_KEY": name}).encode()
        postmark = (0, stored_ms, HOST, stored_ms, HOST, 0, 0)
        body = name.encode() + body
        now_ms = self.clock.wall_ms()
        message = Unstored(postmark, 0, body, data)
        self.schedule.put(self.topic.name, 0, message, wish, now_ms)

    def names(self):
        assert all(len(times) == 1 for times in self.came.values()), "one came twice"
        return list(self.came)


def _body(data):
    return records.unpack(data)[0].body.rstrip(b".").decode()


@BOTH
@in_virtual_time
async def test_each_message_is_delivered_in_the_millisecond_it_is_due(sizes):
    async with Stage(sizes=sizes) as stage:
        waits = [1, 2, 999, 1000, 1001, 1500, 59_999, 600_000, 600_001]
        due = {f"w{wait}": stage.later(f"w{wait}", wait) for wait in waits}

        await asyncio.sleep(602)

        assert {name: [at] for name, at in due.items()} == stage.came
        assert stage.rounds < 700


@BOTH
@in_virtual_time
async def test_a_message_that_joins_while_the_deliverer_sleeps_comes_on_time(sizes):
    async with Stage(sizes=sizes) as stage:
        stage.later("far", 3_600_000)
        for number in range(50):
            await asyncio.sleep(0.337)
            due_ms = stage.later(f"{number}", 7)
            await asyncio.sleep(0.05)
            assert stage.came[f"{number}"] == [due_ms]


@in_virtual_time
async def test_messages_due_together_are_delivered_in_rounds_of_bounded_count(monkeypatch):
    monkeypatch.setattr(delivering, "DELIVERED_TOGETHER_MAX", 10)
    async with Stage() as stage:
        for number in range(95):
            stage.later(f"{number}", 5000)

        await asyncio.sleep(6)

        assert sorted(stage.names(), key=int) == stage.names()
        assert len(stage.came) == 95
        left = [len(span.delayed.left) for span in stage.spans if span.delayed]
        assert [count for count in left if count] == [10] * 9 + [5]


@in_virtual_time
async def test_a_round_ends_when_it_reaches_its_byte_limit(monkeypatch):
    monkeypatch.setattr(delivering, "DELIVERED_BYTES_MAX", 3000)
    async with Stage() as stage:
        for number in range(6):
            stage.later(f"{number}", 5000, b"." * 1500)

        await asyncio.sleep(6)

        left = [len(span.delayed.left) for span in stage.spans if span.delayed]
        assert [count for count in left if count] == [2, 2, 2]


@in_virtual_time
async def test_no_second_round_starts_while_one_is_being_synced():
    disk = MemoryDisk()
    async with Stage(disk) as stage:
        stage.later("a", 5000)
        stage.later("b", 5100)
        await asyncio.sleep(1)
        disk.slow_sync(0.4)

        await asyncio.sleep(4.3)
        assert stage.delays.is_delivering
        assert stage.names() == []
        await asyncio.sleep(0.2)
        assert stage.names() == ["a"]
        await asyncio.sleep(0.5)
        assert stage.names() == ["a", "b"]
        assert stage.rounds < 20


@in_virtual_time
async def test_an_idle_deliverer_looks_once_a_second():
    async with Stage() as stage:
        await asyncio.sleep(100)

        assert stage.rounds <= 100 / LOOK_S + 2


class CreepingClock:
    """A clock that moves on a little at every reading, as real clocks do."""

    def __init__(self, clock, readings):
        self._clock = clock
        self._ahead = 0
        self._readings = readings

    def monotonic(self):
        return self._clock.monotonic()

    def wall_ms(self):
        self._ahead += next(self._readings, 0)
        return self._clock.wall_ms() + self._ahead


@pytest.mark.parametrize("ms", [0, 1, 500])
@pytest.mark.parametrize("before", range(1, 4))
@in_virtual_time
async def test_a_message_that_falls_due_while_the_deliverer_decides_comes_on_time(ms, before):
    async with Stage() as stage:
        at_ms = (stage.clock.wall_ms() // 1000 + 10) * 1000 + ms
        stage.later("a", at_ms - stage.clock.wall_ms())
        await asyncio.sleep((at_ms - before - stage.clock.wall_ms()) / 1000)
        stage.deliverer._wake.set()
        # Readings before the deliverer's first look do not count.
        stage.deliverer._clock = CreepingClock(stage.clock, iter([0, *[1] * before]))

        await turns(10)
        await asyncio.sleep(0.02)

        assert stage.names() == ["a"]


# --- the wall clock ---


@in_virtual_time
async def test_a_clock_set_forward_delivers_due_messages_within_a_second():
    async with Stage() as stage:
        stage.later("a", 3_600_000)
        await asyncio.sleep(10)
        stage.clock.jump(3600)

        await asyncio.sleep(LOOK_S)

        assert stage.names() == ["a"]


@in_virtual_time
async def test_a_clock_set_back_delivers_no_message_early_and_loses_none(caplog):
    async with Stage(levels="1s 5s 10s") as stage:
        stage.at_level("a", 3)
        stage.later("b", 10_500)
        await asyncio.sleep(2)
        stage.clock.jump(-3600)
        dues = {"c": stage.later("c", 700), "d": stage.at_level("d", 3)}
        await asyncio.sleep(20)
        assert stage.came == {name: [at] for name, at in dues.items()}

        await asyncio.sleep(3600)

        assert stage.names() == ["c", "d", "a", "b"]
    assert "set back" not in caplog.text


@in_virtual_time
async def test_after_a_clock_was_ahead_messages_may_be_late_and_never_early(caplog):
    async with Stage(levels="1s 5s 10s") as stage:
        stage.clock.jump(3600)
        # One message leaves every line that a short delay may use.
        for line in range(WHEEL_LINES):
            stage.in_line(f"{line}", stage.delays.wheel_line(line))
        stage.at_level("level", 1)
        await asyncio.sleep(2)
        assert len(stage.came) == WHEEL_LINES + 1
        stage.clock.jump(-60)

        wanted_ms = stage.at_level("held", 1)
        other_ms = stage.at_level("other", 2)
        await asyncio.sleep(50)
        assert stage.came["other"] == [other_ms]
        assert "held" not in stage.came
        await asyncio.sleep(20)

        # It waited behind the first message that had left its line.
        (came_ms,) = stage.came["held"]
        assert wanted_ms < came_ms < wanted_ms + 60_000
    assert caplog.text.count("1 message comes later than wanted") == 1


# --- the disk ---


@BOTH
@in_virtual_time
async def test_delivery_waits_while_the_disk_is_full_and_resumes(sizes):
    disk = MemoryDisk()
    async with Stage(disk, sizes) as stage:
        for number in range(5):
            stage.later(f"{number}", 5000)
        await asyncio.sleep(1)
        disk.fail_writes(error=errno.ENOSPC)
        await asyncio.sleep(60.5)
        assert stage.came == {}
        assert stage.rounds < 150
        assert len(stage.delays) == 5

        disk.repair()
        await asyncio.sleep(2 * LOOK_S)

        assert stage.names() == ["0", "1", "2", "3", "4"]
        assert len(stage.delays) == 0


@in_virtual_time
async def test_waiting_messages_are_delivered_while_sends_are_refused():
    async with Stage() as stage:
        due_ms = stage.later("a", 5000)
        await asyncio.sleep(1)
        stage.admission.set_cause("disk", "the disk is full")
        assert stage.store.pinned() is not None
        await asyncio.sleep(60)

        assert stage.came == {"a": [due_ms]}
        stage.shelf.checkpoint()
        assert stage.store.pinned() is None
        with pytest.raises(ServiceUnavailable):
            stage.later("b", 5000)


@in_virtual_time
async def test_a_drain_delivers_the_messages_already_staged():
    disk = MemoryDisk()
    disk.slow_sync(0.1)
    async with Stage(disk) as stage:
        stage.later("a", 5000)
        stage.later("b", 6000)
        await asyncio.sleep(5.01)
        stage.admission.set_cause("stopping", "the broker is stopping")
        await stage.flusher.drain()
        assert stage.names() == ["a"]
        sizes = stage.shelf.sizes

    shelf = DelayShelf(disk, sizes)
    assert shelf.recovery[:3] == (0, 0, 0)
    assert shelf.deliver(1 << 50) == [b"b"]
    shelf.close()


@in_virtual_time
async def test_messages_hidden_by_a_damaged_index_are_not_skipped(caplog):
    disk = MemoryDisk()
    async with Stage(disk) as stage:
        stage.later("a", 5000)
        stage.later("b", 6000)
        await asyncio.sleep(1)
        await stage.flusher.drain()
        (path,) = stage.shelf.index_files()
        disk.flip_bit(path, len(stage.shelf.contents(path)) - 1)
        await asyncio.sleep(60)
        assert stage.came == {}
        assert stage.rounds < 100
    assert caplog.text.count("stop the broker and delete that file") == 1

    disk.remove(path)
    shelf = DelayShelf(disk)
    assert shelf.deliver(1 << 50) == [b"a", b"b"]
    shelf.close()


@in_virtual_time
async def test_messages_are_delivered_once_an_unreadable_disk_recovers(caplog, monkeypatch):
    async with Stage() as stage:
        stage.later("a", 5000)
        stage.later("b", 5000)
        await asyncio.sleep(1)
        with monkeypatch.context() as trouble:
            trouble.setattr(stage.shelf.store.log, "read", _refuses)
            await asyncio.sleep(60)
            assert stage.came == {}
        await asyncio.sleep(2)

        assert list(stage.came) == ["a", "b"]
    assert caplog.text.count("must wait") == 1


def _refuses(position, size):
    raise OSError(errno.EIO, "the disk does not read")


@in_virtual_time
async def test_one_unreadable_message_does_not_block_the_others(caplog):
    async with Stage() as stage:
        stage.later("broken", 5000)
        stage.later("whole", 5000)
        await asyncio.sleep(1)
        position = stage.spans[0].staged[0][1]
        stage.disk.flip_bit(stage.shelf.log_files()[0], position + 95)

        await asyncio.sleep(10)

        assert stage.names() == ["whole"]
    assert "cannot be read" in caplog.text
    caplog.clear()
