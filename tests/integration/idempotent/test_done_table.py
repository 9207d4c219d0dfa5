"""The table of finished keys: what it refuses, what verify sees, how it is cleaned."""

import asyncio
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import create_engine, insert, text

from tests.integration.idempotent.shop_stage import EFFECTS, MANY
from tests.integration.idempotent.test_guard_contract import plain, until_it_is_done
from tests.integration.resources.resource_stage import ON_MARIADB, source_of
from tests.running import in_loop, run_by
from txmq.databases.failures import Failure, failure
from txmq.errors import (
    ConfigError,
    DatabaseFailed,
    FenceUnsafe,
    LimitExceeded,
    TableMissing,
    UsageError,
)
from txmq.idempotent.guard import redelivery_horizon
from txmq.idempotent.unique_key import DoneTable, UniqueKeyTable

NO_KEYS = ["", " ", "a ", "a\n", "a\0", "\ud800", "a\u00a0"]
LONGEST = "长" * 255
AGE_S = redelivery_horizon() + 1
ROWS = 200


@run_by(in_loop)
async def test_keys_that_differ_only_in_case_accents_or_spaces_are_distinct(shop_with_table):
    names = ["a", "A", "ä", "a\u0308", "Å", " a", LONGEST, LONGEST[:-1] + "短", "%s :x ? '"]

    async with shop_with_table.stage() as stage:
        done = []

        async def notes(session, name):
            done.append(name)

        for name in names * 2:
            await stage.call(stage.behind(notes), name)
        assert done == names


@run_by("with_table")
async def test_keys_that_databases_cannot_tell_apart_are_refused(stage, /, shop_with_table):
    function = stage.behind(plain(stage))
    for key in NO_KEYS:
        with pytest.raises(UsageError):
            await stage.call(function, key)
    with pytest.raises(LimitExceeded):
        await stage.call(function, LONGEST + "长")
    with pytest.raises(UsageError, match="scope"):
        await stage.call(stage.behind(plain(stage), scope="a "), "a")
    assert shop_with_table.effects == []


@run_by(in_loop)
async def test_a_missing_table_is_reported_with_the_command_that_creates_it(shop_with_table):
    shop = shop_with_table
    shop.order("DROP TABLE txmq_done")
    async with shop.stage() as stage:
        with pytest.raises(TableMissing, match="txmq schema create"):
            await stage.call(stage.behind(plain(stage)), "a")
        with pytest.raises(TableMissing):
            await stage.guard.verify()
        with pytest.raises(TableMissing):
            await stage.call(stage.guard.clean, AGE_S)
    assert shop.effects == []


@run_by(in_loop)
async def test_a_table_of_an_older_version_is_refused(shop_with_table):
    shop_with_table.order("ALTER TABLE txmq_done RENAME COLUMN fingerprint TO print")
    async with shop_with_table.stage() as stage:
        with pytest.raises(TableMissing, match="this version"):
            await stage.call(stage.behind(plain(stage)), "a")
    shop_with_table.order("DROP TABLE txmq_done")


@run_by("with_table")
async def test_verify_of_a_good_table_leaves_no_row(stage, /, shop_with_table):
    await stage.guard.verify()
    assert shop_with_table.order("SELECT count(*) FROM txmq_done") == [(0,)]


@run_by(in_loop)
async def test_verify_of_a_locked_database_asks_to_try_again(shop_of):
    shop = shop_of("table", "sqlite")

    async with shop.stage() as stage:
        with closing(sqlite3.connect(shop.url.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseFailed, match="try again"):
                await stage.guard.verify()
        await stage.guard.verify()


@pytest.mark.parametrize(
    "kind", [kind for kind in MANY if "psycopg" not in kind and "django" not in kind]
)
@run_by(in_loop)
async def test_autocommit_is_refused(shop_of, kind):
    """Also at a call: its row would stay although its function failed."""
    shop = shop_of("table", kind)
    async with shop.stage(isolation_level="AUTOCOMMIT") as stage:
        with pytest.raises(FenceUnsafe, match="autocommit"):
            await stage.guard.verify()
        with pytest.raises(FenceUnsafe, match="autocommit"):
            await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == []
    assert shop.order("SELECT count(*) FROM txmq_done") == [(0,)]


@run_by("with_table")
async def test_cleaning_removes_old_rows_in_batches(stage, /):
    shop = stage.shop
    function = stage.behind(plain(stage))
    for number in range(7):
        await stage.call(function, f"old {number}")
    shop.order("UPDATE txmq_done SET done_ms = done_ms - :age", age=int(AGE_S * 1000) + 1)
    await stage.call(function, "young")
    assert await stage.call(stage.guard.clean, AGE_S + 60, batch=3) == 0
    assert await stage.call(stage.guard.clean, AGE_S, batch=3) == 7
    assert await stage.call(stage.guard.clean, AGE_S) == 0
    await stage.call(function, "young")
    assert shop.order("SELECT done_key FROM txmq_done") == [("young",)]
    assert shop.effects.count("young") == 1


def test_a_guard_over_a_blocking_engine_cleans_without_await(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        for statement in DoneTable("txmq_done", None).ddl("sqlite"):
            connection.execute(text(statement))
        old = {"scope": "s", "done_key": "a", "fingerprint": "", "done_ms": 1}
        connection.execute(insert(DoneTable("txmq_done", None).table), [old])

    assert UniqueKeyTable(engine).clean(AGE_S) == 1


@pytest.mark.fault("D12")
@run_by("with_table")
async def test_cleaning_within_the_redelivery_horizon_is_refused(stage, /):
    await stage.call(stage.behind(plain(stage)), "a")
    for too_short in (0, "4d", redelivery_horizon() - 1):
        with pytest.raises(ConfigError, match="still needed"):
            await stage.call(stage.guard.clean, too_short)
    with pytest.raises(ConfigError, match="older_than cannot be -1; it takes a duration"):
        await stage.call(stage.guard.clean, -1)
    assert await stage.call(stage.guard.clean, 3600, horizon=60) == 0


@pytest.mark.parametrize("kind", ["postgres-async", "psycopg-pool", *ON_MARIADB])
@run_by(in_loop)
async def test_cleaning_does_not_disturb_concurrent_functions(shop_of, kind):
    """Eight workers on new and old keys, and two that clean: no deadlock, no error."""
    shop = shop_of("table", kind)
    done = shop.done.table
    rows = [
        {"scope": "shop", "done_key": f"old {number}", "fingerprint": "", "done_ms": 1}
        for number in range(ROWS)
    ]
    with shop.engine.begin() as connection:
        connection.execute(insert(done), rows)
    async with shop.stage() as stage:
        function = stage.behind(plain(stage))

        async def works(worker):
            for number in range(worker, ROWS, 8):
                for name in (f"new {number}", f"old {number}"):
                    await until_it_is_done(stage, function, name)

        async def cleans():
            removed = 0
            while removed < ROWS and not all(work.done() for work in working):
                removed += await stage.call(stage.guard.clean, AGE_S, batch=7)

        working = [asyncio.ensure_future(works(worker)) for worker in range(8)]
        await asyncio.gather(*working, cleans(), cleans())
        await stage.call(stage.guard.clean, AGE_S)
    new = [name for name in shop.effects if name.startswith("new")]
    assert len(new) == len(set(new)) == ROWS
    assert shop.order("SELECT count(*) FROM txmq_done WHERE done_ms = 1") == [(0,)]


@run_by(in_loop)
async def test_cleaning_skips_locked_rows(shop_of):
    shop = shop_of("table", "postgres-async")
    rows = [{"scope": "s", "done_key": key, "fingerprint": "", "done_ms": 1} for key in "abc"]

    with shop.engine.begin() as connection:
        connection.execute(insert(shop.done.table), rows)
    async with shop.stage() as stage:
        with shop.engine.connect() as busy:
            busy.execute(text("SELECT 1 FROM txmq_done WHERE done_key = 'b' FOR UPDATE"))
            assert await stage.call(stage.guard.clean, AGE_S) == 2
        assert await stage.call(stage.guard.clean, AGE_S) == 1


@run_by(in_loop)
async def test_the_table_can_have_another_name_and_schema(shop_of):
    shop = shop_of("table", "postgres")
    shop.order("CREATE SCHEMA IF NOT EXISTS aside")
    shop.order("DROP TABLE IF EXISTS aside.done_here")
    async with source_of("postgres", shop.url, type("S", (), {"engine": {}})) as source:
        guard = UniqueKeyTable(source, table="done_here", schema="aside")
        with pytest.raises(TableMissing, match="aside.done_here"):
            await guard.verify()
        from txmq.idempotent.unique_key import DoneTable

        for statement in DoneTable("done_here", "aside").ddl("postgresql"):
            shop.order(statement)
        await guard.verify()
    with pytest.raises(ConfigError):
        UniqueKeyTable(shop.engine, table="done; DROP TABLE effects")


@run_by("with_table")
async def test_a_violated_constraint_is_raised_as_it_is_and_frees_the_key(
    stage, /, shop_with_table
):

    async def breaks(session, name):
        await stage.effect(session, f"{name}', 0) -- ")

    with pytest.raises(Exception) as caught:
        await stage.call(stage.behind(breaks), "a")
    assert failure(caught.value) is Failure.REFUSED
    await stage.call(stage.behind(plain(stage)), "a")
    assert shop_with_table.effects == ["a"]
    assert EFFECTS.name == "effects"
