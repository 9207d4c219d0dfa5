"""What PostgreSQL does to a manager's local transactions: killed backends, deadlocks, hot rows."""

import asyncio
import contextlib

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import StaticPool

from tests.integration.transaction.crash_bank import OPENING, ROLLED_BACK, Order
from tests.integration.transaction.crash_stage import on_scene
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq import (
    ConsumerSettings,
    PushConsumer,
    SQLResource,
    StartFrom,
    TransactionManager,
    TransactionState,
)
from txmq.errors import DatabaseFailed, FenceElsewhere, OutcomeUnknown
from txmq.runtime.clock import SystemClock

COMMITTED_STATE = TransactionState.COMMITTED


@pytest.fixture
def bank(bank_for):
    return bank_for("postgres")


@contextlib.asynccontextmanager
async def engine_of(bank, **how):
    engine = bank.awaited(**how)
    try:
        yield engine
    finally:
        await engine.dispose()


def manager_of(scene, source):
    return TransactionManager(scene.group, scene.broker.names, SQLResource(source))


def transferring(scene, manager, function):
    decorate = manager.transactional(topic=scene.topic, keys=lambda order: order.id)
    return decorate(function)


async def book(manager, session, order):
    await session.execute(text(order.written(manager.current().xid)))
    await session.execute(text(order.taken()))


@pytest.mark.fault("D1")
@run_by(in_loop)
async def test_a_backend_killed_during_the_commit_leaves_the_decision_to_a_check(broker, bank):
    """A deferred trigger keeps the commit open while a lock is held."""
    bank.order(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$"
    )
    bank.order(
        "CREATE CONSTRAINT TRIGGER last AFTER INSERT ON debit DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query = 'COMMIT'"

    async with on_scene(broker, bank) as scene, engine_of(bank) as engine:
        manager = manager_of(scene, engine)

        async def function(session, order):
            await book(manager, session, order)

        async with manager:
            transfer = transferring(scene, manager, function)
            with bank.engine.connect() as holder:
                holder.execute(text("SELECT pg_advisory_lock(7)"))
                calling = asyncio.ensure_future(transfer(Order("t-1")))
                await scene.until(lambda: bank.order(waiting), "the commit to wait")
                bank.order(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS those")
                outcome = await calling
            assert outcome.state is TransactionState.UNKNOWN
            assert isinstance(outcome.problem, OutcomeUnknown)
            await scene.until_settled()
            assert bank.fence == {outcome.xid: ROLLED_BACK}
            scene.agree()


@pytest.mark.fault("D3")
@run_by(in_loop)
async def test_serialization_failures_are_retried_under_the_same_transaction_id(broker, bank):
    """They may come at any statement, and at the COMMIT."""
    runs = []

    async with (
        on_scene(broker, bank) as scene,
        engine_of(bank, isolation_level="SERIALIZABLE") as engine,
    ):
        manager, met = manager_of(scene, engine), asyncio.Barrier(2)

        async def function(session, order):
            runs.append(manager.current().xid)
            await session.execute(text("SELECT count(*) FROM debit"))
            if len(runs) <= 2:
                await met.wait()
            await book(manager, session, order)

        async with manager:
            transfer = transferring(scene, manager, function)
            outcomes = await asyncio.gather(
                transfer(Order("t-1", "A0")), transfer(Order("t-2", "A1"))
            )
            assert [outcome.state for outcome in outcomes] == [COMMITTED_STATE] * 2
            assert len(runs) > 2
            assert set(runs) == {outcome.xid for outcome in outcomes}
        scene.agree()


@pytest.mark.fault("D4")
def test_a_database_switched_after_the_start_is_refused(broker, bank, postgres):
    """A fence of the same name, in a database that somebody has switched to."""

    async def story(other):
        async with on_scene(broker, bank) as scene:
            where = [bank.url]
            manager = manager_of(scene, lambda: psycopg.connect(conninfo(where[0])))

            def function(session, order):
                session.execute(order.taken())

            async with manager:
                transfer = transferring(scene, manager, function)
                where[0] = other.url
                with pytest.raises(FenceElsewhere):
                    await transfer(Order("t-1"))
            assert other.fence == bank.fence == {}
            scene.agree()

    with postgres.database() as url:
        other = type(bank)(url).prepare()
        asyncio.run(story(other))
        other.close()


class Careless:
    """A pool of one connection, which it gives back as it was left."""

    def __init__(self, connection):
        self._connection = connection

    def getconn(self):
        return self._connection

    def putconn(self, connection):
        pass


@pytest.mark.fault("D7")
@pytest.mark.parametrize("state", ["failed", "open"])
@run_by(in_loop)
async def test_a_pooled_connection_with_an_open_or_failed_transaction_is_refused(
    broker, bank, state
):
    with psycopg.connect(conninfo(bank.url)) as connection:
        async with on_scene(broker, bank) as scene:
            manager = manager_of(scene, Careless(connection))

            def function(session, order):
                session.execute(order.taken())

            async with manager:
                transfer = transferring(scene, manager, function)
                connection.execute("INSERT INTO credit VALUES ('nobody''s', 1)")
                if state == "failed":
                    with pytest.raises(psycopg.errors.UniqueViolation):
                        connection.execute("INSERT INTO credit VALUES ('nobody''s', 1)")
                with pytest.raises(DatabaseFailed):
                    await transfer(Order("t-1"))
            connection.rollback()
            assert bank.fence == {}
            scene.agree()


@pytest.mark.fault("D7")
@run_by(in_loop)
async def test_an_engine_connection_in_a_failed_transaction_is_refused(broker, bank):
    """With a pool that resets nothing."""
    engine = create_engine(bank.url, poolclass=StaticPool, pool_reset_on_return=None)
    async with on_scene(broker, bank) as scene:
        manager = manager_of(scene, engine)

        def function(session, order):
            session.execute(text(order.written(manager.current().xid)))
            session.execute(text(order.taken()))

        async with manager:
            transfer = transferring(scene, manager, function)
            raw = engine.raw_connection()
            raw.cursor().execute("INSERT INTO credit VALUES ('nobody''s', 1)")
            with pytest.raises(psycopg.errors.UniqueViolation):
                raw.cursor().execute("INSERT INTO credit VALUES ('nobody''s', 1)")
            raw.close()
            with pytest.raises(Exception, match="already in a transaction"):
                await transfer(Order("t-1"))
            assert bank.fence == {}
            outcome = await transfer(Order("t-2"))
            assert outcome.state is COMMITTED_STATE
            assert set(bank.debits) == {"t-2"}
            scene.agree()
    engine.dispose()


@pytest.mark.fault("D8")
@run_by(in_loop)
async def test_500_concurrent_debits_of_one_account_lose_none(patient_broker, bank):
    """Each reads the balance, waits for its turn of the loop, and writes what it computed."""
    count, clock = 500, SystemClock()

    async with on_scene(patient_broker, bank) as scene, engine_of(bank) as engine:
        manager = manager_of(scene, engine)

        async def function(session, order):
            await session.execute(text(order.written(manager.current().xid)))
            locked = f"SELECT balance FROM account WHERE name = '{order.payer}' FOR UPDATE"
            balance = (await session.execute(text(locked))).scalar_one()
            await asyncio.sleep(0)
            taken = "UPDATE account SET balance = :left WHERE name = :name"
            left = {"left": balance - order.amount, "name": order.payer}
            await session.execute(text(taken), left)

        async with manager:
            transfer = transferring(scene, manager, function)
            began = clock.monotonic()
            outcomes = await asyncio.gather(
                *[transfer(Order(f"t-{number}")) for number in range(count)]
            )
            took_s = clock.monotonic() - began
            await scene.until_settled()
        assert {outcome.state for outcome in outcomes} == {COMMITTED_STATE}
        balances = dict(bank.order("SELECT name, balance FROM account"))
        assert balances["A0"] == OPENING - count
        assert bank.debits == {
            f"t-{number}": outcome.xid for number, outcome in enumerate(outcomes)
        }
        scene.agree()
        print(f"{count} debits of one account: {count / took_s:.0f} a second")


@pytest.mark.fault("M10")
@run_by(in_loop)
async def test_a_message_arrives_only_after_its_debit_is_visible(broker, bank):
    """It is invisible while the debit is not committed, however long that takes."""
    seen = []

    async with on_scene(broker, bank) as scene, engine_of(bank) as engine:
        manager = manager_of(scene, engine)
        consumer = PushConsumer(
            "readers-of-" + scene.group,
            scene.broker.names,
            ConsumerSettings(start=StartFrom.FIRST),
        )

        @consumer.on(scene.topic)
        async def credit(message):
            seen.append((message.key, message.key in bank.debits))

        async def function(session, order):
            await book(manager, session, order)
            await asyncio.sleep(0)
            if order.id == "t-slow":
                written.set()
                await goes_on.wait()

        written, goes_on = asyncio.Event(), asyncio.Event()
        async with manager, consumer:
            transfer = transferring(scene, manager, function)
            slow = asyncio.ensure_future(transfer(Order("t-slow", "A0")))
            await written.wait()
            others = [f"t-{number}" for number in range(20)]
            await asyncio.gather(*[transfer(Order(name, "A1")) for name in others])
            await scene.until(lambda: len(seen) == len(others), "the others to arrive")
            assert len(scene.open()) == 1
            goes_on.set()
            await slow
            await scene.until(lambda: len(seen) == len(others) + 1, "the slow one to arrive")
        assert {key for key, _ in seen} == {"t-slow", *others}
        assert all(is_committed for _, is_committed in seen)
        scene.agree()
