"""A leader and a follower as real processes: what is acknowledged is on two disks."""

import asyncio
import json
import os
import signal
import sys
import time

import pytest

from tests.serving import BrokerProcess, ask
from txmq import Message, Producer, ProducerSettings
from txmq.client.values import SendStatus

FIGURES = 28
PATIENCE_S = 20
TOPIC = "Copied"


class Names(BrokerProcess):
    def command(self):
        return [sys.executable, "-m", "txmq", "names", "--listen", self.names]


class Member(BrokerProcess):
    """A directory that is served as a leader or as a follower."""

    def __init__(self, folder, names, role, **settings):
        super().__init__(folder, flush="sync")
        self.names = names
        self.role = role
        self.more = [f"{name}={value}" for name, value in settings.items()]

    def command(self):
        where = ["--data", str(self.folder / "data"), "--listen", self.address]
        chosen = [f"brokerRole={self.role}", f"brokerId={int(self.role == 'SLAVE')}", *self.more]
        words = [word for setting in chosen for word in ("--set", setting)]
        return [sys.executable, "-m", "txmq", "serve", *where, "--names", self.names, *words]

    def figures(self):
        return json.loads(ask(self.address, FIGURES)[2])["table"]

    def wait_for(self, name, value):
        """Wait until a figure of a leader has a value."""
        end = time.monotonic() + PATIENCE_S
        while (found := self.figures()[name]) != str(value):
            assert time.monotonic() < end, f"{name} is {found}\n{self.tail()}"
            time.sleep(0.02)

    def wait_for_line(self, text):
        end = time.monotonic() + PATIENCE_S
        while text not in self.tail():
            assert time.monotonic() < end, self.tail()
            time.sleep(0.02)

    def log_files(self):
        return {path.name: path.read_bytes() for path in (self.folder / "data/log").iterdir()}

    def pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)


@pytest.fixture
def members(tmp_path):
    """Starts members, all at one name server, and ends them."""
    names = Names(tmp_path / "names")
    running = [names]

    def member(name, role, **settings):
        found = Member(tmp_path / name, names.names, role, **settings)
        running.append(found)
        found.start()
        return found

    try:
        names.start()
        yield member
    finally:
        for process in running:
            process.close()


def send(names, texts):
    """Send messages one by one; returns the status of each."""

    async def run():
        async with Producer(
            group="copies", names=names, settings=ProducerSettings(timeout_s=10)
        ) as producer:
            return [
                (await producer.send(Message(topic=TOPIC, body=text.encode()))).status
                for text in texts
            ]

    return asyncio.run(run())


def stored(member):
    """The bodies in all queues of the topic."""
    found = set()
    for queue in range(4):
        offset = 0
        while offset < member.max_offset(TOPIC, queue):
            records = member.records(TOPIC, queue, offset)
            found |= {record.body.decode() for record in records}
            offset += len(records)
    return found


def test_what_a_killed_leader_acknowledged_is_on_its_follower(members):
    """Also what it did not acknowledge: when it comes back, it has the log of the new leader."""
    first = members("m1", "SYNC_MASTER", **{"replication.lag_max": "2s"})
    second = members("m2", "SLAVE")
    first.wait_for("followersInSync", 1)
    texts = [f"before {number}" for number in range(100)]
    assert set(send(first.names, texts)) == {SendStatus.OK}
    # What only the first leader has.
    second.pause()
    assert send(first.names, ["alone"]) == [SendStatus.FLUSH_SLAVE_TIMEOUT]
    first.kill()
    second.kill()
    second.role = "SYNC_MASTER"
    second.start()
    assert set(texts) <= stored(second)
    after = [f"after {number}" for number in range(10)]
    assert set(send(second.names, after)) == {SendStatus.SLAVE_NOT_AVAILABLE}

    first.role = "SLAVE"
    first.start()
    second.wait_for("followersInSync", 1)
    assert set(send(second.names, ["on both"])) == {SendStatus.OK}
    assert first.log_files() == second.log_files()
    assert stored(second) >= {*texts, *after, "on both"}
