"""Guards in Redis while Redis works: alone, before a table, blocking and async."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry

from tests.integration.idempotent.redis_stage import ALONE, entered, short, until
from tests.running import in_loop, run_by
from txmq.errors import UsageError
from txmq.idempotent.guard import Verdict
from txmq.idempotent.redis import RedisGuard

pytestmark = pytest.mark.timeout(300)  # The first of these tests may have to fetch a server.
KEYS = 20
MANY = 8


class Refused(Exception):
    """What a handler raises."""


@run_by("in_redis")
async def test_a_key_with_an_open_attempt_is_in_progress(stage, /):
    guard, another = stage.guard(), stage.guard()

    async with entered(guard.attempt("order-1")) as first:
        await stage.effect(first, "order-1")
        assert await stage.verdict(guard) == "IN_PROGRESS"
        assert await stage.verdict(another) == "IN_PROGRESS"

    assert await stage.verdict(another) == "DONE"
    assert stage.effects("order-1") == 1


@pytest.mark.parametrize("problem", [Refused, asyncio.CancelledError, KeyboardInterrupt])
@run_by("in_redis")
async def test_work_that_fails_frees_the_key_at_once(stage, /, problem):
    guard = stage.guard()

    with pytest.raises(problem):
        async with entered(guard.attempt("order-1")):
            raise problem

    assert await stage.verdict(guard) == "FIRST"
    assert await stage.verdict(guard) == "DONE"


@pytest.mark.parametrize("stage", ["redis-async", "front-async"], indirect=True)
@run_by("in_redis")
async def test_a_task_cancelled_while_it_claims_the_key_frees_it(stage, /):
    heard = asyncio.Event()

    class Slow(redis.asyncio.Redis):
        async def execute_command(self, *command, **options):
            said = await super().execute_command(*command, **options)
            if not heard.is_set():
                heard.set()
                await asyncio.Event().wait()
            return said

    await stage.deliver(stage.guard(), "another")  # Redis knows the scripts.
    settings = short(AsyncRetry)
    async with Slow.from_url(stage.server.url, **settings) as client:
        task = asyncio.create_task(stage.deliver(stage.guard(client)))
        await heard.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

        assert await stage.verdict(stage.guard()) == "FIRST"


@run_by("in_redis")
async def test_an_attempt_cannot_be_entered_twice(stage, /):
    async with entered(stage.guard().attempt("order-1")) as attempt:
        with pytest.raises(UsageError, match="ask"):
            await stage.enter(attempt)


@pytest.mark.fault("P17")
@run_by("in_redis")
async def test_a_killed_attempt_holds_the_key_until_its_lease_ends(stage, /):
    guard = stage.guard(lease=0.3)

    async with entered(guard.attempt("order-1")) as attempt:
        attempt.abandon()
    assert await stage.verdict(guard) == "IN_PROGRESS"

    async def is_free():
        return await stage.verdict(guard) == "FIRST"

    await until(is_free)
    assert await stage.verdict(guard) == "DONE"
    assert stage.effects("order-1") == 1


@run_by("in_redis")
async def test_another_payload_is_no_conflict_before_the_work_is_done(stage, /):
    guard = stage.guard()

    with contextlib.suppress(Refused):
        async with entered(guard.attempt("order-1", payload=b"two cups")):
            assert await stage.verdict(guard, payload=b"three cups") == "IN_PROGRESS"
            raise Refused

    assert await stage.verdict(guard, payload=b"three cups") == "FIRST"
    assert await stage.verdict(guard, payload=b"two cups") == "CONFLICT"


@pytest.mark.parametrize("decodes", [False, True])
@run_by("in_redis")
async def test_a_result_comes_back_as_it_was_kept(stage, /, decodes):
    receipt = {"paid": 3, "for": "Tee für zwei: 茶", "null": None}
    guard = stage.guard(stage.client(decode_responses=decodes, encoding="latin-1"))

    async with entered(guard.attempt("order-1")) as attempt:
        attempt.keep(receipt)
    async with entered(guard.attempt("order-2")) as attempt:
        attempt.keep(None)

    assert (await stage.deliver(guard)).result == receipt
    assert (await stage.deliver(guard, "order-2")).result is None


@run_by("in_redis")
async def test_keys_of_different_scopes_are_separate(stage, /):
    guard = stage.guard()
    named = [("a", "b:c"), ("a:b", "c"), ("", "a:b:c"), ("a", "bc"), ("ab", "c")]

    for scope, key in named:
        assert await stage.verdict(guard, key, scope=scope) == "FIRST"
    for scope, key in named:
        assert await stage.verdict(guard, key, scope=scope) == "DONE"


@run_by("in_redis")
async def test_one_of_many_concurrent_attempts_is_first(stage, /):
    guards = [stage.guard() for _ in range(MANY)]
    said = []
    if stage.is_blocking:
        await asyncio.to_thread(crowd_of_threads, stage, guards, said)
    else:
        for key in range(KEYS):
            deliveries = [stage.verdict(guard, f"order-{key}") for guard in guards]
            said += await asyncio.gather(*deliveries)

    assert len(said) == KEYS * MANY
    assert said.count("FIRST") == KEYS
    assert set(said) <= {"FIRST", "IN_PROGRESS", "DONE"}
    assert [stage.effects(f"order-{key}") for key in range(KEYS)] == [1] * KEYS


def crowd_of_threads(stage, guards, said):
    start = Barrier(MANY)

    def work(guard):
        for key in range(KEYS):
            start.wait()
            said.append(asyncio.run(stage.verdict(guard, f"order-{key}")))

    with ThreadPoolExecutor(MANY) as pool:
        list(pool.map(work, guards))


@run_by("in_redis")
async def test_scripts_that_redis_has_forgotten_are_sent_again(stage, /):
    guard = stage.guard()

    async with entered(guard.attempt("order-1")):
        stage.server.order("SCRIPT", "FLUSH")
    stage.server.order("SCRIPT", "FLUSH")

    assert await stage.verdict(guard) == "DONE"


@pytest.mark.parametrize("stage", ALONE, indirect=True)
@run_by("in_redis")
async def test_a_command_that_the_client_sends_twice_takes_effect_once(stage, /):
    """By default redis-py sends a command again when no answer comes."""
    attempt, another = stage.guard().attempt("order-1"), stage.guard().attempt("order-1")
    lease, theirs = attempt._lease, another._lease

    async def both(step):
        if stage.is_blocking:
            return [await asyncio.to_thread(asyncio.run, step()) for _ in range(2)]
        return [await step() for _ in range(2)]

    assert [found.verdict for found in await both(lease.claim)] == [Verdict.FIRST] * 2
    await both(theirs.release)
    assert [found.verdict for found in await both(theirs.claim)] == [Verdict.IN_PROGRESS] * 2
    assert await both(lambda: lease.finish(None)) == [b"kept"] * 2
    assert [found.verdict for found in await both(lease.claim)] == [Verdict.DONE] * 2
    await both(lease.release)
    assert [found.verdict for found in await both(theirs.claim)] == [Verdict.DONE] * 2


@run_by("in_redis")
async def test_keys_expire_by_themselves(stage, /):
    guard = stage.guard(lease=60, keep=3600, horizon=3600)

    async with entered(guard.attempt("order-1", scope="pay")) as attempt:
        (key,) = stage.server.order("KEYS", "txmq:done:*")
        assert 0 < stage.server.order("PTTL", key) <= 60_000
        await stage.effect(attempt, "order-1")

    assert stage.server.order("KEYS", "*") == [b"txmq:done:pay\0order-1"]
    assert 3_590_000 < stage.server.order("PTTL", key) <= 3_600_000


@run_by(in_loop)
async def test_a_redis_cluster_can_hold_the_keys(tmp_path):
    from tests.servers.database_server import wanted
    from tests.servers.redis_server import redis_server

    with wanted(lambda: redis_server("--cluster-enabled", "yes", is_own=True)) as server:
        server.order("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        host, port = server.url.removeprefix("redis://").removesuffix("/0").split(":")

        async def is_up():
            return b"cluster_state:ok" in server.order("CLUSTER", "INFO")

        await until(is_up)
        with contextlib.closing(redis.RedisCluster(host, int(port))) as client:
            for verdict in (Verdict.FIRST, Verdict.DONE, Verdict.DONE):
                with RedisGuard(client).attempt("order-1") as attempt:
                    assert attempt.verdict is verdict
        async with redis.asyncio.RedisCluster(host, int(port)) as client:
            for verdict in (Verdict.FIRST, Verdict.DONE):
                async with RedisGuard(client).attempt("order-2") as attempt:
                    assert attempt.verdict is verdict
