"""What only MySQL and MariaDB do: give up in silence, lock what they read."""

import asyncio
import contextlib

import pytest

from tests.integration.resources.resource_stage import (
    COMMIT,
    ON_MARIADB,
    ROLLBACK,
    UNKNOWN,
    Bank,
    insert,
    now_ms,
    said,
)
from tests.integration.resources.test_resource_faults import Rivals, settled, take
from tests.running import in_loop, run_by
from txmq.databases.failures import Failure, failure
from txmq.errors import DatabaseFailed, FenceUnsafe, TransactionBroken

DAY_S = 86_400


@pytest.fixture(params=ON_MARIADB)
def bank(request, bank_of_kind):
    """A MariaDB database with a fence, used through each driver."""
    return bank_of_kind(request.param)


@pytest.fixture
def one_bank(bank_of_kind):
    """The same, used through the blocking driver."""
    return bank_of_kind("mysql")


@contextlib.contextmanager
def holding(bank, statement):
    """A foreign transaction that has run a statement and stays open."""
    with bank.engine.connect() as connection:
        connection.exec_driver_sql(statement)
        yield connection
        connection.rollback()


@run_by("on_bank")
async def test_a_swallowed_deadlock_error_commits_nothing(stage, /, bank):
    """The database has begun another transaction by then, and a check may have come."""
    rivals = Rivals(bank, stage)

    async def stops(xid, session, problem):
        assert failure(problem) is Failure.RETRY
        bank.order(f"INSERT INTO txmq_fence VALUES ('{xid}', 2, 'icbc', 1)")
        await said(session, insert(xid))

    found = await rivals.meet(stops)
    (problem,) = [problem for problem in found if problem is not None]
    assert isinstance(problem, TransactionBroken)
    (lost,) = [xid for xid, local in rivals.locals.items() if local.state is ROLLBACK]
    assert await stage.check(lost) is ROLLBACK
    assert lost not in bank.orders


@run_by(in_loop)
async def test_a_lock_wait_timeout_undoes_only_its_statement(bank):
    bank.order("INSERT INTO orders VALUES ('a', 1)")
    async with bank.stage() as stage:
        local = stage.begin("x-1")

        async def work(session):
            await said(session, "SET SESSION innodb_lock_wait_timeout = 1")
            with holding(bank, "UPDATE orders SET amount = 7"):
                with pytest.raises(Exception) as caught:
                    await take(session, "a")
                assert failure(caught.value) is Failure.LOCKED
            await said(session, insert("x-1"))

        await stage.run(local, work)
        assert local.state is COMMIT
    assert bank.order("SELECT xid, amount FROM orders ORDER BY xid") == [("a", 1), ("x-1", 1)]


@run_by("on_bank")
async def test_an_open_savepoint_is_committed_with_its_transaction(stage, /, bank):
    local = stage.begin("x-1")

    async def work(session):
        nested = session.begin_nested()
        if not stage.resource.is_blocking:
            await nested
        await said(session, insert("x-1"))

    await stage.run(local, work)
    assert local.state is COMMIT
    assert bank.orders == {"x-1"}


@run_by(in_loop)
async def test_a_cancelled_transaction_leaves_nothing(bank_of_kind):
    bank = bank_of_kind("mysql-async")
    async with bank.stage() as stage:
        local, has_begun = stage.begin("x-1"), asyncio.Event()

        async def work(session):
            await said(session, insert("x-1"))
            has_begun.set()
            await said(session, "SELECT SLEEP(2)")

        running = asyncio.ensure_future(stage.run(local, work))
        await has_begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert local.state is ROLLBACK
        assert await settled(stage, "x-1") is ROLLBACK
    assert bank.orders == set()


@run_by(in_loop)
async def test_cleaning_does_not_wait_for_read_committed_sessions(one_bank):
    """And no session waits for the cleaning: it locks only old rows."""
    bank = one_bank
    engine = {"isolation_level": "READ COMMITTED"}
    async with bank.stage(engine=engine) as stage:
        for number in range(7):
            await stage.order(f"x-{number}")
        bank.order("UPDATE txmq_fence SET created_ms = created_ms - :age", age=3 * DAY_S * 1000)
        removed = []
        local = stage.begin("x-8")

        def blocking():
            with local as session:
                session.connection().exec_driver_sql(insert("x-8"))
                for _ in range(2):
                    removed.append(asyncio.run(stage.resource.clean(DAY_S, batch=3)))

        await asyncio.to_thread(blocking)
        assert removed == [0, 7]
        assert local.state is COMMIT
    assert set(bank.fence) == {"x-8"}


@run_by(in_loop)
async def test_cleaning_gives_up_while_local_transactions_lock_the_mark(one_bank):
    """At REPEATABLE READ, their default, each keeps the mark locked."""
    async with one_bank.stage() as stage:
        identity = stage.resource.identity
        claim = (
            "INSERT INTO txmq_fence SELECT 'x-1', 1, 'icbc', 1 FROM txmq_fence_mark "
            f"WHERE identity = '{identity}'"
        )
        refused = pytest.raises(DatabaseFailed, match="cleaned now")
        with holding(one_bank, claim), refused:
            await stage.resource.clean(DAY_S)
        assert await stage.resource.clean(DAY_S) == 0


@run_by(in_loop)
async def test_a_myisam_fence_is_refused(one_bank):
    one_bank.order("ALTER TABLE txmq_fence ENGINE = MyISAM")
    async with one_bank.stage(verified=False) as stage:
        with pytest.raises(FenceUnsafe, match="engine"):
            await stage.resource.verify()
    assert one_bank.fence == {}


@run_by(in_loop)
async def test_fence_row_times_do_not_depend_on_the_session_time_zone(one_bank):
    engine = {"connect_args": {"init_command": "SET time_zone = '-08:00'"}}

    begin_ms = now_ms()
    async with one_bank.stage(engine=engine) as stage:
        await stage.order("x-1")
    ((found_ms,),) = one_bank.order("SELECT created_ms FROM txmq_fence")
    assert begin_ms - 1000 <= found_ms <= now_ms() + 1000


@run_by(in_loop)
async def test_a_service_needs_only_select_and_insert(one_bank, request):
    bank = one_bank
    database = bank.url.database
    bank.order("CREATE OR REPLACE USER teller@'%' IDENTIFIED BY 'secret'")
    for right, table in (
        ("SELECT, INSERT", "txmq_fence"),
        ("SELECT", "txmq_fence_mark"),
        ("SELECT, INSERT", "orders"),
    ):
        bank.order(f"GRANT {right} ON {database}.{table} TO teller@'%'")
    request.addfinalizer(lambda: bank.order("DROP USER teller@'%'"))
    teller = Bank("mysql", bank.url.set(username="teller", password="secret"))
    request.addfinalizer(teller.close)
    async with teller.stage() as stage:
        assert await stage.order("x-1") is COMMIT
        assert [await stage.check("x-1"), await stage.check("x-2")] == [COMMIT, ROLLBACK]


@run_by(in_loop)
async def test_a_check_is_unknown_while_the_fence_tables_are_locked(one_bank):
    """Locks on tables have a timeout of their own, of a day."""
    async with one_bank.stage() as stage:
        with holding(one_bank, "LOCK TABLES txmq_fence READ, txmq_fence_mark READ") as other:
            assert await stage.check("x-1") is UNKNOWN
            other.exec_driver_sql("UNLOCK TABLES")
        assert await stage.check("x-1") is ROLLBACK
