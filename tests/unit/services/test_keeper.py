"""The small tables of a broker: written by the first start, restored or refused if damaged."""

import asyncio
import errno

import pytest

from tests.running import run_by
from tests.unit.store.shelf import Shelf, Sizes
from txmq.errors import DamagedFile, ForeignFile, WriteFailed
from txmq.protocol.bodies import GroupConfig, TopicConfig
from txmq.protocol.checked_body import pack
from txmq.testing import Loss, MemoryDisk, SeededEntropy, power_cuts, simulate
from txmq.testing.pages import PAGE
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, TopicDefaults
from txmq_broker.core.groups import Groups
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.topics import Topics
from txmq_broker.services.housekeeping import ROUND_S
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.message_store import MessageStore

TABLES = ("topics", "groups", "offsets", "floors")
FLOORS = {"Orders": {0: 7}}


class Tables:
    """The tables of one life of a broker, loaded and completed as a start does it."""

    def __init__(self, disk, owner="", *, accepts_loss=False):
        self.keeper = Keeper(disk)
        self.keeper.owner = owner
        self.keeper.accepts_loss = accepts_loss
        self.floors = self.keeper.floors().floors
        self.topics = Topics(MessageStore(disk, Sizes()), TopicDefaults())
        self.topics.load(self.keeper.topics(), [TopicConfig("System", 1, 1, 6)])
        self.groups = Groups(TopicDefaults())
        self.groups.load(self.keeper.groups())
        self.offsets = Offsets()
        self.offsets.load(self.keeper.offsets())
        self.complete()

    def complete(self):
        self.keeper.complete(self.topics, self.groups, self.offsets, self.floors)

    def change(self):
        self.topics.put(TopicConfig("Orders", 1, 1, 6), 1)
        self.keeper.save_topics(self.topics)
        self.groups.get("buyers", 1)
        self.keeper.save_groups(self.groups)
        for offset in (5, 6):
            self.offsets.put("buyers", "Orders", 0, offset)
            self.keeper.save_offsets(self.offsets)
        self.floors = FLOORS
        self.keeper.save_floors(FLOORS, 0)

    def seen(self):
        return {
            "topics": self.topics.by_name.get("Orders") is not None,
            "groups": self.groups.find("buyers") is not None,
            "offsets": self.offsets.get("buyers", "Orders", 0),
            "floors": self.floors,
        }


def used_disk():
    """The directory of a broker that has served."""
    disk = MemoryDisk()
    shelf = Shelf(disk)
    Tables(disk).change()
    shelf.add(b"one")
    shelf.close()
    return disk


def test_the_first_start_creates_all_table_files():
    disk = MemoryDisk()

    Tables(disk)

    files = [f"{table}.json" for table in TABLES]
    assert disk.names("config") == sorted([*files, *[f"{name}.old" for name in files]])


def test_a_start_without_changes_writes_nothing():
    disk = used_disk()
    disk.on_write = lambda event: pytest.fail(f"{event}")

    Tables(disk)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_deleted_or_damaged_table_is_restored_from_its_predecessor(table, how, caplog):
    disk = used_disk()
    before = Tables(disk).seen()
    path = f"config/{table}.json"
    if how == "deleted":
        disk.remove(path)
    else:
        disk.flip_bit(path, 60)

    found = Tables(disk).seen()

    # Offsets alone may be older: a few messages come again.
    assert found == before | ({"offsets": 5} if table == "offsets" else {})
    (line,) = caplog.messages
    assert line.startswith(f"{path}: it ")
    caplog.clear()
    assert Tables(disk).seen() == found
    assert not caplog.messages


def damaged(data):
    """The bytes of a file after each kind of damage."""
    size = len(data)
    yield from (data[:length] for length in (0, 1, size // 3, size // 2, size - 1))
    for number in range(50):
        place = SeededEntropy(f"{number}").below(size * 8)
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)
    yield bytes(size)
    yield data[: size // 2] + bytes(size - size // 2)
    yield data + b"\0"
    yield data + data


@pytest.mark.parametrize("suffix", ["json", "json.old"])
@pytest.mark.parametrize("table", TABLES)
def test_any_damage_to_one_table_file_is_logged_and_loses_nothing(table, suffix, caplog):
    disk = used_disk()
    path = f"config/{table}.{suffix}"
    before = Tables(disk).seen()
    older = before | ({"offsets": 5} if path == "config/offsets.json" else {})
    file = disk.open(path)
    data = file.read(0, file.size())

    for content in damaged(data):
        twin = disk.clone()
        twin.replace(path, content)
        caplog.clear()

        assert Tables(twin).seen() == older

        assert caplog.messages[0].startswith(f"{path}: it is damaged: ")
        assert len(caplog.messages) == 1


@pytest.mark.parametrize("table", TABLES)
def test_a_table_deleted_with_its_predecessor_refuses_the_start(table):
    disk = used_disk()
    disk.remove(f"config/{table}.json")
    disk.remove(f"config/{table}.json.old")

    with pytest.raises(DamagedFile, match=rf"config/{table}\.json: it was deleted, .* backup"):
        Tables(disk)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_without_an_intact_copy_starts_empty_if_the_loss_is_accepted(table, caplog):
    disk = used_disk()
    before = Tables(disk).seen()
    for suffix in ("json", "json.old"):
        disk.flip_bit(f"config/{table}.{suffix}", 60)

    tables = Tables(disk, accepts_loss=True)

    found = tables.seen()
    assert tables.keeper.has_lost
    assert not found.pop(table)
    assert found.items() < before.items()
    assert f"going on without what is missing: config/{table}.json: it is damaged" in caplog.text
    assert not Tables(disk).seen()[table]


def test_deleting_all_tables_of_an_existing_log_refuses_the_start():
    disk = used_disk()
    for name in disk.names("config"):
        disk.remove(f"config/{name}")

    with pytest.raises(DamagedFile, match=r"config/floors\.json: it was deleted"):
        Tables(disk)


def test_an_intact_table_that_this_version_cannot_read_refuses_the_start():
    disk = used_disk()
    disk.replace("config/groups.json", pack("groups.json", "", b'{"subscriptionGroupTable": 7}'))

    with pytest.raises(DamagedFile, match=r"config/groups\.json: .* this version cannot read it"):
        Tables(disk)


def test_tables_of_another_directory_are_refused():
    disk = MemoryDisk()
    Tables(disk, owner="a1").change()

    assert Tables(disk, owner="a1").seen()["topics"]
    with pytest.raises(
        ForeignFile, match=r"config/floors\.json: it belongs to the log 0+a1 of another"
    ):
        Tables(disk, owner="b2")


@pytest.mark.parametrize("loss", Loss)
def test_a_first_start_cut_by_a_crash_is_completed_without_a_warning(loss, caplog):
    points = list(power_cuts(MemoryDisk(), Tables))
    assert len(points) > 30

    for number, (event, disk) in enumerate(points):
        disk.crash(SeededEntropy(f"{number}"), loss)

        Tables(disk).change()

        assert Tables(disk).seen()["floors"] == FLOORS, event
    assert not caplog.messages


def test_a_table_refused_by_a_full_disk_is_written_once_there_is_room():
    disk = used_disk()
    disk.remove("config/topics.json")
    disk.fail_writes(error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space left on device: 'config/topics.json'"):
        Tables(disk)
    disk.repair()

    tables = Tables(disk)
    assert not tables.keeper.is_incomplete
    tables.offsets.put("buyers", "Orders", 0, 9)
    disk.fail_writes(error=errno.ENOSPC)
    with pytest.raises(OSError, match=r"config/offsets\.json"):
        tables.keeper.save_offsets(tables.offsets)
    assert tables.offsets.unsaved


def offsets_on(disk):
    return Tables(disk.clone()).offsets.get("buyers", "Orders", 0)


async def begin_to_write(disk):
    """Tables with offset 1, which a thread is about to write."""
    tables = Tables(disk)
    tables.offsets.put("buyers", "Orders", 0, 1)
    writing = asyncio.ensure_future(tables.keeper.write_offsets(tables.offsets))
    await asyncio.sleep(0)
    return tables, writing


@run_by(simulate, 1)
async def test_offsets_written_by_a_thread_never_replace_newer_ones(world, /):
    disk = world.machine("broker").disk
    tables, writing = await begin_to_write(disk)
    tables.keeper.save_offsets(tables.offsets)
    assert offsets_on(disk) == 1, "a stop saves them although a thread does, too"
    tables.offsets.put("buyers", "Orders", 0, 2)
    tables.keeper.save_offsets(tables.offsets)
    await writing
    assert offsets_on(disk) == 2

    tables.offsets.put("buyers", "Orders", 0, 3)
    await tables.keeper.write_offsets(tables.offsets)
    assert (offsets_on(disk), tables.offsets.unsaved) == (3, False)


@run_by(simulate, 1)
async def test_offsets_committed_during_a_write_are_saved_by_the_next_write(world, /):
    disk = world.machine("broker").disk
    tables, writing = await begin_to_write(disk)
    tables.offsets.put("buyers", "Orders", 0, 2)
    await writing
    assert tables.offsets.unsaved
    disk.fail_writes(error=errno.ENOSPC)
    with pytest.raises(OSError, match=r"config/offsets\.json"):
        await tables.keeper.write_offsets(tables.offsets)
    disk.repair()
    assert tables.offsets.unsaved
    await tables.keeper.write_offsets(tables.offsets)
    assert offsets_on(disk) == 2


def test_large_tables_are_encoded_in_parts_and_give_other_tasks_turns():
    async def scenario(world):
        disk = world.machine("broker").disk
        tables = Tables(disk)
        for number in range(2_500):
            tables.offsets.put(f"group-{number}", "Orders", 0, number)
            tables.groups.put(GroupConfig(f"group-{number}"), 0)
        turns = 0

        async def count():
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1
                if turns == 1:
                    tables.offsets.forget_group("group-2400")
                    tables.offsets.put("late", "Orders", 0, 7)

        counting = asyncio.ensure_future(count())
        await tables.keeper.write_offsets(tables.offsets)
        assert turns >= 3
        assert tables.offsets.unsaved, "the late group is not on the disk"
        counting.cancel()
        await tables.keeper.write_offsets(tables.offsets)
        await tables.keeper.write_groups(tables.groups)
        assert (tables.offsets.unsaved, tables.groups.unsaved) == (False, False)
        again = Tables(disk.clone())
        assert again.offsets.saved() == tables.offsets.saved()
        assert again.groups.saved() == tables.groups.saved()
        files = ["config/offsets.json", "config/groups.json", "config/groups.json.old"]
        written = [disk.durable(name) for name in files]
        tables.offsets.unsaved = tables.groups.unsaved = True
        tables.keeper.save_offsets(tables.offsets)
        tables.keeper.save_groups(tables.groups)
        assert [disk.durable(name) for name in files] == written

    simulate(scenario, 1)


# --- in a broker ---


def settings_of(machine):
    return BrokerSettings(
        listen=f"{machine.address}:10911", names_listen=f"{machine.address}:9876", data="data"
    )


def broker_on(machine):
    return Broker(
        settings_of(machine),
        clock=machine.clock,
        network=machine.network,
        disk=machine.disk,
        entropy=machine.entropy,
    )


@run_by(simulate, 1)
async def test_a_new_directory_on_a_full_disk_refuses_the_start(world, /):
    machine = world.machine("broker")
    machine.disk.capacity = 3 * PAGE
    with pytest.raises(WriteFailed, match="a new data directory .* make room .* start again"):
        async with broker_on(machine):
            pass

    machine.disk.capacity = None
    async with broker_on(machine):
        pass


@run_by(simulate, 1)
async def test_a_broker_rewrites_a_damaged_table_once_there_is_room(world, /, caplog):
    machine = world.machine("broker")
    async with broker_on(machine):
        pass
    machine.disk.flip_bit("config/topics.json", 30)
    machine.disk.fail_writes(error=errno.ENOSPC)

    async with broker_on(machine) as broker:
        assert broker.topics.by_name.get("BenchmarkTest") is not None
        machine.disk.repair()
        await asyncio.sleep(2 * ROUND_S)
        caplog.clear()
    async with broker_on(machine):
        pass
    assert not [line for line in caplog.messages if "topics.json" in line]


def test_a_large_table_is_written_in_one_line_and_can_be_loaded():
    disk = MemoryDisk()
    first = Tables(disk)
    assert disk.open("config/topics.json").read(0, 10_000).count(b"\n") > 2
    for number in range(3_000):
        first.topics.put(TopicConfig(f"Topic-{number}", 1, 1, 6), 1)
    first.keeper.save_topics(first.topics)

    file = disk.open("config/topics.json")
    assert file.read(0, file.size()).count(b"\n") == 1, "the line of the header"
    assert len(Tables(disk).topics) == len(first.topics)
