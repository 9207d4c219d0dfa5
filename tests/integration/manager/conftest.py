"""Owns the databases that managers are tested on."""

import asyncio
import contextlib

import pytest
from sqlalchemy import NullPool, create_engine, text

from txmq import Client, SQLResource, blocking
from txmq_broker.testing import BrokerThread, embedded


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


@pytest.fixture
def on_stage(bank):
    """Runs a test with that bank, and a broker that asks soon if it is given no settings."""
    from tests.integration.manager.manager_stage import SOON, Stage

    def run(test, settings=SOON):
        async def story():
            async with (
                embedded(settings) as broker,
                Client(broker.names) as client,
                contextlib.AsyncExitStack() as closing,
            ):
                await test(Stage(bank, broker.names, client, closing))

        asyncio.run(story())

    return run


def empty(url):
    """Drop everything in a database."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))


@pytest.fixture
def broker():
    """A broker in a thread, which asks soon."""
    from tests.integration.manager.manager_stage import SOON

    with BrokerThread(SOON) as running:
        yield running


@pytest.fixture
def blocked(bank, broker):
    """A manager without asyncio, and its resource."""
    from tests.integration.manager.manager_stage import GROUP

    engine = create_engine(bank.url)
    resource = SQLResource(engine)
    with blocking.TransactionManager(GROUP, broker.names, resource) as tm:
        yield tm, resource
    resource.close()
    engine.dispose()
