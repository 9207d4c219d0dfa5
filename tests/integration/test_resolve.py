"""`txmq resolve` decides what a killed service left open, despite outages of its servers."""

import asyncio
import contextlib
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from tests.integration.dead_service import GROUP, TOPIC, Silent
from tests.servers.serving import BrokerProcess, environment
from txmq import Message, SQLResource, TransactionProducer
from txmq.protocol import properties
from txmq.transaction.resources.schema import create_fence

SOON = ("transaction.timeout=0.3s", "transaction.check_interval=0.2s")
WITHIN_S = 40
QUEUES = 4
LEFT = 30
NOBODY = f"no producer of {GROUP} is connected"


@pytest.fixture
def broker(tmp_path):
    running = BrokerProcess(tmp_path / "broker", settings=SOON)
    running.start()
    running.create_topic(TOPIC, QUEUES)
    yield running
    running.close()


class Bank:
    """A database with a fence and orders, as an outside observer sees it."""

    def __init__(self, url):
        self.url = url.render_as_string(hide_password=False)
        self.engine = create_engine(url, poolclass=NullPool)
        create_fence(self.engine, "txmq_fence", None)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (name VARCHAR(64))"))

    @property
    def orders(self):
        with self.engine.connect() as connection:
            return sorted(name for (name,) in connection.execute(text("SELECT name FROM orders")))


@pytest.fixture
def bank_for(request, tmp_path):
    with contextlib.ExitStack() as stack:

        def make(kind):
            if kind == "sqlite":
                return Bank(make_url(f"sqlite:///{tmp_path}/bank.db"))
            server = request.getfixturevalue("postgres")
            return Bank(stack.enter_context(server.database()))

        yield make


class Program:
    """One of our programs as a process, and the lines that it prints."""

    def __init__(self, folder, *command):
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            cwd=folder,
        )
        self.lines = []
        self._said = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line)
                self._said.put(line)

    def says(self, words):
        while True:
            line = self._said.get(timeout=WITHIN_S)
            if words in line:
                return line

    def end(self, how):
        self.process.send_signal(how)
        return self.ended()

    def ended(self):
        code = self.process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.end(signal.SIGKILL)


def visible(broker):
    bodies = []
    for number in range(QUEUES):
        offset = 0
        while offset < broker.max_offset(TOPIC, number):
            records = broker.records(TOPIC, number, offset)
            bodies += [record.body.decode() for record in records]
            offset = records[-1].offset + 1
    return sorted(bodies)


def resolver(broker, bank, folder, *more):
    words = ["-m", "txmq", "resolve", GROUP, "--database", bank.url, "--names", broker.names]
    return Program(folder, *words, *more)


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
@pytest.mark.parametrize("turn", range(5 if os.environ.get("TXMQ_SOAK") else 1))
def test_resolve_decides_a_killed_services_transactions_by_its_database(
    kind, turn, broker, bank_for, tmp_path
):
    bank = bank_for(kind)
    service = [os.fspath(tmp_path.parent), "-m", "tests.integration.dead_service"]
    with Program(*service, broker.names, bank.url, str(LEFT)) as killed:
        killed.says("ready")
        if kind != "sqlite":
            # It is also killed in the middle of its work.
            some = LEFT + random.randrange(LEFT)
            wait_until(lambda: len(bank.orders) > some)
        assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    count = len(broker.open_transactions(GROUP))
    assert count

    with resolver(broker, bank, tmp_path, "--until-empty", "--json", "--quiet") as running:
        assert running.ended() == 0, running.lines
    totals = json.loads(running.lines[-1])

    assert broker.open_transactions(GROUP) == []
    assert visible(broker) == bank.orders
    left = [name for name in bank.orders if name.startswith("left")]
    assert left == sorted(f"left-{number}" for number in range(0, LEFT, 3))
    assert (totals["left"], totals["conflicts"], totals["is_good"]) == (0, 0, True)
    assert totals["committed"]
    assert totals["rolled_back"]
    assert totals["committed"] + totals["rolled_back"] == count


def wait_until(holds):
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def prepare(broker, bank, *names):
    """Send half messages as a service that is gone before a check can reach it."""

    async def send():
        resource = SQLResource(bank.engine)
        await resource.verify()
        async with TransactionProducer(GROUP, broker.names, Silent()) as producer:
            for name in names:
                named = {properties.FENCE: resource.identity}
                await producer.prepare(Message(topic=TOPIC, body=name.encode(), properties=named))
        resource.close()

    asyncio.run(send())


def test_resolve_recovers_after_broker_and_database_outages(broker, bank_for, tmp_path, postgres):
    bank = bank_for("postgres")
    name = bank.engine.url.database
    with resolver(broker, bank, tmp_path) as running:
        running.says("answering for icbc")
        prepare(broker, bank, *(f"a-{number}" for number in range(20)))
        wait_until(lambda: not broker.open_transactions(GROUP))

        broker.kill()
        broker.start()
        prepare(broker, bank, *(f"b-{number}" for number in range(20)))
        wait_until(lambda: not broker.open_transactions(GROUP))

        prepare(broker, bank, *(f"c-{number}" for number in range(20)))
        lonely = broker.log.read_text().count(NOBODY)
        postgres.order(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        postgres.order(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        running.says("cannot answer now; brokers wait: the database did not answer")
        # It has left the group, so that no check is wasted on it.
        wait_until(lambda: broker.log.read_text().count(NOBODY) > lonely)
        postgres.order(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_until(lambda: not broker.open_transactions(GROUP))

        assert running.end(signal.SIGTERM) == 0, running.lines
    # A broker that asks again before it has the answer is answered, and counted, again.
    counts = re.search(r"(\d+) decided .* (\d+) rolled back", running.lines[-1])
    assert int(counts[1]) == int(counts[2]) >= 60


def test_resolve_reports_parked_transactions_at_the_end(tmp_path, bank_for, broker):
    broker.stop()
    broker.settings = (*SOON, "transaction.check_max=1")
    broker.start()
    bank = bank_for("sqlite")
    other = Bank(make_url(f"sqlite:///{tmp_path}/other.db"))
    prepare(broker, other, "elsewhere")
    prepare(broker, bank, "here")

    with resolver(broker, bank, tmp_path, "--until-empty", "--verbose") as running:
        assert running.ended() == 1, running.lines

    (parked,) = broker.open_transactions(GROUP)
    assert parked["state"] == "parked"
    assert "1 decided" in running.lines[-1]
    assert "1 is left" in running.lines[-1]
    assert any("is not known to" in line for line in running.lines)
