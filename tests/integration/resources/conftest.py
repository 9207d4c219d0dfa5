"""Owns the databases that resources are tested on."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

sys.path.insert(0, str(Path(__file__).parent))  # the stage beside this file

pytest.register_assert_rewrite("resource_stage")

from resource_stage import KINDS, Bank  # noqa: E402

FIRST_START_SECONDS = 300


def pytest_collection_modifyitems(items):
    """The first of these tests may have to fetch a server before it has one."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not os.environ.get("TXMQ_SOAK"):
            item.add_marker(pytest.mark.timeout(FIRST_START_SECONDS))


@contextlib.contextmanager
def database_for(kind, request):
    if kind.startswith("sqlite"):
        yield make_url(f"sqlite:///{request.getfixturevalue('tmp_path')}/bank.db")
    elif kind == "mysql":
        yield make_url(os.environ["TXMQ_TEST_MYSQL_URL"])
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


@pytest.fixture(params=KINDS)
def bank(request):
    """A database of each kind, with a fence."""
    with bank_on(request.param, request) as found:
        yield found.prepare()


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
