"""Backups of a store on a simulated disk: what they hold, and what interrupts them."""

import errno
import json
import random

import pytest

from tests.soak import count
from tests.unit.store.shelf import LOG, Shelf, Sizes, rewrite
from txmq.errors import CorruptRecord, DamagedFile, DiskFull, StoreError, WriteFailed
from txmq.protocol.checked_body import pack
from txmq.protocol.span import DecisionKind
from txmq.testing import MemoryDisk, SeededEntropy, power_cuts
from txmq_broker.offline.backup import creation
from txmq_broker.offline.backup.creation import Creation
from txmq_broker.offline.backup.manifest import BackupRefused, ManifestFile
from txmq_broker.offline.backup.restoration import restore
from txmq_broker.offline.backup.verification import Verification
from txmq_broker.offline.inspection.directory_inspection import Inspection
from txmq_broker.services.keeper import Floors
from txmq_broker.store.log import spans

TABLES = ("topics", "groups", "offsets", "floors")
BIG = b"x" * 700
TOPICS = json.dumps(
    {
        "topicConfigTable": {
            name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in "TU"
        }
    }
).encode()


def save_table(disk, name, text=b"{}"):
    for path in (f"config/{name}.json", f"config/{name}.json.old"):
        rewrite(disk, path, pack(f"{name}.json", f"{LOG:016x}", text))


def filled(steps=8):
    """A store with several files of the log, and the tables of a broker."""
    shelf = Shelf()
    for name in TABLES:
        save_table(shelf.disk, name)
    add(shelf, steps)
    return shelf


def add(shelf, steps):
    for number in range(steps):
        shelf.put(b"%d" % number + BIG, keys=f"k{number}", unique=f"u{number}")
        shelf.flush()
        unique = f"h{shelf.store.log.end}"
        shelf.prepare(b"half", unique=unique)
        shelf.flush()
        if number % 2:
            shelf.decide(unique, DecisionKind.COMMITTED)
            shelf.flush()


def create(source, folder, link=None, now_ms=1_000):
    creation = Creation(source, folder, link)
    creation.open("here:/data")
    return creation.run("here:/data", lambda: now_ms), creation.copied


def hard(folder):
    """The findings of a verification that are damage or loss."""
    return [finding for finding in Verification(folder).findings() if finding.severity != "note"]


def restored(folder):
    assert hard(folder) == []
    target = MemoryDisk()
    restore(folder, Verification(folder).manifest, target)
    return target


def log_bytes(disk):
    found = b""
    for name in disk.names("log"):
        file = disk.open(f"log/{name}")
        found += file.read(0, file.size())
    return found


# --- what a backup holds ---


def test_a_restored_backup_has_the_same_log_and_needs_no_repair():
    shelf, folder = filled(), MemoryDisk()

    manifest, copied = create(shelf.disk, folder)
    target = restored(folder)

    assert copied == manifest.end == shelf.store.log.end
    assert log_bytes(target) == log_bytes(shelf.disk)
    findings = list(Inspection(target).findings())
    assert findings == []
    again = Shelf(target)
    assert again.store.log.end == shelf.store.log.end
    assert again.transactions() == shelf.transactions()
    assert again.recovery.lost == ""


def test_the_second_backup_copies_only_new_messages():
    shelf, folder = filled(), MemoryDisk()
    before, _ = create(shelf.disk, folder)
    add(shelf, 5)

    manifest, copied = create(shelf.disk, folder)

    assert copied == manifest.end - before.end == shelf.store.log.end - before.end
    assert log_bytes(restored(folder)) == log_bytes(shelf.disk)
    assert create(shelf.disk, folder)[1] == 0


def test_a_restored_broker_can_continue_backups_in_the_same_folder():
    shelf, folder = filled(), MemoryDisk()
    before, _ = create(shelf.disk, folder)
    add(shelf, 3)  # Lost with the disk.
    again = Shelf(restored(folder))
    add(again, 5)

    manifest, copied = create(again.disk, folder)

    assert copied == manifest.end - before.end > 0
    assert log_bytes(restored(folder)) == log_bytes(again.disk)


def test_a_half_written_span_is_left_out_of_the_backup():
    shelf, folder = filled(), MemoryDisk()
    end = shelf.store.log.end
    name = shelf.disk.names("log")[-1]
    file = shelf.disk.open(f"log/{name}")
    shelf.put(BIG)
    shelf.store.write()
    file.truncate(file.size() - 10)

    manifest, _ = create(shelf.disk, folder)

    assert manifest.end == end
    assert Shelf(restored(folder)).store.log.end == end


def test_unsynced_messages_are_synced_before_they_are_backed_up():
    shelf, folder = filled(), MemoryDisk()
    shelf.put(BIG)
    shelf.store.write()  # without a sync

    manifest, _ = create(shelf.disk, folder)
    shelf.disk.crash(SeededEntropy(4))

    assert manifest.end > shelf.store.log.durable
    assert Shelf(shelf.disk).store.log.end == manifest.end
    assert create(shelf.disk, folder)[1] == 0


def test_an_empty_log_can_be_backed_up():
    shelf, folder = filled(0), MemoryDisk()

    manifest, _ = create(shelf.disk, folder)

    assert (manifest.start, manifest.end, manifest.files) == (0, 0, [])
    assert Shelf(restored(folder)).store.log.end == 0


def test_log_files_deleted_by_the_broker_are_removed_from_the_next_backup():
    shelf, folder = filled(), MemoryDisk()
    create(shelf.disk, folder)
    before = len(folder.names("log"))
    shelf.checkpoint()
    for _ in range(2):
        shelf.store.drop_first_file()

    manifest, copied = create(shelf.disk, folder)

    assert copied == 0
    assert manifest.start == shelf.store.log.start > 0
    assert len(folder.names("log")) == before - 2
    assert Shelf(restored(folder), floors=shelf.store.floors_after(0)).store.log.start > 0


def test_a_log_file_deleted_during_the_backup_does_not_fail_it():
    shelf, folder = filled(20), MemoryDisk()
    shelf.checkpoint()

    def delete(event):
        if event.kind == "create" and "log/" in event.path and shelf.store.log.start == 0:
            save_table(shelf.disk, "floors", b'{"floors":{"T":{"0":3}}}')
            for _ in range(3):
                shelf.store.drop_first_file()

    folder.on_write = delete
    manifest, _ = create(shelf.disk, folder)

    assert manifest.start == shelf.store.log.start > 0
    assert '"T"' in manifest.tables["config/floors.json"]
    assert hard(folder) == []


def test_log_files_deleted_before_the_listing_have_their_floors_in_the_backup():
    """A queue whose messages were all deleted goes on above its floor."""
    shelf, folder = filled(0), MemoryDisk()
    save_table(shelf.disk, "topics", TOPICS)
    save_table(shelf.disk, "offsets", b'{"offsetTable":{"U@G":{"0":1}}}')
    shelf.put(BIG, "U")
    for _ in range(10):
        shelf.put(BIG)
        shelf.flush()
    shelf.checkpoint()
    creation = Creation(shelf.disk, folder)
    creation.open("here")
    look = creation._listing

    def delete_and_look():
        if shelf.store.log.start == 0:
            floors = Floors(shelf.store.floors_after(1), shelf.store.log.durable)
            save_table(shelf.disk, "floors", floors.write())
            shelf.store.drop_first_file()
        return look()

    creation._listing = delete_and_look
    manifest = creation.run("here", lambda: 1)

    assert manifest.start == shelf.store.log.start > 0
    assert hard(folder) == []


def test_a_topic_deleted_during_the_backup_is_deleted_in_the_backup():
    shelf, folder = filled(), MemoryDisk()
    saved = []

    def delete(event):
        if event.kind == "create" and "log/" in event.path and not saved:
            saved.append(save_table(shelf.disk, "topics", b'{"dataVersion":{"counter":"2"}}'))

    folder.on_write = delete
    manifest, _ = create(shelf.disk, folder)

    assert "counter" in manifest.tables["config/topics.json"]


def test_offsets_committed_during_the_backup_are_not_ahead_of_its_log():
    shelf, folder = filled(), MemoryDisk()
    save_table(shelf.disk, "topics", TOPICS)

    def consume(event):
        if event.kind == "sync":
            add(shelf, 1)
            reached = shelf.store.queue("T", 0).max_offset
            save_table(shelf.disk, "offsets", b'{"offsetTable":{"T@G":{"0":%d}}}' % reached)

    folder.on_write = consume
    create(shelf.disk, folder)

    assert hard(folder) == []


def test_tables_that_change_faster_than_they_are_copied_fail_the_backup():
    shelf, folder = filled(), MemoryDisk()
    create(shelf.disk, folder)
    texts = iter(range(1000))

    def now_ms():
        save_table(shelf.disk, "topics", b'{"dataVersion":{"counter":"%d"}}' % next(texts))
        return 1

    creation = Creation(shelf.disk, folder)
    creation.open("here")
    agree = creation._agree

    def change_first(tables):
        now_ms()
        return agree(tables)

    creation._agree = change_first
    with pytest.raises(BackupRefused, match="faster than they can be copied"):
        creation.run("here", now_ms)
    assert hard(folder) == []


def test_the_audit_log_is_copied_up_to_its_last_whole_line():
    shelf, folder = filled(), MemoryDisk()
    rewrite(shelf.disk, "audit/000000.jsonl", b"one\ntwo\nthr")
    create(shelf.disk, folder)
    rewrite(shelf.disk, "audit/000000.jsonl", b"one\ntwo\nthree\n")
    rewrite(shelf.disk, "audit/000001.jsonl", b"half")

    create(shelf.disk, folder)
    target = restored(folder)

    assert target.names("audit") == ["000000.jsonl"]
    assert target.open("audit/000000.jsonl").read(0, 99) == b"one\ntwo\nthree\n"


def test_a_restored_broker_scans_only_the_log_without_an_index():
    shelf, folder = filled(20), MemoryDisk()
    shelf.checkpoint()

    create(shelf.disk, folder)
    add(shelf, 9)
    shelf.checkpoint()
    add(shelf, 9)
    create(shelf.disk, folder)
    again = Shelf(restored(folder))

    *complete, _ = shelf.disk.names("index")
    assert folder.names("index") == complete
    assert again.recovery.scanned_bytes < again.store.log.end / 2
    assert again.transactions() == shelf.transactions()


def test_an_accepted_loss_stays_accepted_after_a_restore():
    shelf, folder = filled(20), MemoryDisk()
    end = shelf.store.log.end
    shelf.close()
    disk = shelf.disk
    disk.remove(f"log/{disk.names('log')[-1]}")
    save_table(disk, "floors", Floors({}, end).write())
    shelf = Shelf(disk, accept_loss="a test", floors_end=end)
    assert shelf.recovery.lost
    assert shelf.store.log.end < end

    manifest, _ = create(disk, folder)

    assert manifest.accepted == end
    assert Shelf(restored(folder), floors_end=end).recovery.lost == ""


def test_the_kv_table_of_a_name_server_is_in_the_backup():
    shelf, folder = filled(), MemoryDisk()
    text = pack("kv.json", f"{LOG:016x}", b'{"texts":{}}')
    rewrite(shelf.disk, "config/kv.json", text)

    create(shelf.disk, folder)
    target = restored(folder)

    assert target.open("config/kv.json").read(0, 999) == text


def test_a_damaged_index_is_left_out_of_the_backup():
    shelf, folder = filled(20), MemoryDisk()
    shelf.checkpoint()
    name = shelf.disk.names("index")[1]
    shelf.disk.flip_bit(f"index/{name}", 30)

    create(shelf.disk, folder)

    assert name not in folder.names("index")
    assert log_bytes(restored(folder)) == log_bytes(shelf.disk)


def test_a_backup_only_syncs_and_never_writes_in_the_brokers_directory():
    shelf, folder = filled(20), MemoryDisk()
    changed = []
    shelf.disk.on_write = changed.append

    create(shelf.disk, folder)
    shelf.checkpoint()
    del changed[:]
    create(shelf.disk, folder)

    assert {event.kind for event in changed} <= {"sync"}


class BusyBroker:
    """Does something random at the steps of a backup. Messages of the topic U are rare, so at times
    all of them are deleted.
    """

    def __init__(self, seed):
        self._chance = random.Random(seed)
        self._steps = self._dropped = 0
        self.shelf = filled(0)
        self.acknowledged, self.open = [], []
        save_table(self.shelf.disk, "topics", TOPICS)

    def watch(self, creation, folder):
        """Act before each change in the folder and each listing of the broker's directory."""
        folder.on_write = self.act
        for name in ("_tables", "_listing"):
            look = getattr(creation, name)
            setattr(creation, name, lambda look=look: self.act() or look())

    def act(self, _=None):
        while self._steps and self._chance.random() < 0.4:
            self._steps -= 1
            self.step()

    def begin(self):
        """From now on it acts a few times."""
        self._steps = self._chance.randrange(10)

    def step(self):
        self._chance.choice(
            [self._send, self._send, self._transact, self._consume, self._delete, self._write]
        )()

    def _send(self):
        for topic in "TT" if self._chance.randrange(6) else "TU":
            body = BIG * self._chance.randrange(1, 4)
            self.acknowledged.append(self.shelf.put(body, topic))
        self.shelf.flush()

    def _transact(self):
        """Open a transaction, or commit the oldest."""
        if len(self.open) < 2:
            self.open.append(f"h{self.shelf.store.log.end}")
            self.shelf.prepare(b"half", unique=self.open[-1])
        else:
            self.shelf.decide(self.open.pop(0), DecisionKind.COMMITTED)
        self.shelf.flush()

    def _write(self):
        """A span that is not synced yet: a later sync or the backup makes it durable."""
        self.shelf.put(BIG)
        self.shelf.store.publish(self.shelf.store.write())

    def _consume(self):
        reached = {topic: self.shelf.store.queue(topic, 0).max_offset for topic in "TU"}
        table = {f"{topic}@G": {"0": offset} for topic, offset in reached.items()}
        save_table(self.shelf.disk, "offsets", json.dumps({"offsetTable": table}).encode())

    def _delete(self):
        """Save the floors; delete the files in a later step."""
        store = self.shelf.store
        for _ in range(self._dropped):
            store.drop_first_file()
        if self._dropped:
            self._dropped = 0
            return
        self.shelf.sync()
        self.shelf.checkpoint()
        count = min(len(store.checkpoints.completed_files()), self._chance.randrange(3))
        pinned = store.pinned()
        while count and pinned is not None and store.log.segments.extents()[count].start > pinned:
            count -= 1
        if count:
            floors = Floors(store.floors_after(count), store.log.durable)
            save_table(self.shelf.disk, "floors", floors.write())
            self._dropped = count

    def check(self, folder, acknowledged):
        """A broker starts on the restored backup and has what was acknowledged and not deleted."""
        target = restored(folder)
        floors = Floors.read(tables_of(target, "floors"))
        again = Shelf(target, floors=floors.floors, floors_end=floors.log_end)
        assert again.recovery.lost == ""
        for placed in acknowledged:
            queue = again.store.queue(placed.topic, 0)
            if placed.offset >= queue.min_offset:
                (entry,) = queue.read(placed.offset, 1)
                assert entry[0] == placed.position


def tables_of(disk, name):
    return disk.open(f"config/{name}.json").read(0, 1 << 20).partition(b"\n")[2]


@pytest.mark.parametrize("seed", range(count(25, 1000)))
def test_backups_of_a_busy_broker_can_be_restored(seed):
    busy, folder = BusyBroker(seed), MemoryDisk()
    for number in range(5):
        for _ in range(8):
            busy.step()
        acknowledged = list(busy.acknowledged)
        creation = Creation(busy.shelf.disk, folder)
        creation.open("here")
        busy.watch(creation, folder)
        busy.begin()
        creation.run("here", lambda number=number: number + 1)
        busy.check(folder, acknowledged)


# --- refusals ---


def test_a_folder_with_another_logs_backup_is_refused_and_unchanged():
    shelf, folder = filled(), MemoryDisk()
    create(shelf.disk, folder)
    other = MemoryDisk()
    Shelf(other, entropy=SeededEntropy(2)).close()
    rewrite(other, "config/floors.json", b"")

    with pytest.raises(BackupRefused, match="has a backup of the log .*use another folder"):
        create(other, folder)
    assert hard(folder) == []


def test_a_folder_with_other_files_is_refused():
    folder = MemoryDisk()
    rewrite(folder, "letters/to-mother.txt", b"Dear mother")

    with pytest.raises(BackupRefused, match="not empty, and has no backup: it has letters"):
        create(filled().disk, folder)
    assert folder.names("") == ["letters"]


def test_an_empty_data_directory_is_refused():
    with pytest.raises(BackupRefused, match="no file in it names a log"):
        create(MemoryDisk(), MemoryDisk())


def test_a_data_directory_with_a_missing_table_is_refused():
    shelf = filled()
    for path in ("config/groups.json", "config/groups.json.old"):
        shelf.disk.remove(path)

    with pytest.raises(BackupRefused, match="config/groups.json does not exist"):
        create(shelf.disk, MemoryDisk())


@pytest.mark.parametrize("more", [0, 9])
def test_a_log_that_lost_its_end_does_not_overwrite_the_backup(more):
    shelf, folder = filled(), MemoryDisk()
    older = shelf.disk.clone()
    add(shelf, 3)
    manifest, _ = create(shelf.disk, folder)
    again = Shelf(older)
    for number in range(more):
        again.put(b"another history %d" % number + BIG)
        again.flush()
    assert (again.store.log.end > manifest.end) == bool(more)

    with pytest.raises(BackupRefused, match="may have messages that it lacks"):
        create(older, folder)

    assert Verification(folder).manifest == manifest
    assert hard(folder) == []


def test_a_damaged_log_is_refused_and_the_earlier_backup_kept():
    shelf, folder = filled(), MemoryDisk()
    manifest, _ = create(shelf.disk, folder)
    end = shelf.store.log.end
    add(shelf, 6)
    segment = shelf.store.log.file_at(end)
    shelf.disk.flip_bit(f"log/{segment:020d}.log", end - segment + 60)

    with pytest.raises(CorruptRecord, match=f"position {end}: a later write"):
        create(shelf.disk, folder)

    assert Verification(folder).manifest == manifest
    assert hard(folder) == []


def test_a_full_backup_disk_keeps_the_old_backup_and_frees_the_partial_files():
    shelf, folder = filled(), MemoryDisk()
    manifest, _ = create(shelf.disk, folder)
    used = folder.space().used
    add(shelf, 20)
    folder.capacity = used + 3 * 4096

    with pytest.raises(DiskFull, match="the disk of the backup is full"):
        create(shelf.disk, folder)

    assert folder.space().used <= used
    assert Verification(folder).manifest == manifest
    assert hard(folder) == []
    folder.capacity = None
    create(shelf.disk, folder)
    assert log_bytes(restored(folder)) == log_bytes(shelf.disk)


def test_a_backup_with_a_truncated_log_file_is_not_continued():
    shelf, folder = filled(), MemoryDisk()
    create(shelf.disk, folder)
    name = folder.names("log")[-1]
    file = folder.open(f"log/{name}")
    file.truncate(file.size() - 1)
    add(shelf, 1)

    with pytest.raises(DamagedFile, match="the backup is damaged"):
        create(shelf.disk, folder)


def test_a_manifest_of_a_newer_version_is_refused():
    folder = MemoryDisk()
    create(filled().disk, folder)
    data = folder.open("manifest.json").read(0, 1 << 20)
    text = data.partition(b"\n")[2].replace(b'"version": 1', b'"version": 2')
    for name in ("manifest.json", "manifest.json.old"):
        rewrite(folder, name, pack("manifest.json", f"{LOG:016x}", text))

    with pytest.raises(BackupRefused, match="a newer version of txmq"):
        Verification(folder)


@pytest.mark.parametrize("path", ["manifest.json", "manifest.json.old"])
def test_a_failed_manifest_sync_leaves_all_files_of_the_new_backup(path):
    shelf, folder = filled(), MemoryDisk()
    create(shelf.disk, folder)
    add(shelf, 8)

    def fail(event):
        if (event.kind, event.path) == ("sync folder", path):
            raise OSError(errno.EIO, "Input/output error")

    folder.on_write = fail
    with pytest.raises(WriteFailed, match="the manifest cannot be written"):
        create(shelf.disk, folder)

    assert hard(folder) == []


# --- interruptions ---


def interrupted(source, folder, name):
    """A first backup that ends when it creates a file."""

    def stop(event):
        if (event.kind, event.path) == ("create", name):
            raise KeyboardInterrupt

    folder.on_write = stop
    with pytest.raises(KeyboardInterrupt):
        create(source, folder)
    folder.on_write = None


def test_an_interrupted_first_backup_continues_where_it_stopped():
    shelf, folder = filled(20), MemoryDisk()
    *_, before_last, last = (f"log/{name}" for name in shelf.disk.names("log"))
    interrupted(shelf.disk, folder, last)
    with pytest.raises(BackupRefused, match="the first backup into this folder was interrupted"):
        Verification(folder)
    add(shelf, 1)

    manifest, copied = create(shelf.disk, folder)

    assert copied == manifest.end - int(last[4:-4]) < manifest.end - int(before_last[4:-4])
    assert log_bytes(restored(folder)) == log_bytes(shelf.disk)


def test_an_interrupted_first_backup_continues_inside_a_large_file(monkeypatch):
    monkeypatch.setattr(spans, "_WINDOW", 2000)
    monkeypatch.setattr(creation, "_SYNCED_AT_ONCE", 1000)
    monkeypatch.setattr(creation, "_NOTED_AT_ONCE", 4000)
    shelf, folder = Shelf(sizes=Sizes(segment_size=1 << 20)), MemoryDisk()
    for name in TABLES:
        save_table(shelf.disk, name)
    add(shelf, 20)
    (name,) = shelf.disk.names("log")
    left = 10

    def stop(event):
        nonlocal left
        left -= (event.kind, event.path) == ("write", f"log/{name}")
        if not left:
            raise KeyboardInterrupt

    folder.on_write = stop
    with pytest.raises(KeyboardInterrupt):
        create(shelf.disk, folder)
    folder.on_write = None

    manifest, copied = create(shelf.disk, folder)

    assert 8_000 < copied < manifest.end - 8_000
    assert log_bytes(restored(folder)) == log_bytes(shelf.disk)


def test_an_interrupted_first_backup_restarts_if_the_log_has_diverged():
    shelf, folder = filled(4), MemoryDisk()
    other = shelf.disk.clone()
    add(shelf, 16)
    interrupted(shelf.disk, folder, f"log/{shelf.disk.names('log')[-1]}")
    again = Shelf(other)
    again.put(b"other")
    again.flush()
    add(again, 20)

    manifest, copied = create(again.disk, folder)

    assert copied == manifest.end
    assert log_bytes(restored(folder)) == log_bytes(again.disk)


def test_a_first_backup_that_filled_the_disk_continues_once_there_is_room():
    shelf, folder = filled(20), MemoryDisk()
    folder.capacity = 8 * 4096

    with pytest.raises(DiskFull, match="the disk of the backup is full"):
        create(shelf.disk, folder)

    folder.capacity = None
    manifest, copied = create(shelf.disk, folder)
    assert copied < manifest.end
    assert log_bytes(restored(folder)) == log_bytes(shelf.disk)


# --- crashes ---


@pytest.mark.parametrize("is_first", [True, False])
def test_a_crash_at_any_point_leaves_the_earlier_backup_or_the_new_one(is_first):
    shelf, folder = filled(4), MemoryDisk()
    ends = set()
    if not is_first:
        ends.add(create(shelf.disk, folder, now_ms=1)[0].end)
        add(shelf, 4)
        shelf.checkpoint()
        shelf.store.drop_first_file()
    ends.add(shelf.store.log.end)
    outcomes = set()

    for event, disk in power_cuts(folder, lambda disk: create(shelf.disk, disk, now_ms=2)):
        for seed in range(3):
            cut = disk.clone()
            cut.crash(SeededEntropy(seed))
            try:
                manifest = Verification(cut).manifest
            except BackupRefused:
                assert is_first
                assert event is not None
                outcomes.add(None)
            else:
                assert hard(cut) == [], event
                assert manifest.end in ends
                outcomes.add(manifest.taken_ms)
            create(shelf.disk, cut, now_ms=3)
            assert hard(cut) == [], event
            assert Verification(cut).manifest.end == shelf.store.log.end

    assert outcomes == ({None, 2} if is_first else {1, 2})


@pytest.mark.parametrize("steps", [0, 4])
def test_a_crash_during_a_restore_leaves_a_directory_that_does_not_start(steps):
    shelf, folder = filled(steps), MemoryDisk()
    manifest, _ = create(shelf.disk, folder)
    finished = []

    for event, disk in power_cuts(MemoryDisk(), lambda disk: restore(folder, manifest, disk)):
        for seed in range(3):
            cut = disk.clone()
            cut.crash(SeededEntropy(seed))
            is_refused = any(finding.refuses_start for finding in Inspection(cut).findings())
            if not is_refused and files_of(cut):
                finished.append(event)
                assert log_bytes(cut) == log_bytes(shelf.disk), event
                assert {f"config/{name}.json" for name in TABLES} <= files_of(cut), event

    assert None in finished


def files_of(disk):
    """The files that a start reads."""
    inside = [f"{folder}/{name}" for folder in ("config", "log") for name in disk.names(folder)]
    beside = [name for name in ("identity", "high-water") if name in disk.names("")]
    return {path for path in (*inside, *beside) if not path.endswith(".new")}


# --- damage ---


def test_verification_finds_a_flipped_bit_in_any_backup_file():
    shelf, folder = filled(), MemoryDisk()
    rewrite(shelf.disk, "audit/000000.jsonl", b"one\ntwo\n")
    create(shelf.disk, folder)
    chance = random.Random(5)
    paths = ["manifest.json", "manifest.json.old", "audit/000000.jsonl"]
    paths += [f"log/{name}" for name in folder.names("log")]
    for path in paths:
        size = folder.open(path).size()
        for place in {0, size - 1, chance.randrange(size)}:
            damaged = folder.clone()
            damaged.flip_bit(path, place)

            found = hard(damaged)

            assert [
                finding for finding in found if path in (finding.file, f"log/{finding.file}")
            ], path


def test_verification_finds_missing_and_truncated_log_files():
    folder = MemoryDisk()
    create(filled().disk, folder)
    for name in folder.names("log"):
        for size in (None, 10):
            damaged = folder.clone()
            if size is None:
                damaged.remove(f"log/{name}")
            else:
                damaged.open(f"log/{name}").truncate(size)

            assert [finding for finding in hard(damaged) if finding.severity == "loss"], (
                name,
                size,
            )


@pytest.mark.parametrize("is_missing", [True, False])
def test_verification_reports_a_damaged_index_and_the_restore_still_works(is_missing):
    shelf, folder = filled(20), MemoryDisk()
    shelf.checkpoint()
    create(shelf.disk, folder)
    path = f"index/{folder.names('index')[0]}"
    if is_missing:
        folder.remove(path)
    else:
        folder.flip_bit(path, 50)
    folder.flip_bit("manifest.json", 50)
    target = MemoryDisk()

    verification = Verification(folder)
    found = [finding for finding in verification.findings() if finding.severity != "note"]
    restore(folder, verification.manifest, target, damaged=verification.damaged)

    assert {finding.file for finding in found} == {path, "manifest.json"}
    assert verification.is_restorable
    assert path.removeprefix("index/") not in target.names("index")
    assert list(Inspection(target).findings()) == []
    assert Shelf(target).store.log.end == shelf.store.log.end


@pytest.mark.parametrize("size", [None, 0, 500])
def test_the_intact_files_of_a_damaged_backup_can_be_restored(size):
    folder, target = MemoryDisk(), MemoryDisk()
    create(filled(20).disk, folder)
    name = folder.names("log")[-2]
    if size is None:
        folder.remove(f"log/{name}")
    else:
        folder.open(f"log/{name}").truncate(size)

    verification = Verification(folder)
    assert list(verification.findings())
    assert not verification.is_restorable
    restore(folder, verification.manifest, target, damaged=verification.damaged)

    assert any(finding.refuses_start for finding in Inspection(target).findings())
    assert len(target.names("log")) == len(folder.names("log"))


def test_two_damaged_manifests_are_an_error_and_not_taken_for_an_empty_folder():
    folder = MemoryDisk()
    shelf = filled()
    create(shelf.disk, folder)
    for path in ("manifest.json", "manifest.json.old"):
        folder.flip_bit(path, 200)

    with pytest.raises(DamagedFile):
        Verification(folder)
    with pytest.raises(StoreError):
        create(shelf.disk, folder)


def test_the_second_manifest_replaces_a_damaged_one_and_rewrites_it():
    folder = MemoryDisk()
    shelf = filled()
    create(shelf.disk, folder)
    folder.flip_bit("manifest.json", 200)
    add(shelf, 1)

    create(shelf.disk, folder)

    assert ManifestFile(folder).load() is not None
    assert hard(folder) == []


def test_a_file_damaged_after_verification_fails_the_restore():
    folder = MemoryDisk()
    manifest, _ = create(filled().disk, folder)
    folder.flip_bit(f"log/{folder.names('log')[0]}", 100)

    with pytest.raises(DamagedFile, match="it changed since it was verified"):
        restore(folder, manifest, MemoryDisk())
