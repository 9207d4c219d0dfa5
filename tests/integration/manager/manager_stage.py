"""A bank in a real database, a real broker that asks soon, and managers of one group."""

import asyncio
import contextlib
import functools
import inspect
from dataclasses import dataclass

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from txmq import Client, SQLResource, TransactionManager
from txmq.errors import TopicNotFound
from txmq.settings.units import Duration
from txmq.transaction import LocalTransactionState, ManagerSettings, TransactionState
from txmq.transaction.resources.schema import create_fence
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import embedded

__all__ = ["SOON", "Bank", "Order", "Stage", "on_stage", "take"]

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
COMMITTED, ROLLED_BACK, NOT_KNOWN = TransactionState
TOPIC = "transfer"
GROUP = "icbc"
PATIENCE_S = 8.0
TAKE = text("UPDATE account SET balance = balance - :amount WHERE name = 'A'")
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


async def take(session, order):
    """The local transaction of most tests, for asyncio."""
    await session.execute(TAKE, {"amount": order.amount})
    return order.id


def take_plainly(session, order):
    """The same without asyncio."""
    session.execute(TAKE, {"amount": order.amount})
    return order.id


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


def on_stage(scenario, settings=SOON):
    """Make a test of an async function of a :class:`Stage`, on the database of a fixture."""

    @functools.wraps(scenario)
    def test(bank):
        async def play():
            async with (
                embedded(settings) as broker,
                Client(broker.names) as client,
                contextlib.AsyncExitStack() as closing,
            ):
                await scenario(Stage(bank, broker.names, client, closing))

        asyncio.run(play())

    test.__signature__ = inspect.signature(test, follow_wrapped=False)
    return test


def on_patient_stage(scenario):
    """The same with a broker that sends no check while the test runs, even on a slow machine."""
    return on_stage(scenario, PATIENT)
