"""A guarded handler that returns messages: its key, its work and its messages are one commit."""

import json
from collections import Counter

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.ext.asyncio import create_async_engine

from tests.integration.idempotent.test_deliveries_kit import all_is_once, deliveries, keys, work
from tests.running import in_loop, run_by
from tests.traffic.effects import EFFECT, PAYMENT, engine_options
from txmq import Later, Message, Outbox, create_outbox
from txmq.errors import UsageError
from txmq.idempotent import UniqueKeyTable, idempotent
from txmq.testing import received

OUTBOX = Outbox()
ORDER = received("Orders", b"tea", key="order-1")


def bill_for(message):
    return Message(topic="Bills", body=message.body, keys=(message.key,))


def guarded(engine, function, **how):
    """A function as its consumer calls it."""
    published = OUTBOX.publishes(**how)(function)
    return idempotent(UniqueKeyTable(engine), key=lambda message: message.key, scope="s")(published)


@pytest.fixture
def shop(effects_in):
    """An engine of a kind of database, what happened there, and the rows of its outbox."""
    engines = []

    def make(kind):
        effects = effects_in(kind)
        engine = create_engine(effects.url, pool_size=8, **engine_options(effects.url))
        engines.append(engine)
        create_outbox(engine)

        def rows():
            with engine.connect() as connection:
                table = OUTBOX.rows.c
                return connection.execute(select(table.topic, table.keys_, table.lane)).all()

        return engine, effects, rows

    yield make
    for engine in engines:
        engine.dispose()


def keys_of(rows):
    return Counter(key for row in rows for key in json.loads(row.keys_))


@pytest.mark.parametrize(("kind", "count"), [("postgres", 100), ("sqlite", 60)])
def test_every_key_is_worked_and_published_once_whenever_consumers_die(shop, kind, count):
    engine, effects, rows = shop(kind)

    def bill(session, message):
        work(session, message)
        return bill_for(message)

    report = deliveries(keys(count), seed=11).run(guarded(engine, bill))

    all_is_once(report, effects)
    report.see_once(keys_of(rows()))


@run_by(in_loop)
async def test_an_async_handler_publishes_once(shop):
    _, effects, rows = shop("postgres")
    engine = create_async_engine(effects.url, pool_size=8)

    async def bill(session, message):
        await session.execute(EFFECT, {"key": message.key})
        await session.execute(PAYMENT)
        return [bill_for(message)]

    report = await deliveries(keys(100), seed=12).run_async(guarded(engine, bill))

    all_is_once(report, effects)
    report.see_once(keys_of(rows()))
    await engine.dispose()


def test_a_publish_without_the_key_is_caught(shop):
    """It commits by itself, so a consumer that dies before the key's commit publishes again."""
    engine, _, rows = shop("postgres")

    def bill(session, message):
        work(session, message)
        with engine.begin() as connection:
            OUTBOX.add(connection, bill_for(message))

    report = deliveries(100).run(guarded(engine, bill))

    with pytest.raises(AssertionError, match="keys did not have exactly one effect, 0 of them"):
        report.see_once(keys_of(rows()))


@pytest.mark.parametrize(
    ("made", "lanes"),
    [
        (None, []),
        (Later(), []),
        ([], []),
        (bill_for(ORDER), ["order-1"]),
        ((bill_for(ORDER), bill_for(ORDER)), ["order-1", "order-1"]),
    ],
)
def test_a_handler_returns_no_message_one_or_several(shop, made, lanes):
    engine, effects, rows = shop("sqlite")
    handler = guarded(engine, lambda session, message: made, lane=lambda message: message.key)

    assert handler(ORDER) == (made if isinstance(made, Later) else None)

    assert [row.lane for row in rows()] == lanes
    assert effects.rows_done() == (0 if isinstance(made, Later) else 1)


@pytest.mark.parametrize("made", ["text", 7, {"topic": "Bills"}])
def test_another_result_is_refused_and_leaves_the_key_free(shop, made):
    engine, effects, rows = shop("sqlite")

    with pytest.raises(UsageError, match="return a Message to publish"):
        guarded(engine, lambda session, message: made)(ORDER)

    assert (rows(), effects.rows_done()) == ([], 0)


@run_by(in_loop)
async def test_a_session_of_the_other_kind_is_refused_and_nothing_is_lost(shop):
    engine, effects, rows = shop("sqlite")
    awaited = create_async_engine(effects.url.set(drivername="sqlite+aiosqlite"))

    def plain(session, message):
        return bill_for(message)

    async def coroutine(session, message):
        return bill_for(message)

    with pytest.raises(UsageError, match="needs a session that blocks"):
        async with awaited.begin() as connection:
            OUTBOX.publishes()(plain)(connection, ORDER)
    with pytest.raises(UsageError, match="for asyncio"), engine.begin() as connection:
        await OUTBOX.publishes()(coroutine)(connection, ORDER)
    with pytest.raises(UsageError, match="by its position"):
        OUTBOX.publishes()(plain)(session=engine, message=ORDER)
    assert rows() == []
    await awaited.dispose()


def test_a_method_and_a_fixed_lane(shop):
    engine, _, rows = shop("sqlite")

    class Desk:
        @idempotent(UniqueKeyTable(engine), key=lambda message: message.key)
        @OUTBOX.publishes(lane="bills")
        def bill(self, session, message) -> Message:
            return bill_for(message)

    Desk().bill(ORDER)

    assert [tuple(row) for row in rows()] == [("Bills", '["order-1"]', "bills")]
    assert "return" not in Desk.bill.__annotations__
