"""A bank in a real database, a real broker that asks soon, and managers of one group."""

import asyncio
import contextlib
import functools
import inspect
from dataclasses import dataclass

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from txmq import Client, Message, SQLResource, TransactionManager
from txmq.databases.guarded_transaction import drive
from txmq.errors import TopicNotFound
from txmq.settings.units import Duration
from txmq.transaction import LocalTransactionState, ManagerSettings, TransactionState
from txmq.transaction.resources.schema import create_fence
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings

__all__ = ["SOON", "Bank", "Order", "Stage", "take"]

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
COMMITTED, ROLLED_BACK, NOT_KNOWN = TransactionState
TOPIC = "transfer"
GROUP = "icbc"
MESSAGE = Message(topic=TOPIC, body=b"block")
NEVER = Message(topic=TOPIC, body=b"never")
PATIENCE_S = 8.0
TAKE = "UPDATE account SET balance = balance - :amount WHERE name = 'A'"
SOON = BrokerSettings(
    store=StoreSettings(flush="async"),
    transaction=CheckBackSettings(timeout=Duration(0.3), check_interval=Duration(0.2)),
)
PATIENT = BrokerSettings(store=StoreSettings(flush="async"))


@dataclass
class Order:
    """What is transferred."""

    id: str
    amount: int


class Bank:
    """A database with one account, read over a connection of the test's own."""

    def __init__(self, url):
        self.url = make_url(url)
        self.engine = create_engine(self.url)
        create_fence(self.engine, "txmq_fence", None)
        self.order(
            "CREATE TABLE account (name VARCHAR(8) PRIMARY KEY, balance INTEGER NOT NULL, "
            "CHECK (balance >= 0))"
        )
        self.order("INSERT INTO account VALUES ('A', 100)")

    def order(self, statement):
        with self.engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    @property
    def balance(self):
        ((found,),) = self.order("SELECT balance FROM account")
        return found

    @property
    def fence(self):
        return dict(self.order("SELECT xid, outcome FROM txmq_fence"))

    def close(self):
        self.engine.dispose()

    def awaited(self, **how):
        drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
        driver = drivers[self.url.get_backend_name()]
        return create_async_engine(self.url.set(drivername=driver), **how)


async def said(session, statement, **values):
    """Execute a statement in a session of either kind."""
    result = session.execute(text(statement), values)
    return await result if inspect.isawaitable(result) else result


async def take(session, order):
    """The local transaction of most tests."""
    await said(session, TAKE, amount=order.amount)
    return order.id


def take_plainly(session, order):
    """The same without asyncio."""
    return drive(take(session, order))


def coloured(work, is_blocking):
    """What a test writes as a coroutine never waits when its session does not."""

    @functools.wraps(work)
    def plain(*args):
        return drive(work(*args))

    return plain if is_blocking else work


async def until(is_so):
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


async def cancelled(running):
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class Refusal(Exception):
    """What a business function raises."""


@dataclass
class Stage:
    bank: Bank
    names: str
    client: Client
    closing: contextlib.AsyncExitStack

    def resource(self, *, is_blocking=False):
        if is_blocking:
            engine = create_engine(self.bank.url)
            self.closing.callback(engine.dispose)
        else:
            engine = self.bank.awaited()
            self.closing.push_async_callback(engine.dispose)
        resource = SQLResource(engine)
        self.closing.callback(resource.close)
        resource.engine = engine
        return resource

    def manager(self, resource=None, **settings):
        return TransactionManager(
            GROUP, self.names, resource or self.resource(), ManagerSettings(**settings)
        )

    async def visible(self):
        """The bodies of all messages that can be seen."""
        messages = []
        with contextlib.suppress(TopicNotFound):
            for queue in (await self.client.admin.route(TOPIC)).readable:
                messages += (await self.client.admin.pull(queue, 0)).messages
        return sorted(message.body for message in messages)

    async def open(self):
        return [transaction.id for transaction in await self.client.admin.transactions()]

    async def until_settled(self):
        async with asyncio.timeout(PATIENCE_S):
            while await self.open():
                await asyncio.sleep(0.02)
