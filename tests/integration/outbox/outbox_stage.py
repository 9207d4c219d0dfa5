"""A stage for outboxes: a shop whose orders and messages are written by every kind of session."""

import asyncio
import contextlib

import psycopg
from sqlalchemy import create_engine, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.servers import mariadb
from tests.servers.databases import conninfo
from txmq.databases.guarded_transaction import drive
from txmq.errors import TableMissing
from txmq.outbox import Outbox
from txmq.outbox.table import create_outbox, unpack

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+aiomysql",
}
KINDS = [
    "sqlite-connection",
    "sqlite-session",
    "sqlite-async-session",
    "sqlite-django",
    "postgres-connection",
    "postgres-session",
    "postgres-async-connection",
    "postgres-async-session",
    "postgres-psycopg",
    "postgres-async-psycopg",
    "postgres-django",
]
KINDS += [
    kind
    for kind, family in {
        "mysql-connection": "mysql",
        "mysql-session": "mysql",
        "mysql-async-session": "mysql-async",
    }.items()
    if family in mariadb.kinds()
]
DATABASES = ["sqlite", "postgres", *(["mysql"] if "mysql" in mariadb.kinds() else [])]
INSERT = "INSERT INTO orders (name) VALUES ('{}')"


class Shop:
    """A database with an outbox and a table of orders, read over a connection of the test's own."""

    def __init__(self, kind, url):
        self.kind = kind
        self.url = url
        self.outbox = Outbox()
        self.engine = create_engine(url)

    def prepare(self):
        try:
            create_outbox(self.engine)
        except TableMissing:  # A test has spoiled it.
            self.drop("txmq_outbox")
            create_outbox(self.engine)
        self.order("DELETE FROM txmq_outbox")
        self.order("DROP TABLE IF EXISTS orders")
        self.order("CREATE TABLE orders (name VARCHAR(64))")
        return self

    def drop(self, name):
        for table in Outbox(name).tables("mysql"):
            self.order(f"DROP TABLE IF EXISTS {table.name}")

    def order(self, statement):
        with self.engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def close(self):
        self.engine.dispose()

    def run(self, work):
        """What a test writes as a coroutine never waits when its session does not; Django wants no
        loop around it.
        """
        return asyncio.run(work) if "async" in self.kind else drive(work)

    @property
    def orders(self):
        return [name for (name,) in self.order("SELECT name FROM orders ORDER BY name")]

    @property
    def rows(self):
        with self.engine.connect() as connection:
            return connection.execute(
                select(self.outbox.rows).order_by(self.outbox.rows.c.id)
            ).all()

    @property
    def messages(self):
        return [unpack(row) for row in self.rows]

    def bodies(self):
        return [message.body for message in self.messages]

    @contextlib.asynccontextmanager
    async def session(self, **settings):
        """A session of this kind, not yet in a transaction."""
        async with contextlib.AsyncExitStack() as stack:
            yield await self._session(stack, settings)

    async def _session(self, stack, settings):
        kind = self.kind
        if kind.endswith("psycopg"):
            connect = psycopg.AsyncConnection if "async" in kind else psycopg.Connection
            found = connect.connect(conninfo(self.url), **settings)
            if "async" not in kind:
                return stack.enter_context(contextlib.closing(found))
            found = await found
            stack.push_async_callback(found.close)
            return found
        if kind.endswith("django"):
            return stack.enter_context(django_connection(self.url))
        if "async" in kind:
            url = self.url.set(drivername=DRIVERS[self.url.get_backend_name()])
            engine = create_async_engine(url, **settings)
            stack.push_async_callback(engine.dispose)
            wanted = engine.connect() if kind.endswith("connection") else AsyncSession(engine)
            return await stack.enter_async_context(wanted)
        engine = create_engine(self.url, **settings)
        stack.callback(engine.dispose)
        wanted = engine.connect() if kind.endswith("connection") else Session(engine)
        return stack.enter_context(wanted)

    async def add(self, session, *given, **named):
        """Add in a session of any kind, blocking or async."""
        return await awaited(self.outbox.add(session, *given, **named))

    async def add_many(self, session, *given, **named):
        return await awaited(self.outbox.add_many(session, *given, **named))


async def awaited(found):
    return await found if hasattr(found, "__await__") else found


async def said(session, statement):
    """Execute a statement of the application."""
    if hasattr(session, "cursor") and not isinstance(session, psycopg.AsyncConnection):
        with session.cursor() as cursor:
            cursor.execute(statement)
    else:
        is_psycopg = isinstance(session, psycopg.AsyncConnection)
        await awaited(session.execute(statement if is_psycopg else text(statement)))


@contextlib.asynccontextmanager
async def transaction(session):
    """A transaction in the way each library has for it."""
    if hasattr(session, "vendor"):
        from django.db.transaction import atomic

        with atomic(using=session.alias):
            yield
        return
    if isinstance(session, psycopg.Connection | psycopg.AsyncConnection):
        begun = session.transaction()
    else:
        begun = session.begin()
    async with _either(begun):
        yield


@contextlib.asynccontextmanager
async def savepoint(session):
    """One inside of another."""
    if isinstance(session, psycopg.Connection | psycopg.AsyncConnection) or hasattr(
        session, "vendor"
    ):
        async with transaction(session):
            yield
    else:
        async with _either(session.begin_nested()):
            yield


@contextlib.asynccontextmanager
async def _either(block):
    if hasattr(block, "__aenter__"):
        async with block:
            yield
    else:
        with block:
            yield


@contextlib.contextmanager
def django_connection(url, alias="shop"):
    """Django's connection to a database that its settings have not heard of before."""
    import django.conf
    from django.db import connections

    if not django.conf.settings.configured:
        django.conf.settings.configure(USE_TZ=True)
        django.setup()
    engine = {"sqlite": "sqlite3", "postgresql": "postgresql"}[url.get_backend_name()]
    connections.databases[alias] = connections.configure_settings({
        "default": {
            "ENGINE": f"django.db.backends.{engine}",
            "NAME": url.database,
            "USER": url.username or "",
            "PASSWORD": url.password or "",
            "HOST": url.host or "",
            "PORT": url.port or "",
        }
    })["default"]  # fmt: skip
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        del connections[alias], connections.databases[alias]
