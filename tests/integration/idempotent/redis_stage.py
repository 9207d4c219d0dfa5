"""A stage for guards in Redis: alone and in front of a table, for functions of either kind.

Effects are rows of a table that takes any number of them for a key. In front of a table they are
written in the guard's session; where Redis is alone they are committed by themselves.
"""

import asyncio
import contextlib

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from txmq.databases.guarded_transaction import drive
from txmq.idempotent.redis import RedisGuard
from txmq.idempotent.unique_key import DoneTable, UniqueKeyTable

ALONE = ["redis", "redis-async"]
IN_FRONT = ["front", "front-async"]
KEY = "order-1"
PATIENCE_S = 10
INSERT = "INSERT INTO effects VALUES (:effect_key)"


def short(retry=Retry, timeout_s=0.25):
    """Settings of a client whose user reads what the guard's docstring says."""
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": retry(NoBackoff(), 1),
    }


@contextlib.asynccontextmanager
async def entered(attempt):
    """An attempt of either kind."""
    if attempt.is_blocking:
        with attempt as found:
            yield found
    else:
        async with attempt as found:
            yield found


async def until(holds):
    """Wait for a condition, which may be awaited."""
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.01)


def flush(server):
    server.flush()


def restart(server):
    server.restart_empty()


def evict(server):
    with server.evicting():
        server.order("SET", "filler", "." * 1024)
        server.evict(f"txmq:done:\0{KEY}")


@contextlib.contextmanager
def down(server):
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextlib.contextmanager
def stuck(server):
    server.pause()
    try:
        yield
    finally:
        server.resume()


def prepared(url):
    """Make the tables."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in ("CREATE TABLE effects (effect_key TEXT)", *DoneTable().ddl("postgresql")):
            connection.execute(text(statement))
    engine.dispose()


class Stage:
    """One Redis, one database, and guards of one kind over both."""

    def __init__(self, kind, server, url):
        self.is_blocking = not kind.endswith("async")
        self.is_in_front = kind in IN_FRONT
        self.server = server
        self.ledger = create_engine(url, pool_size=8)
        for table in ("effects", "txmq_done"):
            self.order(f"DELETE FROM {table}")
        self._exits = contextlib.AsyncExitStack()
        self.sources = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *problem):
        await self._exits.aclose()

    def client(self, **settings):
        """Another client of the kind, as another process has."""
        package, retry = (redis, Retry) if self.is_blocking else (redis.asyncio, AsyncRetry)
        client = package.Redis.from_url(self.server.url, **{**short(retry), **settings})
        if self.is_blocking:
            self._exits.callback(client.close)
        else:
            self._exits.push_async_callback(client.aclose)
        return client

    def guard(self, client=None, **options):
        """Another guard over the same."""
        guard = RedisGuard(client or self.client(), **options)
        return guard.before(UniqueKeyTable(self.source())) if self.is_in_front else guard

    def source(self):
        if self.is_blocking:
            engine = create_engine(self.ledger.url, pool_size=8)
            self._exits.callback(engine.dispose)
        else:
            engine = create_async_engine(self.ledger.url, pool_size=8)
            self._exits.push_async_callback(engine.dispose)
        self.sources.append(getattr(engine, "sync_engine", engine))
        return engine

    def order(self, statement, **values):
        with self.ledger.begin() as connection:
            said = connection.execute(text(statement), values)
            return said.scalar() if said.returns_rows else None

    async def effect(self, attempt, key):
        """The effect that must happen once."""
        if not self.is_in_front:
            self.order(INSERT, effect_key=key)
            return
        await self.run(attempt, INSERT, effect_key=key)

    async def run(self, attempt, statement, **values):
        """A statement of the work's, in the guard's session."""
        said = attempt.session.execute(text(statement), values)
        if not self.is_blocking:
            await said

    def effects(self, key):
        return self.order("SELECT count(*) FROM effects WHERE effect_key = :key", key=key)

    async def deliver(self, guard, key=KEY, **options):
        """Deliver a message once, to a consumer that handles it correctly; returns the attempt."""
        async with entered(guard.attempt(key, **options)) as attempt:
            if attempt.verdict.name == "FIRST":
                await self.effect(attempt, key)
        return attempt

    async def verdict(self, guard, key=KEY, **options):
        return (await self.deliver(guard, key, **options)).verdict.name

    async def enter(self, attempt):
        """Begin an attempt, where blocks are not nested."""
        return drive(attempt.begin()) if self.is_blocking else await attempt.begin()

    async def leave(self, attempt, problem=None):
        """Its end."""
        return drive(attempt.end(problem)) if self.is_blocking else await attempt.end(problem)
