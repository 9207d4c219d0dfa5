"""Relays as programs, what a broker received from them, and an outbox with a witness table."""

import queue
import signal
import subprocess
import sys
import threading
import time

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.servers.serving import environment
from txmq.outbox.table import Outbox

WITHIN_S = 50
WITNESS = (
    "CREATE TABLE lane_count (lane VARCHAR(64) PRIMARY KEY, n INTEGER NOT NULL)",
    "CREATE TABLE witness (body VARCHAR(64) PRIMARY KEY)",
)


def wait_until(holds, within_s=WITHIN_S, what="it did not come true"):
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        threading.Event().wait(0.02)
    return found


class Book:
    """An outbox in a database, and its figures."""

    def __init__(self, url, **how):
        self.url = url.render_as_string(hide_password=False)
        self.outbox = Outbox(**how)
        self.kind = "mysql" if "mysql" in url.drivername else url.get_backend_name()
        pool = {"poolclass": NullPool} if self.kind == "sqlite" else {"max_overflow": 40}
        self.engine = create_engine(url, **pool)
        with self.engine.begin() as connection:
            for statement in (*self.outbox.ddl(self.kind), *WITNESS):
                connection.execute(text(statement))

    def ask(self, statement, **values):
        with self.engine.begin() as connection:
            found = connection.execute(text(statement), values)
            return found.all() if found.returns_rows else None

    def count(self):
        return self.ask(f"SELECT COUNT(*) FROM {self.outbox.name}")[0][0]

    def leases(self):
        """How many slots each relay has."""
        slots = self.outbox.slots.fullname
        counted = f"SELECT token, COUNT(*) FROM {slots} WHERE token <> '' GROUP BY token"
        return {row[0]: row[1] for row in self.ask(counted)}

    def close(self):
        """Drop the tables: the next test may use this database."""
        self.outbox.metadata.drop_all(self.engine)
        for table in ("lane_count", "witness", "effects", "txmq_done"):
            self.ask(f"DROP TABLE IF EXISTS {table}")
        self.engine.dispose()


class RelayProgram:
    """`txmq relay` as a process."""

    def __init__(self, folder, book, names, *more):
        self.lines = []
        self._said = queue.SimpleQueue()
        where = ["--database", book.url, "--names", names, *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "txmq", "relay", *where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            cwd=folder,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line)
                self._said.put(line)

    def ready(self):
        said = [line for line in self.lines if line.startswith("ready")]
        if said:
            return said[0]
        while not (line := self._said.get(timeout=WITHIN_S)).startswith("ready"):
            pass
        return line

    def kill(self):
        self.process.kill()
        self.process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)
        assert code == 0, self.lines

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


def bodies(broker, topic, queues):
    """The bodies in each queue, in their order."""
    found = []
    for number in range(queues):
        found.append([])
        offset, end = 0, broker.max_offset(topic, number)
        while offset < end:
            records = broker.records(topic, number, offset)
            found[-1] += [record.body.decode() for record in records]
            offset = records[-1].offset + 1
    return found
