"""Two databases, one decision: the contract of all kinds of sources."""

import asyncio

import pytest

from tests.integration.xa.xa_stage import (
    COMMIT,
    GROUP,
    KINDS,
    MOVED,
    OPENING,
    ROLLBACK,
    STILL,
    booked,
    now_ms,
    order_of,
    run,
    said,
)
from tests.running import in_loop, run_by
from txmq.errors import RolledBackByCheck, TransactionBroken, TwoPhaseUnavailable, UsageError
from txmq.transaction.resources import two_phase


class Wrong(Exception):
    """What an application raises."""


@pytest.mark.parametrize("kind", KINDS)
@run_by(in_loop)
async def test_all_branches_follow_the_decision(banks, kind):
    async with banks.service(kind) as resource:
        local = await booked(resource)
        assert local.state is COMMIT
        assert banks.balances == STILL, "decided, and not yet carried out"
        identity = resource.identity
        assert banks.prepared == [f"txmq:x-1:icbc:{identity}", f"txmq:x-1:ccb:{identity}"]
        await resource.confirm("x-1", local.state)
        assert await resource.check("x-1", GROUP, now_ms()) is COMMIT
    assert banks.balances == MOVED
    banks.see_nothing_left()


async def raises(sessions):
    raise Wrong


async def breaks(sessions):
    """The database has aborted the transaction, and the function hides it."""
    with pytest.raises(Exception, match="nothing_here"):
        await said(sessions["ccb"], "SELECT * FROM nothing_here")


async def cannot_prepare(sessions):
    """PostgreSQL prepares nothing that has touched temporary tables."""
    await said(sessions["ccb"], "CREATE TEMPORARY TABLE mine (x INT)")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("goes_wrong", "told"),
    [
        (raises, pytest.raises(Wrong)),
        (breaks, pytest.raises(TransactionBroken)),
        (cannot_prepare, pytest.raises(Exception, match="(?i)prepare")),
    ],
)
@run_by(in_loop)
async def test_any_failure_before_the_decision_rolls_back_all_branches(
    banks, kind, goes_wrong, told
):
    async with banks.service(kind) as resource:
        local = resource.local("x-1", GROUP, now_ms())

        async def work(sessions):
            await order_of(100)(sessions)
            await goes_wrong(sessions)

        with told:
            await run(resource, local, work)
        assert local.state is ROLLBACK
        banks.see_nothing_left()  # Before anything is confirmed.
        await resource.confirm("x-1", local.state)
        assert await resource.check("x-1", GROUP, now_ms()) is ROLLBACK
    assert banks.balances == STILL
    banks.see_nothing_left()


@pytest.mark.fault("D6")
@pytest.mark.parametrize("kind", KINDS)
@run_by(in_loop)
async def test_a_prepare_answered_with_rollback_rolls_everything_back(banks, kind, monkeypatch):
    """PREPARE in a failed transaction raises nothing; only the tag of the answer tells."""
    vote, voted = two_phase.vote, []

    async def vote_late(db, gid):
        voted.append(gid)
        if len(voted) == 2:
            await breaks({"ccb": db.session})
        await vote(db, gid)

    async with banks.service(kind) as resource:
        monkeypatch.setattr(two_phase, "vote", vote_late)
        local = resource.local("x-1", GROUP, now_ms())
        with pytest.raises(TransactionBroken, match="answered 'ROLLBACK'"):
            await run(resource, local, order_of(100))
        assert local.state is ROLLBACK
        assert banks.fence == {}
        banks.see_nothing_left()
        assert await resource.check("x-1", GROUP, now_ms()) is ROLLBACK
    assert len(voted) == 2
    assert banks.balances == STILL
    banks.see_nothing_left()


@pytest.mark.parametrize("kind", KINDS)
@run_by(in_loop)
async def test_a_check_before_the_prepare_decides_rollback(banks, kind):
    async with banks.service(kind) as resource, banks.service("psycopg-async") as other:
        local = resource.local("x-1", GROUP, now_ms())

        async def work(sessions):
            await order_of(100)(sessions)
            if not resource.is_blocking:
                assert await other.check("x-1", GROUP, now_ms()) is ROLLBACK
            else:
                checked.append(asyncio.run_coroutine_threadsafe(
                    other.check("x-1", GROUP, now_ms()), loop
                ).result())  # fmt: skip

        checked, loop = [], asyncio.get_running_loop()
        with pytest.raises(RolledBackByCheck):
            await run(resource, local, work)
        assert local.state is ROLLBACK
        assert checked in ([], [ROLLBACK])
    assert banks.balances == STILL
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_check_of_a_committed_transaction_commits_its_prepared_branches(banks):
    async with banks.service() as resource, banks.service("alchemy") as other:
        await booked(resource)
        assert await other.check("x-1", GROUP, now_ms()) is COMMIT
        # The second confirmation finds nothing to do.
        await resource.confirm("x-1", COMMIT)
    assert banks.balances == MOVED
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_decided_transaction_cannot_begin_again(banks):
    async with banks.service() as resource:
        await resource.check("x-1", GROUP, now_ms())
        with pytest.raises(RolledBackByCheck):
            await booked(resource)
    assert banks.balances == STILL


@pytest.mark.parametrize("kind", ["psycopg", "alchemy-async"])
@run_by(in_loop)
async def test_a_commit_inside_the_function_is_refused(banks, kind):
    async with banks.service(kind) as resource:
        local = resource.local("x-1", GROUP, now_ms())

        async def work(sessions):
            await order_of(100)(sessions)
            await said(sessions["ccb"], "COMMIT")

        with pytest.raises(UsageError, match="ccb"):
            await run(resource, local, work)
        assert local.state is ROLLBACK
    assert banks["icbc"].balance == OPENING
    banks.see_nothing_left()


@pytest.mark.fault("D5")
@run_by(in_loop)
async def test_a_server_without_room_to_prepare_is_reported_before_the_decision(banks):
    async with banks.service() as resource:
        room = banks["ccb"].order("SHOW max_prepared_transactions")[0][0]
        for number in range(int(room) - 1 - len(banks.prepared)):
            banks["ccb"].alone(f"BEGIN; PREPARE TRANSACTION 'somebody-{number}'")
        local = resource.local("x-1", GROUP, now_ms())
        with pytest.raises(TwoPhaseUnavailable, match="max_prepared_transactions"):
            await run(resource, local, order_of(100))
        assert local.state is ROLLBACK
        assert not [gid for gid in banks.prepared if gid.startswith("txmq:")]
    assert banks.balances == STILL
