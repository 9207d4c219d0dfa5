"""A stage for resources: every kind of source, on databases of their own."""

import asyncio
import contextlib
import functools
import inspect
from typing import NamedTuple

import psycopg
import psycopg_pool
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from tests.servers import mariadb
from tests.servers.databases import conninfo
from txmq.runtime.clock import SystemClock
from txmq.transaction.resources import SQLResource
from txmq.transaction.resources.schema import create_fence
from txmq.transaction.state import LocalTransactionState

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
GROUP = "icbc"
AWAITED = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+aiomysql",
}
KINDS = [
    "sqlite",
    "sqlite-async",
    "sqlite-django",
    "postgres",
    "postgres-async",
    "postgres-sessions",
    "postgres-async-sessions",
    "postgres-django",
    "psycopg-pool",
    "psycopg-async-pool",
    "psycopg",
    "psycopg-async",
]
ON_MARIADB = mariadb.kinds()
KINDS += ON_MARIADB
DJANGO = {"sqlite": "sqlite3", "postgresql": "postgresql"}
ON_POSTGRES = [kind for kind in KINDS if kind.startswith(("postgres", "psycopg"))]


class Settings(NamedTuple):
    """What the engine of a test is made with."""

    engine: dict = {}
    resource: dict = {}


@contextlib.asynccontextmanager
async def source_of(kind, url, settings):
    """The source that an application would give to a resource."""
    async with contextlib.AsyncExitStack() as stack:
        if kind.startswith("psycopg"):
            yield await psycopg_source(kind, conninfo(url), stack)
        elif kind.endswith("django"):
            yield stack.enter_context(django_source(url, settings.engine))
        elif "async" in kind:
            driver = AWAITED[url.get_backend_name()]
            engine = create_async_engine(url.set(drivername=driver), **settings.engine)
            stack.push_async_callback(engine.dispose)
            yield async_sessionmaker(engine) if "sessions" in kind else engine
        else:
            engine = create_engine(url, **settings.engine)
            stack.callback(engine.dispose)
            yield sessionmaker(engine) if "sessions" in kind else engine


async def psycopg_source(kind, where, stack):
    if kind == "psycopg-pool":
        return stack.enter_context(psycopg_pool.ConnectionPool(where, max_size=8, open=True))
    if kind == "psycopg-async-pool":
        pool = psycopg_pool.AsyncConnectionPool(where, max_size=8, open=False)
        return await stack.enter_async_context(pool)
    if kind == "psycopg-async":
        return functools.partial(psycopg.AsyncConnection.connect, where)
    return functools.partial(psycopg.connect, where)


@contextlib.contextmanager
def django_source(url, settings, alias="bank"):
    """Django's connection to a database that its settings have not heard of before."""
    import django.conf
    from django.db import connections

    if not django.conf.settings.configured:
        django.conf.settings.configure(USE_TZ=True)
        django.setup()
    connections.databases[alias] = connections.configure_settings({
        "default": {
            "ENGINE": f"django.db.backends.{DJANGO[url.get_backend_name()]}",
            "NAME": url.database,
            "USER": url.username or "",
            "PASSWORD": url.password or "",
            "HOST": url.host or "",
            "PORT": url.port or "",
            **settings,
        }
    })["default"]  # fmt: skip
    try:
        yield connections[alias]
    finally:
        del connections[alias], connections.databases[alias]


class Bank:
    """A database with a fence and a table of orders, read over a connection of the test's own."""

    def __init__(self, kind, url):
        self.kind = kind
        self.url = url
        self.engine = create_engine(url)

    def prepare(self):
        create_fence(self.engine, "txmq_fence", None)
        self.order("CREATE TABLE orders (xid VARCHAR(64), amount INTEGER CHECK (amount > 0))")
        return self

    def order(self, statement, **values):
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    @property
    def fence(self):
        return dict(self.order("SELECT xid, outcome FROM txmq_fence"))

    @property
    def orders(self):
        return {xid for (xid,) in self.order("SELECT xid FROM orders")}

    def close(self):
        self.engine.dispose()

    @contextlib.asynccontextmanager
    async def stage(self, kind=None, *, verified=True, **settings):
        """A service on this database."""
        chosen = Settings(**settings)
        async with source_of(kind or self.kind, self.url, chosen) as source:
            with contextlib.closing(SQLResource(source, **chosen.resource)) as resource:
                if verified:
                    await resource.verify()
                yield Stage(resource)


@contextlib.contextmanager
def by_default(bank, setting, value):
    """What new connections find set."""
    database = f"ALTER DATABASE {bank.url.database}"
    bank.order(f"{database} SET {setting} = '{value}'")
    try:
        yield
    finally:
        bank.order(f"{database} RESET {setting}")


class Stage:
    """A service: a resource, and local transactions, blocking or async."""

    def __init__(self, resource):
        self.resource = resource

    def begin(self, xid, born_ms=None, group=GROUP):
        return self.resource.local(xid, group, now_ms() if born_ms is None else born_ms)

    async def run(self, local, work):
        """Enter a local transaction, do something with its session, leave it."""
        self._loop = asyncio.get_running_loop()
        if not self.resource.is_blocking:
            async with local as session:
                await work(session)
            return

        def blocking():
            # What a test writes as a coroutine never waits when its session does not.
            with local as session, contextlib.suppress(StopIteration):
                work(session).send(None)

        await asyncio.to_thread(blocking)

    async def say(self, local, *statements):
        """Execute statements in a local transaction."""

        async def work(session):
            for statement in statements:
                await said(session, statement)

        await self.run(local, work)

    async def outside(self, waiting):
        """The result of an awaitable, for blocking and async work."""
        if not self.resource.is_blocking:
            return await waiting
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result(30)

    async def order(self, xid, amount=1, **how):
        """The local transaction of most tests: one row. Returns its state."""
        local = self.begin(xid, **how)
        await self.say(local, insert(xid, amount))
        return local.state

    async def check(self, xid, born_ms=None, group=GROUP, **how):
        born_ms = now_ms() if born_ms is None else born_ms
        return await self.resource.check(xid, group, born_ms, **how)


def insert(xid, amount=1):
    return f"INSERT INTO orders (xid, amount) VALUES ('{xid}', {amount})"


async def said(session, statement):
    """Execute a statement in a session of any kind."""
    is_plain = isinstance(session, psycopg.Connection | psycopg.AsyncConnection)
    if hasattr(session, "vendor"):
        cursor = session.cursor()
        cursor.execute(statement)
        return cursor
    result = session.execute(statement if is_plain else text(statement))
    return await result if inspect.isawaitable(result) else result


def now_ms():
    return SystemClock().wall_ms()
