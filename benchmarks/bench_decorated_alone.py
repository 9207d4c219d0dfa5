"""A small bank that does local transactions for a while, each time a line on stdin says so.

    bench_decorated_alone.py COLOUR NAMES DATABASE

A line is a way, how many at once, and for how long; the answer is one line of JSON. The function is
the same all ways, and so are its session and the pool that has it:

- bare: as it is written without txmq;
- fenced: behind a fence, so with one row more, and without a message;
- decorated: by a manager of transactions;
- unawaited: by one that does not wait for the answer to an END;
- handwritten: as decorated, but by the bare client of bench_handwritten.py.
"""

import asyncio
import itertools
import json
import random
import sys
import threading
import time

import psycopg_pool
import uvloop
from bench_decorated import ACCOUNTS
from bench_handwritten import AwaitedHand, BlockingHand, Frames
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

import txmq
import txmq.blocking

AT_ONCE_MAX = 64
GROUP = "bench-bank"
TOPIC = "transfer"
WARM_UP_S = 0.1
HASTY = txmq.ManagerSettings(awaits_end=False)
INSERT = "INSERT INTO transfer (account, amount) VALUES (%(account)s, %(amount)s)"
UPDATE = "UPDATE account SET balance = balance - %(amount)s WHERE id = %(account)s"
INSERT_OF_SESSIONS = text("INSERT INTO transfer (account, amount) VALUES (:account, :amount)")
UPDATE_OF_SESSIONS = text("UPDATE account SET balance = balance - :amount WHERE id = :account")


class Sessions:
    """The bank with SQLAlchemy and asyncio."""

    def __init__(self, url):
        self.source = create_async_engine(url, pool_size=AT_ONCE_MAX)
        self.sessions = async_sessionmaker(self.source, expire_on_commit=False)

    async def transfer(self, session, account, amount):
        await session.execute(INSERT_OF_SESSIONS, {"account": account, "amount": amount})
        await session.execute(UPDATE_OF_SESSIONS, {"account": account, "amount": amount})

    async def bare(self, account, amount):
        async with self.sessions.begin() as session:
            await self.transfer(session, account, amount)


class Pool:
    """The bank with psycopg and asyncio."""

    def __init__(self, url):
        where = url.replace("+psycopg", "")
        self.source = psycopg_pool.AsyncConnectionPool(where, max_size=AT_ONCE_MAX, open=False)

    async def transfer(self, connection, account, amount):
        await connection.execute(INSERT, {"account": account, "amount": amount})
        await connection.execute(UPDATE, {"account": account, "amount": amount})

    async def bare(self, account, amount):
        async with self.source.connection() as connection:
            await self.transfer(connection, account, amount)


class Threads:
    """The bank with SQLAlchemy and threads."""

    def __init__(self, url):
        self.source = create_engine(url, pool_size=AT_ONCE_MAX)
        self.sessions = sessionmaker(self.source, expire_on_commit=False)

    def transfer(self, session, account, amount):
        session.execute(INSERT_OF_SESSIONS, {"account": account, "amount": amount})
        session.execute(UPDATE_OF_SESSIONS, {"account": account, "amount": amount})

    def bare(self, account, amount):
        with self.sessions.begin() as session:
            self.transfer(session, account, amount)


BANKS = {"session": Sessions, "psycopg": Pool, "blocking": Threads}


class Behind:
    """A bank behind its fence, and by its manager."""

    def __init__(self, bank, resource, manager, hasty):
        self.bank = bank
        self.resource = resource
        self.ids = f"{time.time_ns():020X}"
        self.numbers = itertools.count()
        how = {"topic": TOPIC, "keys": lambda account, amount: account}
        self.call = manager.transactional(**how)(bank.transfer)
        self.hasty_call = hasty.transactional(**how)(bank.transfer)

    def next_id(self):
        return f"{self.ids}{next(self.numbers):012X}"

    def local(self, xid):
        born_ms = time.time_ns() // 1_000_000
        return self.resource.local(xid, GROUP, born_ms)


class AwaitedBehind(Behind):
    async def fenced(self, account, amount):
        async with self.local(self.next_id()) as session:
            await self.bank.transfer(session, account, amount)

    async def decorated(self, account, amount):
        see(await self.call(account, amount))

    async def unawaited(self, account, amount):
        see(await self.hasty_call(account, amount), is_acknowledged=False)


class BlockingBehind(Behind):
    def fenced(self, account, amount):
        with self.local(self.next_id()) as session:
            self.bank.transfer(session, account, amount)

    def decorated(self, account, amount):
        see(self.call(account, amount))

    def unawaited(self, account, amount):
        see(self.hasty_call(account, amount), is_acknowledged=False)


def see(outcome, *, is_acknowledged=True):
    """What is not committed on both sides does not count."""
    assert outcome.state is txmq.TransactionState.COMMITTED, outcome
    assert outcome.is_acknowledged is is_acknowledged, outcome


def calls_of(bank, behind, hand):
    """The ways."""
    guarded = {way: getattr(behind, way) for way in ("fenced", "decorated", "unawaited")}
    return {"bare": bank.bare, **guarded, "handwritten": hand.call}


class Count:
    """Transactions within the time that counts, which ends with one of them; and the CPU of this
    process, which all of them share.
    """

    def __init__(self, at_once, seconds):
        self.begin = time.perf_counter() + min(WARM_UP_S, seconds)
        self.end = self.begin + seconds
        self.least = at_once
        self.counted = 0
        self.total = 0
        self.ended = None
        self.cpu = time.process_time()

    def goes_on(self):
        """One more has come to its end; whether others shall follow."""
        now = time.perf_counter()
        self.total += 1
        if self.ended is None and now >= self.begin:
            self.counted += 1
            if now >= self.end and self.counted >= self.least:
                self.ended = now
        return self.ended is None

    def figures(self):
        per_s = self.counted / (self.ended - self.begin)
        return {"per_s": per_s, "total": self.total, "cpu_s": time.process_time() - self.cpu}


def some():
    """Arguments of a transfer."""
    return random.randrange(ACCOUNTS), random.randrange(1, 100)


async def awaiting(call, at_once, count):
    async def work():
        while True:
            await call(*some())
            if not count.goes_on():
                return

    await asyncio.gather(*[work() for _ in range(at_once)])


def threading_on(call, at_once, count):
    def work():
        while True:
            call(*some())
            if not count.goes_on():
                return

    workers = [threading.Thread(target=work) for _ in range(at_once)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def order():
    """What the next line asks for; ``None`` at the end of the input."""
    line = sys.stdin.readline().split()
    return (line[0], int(line[1]), float(line[2])) if line else None


def answer(count):
    print(json.dumps(count.figures()), flush=True)


async def serve(kind, database, names):
    bank = kind(database)
    resource = txmq.SQLResource(bank.source)
    manager = txmq.TransactionManager(GROUP, names, resource)
    hasty = txmq.TransactionManager(GROUP, names, resource, HASTY)
    behind = AwaitedBehind(bank, resource, manager, hasty)
    if isinstance(bank, Pool):
        await bank.source.open()
    async with txmq.Client(names) as client, manager, hasty:
        hand = AwaitedHand(behind, Frames(GROUP, await client.admin.create_topic(TOPIC)))
        await hand.open()
        calls = calls_of(bank, behind, hand)
        print("ready", flush=True)
        while (asked := order()) is not None:
            way, at_once, seconds = asked
            count = Count(at_once, seconds)
            await awaiting(calls[way], at_once, count)
            answer(count)
        hand.close()
    await (bank.source.close() if isinstance(bank, Pool) else bank.source.dispose())


def serve_threads(database, names):
    bank = Threads(database)
    resource = txmq.SQLResource(bank.source)
    manager = txmq.blocking.TransactionManager(GROUP, names, resource)
    hasty = txmq.blocking.TransactionManager(GROUP, names, resource, HASTY)
    behind = BlockingBehind(bank, resource, manager, hasty)
    with txmq.blocking.Client(names) as client, manager, hasty:
        hand = BlockingHand(behind, Frames(GROUP, client.admin.create_topic(TOPIC)))
        calls = calls_of(bank, behind, hand)
        print("ready", flush=True)
        while (asked := order()) is not None:
            way, at_once, seconds = asked
            count = Count(at_once, seconds)
            threading_on(calls[way], at_once, count)
            answer(count)
    resource.close()
    bank.source.dispose()


def main():
    colour, names, database = sys.argv[1:]
    kind = BANKS[colour]
    if kind is Threads:
        serve_threads(database, names)
    else:
        uvloop.run(serve(kind, database, names))


if __name__ == "__main__":
    main()
