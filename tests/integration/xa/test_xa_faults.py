"""Connections break, and databases go down and come back, while the service runs on."""

import asyncio
import contextlib

import pytest

from tests.integration.transaction.crash_stage import soaked
from tests.integration.xa.xa_stage import (
    COMMIT,
    GROUP,
    MOVED,
    OPENING,
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
from tests.integration.xa.xa_wire import REPLY, REQUEST, Line
from tests.running import in_loop, run_by
from txmq.errors import CommittedBefore, DatabaseFailed, RolledBackByCheck
from txmq.transaction.resources.two_phase import gid_of

MARK = b"balance - 100", b"balance + 100"
PREPARE = (b"PREPARE TRANSACTION", b"PREPARE TRANSACTION\0")
CLAIM = (b"COMMIT\0", b"COMMIT\0")
COMMIT_PREPARED = (b"COMMIT PREPARED", b"COMMIT PREPARED\0")
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
KINDS_CUT = ["alchemy-async", "psycopg-async", "psycopg-pool"]


@contextlib.asynccontextmanager
async def lines(banks):
    async with contextlib.AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(Line(bank.url))
            for name, bank in banks.banks.items()
        }


def over(banks, through):
    return {name: bank.url.set(port=through[name].port) for name, bank in banks.banks.items()}


@contextlib.asynccontextmanager
async def over_lines(banks, **options):
    async with (
        lines(banks) as through,
        banks.service(urls=over(banks, through), **options) as resource,
    ):
        yield through, resource


async def until_settled(resource, banks):
    """Recover until nothing is left: a server may be slow to notice a lost connection."""
    async with asyncio.timeout(20):
        while True:
            found = await resource.recover(0.0)
            if found.is_complete and not found.left and not banks.prepared:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("how", "side"),
    soaked([("cut", REPLY), ("terminated", REQUEST)], [("cut", REQUEST), ("terminated", REPLY)]),
)
@pytest.mark.parametrize(
    ("bank", "words", "told"),
    [
        ("icbc", PREPARE, {REQUEST: ROLLBACK, REPLY: ROLLBACK}),
        ("ccb", PREPARE, {REQUEST: ROLLBACK, REPLY: ROLLBACK}),
        ("icbc", CLAIM, {REQUEST: UNKNOWN, REPLY: UNKNOWN}),
        ("icbc", COMMIT_PREPARED, {REQUEST: COMMIT, REPLY: COMMIT}),
        ("ccb", COMMIT_PREPARED, {REQUEST: COMMIT, REPLY: COMMIT}),
    ],
    ids=["prepare-1", "prepare-2", "claim", "commit-1", "commit-2"],
)
@run_by(in_loop)
async def test_both_banks_follow_the_reported_outcome_when_a_connection_breaks(
    banks, bank, words, told, side, how
):
    kind = KINDS_CUT[(len(bank) + len(words[0]) + len(side)) % len(KINDS_CUT)]

    async def end_the_backend():
        # The server ends the session itself; the line is cut as it does so.
        await asyncio.to_thread(banks[bank].order, CUT + "datname = current_database()")

    assert banks.balances == STILL
    async with lines(banks) as through, banks.service() as other:
        cut_off = over(banks, through)
        async with banks.service(kind, urls=cut_off, confirm_timeout=2.0) as resource:
            act = end_the_backend if how == "terminated" else None
            mark = MARK[0] if bank == "icbc" else MARK[1]
            # The second phase of a resource without a manager has connections of its own.
            through[bank].wait_for(words, side, b"" if words is COMMIT_PREPARED else mark, act)
            local = resource.local("x-1", GROUP, now_ms())
            with contextlib.suppress(Exception):
                await run(resource, local, order_of(100))
            assert local.state is told[side]
            with contextlib.suppress(DatabaseFailed):
                await resource.confirm("x-1", local.state)
        if local.state is not UNKNOWN:
            assert banks.balances == (MOVED if local.state is COMMIT else STILL)
        await until_settled(other, banks)
        is_in = local.state is COMMIT or (words is CLAIM and side is REPLY)
        truth = COMMIT if is_in else ROLLBACK
        assert await other.check("x-1", GROUP, now_ms()) is truth
    assert banks.balances == (MOVED if truth is COMMIT else STILL)
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_database_down_in_the_second_phase_catches_up_when_it_is_back(banks):
    async with lines(banks) as through:
        options = {"confirm_timeout": 0.5, "recover_interval": 0.1}
        async with banks.service(
            urls=over(banks, through), **options, is_attended=True
        ) as resource:
            local = await booked(resource)
            await through["ccb"].down()
            with pytest.raises(DatabaseFailed, match="(?s)decided, commit.*ccb"):
                await resource.confirm("x-1", local.state)
            assert banks.balances == {"icbc": OPENING - 100, "ccb": OPENING}
            await through["ccb"].up()
            await until(lambda: not banks.prepared)
    assert banks.balances == MOVED
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_confirmation_is_retried_until_the_database_is_back(banks):
    async with over_lines(banks, confirm_timeout=20) as (through, resource):
        local = await booked(resource)
        await through["ccb"].down()
        confirming = asyncio.create_task(resource.confirm("x-1", local.state))
        while banks["icbc"].prepared:
            await asyncio.sleep(0.02)
        assert not confirming.done()
        await through["ccb"].up()
        await confirming
    assert banks.balances == MOVED
    banks.see_nothing_left()


@run_by(in_loop)
async def test_recovery_finishes_the_other_databases_while_one_is_down(banks):
    async with over_lines(banks, confirm_timeout=2) as (through, resource):
        await booked(resource)
        await through["ccb"].down()
        found = await resource.recover()
        assert (found.committed, found.silent, found.is_complete) == (1, ("ccb",), False)
        with pytest.raises(DatabaseFailed, match="ccb"):
            await resource.clean(86_400 * 30)
        await through["ccb"].up()
        assert (await resource.recover()).committed == 1
    assert banks.balances == MOVED
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_check_does_not_wait_for_a_database_that_never_answers(banks):
    async with lines(banks) as through, banks.service() as dead:
        async with banks.service("psycopg-async", urls=over(banks, through)) as resource:
            await booked(dead)
            asleep = asyncio.Event()
            through["ccb"].wait_for((b"SELECT", b""), REQUEST, act=asleep.wait)
            async with asyncio.timeout(8):
                assert await resource.check("x-1", GROUP, now_ms()) is COMMIT
            asleep.set()
            assert banks["icbc"].balance == OPENING - 100
        await until_settled(dead, banks)
    assert banks.balances == MOVED


@run_by(in_loop)
async def test_opening_a_resource_ends_leftover_branches_to_make_room(banks):
    """Otherwise no manager could open, so none could recover."""
    async with banks.service() as dead:
        await booked(dead)
        room = int(banks["ccb"].order("SHOW max_prepared_transactions")[0][0])
        everywhere = "SELECT count(*) FROM pg_prepared_xacts"
        for number in range(room - banks["ccb"].order(everywhere)[0][0]):
            banks["ccb"].alone(f"BEGIN; PREPARE TRANSACTION 'somebody {number}'")
        async with banks.service():
            assert banks.balances == MOVED


@run_by(in_loop)
async def test_a_transaction_that_cannot_be_undone_is_not_retried(banks):
    async with over_lines(banks) as (through, resource):
        local = resource.local("x-1", GROUP, now_ms())

        async def work(sessions):
            for session in sessions.values():
                await said(session, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                await said(session, "SELECT balance FROM account")
            await order_of(100)(sessions)
            # The second bank will refuse, and the first is gone by then.
            through["ccb"].wait_for((b"PREPARE TRANSACTION", b""), REQUEST, act=gone)

        async def gone():
            await through["icbc"].down()

        with pytest.raises(DatabaseFailed, match="left prepared for now in icbc") as caught:
            await run(resource, local, work)
        assert local.state is ROLLBACK
        assert not resource.may_retry(caught.value)
        assert len(banks["icbc"].prepared) == 1
        await through["icbc"].up()
        await resource.confirm("x-1", local.state)
    assert banks.balances == STILL
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_second_run_of_a_committed_id_undoes_its_prepared_branches(banks):
    """Two run at the same time under one id: one of them books, once."""
    async with banks.service() as first_service, banks.service() as second_service:
        second = second_service.local("x-1", GROUP, now_ms())

        async def work(sessions):
            await booked(first_service)
            await first_service.confirm("x-1", COMMIT)
            await order_of(100)(sessions)

        with pytest.raises(CommittedBefore):
            await run(second_service, second, work)
        assert second.state is COMMIT
        await second_service.confirm("x-1", second.state)
    assert banks.balances == MOVED
    banks.see_nothing_left()


@pytest.mark.parametrize("xid", ["it's odd", "x" * 200], ids=["with a quote", "too long"])
@run_by(in_loop)
async def test_a_check_of_an_id_invalid_as_a_branch_name_rolls_back(banks, xid):
    async with banks.service() as resource:
        assert await resource.check(xid, GROUP, now_ms()) is ROLLBACK


def contents(bank):
    return bank.order(
        "SELECT gid, prepared, owner FROM pg_prepared_xacts "
        "WHERE database = current_database() ORDER BY gid"
    )


@run_by(in_loop)
async def test_foreign_prepared_transactions_are_never_touched(banks):
    async with banks.service() as resource:
        identity = resource.identity
        for name, bank in banks.banks.items():
            # A name is unique in a server, across its databases.
            for number, gid in enumerate([
                f"somebody in {name}",
                f"txmq:{name}",
                gid_of("x-1", name, "another-fence"),
                gid_of("x-1", f"not-{name}", identity),
                f"only {bank.url.database}",
            ]):  # fmt: skip
                work = f"CREATE TABLE t_{number} (x INT)"
                bank.alone(f"BEGIN; {work}; PREPARE TRANSACTION '{gid}'")
        # Its name is one of ours, but it is in the database of the other bank.
        banks["icbc"].alone(f"BEGIN; PREPARE TRANSACTION '{gid_of('x-9', 'ccb', identity)}'")
        before = {name: contents(bank) for name, bank in banks.banks.items()}
        for xid in ("x-1", "x-2"):
            with contextlib.suppress(RolledBackByCheck):
                await run(resource, resource.local(xid, GROUP, now_ms()), order_of(50))
            await resource.confirm(xid, COMMIT)
        assert await resource.check("x-1", GROUP, now_ms()) is COMMIT
        for xid in ("x-3", "x-9"):
            assert await resource.check(xid, GROUP, now_ms()) is ROLLBACK
        await resource.confirm("x-3", ROLLBACK)
        await resource.recover(0.0)
        await resource.verify()
        assert {name: contents(bank) for name, bank in banks.banks.items()} == before
    assert banks.balances == MOVED
