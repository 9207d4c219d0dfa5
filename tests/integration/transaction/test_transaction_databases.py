"""What PostgreSQL does to a manager's local transactions: killed backends, deadlocks, hot rows."""

import asyncio
import contextlib

import pytest
from sqlalchemy import text

from tests.integration.transaction.crash_bank import OPENING, ROLLED_BACK, Order
from tests.integration.transaction.crash_stage import on_scene
from tests.running import in_loop, run_by
from txmq import (
    ConsumerSettings,
    PushConsumer,
    SQLResource,
    StartFrom,
    TransactionManager,
    TransactionState,
)
from txmq.errors import OutcomeUnknown
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
