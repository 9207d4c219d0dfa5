"""Ctrl-C in a consuming program: the first drains it quietly, the second ends it at once."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager

import pytest

from tests.servers.serving import environment
from txmq import Message, blocking
from txmq_broker.testing import BrokerThread

BEFORE = """
    import asyncio, logging, signal, sys, threading, time
    from txmq import Client, ConsumerSettings, PushConsumer, StartFrom, blocking
    signal.signal(signal.SIGINT, signal.default_int_handler)  # The parent may ignore it.
    names, settings = sys.argv[1], ConsumerSettings(start=StartFrom.FIRST)
    entered = threading.Event()  # A message may come while the program still enters its block.

    def hang(*args):
        entered.wait()
        print("hanging", flush=True)
        time.sleep(600)

    async def hang_awaiting(*args):
        while not entered.is_set():
            await asyncio.sleep(0.01)
        print("hanging", flush=True)
        await asyncio.sleep(600)
"""
BLOCKING = """
    consumer = blocking.PushConsumer("readers-{number}", names, settings)
    consumer.on("Orders")({handler})
    with consumer:
        entered.set()
        consumer.wait()
"""
SCHEDULED = """
    schedule = blocking.ScheduledPull("readers-{number}", names, settings)
    schedule.on("Orders")(hang)
    with schedule:
        entered.set()
        schedule.wait()
"""
ASYNCIO = """
    async def main():
        consumer = PushConsumer("readers-{number}", names, settings)
        consumer.on("Orders")({handler})
        async with consumer:
            entered.set()
            await consumer.wait()

    asyncio.run(main())
"""
COMMAND = """
    from txmq.cli.common import stop_at_signals

    async def main():
        stopped = asyncio.Event()
        with stop_at_signals(stopped):
            print("hanging", flush=True)
            await stopped.wait()
            time.sleep(600)

    asyncio.run(main())
"""
PROGRAMS = {
    "a blocking consumer": BLOCKING.format(number=1, handler="hang"),
    "a blocking consumer whose handler awaits": BLOCKING.format(number=2, handler="hang_awaiting"),
    "a blocking schedule": SCHEDULED.format(number=3),
    "an asyncio consumer": ASYNCIO.format(number=4, handler="hang"),
    "an asyncio consumer whose handler awaits": ASYNCIO.format(number=5, handler="hang_awaiting"),
    "a command of txmq": COMMAND,
}


@pytest.fixture(scope="module")
def names():
    with BrokerThread() as broker:
        with blocking.Client(broker.names) as client:
            client.admin.create_topic("Orders", queues=1)
            client.admin.send(Message(topic="Orders", body=b"x"))
        yield broker.names


@contextmanager
def running(program, names):
    """The program as a process that is killed after at most 40 seconds."""
    text = textwrap.dedent(BEFORE) + textwrap.dedent(program)
    with subprocess.Popen(
        [sys.executable, "-c", text, names],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        killing = threading.Timer(40, process.kill)
        killing.start()
        try:
            yield process
        finally:
            killing.cancel()
            process.kill()


@pytest.mark.parametrize("which", PROGRAMS)
def test_a_second_ctrl_c_ends_a_program_whose_handler_hangs(names, which):
    with running(PROGRAMS[which], names) as program:
        assert program.stdout.readline() == "hanging\n"
        os.kill(program.pid, signal.SIGINT)
        line = program.stderr.readline()
        assert line.startswith("stopping")
        assert "Ctrl-C" in line
        assert program.poll() is None

        os.kill(program.pid, signal.SIGINT)
        program.wait(8)


QUIET = """
    def show(message):
        print(message.body, flush=True)

    async def main():
        {make}
        async with consumer:
            await {wait}
        print("stopped")

    asyncio.run(main())
    print("ended")
"""
ON_PUSH = 'consumer = PushConsumer("quiet-{number}", names, settings); consumer.on("Orders")(show)'
QUIET_PROGRAMS = {
    "a consumer": QUIET.format(make=ON_PUSH.format(number=1), wait="consumer.wait()"),
    "a consumer that another task waits for": QUIET.format(
        make=ON_PUSH.format(number=2), wait="asyncio.create_task(consumer.wait())"
    ),
    "a client": QUIET.format(
        make='consumer = Client(names); consumer.on("Orders", group="quiet-3", settings=settings)'
        "(show)",
        wait="consumer.wait()",
    ),
}


@pytest.mark.parametrize("which", QUIET_PROGRAMS)
def test_ctrl_c_ends_an_idle_program_without_any_output_on_stderr(names, which):
    with running(QUIET_PROGRAMS[which], names) as program:
        assert program.stdout.readline() == "b'x'\n"
        os.kill(program.pid, signal.SIGINT)
        output, errors = program.communicate()
    assert (program.returncode, output, errors) == (0, "stopped\nended\n", "")
