"""The contract of all guards, on every kind of database: one suite, run for each of them."""

import asyncio

import pytest

from tests.integration.idempotent.shop_stage import ADAPTERS, EVERYWHERE, IN_SESSIONS
from tests.running import in_loop, run_by
from txmq.databases.failures import Failure, failure
from txmq.errors import ConfigError, KeyConflict, KeyInProgress, LimitExceeded, UsageError
from txmq.idempotent.guard import ATTEMPTS_MAX, idempotent
from txmq.message import Later

RESULTS = ["", "paid", "支付宝 ☂ '\"\\ \0", None, 0, False, 1.5, [], {"id": [1, None, {}]}]
TOO_LARGE = "x" * 65_535
UNFIT = [object(), {"a", "b"}, float("nan"), "\ud800", b"bytes"]
CALLERS = 8


def can(case, what):
    return what in ADAPTERS[case[0]].can


def those_that_can(what):
    """Test each guard that can do this, with a database of each kind."""
    cases = [case for case in EVERYWHERE if can(case, what)]
    return pytest.mark.parametrize("shop", cases, indirect=True, ids="-".join)


class Refused(Exception):
    """What an application raises."""


class Undone(Exception):
    """As a driver says it."""

    sqlstate = "40001"


def plain(stage):
    """The function of most tests: one effect."""

    async def work(session, name, *_):
        await stage.effect(session, name)
        return f"{name} is done"

    return work


async def until_it_is_done(stage, function, *args):
    """Repeat a call as a redelivery would: a server may notice a lost connection late."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await stage.call(function, *args)
            except KeyInProgress:
                await asyncio.sleep(0.01)
            except Exception as problem:
                if failure(problem) is not Failure.RETRY:
                    raise


@run_by("in_shop")
async def test_a_finished_key_is_not_done_again(stage, /, shop):
    function = stage.behind(plain(stage))
    said = [await stage.call(function, name) for name in ("a", "b", "a", "a")]
    again = "a is done" if getattr(stage.guard, "keeps_result", None) else None
    assert said == ["a is done", "b is done", again, again]
    assert shop.effects == ["a", "b"]


@run_by(in_loop)
async def test_another_process_does_not_repeat_finished_work(shop):
    for _ in range(2):
        async with shop.stage() as stage:
            await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]


@run_by("in_shop")
async def test_an_exception_frees_the_key(stage, /, shop):

    async def fails(session, name):
        raise Refused

    with pytest.raises(Refused):
        await stage.call(stage.behind(fails), "a")
    await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]


@run_by("in_session")
async def test_an_exception_undoes_the_effects_in_the_session(stage, /, shop_in_session):

    async def fails(session, name):
        await stage.effect(session, name)
        raise Refused

    with pytest.raises(Refused):
        await stage.call(stage.behind(fails), "a")
    assert shop_in_session.effects == []
    await stage.call(stage.behind(plain(stage)), "a")
    assert shop_in_session.effects == ["a"]


@pytest.mark.parametrize(
    "shop", [case for case in EVERYWHERE if "async" in case[1]], indirect=True, ids="-".join
)
@run_by("in_shop")
async def test_cancelling_the_function_frees_the_key(stage, /, shop):
    assert not stage.guard.is_blocking
    begun = asyncio.Event()

    async def hangs(session, name):
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(stage.behind(hangs)("a"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]


@pytest.mark.fault("P15")
@run_by("in_session")
async def test_a_killed_attempt_leaves_no_effect_in_the_session(stage, /, shop_in_session):
    """The database sees the same as when a process ends."""

    async def awaited():
        async with stage.guard.attempt(stage.key("a"), scope="shop") as attempt:
            await stage.effect(attempt.session, "a")
            attempt.abandon()

    def blocking():
        with stage.guard.attempt(stage.key("a"), scope="shop") as attempt:
            stage.effect(attempt.session, "a").close()
            attempt.abandon()

    await stage.call(blocking if stage.guard.is_blocking else awaited)
    assert shop_in_session.effects == []
    await until_it_is_done(stage, stage.behind(plain(stage)), "a")
    assert shop_in_session.effects == ["a"]


@run_by("in_shop")
async def test_returning_later_frees_the_key(stage, /, shop):

    async def postpones(session, name):
        return Later(reason="closed on Sundays")

    said = await stage.call(stage.behind(postpones), "a")
    assert said == Later(reason="closed on Sundays")
    assert await stage.call(stage.behind(plain(stage)), "a") == "a is done"
    assert shop.effects == ["a"]


@run_by("in_shop")
async def test_scopes_have_separate_keys(stage, /, shop):
    for scope in ("one", "other", "one", "other"):
        await stage.call(stage.behind(plain(stage), scope=scope), "a")
    assert shop.effects == ["a"] * (2 if shop.can("scopes") else 1)


@those_that_can("conflicts")
@run_by("in_shop")
async def test_another_payload_under_the_same_key_is_a_conflict(stage, /, shop):
    function = stage.behind(plain(stage), payload=lambda name, payload: payload)
    await stage.call(function, "a", "100 €")
    with pytest.raises(KeyConflict):
        await stage.call(function, "a", "200 €")
    for same in ("100 €", "100 €".encode(), None):
        await stage.call(function, "a", same)
    assert shop.effects == ["a"]


@those_that_can("results")
@run_by("in_shop")
async def test_a_kept_result_is_returned_again(stage, /):

    async def answers(session, name, answer=None):
        return answer

    function = stage.behind(answers, keeps_result=True)
    for number, result in enumerate(RESULTS):
        assert await stage.call(function, f"key {number}", result) == result
        assert await stage.call(function, f"key {number}") == result


@pytest.mark.parametrize(
    "shop_in_session",
    [case for case in IN_SESSIONS if can(case, "results")],
    indirect=True,
    ids="-".join,
)
@run_by("in_session")
async def test_a_result_that_cannot_be_kept_undoes_the_work(stage, /):
    shop = stage.shop

    async def answers(session, name, answer):
        await stage.effect(session, name)
        return answer

    function = stage.behind(answers, keeps_result=True)
    with pytest.raises(LimitExceeded):
        await stage.call(function, "a", TOO_LARGE)
    for result in UNFIT:
        with pytest.raises(UsageError, match="JSON"):
            await stage.call(function, "a", result)
    assert shop.effects == []
    assert await stage.call(function, "a", TOO_LARGE[:60_000]) == TOO_LARGE[:60_000]
    assert await stage.call(function, "a", "new") == TOO_LARGE[:60_000]
    assert shop.effects == ["a"]


@pytest.mark.parametrize(
    "shop", [case for case in EVERYWHERE if not can(case, "results")], indirect=True, ids="-".join
)
@run_by("in_shop")
async def test_a_guard_that_cannot_keep_results_refuses_keeps_result(stage, /):
    with pytest.raises(ConfigError, match="keeps its result"):
        stage.behind(plain(stage), keeps_result=True)


@those_that_can("tells at once")
@run_by(in_loop)
async def test_a_call_during_the_work_raises_key_in_progress(shop):
    async with shop.stage(**shop.impatient) as stage:
        told = []

        async def comes_again(name):
            with pytest.raises(KeyInProgress):
                await stage.call(function, name)
            told.append(name)

        async def works(session, name):
            await stage.effect(session, name)
            await stage.outside(comes_again(name))

        function = stage.behind(works)
        await stage.call(function, "a")
        assert told == ["a"]
        await stage.call(function, "a")
    assert shop.effects == ["a"]


@pytest.mark.fault("N9")
@run_by("in_shop")
async def test_one_of_many_concurrent_calls_does_the_work(stage, /, shop):
    function = stage.behind(plain(stage))

    callers = (until_it_is_done(stage, function, "a") for _ in range(CALLERS))
    await asyncio.gather(*callers)
    assert shop.effects == ["a"]


@run_by("in_shop")
async def test_a_transaction_undone_by_the_database_is_retried_at_once(stage, /, shop):
    calls = []

    async def undone_at_first(session, name):
        calls.append(name)
        if calls.count(name) < ATTEMPTS_MAX:
            raise Undone
        await stage.effect(session, name)

    async def undone_always(session, name):
        calls.append(name)
        raise Undone

    await stage.call(stage.behind(undone_at_first), "a")
    with pytest.raises(Undone):
        await stage.call(stage.behind(undone_always), "b")
    assert calls == ["a"] * ATTEMPTS_MAX + ["b"] * ATTEMPTS_MAX
    await stage.call(stage.behind(plain(stage)), "b")
    assert shop.effects == ["a", "b"]


@run_by("in_shop")
async def test_a_sync_or_async_mismatch_with_the_guard_is_refused_at_decoration(stage, /):

    async def awaited(session):
        pass

    def blocking(session):
        pass

    wrong = awaited if stage.guard.is_blocking else blocking
    with pytest.raises(ConfigError, match="another source"):
        idempotent(stage.guard, key=str)(wrong)


@run_by("in_shop")
async def test_a_key_that_is_no_string_is_refused(stage, /, shop):
    for wrong in (None, b"a", 7, object()):
        function = stage.behind(plain(stage), key=lambda name, key=wrong: key)
        with pytest.raises(UsageError):
            await stage.call(function, "a")
    assert shop.effects == []
