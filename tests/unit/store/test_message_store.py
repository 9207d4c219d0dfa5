"""The store as handlers see it: offsets, visibility, lookups, and the state after failures."""

import struct
from array import array

import pytest

from tests.unit.store.shelf import HOST, START_MS, Shelf, Sizes
from txmq.errors import CorruptRecord, DiskFull, StoreError, WriteFailed
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol import record as records
from txmq.protocol.record import Record
from txmq.protocol.span import HEAD_BYTES
from txmq.testing import Loss, MemoryDisk
from txmq_broker.handlers.offsets import offset_by_time
from txmq_broker.store.equal_records import EqualRecords
from txmq_broker.store.queue_store import ENTRY

BIG = b"x" * 1500


@pytest.fixture
def shelf():
    return Shelf()


# --- offsets and visibility ---


def test_each_queue_has_its_own_offsets(shelf):
    placed = [shelf.put(b"", topic, number) for topic in "TU" for number in (0, 0, 1)]

    assert [message.offset for message in placed] == [0, 1, 0, 0, 1, 0]


def test_a_message_is_visible_only_once_it_is_published(shelf):
    placed = shelf.put(b"one")
    assert shelf.bodies() == {}
    span = shelf.store.write()
    assert shelf.bodies() == {}
    assert shelf.store.record_bytes(placed.position) is None

    shelf.store.publish(span)

    assert shelf.bodies() == {0: b"one"}
    assert shelf.store.record_bytes(placed.position) is not None


def test_a_record_is_stored_with_all_given_fields(shelf):
    host = bytes(range(16)) + b"\0\0\x2a\x9f"
    sys_flag = 0x10 | 0x20 | 0x1

    postmark = sys_flag, -5, host, START_MS, host, 7, 0
    queue = shelf.store.queue("T", 3)
    shelf.store.stage([(queue, postmark, -1, b"body", b"\x01T\0\x03abc", 0, (), None)])
    shelf.flush()

    data = shelf.store.record_bytes(HEAD_BYTES)
    record, size = records.unpack(data)
    assert size == len(data)
    assert record == Record(
        3, -1, 0, HEAD_BYTES, sys_flag, -5, host, START_MS, host, 7, 0, b"body", "T", "abc"
    )


V6_HOST = bytes(15) + b"\1" + bytes(4)
BATCH = [
    (7, b"x" * 30, b"\1T\0\1a", 5, (1, 2)),
    (-1, b"y", b"\1T\0\0", 0, ()),
    (0, b"", b"", 0, ()),
]


@pytest.mark.parametrize(("host", "bits"), [(HOST, 0), (V6_HOST, 0x10)])
def test_a_batch_is_staged_the_same_as_its_messages_one_by_one(shelf, host, bits):
    alone = Shelf()
    postmark = (4 | bits, START_MS, host, START_MS + 1, HOST, 3, 9)
    for store in (shelf.store, alone.store):
        store.stage([(store.queue("T", 0), postmark, 0, b"first", b"", 0, (), None)])
    queue = alone.store.queue("T", 0)
    alone_places = [alone.store.stage([(queue, postmark, *message, None)])[0] for message in BATCH]

    own = shelf.store.queue("T", 0)
    assert shelf.store.stage([(own, postmark, *item, None) for item in BATCH]) == alone_places
    assert shelf.store.queue("T", 0).next_offset == queue.next_offset == 4
    assert b"".join(shelf.store.log.staged) == b"".join(alone.store.log.staged)
    for part in (2, 3, 4):
        ours, theirs = (
            [value for entry in store.queues.staged for value in entry[part]]
            for store in (shelf.store, alone.store)
        )
        assert ours == theirs
    assert shelf.store.queues.take_staged()[1] == len(BATCH) + 1
    assert shelf.store.log.next_position == alone.store.log.next_position
    alone.close()


@pytest.mark.parametrize("start", [0, 250, 2**40 - 3])
@pytest.mark.parametrize(("host", "bits"), [(HOST, 0), (V6_HOST, 0x10)])
def test_equal_messages_are_staged_the_same_as_one_by_one(shelf, host, bits, start):
    alone = Shelf()
    postmark = (4 | bits, START_MS, host, START_MS + 1, HOST, 3, 9)
    count = 300
    bodies = [b"%04d" % number for number in range(count)]
    uniques = [b"u%03d" % number for number in range(count)]
    fixed = [b"\1T\0\x0aU\1", b"\2TAGS\1A"]
    hashes = array("I", [7 * number for number in range(2 * count)])
    for store in (shelf.store, alone.store):
        store.queue("T", 0).raise_floor(0)
        store.queue("T", 0).next_offset = start
        store.log.next_position += 2**24 - 500  # The positions cross a border of bytes.
        store.stage([(store.queue("T", 0), postmark, 0, b"first", b"", 0, (), None)])
    queue = alone.store.queue("T", 0)
    for number in range(count):
        tail = fixed[0] + uniques[number] + fixed[1]
        own = tuple(hashes[2 * number : 2 * number + 2])
        alone.store.stage([(queue, postmark, -5, bodies[number], tail, -77, own, None)])

    # Each message has two hashes of keys.
    fixed = [fixed[0], b"", fixed[1]]
    columns = [bodies, uniques, [b""] * count]
    equal = EqualRecords(count, records.head_size(postmark), 4, fixed, [4, 0], ENTRY)
    given = shelf.store.stage_equal(
        shelf.store.queue("T", 0), postmark, -5, equal, columns, -77, hashes
    )

    assert [number for (number,) in struct.iter_unpack(">q", given)] == [
        entry[1] for entry in alone.store.queues.staged[1:]
    ]
    assert b"".join(shelf.store.log.staged) == b"".join(alone.store.log.staged)
    assert shelf.store.log.next_position == alone.store.log.next_position
    assert shelf.store.queue("T", 0).next_offset == queue.next_offset == start + count + 1
    for part in (2, 3, 4):
        ours, theirs = (
            [value for entry in store.queues.staged for value in entry[part]]
            for store in (shelf.store, alone.store)
        )
        assert ours == theirs
    staged, messages = shelf.store.queues.take_staged()
    assert (messages, shelf.store.queues.take_staged()) == (count + 1, ([], 0))
    shelf.store.queues.take_back(staged)
    assert shelf.store.queue("T", 0).next_offset == start
    alone.close()


def test_a_batch_that_cannot_be_packed_stages_nothing(shelf):
    queue, broken = shelf.store.queue("T", 0), (2**31, b"y", b"", 0, ())
    postmark = (0, START_MS, HOST, START_MS, HOST, 0, 0)

    with pytest.raises(struct.error):
        shelf.store.stage([(queue, postmark, *message, None) for message in [*BATCH, broken]])

    assert (queue.next_offset, shelf.store.log.staged, shelf.store.queues.staged) == (0, [], [])


def test_a_message_that_cannot_be_packed_leaves_no_gap(shelf):
    queue = shelf.store.queue("T", 0)
    with pytest.raises(struct.error):
        shelf.store.stage(
            [(queue, (0, 2**63, HOST, 0, HOST, 0, 0), 0, b"", b"\x01T\0\0", 0, (), None)]
        )

    assert shelf.add(b"one")[0].offset == 0
    shelf.restart()
    assert shelf.bodies() == {0: b"one"}


@pytest.mark.parametrize("seen", ["published", "in an index", "after a restart"])
def test_offsets_go_on_after_a_failed_write(shelf, seen):
    shelf.add(b"zero", b"one")
    if seen == "in an index":
        shelf.checkpoint()
    elif seen == "after a restart":
        shelf.restart()
    shelf.put(b"lost")
    shelf.put(b"lost", number=1)
    shelf.disk.fail_writes(times=1)
    with pytest.raises(WriteFailed):
        shelf.store.write()

    placed = shelf.put(b"two"), shelf.put(b"first", number=1)
    shelf.flush()

    assert [message.offset for message in placed] == [2, 0]
    expected = {0: b"zero", 1: b"one", 2: b"two"}
    assert (shelf.bodies(), shelf.bodies(number=1)) == (expected, {0: b"first"})
    shelf.restart()
    assert (shelf.bodies(), shelf.bodies(number=1)) == (expected, {0: b"first"})


def test_a_failed_write_takes_back_only_its_own_offsets(shelf):
    shelf.put(b"zero")
    first = shelf.store.write()
    shelf.put(b"lost")
    shelf.disk.fail_writes(times=2)
    with pytest.raises(WriteFailed):
        shelf.store.write()
    shelf.disk.repair()
    shelf.put(b"one")
    second = shelf.store.write()

    shelf.publish(first)
    shelf.store.publish(second)

    assert shelf.bodies() == {0: b"zero", 1: b"one"}


@pytest.mark.fault("S7")
@pytest.mark.parametrize("room", range(0, 3 * 4096, 1024))
def test_a_full_disk_refuses_messages_until_there_is_room(room):
    shelf = Shelf()
    shelf.add(b"zero")
    shelf.disk.capacity = shelf.disk.space().used + room
    kept, failed = [b"zero"], 0
    for number in range(12):
        body = b"%d" % number * 700
        try:
            shelf.add(body)
        except DiskFull:
            failed += 1
        else:
            kept.append(body)
    assert failed
    assert list(shelf.bodies().values()) == kept

    shelf.disk.capacity = None
    shelf.add(b"last")

    expected = dict(enumerate([*kept, b"last"]))
    assert shelf.bodies() == expected
    shelf.disk.crash(loss=Loss.EVERYTHING)
    assert Shelf(shelf.disk).bodies() == expected


def test_a_full_disk_that_cannot_take_an_index_loses_nothing(shelf):
    shelf.add(*[b"%d" % number * 300 for number in range(10)], keys="K")
    before = shelf.everything(), shelf.found_by_key("K")
    shelf.disk.capacity = shelf.disk.space().used

    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            shelf.checkpoint()

    assert (shelf.everything(), shelf.found_by_key("K")) == before
    shelf.disk.capacity = None
    shelf.checkpoint()
    assert shelf.restart().scanned_bytes == 0
    assert (shelf.everything(), shelf.found_by_key("K")) == before


# --- the parts of a checkpoint ---


def test_messages_stored_during_a_checkpoint_belong_to_the_next(shelf):
    shelf.add(b"zero", keys="K")
    pending = shelf.begin_checkpoint()
    shelf.add(b"one", keys="K")

    shelf.confirm(pending)

    assert shelf.bodies() == {0: b"zero", 1: b"one"}
    assert shelf.found_by_key("K") == [b"one", b"zero"]
    assert shelf.restart().records == 1
    assert shelf.bodies() == {0: b"zero", 1: b"one"}


def test_a_checkpoint_ends_where_a_file_does(shelf):
    shelf.add(*[b"%d" % number + BIG for number in range(7)])
    extents = shelf.store.log.segments.extents()

    stretches = []
    while (stretch := shelf.store.checkpoints.next_range()) is not None:
        pending = shelf.store.checkpoints.begin(stretch)
        shelf.store.checkpoints.confirm(pending)
        stretches.append(stretch)

    assert [(part.start, part.end) for part in stretches] == extents
    assert len(extents) == 4


def test_a_checkpoint_covers_published_messages_when_the_log_is_a_file_ahead(shelf):
    shelf.add(b"zero" + BIG)
    waiting = []
    for number in range(1, 4):
        shelf.put(b"%d" % number + BIG)
        waiting.append(shelf.store.write())
    assert shelf.store.checkpoints.is_due()

    shelf.checkpoint()

    assert shelf.store.checkpoints.next_range() is None
    for span in waiting:
        shelf.store.publish(span)
    shelf.checkpoint()
    assert len(shelf.bodies()) == 4
    assert shelf.restart().scanned_bytes == 0
    assert len(shelf.bodies()) == 4


def test_an_index_is_never_begun_for_messages_that_are_not_durable(shelf):
    shelf.put(b"zero")
    shelf.store.publish(shelf.store.write())

    with pytest.raises(AssertionError):
        shelf.begin_checkpoint()


def test_checkpoints_are_due_by_log_size_and_when_a_file_is_complete():
    shelf = Shelf(sizes=Sizes(checkpoint_every=2000))
    due = []
    for _ in range(8):
        shelf.add(b"x" * 800)
        due.append(shelf.store.checkpoints.is_due())
        if due[-1]:
            shelf.checkpoint()

    assert due == [False, False, True, False, True, False, False, True]


def test_saved_messages_take_no_memory(shelf):
    for _ in range(30):
        shelf.add(BIG, keys="k")
        shelf.checkpoint()

    queue = shelf.store.find_queue("T", 0)
    assert len(queue._tail) < ENTRY.size
    assert len(shelf.store.queues.keys._positions) == 0
    assert len(shelf.store.checkpoints.file_ms) == len(shelf.log_files())
    while len(shelf.store.checkpoints.completed_files()):
        shelf.drop_first_file()
    assert len(shelf.store.checkpoints.file_ms) == len(shelf.store.checkpoints.indexes) == 1
    assert len(queue._blocks) == len(queue._firsts) == len(shelf.store.queues.keys._runs) <= 2


# --- looking things up ---


def test_a_position_where_no_record_begins_shows_no_record(shelf):
    placed = shelf.add(b"zero", b"one")
    begins = {message.position for message in placed}

    for position in (*range(-5, shelf.store.log.end + 200), 1 << 40, -(1 << 40)):
        found = shelf.store.record_bytes(position)
        assert (found is not None) == (position in begins), position


def forged(position, **more):
    values = {
        "queue_id": 0, "flag": 0, "queue_offset": 0, "position": position, "sys_flag": 0,
        "born_ms": 0, "born_host": bytes(8), "stored_ms": 5, "store_host": bytes(8),
        "attempts": 0, "prepared_position": 0, "body": b"forged", "topic": "T", "properties": "",
    }  # fmt: skip
    return records.pack(Record(**{**values, **more}))


@pytest.mark.parametrize(
    "more",
    [{}, {"queue_offset": 1}, {"queue_offset": 2**40}, {"queue_offset": -1}, {"topic": "none"},
     {"queue_id": 9}, {"sys_flag": 4}],
)  # fmt: skip
def test_a_record_inside_a_body_is_not_shown(shelf, more):
    shelf.add(b"zero")
    inside = shelf.store.log.next_position + 88

    shelf.add(forged(inside, **more))

    assert shelf.store.record_bytes(inside) is None


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_huge_record_size_inside_a_body_is_not_read(shelf, size):
    shelf.add(b"zero")
    inside = shelf.store.log.next_position + 88
    body = bytearray(forged(inside))
    body[:4] = size.to_bytes(4, "big")
    shelf.add(bytes(body))
    asked = []
    shelf.store.read = lambda position, size: asked.append(size) or body[:size]

    assert shelf.store.record_bytes(inside) is None
    assert max(asked) < 1000


def test_a_message_of_a_deleted_topic_is_not_shown(shelf):
    (placed,) = shelf.add(b"zero", keys="K")

    shelf.forget("T")

    assert shelf.store.record_bytes(placed.position) is None
    shelf.restart()
    assert shelf.store.record_bytes(placed.position) is None


def test_a_damaged_record_is_reported_when_it_is_asked_for(shelf):
    (placed,) = shelf.add(b"zero")
    shelf.disk.flip_bit(shelf.log_files()[0], placed.position + 88)

    with pytest.raises(CorruptRecord) as problem:
        shelf.store.record_bytes(placed.position)

    assert problem.value.position == placed.position


def test_a_message_is_found_by_each_of_its_keys_newest_first(shelf):
    for number in range(6):
        shelf.add(b"%d" % number, keys=f"all k{number % 2}", unique=f"u{number}")
        if number in (1, 3):
            shelf.checkpoint()

    assert shelf.found_by_key("all") == [b"5", b"4", b"3", b"2", b"1", b"0"]
    assert shelf.found_by_key("k1") == [b"5", b"3", b"1"]
    assert shelf.found_by_key("u2") == [b"2"]
    assert shelf.found_by_key("u2", topic="U") == []
    assert shelf.found_by_key("k") == []


def test_a_key_is_found_in_a_range_that_is_just_the_time_of_its_message(shelf):
    """Spans are published late and files end early: no bound of a run may be off by that."""
    times = [START_MS + 1000 * number for number in range(12)]
    waiting = []
    for number, at_ms in enumerate(times):
        shelf.put(b"%d" % number + BIG, keys="K", unique=f"u{number}", at_ms=at_ms)
        waiting.append(shelf.store.write())
        if number % 3 == 2:
            shelf.sync()
            shelf.store.publish(waiting.pop(0))
            shelf.store.publish(waiting.pop(0))
            shelf.checkpoint()
    shelf.publish(*waiting)

    for _ in ("running", "killed", "stopped", "rebuilt"):
        for number, at_ms in enumerate(times):
            found = shelf.found_by_key(f"u{number}", begin_ms=at_ms, end_ms=at_ms)
            assert found == [b"%d" % number + BIG], number
        for first in range(0, 12, 5):
            found = shelf.found_by_key("K", begin_ms=times[first], end_ms=times[-1])
            assert {b"%d" % number + BIG for number in range(first, 12)} <= set(found)
        shelf.restart()
        shelf.checkpoint()


def test_runs_far_from_the_time_asked_for_are_not_read():
    shelf = Shelf()
    for hour in range(20):
        shelf.add(b"x", keys="K", at_ms=START_MS + 3_600_000 * hour)
        shelf.checkpoint()
    shelf.restart_cleanly()
    begin = START_MS + 3_600_000 * 10

    found = list(shelf.store.positions_of_key("T", "K", begin, begin + 1))

    assert len(found) <= 2


# --- by time ---


def timed(*times, checkpoint_at=()):
    shelf = Shelf()
    for number, at in enumerate(times):
        shelf.add(b"", at_ms=at)
        if number in checkpoint_at:
            shelf.checkpoint()
    return shelf


@pytest.mark.parametrize("checkpoint_at", [(), (1,), (4,)], ids=["memory", "both", "index"])
@pytest.mark.parametrize(
    ("when", "nearest", "lower", "upper"),
    [
        (0, 0, 0, 0), (99, 0, 0, 0), (100, 0, 0, 0), (149, 0, 1, 0), (150, 0, 1, 0), (151, 1, 1, 0),
        (200, 1, 1, 3), (299, 4, 4, 3), (300, 4, 4, 4), (301, 4, 5, 4), (1 << 60, 4, 5, 4),
    ],
)  # fmt: skip
def test_the_offset_for_a_time_follows_the_boundary(checkpoint_at, when, nearest, lower, upper):
    shelf = timed(100, 200, 200, 200, 300, checkpoint_at=checkpoint_at)
    queue = shelf.store.find_queue("T", 0)

    assert offset_by_time(shelf.store, queue, when, None) == nearest
    assert offset_by_time(shelf.store, queue, when, "lower") == lower
    assert offset_by_time(shelf.store, queue, when, "upper") == upper


def test_the_offset_for_a_time_is_never_below_the_oldest_kept():
    shelf = Shelf()
    for number in range(9):
        shelf.add(BIG, at_ms=1000 + number)
    shelf.checkpoint()
    shelf.drop_first_file()
    queue = shelf.store.find_queue("T", 0)
    assert queue.min_offset == 2

    for boundary in (None, "lower", "upper"):
        assert offset_by_time(shelf.store, queue, 0, boundary) == 2
        assert offset_by_time(shelf.store, queue, 1005, boundary) == 5


def test_the_offset_for_a_time_in_an_empty_queue_is_its_end(shelf):
    shelf.add(b"zero")
    shelf.forget("T")

    for boundary in (None, "lower", "upper"):
        queue = shelf.store.find_queue("T", 0)
        assert offset_by_time(shelf.store, queue, START_MS, boundary) == 1


def test_the_time_of_a_message_reads_the_same_for_both_kinds_of_hosts(shelf):
    host = bytes(16) + b"\0\0\x2a\x9f"
    queue = shelf.store.queue("T", 0)
    for flag, born in ((0, HOST), (0x10, host), (0x30, host)):
        store_host = host if flag & 0x20 else HOST
        postmark = (flag, 1, born, START_MS, store_host, 0, 0)
        shelf.store.stage([(queue, postmark, 0, b"", b"\x01T\0\0", 0, (), None)])
    shelf.flush()

    assert [shelf.store.stored_ms(queue, offset) for offset in range(4)] == [*[START_MS] * 3, None]


# --- files ---


def test_closing_the_store_twice_is_harmless(shelf):
    shelf.close()
    shelf.close()

    assert Shelf(shelf.disk).bodies() == {}


def test_a_read_that_the_disk_refuses_raises_a_store_error(shelf):
    shelf.add(b"zero", b"one", keys="K")
    shelf.checkpoint()
    shelf.add(b"two")
    shelf.restart()
    shelf.disk.fail_reads()

    with pytest.raises(StoreError):
        shelf.bodies()
    with pytest.raises(StoreError):
        shelf.found_by_key("K")
    shelf.disk.repair()
    assert len(shelf.bodies()) == 3


def test_a_store_on_an_empty_disk_opens_empty():
    shelf = Shelf(MemoryDisk())

    assert shelf.recovery[:3] == (0, 0, 0)
    assert (shelf.store.log.start, shelf.store.log.end) == (0, 0)
    assert shelf.store.checkpoints.completed_files() == []
    assert shelf.store.checkpoints.next_range() is None
    assert not shelf.store.checkpoints.is_due()
