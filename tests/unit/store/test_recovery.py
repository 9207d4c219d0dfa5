"""Opening a log after a crash, a disk error or a mistake of an operator."""

import errno

import pytest

from tests.unit.store.shelf import LOG, Shelf, Sizes, rewrite
from txmq.errors import (
    CorruptRecord,
    DirectoryInUse,
    DiskFull,
    LogTooShort,
    RemoteProtocolError,
    StoreError,
)
from txmq.protocol import record as records
from txmq.protocol.record import Record
from txmq.protocol.span import HEAD_BYTES, Decision, DecisionKind, DecisionSource, head
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC
from txmq.testing import Loss, MemoryDisk, SeededEntropy, power_cuts
from txmq_broker.store.index_file import path_of
from txmq_broker.store.log.commit_log import PATH as HIGH_WATER
from txmq_broker.store.pending_transactions import transaction_key

ONE_FILE = Sizes(segment_size=1 << 20)
BIG = b"x" * 1500
"""Two spans with a body like this one fill a file of 4096 bytes."""


@pytest.fixture
def shelf():
    """A store whose log has room in its first file."""
    return Shelf(sizes=ONE_FILE)


def the_log(disk):
    (name,) = disk.names("log")
    return f"log/{name}"


def cut_off(disk, path, length):
    """A copy of the disk with a file cut to a length, as if no more had ever been durable."""
    twin = disk.clone()
    twin.remove(HIGH_WATER)
    file = twin.open(path)
    file.truncate(length)
    file.sync()
    return twin


def unsynced(shelf, *numbers):
    """Write messages with a big body each, and sync none of them."""
    for number in numbers:
        shelf.put(b"%d" % number + BIG)
        shelf.store.write()


def fail_all_syncs(shelf):
    for _ in shelf.store.log.sync_point().files:
        shelf.disk.fail_next_sync()
        with pytest.raises(OSError, match="Input/output"):
            shelf.sync()


def checkpoint_whose_sync_fails(shelf):
    pending = shelf.begin_checkpoint()
    shelf.disk.fail_next_sync()
    with pytest.raises(OSError, match="Input/output"):
        pending.file.file.sync()


def check_that_it_goes_on(shelf, before):
    """Check that new messages can be stored, and that old and new ones survive another restart."""
    (placed,) = shelf.add(b"after")
    assert placed.offset == len(before)
    shelf.restart()
    assert shelf.bodies() == {**before, placed.offset: b"after"}
    assert shelf.recovery.cut_bytes == 0
    shelf.restart_cleanly()
    assert shelf.bodies() == {**before, placed.offset: b"after"}
    shelf.close()


# --- the tail ---


@pytest.mark.fault("S1")
@pytest.mark.parametrize("is_indexed", [False, True], ids=["all scanned", "begin indexed"])
def test_a_log_cut_at_any_byte_of_its_last_three_spans_keeps_those_before(shelf, is_indexed):
    shelf.add(b"one", b"two")
    if is_indexed:
        shelf.checkpoint()
    ends = [shelf.store.log.end]
    for body in (b"three", b"", b"five" * 20):
        shelf.add(body)
        ends.append(shelf.store.log.end)
    whole = shelf.bodies()
    shelf.close()

    for length in range(ends[0], ends[-1]):
        again = Shelf(cut_off(shelf.disk, the_log(shelf.disk), length), ONE_FILE)

        kept = sum(end <= length for end in ends) - 1
        assert again.bodies() == {at: whole[at] for at in range(2 + kept)}
        assert again.recovery.cut_bytes == length - ends[kept]
        check_that_it_goes_on(again, again.bodies())


def test_a_span_cut_anywhere_is_gone_with_all_its_records(shelf):
    shelf.add(b"before")
    shelf.add_together(*[b"%d" % number * number for number in range(8)])
    shelf.close()
    path = the_log(shelf.disk)
    length = len(shelf.contents(path))

    for size in range(shelf.disk.clone().open(path).size() - 1, length // 4, -3):
        again = Shelf(cut_off(shelf.disk, path, size), ONE_FILE)

        assert again.bodies() == {0: b"before"}
        again.close()


def garbage(size):
    return SeededEntropy(3).token(size)


@pytest.mark.fault("S2")
@pytest.mark.parametrize("filling", [bytes, garbage, lambda size: b"\xff" * size])
@pytest.mark.parametrize("size", [1, HEAD_BYTES, 3000])
def test_bytes_after_the_last_whole_span_are_cut(shelf, filling, size):
    shelf.add(b"one", b"two")
    shelf.close()
    path = the_log(shelf.disk)
    rewrite(shelf.disk, path, shelf.contents(path) + filling(size))

    shelf.open()

    assert shelf.recovery.cut_bytes == size
    check_that_it_goes_on(shelf, {0: b"one", 1: b"two"})


@pytest.mark.fault("S2")
def test_spans_of_an_older_log_after_the_last_span_are_never_served(shelf):
    """No file is ever used twice, so an operator must find out how they got there."""
    shelf.add(*[b"old" * 9 for _ in range(9)])
    older = shelf.contents(the_log(shelf.disk))
    younger = Shelf(sizes=ONE_FILE)
    younger.add(b"new", b"newer")
    younger.close()
    data = younger.contents(the_log(younger.disk))
    rewrite(younger.disk, the_log(younger.disk), data + older[len(data) :])

    with pytest.raises(CorruptRecord, match="found it whole"):
        younger.open()


@pytest.mark.fault("S2")
def test_spans_of_another_log_right_after_the_last_span_are_never_served():
    older = Shelf(sizes=ONE_FILE, entropy=SeededEntropy(2))
    older.add(*[b"old%d" % number for number in range(6)])
    shelf = Shelf(sizes=ONE_FILE)
    shelf.add(*[b"new%d" % number for number in range(3)])
    data, old = (source.contents(the_log(source.disk)) for source in (shelf, older))
    shelf.close()
    rewrite(shelf.disk, the_log(shelf.disk), data + old[len(data) :])

    with pytest.raises(CorruptRecord, match="another broker goes on there"):
        shelf.open()


def test_a_body_that_contains_a_whole_log_is_not_recovered_as_spans(shelf):
    shelf.add(b"one", b"two")
    log = shelf.contents(the_log(shelf.disk))
    shelf.add(log)
    length = len(shelf.contents(the_log(shelf.disk)))
    shelf.close()

    again = Shelf(cut_off(shelf.disk, the_log(shelf.disk), length - 1), ONE_FILE)

    check_that_it_goes_on(again, {0: b"one", 1: b"two"})


def test_a_second_recovery_changes_nothing(shelf):
    shelf.add(b"one", b"two", b"three")
    shelf.close()
    disk = cut_off(shelf.disk, the_log(shelf.disk), len(shelf.contents(the_log(shelf.disk))) - 1)

    first = Shelf(disk, ONE_FILE)
    before = first.everything(), first.contents(the_log(disk))
    first.restart()

    assert (first.everything(), first.contents(the_log(disk))) == before
    assert first.recovery.cut_bytes == 0


# --- the middle ---


@pytest.mark.fault("S3")
def test_a_flipped_bit_before_the_last_span_refuses_the_start(shelf):
    shelf.add(b"one", keys="k", tag="t")
    shelf.add_together(b"two", b"three")
    last = shelf.store.log.end
    shelf.add(b"four")
    shelf.close()

    for position in range(last):
        disk = shelf.disk.clone()
        disk.flip_bit(the_log(disk), position, position % 8)

        with pytest.raises(CorruptRecord, match="found it whole"):
            Shelf(disk, ONE_FILE)
        assert disk.open(the_log(disk)).size() > last, "nothing may be cut"


@pytest.mark.fault("S3")
def test_a_flipped_bit_in_an_earlier_file_refuses_the_start():
    shelf = Shelf()
    shelf.add(*[b"%d" % number + BIG for number in range(6)])
    shelf.close()
    assert len(shelf.log_files()) == 3

    for path in shelf.log_files()[:-1]:
        for position in range(0, 3000, 61):
            disk = shelf.disk.clone()
            disk.flip_bit(path, position)

            with pytest.raises(CorruptRecord, match="found it whole"):
                Shelf(disk)


def test_a_bad_span_with_nothing_durable_after_it_is_cut_as_torn_tail(shelf):
    shelf.add(b"one")
    bad = shelf.store.log.end
    for body in (b"two", b"three"):
        shelf.put(body)
        shelf.store.write()
    shelf.close()
    shelf.disk.flip_bit(the_log(shelf.disk), bad + HEAD_BYTES + 5)

    shelf.open()

    check_that_it_goes_on(shelf, {0: b"one"})


def test_the_log_after_a_bad_span_is_searched_to_its_end():
    shelf = Shelf(sizes=Sizes(segment_size=16 << 20))
    shelf.add(b"one", b"two" * 2_000_000)  # more than one window of the search
    shelf.add(b"three")
    shelf.close()
    shelf.disk.flip_bit(the_log(shelf.disk), 10)

    with pytest.raises(CorruptRecord, match="found it whole"):
        Shelf(shelf.disk)


@pytest.mark.parametrize("shift", range(-HEAD_BYTES - 2, 3))
def test_a_head_across_two_search_windows_is_found(shift, monkeypatch):
    monkeypatch.setattr("txmq_broker.store.log.spans._WINDOW", 256)
    shelf = Shelf(sizes=ONE_FILE)
    (first,) = shelf.add(b"x" * 100)
    shelf = Shelf(sizes=ONE_FILE)
    shelf.add(b"x" * (100 + 2 * 256 + 1 + shift - (first.position + 100 + 94)))
    shelf.add(b"last")
    shelf.close()
    shelf.disk.flip_bit(the_log(shelf.disk), 0)

    with pytest.raises(CorruptRecord, match="found it whole"):
        Shelf(shelf.disk)


def log_of(*records_of_spans):
    """A disk with a log that was written without a store."""
    disk, data = MemoryDisk(), b""
    for payload in records_of_spans:
        data += head(LOG, len(data), 0, payload, 0) + payload
    rewrite(disk, f"log/{0:020d}.log", data)
    return disk


def record(offset=0, position=HEAD_BYTES, **more):
    values = {
        "queue_id": 0, "flag": 0, "queue_offset": offset, "position": position, "sys_flag": 0,
        "born_ms": 0, "born_host": bytes(8), "stored_ms": 5, "store_host": bytes(8),
        "attempts": 0, "prepared_position": 0, "body": b"b", "topic": "T", "properties": "",
    }  # fmt: skip
    return records.pack(Record(**{**values, **more}))


def decision(kind, offset=0, half=0, place=-1, source=DecisionSource.PRODUCER):
    return Decision(kind, source, offset, half, 0, place, 5).pack()


BEHIND = 2 * HEAD_BYTES + len(record())
"""The position of a record in the second span."""


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ([b"x" * 200], "not a record"),
        ([record(position=1)], "states position 1"),
        ([record(), record(2, BEHIND)], "T/0 goes on at 2 behind 1"),
        (
            [record(sys_flag=0x4), record(2, BEHIND, sys_flag=0x4)],
            "a half message does not follow",
        ),
        ([decision(DecisionKind.COMMITTED, place=0)], "is missing there"),
    ],
    ids=["no record", "a wrong position", "a gap", "a gap of halves", "a commit without its half"],
)
def test_a_whole_span_that_no_store_would_write_refuses_the_start(spans, problem):
    with pytest.raises(CorruptRecord, match=problem):
        Shelf(log_of(*spans))


def test_a_recovered_half_message_is_in_the_half_queue_only():
    half = record(99, sys_flag=0x4, properties="UNIQ_KEY\x01u\x02")

    shelf = Shelf(log_of(half, record(0, 2 * HEAD_BYTES + len(half))))

    assert shelf.bodies() == {0: b"b"}
    assert shelf.bodies(HALF_TOPIC) == {99: b"b"}
    assert list(shelf.store.halves.pending) == [transaction_key("u")]


@pytest.mark.parametrize("kind", [DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK])
def test_a_recovered_decided_half_message_is_in_the_half_queue_and_not_open(kind):
    half = record(0, sys_flag=0x4)
    marker = decision(kind, 0, HEAD_BYTES, 0 if kind is DecisionKind.COMMITTED else -1)

    shelf = Shelf(log_of(half, marker))

    assert shelf.bodies() == ({0: b"b"} if kind is DecisionKind.COMMITTED else {})
    assert shelf.bodies(HALF_TOPIC) == {0: b"b"}
    assert shelf.bodies(OP_TOPIC) == {0: b"0"}
    assert not len(shelf.store.halves.pending)


@pytest.mark.parametrize(
    ("offset", "place"), [(1, 0), (0, 1)], ids=["op queue", "the message's queue"]
)
def test_a_gap_in_the_offsets_of_decisions_refuses_the_start(offset, place):
    half = record(0, sys_flag=0x4)
    plain = record(0, 2 * HEAD_BYTES + len(half))
    first = decision(DecisionKind.PARKED, 0, HEAD_BYTES, source=DecisionSource.BROKER)
    bad = decision(DecisionKind.COMMITTED, 1 + offset, HEAD_BYTES, 1 + place)

    with pytest.raises(CorruptRecord, match="a decision does not follow"):
        Shelf(log_of(half, plain, first, bad))


@pytest.mark.parametrize("size", [0, 4, 51, 53, 60, 1 << 30])
def test_a_broken_marker_in_a_whole_span_refuses_the_start(size):
    marker = decision(DecisionKind.ROLLED_BACK)

    with pytest.raises(CorruptRecord, match="a marker"):
        Shelf(log_of(size.to_bytes(4, "big") + marker[4:]))


def test_a_disk_that_cannot_read_the_log_refuses_the_start():
    shelf = Shelf()
    shelf.add(b"one")
    shelf.close()
    shelf.disk.fail_reads()

    with pytest.raises((CorruptRecord, OSError), match="Input/output"):
        Shelf(shelf.disk)


# --- damage in indexed records shows when they are read ---


def test_a_flipped_bit_in_an_indexed_record_hides_no_message_silently(shelf):
    shelf.add(b"zero")
    (placed,) = shelf.add(b"one" * 5, unique="U", tag="t")
    end = shelf.store.log.end
    shelf.add(b"two")
    shelf.restart_cleanly()
    data = shelf.store.record_bytes(placed.position)
    shelf.close()
    fixed = range(88)  # the body and what is before it; see txmq.protocol.record
    reported = 0

    for position in range(placed.position, end):
        disk = shelf.disk.clone()
        disk.flip_bit(the_log(disk), position, position % 8)
        again = Shelf(disk, ONE_FILE)
        assert again.recovery.scanned_bytes == 0
        inside = position - placed.position
        is_checked = inside < 12 or 28 <= inside < 36 or inside in range(fixed.stop, 88 + 15)
        try:
            found = again.bodies()
        except CorruptRecord:
            reported += 1
        except (AssertionError, RemoteProtocolError):
            # The record differs in a field that its own checksums do not cover.
            assert not is_checked, inside
        else:
            assert not is_checked, inside
            assert found == {0: b"zero", 1: b"one" * 5, 2: b"two"}
        again.close()
    assert reported >= 4 + 4 + 4 + 8 + 15
    assert len(data) == end - placed.position


def test_a_flipped_bit_in_an_indexed_record_refuses_the_start_once_scanned(shelf):
    (placed,) = shelf.add(b"one", tag="t")
    shelf.add(b"two")
    shelf.restart_cleanly()
    shelf.close()
    shelf.disk.flip_bit(the_log(shelf.disk), placed.position + 95)
    Shelf(shelf.disk, ONE_FILE).close()

    shelf.disk.remove(path_of(0))

    with pytest.raises(CorruptRecord, match="found it whole"):
        Shelf(shelf.disk, ONE_FILE)


# --- indexes ---


def library(**more):
    """A log of several files, with messages of two topics and all kinds of keys."""
    shelf = Shelf(**more)
    for number in range(24):
        body = b"%d" % number * 250
        place = {"topic": "TU"[number % 2], "number": number % 3}
        shelf.add(body, **place, keys=f"k{number % 5} all", unique=f"u{number}", tag="t")
        if number % 9 == 8:
            shelf.checkpoint()
    assert len(shelf.log_files()) >= 3
    return shelf


def reads(shelf):
    """Everything that clients can see."""
    keys = [f"k{number}" for number in range(5)] + ["all", "u3", "u23"]
    by_key = {key: shelf.found_by_key(key, topic) for key in keys for topic in "TU"}
    return shelf.everything(), by_key, shelf.store.log.last_ms


@pytest.mark.parametrize("is_clean", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("deleted", [[0], [1], [2], [3], [0, 1], [0, 2], [1, 3], [0, 1, 2, 3]])
def test_deleted_indexes_are_rebuilt(deleted, is_clean):
    shelf = library()
    shelf.restart_cleanly() if is_clean else shelf.restart()
    before = reads(shelf)
    shelf.close()
    paths = shelf.index_files()

    for number in deleted:
        if number < len(paths):
            shelf.disk.remove(paths[number])
    shelf.open()

    assert reads(shelf) == before
    shelf.add(b"after", topic="T")
    before = reads(shelf)
    shelf.restart()
    assert reads(shelf) == before


def test_an_index_cut_at_any_byte_is_rebuilt():
    shelf = library()
    shelf.restart_cleanly()
    before = reads(shelf)
    shelf.close()

    for path in shelf.index_files():
        for length in range(0, len(shelf.contents(path)), 11):
            again = Shelf(cut_off(shelf.disk, path, length))

            assert reads(again) == before
            again.close()


def test_a_flipped_bit_in_an_index_is_repaired_or_reported():
    shelf = library()
    shelf.restart_cleanly()
    before = reads(shelf)
    shelf.close()
    repaired = reported = 0

    for path in shelf.index_files():
        for position in range(0, len(shelf.contents(path)), 7):
            disk = shelf.disk.clone()
            disk.flip_bit(path, position, position % 8)
            again = Shelf(disk)
            advice = ""
            try:
                found = reads(again)
            except CorruptRecord as problem:
                advice = str(problem)
            again.close()
            if advice:
                assert f"{path}; stop the broker and delete that file" in advice
                disk.remove(path)
                found = reads(Shelf(disk))
                reported += 1
            else:
                repaired += 1
            assert found == before
    assert repaired
    assert reported


def test_an_index_of_an_earlier_file_is_not_used_for_a_new_one():
    shelf = Shelf()
    shelf.add(BIG, BIG)
    (second,) = shelf.add(BIG)
    shelf.checkpoint()
    shelf.close()
    shelf.disk.remove(shelf.log_files()[1])
    shelf.disk.remove(shelf.index_files()[1])
    shelf.disk.remove(HIGH_WATER)
    rewrite(shelf.disk, path_of(second.position - HEAD_BYTES), b"")
    again = Shelf(shelf.disk)
    bodies = [b"y" * 200, b"z" * 2000, b"end"]

    placed = again.add(*bodies)
    again.restart()

    assert placed[0].position == second.position
    assert list(again.bodies().values()) == [BIG, BIG, *bodies]


# --- files of the log ---


def test_a_crash_between_two_files_keeps_what_was_durable():
    shelf = Shelf()
    shelf.add(BIG)
    shelf.put(b"lost" * 300)
    shelf.store.write()
    shelf.put(b"lost too" * 200)
    shelf.store.write()
    assert len(shelf.log_files()) == 2
    shelf.disk.crash(loss=Loss.EVERYTHING)

    again = Shelf(shelf.disk)

    assert len(again.log_files()) == 1
    check_that_it_goes_on(again, {0: BIG})


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_with_several_unsynced_files_leaves_a_clean_prefix(seed):
    shelf = Shelf()
    shelf.add(b"0" + BIG)
    unsynced(shelf, 1, 2, 3, 4)
    shelf.sync()
    unsynced(shelf, 5, 6, 7, 8)
    shelf.disk.crash(SeededEntropy(seed), Loss.PAGES)

    again = Shelf(shelf.disk)

    found = again.bodies()
    assert found == {number: b"%d" % number + BIG for number in range(len(found))}
    assert len(found) >= 5
    check_that_it_goes_on(again, found)


def test_messages_of_a_killed_broker_are_durable_before_anybody_reads_them():
    shelf = Shelf()
    unsynced(shelf, *range(5))
    shelf.restart()
    seen = shelf.everything()
    assert len(shelf.bodies()) == 5

    shelf.disk.crash(loss=Loss.EVERYTHING)

    assert Shelf(shelf.disk).everything() == seen


@pytest.mark.fault("S6")
def test_after_a_failed_sync_messages_are_durable_before_anybody_reads_them():
    """The system takes the pages for clean, so another sync would not write them."""
    shelf = Shelf()
    shelf.add(BIG)
    unsynced(shelf, *range(4))
    fail_all_syncs(shelf)
    shelf.restart()
    seen = shelf.everything()
    assert len(shelf.bodies()) == 5

    shelf.disk.crash(loss=Loss.EVERYTHING)

    assert Shelf(shelf.disk).everything() == seen


def test_an_index_whose_sync_failed_is_made_durable_at_the_restart():
    shelf = Shelf()
    shelf.add(*[b"%d" % number + BIG for number in range(5)])
    checkpoint_whose_sync_fails(shelf)
    shelf.restart_cleanly()
    seen = shelf.everything()

    shelf.disk.crash(loss=Loss.EVERYTHING)
    shelf.restart()

    assert shelf.everything() == seen
    assert shelf.recovery[:3] == (0, 0, 0)


@pytest.mark.fault("S13")
def test_a_log_file_that_was_deleted_refuses_the_start():
    shelf = Shelf()
    shelf.add(*[b"%d" % number + BIG for number in range(8)])
    shelf.checkpoint()
    shelf.close()
    assert len(shelf.log_files()) == 4

    for number, path in enumerate(shelf.log_files()):
        disk = shelf.disk.clone()
        disk.remove(path)
        with pytest.raises(StoreError, match="missing"):
            Shelf(disk)

        for index in disk.names("index"):
            disk.remove(f"index/{index}")
        refusal = {
            0: r"the log begins at \d+, and high-water knows it from 0 on",
            3: r"ends at \d+, and high-water knows that it was durable at \d+",
        }.get(number, r"goes on at \d+: a file between is missing")
        with pytest.raises(StoreError, match=refusal):
            Shelf(disk)


@pytest.mark.fault("S13")
def test_a_log_that_was_deleted_whole_refuses_the_start():
    shelf = Shelf()
    shelf.add(b"one")
    shelf.restart_cleanly()
    shelf.close()
    shelf.disk.remove(shelf.log_files()[0])

    with pytest.raises(LogTooShort, match="messages are missing in T/0 up to offset 0"):
        Shelf(shelf.disk)


def test_cutting_the_log_removes_the_indexes_of_the_cut_part():
    shelf = Shelf()
    written = []
    for number in range(5):
        shelf.put(b"%d" % number + BIG)
        written.append(shelf.store.write())  # before anything is durable, so none tells of another
    shelf.publish(*written)
    shelf.checkpoint()
    shelf.close()
    first, *later = shelf.index_files()
    assert len(later) == 2
    shelf.disk.remove(first)
    shelf.disk.remove(HIGH_WATER)
    for index in later:
        rewrite(shelf.disk, index, b"torn")
    shelf.disk.flip_bit(shelf.log_files()[0], written[1].end - 1)

    for event, disk in power_cuts(shelf.disk, lambda disk: Shelf(disk).close()):
        disk.crash(loss=Loss.EVERYTHING)
        assert Shelf(disk).bodies() == {0: b"0" + BIG}, event
    shelf.open()

    assert shelf.bodies() == {0: b"0" + BIG}
    assert shelf.index_files() == [first]
    check_that_it_goes_on(shelf, {0: b"0" + BIG})


def test_a_log_file_that_was_cut_refuses_the_start():
    shelf = Shelf()
    shelf.add(*[b"%d" % number + BIG for number in range(8)])
    shelf.checkpoint()
    shelf.close()

    for path in shelf.log_files()[:-1]:
        for length in range(0, 3000, 499):
            with pytest.raises(CorruptRecord, match="between is missing or was cut"):
                Shelf(cut_off(shelf.disk, path, length))


def test_a_log_cut_at_the_beginning_of_a_file_continues_there():
    shelf = Shelf()
    shelf.add(BIG, BIG, BIG)
    shelf.close()
    path = shelf.log_files()[-1]

    again = Shelf(cut_off(shelf.disk, path, 100))

    assert again.log_files()[-1] == path
    check_that_it_goes_on(again, {0: BIG, 1: BIG})


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_during_recovery_changes_nothing(seed):
    shelf = Shelf()
    unsynced(shelf, *range(7))
    shelf.disk.crash(SeededEntropy(seed), Loss.PAGES)
    expected = Shelf(shelf.disk.clone()).everything()

    for event, disk in power_cuts(shelf.disk, lambda disk: Shelf(disk).close()):
        disk.crash(SeededEntropy(seed))
        assert Shelf(disk).everything() == expected, event


# --- what a restart costs ---


def test_a_restart_after_a_crash_scans_only_what_followed_the_last_checkpoint():
    costs = []
    for messages in (10, 100):
        shelf = Shelf(sizes=Sizes(segment_size=40_000))
        for _ in range(messages):
            shelf.add(b"x" * 1000)
        shelf.checkpoint()
        shelf.add(b"y" * 1000, b"z" * 1000)
        shelf.restart()
        costs.append((shelf.recovery.scanned_bytes, shelf.recovery.records))

    assert costs[0] == costs[1]
    assert costs[0][1] == 2


def test_a_restart_after_a_clean_stop_reads_nothing_of_the_log():
    shelf = library()

    shelf.restart_cleanly()

    assert shelf.recovery[:3] == (0, 0, 0)


def test_a_restart_without_indexes_scans_the_log_and_the_next_only_its_last_file():
    shelf = library()
    shelf.restart_cleanly()
    shelf.close()
    for path in shelf.index_files():
        shelf.disk.remove(path)

    first = shelf.open()
    second = shelf.restart()

    assert first.records == 24
    assert 0 < second.scanned_bytes <= shelf.sizes.segment_size


# --- a full disk ---


def full(disk):
    """Refuse every write, also over bytes that are there, as a copy-on-write file system does."""
    disk.fail_writes(error=errno.ENOSPC)


@pytest.mark.parametrize("deleted", [[], [0], [1], [0, 1, 2, 3]])
@pytest.mark.parametrize("is_clean", [False, True], ids=["killed", "stopped"])
def test_a_store_on_a_full_disk_opens_and_serves_reads(deleted, is_clean):
    shelf = library()
    shelf.restart_cleanly() if is_clean else shelf.restart()
    before = reads(shelf)
    shelf.close()
    paths = shelf.index_files()
    for number in deleted:
        if number < len(paths):
            shelf.disk.remove(paths[number])
    full(shelf.disk)

    shelf.open()
    assert reads(shelf) == before
    shelf.put(b"refused", topic="T")
    with pytest.raises(DiskFull):
        shelf.store.write()
    assert reads(shelf)[:2] == before[:2]

    shelf.disk.repair()
    shelf.add(b"after", topic="T")
    before = reads(shelf)
    shelf.checkpoint()
    assert reads(shelf) == before
    shelf.restart()
    assert reads(shelf) == before
    assert shelf.recovery[:3] == (0, 0, 0)


@pytest.mark.parametrize("goes_on", ["with a message", "with a checkpoint"])
def test_messages_unsynced_on_a_full_disk_are_durable_before_later_ones(goes_on):
    """S6: what a failed sync left in the cache is written again as soon as there is room."""
    shelf = Shelf()
    shelf.add(BIG)
    unsynced(shelf, *range(4))
    fail_all_syncs(shelf)
    full(shelf.disk)
    shelf.restart()
    seen = shelf.bodies()
    assert len(seen) == 5

    shelf.disk.repair()
    if goes_on == "with a message":
        shelf.add(b"after")
        seen[5] = b"after"
    else:
        shelf.checkpoint()
    shelf.disk.crash(loss=Loss.EVERYTHING)

    assert Shelf(shelf.disk).bodies() == seen


def test_an_index_unsynced_on_a_full_disk_is_durable_before_the_next_one(shelf):
    shelf.add(b"one")
    checkpoint_whose_sync_fails(shelf)
    full(shelf.disk)
    shelf.restart()
    shelf.disk.repair()
    shelf.add(b"two")
    shelf.checkpoint()
    shelf.disk.crash(loss=Loss.EVERYTHING)

    again = Shelf(shelf.disk, ONE_FILE)

    assert again.bodies() == {0: b"one", 1: b"two"}
    assert again.recovery[:3] == (0, 0, 0)


def test_a_torn_tail_on_a_full_disk_is_cut_when_there_is_room(shelf):
    shelf.add(b"one", b"two")
    shelf.close()
    torn = cut_off(shelf.disk, the_log(shelf.disk), len(shelf.contents(the_log(shelf.disk))) - 5)
    full(torn)

    again = Shelf(torn, ONE_FILE)
    assert again.bodies() == {0: b"one"}
    torn.repair()

    check_that_it_goes_on(again, {0: b"one"})


# --- the directory ---


@pytest.mark.fault("S12")
def test_a_second_broker_in_one_directory_is_refused():
    shelf = Shelf()

    with pytest.raises(DirectoryInUse):
        Shelf(shelf.disk)
    shelf.add(b"still mine")
    shelf.restart()
    assert shelf.bodies() == {0: b"still mine"}


def test_a_refused_start_releases_the_directory(shelf):
    shelf.add(b"one", b"two")
    shelf.close()
    shelf.disk.flip_bit(the_log(shelf.disk), 50)
    with pytest.raises(CorruptRecord):
        Shelf(shelf.disk, ONE_FILE)
    shelf.disk.flip_bit(the_log(shelf.disk), 50)

    assert Shelf(shelf.disk, ONE_FILE).bodies() == {0: b"one", 1: b"two"}
