"""Redis alone: what it tolerates, and the second effects that its guard's docstring describes."""

import logging

import pytest

from tests.integration.idempotent.redis_stage import (
    ALONE,
    KEY,
    down,
    evict,
    flush,
    restart,
    stuck,
    until,
)
from tests.running import in_loop, run_by
from tests.servers.database_server import wanted
from tests.servers.redis_server import redis_server as server_with
from txmq.errors import DatabaseFailed, Effect, LeaseLost

pytestmark = [
    pytest.mark.timeout(300),  # The first of these tests may have to fetch a server.
    pytest.mark.parametrize("stage", ALONE, indirect=True),
]


LOSSES = [flush, restart, evict]


def other_programs(stage):
    """The guards of two processes."""
    return stage.guard(lease=0.2), stage.guard(lease=0.2)


@pytest.mark.parametrize("lose", LOSSES)
@run_by("in_redis")
async def test_a_key_that_redis_forgets_is_done_again(stage, /, lose):
    guard, another = other_programs(stage)
    await stage.deliver(guard, KEY)
    assert await stage.verdict(another, KEY) == "DONE"

    lose(stage.server)

    assert await stage.verdict(another, KEY) == "FIRST"
    assert stage.effects(KEY) == 2


@pytest.mark.parametrize("lose", LOSSES)
@run_by("in_redis")
async def test_a_key_lost_during_the_work_raises_and_is_recorded_as_done(stage, /, lose):
    guard = stage.guard()

    attempt = await stage.enter(guard.attempt(KEY))
    await stage.effect(attempt, KEY)
    lose(stage.server)
    with pytest.raises(LeaseLost, match="second time") as raised:
        await stage.leave(attempt)

    assert raised.value.effect is Effect.APPLIED
    assert await stage.verdict(guard, KEY) == "DONE"
    assert stage.effects(KEY) == 1


@run_by("in_redis")
async def test_work_that_outlasts_its_lease_is_done_twice_and_the_first_raises(stage, /):
    guard, another = other_programs(stage)

    async def is_over():
        return await stage.verdict(another, KEY) == "FIRST"

    slow = await stage.enter(guard.attempt(KEY))
    await stage.effect(slow, KEY)
    await until(is_over)
    with pytest.raises(LeaseLost, match="another attempt holds the key"):
        await stage.leave(slow)

    assert await stage.verdict(guard, KEY) == "DONE"
    assert stage.effects(KEY) == 2


@pytest.mark.fault("D11")
@run_by("in_redis")
async def test_a_late_attempt_neither_finishes_nor_frees_the_lease_of_another(stage, /):
    brief, guard = stage.guard(lease=0.1), stage.guard()
    late, later, theirs = brief.attempt(KEY), brief.attempt(KEY), guard.attempt(KEY)

    async def is_over():
        return not stage.server.order("EXISTS", f"txmq:done:\0{KEY}")

    for attempt in (late, later):
        assert (await stage.enter(attempt)).verdict.name == "FIRST"
        await until(is_over)
    await stage.enter(theirs)
    with pytest.raises(LeaseLost):
        await stage.leave(late)
    await stage.leave(later, ValueError("no tea"))
    assert await stage.verdict(guard, KEY) == "IN_PROGRESS"

    await stage.leave(theirs)
    assert await stage.verdict(guard, KEY) == "DONE"


@run_by("in_redis")
async def test_nothing_is_done_while_redis_is_down(stage, /):
    guard = stage.guard()
    with down(stage.server), pytest.raises(DatabaseFailed) as raised:
        await stage.deliver(guard, KEY)

    assert raised.value.retryable
    assert raised.value.effect is Effect.NONE
    assert stage.effects(KEY) == 0


@run_by("in_redis")
async def test_nothing_is_done_while_redis_is_stuck(stage, /):
    guard = stage.guard(lease=0.1)
    await stage.deliver(guard, "another")
    with stuck(stage.server), pytest.raises(DatabaseFailed):
        await stage.deliver(guard, KEY)
    assert stage.effects(KEY) == 0

    # Redis may have taken the claim of the failed call; then its lease frees it.
    async def is_free():
        return await stage.verdict(guard, KEY) == "FIRST"

    await until(is_free)
    assert stage.effects(KEY) == 1


@pytest.mark.parametrize("away", [down, stuck])
@run_by("in_redis")
async def test_redis_failing_at_the_end_of_the_work_is_logged_and_the_work_repeated(
    stage, /, away, caplog
):
    caplog.set_level(logging.WARNING)
    guard = stage.guard(lease=0.1)
    attempt = await stage.enter(guard.attempt(KEY))
    await stage.effect(attempt, KEY)
    with away(stage.server):
        await stage.leave(attempt)

    assert ["could not record it" in record.getMessage() for record in caplog.records] == [True]

    async def is_known():
        return await stage.verdict(guard, KEY) != "IN_PROGRESS"

    await until(is_known)
    # A stuck Redis may still have received the command.
    assert stage.effects(KEY) == 2 if away is down else stage.effects(KEY) in (1, 2)


@run_by("in_redis")
async def test_redis_being_down_when_the_work_fails_is_only_logged(stage, /, caplog):
    caplog.set_level(logging.WARNING)
    attempt = await stage.enter(stage.guard().attempt(KEY))

    with down(stage.server):
        await stage.leave(attempt, ValueError("no tea"))

    assert len(caplog.records) == 1


@run_by("in_redis")
async def test_foreign_values_under_our_redis_keys_are_refused(stage, /):
    guard = stage.guard()
    stage.server.order("SET", f"txmq:done:\0{KEY}", "d:what?")
    stage.server.order("LPUSH", "txmq:done:\0order-2", "tea")

    for key in (KEY, "order-2"):
        with pytest.raises(DatabaseFailed):
            await stage.deliver(guard, key)


@run_by(in_loop)
async def test_redis_with_an_append_only_file_remembers_after_a_kill(stage):
    logged = ("--appendonly", "yes", "--appendfsync", "always")
    with wanted(lambda: server_with(*logged, is_own=True)) as server:
        stage.server = server
        async with stage:
            await stage.deliver(stage.guard(), KEY)

            server.kill()
            server.start()

            assert await stage.verdict(stage.guard(), KEY) == "DONE"
            assert stage.effects(KEY) == 1
