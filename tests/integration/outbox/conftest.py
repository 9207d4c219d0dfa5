"""Owns the databases that outboxes are tested on."""

import contextlib
import os
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.integration.outbox.outbox_stage import DATABASES, KINDS, Shop
from tests.servers import mariadb
from tests.servers.database_server import wanted

FIRST_START_SECONDS = 300
collect_ignore_glob = [] if "mysql" in DATABASES else ["test_mariadb_*.py"]


def pytest_collection_modifyitems(items):
    """The first of these tests may have to fetch a server before it has one."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not os.environ.get("TXMQ_SOAK"):
            item.add_marker(pytest.mark.timeout(FIRST_START_SECONDS))


def pytest_report_collectionfinish():
    """Report the tests that are left out, so that nobody takes them for passed."""
    return "" if "mysql" in DATABASES else mariadb.why_not()


@pytest.fixture(scope="session")
def outbox_postgres_url(postgres):
    """One database for all tests, each of which makes its tables anew."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def outbox_mariadb():
    """A MariaDB server; unused where there is none."""
    with wanted(mariadb.mariadb) as server:
        yield server


@pytest.fixture(scope="session")
def outbox_mariadb_url(outbox_mariadb):
    """The same of MariaDB as of PostgreSQL."""
    with outbox_mariadb.database() as url:
        yield url


@pytest.fixture
def shop_on(request):
    """Makes a shop on a family of databases."""

    def made(kind):
        if kind.startswith("sqlite"):
            url = make_url(f"sqlite:///{request.getfixturevalue('tmp_path')}/shop.db")
        else:
            family = "mariadb" if kind.startswith("mysql") else "postgres"
            url = request.getfixturevalue(f"outbox_{family}_url")
        return stack.enter_context(contextlib.closing(Shop(kind, url).prepare()))

    with contextlib.ExitStack() as stack:
        yield made


@pytest.fixture(params=KINDS)
def shop(request, shop_on):
    """A shop with an outbox, for each kind of session."""
    return shop_on(request.param)
