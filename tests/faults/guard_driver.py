"""Runs a group of consumers, each in a process that kills itself at a point it is told, and starts
another one in its place.

The input is one line, a JSON object: a :class:`Plan`. The consumers run in forks, so that the
modules need not be loaded anew. What they do and how they end is told in words, one a line.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass

import aiosqlite  # noqa: F401 - loaded before the first fork
import psycopg  # noqa: F401
import redis
import redis.asyncio
from sqlalchemy import create_engine, event, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from tests.faults.broken_guards import MarkedFirst
from tests.servers.database_server import die_with_us
from tests.traffic.effects import EFFECT, PAYMENT, SECRET, STOCK, engine_options
from txmq import ConsumerSettings, PushConsumer, StartFrom
from txmq.errors import KeyInProgress
from txmq.idempotent import RedisGuard, TokenGuard, UniqueKeyTable, VersionGuard, idempotent

BEGINS = "asks to begin"
"""Before any claim in the database; P17 of a guard that has claimed the key elsewhere by then."""
CLAIMED, WORKED, AT_COMMIT = "before the effect", "after the effect", "asks to commit"
"""P15."""
ENDED = "before the acknowledgement"
"""P16."""
POINTS = (BEGINS, CLAIMED, WORKED, AT_COMMIT, ENDED)

LEASE_S = 1.0
"""Of who dies with a key: the others come for 16 times, each some 200 ms after the one before."""


def in_front(plan, source):
    """Redis before the table."""
    kind = redis.asyncio.Redis if plan.is_async else redis.Redis
    client = kind.from_url(plan.store, socket_timeout=5)
    return RedisGuard(client, lease=LEASE_S, prefix=plan.group).before(UniqueKeyTable(source))


def key_of(plan, message):
    """What a guard takes for a message's key."""
    if plan.guard == "version":
        return message.key, 1
    return message.properties["token"] if plan.guard == "token" else message.key


GUARDS = {
    "table": lambda plan, source: UniqueKeyTable(source),
    "version": lambda plan, source: VersionGuard(source, STOCK),
    "token": lambda plan, source: TokenGuard(UniqueKeyTable(source), secret=SECRET),
    "redis before a table": in_front,
    "marked first": lambda plan, source: MarkedFirst(source),
}
"""What stands before the effect, by its name in a plan; each has a session of the source."""


@dataclass
class Plan:
    """What the group does."""

    guard: str
    url: str
    is_async: bool
    names: str
    group: str
    topic: str
    consumers: int
    deaths: dict[str, list[int]]
    """By point: whoever comes to it as the so manieth of them all, from 0, dies there."""
    handlers: int = 4
    """How many of a consumer's run at once."""
    store: str = ""
    """The URL of what a guard keeps outside of the database."""


def say(word):
    os.write(1, f"{word}\n".encode())


class Fates:
    """Which process dies where: a byte for each process that comes to a point."""

    def __init__(self, deaths):
        self._ends = {}
        for point, numbers in deaths.items():
            bytes_ = bytearray(max(numbers) + 1)
            for number in numbers:
                bytes_[number] = 1
            end, begin = os.pipe()
            os.write(begin, bytes_)
            os.close(begin)
            self._ends[point] = end

    def reached(self, point):
        """Die, if it is our turn."""
        if os.read(self._ends[point], 1) == b"\1":
            say(f"killed {point}")
            # To this thread: it must not take another step.
            signal.pthread_kill(threading.get_ident(), signal.SIGKILL)


class Life:
    """One consumer's."""

    def __init__(self, plan, fates):
        self._plan = plan
        self.reached = fates.reached

    @contextlib.asynccontextmanager
    async def source(self):
        url = make_url(self._plan.url)
        options = {"pool_size": self._plan.handlers, **engine_options(url)}
        if self._plan.is_async:
            engine = create_async_engine(url, **options)
            self.watch(engine.sync_engine)
            yield engine
            await engine.dispose()
        else:
            engine = create_engine(url, **options)
            self.watch(engine)
            yield engine
            engine.dispose()

    def watch(self, engine):
        event.listen(engine, "begin", lambda _: self.reached(BEGINS))
        event.listen(engine, "commit", lambda _: self.reached(AT_COMMIT))

    def handler(self, guard):
        """What is done with a message."""
        guarded = idempotent(
            guard, key=lambda message: key_of(self._plan, message), keeps_result=False
        )
        make = self.awaited if self._plan.is_async else self.plain
        return make(guarded)

    def plain(self, guarded):
        @guarded
        def work(session, message):
            self.reached(CLAIMED)
            session.execute(EFFECT, {"key": message.key})
            session.execute(PAYMENT)
            if self._plan.guard == "version":
                session.execute(STOCK.insert(), {"id": message.key, "version": 1})
            self.reached(WORKED)
            return True

        def handle(message):
            with told(message):
                self.returned(work(message), message)

        return handle

    def awaited(self, guarded):
        @guarded
        async def work(session, message):
            self.reached(CLAIMED)
            await session.execute(EFFECT, {"key": message.key})
            await session.execute(PAYMENT)
            if self._plan.guard == "version":
                await session.execute(STOCK.insert(), {"id": message.key, "version": 1})
            self.reached(WORKED)
            return True

        async def handle(message):
            with told(message):
                self.returned(await work(message), message)

        return handle

    def returned(self, is_first, message):
        if is_first:
            self.reached(ENDED)
        say(f"{'first' if is_first else 'again'} {named(message)}")

    async def live(self):
        plan = self._plan
        settings = ConsumerSettings(
            start=StartFrom.FIRST,
            concurrency=plan.handlers,
            pull_batch=8,
            cached_max=16,
            rebalance_interval=0.5,
            commit_interval=0.2,
        )
        async with self.source() as source:
            consumer = PushConsumer(plan.group, plan.names, settings)
            consumer.on(plan.topic)(self.handler(GUARDS[plan.guard](plan, source)))
            async with consumer:
                await consumer.wait()


def named(message):
    return f"{message.key}/{message.properties['copy']}"


@contextlib.contextmanager
def told(message):
    """Say what has become of a message that was not handled."""
    try:
        yield
    except KeyInProgress:
        say(f"later {named(message)}")
        raise
    except Exception:
        say(f"failed {named(message)}")
        raise


class Group:
    """All its consumers."""

    def __init__(self, plan):
        self._plan = plan
        self._fates = Fates(plan.deaths)

    def run(self):
        """Start each consumer, and another for each one killed, until a signal."""
        for _ in range(self._plan.consumers):
            self.start()
        while True:
            _, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
            say(f"ended {code}")
            if code == -signal.SIGKILL:
                self.start()

    def start(self):
        if os.fork() == 0:
            os.close(0)
            die_with_us()
            asyncio.run(Life(self._plan, self._fates).live())
            sys.exit("a consumer has stopped")


if __name__ == "__main__":
    Group(Plan(**json.loads(sys.stdin.readline()))).run()
