"""The kernel's syncs on a failing disk: the error arrives once, and then nothing is trusted."""

import asyncio
import errno
import os
import subprocess
import sys
import threading

import pytest

from tests.faults.failing_disk import BYTES_MAX, FailingDisk
from tests.running import run_by
from tests.servers.serving import BrokerProcess
from tests.waiting import run
from tools.packages import Unprepared
from txmq import Message, Producer, ProducerSettings
from txmq.errors import TxmqError
from txmq.runtime import kernel_sync
from txmq.runtime.disk import LocalDisk
from txmq.runtime.sync_choice import SyncChoice

BODY = os.urandom(60_000)
NEEDS = "the tests of disks that fail need a file that is mounted"
FAILURES = {errno.EIO, errno.ENOSPC}


@pytest.fixture
def failing(tmp_path):
    try:
        with FailingDisk(tmp_path) as disk:
            yield disk.folder
    except OSError as error:
        raise Unprepared(f"{NEEDS}: {error}") from error
    except subprocess.CalledProcessError as error:
        raise Unprepared(f"{NEEDS}: {error.cmd[0]} is not permitted") from error


@run_by(run)
async def test_a_kernel_sync_fails_when_the_disk_does_not_keep_the_data(failing):
    before = set(threading.enumerate())
    disk = LocalDisk(failing)
    # On a busy machine the thread may be faster; with this clock neither is.
    disk._choice = SyncChoice(lambda: 0.0)
    file = disk.open("file", create=True)

    async def fill():
        for position in range(0, 2 * BYTES_MAX, len(BODY)):
            file.write(position, BODY)
            await disk.sync_soon([file])

    with pytest.raises(OSError) as failure:
        await fill()
    assert failure.value.errno in FAILURES
    # A file reports it once, so the broker must not sync again.
    await disk.sync_soon([file])
    assert set(threading.enumerate()) == before
    file.close()


@pytest.mark.fault("S6")
def test_a_broker_stops_and_acknowledges_nothing_more_when_its_disk_fails(failing, tmp_path):
    broker = BrokerProcess(failing / "broker", flush="sync")
    broker.log = tmp_path / "broker.log"
    broker.start()
    try:
        broker.create_topic("T", 1)
        acknowledged = []

        async def send():
            settings = ProducerSettings(timeout=2, retries=0)
            async with Producer("p", broker.names, settings) as producer:
                while True:
                    acknowledged.append(await producer.send(Message(topic="T", body=BODY)))

        with pytest.raises(TxmqError):
            asyncio.run(asyncio.wait_for(send(), 20))
        assert broker.process.wait(20) == 1
    finally:
        broker.close()
    assert "the disk could not make the log durable" in broker.tail()
    assert 0 < len(acknowledged) * len(BODY) < BYTES_MAX


class _Completions:
    """What the kernel reports about ended syncs: these results, one after the other."""

    size = kernel_sync._EVENT.size

    def __init__(self, *results):
        self._results = list(results)

    def unpack(self, event):
        return 0, 0, self._results.pop(0), 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ECANCELED])
def test_a_failed_kernel_result_fails_only_its_own_sync(tmp_path, monkeypatch, number):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux has such syncs")
    monkeypatch.setattr(kernel_sync, "_EVENT", _Completions(0, -number, 0))

    async def scenario():
        disk = LocalDisk(tmp_path)
        files = [disk.open(name, create=True) for name in "abc"]
        # The second fails, so the third is not synced in its place: the next job is.
        first, second = disk.sync_soon(files), disk.sync_soon([files[0]])
        with pytest.raises(OSError) as failure:
            await first
        assert failure.value.errno == number
        await second

    run(scenario)
