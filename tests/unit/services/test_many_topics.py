"""Many topics: a change writes only the changes file, and a thread rewrites the topics file."""

import asyncio
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import run_by
from tests.unit.store.shelf import Shelf, Sizes
from txmq.errors import DamagedFile
from txmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigs
from txmq.protocol.copies import CopiedTables
from txmq.testing import Loss, MemoryDisk, SeededEntropy, power_cuts, simulate
from txmq_broker.config import TopicDefaults
from txmq_broker.core import topics as core_topics
from txmq_broker.core.groups import Groups
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.topics import Topics
from txmq_broker.services import keeper as keepers
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.message_store import MessageStore

ALL, CHANGES = "config/topics.json", "config/topics-changes.json"
NAMES = "ABCDEF"


@pytest.fixture(autouse=True)
def three_topics_are_many(monkeypatch):
    monkeypatch.setattr(keepers, "_MANY_TOPICS", 2)
    monkeypatch.setattr(keepers, "_CHANGES_MAX", 2)
    monkeypatch.setattr(keepers, "_ENCODED_AT_ONCE", 2)


def empty_topics():
    return Topics(MessageStore(MemoryDisk(), Sizes()), TopicDefaults())


class TopicTable:
    """The topics of one life of a broker."""

    def __init__(self, disk, *, accepts_loss=False, system=()):
        self.keeper = Keeper(disk)
        self.keeper.accepts_loss = accepts_loss
        floors = self.keeper.floors()
        self.topics = empty_topics()
        self.topics.load(self.keeper.topics(), system)
        self.keeper.groups(), self.keeper.offsets()
        self.keeper.complete(self.topics, Groups(TopicDefaults()), Offsets(), floors.floors)
        self.topics.settle()

    def put(self, name, queues=1):
        self.topics.put(TopicConfig(name, queues, queues), 1)
        self.save()

    def remove(self, name):
        self.topics.remove(name, 1)
        self.save()

    def save(self):
        self.keeper.save_topics(self.topics)
        self.topics.settle()

    async def merge(self):
        await self.keeper.merge_changes(self.topics.saved())

    def seen(self):
        table = self.topics.saved().topic_config_table
        return {name: config.read_queue_nums for name, config in table.items()}


def used_disk():
    """Three topics in the topics file, and changes of each kind in the changes file."""
    disk = MemoryDisk()
    shelf = Shelf(disk)
    table = TopicTable(disk)
    for name in "ABC":
        table.put(name)
    table.put("A", 2)
    table.put("D")
    table.remove("B")
    shelf.close()
    return disk


USED = {"A": 2, "C": 1, "D": 1}


def changed_table(disk):
    """Six topics, half of them in the changes file."""
    table = TopicTable(disk)
    for number in range(6):
        table.put(f"T{number}")
    return table


def paths_written(disk, work):
    paths = set()
    disk.on_write = lambda event: paths.add(event.path)
    work()
    disk.on_write = lambda _: None
    return {path.removesuffix(".new").removesuffix(".old") for path in paths}


def test_a_topic_change_writes_only_the_changes_file():
    disk = used_disk()
    table = TopicTable(disk)
    assert table.seen() == USED

    assert paths_written(disk, lambda: table.put("E")) <= {CHANGES, "config"}
    assert TopicTable(disk).seen() == USED | {"E": 1}


def test_a_start_merges_the_topic_changes_and_the_next_start_writes_nothing():
    disk = used_disk()
    TopicTable(disk)
    disk.on_write = lambda event: pytest.fail(f"{event}")

    assert TopicTable(disk).seen() == USED


def test_restoring_a_deleted_system_topic_updates_the_changes_file():
    disk = used_disk()
    assert "B" not in Keeper(disk).topics().topic_config_table

    table = TopicTable(disk, system=[TopicConfig("B", 1, 1)])

    assert Keeper(disk).topics().topic_config_table == table.topics.saved().topic_config_table


@pytest.mark.parametrize("suffix", ["", ".old"])
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_one_damaged_copy_of_the_topic_changes_loses_nothing(suffix, how, caplog):
    disk = used_disk()
    if how == "deleted":
        disk.remove(CHANGES + suffix)
    else:
        disk.flip_bit(CHANGES + suffix, 60)

    assert TopicTable(disk).seen() == USED

    caplog.clear()
    assert TopicTable(disk).seen() == USED
    assert not caplog.messages, "it was written again"


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_start_without_the_topic_changes_is_refused_unless_the_loss_is_accepted(how):
    disk = used_disk()
    for path in (CHANGES, f"{CHANGES}.old"):
        if how == "deleted":
            disk.remove(path)
        else:
            disk.flip_bit(path, 60)
    with pytest.raises(DamagedFile, match=r"config/topics-changes\.json: .* backup"):
        TopicTable(disk)

    table = TopicTable(disk, accepts_loss=True)
    assert table.keeper.has_lost
    assert table.seen() == {"A": 1, "B": 1, "C": 1}
    table.put("Z")
    assert TopicTable(disk).seen() == {"A": 1, "B": 1, "C": 1, "Z": 1}


def test_topic_changes_older_than_the_topics_file_are_refused():
    disk = used_disk()
    older = disk.clone()
    table = TopicTable(disk)
    table.put("E")

    async def scenario(_world):
        await table.merge()

    simulate(scenario, 1)
    for path in (CHANGES, f"{CHANGES}.old"):
        file = older.open(path)
        disk.replace(path, file.read(0, file.size()))

    with pytest.raises(DamagedFile, match=r"it is older than config/topics\.json"):
        TopicTable(disk)


def test_a_topic_change_refused_by_the_disk_does_not_come_back_later():
    disk = used_disk()
    table = TopicTable(disk)
    disk.fail_writes(error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space left on device: 'config/topics-changes"):
        table.put("E")
    table.topics.undo()
    with pytest.raises(OSError, match="No space left"):
        table.remove("A")
    table.topics.undo()
    disk.repair()
    assert table.seen() == USED

    table.put("F")

    assert table.seen() == TopicTable(disk).seen() == USED | {"F": 1}


@run_by(simulate, 1)
async def test_topic_changes_during_a_merge_are_kept(world, /):
    disk = world.machine("broker").disk
    table = changed_table(disk)
    assert table.keeper.has_many_changes
    merging = asyncio.ensure_future(table.merge())
    await asyncio.sleep(0)
    table.put("T1", 7)
    table.remove("T2")
    assert not merging.done()
    await merging

    assert not table.keeper.has_many_changes
    assert TopicTable(disk.clone()).seen() == table.seen()
    table.put("T6")
    assert TopicTable(disk.clone()).seen() == table.seen()


@run_by(simulate, 1)
async def test_a_cancelled_merge_of_topics_writes_nothing_more(world, /):
    disk = world.machine("broker").disk
    table = changed_table(disk)
    merging = asyncio.ensure_future(table.merge())
    await asyncio.sleep(0)
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    disk.on_write = lambda event: pytest.fail(f"{event}")
    await asyncio.sleep(1)


def copied_topics(counter, *names):
    table = {name: TopicConfig(name, 1, 1) for name in names}
    return CopiedTables(TopicConfigs(DataVersion(1, counter), table))


@run_by(simulate, 1)
async def test_a_follower_merges_the_topics_it_adopted_from_several_answers(world, /):
    disk = used_disk()
    keeper = Keeper(disk)
    keeper.adopt(copied_topics(7, "A", "B", "C", "D", "E", "F"), 0)
    again = copied_topics(8, "A", "B", "C", "E", "F", "G")
    keeper.adopt(again, 0)
    assert keeper.has_many_changes

    await keeper.merge_changes(again.topics)

    assert not keeper.has_many_changes
    assert TopicTable(disk).seen() == dict.fromkeys("ABCEFG", 1)


@pytest.mark.parametrize("counter", [3, 9])
@run_by(simulate, 1)
async def test_a_follower_restarts_after_adopting_topics_of_an_older_version(world, /, counter):
    disk = used_disk()
    keeper = Keeper(disk)
    newest = copied_topics(20, "A", "B", "C", "D", "E", "F")
    keeper.adopt(newest, 0)
    await keeper.merge_changes(newest.topics)

    keeper.adopt(copied_topics(counter, "A", "B", "C", "G"), 0)

    assert TopicTable(disk.clone()).seen() == dict.fromkeys("ABCG", 1)
    later = copied_topics(counter + 1, "A", "B", "C", "H")
    keeper.adopt(later, 0)
    assert TopicTable(disk.clone()).seen() == dict.fromkeys("ABCH", 1)
    await keeper.merge_changes(later.topics)
    assert TopicTable(disk).seen() == dict.fromkeys("ABCH", 1)


@run_by(simulate, 1)
async def test_a_merge_refused_by_the_disk_can_be_repeated(world, /):
    disk = world.machine("broker").disk
    table = changed_table(disk)
    disk.fail_writes(error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        await table.merge()
    disk.repair()
    assert table.keeper.has_many_changes
    table.put("T1", 7)
    assert TopicTable(disk.clone()).seen() == table.seen()
    await table.merge()
    assert TopicTable(disk.clone()).seen() == table.seen()


@pytest.mark.parametrize("loss", Loss)
def test_a_crash_loses_no_confirmed_topic_change_and_invents_none(loss):
    states = [{}]

    def change(table, *given):
        """One change; the states before and after it are those that a crash may leave."""
        name, queues = given
        after = table.seen()
        after.pop(name, None)
        states.append(after | ({name: queues} if queues else {}))
        if queues:
            table.put(name, queues)
        else:
            table.remove(name)

    def work(disk):
        table = TopicTable(disk)
        for step in [("A", 1), ("B", 1), ("C", 1), ("D", 1), ("A", 2), ("B", 0)]:
            change(table, *step)
        # The thread's write, between two changes and during them.
        whole = table.keeper._whole(table.topics.saved())
        table.keeper._topics.save("", keepers._encoded(whole))
        for step in [("E", 3), ("A", 0), ("B", 4)]:
            change(table, *step)

    steps = []

    def noting(disk):
        disk_events = disk.on_write

        def note(event):
            steps.append(len(states))
            disk_events(event)

        disk.on_write = note
        work(disk)
        disk.on_write = disk_events
        steps.append(len(states))

    points = list(power_cuts(MemoryDisk(), noting))
    assert len(points) == len(steps) > 60
    for number, (known, (event, disk)) in enumerate(zip(steps, points, strict=True)):
        disk.crash(SeededEntropy(f"{number}"), loss)

        assert TopicTable(disk).seen() in states[max(known - 2, 0) : known], event


@pytest.mark.parametrize("counter", [3, 20])
def test_topic_changes_since_another_leaders_version_are_unknown(counter):
    def adopt(version, *names):
        topics.adopt(TopicConfigs(version, {name: configs[name] for name in names}))
        return version

    configs = {name: TopicConfig(name, 1, 1) for name in NAMES}
    topics = empty_topics()
    known = adopt(DataVersion(1, 20), "A")
    adopt(DataVersion(2, counter), "A", "B")
    assert topics.changes_since(known) is None
    later = adopt(DataVersion(3, 25), "A", "B", "C")
    assert topics.changes_since(known) is None

    adopt(DataVersion(4, 26), "A", "B", "C", "D")

    assert {*topics.changes_since(later).changed} == {"D"}


CHANGE = st.tuples(st.sampled_from(NAMES), st.integers(0, 3))


@given(st.lists(CHANGE), st.lists(CHANGE), st.integers(1, 8))
def test_topic_changes_since_a_version_lead_to_the_present_topics(before, after, remembered):
    def make(changes):
        for name, queues in changes:
            if queues:
                topics.put(TopicConfig(name, queues, queues), 1)
            else:
                topics.remove(name, 1)
            topics.settle()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_topics, "_CHANGES_REMEMBERED", remembered)
        topics = empty_topics()
        topics.load(TopicConfigs(DataVersion(1, 5)), [])
        make(before)
        then = topics.saved()
        make(after)
        changes = topics.changes_since(then.data_version)

    touched = {name for name, _ in after}
    if changes is None:
        assert len({name for name, _ in before + after}) > remembered
        return
    assert {*changes.changed, *changes.deleted} <= touched
    assert changes.applied_to(then) == topics.saved()
    assert changes.applied_to(topics.saved()) == topics.saved()
