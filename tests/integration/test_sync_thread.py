"""The thread that syncs the files of a disk."""

import threading

import pytest

from tests.waiting import run, until
from txmq.runtime.disk import LocalDisk


class _Refused:
    def sync(self):
        raise OSError("no")


def _threads():
    return {thread for thread in threading.enumerate() if thread.name == "txmq-sync"}


def test_who_awaits_a_sync_gets_its_failure_and_the_next_one_works(tmp_path):
    async def scenario():
        disk = LocalDisk(tmp_path)
        with pytest.raises(OSError, match="no"):
            await disk.sync_soon([_Refused()])
        await disk.sync_soon([disk.open("file", create=True)])

    run(scenario)


def test_other_work_runs_in_the_same_thread(tmp_path):
    async def scenario():
        disk = LocalDisk(tmp_path)
        names = []
        await disk.run_soon(lambda: names.append(threading.current_thread().name))
        with pytest.raises(OSError, match="no"):
            await disk.run_soon(_Refused().sync)
        assert names == ["txmq-sync"]

    run(scenario)


def test_the_thread_ends_with_its_disk(tmp_path):
    async def scenario():
        before = _threads()
        disk = LocalDisk(tmp_path)
        await disk.sync_soon([])
        (thread,) = _threads() - before
        del disk
        await until(lambda: not thread.is_alive())

    run(scenario)
