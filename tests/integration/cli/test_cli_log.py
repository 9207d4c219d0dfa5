"""``txmq log`` on directories of real brokers, intact and damaged on purpose."""

import asyncio
import base64
import json
import os
import random
import shutil
import stat
import zlib

import pytest
import typer

from tests.soak import count
from txmq import LocalTransactionState, Message, Producer, TransactionProducer
from txmq.cli.serve import give_up
from txmq.errors import CorruptRecord
from txmq.protocol.span import HEAD_BYTES
from txmq.runtime.disk import LocalDisk, ReadOnlyDisk
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import settings_for_test

SYNC = BrokerSettings(store=StoreSettings(flush="sync"))
EVIL = "evil\x1b[31m\x9b2J\u202e"
BINARY = bytes(range(256)) * 3
LARGE = b"compressed " * 2000


class Bank:
    """Commits, rolls back, or leaves open, as the message says."""

    async def execute_local_transaction(self, message, arg):
        return LocalTransactionState[message.body.decode().split()[0]]

    async def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN


async def write(data):
    """Let a broker write a log; returns the sent messages by id."""
    messages = [
        Message(topic="Orders", body=b"order %d" % number, tags="pay", keys=(f"k{number}",))
        for number in range(20)
    ] + [
        Message(topic="Orders", body=BINARY, keys=("binary",)),
        Message(topic="Orders", body=LARGE, keys=("large", EVIL), properties={"colour": "red"}),
        Message(topic="Orders", body="grün ".encode(), keys=("text",)),
        Message(topic="Orders", body=b" ", keys=("blank",)),
        Message(topic="Later", body=b"much later", deliver_after=3600),
    ]
    sent = {}
    async with Broker(settings_for_test(str(data), SYNC)) as broker:
        async with Producer("p", names=broker.names) as producer:
            for message in messages:
                sent[(await producer.send(message)).id] = message
        async with TransactionProducer("bank", broker.names, Bank()) as producer:
            for state in ("COMMIT", "ROLLBACK", "UNKNOWN"):
                message = Message(topic="Transfers", body=f"{state} 1".encode(), keys=(state,))
                outcome = await producer.send_in_transaction(message)
                sent[outcome.message_id] = message
    return sent


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    data = tmp_path_factory.mktemp("written") / "data"
    return data, asyncio.run(write(data))


@pytest.fixture
def data(written, tmp_path):
    shutil.copytree(written[0], tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def sent(written):
    return written[1]


@pytest.fixture
def log(txmq, data):
    """Run ``txmq log COMMAND --data DIR ...``; returns its result."""

    def run(command, *options, code=0, data=data, **more):
        done = txmq("log", command, "--data", data, *options, **more)
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture
def dump(log):
    """What ``txmq log dump`` prints as JSON."""
    return lambda *options, **more: lines(log("dump", "--json", *options, **more))


def files(data):
    return sorted(path for path in data.rglob("*") if path.is_file() and path.name != "lock")


def contents(data):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files(data)}


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def log_file(data):
    (path,) = (data / "log").iterdir()
    return path


def body_of(line):
    if "body_base64" in line:
        return base64.b64decode(line["body_base64"])
    return line["body"].encode()


# --- verify ---


def test_verify_of_an_intact_directory_reports_it_and_changes_nothing(log, data):
    before = contents(data)

    assert "1 open transaction; whole" in log("verify").stdout
    assert contents(data) == before


def test_verify_works_on_a_read_only_directory(log, data):
    for path in [data, *data.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    (data / "lock").chmod(0)

    log("verify")


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_log_commands_refuse_a_directory_in_use(log, data, command):
    lock = LocalDisk(data).lock()
    try:
        refused = log(command, code=2).stderr
    finally:
        lock.release()

    assert f"{data} is in use by process {os.getpid()}; stop it first" in refused


def test_readers_share_a_directory_and_keep_writers_out(data):
    first, second = ReadOnlyDisk(data).lock(), ReadOnlyDisk(data).lock()
    with pytest.raises(BlockingIOError):
        LocalDisk(data).lock()
    first.release()
    second.release()
    LocalDisk(data).lock().release()


def test_a_read_only_disk_changes_nothing(data):
    disk, before = ReadOnlyDisk(data), contents(data)
    (path,) = disk.names("log")
    file = disk.open(f"log/{path}", create=True)
    attempts = [
        lambda: disk.replace("identity", b"?"),
        lambda: disk.remove("identity"),
        lambda: disk.open("log/new", create=True),
        lambda: file.write(0, b"?"),
        lambda: file.truncate(0),
    ]

    for attempt in attempts:
        with pytest.raises(OSError):
            attempt()

    file.close()
    assert contents(data) == before


@pytest.mark.parametrize("command", ["verify", "dump"])
@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_path_that_is_not_a_broker_directory_is_refused(txmq, tmp_path, name, command):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")

    done = txmq("log", command, "--data", tmp_path / name)

    assert done.exit_code == 2
    assert str(tmp_path / name) in done.stderr


def test_verify_reports_damage_as_text_and_as_json(log, data):
    flip(log_file(data), 300)

    done = log("verify", code=1).stdout
    damage, *_, summary = lines(log("verify", "--json", code=1))

    assert done.startswith(f"damage span-damaged: log/{log_file(data).name}, byte ")
    assert "Messages: Orders/" in done
    assert (damage["kind"], damage["severity"]) == ("span-damaged", "damage")
    assert damage["position"] <= 300 < damage["position"] + damage["size"]
    assert (summary["kind"], summary["damages"]) == ("summary", 1)


def test_verify_names_the_file_of_any_flipped_bit(txmq, data):
    chance = random.Random(26)
    for path in files(data):
        whole = path.read_bytes()
        for _ in range(count(3, 8)):
            place = chance.randrange(len(whole))
            flip(path, place, chance.randrange(8))

            done = txmq("log", "verify", "--data", data, "--json")

            assert done.exit_code == 1, (path.name, place)
            assert done.exception is None or isinstance(done.exception, SystemExit)
            assert done.stderr == ""
            named = {line.get("file") for line in lines(done)}
            assert str(path.relative_to(data)) in named, (path.name, place)
            path.write_bytes(whole)


def test_a_file_truncated_at_any_byte_never_causes_a_traceback(txmq, data):
    chance = random.Random(27)
    for path in files(data):
        whole = path.read_bytes()
        anywhere = [chance.randrange(len(whole)) for _ in range(count(1, 6))]
        for place in {0, 1, len(whole) - 1, *anywhere}:
            path.write_bytes(whole[:place])

            for command in ("verify", "dump"):
                done = txmq("log", command, "--data", data)

                assert done.exit_code in (0, 1), (path.name, place, done.output)
                assert done.exception is None or isinstance(done.exception, SystemExit)
        path.write_bytes(whole)


# --- dump ---


def test_a_dump_contains_everything_that_was_sent(dump, sent):
    records = dump("--body")

    held = {line["id"]: line for line in records if line["kind"] in ("message", "half", "delayed")}
    assert set(held) == set(sent)
    for unique, message in sent.items():
        line = held[unique]
        assert body_of(line) == message.body
        assert (line["topic"], line["keys"]) == (message.topic, list(message.keys))
        assert line["tag"] == message.tags
    decisions = [line["decision"] for line in records if line["kind"] == "decision"]
    assert decisions == ["COMMITTED", "ROLLED_BACK"]
    assert [line["position"] for line in records] == sorted(line["position"] for line in records)


def test_a_dump_escapes_terminal_control_characters(log, dump):
    for more in ([], ["--json"]):
        shown = log("dump", "--body", *more).stdout
        assert all(line.isprintable() for line in shown.splitlines())
    (record,) = dump("--key", EVIL)
    assert record["keys"] == ["large", EVIL]


def test_dump_prints_one_line_per_record(log):
    (line,) = log("dump", "--key", "k7", "--body").stdout.splitlines()
    for part in ("message", "Orders/", "tag=pay", "keys=k7", "body=7B", "order 7"):
        assert part in line


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("--topic Orders", 24),
        ("--topic Later", 1),
        ("--topic Transfers", 5),
        ("--topic Orders --queue 0", 6),
        ("--key k3", 1),
        ("--kind half --kind decision", 5),
        ("--limit 4", 4),
        ("--since 1h", 30),
        ("--until 1h", 0),
        ("--since 2001-01-01 --until latest", 30),
        ("--to 1", 0),
    ],
)
def test_dump_options_filter_records(log, options, count):
    assert len(log("dump", *options.split()).stdout.splitlines()) == count


def test_dump_of_a_transaction_shows_its_half_message_and_decision(dump, sent):
    unique = next(unique for unique, message in sent.items() if message.keys == ("ROLLBACK",))

    half, decision = dump("--transaction", unique)

    assert (half["kind"], decision["kind"]) == ("half", "decision")
    assert decision["decision"] == "ROLLED_BACK"
    assert decision["half_position"] == half["position"]


def test_dump_reads_only_between_from_and_to(dump):
    whole = dump()
    first, last = whole[3]["position"], whole[8]["position"]

    assert dump("--from", first, "--to", last) == whole[3:8]


def test_dump_continues_after_damage_and_reports_what_it_skipped(log, dump, data):
    whole = dump()
    flip(log_file(data), whole[5]["position"] + 20)

    done = log("dump", "--json", code=1)

    assert lines(done) == whole[:5] + whole[6:]
    assert f"to {whole[5]['position'] + whole[5]['size']}: damaged" in done.stderr


@pytest.mark.parametrize("options", ["--since soon", "--kind letters", "--limit 0"])
def test_invalid_dump_options_are_refused(log, options):
    log("dump", *options.split(), code=2)


# --- export ---


def test_an_export_holds_everything_that_consumers_could_read(log, sent, tmp_path):
    target = tmp_path / "messages.jsonl"

    done = log("export", "--file", target)

    assert done.stdout == f"25 records written to {target}\n"
    exported = {line["id"]: line for line in map(json.loads, target.read_text().splitlines())}
    readable = {
        unique: message
        for unique, message in sent.items()
        if message.topic == "Orders" or message.keys == ("COMMIT",)
    }
    assert set(exported) == set(readable)
    for unique, message in readable.items():
        assert body_of(exported[unique]) == message.body
        assert exported[unique]["properties"].items() >= dict(message.properties).items()
        assert exported[unique]["keys"] == list(message.keys)
    (committed,) = [line for line in exported.values() if line["topic"] == "Transfers"]
    assert (committed["kind"], committed["offset"]) == ("message", 0)


def test_messages_can_be_sent_again_from_an_export(log, dump, sent, tmp_path):
    target, again = tmp_path / "messages.jsonl", tmp_path / "again"
    log("export", "--file", target, "--topic", "Orders")

    async def resend():
        async with (
            Broker(settings_for_test(str(again), SYNC)) as broker,
            Producer("p", names=broker.names) as producer,
        ):
            for line in map(json.loads, target.read_text().splitlines()):
                named = {"tags": line["tag"], "keys": tuple(line["keys"])}
                await producer.send(Message(topic=line["topic"], body=body_of(line), **named))

    asyncio.run(resend())
    back = dump("--body", data=again)
    assert sorted((body_of(line), line["keys"]) for line in back) == sorted(
        (message.body, list(message.keys)) for message in sent.values() if message.topic == "Orders"
    )


def test_a_raw_export_holds_compressed_bodies_as_they_are_stored(log, tmp_path):
    target = tmp_path / "raw.jsonl"
    log("export", "--file", target, "--key", "large", "--raw")

    (line,) = map(json.loads, target.read_text().splitlines())
    assert line["stored"]
    assert line["compressed"] == "zlib"
    assert zlib.decompress(body_of(line)) == LARGE


def test_an_export_writes_each_body_to_its_own_file(log, sent, tmp_path):
    target = tmp_path / "bodies"

    done = log("export", "--bodies", target, "--json")

    assert json.loads(done.stdout) == {"to": str(target), "records": 25, "passed_over": 0}
    bodies = sorted(path.read_bytes() for path in (target / "Orders").iterdir())
    assert bodies == sorted(m.body for m in sent.values() if m.topic == "Orders")
    assert [path.name for path in (target / "Transfers").iterdir()][0].endswith("-0")


def test_an_export_names_a_committed_message_whose_half_message_is_damaged(
    log, dump, data, tmp_path
):
    (half,) = dump("--kind", "half", "--key", "COMMIT")
    flip(log_file(data), half["position"] + 5)

    done = log("export", "--file", tmp_path / "x", "--topic", "Transfers", code=1)

    assert "passed over" in done.stderr


def test_an_export_overwrites_nothing(log, tmp_path):
    (tmp_path / "there").write_text("mine")

    for option in ("--file", "--bodies"):
        assert "exists" in log("export", option, tmp_path / "there", code=2).stderr
    assert (tmp_path / "there").read_text() == "mine"
    log("export", code=2)


# --- repair ---


def damage(data, place):
    """Damage a record so that a start notices it: without an index it reads the whole log."""
    for path in (data / "index").iterdir():
        path.unlink()
    flip(log_file(data), place)


def test_a_repair_asks_and_shows_what_will_be_lost(log, dump, data, monkeypatch):
    record = dump()[10]
    damage(data, record["position"] + 5)
    before = contents(data)

    assert "add --yes" in log("verify", "--repair", code=2).stderr
    for module in ("common", "log"):
        monkeypatch.setattr(f"txmq.cli.{module}.has_terminal", lambda: True)
    asked = log("verify", "--repair", code=1, input="n\n").stderr
    assert f"cut the log at position {cut_position(record)}; it keeps everything before" in asked
    assert "Orders/" in asked
    assert contents(data) == before


def started(data):
    """Start a broker on a directory; returns the number of messages of its topic."""

    async def run():
        async with Broker(settings_for_test(str(data), SYNC)) as broker:
            queues = broker.store.queues_of("Orders")
            return sum(len(queue.read(0, 100)) for queue in queues)

    return asyncio.run(run())


@pytest.mark.parametrize("byte", [100, -10], ids=["in the record", "in its span's head"])
def test_after_a_repair_the_broker_serves_everything_before_the_cut(log, dump, data, byte):
    dumped = dump("--body")
    damage(data, dumped[10]["position"] + byte)
    size = log_file(data).stat().st_size

    told = log("verify", "--repair", "--yes").stderr

    assert f"loses {size - cut_position(dumped[10])} bytes" in told
    (side,) = (data / "cut").iterdir()
    assert dump("--body", data=side, code=1) == dumped[11:]
    assert started(data) == 10
    left = dump("--body")
    assert left[:10] == dumped[:10]
    assert left[10]["kind"] == "loss"
    log("verify")


def cut_position(line):
    return line["position"] - HEAD_BYTES


def test_a_start_refused_for_a_damaged_log_names_the_repair_command(data, capsys):
    damage(data, 300)

    with pytest.raises(CorruptRecord, match="txmq log verify --repair --data DIR") as refused:
        started(data)

    with pytest.raises(typer.Exit):
        give_up(refused.value, started=False, addresses={}, data=str(data))
    assert f"txmq log verify --repair --data {data}\n" in capsys.readouterr().err
