"""A small cluster on loopback that the commands under test ask over real connections."""

import asyncio
import threading

import pytest
from typer.testing import CliRunner

from tests.unit.client.fake_cluster import FakeCluster
from txmq.cli.root import app
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork


@pytest.fixture(autouse=True)
def no_settings_of_the_developer(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("TXMQ_"):
            monkeypatch.delenv(name)


@pytest.fixture
def cluster():
    """Two brokers and a name server in a separate thread: commands block the main thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    fake = FakeCluster(SystemNetwork(), SystemClock(), brokers=2)

    def do(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    do(fake.__aenter__())
    yield fake
    do(fake.__aexit__())
    do(asyncio.sleep(0))  # One turn, in which transports let go of their sockets.
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def txmq(monkeypatch):
    """Run a command as ``txmq("topic", "list")``; the result has exit_code, stdout and stderr."""

    def run(*arguments, **more):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], **more)

    return run


@pytest.fixture
def asking(txmq, cluster):
    """The same for commands that ask the cluster."""

    def run(*arguments, **more):
        return txmq(*arguments, "--names", cluster.names, **more)

    return run


@pytest.fixture
def terminal(monkeypatch):
    """Make commands treat the input of a test as input from a terminal."""
    monkeypatch.setattr("txmq.cli.common.has_terminal", lambda: True)
