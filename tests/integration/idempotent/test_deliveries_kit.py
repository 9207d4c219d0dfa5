"""The test kit for users, tried on our own guard and real databases: it accepts correct handlers,
and catches wrong ones.

TXMQ_SOAK delivers 10,000 keys, or as many as it says.
"""

import contextlib
import os

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.faults.broken_guards import MARK, MarkedFirst
from tests.running import in_loop, run_by
from tests.traffic.effects import EFFECT, PAYMENT, engine_options
from txmq.idempotent.guard import idempotent
from txmq.idempotent.unique_key import UniqueKeyTable
from txmq.testing.deliveries import Deliveries, End, Point, received

FIRST_START_SECONDS = 300
SOAK = int(os.environ.get("TXMQ_SOAK") or 0)

pytestmark = [] if SOAK else pytest.mark.timeout(FIRST_START_SECONDS)


def keys(modest):
    return modest if not SOAK else (10_000 if SOAK == 1 else SOAK)


def deliveries(count, **how):
    messages = [received("Orders", b"tea", key=f"order-{number}") for number in range(count)]
    return Deliveries(messages, **how)


@pytest.fixture
def blocking(effects_in):
    """An engine for handlers that block, and where its effects are seen."""
    with contextlib.ExitStack() as stack:

        def make(kind):
            effects = effects_in(kind)
            engine = create_engine(effects.url, pool_size=8, **engine_options(effects.url))
            stack.callback(engine.dispose)
            return engine, effects

        yield make


def work(session, message):
    session.execute(EFFECT, {"key": message.key})
    session.execute(PAYMENT)


def all_is_once(report, effects):
    report.see_once(effects.by_key())
    assert effects.balance() == effects.rows_done() == len(report.keys)
    killed = {outcome.words for outcome in report.ended(End.KILLED)}
    assert killed == {point.value for point in (Point.CLAIMED, Point.WORKED, Point.ENDED)}


@pytest.mark.parametrize(("kind", "count"), [("postgres", 150), ("sqlite", 100)])
def test_a_unique_key_table_gives_every_key_one_effect(blocking, kind, count):
    engine, effects = blocking(kind)
    bill = idempotent(UniqueKeyTable(engine), key=lambda message: message.key)(work)

    report = deliveries(keys(count), seed=7).run(bill)

    all_is_once(report, effects)


@run_by(in_loop)
async def test_an_async_unique_key_table_gives_every_key_one_effect(effects_in):
    effects = effects_in("postgres")
    engine = create_async_engine(effects.url, pool_size=8)

    @idempotent(UniqueKeyTable(engine), key=lambda message: message.key)
    async def bill(session, message):
        await session.execute(EFFECT, {"key": message.key})
        await session.execute(PAYMENT)

    report = await deliveries(keys(100), seed=7).run_async(bill)
    await engine.dispose()
    all_is_once(report, effects)


def test_a_handler_without_a_guard_is_caught(blocking):
    engine, effects = blocking("postgres")

    def bill(message):
        with engine.begin() as connection:
            work(connection, message)

    report = deliveries(20).run(bill)

    with pytest.raises(
        AssertionError, match="20 keys did not have exactly one effect, 0 of them had none"
    ):
        report.see_once(effects.by_key())


def test_marking_a_key_done_before_the_work_is_caught(blocking):
    engine, effects = blocking("postgres")
    bill = idempotent(MarkedFirst(engine), key=lambda message: message.key)(work)

    report = deliveries(100).run(bill)

    with pytest.raises(
        AssertionError, match=r"(\d+) keys did not have exactly one effect, \1 of them had none"
    ):
        report.see_once(effects.by_key())


def test_checking_before_the_work_and_marking_after_it_is_caught(blocking):
    """A concurrent delivery passes the check too, and one that dies in between leaves no mark."""
    engine, effects = blocking("postgres")
    look = text("SELECT count(*) FROM txmq_done WHERE done_key = :key")

    def bill(message):
        with engine.begin() as connection:
            if connection.execute(look, {"key": message.key}).scalar_one():
                return
        with engine.begin() as connection:
            work(connection, message)
        with engine.begin() as connection:
            connection.execute(MARK, {"key": message.key})

    report = deliveries(100).run(bill)

    with pytest.raises(
        AssertionError, match=r"\d+ keys did not have exactly one effect, 0 of them had none"
    ):
        report.see_once(effects.by_key())
