"""A log that is shorter than other files prove: the start is refused, or no offset comes twice."""

import errno

import pytest

from tests.unit.store.shelf import LOG, Shelf, Sizes, rewrite
from txmq.errors import CorruptRecord, DiskFull, ForeignFile, LogTooShort
from txmq.protocol.span import HEAD_BYTES
from txmq.testing import Loss, MemoryDisk, SeededEntropy, power_cuts
from txmq_broker.core.fetch import FetchOutcome, fetch
from txmq_broker.store.log.commit_log import PATH as HIGH_WATER
from txmq_broker.store.log.identity import PATH as IDENTITY

ONE_FILE = Sizes(segment_size=1 << 20)
BIG = b"x" * 1500


def filled(*, is_clean, count=6, sizes=ONE_FILE):
    """A closed store with messages, and where each of its writes ended."""
    shelf = Shelf(sizes=sizes)
    ends = [0]
    for number in range(count):
        shelf.add(b"%d" % number)
        ends.append(shelf.store.log.end)
    if is_clean:
        shelf.checkpoint()
        shelf.store.note_clean_stop()
    shelf.close()
    return shelf, ends


def cut(disk, path, length):
    twin = disk.clone()
    file = twin.open(path)
    file.truncate(length)
    file.sync()
    file.close()
    return twin


def files_of(disk):
    found = {}
    for folder in ("log", "index"):
        for name in disk.names(folder):
            file = disk.open(f"{folder}/{name}")
            if data := file.read(0, file.size()):
                found[folder, name] = data
            file.close()
    return found


@pytest.mark.fault("S11", "S13")
@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_log_cut_anywhere_is_refused_and_left_unchanged(is_clean):
    shelf, ends = filled(is_clean=is_clean)
    (path,) = shelf.log_files()

    for length in [*ends[:-1], ends[2] + 7, ends[-1] - 1]:
        disk = cut(shelf.disk, path, length)
        before = files_of(disk)

        with pytest.raises(LogTooShort, match="--accept-loss REASON"):
            Shelf(disk, ONE_FILE)

        assert files_of(disk) == before
    assert len(Shelf(shelf.disk, ONE_FILE).bodies()) == 6, "the whole file is served after all"


@pytest.mark.fault("S11")
@pytest.mark.parametrize("lost", [HIGH_WATER, "index"])
def test_the_high_water_mark_or_the_index_alone_reveals_a_cut(lost):
    shelf, ends = filled(is_clean=True)
    disk = cut(shelf.disk, shelf.log_files()[0], ends[3])
    for path in shelf.index_files() if lost == "index" else [lost]:
        disk.remove(path)

    with pytest.raises(LogTooShort, match=f"{ends[-1] - ends[3]} bytes are missing"):
        Shelf(disk, ONE_FILE)


def test_a_flipped_bit_in_the_last_durable_write_is_not_taken_for_a_torn_tail():
    shelf, ends = filled(is_clean=False)
    shelf.disk.flip_bit(shelf.log_files()[0], ends[-1] - 2)

    with pytest.raises(LogTooShort, match=f"is damaged at {ends[-2]}"):
        Shelf(shelf.disk, ONE_FILE)

    damaged = shelf.contents(shelf.log_files()[0])[ends[-2] :]
    again = Shelf(shelf.disk, ONE_FILE, accept_loss="a bit flipped")
    (folder,) = shelf.disk.names("cut")
    (name,) = shelf.disk.names(f"cut/{folder}/log")
    assert again.contents(f"cut/{folder}/log/{name}") == damaged
    assert again.contents(f"cut/{folder}/{IDENTITY}") == again.contents(IDENTITY)
    assert f"cut/{folder} keeps what is cut" in again.recovery.lost


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("kept", [0, 1, 4])
def test_an_accepted_loss_gives_no_offset_twice(is_clean, kept):
    shelf, ends = filled(is_clean=is_clean)
    disk = cut(shelf.disk, shelf.log_files()[0], ends[kept])

    again = Shelf(disk, ONE_FILE, accept_loss="a file was cut", topics={"T": 1})

    assert "bytes are missing" in again.recovery.lost
    bodies = {number: b"%d" % number for number in range(kept)}
    assert again.bodies() == bodies
    (placed,) = again.add(b"after")
    assert placed.offset >= 6
    if is_clean:
        assert placed.offset == 6, "the index knew which offset was the last"
    bodies[placed.offset] = b"after"
    for restart in (again.restart, again.restart_cleanly, again.restart):
        restart()
        assert again.bodies() == bodies
        assert not again.recovery.lost
    again.close()
    for path in again.index_files():
        again.disk.remove(path)
    again.open()
    assert again.bodies() == bodies, "the record in the log is enough"
    (placed_later,) = again.add(b"later")
    assert placed_later.offset == placed.offset + 1


def test_queues_that_may_have_lost_messages_skip_offsets_after_an_accepted_loss():
    shelf = Shelf(sizes=ONE_FILE)
    shelf.add(b"one", topic="T")
    end = shelf.store.log.end
    shelf.add(b"two", topic="U")
    shelf.add(b"three", topic="U")
    shelf.close()
    disk = cut(shelf.disk, shelf.log_files()[0], end)

    again = Shelf(disk, ONE_FILE, accept_loss="cut", topics={"U": 1})

    (placed,) = again.add(b"after", topic="U")
    assert placed.offset >= 2


def test_readers_pass_over_the_offsets_of_an_accepted_loss():
    shelf, ends = filled(is_clean=True)
    again = Shelf(cut(shelf.disk, shelf.log_files()[0], ends[2]), ONE_FILE, accept_loss="cut")
    again.add(b"after")
    queue = again.store.queue("T", 0)

    found, offset = [], 0
    while (step := fetch(again.store, queue, offset, 32)).outcome is not FetchOutcome.AT_END:
        assert step.next_offset > offset
        found += step.records
        offset = step.next_offset

    assert len(found) == 3
    assert offset == queue.max_offset


def test_open_half_messages_survive_an_accepted_loss():
    shelf = Shelf(sizes=ONE_FILE)
    shelf.prepare(b"open", unique="a")
    shelf.flush()
    end = shelf.store.log.end
    shelf.prepare(b"lost", unique="b")
    shelf.flush()
    shelf.close()

    again = Shelf(cut(shelf.disk, shelf.log_files()[0], end), ONE_FILE, accept_loss="cut")

    assert list(again.transactions()) == ["a"]
    again.prepare(b"new", unique="c")
    again.flush()
    assert again.transactions()["c"][0].offset >= 2
    again.restart_cleanly()
    assert sorted(again.transactions()) == ["a", "c"]


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_committed_offset_beyond_the_end_of_the_log_refuses_the_start(flush):
    sizes = ONE_FILE._replace(flush=flush)
    shelf, ends = filled(is_clean=False, sizes=sizes)
    disk = cut(shelf.disk, shelf.log_files()[0], ends[4])
    disk.remove(HIGH_WATER)

    if flush == "sync":
        with pytest.raises(LogTooShort, match="consumed T/0 up to offset 6, and the log ends it"):
            Shelf(disk, sizes, committed={"T": {0: 6}})
        return
    # A crash may lose messages that were published before they were durable; groups go on.
    again = Shelf(disk, sizes, committed={"T": {0: 6}})
    (placed,) = again.add(b"after")
    assert placed.offset == 6


def test_a_missing_first_file_is_refused_unless_its_loss_is_accepted():
    shelf = Shelf()
    placed = shelf.add(*[b"%d" % number + BIG for number in range(8)])
    shelf.restart_cleanly()
    shelf.close()
    first = shelf.log_files()[0]
    shelf.disk.remove(first)
    shelf.disk.remove(first.replace("log", "index", 1).replace(".log", ".idx"))

    with pytest.raises(LogTooShort, match="begins at"):
        Shelf(shelf.disk)

    again = Shelf(shelf.disk, accept_loss="old anyway")
    kept = {
        message.offset: message.body
        for message in placed
        if message.position >= again.store.log.start
    }
    assert again.bodies() == kept
    again.restart()
    assert again.bodies() == kept


def test_deleting_old_files_is_no_loss():
    shelf = Shelf()
    shelf.add(*[b"%d" % number + BIG for number in range(8)])
    shelf.restart_cleanly()
    shelf.floors = shelf.store.floors_after(1)

    shelf.store.drop_first_file()
    shelf.restart()

    assert not shelf.recovery.lost


def test_floors_saved_before_an_accepted_loss_do_not_refuse_later_starts():
    shelf, ends = filled(is_clean=False, count=20)
    disk = cut(shelf.disk, shelf.log_files()[0], ends[2])
    again = Shelf(disk, ONE_FILE, floors_end=ends[-1], accept_loss="cut")
    again.add(b"after")
    again.close()

    assert not Shelf(disk, ONE_FILE, floors_end=ends[-1]).recovery.lost


@pytest.mark.parametrize("reason", ["cut", "one message was cut" * 9])
@pytest.mark.parametrize("kept", [2, 5])
@pytest.mark.parametrize("without", [None, HIGH_WATER])
def test_an_acceptance_interrupted_by_a_power_cut_can_be_repeated(without, kept, reason):
    shelf, ends = filled(is_clean=True)
    disk = cut(shelf.disk, shelf.log_files()[0], ends[kept])
    if without is not None:
        disk.remove(without)

    def accept(disk):
        Shelf(disk, ONE_FILE, accept_loss=reason, topics={"T": 1}).close()

    for event, twin in power_cuts(disk, accept):
        twin.crash(SeededEntropy(1), Loss.NOTHING)
        again = Shelf(twin, ONE_FILE, accept_loss="again", topics={"T": 1})
        (placed,) = again.add(b"after")
        assert placed.offset >= 6, event


def test_a_queue_whose_messages_lay_in_the_lost_front_goes_on_above_them():
    shelf = Shelf()
    given = shelf.add(b"a", b"b", topic="U")
    shelf.add(*[b"%d" % number + BIG for number in range(8)])
    shelf.restart_cleanly()
    shelf.close()
    first = shelf.log_files()[0]
    shelf.disk.remove(first)
    shelf.disk.remove(first.replace("log", "index", 1).replace(".log", ".idx"))

    again = Shelf(shelf.disk, accept_loss="front", topics={"U": 1})

    (placed,) = again.add(b"new", topic="U")
    assert placed.offset > given[-1].offset


def test_an_accepted_loss_on_a_full_disk_is_refused_with_advice():
    sizes = ONE_FILE._replace(flush="async")
    shelf, ends = filled(is_clean=False, sizes=sizes)
    disk = cut(shelf.disk, shelf.log_files()[0], ends[4])
    disk.remove(HIGH_WATER)
    Shelf(disk, sizes).close()
    disk.fail_writes(error=errno.ENOSPC)

    with pytest.raises(DiskFull, match="make room and start again"):
        Shelf(disk, sizes, committed={"T": {0: 6}})


def test_messages_lost_with_async_flush_do_not_refuse_a_start_with_sync():
    shelf, ends = filled(is_clean=False, sizes=ONE_FILE._replace(flush="async"))
    # Messages beyond the durable end were published, and a power cut took them.
    assert not Shelf(shelf.disk, ONE_FILE, committed={"T": {0: 9}}).recovery.cut_bytes


# --- whose log it is ---


def other_directory():
    """Another broker's directory, with the same files and other messages."""
    disk = MemoryDisk()
    shelf = Shelf(disk, ONE_FILE, entropy=SeededEntropy(2))
    for number in range(6):
        shelf.add(b"%d" % (9 - number))
    shelf.checkpoint()
    shelf.close()
    return shelf


@pytest.mark.parametrize("which", ["log", "index", HIGH_WATER, IDENTITY])
def test_a_file_of_another_broker_is_refused_by_name(which):
    shelf, _ = filled(is_clean=True)
    paths = {"log": shelf.log_files(), "index": shelf.index_files()}.get(which, [which])
    other = other_directory()
    rewrite(shelf.disk, paths[0], other.contents(paths[0]))

    with pytest.raises(ForeignFile, match=f"^{paths[0]}: it belongs to the log"):
        Shelf(shelf.disk, ONE_FILE)


def test_a_log_that_goes_on_with_another_brokers_log_is_refused():
    shelf, ends = filled(is_clean=False)
    other = other_directory()
    (path,) = shelf.log_files()
    mixed = shelf.contents(path)[: ends[3]] + other.contents(path)[ends[3] :]
    rewrite(shelf.disk, path, mixed)

    with pytest.raises(CorruptRecord, match="of another broker goes on there") as error:
        Shelf(shelf.disk, ONE_FILE)
    assert error.value.position == ends[3]


@pytest.mark.parametrize("damage", ["deleted", "emptied", "flipped"])
def test_a_lost_identity_file_is_restored_from_the_log(damage, caplog):
    shelf, _ = filled(is_clean=True)
    before = shelf.contents(IDENTITY)
    if damage == "deleted":
        shelf.disk.remove(IDENTITY)
    else:
        rewrite(shelf.disk, IDENTITY, b"" if damage == "emptied" else b"0" + before[1:])

    again = Shelf(shelf.disk, ONE_FILE, entropy=SeededEntropy(3))

    assert len(again.bodies()) == 6
    assert again.contents(IDENTITY) == before
    assert f"{LOG:016x}" in caplog.text


def test_a_directory_that_names_no_log_is_refused():
    shelf, _ = filled(is_clean=True)
    shelf.disk.remove(IDENTITY)
    shelf.disk.remove(HIGH_WATER)
    rewrite(shelf.disk, shelf.log_files()[0], bytes(HEAD_BYTES))

    with pytest.raises(CorruptRecord, match="none says whose log it is"):
        Shelf(shelf.disk, ONE_FILE)
