"""Owns the stages on which guards are tested: shops, and Redis."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.integration.idempotent.redis_stage import ALONE, IN_FRONT, Stage, prepared
from tests.integration.idempotent.shop_stage import EVERYWHERE, IN_SESSIONS, TABLES, Shop
from tests.integration.resources.resource_stage import ON_MARIADB
from tests.running import on_stage_of
from tests.servers import mariadb
from tests.servers.database_server import wanted
from tests.traffic.effects import Effects

HERE = Path(__file__).parent
FIRST_START_SECONDS = 300
collect_ignore_glob = [] if ON_MARIADB else ["test_mariadb_*.py"]


def pytest_collection_modifyitems(items):
    """The first of these tests may have to fetch a server before it has one."""
    for item in items:
        if item.path.parent == HERE and not os.environ.get("TXMQ_SOAK"):
            item.add_marker(pytest.mark.timeout(FIRST_START_SECONDS))


@pytest.fixture(scope="session")
def shop_postgres(postgres):
    """One database for all tests, each of which makes its tables anew."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def shop_mariadb():
    """The same, as for PostgreSQL; unused where there is no server."""
    with wanted(mariadb.mariadb) as server, server.database() as url:
        yield url


def database_for(kind, request):
    if kind.startswith("sqlite"):
        return make_url(f"sqlite:///{request.getfixturevalue('tmp_path')}/shop.db")
    return request.getfixturevalue("shop_mariadb" if "mysql" in kind else "shop_postgres")


@contextlib.contextmanager
def shop_with(param, request):
    guard, kind = param
    shop = Shop(guard, kind, database_for(kind, request))
    if guard.startswith("redis"):
        shop.redis = request.getfixturevalue("redis_server")
        shop.redis.flush()
    try:
        yield shop.prepare()
    finally:
        shop.close()


@pytest.fixture(params=EVERYWHERE, ids="-".join)
def shop(request):
    """A shop for each guard, with a database of each kind."""
    with shop_with(request.param, request) as found:
        yield found


@pytest.fixture(params=IN_SESSIONS, ids="-".join)
def shop_in_session(request):
    """One for each guard that has a session."""
    with shop_with(request.param, request) as found:
        yield found


@pytest.fixture(params=TABLES, ids="-".join)
def shop_with_table(request):
    """One for each kind of database, with a table of what is done."""
    with shop_with(request.param, request) as found:
        yield found


@pytest.fixture
def in_shop(shop):
    """Runs a test for each guard, with a database of each kind."""
    return on_stage_of(shop.stage)


@pytest.fixture
def in_session(shop_in_session):
    """Runs a test for each guard that has a session."""
    return on_stage_of(shop_in_session.stage)


@pytest.fixture
def with_table(shop_with_table):
    """Runs a test for each kind of database, with a table of what is done."""
    return on_stage_of(shop_with_table.stage)


@pytest.fixture
def shop_of(request):
    """Makes one for a guard and a kind."""
    with contextlib.ExitStack() as stack:
        yield lambda guard, kind: stack.enter_context(shop_with((guard, kind), request))


@pytest.fixture
def effects_in(request, tmp_path):
    """Where effects of a kind of database are."""
    with contextlib.ExitStack() as stack:

        def make(kind):
            if kind == "sqlite":
                url = make_url(f"sqlite:///{tmp_path}/effects.db")
            else:
                url = stack.enter_context(request.getfixturevalue("postgres").database())
            effects = Effects(url)
            stack.callback(effects.close)
            return effects.prepare()

        yield make


@pytest.fixture(scope="session")
def effects_url(postgres):
    """One database for all tests, each of which finds its tables empty."""
    with postgres.database() as url:
        prepared(url)
        yield url


@pytest.fixture(params=[*ALONE, *IN_FRONT])
def stage(request, redis_server, effects_url):
    """Guards of each kind; Redis is empty, and whatever was done to it is undone."""
    redis_server.flush()
    stage = Stage(request.param, redis_server, effects_url)
    yield stage
    stage.ledger.dispose()


@pytest.fixture
def in_redis(stage):
    """Runs a test with guards of each kind."""

    def run(test):
        async def story():
            async with stage:
                await test(stage)

        asyncio.run(story())

    return run
