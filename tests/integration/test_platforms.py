"""What other systems lack: macOS has no fdatasync, Windows no fcntl, resource or uvloop."""

import asyncio
import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.integration.loopback_stage import on_sockets
from tests.running import in_loop, run_by
from txmq.cli.common import stop_at_signals
from txmq.runtime import file_room
from txmq.runtime.disk import LocalDisk
from txmq_broker.config import BrokerSettings
from txmq_broker.processes import file_limit

CHECKOUT = Path(__file__).resolve().parents[2]
FULL_SYNC = 51
"""F_FULLFSYNC in macOS's fcntl.h."""


@pytest.fixture
def mac(monkeypatch):
    """Fake the sync functions of a Mac; return the inodes that were fully synced, in order."""
    synced = []
    real = fcntl.fcntl

    def full_sync(descriptor, command, *more):
        if command != FULL_SYNC:
            return real(descriptor, command, *more)
        synced.append(os.fstat(descriptor).st_ino)
        return 0

    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    return synced


# macOS


def test_a_broker_on_a_mac_stores_messages_and_finds_them_again(mac, tmp_path):
    async def send(stage):
        client = await stage.client()
        await client.topic("T")
        await client.send("T", b"kept")
        (log,) = (tmp_path / "log").iterdir()
        assert inode(log) in mac

    async def pull(stage):
        client = await stage.client()
        assert (await client.pull("T")).bodies == [b"kept"]

    durable = BrokerSettings()
    on_sockets(send, tmp_path, durable)
    on_sockets(pull, tmp_path, durable)


def test_a_sync_on_a_mac_flushes_the_cache_of_the_drive(mac, tmp_path):
    disk = LocalDisk(tmp_path)
    file = disk.open("log/a", create=True)
    file.write(0, b"x")
    mac.clear()
    file.sync()
    assert mac == [inode(tmp_path / "log/a")]
    disk.replace("config/t.json", b"{}")
    assert mac[-2:] == [inode(tmp_path / "config/t.json"), inode(tmp_path / "config")]
    file.close()


def inode(path):
    return path.stat().st_ino


@pytest.mark.parametrize("refusal", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_a_mac_file_system_without_full_sync_falls_back_to_fsync(
    mac, monkeypatch, tmp_path, refusal
):
    synced = []

    def refuse(descriptor, command):
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    file = LocalDisk(tmp_path).open("a", create=True)
    synced.clear()
    file.sync()

    assert len(synced) == 1
    file.close()


def test_a_failed_full_sync_on_a_mac_raises_instead_of_falling_back(mac, monkeypatch, tmp_path):
    file = LocalDisk(tmp_path).open("a", create=True)

    def fail(descriptor, command):
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(fcntl, "fcntl", fail)
    with pytest.raises(OSError, match="I/O error"):
        file.sync()
    file.close()


def test_a_system_without_fdatasync_and_full_sync_uses_fsync(monkeypatch, tmp_path):
    synced = []
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    file = LocalDisk(tmp_path).open("a", create=True)
    monkeypatch.setattr(os, "fsync", synced.append)
    file.sync()

    assert len(synced) == 1
    file.close()


def test_a_file_limit_that_cannot_be_raised_logs_a_warning(monkeypatch, caplog):
    """A Mac reports an unlimited maximum, and then refuses values above the limit of its kernel."""

    def refuse(what, limits):
        raise ValueError("current limit exceeds maximum limit")

    endless = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, endless))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    file_limit.allow_files(10_000)

    assert "only 256 files may be open; connections_max is 10000" in caplog.text


# Windows

WITHOUT = """
    import builtins, importlib, pkgutil

    real = builtins.__import__
    missing = {"fcntl", "grp", "pwd", "resource", "termios", "uvloop"}

    def imported(name, names=None, locals=None, fromlist=(), level=0):
        ours = (names or {}).get("__name__", "").partition(".")[0] == "txmq"
        if ours and name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, names, locals, fromlist, level)

    builtins.__import__ = imported
    import txmq

    for module in pkgutil.walk_packages(txmq.__path__, "txmq."):
        # Reconciliation runs where Spark does.
        if not module.name.startswith("txmq.reconcile") and "__main__" not in module.name:
            importlib.import_module(module.name)
    print(len(txmq.__all__) > 0, txmq.runtime.background.fast_loop())
"""


def test_the_client_and_its_commands_import_without_unix_modules():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "True None\n"), done.stderr


@run_by(in_loop)
async def test_a_loop_without_signal_handlers_leaves_ctrl_c_to_python(monkeypatch):
    loop = asyncio.get_running_loop()

    def refuse(*given):
        raise NotImplementedError

    monkeypatch.setattr(loop, "add_signal_handler", refuse)
    monkeypatch.setattr(loop, "remove_signal_handler", refuse)
    with stop_at_signals(asyncio.Event()):
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_reserved_room_does_not_count_as_file_size_and_is_freed_on_close(tmp_path):
    disk = LocalDisk(tmp_path, adds_room=True)
    file = disk.open("grows", create=True)
    size = 16 * 1024 * 1024
    file.write(0, bytes(size))
    file.write(size, b"end")  # The file is long enough for room behind it now.

    grown = (tmp_path / "grows").stat()
    reader = disk.open("grows")
    assert grown.st_size == size + 3
    assert reader.read(size, 100) == b"end"
    reader.close()
    file.close()

    closed = (tmp_path / "grows").stat()
    assert closed.st_size == size + 3
    # Not every file system can do it; where it can, the close returns it.
    assert closed.st_blocks * 512 < size + 128 * 1024
    assert grown.st_blocks >= closed.st_blocks


def test_a_file_grows_as_usual_when_no_room_can_be_reserved(tmp_path, monkeypatch):
    attempts = []

    def refuse(*given):
        attempts.append(given)
        return -1

    monkeypatch.setattr(file_room, "_allocator", lambda: refuse)
    file = LocalDisk(tmp_path, adds_room=True).open("grows", create=True)
    size = 16 * 1024 * 1024
    file.write(size, b"one")
    file.write(size + 3, b"two")
    file.close()

    assert (tmp_path / "grows").read_bytes()[size:] == b"onetwo"
    assert len(attempts) == 1
