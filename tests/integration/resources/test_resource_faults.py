"""Broken connections, lost commit replies, deadlocks: which outcome may be reported then."""

import asyncio
from typing import NamedTuple

import psycopg
import pytest

from tests.integration.resources.resource_stage import (
    COMMIT,
    ON_MARIADB,
    ROLLBACK,
    UNKNOWN,
    Bank,
    insert,
    said,
)
from tests.integration.transaction.crash_wire import Wire
from tests.running import in_loop, run_by
from txmq.databases.failures import Failure, failure
from txmq.errors import OutcomeUnknown

KINDS = ["postgres", "postgres-async", "postgres-django", "psycopg-pool", "psycopg-async"]
ITS_PATIENCE_S = 5.0


class Server(NamedTuple):
    """The words of a kind of server."""

    number: str
    kill: str
    commit: bytes


SERVERS = {
    "postgresql": Server("pg_backend_pid()", "SELECT pg_terminate_backend({})", b"COMMIT\0"),
    "mysql": Server("CONNECTION_ID()", "KILL {}", b"\x03COMMIT"),
}


def kill(bank, number):
    bank.order(SERVERS[bank.url.get_backend_name()].kill.format(number))


async def kill_session(bank, session):
    question = f"SELECT {SERVERS[bank.url.get_backend_name()].number}"
    row = (await said(session, question)).fetchone()
    kill(bank, (await row if asyncio.iscoroutine(row) else row)[0])


async def take(session, row):
    await said(session, f"UPDATE orders SET amount = amount + 1 WHERE xid = '{row}'")


async def settled(stage, xid):
    """The answer of a check once the server has noticed a lost connection."""
    async with asyncio.timeout(20):
        while (answer := await stage.check(xid)) is UNKNOWN:
            pass
    return answer


class Proxy(Wire):
    """Stands between a service and its server, and cuts the line at a COMMIT."""

    def __init__(self, url):
        super().__init__(url.host, url.port)
        self._word = SERVERS[url.get_backend_name()].commit
        self.cuts = None
        self.seen = asyncio.Event()

    def line(self):
        return self

    async def _forward(self, reader, writer, look, side):
        while data := await reader.read(65536):
            if look(data):
                return
            if self.cuts == "never answers" and self.seen.is_set():
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()

    def asked(self, data):
        if self.cuts and self._word in data:
            self.seen.set()
        return self.cuts == "before" and self.seen.is_set()

    def answered(self, data):
        return self.cuts == "after" and self.seen.is_set()


class Rivals:
    """Two local transactions that take two rows crosswise, until the database stops one."""

    def __init__(self, bank, stage):
        bank.order("INSERT INTO orders VALUES ('a', 1), ('b', 1)")
        bank.order("ALTER TABLE orders ADD PRIMARY KEY (xid)")  # Else MariaDB locks all.
        self.stage = stage
        self.locals = {xid: stage.begin(xid) for xid in ("x-1", "x-2")}

    async def meet(self, stops):
        """The results of both; ``stops`` is called with the session that the database stopped."""
        met = asyncio.Barrier(2)

        async def move(xid, mine, theirs):
            async def work(session):
                await take(session, mine)
                await self.stage.outside(met.wait())
                try:
                    await take(session, theirs)
                except Exception as problem:
                    await stops(xid, session, problem)

            await self.stage.run(self.locals[xid], work)

        return await asyncio.gather(
            move("x-1", "a", "b"), move("x-2", "b", "a"), return_exceptions=True
        )


@pytest.mark.fault("P5", "D1")
@pytest.mark.parametrize("bank", [*KINDS, *ON_MARIADB], indirect=True)
@pytest.mark.parametrize(("cuts", "truth"), [("before", ROLLBACK), ("after", COMMIT)])
@run_by(in_loop)
async def test_a_lost_commit_reply_is_unknown_until_a_check_decides(bank, cuts, truth):
    # Django has one connection per thread.
    checks_of = bank.kind if bank.kind in ON_MARIADB else "psycopg-async"
    async with Proxy(bank.url) as proxy:
        far = Bank(bank.kind, bank.url.set(port=proxy.port))
        async with far.stage() as stage, bank.stage(checks_of) as checker:
            local = stage.begin("x-1")

            async def work(session):
                await said(session, insert("x-1"))
                proxy.cuts = cuts

            with pytest.raises(OutcomeUnknown):
                await stage.run(local, work)
            assert local.state is UNKNOWN
            assert await settled(checker, "x-1") is truth
        far.close()
    assert bank.orders == ({"x-1"} if truth is COMMIT else set())


@pytest.fixture
def impatient_driver(monkeypatch):
    """A driver that waits only briefly after it has asked the server to cancel."""

    def sooner(wait):
        def waits(*parts, timeout=None, **more):
            return wait(*parts, timeout=0.3 if timeout == ITS_PATIENCE_S else timeout, **more)

        return waits

    for name in ("wait_async", "wait_conn_async"):
        monkeypatch.setattr(psycopg.waiting, name, sooner(getattr(psycopg.waiting, name)))


@run_by(in_loop)
async def test_cancelling_during_the_commit_leaves_the_outcome_unknown(
    postgres_bank, impatient_driver
):
    async with Proxy(postgres_bank.url) as proxy:
        bank = Bank("psycopg-async", postgres_bank.url.set(port=proxy.port))
        async with bank.stage() as stage, postgres_bank.stage("psycopg-async") as checker:
            local = stage.begin("x-1")

            async def work(session):
                await said(session, insert("x-1"))
                proxy.cuts = "never answers"

            running = asyncio.ensure_future(stage.run(local, work))
            await proxy.seen.wait()
            running.cancel()
            # The driver asks the server to give up, over another connection.
            with pytest.raises((asyncio.CancelledError, OutcomeUnknown)):
                await running
            assert local.state is UNKNOWN
            assert await checker.check("x-1") is UNKNOWN
        bank.close()


@pytest.mark.parametrize("bank", [*KINDS, *ON_MARIADB], indirect=True)
@run_by("on_bank")
async def test_a_connection_killed_inside_a_transaction_leaves_nothing(stage, /, bank):
    local = stage.begin("x-1")

    async def work(session):
        await said(session, insert("x-1"))
        await kill_session(bank, session)
        await said(session, insert("x-1"))

    with pytest.raises(Exception) as caught:
        await stage.run(local, work)
    assert failure(caught.value) is Failure.LOST
    assert local.state is ROLLBACK
    assert await settled(stage, "x-1") is ROLLBACK
    assert await stage.order("x-2") is COMMIT  # The source has recovered.
    assert bank.orders == {"x-2"}


@pytest.mark.parametrize("bank", KINDS, indirect=True)
@run_by("on_bank")
async def test_a_connection_killed_before_the_commit_is_unknown_until_a_check_decides(
    stage, /, bank
):
    local = stage.begin("x-1")

    async def work(session):
        await said(session, insert("x-1"))
        await kill_session(bank, session)

    with pytest.raises(OutcomeUnknown):
        await stage.run(local, work)
    assert local.state is UNKNOWN
    assert await settled(stage, "x-1") is ROLLBACK


@pytest.mark.parametrize("kind", ["postgres-async", "psycopg-async-pool"])
@run_by(in_loop)
async def test_a_check_killed_while_it_waits_for_a_lock_is_unknown(postgres_bank, kind):
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    async with postgres_bank.stage(kind, resource={"check_wait": 30}) as stage:
        async with stage.begin("x-1"):
            asked = asyncio.ensure_future(stage.check("x-1"))
            while not (found := await asyncio.to_thread(postgres_bank.order, waiting)):
                assert not asked.done()
            kill(postgres_bank, found[0][0])
            assert await asked is UNKNOWN
        assert await stage.check("x-1") is COMMIT


@run_by(in_loop)
async def test_a_check_without_a_reachable_server_is_unknown():
    from sqlalchemy.engine import make_url

    bank = Bank("postgres", make_url("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    async with bank.stage("postgres-async", verified=False) as stage:
        stage.resource._identity = "known from before"
        assert await stage.check("x-1") is UNKNOWN
    bank.close()


@pytest.mark.fault("D3")
@pytest.mark.parametrize(
    "bank", ["postgres-async", "psycopg-async-pool", *ON_MARIADB], indirect=True
)
@run_by("on_bank")
async def test_a_deadlocked_transaction_can_be_retried_under_the_same_id(stage, /, bank):
    rivals = Rivals(bank, stage)

    async def stops(xid, session, problem):
        raise problem

    found = await rivals.meet(stops)
    (problem,) = [problem for problem in found if problem is not None]
    assert failure(problem) is Failure.RETRY
    (lost,) = [xid for xid, local in rivals.locals.items() if local.state is ROLLBACK]
    assert await stage.order(lost) is COMMIT


@run_by(in_loop)
async def test_a_serialization_failure_at_the_commit_is_a_certain_rollback(postgres_bank):
    engine = {"isolation_level": "SERIALIZABLE"}
    async with postgres_bank.stage("postgres-async", engine=engine) as stage:
        first, second = stage.begin("x-1"), stage.begin("x-2")

        async def skew():
            async with second as second_session:
                await said(second_session, "SELECT count(*) FROM orders")
                async with first as first_session:
                    await said(first_session, "SELECT count(*) FROM orders")
                    await said(first_session, insert("x-1"))
                await said(second_session, insert("x-2"))

        with pytest.raises(Exception) as caught:
            await skew()
        assert failure(caught.value) is Failure.RETRY
        assert (first.state, second.state) == (COMMIT, ROLLBACK)
        assert await stage.order("x-2") is COMMIT


@pytest.mark.parametrize("kind", KINDS)
@run_by(in_loop)
async def test_a_deferred_constraint_violation_is_a_certain_rollback(postgres_bank, kind):
    postgres_bank.order("ALTER TABLE orders ADD UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED")
    async with postgres_bank.stage(kind) as stage:
        await stage.order("x-1")
        local = stage.begin("x-2")
        with pytest.raises(Exception) as caught:
            await stage.say(local, insert("x-2"))
        assert failure(caught.value) is Failure.DUPLICATE
        assert local.state is ROLLBACK
    assert set(postgres_bank.fence) == {"x-1"}
