"""Messages that belong to a transaction of the application's, for every kind of session."""

import asyncio
import contextlib

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.integration.outbox.outbox_stage import INSERT, said, savepoint, transaction
from txmq import Message
from txmq.errors import LimitExceeded, LocalProtocolError, TableMissing, UsageError
from txmq.protocol import properties

WHOLE = Message(
    topic="transfer",
    body=b"\x00\xff body",
    tags="CCB",
    keys=("order-1", "Überweisung"),
    properties={"currency": "CNY", "note": "100 % 'sure' :x ä 中"},
    flag=-7,
    deliver_after=0,
)


class Refused(Exception):
    """What an application raises."""


def plain(body=b"one", **others):
    return Message(topic="transfer", body=body, **others)


def numbered(count):
    return [plain(str(number).encode()) for number in range(count)]


def test_a_committed_message_is_stored_as_it_was_given(shop):
    async def main():
        async with shop.session() as session, transaction(session):
            await said(session, INSERT.format("order-1"))
            return await shop.add(session, WHOLE, lane="account-1")

    unique_id = shop.run(main())

    [row], [message] = shop.rows, shop.messages
    assert shop.orders == ["order-1"]
    assert (row.lane, row.message_id, row.failed_ms, row.problem) == (
        "account-1", unique_id, None, None,
    )  # fmt: skip
    assert message.properties.pop(properties.UNIQUE_KEY) == unique_id
    assert message == WHOLE
    assert abs(row.created_ms - shop_clock_ms(shop)) < 60_000


def shop_clock_ms(shop):
    from txmq.databases.dialects import NOW_MS, kind_of

    [(now_ms,)] = shop.order(f"SELECT {NOW_MS[kind_of(shop.url.get_backend_name())]}")
    return now_ms


def test_a_rollback_removes_the_message(shop):
    async def main():
        async with shop.session() as session:
            with contextlib.suppress(Refused):
                async with transaction(session):
                    await said(session, INSERT.format("order-1"))
                    await shop.add(session, plain(), lane="a")
                    raise Refused

    shop.run(main())

    assert (shop.orders, shop.rows) == ([], [])


def test_a_savepoint_rollback_removes_only_its_own_messages(shop):
    async def main():
        async with shop.session() as session, transaction(session):
            await shop.add(session, plain(b"before"), lane="a")
            with contextlib.suppress(Refused):
                async with savepoint(session):
                    await shop.add(session, plain(b"inside"), lane="a")
                    raise Refused
            async with savepoint(session):
                await shop.add(session, plain(b"kept"), lane="a")
            await shop.add(session, plain(b"after"), lane="a")

    shop.run(main())

    assert shop.bodies() == [b"before", b"kept", b"after"]


def test_add_many_keeps_the_order_of_the_messages(shop):
    async def main():
        async with shop.session() as session, transaction(session):
            first = await shop.add_many(session, numbered(300), lane="a")
            assert await shop.add_many(session, []) == []
            return first + await shop.add_many(session, [WHOLE, plain(b"x" * 70_000, tags="t")])

    ids = shop.run(main())

    assert [row.message_id for row in shop.rows] == ids
    assert len(set(ids)) == 302
    assert shop.bodies() == [message.body for message in numbered(300)] + [
        WHOLE.body,
        b"x" * 70_000,
    ]
    assert [row.lane for row in shop.rows] == ["a"] * 300 + [None] * 2


@pytest.mark.parametrize(
    ("message", "lane", "problem"),
    [
        (plain(b""), None, LocalProtocolError),
        (Message(topic="a topic", body=b"x"), None, LocalProtocolError),
        (plain(b"x" * (4 * 1024 * 1024 + 1)), None, LimitExceeded),
        (plain(properties={"p": "x" * 32_600}), None, LimitExceeded),
        (plain(), "", LocalProtocolError),
        (plain(), "x" * 256, LimitExceeded),
        (plain(tags="\0"), None, LocalProtocolError),
        ("a text", None, LocalProtocolError),
    ],
)
def test_an_unsendable_message_is_refused_and_the_transaction_continues(
    shop_on, message, lane, problem
):
    shop = shop_on("sqlite-session")

    async def main():
        async with shop.session() as session, transaction(session):
            await said(session, INSERT.format("order-1"))
            with pytest.raises(problem):
                await shop.add(session, message, lane)

    shop.run(main())

    assert (shop.orders, shop.rows) == (["order-1"], [])


def test_an_autocommit_session_is_refused(shop):
    async def main():
        settings = {"isolation_level": "AUTOCOMMIT"}
        if shop.kind.endswith("psycopg"):
            settings = {"autocommit": True}
        if shop.kind.endswith("django"):
            settings = {}
        async with shop.session(**settings) as session:
            with pytest.raises(UsageError, match="commits each statement"):
                await shop.add(session, plain())

    shop.run(main())

    assert shop.rows == []


def test_a_session_need_not_have_begun_a_transaction(shop):
    async def main():
        async with shop.session() as session:
            if hasattr(session, "vendor"):
                session.set_autocommit(False)
            await shop.add(session, plain())
            committed = session.commit()
            if committed is not None:
                await committed

    shop.run(main())

    assert shop.bodies() == [b"one"]


def test_a_missing_outbox_is_reported_with_the_command_that_creates_it(shop):
    shop.order("DROP TABLE txmq_outbox")

    async def main():
        async with shop.session() as session:
            with pytest.raises(TableMissing, match="txmq schema create outbox"):
                async with transaction(session):
                    await shop.add(session, plain())

    shop.run(main())


def test_an_engine_in_place_of_a_session_is_refused(shop_on):
    shop = shop_on("sqlite-session")

    with pytest.raises(UsageError, match="Engine is not a session"):
        shop.outbox.add(shop.engine, plain())


@pytest.mark.parametrize("kind", ["sqlite-session", "postgres-session"])
def test_a_scoped_session_is_accepted(shop_on, kind):
    shop = shop_on(kind)
    scope = scoped_session(sessionmaker(shop.engine))

    shop.outbox.add(scope, plain())
    assert shop.rows == []
    scope.commit()
    scope.remove()

    assert shop.bodies() == [b"one"]


@pytest.mark.parametrize("kind", ["sqlite-async-session", "postgres-async-session"])
def test_an_async_scoped_session_is_accepted(shop_on, kind):
    shop = shop_on(kind)

    async def main():
        async with shop.session() as session:
            sessions = async_sessionmaker(session.bind)
            scope = async_scoped_session(sessions, scopefunc=asyncio.current_task)
            await shop.outbox.add(scope, plain())
            assert shop.rows == []
            await scope.commit()
            await scope.remove()

    shop.run(main())

    assert shop.bodies() == [b"one"]


def test_a_session_with_several_binds_uses_the_database_of_the_outbox(shop_on, tmp_path):
    shop = shop_on("sqlite-session")
    other = create_engine(f"sqlite:///{tmp_path}/other.db")

    with Session(other, binds={shop.outbox.rows: shop.engine}) as session:
        shop.outbox.add(session, plain())
        session.commit()
    with Session() as session, pytest.raises(UsageError, match="no database for txmq_outbox"):
        shop.outbox.add(session, plain())
    other.dispose()

    assert shop.bodies() == [b"one"]


@pytest.mark.parametrize("kind", ["postgres-session", "postgres-psycopg"])
def test_adding_in_an_aborted_transaction_raises(shop_on, kind):
    shop = shop_on(kind)

    async def main():
        async with shop.session() as session:
            with contextlib.suppress(Exception):
                await said(session, "SELECT no_such_column")
            with pytest.raises((DBAPIError, psycopg.Error), match="transaction is aborted"):
                await shop.add(session, plain())
            session.rollback()
            await shop.add(session, plain())
            session.commit()

    shop.run(main())

    assert shop.bodies() == [b"one"]
