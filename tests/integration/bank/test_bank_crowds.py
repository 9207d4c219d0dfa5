"""Many debits of one account at once, on PostgreSQL: one statement each, and never too much."""

import asyncio
from collections import Counter

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bank_transfer.booking import debit
from examples.bank_transfer.books import CAPITAL, CLEARING, Entry, State
from examples.bank_transfer.databases import Opening, async_engine, create_books
from examples.bank_transfer.orders import Order, Reason, Refused
from tests.integration.bank.books_stage import NOON_MS, Books

FIRST_START_SECONDS = 300
ORDERS, ENOUGH_FOR = 40, 30


@pytest.fixture(scope="module")
def url(postgres):
    with postgres.database() as database:
        rendered = database.render_as_string(hide_password=False)
        create_books(rendered)
        yield rendered


@pytest.mark.timeout(FIRST_START_SECONDS)
def test_concurrent_orders_are_each_debited_once_in_one_statement(url):
    books, counted = Books(url, [Opening("A-1", "Zhang", ENOUGH_FOR)]), Counter()

    async def play():
        engine = async_engine(url)

        @event.listens_for(engine.sync_engine, "before_cursor_execute")
        def count(_connection, _cursor, statement, *_):
            counted["statements"] += 1

        async def pay(number):
            order = Order(f"t-{number}", "A-1", "B-1", 1)
            try:
                async with AsyncSession(engine) as session, session.begin():
                    await debit(session, order, NOON_MS, way="half", xid="", state=State.SENT)
            except IntegrityError:
                counted["again"] += 1
            except Refused as error:
                counted[error.reason] += 1
            else:
                counted["debited"] += 1

        await pay("first")
        counted["of one"] = counted["statements"]
        await asyncio.gather(*[pay(number % ORDERS) for number in range(2 * ORDERS)])
        await engine.dispose()

    try:
        asyncio.run(play())

        assert counted["of one"] == 1
        assert counted["debited"] == ENOUGH_FOR
        assert counted["debited"] + counted["again"] + counted[Reason.TOO_LITTLE_MONEY] == (
            1 + 2 * ORDERS
        )
        assert books.balances() == {"A-1": 0}
        assert books.sums(Entry.account) == {
            "A-1": 0, CLEARING: ENOUGH_FOR, CAPITAL: -ENOUGH_FOR,
        }  # fmt: skip
        assert books.faults() == []
    finally:
        books.close()
