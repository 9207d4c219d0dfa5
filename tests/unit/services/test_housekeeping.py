"""The chores of a broker in virtual time: each by itself, in an order that loses nothing."""

import asyncio
import errno
import logging
from contextlib import suppress
from functools import wraps
from itertools import pairwise

import pytest

from tests.unit.store.shelf import Shelf
from txmq.errors import CorruptRecord
from txmq.protocol.bodies import ConsumerOffsets, GroupConfigs, TopicConfig, TopicConfigs
from txmq.protocol.copies import CopiedTables
from txmq.protocol.span import DecisionKind
from txmq.testing import simulate
from txmq.testing.disk import Loss, MemoryDisk
from txmq_broker.config import RetentionSettings, TopicDefaults
from txmq_broker.core.admission import Admission
from txmq_broker.core.groups import Groups
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.statistics import Statistics
from txmq_broker.core.topics import Topics
from txmq_broker.services.housekeeping import ROUND_S, SAVE_S, Housekeeping
from txmq_broker.services.keeper import Keeper, Tables

BIG = b"x" * 1500
ALWAYS = RetentionSettings(delete_at=";".join(str(hour) for hour in range(24)))
NEVER = RetentionSettings(delete_at="")
FOUR_DAYS_S = 4 * 24 * 3600.0


def in_world(scenario):
    """Run a coroutine test with a stage in its own world."""

    @wraps(scenario)
    def test():
        async def run(world):
            stage = Stage(world)
            try:
                await scenario(stage)
            finally:
                await stage.close()

        simulate(run, 5, timeout=30 * 24 * 3600.0)

    del test.__wrapped__  # the stage is not a fixture
    return test


class Stage:
    """Housekeeping over a small store on a simulated machine's disk and clock."""

    def __init__(self, world, retention=NEVER):
        machine = world.machine("broker")
        self.disk, self.clock = machine.disk, machine.clock
        self.shelf = Shelf(self.disk)
        self.store = self.shelf.store
        self.admission = Admission()
        self.offsets = Offsets()
        self.keeper = Keeper(self.disk)
        self.keeper.save_floors({}, 0)
        defaults = TopicDefaults()
        self.house = Housekeeping(
            self.store,
            self.disk,
            self.clock,
            self.keeper,
            Tables(Topics(self.store, defaults), Groups(defaults), self.offsets),
            Statistics(),
            self.admission,
            retention,
        )
        self.task = None

    def start(self, *more):
        self.task = asyncio.create_task(self.house.run(*more))

    async def close(self):
        self.disk.on_write = None
        if self.task is not None:
            assert not self.task.done(), "housekeeping has ended by itself"
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.store.close()

    def fill(self, count=8):
        """Messages in several files, two in each."""
        self.shelf.add(*[BIG] * count)
        self.shelf.checkpoint()
        return len(self.files())

    def files(self):
        return self.disk.names("log")

    def events(self):
        """A list that receives every operation on the disk."""
        found = []
        self.disk.on_write = lambda event: found.append((event.kind, event.path))
        return found

    def refuse(self, prefix):
        """Let the disk refuse paths with this prefix."""

        def hook(event):
            if event.path.startswith(prefix):
                raise OSError(errno.ENOSPC, "No space left on device", event.path)

        self.disk.on_write = hook

    @property
    def is_admitting(self):
        return not self.admission.reasons


# --- rounds ---


@in_world
async def test_every_chore_runs_at_the_start_and_then_once_a_round(stage):
    times = []
    stage.start(lambda: times.append(stage.clock.monotonic()))
    began = stage.clock.monotonic()
    await asyncio.sleep(10 * ROUND_S + 1)

    assert [moment - began for moment in times] == pytest.approx([ROUND_S * n for n in range(11)])


@pytest.mark.parametrize("problem", [OSError(errno.EIO, "I/O error"), RuntimeError("a mistake")])
def test_a_failing_chore_is_logged_and_retried_and_the_others_go_on(problem, caplog):
    tried, done = [], []

    def failing():
        tried.append(1)
        raise problem

    @in_world
    async def scenario(stage):
        stage.offsets.put("g", "T", 0, 7)
        stage.start(failing, lambda: done.append(1))
        await asyncio.sleep(3 * ROUND_S + 1)

        assert stage.keeper.offsets().offset_table == {"T@g": {0: 7}}

    with caplog.at_level(logging.WARNING):
        scenario()

    assert len(tried) == len(done) == 4
    assert str(problem) in caplog.text
    assert (
        len(
            [
                record
                for record in caplog.records
                if record.name == "txmq_broker.services.housekeeping"
            ]
        )
        == 4
    )


@in_world
async def test_offsets_are_saved_once_the_disk_accepts_writes_again(stage):
    stage.refuse("config/offsets")
    stage.offsets.put("g", "T", 0, 7)
    stage.start()
    await asyncio.sleep(2 * ROUND_S)
    assert stage.offsets.unsaved

    stage.disk.on_write = None
    await asyncio.sleep(ROUND_S + 1)

    assert not stage.offsets.unsaved
    assert stage.keeper.offsets().offset_table == {"T@g": {0: 7}}


@in_world
async def test_offsets_are_saved_within_a_second(stage):
    """So consumers repeat little after a broker was killed."""
    stage.start()
    await asyncio.sleep(0.5)
    for offset in range(1, 4 * round(ROUND_S)):
        stage.offsets.put("g", "T", 0, offset)
        await asyncio.sleep(1.0)
        assert stage.keeper.offsets().offset_table == {"T@g": {0: offset}}


@in_world
async def test_unchanged_tables_are_not_written_again(stage):
    stage.offsets.put("g", "T", 0, 7)
    stage.start()
    await asyncio.sleep(1)
    events = stage.events()
    await asyncio.sleep(5 * ROUND_S)

    assert events == []


# --- deleting ---


@in_world
async def test_floors_are_saved_before_the_first_log_file_is_deleted(stage):
    count = stage.fill()
    stage.house.retention = ALWAYS
    stage.clock.jump(FOUR_DAYS_S)
    events = stage.events()
    stage.start()
    await asyncio.sleep(1)

    removed = [
        at for at, (kind, path) in enumerate(events) if (kind, path[:4]) == ("remove", "log/")
    ]
    saved = events.index(("rename", "config/floors.json"))
    assert len(removed) == count - 1
    assert saved < removed[0]
    assert len(stage.files()) == 1
    assert stage.keeper.floors().floors == stage.house.floors == {"T": {0: 6}}
    assert sorted(stage.shelf.bodies()) == [6, 7]


@in_world
async def test_an_unreadable_index_prevents_deletion_and_a_full_disk_is_still_noticed(stage):
    """An unreadable index of waiting messages must not hide that the disk is full."""
    count = stage.fill()
    stage.clock.jump(FOUR_DAYS_S)
    stage.house.retention = ALWAYS
    stage.disk.capacity = int(stage.disk.space().used / 0.95)

    def pinned():
        raise CorruptRecord(0, "the disk cannot read its index")

    stage.store.pinned = pinned
    stage.start()
    await asyncio.sleep(1)

    assert len(stage.files()) == count
    assert not stage.is_admitting


@in_world
async def test_nothing_is_deleted_while_the_floors_cannot_be_saved(stage):
    count = stage.fill()
    stage.house.retention = ALWAYS
    stage.clock.jump(FOUR_DAYS_S)
    stage.refuse("config/floors")
    stage.start()
    await asyncio.sleep(3 * ROUND_S)
    assert len(stage.files()) == count
    assert stage.house.floors == {}

    stage.disk.on_write = None
    await asyncio.sleep(ROUND_S)

    assert len(stage.files()) == 1


@in_world
async def test_a_log_file_that_cannot_be_removed_is_removed_later(stage):
    count = stage.fill()
    stage.house.retention = ALWAYS
    stage.clock.jump(FOUR_DAYS_S)
    stage.refuse("log/")
    stage.start()
    await asyncio.sleep(2 * ROUND_S)
    assert len(stage.files()) == count

    stage.disk.on_write = None
    await asyncio.sleep(ROUND_S)

    assert len(stage.files()) == 1
    assert sorted(stage.shelf.bodies()) == [6, 7]


@in_world
async def test_only_old_files_are_deleted_and_only_at_the_set_hour_or_on_request(stage):
    count = stage.fill()
    stage.house.retention = ALWAYS
    stage.start()
    await asyncio.sleep(3600)
    assert len(stage.files()) == count  # young

    stage.house.retention = NEVER
    stage.clock.jump(FOUR_DAYS_S)
    await asyncio.sleep(3600)
    assert len(stage.files()) == count  # old, but not now

    stage.house.retain_now()
    assert len(stage.files()) == 1


@pytest.mark.fault("S14")
@in_world
async def test_an_open_transaction_keeps_its_log_file_even_if_old_and_the_disk_full(stage):
    stage.shelf.prepare(b"half", unique="u")
    stage.shelf.flush()
    count = stage.fill()
    stage.house.retention = ALWAYS
    stage.clock.jump(FOUR_DAYS_S)
    stage.disk.capacity = stage.disk.space().used
    stage.start()
    await asyncio.sleep(3600)
    assert len(stage.files()) == count
    stage.disk.capacity = None

    stage.shelf.decide("u", DecisionKind.PARKED)
    stage.shelf.flush()
    stage.shelf.checkpoint()
    await asyncio.sleep(3600)
    assert len(stage.files()) == count, "what is parked is open"

    stage.shelf.decide("u", DecisionKind.COMMITTED)
    stage.shelf.flush()
    stage.shelf.checkpoint()
    await asyncio.sleep(3600)
    assert len(stage.files()) == 1
    assert stage.shelf.bodies()[8] == b"half"
    assert stage.keeper.floors().floors["RMQ_SYS_TRANS_HALF_TOPIC"] == {0: 1}


@in_world
async def test_messages_of_a_deleted_topic_stay_hidden(stage):
    stage.fill()

    stage.house.forget_topic("T", lambda: None)

    assert stage.keeper.floors().floors == {"T": {0: 8}}
    assert stage.shelf.bodies() == {}


# --- the disk's mark ---


@in_world
async def test_a_full_disk_refuses_sends_until_there_is_room(stage):
    stage.fill()
    used = stage.disk.space().used
    stage.start()
    await asyncio.sleep(1)
    assert stage.is_admitting

    stage.disk.capacity = int(used / 0.95)
    stage.house.retention = RetentionSettings(
        delete_at="", delete_above=1.0, force_above=1.0, refuse_above=1.0
    )
    await asyncio.sleep(ROUND_S)
    assert stage.is_admitting  # the mark is the operator's

    marks = RetentionSettings(delete_at="", delete_above=0.9, force_above=0.9, refuse_above=0.9)
    stage.house.retention = marks
    stage.admission.set_cause("stopping", "the broker is stopping")
    await asyncio.sleep(ROUND_S)
    assert "90%" in "; ".join(stage.admission.reasons.values())

    stage.disk.capacity = 100 * used
    await asyncio.sleep(ROUND_S)
    # Lifting one reason does not lift the others.
    assert list(stage.admission.reasons.values()) == ["the broker is stopping"]
    stage.admission.clear_cause("stopping")
    assert stage.is_admitting


@in_world
async def test_above_the_force_mark_young_files_are_deleted_too(stage):
    count = stage.fill()
    used = stage.disk.space().used
    stage.start()
    await asyncio.sleep(1)
    assert len(stage.files()) == count

    stage.disk.capacity = int(used / 0.87)
    await asyncio.sleep(ROUND_S)

    assert len(stage.files()) < count
    assert stage.is_admitting
    assert sorted(stage.shelf.bodies())[-2:] == [6, 7]


@in_world
async def test_a_slow_disk_does_not_delay_the_next_save_of_offsets(stage):
    """The next save begins a second after the last one began, not after it ended."""
    began = []
    stage.disk.slow_sync(0.3, 0.3)
    stage.disk.on_write = lambda event: (
        began.append(stage.clock.monotonic())
        if event.kind == "create" and event.path.startswith("config/offsets.json")
        else None
    )
    stage.start()
    for number in range(200):
        stage.offsets.put("g", "T", 0, number)
        await asyncio.sleep(0.1)

    gaps = [after - before for before, after in pairwise(began)]
    assert len(gaps) > 15
    assert max(gaps) < SAVE_S + 0.1


def delete_topic(disk, accepted):
    """Delete T as a broker does, on a disk that accepts some operations and refuses all others."""
    shelf, keeper, defaults = Shelf(disk), Keeper(disk), TopicDefaults()
    topics = Topics(shelf.store, defaults)
    topics.load(keeper.topics(), ())
    house = Housekeeping(
        shelf.store, disk, None, keeper, Tables(topics, Groups(defaults), Offsets()), Statistics(),
        Admission(), NEVER,
    )  # fmt: skip
    house.floors = keeper.floors().floors
    count = 0

    def refuse(event):
        nonlocal count
        count += 1
        if count > accepted:
            raise OSError(errno.EIO, "Input/output error", event.path)

    disk.on_write = refuse
    assert topics.remove("T", 0)
    with suppress(OSError):
        house.forget_topic("T", lambda: keeper.save_topics(topics))
    disk.on_write = None
    return accepted < count


def test_a_topic_deletion_cut_by_a_crash_is_complete_or_has_no_effect():
    whole = MemoryDisk()
    shelf = Shelf(whole)
    topics = TopicConfigs(topic_config_table={"T": TopicConfig("T", 1, 1, 6)})
    Keeper(whole).adopt(CopiedTables(topics, GroupConfigs(), ConsumerOffsets(), {}), 0)
    shelf.add(*[BIG] * 3)
    accepted, ends = 0, set()
    is_refused = True
    while is_refused:
        for loss in (Loss.NOTHING, Loss.EVERYTHING):
            disk = whole.clone()
            is_refused = delete_topic(disk, accepted)
            disk.crash(loss=loss)
            keeper = Keeper(disk)
            floors, topics = keeper.floors().floors, keeper.topics().topic_config_table
            assert ("T" in topics) == ("T" not in floors), f"{accepted} operations, {loss}"
            ends.add("T" in topics)
        accepted += 1
    assert ends == {True, False}
    assert floors["T"] == {0: 3}
