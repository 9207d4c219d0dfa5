"""A stage for guards: a shop whose effects can be counted, with every guard and kind of database.

To have another guard tested, add an :class:`Adapter` to ``ADAPTERS``: it says how it is made, what
it can do, and on which kinds of databases it is tried. Whether its functions are given a session,
and whether it blocks, the guard says itself.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import redis
import redis.asyncio
import sqlalchemy as sa
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.integration.resources.resource_stage import KINDS, ON_MARIADB, Settings, said, source_of
from txmq.databases.guarded_transaction import drive
from txmq.idempotent import (
    DoneTable,
    RedisGuard,
    TokenGuard,
    UniqueKeyTable,
    VersionGuard,
    idempotent,
)

SOAK = bool(os.environ.get("TXMQ_SOAK"))
SECRET = b"of this stage alone"
IMPATIENT_S = 0.2
LEASE_S = 0.5
"""So long a key stays taken when a process dies with it."""


class Base(DeclarativeBase):
    """Of what the shop keeps."""


class Account(Base):
    """What has versions."""

    __tablename__ = "account"
    id: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    version: Mapped[int | None]
    balance: Mapped[int] = mapped_column(default=0)


EFFECTS = sa.Table(
    "effects",
    Base.metadata,
    sa.Column("name", sa.String(64)),
    sa.Column("amount", sa.Integer, sa.CheckConstraint("amount > 0")),
)


class Adapter(NamedTuple):
    """How a guard takes part in the contract."""

    make: Callable
    """From a source and a shop."""
    kinds: list[str]
    can: frozenset[str] = frozenset({"results", "conflicts", "scopes", "tells at once"})
    key: Callable = lambda shop, guard, name: name  # noqa: ARG005
    """What it takes for the key of that name."""
    has_session: bool = True


def a_row_for(shop, guard, name):
    del guard
    with shop.one_by_one:
        if isinstance(name, str) and name not in shop.rows:
            shop.rows.add(name)
            shop.order("INSERT INTO account VALUES (:name, 0, 0)", name=name)
    return name, 1


def a_token_for(shop, guard, name):
    return shop.tokens.setdefault(name, guard.issue())


def in_redis(source, shop):
    return RedisGuard(shop.redis_client(UniqueKeyTable(source).is_blocking))


def before_a_table(source, shop):
    table = UniqueKeyTable(source)
    client = shop.redis_client(table.is_blocking)
    return RedisGuard(client, lease=LEASE_S).before(table)


BY_DEFAULT = [
    *("sqlite", "sqlite-async", "sqlite-django"),
    *("postgres", "postgres-async", "postgres-django", "psycopg-pool", "psycopg-async-pool"),
    *ON_MARIADB,
]
MANY = KINDS if SOAK else BY_DEFAULT
SOME = KINDS if SOAK else ["sqlite", "postgres-async", "psycopg-pool", *ON_MARIADB[:1]]

ADAPTERS = {
    "table": Adapter(lambda source, shop: UniqueKeyTable(source), MANY),
    "version": Adapter(
        lambda source, shop: VersionGuard(source, Account),
        SOME,
        frozenset(),
        a_row_for,
    ),
    "token": Adapter(
        lambda source, shop: TokenGuard(UniqueKeyTable(source), secret=SECRET),
        KINDS if SOAK else ["postgres"],
        key=a_token_for,
    ),
    "redis": Adapter(in_redis, ["postgres", "postgres-async"], has_session=False),
    "redis before a table": Adapter(before_a_table, ["postgres", "postgres-async"]),
}
EVERYWHERE = [(name, kind) for name, adapter in ADAPTERS.items() for kind in adapter.kinds]
IN_SESSIONS = [case for case in EVERYWHERE if ADAPTERS[case[0]].has_session]
TABLES = [case for case in EVERYWHERE if case[0] == "table"]


class Shop:
    """A database, and the guard that is tested on it; read over a connection of the test's own."""

    def __init__(self, guard, kind, url):
        self.adapter = ADAPTERS[guard]
        self.kind = kind
        self.url = url
        self.engine = create_engine(url)
        self.done = DoneTable()
        self.tokens = {}
        self.rows = set()
        self.one_by_one = threading.Lock()
        self.redis = None
        """The server, for guards that have one."""
        self._clients = []

    def redis_client(self, is_blocking):
        """One that is closed with its service."""
        kind = redis.Redis if is_blocking else redis.asyncio.Redis
        self._clients.append(kind.from_url(self.redis.url, socket_timeout=5))
        return self._clients[-1]

    async def close_clients(self):
        while self._clients:
            client = self._clients.pop()
            if isinstance(client, redis.Redis):
                client.close()
            else:
                await client.aclose()

    def prepare(self):
        every = [*Base.metadata.sorted_tables, self.done.table]
        try:
            with self.engine.begin() as connection:
                for table in every:
                    connection.execute(table.delete())
        except sa.exc.DBAPIError:
            for metadata in (Base.metadata, self.done.metadata):
                metadata.drop_all(self.engine)
                metadata.create_all(self.engine)
        return self

    def close(self):
        self.engine.dispose()

    def far(self, port):
        """The same database by another way, with the tables as they are."""
        found = Shop("table", self.kind, self.url.set(port=port))
        found.adapter, found.tokens, found.rows = self.adapter, self.tokens, self.rows
        found.redis = self.redis
        return found

    def order(self, statement, **values):
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    @property
    def effects(self):
        return sorted(name for (name,) in self.order("SELECT name FROM effects"))

    def can(self, *what):
        return self.adapter.can.issuperset(what)

    @property
    def impatient(self):
        """Settings of an engine whose driver does not wait long; only SQLite's have to be told."""
        if not self.kind.startswith("sqlite"):
            return {}
        wait = {"timeout": IMPATIENT_S}
        return {"OPTIONS": wait} if self.kind.endswith("django") else {"connect_args": wait}

    @contextlib.asynccontextmanager
    async def stage(self, kind=None, **engine):
        """A service on this database."""
        async with source_of(kind or self.kind, self.url, Settings(engine=engine)) as source:
            try:
                yield Stage(self, self.adapter.make(source, self))
            finally:
                await self.close_clients()


class Stage:
    """A service: a guard, and functions behind it."""

    def __init__(self, shop, guard):
        self.shop = shop
        self.guard = guard
        self._loop = asyncio.get_running_loop()

    def behind(self, work, **how):
        """A function of the guard's colour, which does something with a session and a name.

        What a test writes as a coroutine never waits where the session does not.
        """
        how = {"key": lambda name, *_: self.key(name), "scope": "shop", **how}
        return idempotent(self.guard, **how)(self._of_its_colour(work))

    def _of_its_colour(self, work):
        has_session = self.guard.has_session

        def blocking(session, *args):
            return drive(work(session, *args))

        async def awaited(session, *args):
            return await work(session, *args)

        found = blocking if self.guard.is_blocking else awaited
        if has_session:
            return found
        if self.guard.is_blocking:
            return lambda *args: blocking(None, *args)

        async def alone(*args):
            return await awaited(None, *args)

        return alone

    def key(self, name):
        return self.shop.adapter.key(self.shop, self.guard, name)

    async def call(self, function, *args, **named):
        """The result of a call, blocking or async."""
        if not self.guard.is_blocking:
            return await function(*args, **named)
        return await asyncio.to_thread(function, *args, **named)

    async def outside(self, waiting):
        """The result of an awaitable, for blocking and async work."""
        if not self.guard.is_blocking:
            return await waiting
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result(30)

    async def effect(self, session, name):
        """The effect that must happen once; committed at once if there is no session."""
        if session is None:
            await self.outside(asyncio.to_thread(self.shop.order, effect(name)))
        else:
            await said(session, effect(name))


def effect(name, amount=1):
    return f"INSERT INTO effects (name, amount) VALUES ('{name}', {amount})"
