"""A stage for books: one bank's database, written by the example and inspected from outside."""

import asyncio
import contextlib
import functools
import shutil
import tempfile

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from examples.bank_transfer.books import Account, Entry, Transfer
from examples.bank_transfer.databases import async_engine, create_books, engine, open_accounts

DAY_MS = 86_400_000
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2
TABLES = "journal", "transfers", "accounts", "txmq_fence", "txmq_done", "txmq_outbox"


def run(work):
    """Run a coroutine where no event loop runs."""
    return asyncio.run(work)


@functools.cache
def _empty():
    """Made once and copied for each test, since creating tables takes a while."""
    folder = tempfile.TemporaryDirectory(prefix="txmq-books-")
    create_books(f"sqlite:///{folder.name}/empty.db")
    return folder


def sqlite_in(folder, name="bank"):
    """A database of SQLite with empty books."""
    return f"sqlite:///{shutil.copy(f'{_empty().name}/empty.db', f'{folder}/{name}.db')}"


class Books:
    """The books of one bank."""

    def __init__(self, url, accounts=(), now_ms=0):
        self.url = url
        self.looking = engine(url)
        self.open(accounts, now_ms)

    def open(self, accounts, now_ms=0):
        open_accounts(self.url, accounts, now_ms)

    def close(self):
        self.looking.dispose()

    def empty(self):
        with self.looking.begin() as connection:
            for table in TABLES:
                connection.execute(text(f"DELETE FROM {table}"))

    @contextlib.asynccontextmanager
    async def engine(self):
        made = async_engine(self.url)
        try:
            yield made
        finally:
            await made.dispose()

    def do(self, step, *args, **kwargs):
        """Run one step in its own database transaction."""

        async def work():
            async with self.engine() as made, AsyncSession(made) as session, session.begin():
                return await step(session, *args, **kwargs)

        return run(work())

    def change(self, number, **values):
        with self.looking.begin() as connection:
            connection.execute(update(Account).where(Account.number == number).values(**values))

    def waiting(self):
        """How many wait for a lock; PostgreSQL's."""
        wanted = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with self.looking.connect() as connection:
            return connection.execute(text(wanted)).scalar()

    def account(self, number):
        with Session(self.looking) as session:
            return session.get(Account, number)

    def transfer(self, of):
        with Session(self.looking) as session:
            return session.get(Transfer, of)

    def transfers(self):
        with Session(self.looking) as session:
            return {transfer.id: transfer for transfer in session.scalars(select(Transfer))}

    def balances(self):
        with self.looking.connect() as connection:
            return dict(connection.execute(select(Account.number, Account.balance)).all())

    def sums(self, *by):
        """What the journal adds up to, by some of its columns."""
        wanted = select(*by, func.sum(Entry.amount)).group_by(*by)
        with self.looking.connect() as connection:
            return {
                tuple(keys) if keys[1:] else keys[0]: int(amount)
                for *keys, amount in connection.execute(wanted)
            }

    def faults(self):
        """What is wrong with the books."""
        found = [f"{n} has {b}" for n, b in self.balances().items() if b < 0]
        found += [
            f"{of} adds up to {a}"
            for of, a in self.sums(Entry.transfer, Entry.currency).items()
            if a
        ]
        journal = self.sums(Entry.account)
        found += [
            f"{number} has {balance}, its journal {journal.get(number, 0)}"
            for number, balance in self.balances().items()
            if balance != journal.get(number, 0)
        ]
        return found
