"""Thousands of idle connections: one client works on, connections beyond the limit are refused, and
nothing is left once they close.
"""

import asyncio
import os
import resource
import socket
import time
from pathlib import Path

import pytest

from tests.servers.serving import BrokerProcess
from txmq import Message
from txmq.client import Admin, Session
from txmq.message import Queue

IDLE = 2_000
MAX = IDLE + 100
GROWTH_MAX = 64 * 1024 * 1024
PATIENCE_S = 10.0
TOPIC = "Crowd"


class FullHouse(BrokerProcess):
    def command(self):
        return [*super().command(), "--set", f"connections_max={MAX}"]


@pytest.fixture
def broker(tmp_path):
    running = FullHouse(tmp_path)
    running.start()
    yield running
    running.close()


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX + 1000
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory_of(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if "VmRSS" in line)


def files_of(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


async def eventually(holds, what):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def enter(address, count):
    host, port = address.rsplit(":", 1)
    return [socket.create_connection((host, int(port)), timeout=10) for _ in range(count)]


async def is_refused(crowd):
    """Whether the broker closes this connection without a word."""
    crowd.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        return await asyncio.wait_for(loop.sock_recv(crowd, 1), PATIENCE_S) == b""
    except ConnectionResetError:
        return True


async def work(admin, count):
    queue = Queue(TOPIC, "broker-a", 0)
    for number in range(count):
        receipt = await admin.send(Message(topic=TOPIC, body=b"%d" % number), queue)
        (message, *_) = (await admin.pull(queue, receipt.offset)).messages
        assert message.body == b"%d" % number


@pytest.mark.fault("N7")
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_thousands_of_idle_connections_do_not_disturb_a_client(broker, many_files):
    pid = broker.process.pid

    async def scenario():
        async with Session(broker.names) as session:
            admin = Admin(session)
            await admin.create_topic(TOPIC, 1)
            await work(admin, 50)
            files, memory = files_of(pid), memory_of(pid)
            crowd = []
            try:
                crowd += enter(broker.address, IDLE)
                await eventually(lambda: files_of(pid) >= files + IDLE, "not all were let in")
                await work(admin, 50)
                bytes_each = (memory_of(pid) - memory) / IDLE

                # Fill all places; the working client already has at least one of them.
                crowd += enter(broker.address, MAX - IDLE + 50)
                assert await is_refused(crowd[-1])
                await eventually(
                    lambda: files_of(pid) <= files + MAX, "more were let in than allowed"
                )
                await work(admin, 50)
                assert broker.process.poll() is None
            finally:
                for connection in crowd:
                    connection.close()
            await eventually(lambda: files_of(pid) <= files + 4, "descriptors are left")
            await work(admin, 50)
            enter(broker.address, 1)[0].close()
            grown = memory_of(pid) - memory
            print(f"{bytes_each / 1024:.1f} KiB a connection; {grown >> 10} KiB are left")
            assert grown < GROWTH_MAX

            # A second crowd finds the room that the first one left.
            memory = memory_of(pid)
            crowd = enter(broker.address, IDLE)
            try:
                await eventually(lambda: files_of(pid) >= files + IDLE, "not all were let in")
            finally:
                for connection in crowd:
                    connection.close()
            await eventually(lambda: files_of(pid) <= files + 4, "descriptors are left")
            assert memory_of(pid) - memory < GROWTH_MAX // 4

    asyncio.run(scenario())
    assert "Traceback" not in broker.log.read_text(errors="replace")
