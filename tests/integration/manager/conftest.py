"""Owns the databases that managers are tested on."""

import contextlib

import pytest
from sqlalchemy import NullPool, create_engine, text


@pytest.fixture(scope="session")
def manager_postgres(postgres):
    """One database for all tests, each of which finds it empty."""
    with postgres.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request, tmp_path):
    """A bank that nobody has used before."""
    from tests.integration.manager.manager_stage import Bank

    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/bank.db"
        else:
            url = request.getfixturevalue("manager_postgres")
            empty(url)
        found = Bank(url)
        stack.callback(found.close)
        yield found


def empty(url):
    """Drop everything in a database."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
