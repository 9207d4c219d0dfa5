"""A stage for transactions over two banks: two databases, every kind of source, no broker."""

import asyncio
import contextlib
import functools
import inspect

import psycopg
import psycopg_pool
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from tests.servers.databases import conninfo
from txmq.runtime.clock import SystemClock
from txmq.transaction.resources import XAResource
from txmq.transaction.resources.schema import create_fence
from txmq.transaction.state import LocalTransactionState

GROUP = "icbc"
KINDS = [
    "alchemy",
    "alchemy-async",
    "sessions",
    "sessions-async",
    "psycopg-pool",
    "psycopg-pool-async",
    "psycopg",
    "psycopg-async",
    "psycopg-autocommit",
]
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
OPENING = 1000
STILL = {"icbc": OPENING, "ccb": OPENING}
MOVED = {"icbc": OPENING - 100, "ccb": OPENING + 100}
STRANGERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
"""Whom a test before has left connected, with locks."""


class Bank:
    """One database with an account, read over a connection of the test's own."""

    def __init__(self, url):
        self.url = url
        self.engine = create_engine(url)
        self.order(STRANGERS)
        self.order("DROP SCHEMA public CASCADE")
        self.order("CREATE SCHEMA public")
        self.order("CREATE TABLE account (name TEXT PRIMARY KEY, balance INT CHECK (balance >= 0))")
        self.order("INSERT INTO account VALUES ('A', :opening)", opening=OPENING)

    def order(self, statement, **values):
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def alone(self, statement):
        """Outside of any transaction."""
        with psycopg.connect(conninfo(self.url), autocommit=True) as connection:
            connection.execute(statement)

    @property
    def balance(self):
        return self.order("SELECT balance FROM account")[0][0]

    @property
    def prepared(self):
        rows = self.order(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
        )
        return [gid for (gid,) in rows]

    @property
    def locks(self):
        """Locks on the account table that somebody holds."""
        return self.order(
            "SELECT mode FROM pg_locks WHERE relation = 'account'::regclass AND granted "
            "AND pid IS DISTINCT FROM pg_backend_pid()"
        )

    def close(self):
        for gid in self.prepared:
            self.alone(f"ROLLBACK PREPARED '{gid}'")
        self.engine.dispose()


async def source_of(kind, url, stack):
    """What an application would give to a resource for one bank."""
    where = conninfo(url)
    match kind:
        case "psycopg-pool":
            return stack.enter_context(psycopg_pool.ConnectionPool(where, max_size=4, open=True))
        case "psycopg-pool-async":
            pool = psycopg_pool.AsyncConnectionPool(where, max_size=4, open=False)
            return await stack.enter_async_context(pool)
        case "psycopg":
            return functools.partial(psycopg.connect, where)
        case "psycopg-autocommit":
            return functools.partial(psycopg.connect, where, autocommit=True)
        case "psycopg-async":
            return functools.partial(psycopg.AsyncConnection.connect, where)
    if kind.endswith("async"):
        engine = create_async_engine(url)
        stack.push_async_callback(engine.dispose)
        return async_sessionmaker(engine) if kind.startswith("sessions") else engine
    engine = create_engine(url)
    stack.callback(engine.dispose)
    return sessionmaker(engine) if kind == "sessions" else engine


class XAStage:
    """Services over two banks, and what each of them does."""

    def __init__(self, icbc, ccb):
        self.banks = {"icbc": icbc, "ccb": ccb}
        create_fence(icbc.engine, "txmq_fence", None)

    def __getitem__(self, name):
        return self.banks[name]

    @contextlib.asynccontextmanager
    async def service(self, kind="alchemy-async", *, urls=None, is_attended=False, **options):
        """A resource of one kind, verified; it recovers by itself if it is attended."""
        options = {"confirm_timeout": 5.0, **options}
        async with contextlib.AsyncExitStack() as stack:
            sources = {
                name: await source_of(kind, (urls or {}).get(name, bank.url), stack)
                for name, bank in self.banks.items()
            }
            resource = XAResource(sources, **options)
            stack.callback(resource.close)
            await resource.verify()
            if is_attended:
                await stack.enter_async_context(attended(resource))
            yield resource

    @property
    def balances(self):
        return {name: bank.balance for name, bank in self.banks.items()}

    @property
    def prepared(self):
        return [gid for bank in self.banks.values() for gid in bank.prepared]

    @property
    def fence(self):
        return dict(self.banks["icbc"].order("SELECT xid, outcome FROM txmq_fence"))

    def see_nothing_left(self):
        """No prepared transaction, no lock."""
        assert self.prepared == []
        assert [bank.locks for bank in self.banks.values()] == [[], []]


@contextlib.asynccontextmanager
async def attended(resource):
    """As a manager does with its resource while it is open."""
    attending = asyncio.ensure_future(resource.attend())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        attending.cancel()
        await asyncio.gather(attending, return_exceptions=True)


def order_of(amount):
    """From one bank to the other, as a function of their sessions."""

    async def work(sessions):
        await said(sessions["icbc"], f"UPDATE account SET balance = balance - {amount}")
        await said(sessions["ccb"], f"UPDATE account SET balance = balance + {amount}")

    return work


async def said(session, statement):
    """Execute a statement in a session of any kind."""
    is_plain = isinstance(session, psycopg.Connection | psycopg.AsyncConnection)
    result = session.execute(statement if is_plain else text(statement))
    return await result if inspect.isawaitable(result) else result


async def run(resource, local, work):
    """Enter a local transaction, do something with its sessions, leave it."""
    if not resource.is_blocking:
        async with local as sessions:
            await work(sessions)
        return

    def blocking():
        # What a test writes as a coroutine never waits when its sessions do not.
        with local as sessions, contextlib.suppress(StopIteration):
            work(sessions).send(None)

    await asyncio.to_thread(blocking)


def now_ms():
    return SystemClock().wall_ms()


async def booked(resource, xid="x-1"):
    """A transaction over 100, which is decided and not confirmed."""
    local = resource.local(xid, GROUP, now_ms())
    await run(resource, local, order_of(100))
    return local


async def until(what):
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.01)
