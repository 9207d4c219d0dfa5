"""Broken connections, lost commit replies, concurrent calls: there is still one effect."""

import asyncio

import pytest

from tests.integration.idempotent.shop_stage import EVERYWHERE, IN_SESSIONS, a_row_for
from tests.integration.idempotent.test_guard_contract import plain, until_it_is_done
from tests.integration.resources.resource_stage import ON_MARIADB, said
from tests.integration.resources.test_resource_faults import Proxy, kill_session
from tests.running import in_loop, run_by
from txmq.databases.failures import Failure, failure
from txmq.errors import OutcomeUnknown
from txmq.idempotent.guard import ATTEMPTS_MAX

SERVED = [case for case in IN_SESSIONS if not case[1].startswith("sqlite")]
# A pool that blocks would wait in this loop for the proxy, which is served by it.
WITHOUT_POOLS = ["postgres", "postgres-async", "postgres-django", "psycopg-async", *ON_MARIADB]
PROXIED = [case for case in SERVED if case[1] in WITHOUT_POOLS]


@pytest.mark.fault("P16")
@pytest.mark.parametrize("param", PROXIED, ids="-".join)
@pytest.mark.parametrize(("cuts", "before"), [("before", []), ("after", ["a"])])
@run_by(in_loop)
async def test_a_lost_commit_reply_is_unknown_until_the_next_call(shop_of, param, cuts, before):
    """Cut ``after``, it has committed."""
    shop = shop_of(*param)
    a_row_for(shop, None, "a")  # Before the proxy is used, which is served by this loop.
    again = []
    async with Proxy(shop.url) as proxy:
        far = shop.far(proxy.port)
        async with far.stage() as stage:

            async def works(session, name):
                await stage.effect(session, name)
                proxy.cuts = cuts

            with pytest.raises(OutcomeUnknown):
                await stage.call(stage.behind(works), "a")
        far.close()
    async with shop.stage() as stage:

        async def notes(session, name):
            again.append(name)
            await stage.effect(session, name)

        await until_it_is_done(stage, stage.behind(notes), "a")
    assert again == ([] if before else ["a"])
    assert shop.effects == ["a"]


@pytest.mark.parametrize("param", PROXIED, ids="-".join)
@run_by(in_loop)
async def test_a_connection_killed_during_the_work_leaves_nothing(shop_of, param):
    shop = shop_of(*param)
    async with shop.stage() as stage:

        async def is_killed(session, name):
            await stage.effect(session, name)
            await kill_session(shop, session)
            await stage.effect(session, name)

        with pytest.raises(Exception) as caught:
            await stage.call(stage.behind(is_killed), "a")
        assert failure(caught.value) is Failure.LOST
        await until_it_is_done(stage, stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]


@pytest.mark.parametrize("guard", ["table", "version"])
@run_by(in_loop)
async def test_a_serialization_failure_is_retried_at_once(shop_of, guard):
    shop = shop_of(guard, "postgres-async")
    async with shop.stage(isolation_level="SERIALIZABLE") as stage:
        met, calls = asyncio.Barrier(2), []

        async def skews(session, name):
            calls.append(name)
            await said(session, "SELECT count(*) FROM effects")
            if len(calls) <= 2:
                await met.wait()
            await stage.effect(session, name)

        function = stage.behind(skews)
        await asyncio.gather(function("a"), function("b"))
        assert 2 < len(calls) <= 2 * ATTEMPTS_MAX
    assert shop.effects == ["a", "b"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(
    "param",
    [case for case in EVERYWHERE if case[1] in {"postgres-async", "postgres", "mysql"}],
    ids="-".join,
)
@run_by(in_loop)
async def test_one_of_many_concurrent_calls_does_the_work_on_every_isolation_level(
    shop_of, param, level
):
    shop = shop_of(*param)
    async with shop.stage(isolation_level=level, pool_size=8) as stage:
        function = stage.behind(plain(stage))
        for name in ("a", "b", "c"):
            key = stage.key(name)
            guarded = stage.behind(plain(stage), key=lambda *_, key=key: key)
            await asyncio.gather(*(until_it_is_done(stage, guarded, name) for _ in range(8)))
            await stage.call(function, name)
    assert shop.effects == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["postgres", "postgres-async"])
@pytest.mark.parametrize("guard", ["table", "version"])
@run_by(in_loop)
async def test_guards_honour_a_schema_translate_map(shop_of, guard, kind):
    shop = shop_of(guard, kind)
    shop.order("DROP SCHEMA IF EXISTS elsewhere CASCADE")
    shop.order("CREATE SCHEMA elsewhere")
    for table in ("account", "txmq_done"):
        shop.order(f"CREATE TABLE elsewhere.{table} AS SELECT * FROM {table}")
        shop.order(f"DROP TABLE {table}")
    shop.order("ALTER TABLE elsewhere.account ADD PRIMARY KEY (id)")
    shop.order("ALTER TABLE elsewhere.txmq_done ADD PRIMARY KEY (scope, done_key)")
    shop.order("INSERT INTO elsewhere.account VALUES ('a', 0, 0)")
    shop.rows.add("a")
    moved = {"schema_translate_map": {None: "elsewhere"}}
    async with shop.stage(execution_options=moved) as stage:
        for _ in range(3):
            await stage.call(stage.behind(plain(stage)), "a")

        async def commits(session, name):
            await said(session, "COMMIT")
            await stage.effect(session, "late")

        if guard == "table":
            with pytest.raises(OutcomeUnknown, match="ended inside"):
                await stage.call(stage.behind(commits), "b")
    assert shop.effects == ["a"]
