"""Two banks in a database: one takes money in local transactions, the other credits by messages.

Also the invariants of both banks and the topic, which must hold after every crash.
"""

import asyncio
from dataclasses import dataclass

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from txmq.transaction.resources.schema import create_fence

__all__ = ["COMMITTED", "OPENING", "PAYERS", "QUEUES", "ROLLED_BACK", "Bank", "Order", "Scene"]

COMMITTED, ROLLED_BACK = 1, 2
PAYERS = ("A0", "A1", "A2")
OPENING = 1_000_000
QUEUES = 4
PATIENCE_S = 30.0


@dataclass
class Order:
    """What is transferred, and what bank A does for it: words that every kind of session takes."""

    id: str
    payer: str = PAYERS[0]
    amount: int = 1

    def written(self, xid):
        return f"INSERT INTO debit VALUES ('{self.id}', '{xid}', {self.amount})"

    def taken(self):
        return f"UPDATE account SET balance = balance - {self.amount} WHERE name = '{self.payer}'"


class Bank:
    """The database, read over a connection of the test's own."""

    def __init__(self, url):
        self.url = url
        self.engine = create_engine(url)

    def prepare(self):
        create_fence(self.engine, "txmq_fence", None)
        self.order("CREATE TABLE account (name VARCHAR(8) PRIMARY KEY, balance INTEGER NOT NULL)")
        self.order(
            "CREATE TABLE debit (id VARCHAR(64) PRIMARY KEY, xid VARCHAR(64), amount INTEGER)"
        )
        self.order("CREATE TABLE credit (id VARCHAR(64) PRIMARY KEY, amount INTEGER)")
        for name in PAYERS:
            self.order(f"INSERT INTO account VALUES ('{name}', {OPENING})")
        return self

    def order(self, statement, **values):
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def awaited(self, **how):
        """An engine for asyncio."""
        driver = "sqlite+aiosqlite" if self.is_file else "postgresql+psycopg"
        return create_async_engine(self.url.set(drivername=driver), **how)

    @property
    def is_file(self):
        return self.url.get_backend_name() == "sqlite"

    @property
    def fence(self):
        return dict(self.order("SELECT xid, outcome FROM txmq_fence"))

    @property
    def debits(self):
        return dict(self.order("SELECT id, xid FROM debit"))

    def credit(self, order_id, amount):
        """What bank B does with a message, which may be delivered again."""
        with self.engine.begin() as connection:
            connection.execute(
                text("INSERT INTO credit VALUES (:id, :amount) ON CONFLICT DO NOTHING"),
                {"id": order_id, "amount": amount},
            )

    @property
    def total(self):
        """The sum of all money once nothing is in flight."""
        ((kept,),) = self.order("SELECT sum(balance) FROM account")
        ((credited,),) = self.order("SELECT coalesce(sum(amount), 0) FROM credit")
        return kept + credited

    def close(self):
        self.engine.dispose()


class Scene:
    """A bank, a broker, and the group and topic of one test."""

    def __init__(self, broker, bank, name):
        self.broker = broker
        self.bank = bank
        self.group = f"icbc-{name}"
        self.topic = f"transfer-{name}"

    def open(self, state=""):
        return self.broker.open_transactions(self.group, state)

    async def until_settled(self):
        """Nothing is undecided, and nothing waits for an operator."""
        await self.until(lambda: not self.open(), "everything to be decided")

    async def until(self, fact, what):
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not fact():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"waited for {what}; open: {self.open()}") from None

    def visible(self):
        """Every message that can be seen: order and transaction."""
        found = []
        for number in range(QUEUES):
            offset, end = 0, self.broker.max_offset(self.topic, number)
            while offset < end:
                records = self.broker.records(self.topic, number, offset)
                found += records
                offset += len(records)
        return [(record.properties["KEYS"], record.properties["UNIQ_KEY"]) for record in found]

    def agree(self):
        """The database and the topic are one fact, and no money is lost or made."""
        seen, fence, debits = self.visible(), self.bank.fence, self.bank.debits
        assert len({key for key, _ in seen}) == len(seen), "a message is there twice"
        assert dict(seen) == debits
        assert {xid for xid, outcome in fence.items() if outcome == COMMITTED} == set(
            debits.values()
        )
        for _ in range(2):
            for key, _ in seen:
                self.bank.credit(key, 1)
        assert self.bank.total == OPENING * len(PAYERS)
        assert self.open() == []
