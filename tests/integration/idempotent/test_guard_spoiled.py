"""Functions that end the transaction of their guard, or go on in a broken one."""

import contextlib

import pytest

from tests.integration.idempotent.shop_stage import IN_SESSIONS, SOAK, effect
from tests.integration.idempotent.test_guard_contract import plain
from tests.integration.resources.resource_stage import said
from tests.running import in_loop, run_by
from txmq.errors import OutcomeUnknown, ResourceError, TransactionBroken

KEEPS = pytest.mark.parametrize("keeps", [False, True] if SOAK else [True])
HOLDING_ROWS = [
    case for case in IN_SESSIONS if case[0] == "table" and case[1] in ("sqlite", "sqlite-django")
]
ON_POSTGRES = [case for case in IN_SESSIONS if case[1].startswith(("postgres", "psycopg"))]
ENDS = [(case, "ROLLBACK") for case in IN_SESSIONS]
ENDS += [(case, end) for case in ON_POSTGRES for end in ("ROLLBACK AND CHAIN", "ABORT; BEGIN")]


def keeping(shop, keeps):
    return {"keeps_result": True} if keeps and shop.can("results") else {}


async def goes_on(session, name):
    """Try a statement after an end of the transaction; a session that notices it refuses."""
    with contextlib.suppress(Exception):
        await said(session, effect(name))


@KEEPS
@pytest.mark.parametrize("says_more", [False, True])
@run_by("in_session")
async def test_a_commit_inside_the_function_is_noticed_and_nothing_is_done_twice(
    stage, /, keeps, says_more
):
    shop = stage.shop

    async def commits(session, name):
        await stage.effect(session, name)
        await said(session, "COMMIT")
        if says_more:
            await goes_on(session, "late")

    with pytest.raises(OutcomeUnknown, match="ended inside"):
        await stage.call(stage.behind(commits, **keeping(shop, keeps)), "a")
    await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]


@KEEPS
@pytest.mark.parametrize(("param", "end"), ENDS)
@run_by(in_loop)
async def test_effects_after_a_rollback_inside_are_not_committed_without_their_key(
    shop_of, param, end, keeps
):
    shop = shop_of(*param)
    async with shop.stage() as stage:

        async def rolls_back(session, name):
            await stage.effect(session, name)
            await said(session, end)
            await goes_on(session, "late")

        with pytest.raises(ResourceError):
            await stage.call(stage.behind(rolls_back, **keeping(shop, keeps)), "a")
        await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]


@KEEPS
@run_by("in_session")
async def test_a_swallowed_database_error_cannot_look_like_a_commit(stage, /, keeps):
    shop = stage.shop

    async def breaks(session, name):
        await stage.effect(session, name)
        with contextlib.suppress(Exception):
            await said(session, effect("late", amount=-1))

    function = stage.behind(breaks, **keeping(shop, keeps))
    if shop.kind.startswith(("sqlite", "mysql")):
        await stage.call(function, "a")  # One failed statement, and the others stand.
    else:
        with pytest.raises(TransactionBroken):
            await stage.call(function, "a")
        await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]


@KEEPS
@run_by("in_session")
async def test_an_open_savepoint_is_not_taken_for_an_end(stage, /, keeps):
    shop = stage.shop

    async def saves(session, name):
        await said(session, "SAVEPOINT here")
        await stage.effect(session, name)

    function = stage.behind(saves, **keeping(shop, keeps))
    for _ in range(2):
        await stage.call(function, "a")
    assert shop.effects == ["a"]


@pytest.mark.parametrize("param", HOLDING_ROWS, ids=lambda case: case[1])
@run_by(in_loop)
async def test_unread_returning_rows_in_sqlite_are_reported_and_nothing_is_done(shop_of, param):
    shop, held = shop_of(*param), []
    async with shop.stage() as stage:

        async def returns_early(session, name):
            held.append(await said(session, f"{effect(name)} RETURNING name"))

        with pytest.raises(TransactionBroken, match="rows of a RETURNING are unread"):
            await stage.call(stage.behind(returns_early), "a")
        assert shop.effects == []
        held.clear()
        await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]
