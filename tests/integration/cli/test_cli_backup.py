"""``txmq backup`` of real brokers under load, and of small directories."""

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys

import pytest

from tests.servers.serving import CHECKOUT, BrokerProcess, ask, environment
from tests.unit.store.shelf import LOG, Shelf, rewrite
from txmq import LocalTransactionState, Message, Producer, PushConsumer, TransactionProducer
from txmq.protocol.checked_body import pack
from txmq.protocol.record import position_in, unpack
from txmq.runtime.disk import LocalDisk, ReadOnlyDisk
from txmq_broker.app import Broker
from txmq_broker.offline.backup.restoration import restore
from txmq_broker.offline.backup.verification import Verification
from txmq_broker.offline.inspection.log_records import Selection, select
from txmq_broker.store.log.reader import LogReader
from txmq_broker.testing import settings_for_test

DELETE_OLD_FILES = 329
BACKUPS = 3
SENDERS = 6
TOPIC = "Orders"
BIG = b"x" * 700


# --- a broker under load ---


class Bank:
    """Commits, rolls back, or leaves open, as the message says."""

    async def execute_local_transaction(self, message, arg):
        return LocalTransactionState[message.body.decode()]

    async def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN


class Load:
    """What a broker acknowledged so far."""

    def __init__(self, names):
        self._names = names
        self._is_over = False
        self.messages = {}
        """The position in the log and the hash of each body, by queue and offset."""
        self.halves, self.decided, self.delayed = set(), set(), set()

    def acknowledged(self):
        return dict(self.messages), set(self.halves), set(self.decided), set(self.delayed)

    async def run_during(self, work, *, has_open):
        consumer = PushConsumer("readers", self._names)

        @consumer.on(TOPIC)
        async def read(message):
            pass

        async with (
            Producer("p", names=self._names) as producer,
            TransactionProducer("bank", self._names, Bank()) as bank,
            consumer,
        ):
            senders = [self._send(producer, number) for number in range(SENDERS)]
            states = ("COMMIT", "ROLLBACK", "UNKNOWN") if has_open else ("COMMIT", "ROLLBACK")
            senders += [self._prepare(bank, states)]
            senders += [self._delay(producer)] if has_open else []
            tasks = [asyncio.create_task(sender) for sender in senders]
            while len(self.messages) < 100:
                await asyncio.sleep(0)
            await work
            self._is_over = True
            await asyncio.gather(*tasks)

    async def _send(self, producer, number):
        chance = random.Random(number)
        while not self._is_over:
            body = chance.randbytes(chance.randrange(100_000))
            receipt = await producer.send(Message(topic=TOPIC, body=body))
            place = receipt.queue.number, receipt.offset
            assert place not in self.messages
            position = position_in(receipt.offset_id)
            self.messages[place] = position, hashlib.sha256(body).digest()

    async def _prepare(self, bank, states):
        while not self._is_over:
            for state in states:
                message = Message(topic="Transfers", body=state.encode())
                outcome = await bank.send_in_transaction(message)
                self.halves.add(outcome.message_id)
                if state != "UNKNOWN":
                    self.decided.add(outcome.message_id)

    async def _delay(self, producer):
        while not self._is_over:
            message = Message(topic="Later", body=b"later", deliver_after=3600)
            self.delayed.add((await producer.send(message)).id)


def records(data):
    """The ids in a directory's log, by kind of record; decisions are a separate kind."""
    ids = {"half": set(), "delayed": set(), "decision": set(), "message": set()}
    log = LogReader(ReadOnlyDisk(data), int((data / "identity").read_text().split()[0], 16))
    log.open()
    for record in select(log, Selection(), lambda _: None):
        ids[record.kind.value].add(record.unique)
    log.close()
    return ids


async def start_and_compare(data, acknowledged, start):
    """Start a broker there; it must have all that lies at or after the beginning of the log."""
    messages, halves, decided, delayed = acknowledged
    held = records(data)
    async with Broker(settings_for_test(str(data))) as broker:
        store = broker.store
        assert (broker.recovery.lost, broker.recovery.cut_bytes) == ("", 0)
        assert store.log.start == start
        is_whole = start == 0
        for (number, offset), (position, digest) in messages.items():
            if position < start:
                continue
            ((found, *_),) = store.find_queue(TOPIC, number).read(offset, 1)
            body = unpack(store.log.bytes_at(found))[0].body
            assert (found, hashlib.sha256(body).digest()) == (position, digest)
        assert not is_whole or halves <= held["half"]
        assert not is_whole or decided <= held["decision"]
        assert not is_whole or delayed <= held["delayed"]
        # Undecided and delayed messages are never deleted.
        assert halves - decided <= held["half"]
        assert len(store.halves.pending) >= len(halves - decided)
        before = store.queues_of(TOPIC)[0].next_offset
        async with Producer("p", names=broker.names) as producer:
            receipts = [
                await producer.send(Message(topic=TOPIC, body=b"next"))
                for _ in range(4 * len(store.queues_of(TOPIC)))
            ]
        firsts = [receipt.offset for receipt in receipts if receipt.queue.number == 0]
        assert firsts[0] == before


def command(*words):
    return [sys.executable, "-m", "txmq", "backup", *map(str, words)]


@pytest.mark.slow
@pytest.mark.parametrize(("flush", "deletes"), [("sync", False), ("async", True)])
def test_backups_under_load_contain_everything_that_was_acknowledged(tmp_path, flush, deletes):
    """Open transactions and delayed messages keep a broker from deleting files of its log."""
    settings = ["store.segment_size=16MiB", "store.checkpoint_every=1MiB"]
    # Files are deleted on request only, never at a time of day.
    settings += ["retention.keep=0.2s", "retention.delete_at="]
    broker = BrokerProcess(tmp_path / "broker", flush=flush, settings=settings)
    data, folder = tmp_path / "broker" / "data", tmp_path / "backup"
    taken = []

    async def back_up(load):
        while len(taken) < BACKUPS or (deletes and taken[-1][2]["start"] == 0):
            acknowledged = load.acknowledged()
            process = await asyncio.create_subprocess_exec(
                *command("create", "--data", data, "--to", folder, "--json"),
                *(["--link"] if len(taken) == 1 else []),
                stdout=subprocess.PIPE,
                env=environment(),
            )
            if deletes and taken:
                code, _, _ = await asyncio.to_thread(ask, broker.address, DELETE_OLD_FILES)
                assert code == 0
            output, _ = await process.communicate()
            assert process.returncode == 0
            target = tmp_path / f"restored-{len(taken)}"
            await asyncio.to_thread(restore_to, folder, target)
            summary = json.loads(output)
            # The backup lacks only what the broker has deleted.
            oldest = min(int(path.stem) for path in (data / "log").iterdir())
            assert summary["start"] <= oldest
            taken.append((target, acknowledged, summary))

    broker.start()
    try:
        broker.create_topic(TOPIC, 4)
        load = Load(broker.names)
        asyncio.run(load.run_during(back_up(load), has_open=not deletes))
    finally:
        broker.close()  # With kill -9, so nothing is saved.
    subprocess.run(command("create", "--data", data, "--to", folder), env=environment(), check=True)
    restore_to(folder, tmp_path / "restored-last")
    start = min(int(path.stem) for path in (data / "log").iterdir())
    asyncio.run(start_and_compare(tmp_path / "restored-last", load.acknowledged(), start))
    for target, acknowledged, summary in taken:
        asyncio.run(start_and_compare(target, acknowledged, summary["start"]))
    assert len(taken[0][1][0]) >= 100
    assert taken[0][2]["start"] == 0
    assert deletes == (taken[-1][2]["start"] > 0)
    copied = [summary["copied_bytes"] for *_, summary in taken]
    assert copied[1] < taken[1][2]["end"]


def restore_to(folder, target):
    verification = Verification(ReadOnlyDisk(folder))
    assert [finding for finding in verification.findings() if finding.severity != "note"] == []
    restore(ReadOnlyDisk(folder), verification.manifest, LocalDisk(target))


# --- a small directory ---


@pytest.fixture
def data(tmp_path):
    """A directory with several files of the log, as a killed broker leaves it."""
    path = tmp_path / "data"
    path.mkdir()
    shelf = Shelf(LocalDisk(path))
    for name in ("topics", "groups", "offsets", "floors"):
        for suffix in ("", ".old"):
            text = pack(f"{name}.json", f"{LOG:016x}", b"{}")
            rewrite(shelf.disk, f"config/{name}.json{suffix}", text)
    put(shelf, 20)
    shelf.close()
    return path


def put(shelf, count):
    for _ in range(count):
        shelf.put(BIG)
        shelf.flush()


def add(data, count):
    shelf = Shelf(LocalDisk(data))
    put(shelf, count)
    shelf.close()


def log_of(data):
    return b"".join(path.read_bytes() for path in sorted((data / "log").iterdir()))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Backup:
    """Runs ``txmq backup`` on the directory, the folder ``b``, and the restored directory ``r``."""

    def __init__(self, txmq, data, tmp_path):
        self._txmq, self._data = txmq, data
        self.folder, self.restored = tmp_path / "b", tmp_path / "r"

    def create(self, *options, code=0):
        return self._run(code, "create", "--data", self._data, "--to", self.folder, *options)

    def verify(self, *options, code=0):
        return self._run(code, "verify", self.folder, *options)

    def restore(self, *options, code=0):
        return self._run(code, "restore", self.folder, "--data", self.restored, *options)

    def _run(self, code, *words):
        done = self._txmq("backup", *words)
        assert done.exit_code == code, done.output
        return done

    def files(self, under=""):
        return sorted((self.folder / under / "log").iterdir())


@pytest.fixture
def backup(txmq, data, tmp_path):
    return Backup(txmq, data, tmp_path)


def test_create_verify_and_restore_report_what_they_did(txmq, backup, data):
    before = contents(data)
    created, verified, restored = (
        done.stdout for done in (backup.create(), backup.verify(), backup.restore())
    )

    assert contents(data) == before
    size = len(log_of(data))
    assert f"positions 0 to {size} in 5 files; {size} bytes are new" in created
    assert verified.endswith(
        "20 messages, 0 half messages, 0 decisions, 0 open transactions; whole\n"
    )
    assert f"restored {backup.restored} as it was at " in restored
    assert "consumers receive some messages again" in restored
    assert f"start it with: txmq serve --data {backup.restored}" in restored
    assert log_of(backup.restored) == log_of(data)
    assert txmq("log", "verify", "--data", backup.restored).exit_code == 0


def test_backup_commands_print_json_for_programs(backup, data):
    created = json.loads(backup.create("--json").stdout)
    (verified,) = backup.verify("--json").stdout.splitlines()
    *_, restored = backup.restore("--json").stdout.splitlines()

    assert created["copied_bytes"] == created["end"] == len(log_of(data))
    assert created["log"] == f"{LOG:016x}"
    assert json.loads(verified)["messages"] == 20
    assert json.loads(restored)["kind"] == "restored"
    assert json.loads(restored)["taken_ms"] == created["taken_ms"]


def test_linked_files_share_disk_space_and_are_never_written_to(backup, data):
    backup.create("--link")
    assert [path.stat().st_nlink for path in backup.files("linked")] == [2, 2, 2, 2]
    add(data, 8)

    backup.create("--link")
    assert {path.stat().st_nlink for path in backup.files()} == {1}
    backup.restore()
    assert log_of(backup.restored) == log_of(data)
    before = contents(data)

    # Without the option the backup no longer shares files.
    backup.create()

    assert contents(data) == before
    assert not backup.files("linked")
    assert log_of(backup.folder) == log_of(data)
    assert {path.stat().st_nlink for path in backup.files()} == {1}


def test_a_damaged_backup_is_reported_and_not_restored(txmq, backup):
    backup.create()
    path = backup.files()[1]
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)

    verified = backup.verify(code=1).stdout
    found = [line for line in verified.splitlines() if line.startswith("damage")]
    assert [f"log/{path.name}" in line for line in found] == [True]
    assert "is damaged, and nothing was restored" in backup.restore(code=1).stderr
    assert not backup.restored.exists()

    anyway = backup.restore("--damaged")

    assert f"txmq log verify --data {backup.restored} --repair" in anyway.stdout
    found = txmq("log", "verify", "--data", backup.restored).stdout
    assert found.splitlines()[0] == verified.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("create --data missing --to b", "missing is not a directory"),
        ("create --data empty --to b", "no file in it names a log"),
        ("create --data data --to data/b", "may be inside the other"),
        ("create --data data --to data", "may be inside the other"),
        ("create --data data --to .", "may be inside the other"),
        ("create --data data --to full", "not empty, and has no backup: it has x"),
        ("verify missing", "missing is not a directory"),
        ("verify empty", "the folder has no backup: it has no manifest.json"),
        ("restore empty --data r", "the folder has no backup"),
        ("restore whole --data full", "full is not empty: it has x"),
        ("restore whole --data full/x", "full/x is not a directory"),
        ("restore whole --data whole/r", "may be inside the other"),
    ],
)
def test_invalid_backup_commands_are_refused_and_change_nothing(
    txmq, data, tmp_path, monkeypatch, words, text
):
    def kept():
        return {path: held for path, held in contents(tmp_path).items() if path.name != "lock"}

    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    txmq("backup", "create", "--data", data, "--to", "whole")
    before = kept()

    done = txmq("backup", *words.split())

    assert done.exit_code == 2, done.output
    assert text in done.stderr
    assert kept() == before


def test_a_backup_folder_in_use_is_refused(backup):
    backup.create()
    lock = LocalDisk(backup.folder).lock()
    try:
        for run in (backup.create, backup.verify, backup.restore):
            assert f"is in use by process {os.getpid()}" in run(code=2).stderr
    finally:
        lock.release()


def test_a_full_disk_leaves_the_earlier_backup_valid(backup, data, monkeypatch):
    backup.create()
    before = contents(backup.folder)
    add(data, 8)
    pwrite = os.pwrite

    def full(descriptor, content, position):
        if str(backup.folder / "log") in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, content, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        told = backup.create(code=1).stderr

    assert "the disk of the backup is full" in told
    assert "Z stays valid" in told
    assert contents(backup.folder) == before
    backup.verify()


# --- kill -9 ---

DIES = """
import os, signal, sys
from txmq.cli.root import app

steps = int(sys.argv.pop(1))

def dying(name):
    call = getattr(os, name)
    def counted(*arguments, **more):
        global steps
        steps -= 1
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **more)
    setattr(os, name, counted)

for name in ("pwrite", "fdatasync", "fsync", "replace", "unlink"):
    dying(name)
app()
"""


@pytest.mark.parametrize("steps", [1, 4, 8, 13, 17, 22])
def test_kill_9_of_create_leaves_the_earlier_backup(backup, data, steps):
    backup.create()
    first = Verification(ReadOnlyDisk(backup.folder)).manifest
    add(data, 8)

    words = command("create", "--data", data, "--to", backup.folder)[3:]
    killed = subprocess.run(
        [sys.executable, "-c", DIES, str(steps), *words],
        env=environment(), cwd=CHECKOUT, check=False, capture_output=True,
    )  # fmt: skip

    assert killed.returncode == -9, killed.stderr
    backup.verify()
    kept = Verification(ReadOnlyDisk(backup.folder)).manifest
    assert kept == first or kept.end == len(log_of(data))
    backup.create()
    backup.verify()
    assert log_of(backup.folder) == log_of(data)
