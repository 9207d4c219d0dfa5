"""The syncs of a disk: by the kernel if it can, otherwise by a thread."""

import asyncio
import gc
import os
import platform
import sys
import threading
from pathlib import Path

import pytest

from tests.running import run_by
from tests.waiting import run, until
from txmq.runtime import kernel_sync
from txmq.runtime.disk import LocalDisk

NO_SUCH_CALL = 99_999


class _Refused:
    def sync(self):
        raise OSError("no")


def _wakers():
    gc.collect()
    fds = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [os.readlink(link) for link in fds].count("anon_inode:[eventfd]")


def _threads():
    return {thread for thread in threading.enumerate() if thread.name == "txmq-sync"}


@run_by(run)
async def test_a_failed_sync_raises_and_the_next_one_works(tmp_path):
    disk = LocalDisk(tmp_path)
    with pytest.raises(OSError, match="no"):
        await disk.sync_soon([_Refused()])
    await disk.sync_soon([disk.open("file", create=True)])


@run_by(run)
async def test_a_sync_does_not_wait_for_other_work_that_hangs(tmp_path):
    disk = LocalDisk(tmp_path)
    names, is_over = [], threading.Event()

    def hang():
        names.append(threading.current_thread().name)
        assert is_over.wait(30)

    work = disk.run_soon(hang)
    with pytest.raises(OSError, match="no"):
        await disk.sync_soon([_Refused()])
    is_over.set()
    await work
    await disk.run_soon(lambda: names.append(threading.current_thread().name))
    with pytest.raises(OSError, match="no"):
        await disk.run_soon(_Refused().sync)
    assert names == ["txmq-disk"] * 2


def test_kernel_syncs_finish_in_order_and_report_failures(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux has such syncs")

    async def scenario():
        before = _threads()
        disk, ended = LocalDisk(tmp_path), []
        files = [disk.open(name, create=True) for name in "abc"]
        for file in files:
            file.write(0, b"x")
        closed = disk.open("d", create=True)
        syncs = [disk.sync_soon([file]) for file in files]
        syncs.append(disk.sync_soon(files))
        closed.close()
        syncs.append(disk.sync_soon([files[0], closed]))
        syncs.append(disk.sync_soon([files[1]]))
        for number, sync in enumerate(syncs):
            sync.add_done_callback(lambda _, number=number: ended.append(number))
        results = await asyncio.gather(*syncs, return_exceptions=True)
        await asyncio.sleep(0)  # The callbacks of the last one.
        assert ended == [0, 1, 2, 3, 4, 5]
        assert [type(result) for result in results] == [type(None)] * 4 + [ValueError, type(None)]
        assert not _threads() - before

    run(scenario)


@pytest.mark.parametrize("refused", ["setup", "submit"])
def test_a_thread_does_the_syncs_when_the_kernel_refuses(tmp_path, monkeypatch, refused):
    machine = platform.machine()
    numbers = kernel_sync._NUMBERS.get(machine)
    if numbers is None:
        pytest.skip("no kernel syncs are known for this processor")
    without = numbers._replace(**{refused: NO_SUCH_CALL})
    monkeypatch.setattr(kernel_sync, "_NUMBERS", {machine: without})

    async def scenario():
        before = _threads()
        disk = LocalDisk(tmp_path)
        file = disk.open("file", create=True)
        await disk.sync_soon([file])
        await disk.sync_soon([file])
        assert len(_threads() - before) == 1

    run(scenario)


def test_a_disk_used_by_two_loops_syncs_for_both_and_frees_its_descriptors(tmp_path):
    before = _wakers()

    def use():
        disk = LocalDisk(tmp_path)
        file = disk.open("file", create=True)

        async def scenario():
            await disk.sync_soon([file])

        run(scenario)
        run(scenario)
        file.close()

    use()
    assert _wakers() == before


@run_by(run)
async def test_the_sync_thread_ends_with_its_disk(tmp_path):
    before = _threads()
    disk = LocalDisk(tmp_path)
    await disk.sync_soon([])
    (thread,) = _threads() - before
    del disk
    await until(lambda: not thread.is_alive())
