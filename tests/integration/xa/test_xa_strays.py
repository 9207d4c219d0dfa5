"""Transactions that nobody finishes, and two services on the same transaction."""

import asyncio
import contextlib

import pytest
from sqlalchemy import create_engine

from tests.integration.xa.xa_stage import (
    COMMIT,
    GROUP,
    MOVED,
    ROLLBACK,
    STILL,
    UNKNOWN,
    booked,
    now_ms,
    order_of,
    run,
    said,
    until,
)
from tests.integration.xa.xa_wire import REQUEST, Line
from tests.running import in_loop, run_by
from txmq import TransactionManager, XAResource
from txmq.errors import DatabaseFailed, OutcomeUnknown
from txmq.limits import XA_THREADS
from txmq.transaction import ManagerSettings
from txmq.transaction.resources import two_phase
from txmq_broker.testing import embedded


@pytest.mark.parametrize("kind", ["alchemy-async", "psycopg-pool-async", "psycopg"])
@run_by(in_loop)
async def test_an_id_already_prepared_by_another_service_is_left_alone(banks, kind):
    """Two run at the same time under one id, without waiting for each other's locks."""
    for bank in banks.banks.values():
        bank.order("DROP TABLE IF EXISTS booked")
        bank.order("CREATE TABLE booked (x INT)")

    async def work(sessions):
        for session in sessions.values():
            await said(session, "INSERT INTO booked VALUES (1)")

    async with banks.service() as first_service, banks.service(kind) as second_service:
        first = first_service.local("x-1", GROUP, now_ms())
        second = second_service.local("x-1", GROUP, now_ms())
        decide = first._decide

        async def meanwhile():
            with pytest.raises(OutcomeUnknown, match="already prepared"):
                await run(second_service, second, work)
            assert second.state is UNKNOWN
            await decide()

        first._decide = meanwhile
        await run(first_service, first, work)
        await first_service.confirm("x-1", first.state)
    rows = [bank.order("SELECT * FROM booked") for bank in banks.banks.values()]
    assert rows == [[(1,)], [(1,)]]
    banks.see_nothing_left()


@run_by(in_loop)
async def test_kept_branches_that_are_never_confirmed_are_recovered(banks):
    """Its manager was closed while its function hung, and another one has the same resource."""
    async with banks.service(
        confirm_timeout=0.2, recover_interval=0.05, is_attended=True
    ) as resource:
        await booked(resource)
        # A sweep gives the connections back after it has ended the last branch.
        await until(lambda: not banks.prepared and not resource._second.kept)
    assert banks.balances == MOVED
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_bank_that_hangs_does_not_take_the_threads_of_another(banks):
    count = XA_THREADS + 2
    for bank in banks.banks.values():
        bank.order("INSERT INTO account SELECT 'a-' || n, 0 FROM generate_series(1, 20) n")
    async with Line(banks["ccb"].url) as line:
        asleep = asyncio.Event()
        url = banks["ccb"].url.set(port=line.port)
        async with banks.service("psycopg", urls={"ccb": url}, confirm_timeout=1.0) as resource:

            def work(number):
                async def booked(sessions):
                    for session in sessions.values():
                        update = "UPDATE account SET balance = 1 WHERE name = "
                        await said(session, f"{update}'a-{number}'")

                return booked

            for number in range(1, count + 1):
                xid = f"x-{number}"
                await run(resource, resource.local(xid, GROUP, now_ms()), work(number))
            line.silence(asleep)
            confirming = [
                asyncio.create_task(resource.confirm(f"x-{number}", COMMIT))
                for number in range(1, count + 1)
            ]
            try:
                done = await asyncio.gather(*confirming, return_exceptions=True)
                left = list(banks["icbc"].prepared)
            finally:
                asleep.set()
            assert all("icbc" not in str(attempt) for attempt in done), done
            assert left == []
    async with banks.service() as resource:
        await resource.recover(0.0)
    banks.see_nothing_left()


@pytest.mark.parametrize(
    "kind", ["alchemy-async", "psycopg-async", "psycopg-pool-async", "psycopg"]
)
@run_by(in_loop)
async def test_a_bank_that_hangs_delays_callers_only_until_their_timeout(banks, kind):
    async with Line(banks["ccb"].url) as line:
        asleep = asyncio.Event()
        url = banks["ccb"].url.set(port=line.port)
        async with banks.service(
            kind, urls={"ccb": url}, confirm_timeout=0.5, is_attended=True
        ) as resource:
            local = await booked(resource)
            line.silence(asleep)
            try:
                async with asyncio.timeout(4):
                    with pytest.raises(DatabaseFailed, match="ccb"):
                        await resource.confirm("x-1", local.state)
                    if kind == "alchemy-async":
                        assert await resource.check("x-1", GROUP, now_ms()) is COMMIT
            finally:
                asleep.set()
    async with banks.service() as resource:
        await resource.recover(0.0)
    assert banks.balances == MOVED


@run_by(in_loop)
async def test_a_closing_manager_finishes_the_transfers_it_has_begun(banks):
    """With one connection per bank, a waiting transfer must not take the one that ends another."""
    engines = {
        name: create_engine(bank.url, pool_size=1, max_overflow=0)
        for name, bank in banks.banks.items()
    }
    resource = XAResource(engines, confirm_timeout=5.0)
    begun, may_go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    async with embedded() as broker:
        tm = TransactionManager(GROUP, broker.names, resource, ManagerSettings(stop_timeout=20.0))

        @tm.transactional(topic="transfer")
        def transfer(sessions, amount):
            with contextlib.suppress(StopIteration):
                order_of(amount)(sessions).send(None)
            if amount == 40:
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(may_go.wait(), loop).result()

        async with tm:
            first = asyncio.create_task(transfer(40))
            await begun.wait()
            second = asyncio.create_task(transfer(60))
            await asyncio.sleep(0.2)
            closing = asyncio.create_task(tm.__aexit__(None, None, None))
            await asyncio.sleep(0.2)
            async with asyncio.timeout(4):
                may_go.set()
                outcomes = await asyncio.gather(first, second)
                await closing
    resource.close()
    for engine in engines.values():
        engine.dispose()
    assert [outcome.problem for outcome in outcomes] == [None, None]
    assert banks.balances == MOVED
    banks.see_nothing_left()


@run_by(in_loop)
async def test_verify_succeeds_beside_a_recovery_with_a_zero_horizon(banks, monkeypatch):
    finish, seen = two_phase.finish, set()
    async with banks.service() as other, banks.service() as resource:

        async def later(adapter, gid, *, commits):
            if gid not in seen:
                seen.add(gid)
                await other.recover(0.0)
            return await finish(adapter, gid, commits=commits)

        monkeypatch.setattr(two_phase, "finish", later)
        await resource.verify()
        assert len(seen) == 2
    banks.see_nothing_left()


BUSY = (
    "SELECT state FROM pg_stat_activity WHERE datname IN (:icbc, :ccb) "
    "AND pid <> pg_backend_pid() AND state <> 'idle'"
)


@run_by(in_loop)
async def test_connections_are_outside_any_transaction_after_prepare(banks):
    """A server may kill idle transactions, and VACUUM waits for them."""
    async with banks.service(is_attended=True) as resource:
        local = await booked(resource)
        names = {name: bank.url.database for name, bank in banks.banks.items()}
        async with asyncio.timeout(5):  # A first recovery looks, and ends.
            while banks["ccb"].order(BUSY, **names):
                await asyncio.sleep(0.01)
        await resource.confirm("x-1", local.state)


LATE = [
    """CREATE OR REPLACE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''late'' USING ERRCODE = ''serialization_failure''; END'""",
    "CREATE TABLE late (x INT)",
    """CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION late()""",
]


@run_by(in_loop)
async def test_a_transaction_undone_over_another_connection_is_not_retried(banks):
    """A command sent over the lost connection may still arrive, and would hit the next attempt."""

    banks["ccb"].order("DROP TABLE IF EXISTS late")
    for statement in LATE:
        banks["ccb"].order(statement)
    async with Line(banks["icbc"].url) as line:
        url = banks["icbc"].url.set(port=line.port)
        async with banks.service(urls={"icbc": url}) as resource:
            local = resource.local("x-1", GROUP, now_ms())

            async def work(sessions):
                await order_of(100)(sessions)
                # It fails at the prepare, and could be retried.
                await said(sessions["ccb"], "INSERT INTO late VALUES (1)")
                line.wait_for((b"ROLLBACK PREPARED", b""), REQUEST)

            with pytest.raises(DatabaseFailed) as caught:
                await run(resource, local, work)
            assert local.state is ROLLBACK
            assert not resource.may_retry(caught.value)
    assert banks.balances == STILL
    banks.see_nothing_left()
