"""Owns the databases that resources are tested on."""

import contextlib
import os
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.integration.resources.resource_stage import KINDS, ON_MARIADB, Bank
from tests.running import on_stage_of
from tests.servers import mariadb
from tests.servers.database_server import wanted

FIRST_START_SECONDS = 300
collect_ignore_glob = [] if ON_MARIADB else ["test_mariadb_*.py"]


def pytest_collection_modifyitems(items):
    """The first of these tests may have to fetch a server before it has one."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not os.environ.get("TXMQ_SOAK"):
            item.add_marker(pytest.mark.timeout(FIRST_START_SECONDS))


@contextlib.contextmanager
def database_for(kind, request):
    if kind.startswith("sqlite"):
        yield make_url(f"sqlite:///{request.getfixturevalue('tmp_path')}/bank.db")
    elif kind.startswith("mysql"):
        yield request.getfixturevalue("mariadb_url")
    else:
        yield request.getfixturevalue("postgres_url")


@contextlib.contextmanager
def bank_on(kind, request):
    with database_for(kind, request) as url:
        bank = Bank(kind, url)
        for table in ("orders", "txmq_fence", "txmq_fence_mark"):
            bank.order(f"DROP TABLE IF EXISTS {table}")
        try:
            yield bank
        finally:
            bank.close()


@pytest.fixture(scope="session")
def postgres_url(postgres):
    """One database for all tests, each of which makes its tables anew."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_url():
    """One database for all tests, as for PostgreSQL; unused where there is no server."""
    with wanted(mariadb.mariadb) as server, server.database() as url:
        yield url


def pytest_report_collectionfinish():
    """Report the tests that are left out, so that nobody takes them for passed."""
    return "" if ON_MARIADB else mariadb.why_not()


@pytest.fixture(params=KINDS)
def bank(request):
    """A database of each kind, with a fence."""
    with bank_on(request.param, request) as found:
        yield found.prepare()


@pytest.fixture
def bank_of_kind(request):
    """Makes a database of a kind, with a fence."""
    with contextlib.ExitStack() as stack:
        yield lambda kind: stack.enter_context(bank_on(kind, request)).prepare()


@pytest.fixture
def postgres_bank(request):
    """A PostgreSQL database with a fence, used through SQLAlchemy."""
    with bank_on("postgres", request) as found:
        yield found.prepare()


@pytest.fixture
def bare_bank(request):
    """The same without a fence."""
    with bank_on("postgres", request) as found:
        yield found


@pytest.fixture
def sqlite_bank(request):
    """An SQLite file with a fence."""
    with bank_on("sqlite", request) as found:
        yield found.prepare()


@pytest.fixture
def on_bank(bank):
    """Runs a test on a database of each kind."""
    return on_stage_of(bank.stage)


@pytest.fixture
def on_postgres(postgres_bank):
    """Runs a test on PostgreSQL."""
    return on_stage_of(postgres_bank.stage)


@pytest.fixture
def on_sqlite(sqlite_bank):
    """Runs a test on SQLite."""
    return on_stage_of(sqlite_bank.stage)
