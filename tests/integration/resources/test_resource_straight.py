"""SQLAlchemy over psycopg: the fence bypasses SQLAlchemy without a visible difference."""

import asyncio
import threading

import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError

from tests.integration.resources.resource_stage import COMMIT
from tests.running import in_loop, run_by
from txmq.errors import FenceMissing

KINDS = ["postgres", "postgres-async", "postgres-sessions", "postgres-async-sessions"]
KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
CONNECTIONS = 4

pytestmark = pytest.mark.parametrize("kind", KINDS)


async def fill(stage):
    """Let the pool open all its connections."""
    all_in, met = threading.Barrier(CONNECTIONS, timeout=20), asyncio.Barrier(CONNECTIONS)

    def blocking(number):
        with stage.begin(f"full-{number}"):
            all_in.wait()

    async def awaited(number):
        if stage.resource.is_blocking:
            await asyncio.to_thread(blocking, number)
            return
        async with stage.begin(f"full-{number}"):
            await met.wait()

    await asyncio.gather(*[awaited(number) for number in range(CONNECTIONS)])


@run_by(in_loop)
async def test_a_restarted_database_fails_only_one_transaction(postgres_bank, kind):
    pool = {"pool_size": CONNECTIONS, "max_overflow": 0}
    async with postgres_bank.stage(kind, engine=pool) as stage:
        await fill(stage)
        postgres_bank.order(KILL)

        with pytest.raises(OperationalError) as caught:
            await stage.order("unlucky")
        assert caught.value.connection_invalidated
        # The pool has discarded the other dead connections.
        for number in range(CONNECTIONS):
            assert await stage.order(f"again-{number}") is COMMIT


@run_by(in_loop)
async def test_a_database_error_of_the_fence_is_raised_as_a_sqlalchemy_error(postgres_bank, kind):
    async with postgres_bank.stage(kind) as stage:
        postgres_bank.order("DROP TABLE txmq_fence")

        with pytest.raises(ProgrammingError, match='"txmq_fence" does not exist') as caught:
            await stage.order("nowhere")

        assert caught.value.orig.sqlstate == "42P01"
        assert "INSERT INTO txmq_fence" in caught.value.statement
        assert not caught.value.connection_invalidated


@run_by(in_loop)
async def test_the_fence_honours_a_schema_translate_map(postgres_bank, kind):
    moved = {"execution_options": {"schema_translate_map": {None: "elsewhere"}}}
    async with postgres_bank.stage(kind, verified=False, engine=moved) as stage:
        with pytest.raises(FenceMissing, match="elsewhere"):
            await stage.resource.verify()
