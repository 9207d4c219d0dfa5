"""Which files may be deleted and when, and that no offset is given twice afterwards."""

import itertools

import pytest

from tests.soak import count
from tests.unit.store.shelf import START_MS, Shelf
from txmq.testing import Loss, MemoryDisk
from txmq_broker.config import RetentionSettings
from txmq_broker.services.housekeeping import FORCED_PER_ROUND, RetentionVerdict
from txmq_broker.services.housekeeping import retention_verdict as decide
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.checkpoints import Age

HOUR_MS = 3_600_000
NOW = START_MS + 1000 * HOUR_MS
BIG = b"x" * 1500


@pytest.fixture
def shelf():
    return Shelf()


def files(*hours):
    """Files whose last messages have these ages in hours, oldest first."""
    return [
        Age(1000 * number, 1000 * (number + 1), NOW - int(hour * HOUR_MS))
        for number, hour in enumerate(hours)
    ]


OLD, YOUNG = (100, 90, 80), (10, 5)


@pytest.mark.parametrize(
    ("ages", "hour", "used", "pinned", "deleted", "refuses"),
    [
        # Only at the hour, unless the disk is short.
        (OLD, 4, 0.10, None, 3, False),
        (OLD, 3, 0.10, None, 0, False),
        (OLD, 5, 0.10, None, 0, False),
        (OLD, 5, 0.75, None, 0, False),
        (OLD, 5, 0.76, None, 3, False),
        # Only what is old, unless the disk is very short.
        (OLD + YOUNG, 4, 0.10, None, 3, False),
        (OLD + YOUNG, 5, 0.85, None, 3, False),
        (OLD + YOUNG, 5, 0.86, None, 5, False),
        (YOUNG, 4, 0.10, None, 0, False),
        (YOUNG, 4, 0.86, None, 2, False),
        # A young file keeps the older-looking ones behind it.
        ((10, 100), 4, 0.10, None, 0, False),
        # The edge of 72 hours.
        ((72,), 4, 0.10, None, 0, False),
        ((72.001,), 4, 0.10, None, 1, False),
        # A limited number of young files at once, and all old ones.
        ((1,) * 30, 5, 0.99, None, FORCED_PER_ROUND, True),
        ((100,) * 30, 5, 0.99, None, 30, True),
        ((100,) * 4 + (1,) * 30, 5, 0.99, None, FORCED_PER_ROUND, True),
        # Never what is pinned, nor what follows it.
        (OLD, 4, 0.99, 0, 0, True),
        (OLD, 4, 0.99, 1999, 1, True),
        (OLD, 4, 0.99, 2000, 2, True),
        (OLD, 4, 0.99, 9999, 3, True),
        # Nothing there.
        ((), 4, 0.90, None, 0, False),
        ((), 4, 0.91, None, 0, True),
    ],
)
def test_age_hour_disk_use_and_pins_decide_how_many_files_are_deleted(
    ages, hour, used, pinned, deleted, refuses
):
    found = decide(RetentionSettings(), files(*ages), NOW, hour, used, pinned)

    assert found == RetentionVerdict(deleted, refuse_sends=refuses)


@pytest.mark.parametrize("hour", range(24))
def test_several_hours_of_deletion_can_be_set(hour):
    settings = RetentionSettings(delete_at="04; 16;23")

    found = decide(settings, files(*OLD), NOW, hour, 0.1)

    assert found.delete == (3 if hour in (4, 16, 23) else 0)


def test_with_a_clock_that_is_behind_no_file_is_old():
    assert decide(RetentionSettings(), files(*OLD), START_MS - HOUR_MS, 4, 0.1).delete == 0


# --- what the store offers ---


def test_only_complete_and_indexed_files_can_be_deleted(shelf):
    shelf.add(*[BIG] * 7)
    extents = shelf.store.log.segments.extents()
    assert len(extents) == 4

    assert shelf.completed_files() == []
    shelf.checkpoint()
    assert [(file.start, file.end) for file in shelf.completed_files()] == extents[:-1]


@pytest.mark.parametrize("restart", [None, "restart", "restart_cleanly"])
def test_a_file_is_as_old_as_its_last_message(shelf, restart):
    for number in range(7):
        shelf.add(BIG, at_ms=START_MS + number)
    shelf.checkpoint()
    if restart:
        getattr(shelf, restart)()

    assert [file.last_ms - START_MS for file in shelf.completed_files()] == [1, 3, 5]


def test_the_age_of_a_file_does_not_depend_on_when_it_was_published(shelf):
    waiting = []
    for number in range(7):
        shelf.put(BIG, at_ms=START_MS + number)
        waiting.append(shelf.store.write())
    shelf.publish(*waiting)
    shelf.checkpoint()

    assert [file.last_ms - START_MS for file in shelf.completed_files()] == [1, 3, 5]


def test_deleting_a_file_removes_only_its_messages(shelf):
    for number in range(8):
        shelf.add(b"%d" % number + BIG, keys="K")
    shelf.checkpoint()

    shelf.drop_first_file()

    assert sorted(shelf.bodies()) == list(range(2, 8))
    assert len(shelf.found_by_key("K")) == 6
    assert shelf.store.record_bytes(36) is None
    assert shelf.store.log.start == shelf.store.log.segments.extents()[0].start
    assert len(shelf.disk.names("index")) == len(shelf.disk.names("log"))


def test_the_floors_after_a_deletion_are_computed_in_advance(shelf):
    for number in range(8):
        shelf.add(b"%d" % number + BIG, number=number % 2)
    shelf.add(b"small", topic="only here")
    shelf.checkpoint()

    for number in range(4):
        assert shelf.store.floors_after(number) == {
            "T": {0: number, 1: number},
            "only here": {0: 0},
        }


def test_a_queue_with_all_messages_deleted_keeps_its_offsets(shelf):
    shelf.add(b"a", b"b", b"c", topic="Quiet")
    shelf.add(*[BIG] * 5)
    shelf.checkpoint()

    shelf.drop_first_file()

    for _ in range(2):
        queue = shelf.store.find_queue("Quiet", 0)
        assert (queue.min_offset, queue.max_offset, queue.next_offset) == (3, 3, 3)
        shelf.restart()
    assert shelf.add(b"d", topic="Quiet")[0].offset == 3
    assert shelf.bodies("Quiet") == {3: b"d"}


STEPS = ("drop", "forget", "restart", "stop", "unindex")


@pytest.mark.parametrize("first", STEPS)
def test_no_offset_is_given_twice_after_any_sequence_of_deletions(first):
    for rest in itertools.product(STEPS, repeat=count(2, 3)):
        check_offsets((first, *rest))


def check_offsets(steps):
    shelf = Shelf()
    next_offsets = dict.fromkeys("TU", 0)
    kept = {"T": {}, "U": {}}

    def send(*bodies):
        for body in bodies:
            for topic in "TU":
                (placed,) = shelf.add(body, topic=topic)
                assert placed.offset == next_offsets[topic]
                next_offsets[topic] += 1
                kept[topic][placed.offset] = body

    send(b"a" * 900, b"b" * 900, b"c" * 900, b"d" * 900)
    for step in steps:
        match step:
            case "drop":
                shelf.checkpoint()
                shelf.drop_first_file()
                for topic in "TU":
                    low = shelf.store.find_queue(topic, 0).min_offset
                    kept[topic] = {at: body for at, body in kept[topic].items() if at >= low}
            case "forget":
                shelf.forget("T")
                kept["T"] = {}
            case "restart":
                shelf.restart()
            case "stop":
                shelf.restart_cleanly()
            case "unindex":
                shelf.close()
                for path in shelf.index_files():
                    shelf.disk.remove(path)
                shelf.open()
        assert {topic: shelf.bodies(topic) for topic in "TU"} == kept
        send(b"e" * 900, b"f" * 900)
        assert {topic: shelf.bodies(topic) for topic in "TU"} == kept


# --- deleting a topic while messages are on their way ---


@pytest.fixture(params=[False, True], ids=["in memory", "in an index"])
def saved(request):
    """A store with two messages."""
    shelf = Shelf()
    shelf.add(b"zero", b"one")
    if request.param:
        shelf.checkpoint()
    return shelf


def check_bodies(shelf, bodies):
    """Check what is visible, also after a restart."""
    assert shelf.bodies() == bodies
    shelf.restart()
    assert shelf.bodies() == bodies


def test_unpublished_messages_keep_their_offsets_when_their_topic_is_deleted(saved):
    saved.put(b"two")
    span = saved.store.write()

    saved.forget("T")

    saved.publish(span)
    saved.add(b"three")
    check_bodies(saved, {2: b"two", 3: b"three"})


def test_a_write_that_fails_after_its_topic_was_deleted_hides_nothing(saved):
    saved.put(b"lost")

    saved.forget("T")

    saved.disk.fail_writes(times=1)
    with pytest.raises(Exception, match="refused"):
        saved.store.write()
    saved.add(b"two")
    check_bodies(saved, {2: b"two"})


def test_a_topic_deleted_during_a_checkpoint_stays_deleted(shelf):
    shelf.add(b"zero", b"one")
    pending = shelf.begin_checkpoint()

    shelf.forget("T")

    shelf.confirm(pending)
    shelf.add(b"two")
    check_bodies(shelf, {2: b"two"})


# --- with the table of floors on the same disk ---


def test_a_crash_anywhere_between_saving_floors_and_deleting_files_reuses_no_offset(shelf):
    Keeper(shelf.disk).save_floors({}, 0)
    shelf.add(b"a", topic="Quiet")
    shelf.add(*[BIG] * 6)
    shelf.checkpoint()
    points = []
    shelf.disk.on_write = lambda event: points.append(shelf.disk.clone())

    Keeper(shelf.disk).save_floors(shelf.store.floors_after(2), shelf.store.log.durable)
    shelf.store.drop_first_file()
    shelf.store.drop_first_file()

    assert len(points) > 8
    for disk in [*points, shelf.disk]:
        disk.crash(loss=Loss.EVERYTHING)
        again = Shelf(disk, floors=Keeper(disk).floors().floors)
        assert again.add(b"b", topic="Quiet")[0].offset == 1
        assert again.add(b"b")[0].offset == 6
        assert sorted(again.bodies())[-3:] == [4, 5, 6]


def test_a_full_disk_keeps_the_floors_it_has_and_the_files():
    disk = MemoryDisk()
    shelf = Shelf(disk)
    keeper = Keeper(disk)
    keeper.save_floors({"T": {0: 0}}, 0)
    shelf.add(*[BIG] * 6)
    shelf.checkpoint()
    disk.capacity = disk.space().used

    with pytest.raises(OSError, match="No space"):
        keeper.save_floors(shelf.store.floors_after(1), shelf.store.log.durable)

    assert keeper.floors().floors == {"T": {0: 0}}
    assert len(shelf.bodies()) == 6


def test_an_index_that_cannot_be_deleted_leaves_its_file_in_use(shelf):
    shelf.add(*[b"%d" % number + BIG for number in range(6)])
    shelf.checkpoint()
    before = shelf.bodies()
    shelf.disk.fail_writes(times=1)

    with pytest.raises(OSError, match="Input/output"):
        shelf.store.drop_first_file()

    assert shelf.bodies() == before
    shelf.drop_first_file()
    assert len(shelf.bodies()) == 4
