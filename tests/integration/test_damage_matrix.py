"""Every file of a broker's directory is damaged in every way a disk or an operator damages files.

The directory comes from a real ``txmq serve``, stopped cleanly or killed. Whatever the damage, the
broker either refuses to start, with one sentence that names the trouble, or it starts and reports
every loss, serves only bytes that were sent, and gives no offset a second time.
"""

import asyncio
import hashlib
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.serving import BrokerProcess, ask, environment
from txmq import Message, Producer
from txmq.errors import CorruptRecord, StoreError
from txmq.protocol import record as records
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.core.fetch import FetchOutcome, fetch
from txmq_broker.testing import settings_for_test

IS_SOAK = bool(os.environ.get("TXMQ_SOAK"))
FLIPS = 50 if IS_SOAK else 4
PAGE = 4096
TOPICS = {"Orders": 2, "Payments": 1}
MESSAGES = 40
GROUP = "billing"
UPDATE_CONSUMER_OFFSET = 15
NOT_DATA = {"lock"}
"""The process's own number, which nobody reads."""


class Kept(NamedTuple):
    """A directory that a broker left, and what it had acknowledged."""

    folder: Path
    sent: dict[tuple[str, int, int], bytes]
    """Bodies by topic, queue and offset."""


async def fill(process, seed):
    """Send messages of all sorts; return what was acknowledged, by place."""
    sent = {}
    async with Producer("damage", process.names) as producer:
        for number in range(MESSAGES):
            topic = list(TOPICS)[number % 2]
            body = hashlib.sha256(b"%d %d" % (seed, number)).digest() * (1 + number % 9)
            done = await producer.send(Message(topic=topic, body=body, keys=(f"k{number}",)))
            sent[topic, done.queue.number, done.offset] = body
    return sent


def left_behind(folder, seed, *, is_clean):
    process = BrokerProcess(folder, flush="sync")
    process.start()
    try:
        for topic, queues in TOPICS.items():
            process.create_topic(topic, queues)
        sent = asyncio.run(fill(process, seed))
        for (topic, number, offset), _ in sorted(sent.items()):
            commit(process, topic, number, offset + 1)
        if is_clean:
            process.stop()
        else:
            wait_for_offsets(process)
            process.kill()
    finally:
        process.close()
    return Kept(process.folder / "data", sent)


def commit(process, topic, number, offset):
    place = {"consumerGroup": GROUP, "topic": topic, "queueId": number, "commitOffset": offset}
    assert ask(process.address, UPDATE_CONSUMER_OFFSET, **place)[0] == 0


def wait_for_offsets(process):
    """Wait until the broker has saved what the group committed."""
    path = process.folder / "data" / "config" / "offsets.json"
    deadline = time.monotonic() + 20
    while not path.exists() or GROUP not in path.read_text():
        assert time.monotonic() < deadline, process.tail()
        threading.Event().wait(0.05)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    return {
        "stopped": left_behind(folder / "stopped", 1, is_clean=True),
        "killed": left_behind(folder / "killed", 2, is_clean=False),
        "other": left_behind(folder / "other", 3, is_clean=True),
    }


def files_of(folder):
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path.relative_to(folder) for path in paths if path.name not in NOT_DATA]


def damages(data, other, chance):
    """Every damage to a file's bytes, by name; ``None`` where it is deleted."""
    size = len(data)
    for part in range(5):
        length = size - 1 if part == 4 else size * part // 4
        yield f"cut at {length}", data[: max(length, 0)]
    for _ in range(FLIPS if size else 0):
        at, bit = chance.randrange(size), chance.randrange(8)
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        yield f"bit {bit} of byte {at} turned over", bytes(flipped)
    page = chance.randrange(size // PAGE + 1) * PAGE
    yield (
        f"zeros from {page} on",
        data[:page] + bytes(len(data[page : page + PAGE])) + data[page + PAGE :],
    )
    yield "deleted", None
    yield "garbage appended", data + chance.randbytes(100)
    yield "its own bytes appended", data + data
    if other is not None:
        yield "swapped with another broker's", other


class Lines(logging.Handler):
    """What the broker logs; a traceback is never for an operator."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        assert record.exc_info is None, f"a traceback was logged: {record.getMessage()}"
        self.lines.append(record.getMessage())


async def examine(folder, sent):
    """Start a broker there; return its refusal, or an empty text if it serves."""
    settings = settings_for_test(str(folder), BrokerSettings(store=StoreSettings(flush="sync")))
    try:
        async with Broker(settings) as broker:
            check_served(broker.store, sent)
    except StoreError as error:
        return str(error)
    return ""


def check_served(store, sent):
    for topic, queues in TOPICS.items():
        for number in range(queues):
            expected = {
                place[2]: body for place, body in sent.items() if place[:2] == (topic, number)
            }
            queue = store.queue(topic, number)
            assert queue.next_offset > max(expected), "an offset would be given again"
            served, reported = {}, set()
            for offset in expected:
                try:
                    fetched = fetch(store, queue, offset, 1)
                except CorruptRecord:
                    reported.add(offset)
                    continue
                if fetched.outcome is FetchOutcome.DAMAGED:
                    reported.add(offset)
                    continue
                assert fetched.outcome is FetchOutcome.FOUND, (
                    f"{topic}/{number} at {offset}: {fetched}"
                )
                served[offset] = records.unpack(fetched.records[0])[0].body
            assert served == {
                offset: body for offset, body in expected.items() if offset not in reported
            }


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_no_damaged_file_loses_data_silently(directories, ending, tmp_path):
    kept, other = directories[ending], directories["other"]
    chance = random.Random(ending)
    lines = Lines()
    logger = logging.getLogger("txmq_broker")
    logger.addHandler(lines)
    refused = tried = 0
    try:
        for path in files_of(kept.folder):
            swapped = other.folder / path
            theirs = swapped.read_bytes() if swapped.exists() else None
            for name, data in damages((kept.folder / path).read_bytes(), theirs, chance):
                case = tmp_path / "case"
                shutil.copytree(kept.folder, case)
                if data is None:
                    (case / path).unlink()
                else:
                    (case / path).write_bytes(data)
                lines.lines.clear()
                try:
                    refusal = asyncio.run(examine(case, kept.sent))
                except BaseException as error:
                    error.add_note(f"{path}: {name}; logged: {lines.lines}")
                    raise
                assert "\n" not in refusal
                tried += 1
                refused += bool(refusal)
                if "swapped" in name:
                    messages = " ".join([refusal, *lines.lines])
                    assert path.as_posix() in messages, f"{path} was swapped: {messages!r}"
                shutil.rmtree(case)
    finally:
        logger.removeHandler(lines)
    assert tried > 100
    assert 0 < refused < tried


def refused_start(folder):
    """What ``txmq serve`` prints when it does not start."""
    listen = ["--listen", "127.0.0.1:0", "--names-listen", "127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-m", "txmq", "serve", "--data", str(folder), *listen],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(),
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["log", "config", "index"])
def test_a_refused_start_is_one_line_and_exit_code_1(directories, name, tmp_path):
    """The program itself: no traceback, the file's name, what to do."""
    folder = tmp_path / "data"
    shutil.copytree(directories["stopped"].folder, folder)
    path = next(path for path in files_of(folder) if path.parts[0] == name)
    theirs = directories["other"].folder / path
    (folder / path).write_bytes(theirs.read_bytes())

    assert path.as_posix() in refused_start(folder)


@pytest.mark.parametrize("left", [0.0, 0.6])
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_group_receives_new_messages_after_an_accepted_loss(directories, ending, left, tmp_path):
    """Its committed offsets lie behind the cut; new messages must not fall below them."""
    kept = directories[ending]
    process = BrokerProcess(tmp_path, flush="sync")
    shutil.copytree(kept.folder, tmp_path / "data")
    (path,) = (tmp_path / "data" / "log").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left)])

    assert "txmq serve --accept-loss REASON" in refused_start(tmp_path / "data")
    usual = process.command()
    process.command = lambda: [*usual, "--accept-loss", "a test cut it"]
    process.start()
    try:
        sent = asyncio.run(fill(process, 4))
        assert not set(sent) & set(kept.sent), "an offset was given a second time"
        for topic, queues in TOPICS.items():
            for number in range(queues):
                first = min(place[2] for place in sent if place[:2] == (topic, number))
                assert process.committed(GROUP, topic, number) <= first
        process.stop()
        process.command = lambda: usual
        process.start()
        process.stop()
    finally:
        process.close()
