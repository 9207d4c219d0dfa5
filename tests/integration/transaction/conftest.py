"""Owns the processes that tests of crashes need: a broker, tellers, and databases."""

import contextlib
import os
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.integration.transaction.crash_bank import Bank
from tests.integration.transaction.crash_stage import Tellers
from tests.servers.serving import BrokerProcess

FIRST_START_SECONDS = 300
SOON = ("transaction.timeout=0.3s", "transaction.check_interval=0.2s")


def pytest_collection_modifyitems(items):
    """The first of these tests may have to fetch a server before it has one."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not os.environ.get("TXMQ_SOAK"):
            item.add_marker(pytest.mark.timeout(FIRST_START_SECONDS))


@pytest.fixture(scope="session")
def crash_broker(tmp_path_factory):
    """Starts brokers by their settings, each once."""
    running = {}

    def start(*settings):
        if settings not in running:
            folder = tmp_path_factory.mktemp("crash-broker")
            running[settings] = BrokerProcess(folder, settings=settings)
            running[settings].start()
        return running[settings]

    yield start
    for broker in running.values():
        broker.close()


@pytest.fixture
def broker(crash_broker):
    """A broker that asks soon."""
    return crash_broker(*SOON)


@pytest.fixture
def patient_broker(crash_broker):
    """A broker that does not ask producers that are still at work, even on a slow machine."""
    return crash_broker("transaction.timeout=1.5s", "transaction.check_interval=0.2s")


@pytest.fixture
def broker_that_parks(crash_broker):
    """A broker that gives up soon."""
    settings = ("timeout=0.6s", "check_interval=0.2s", "check_max=2")
    return crash_broker(*(f"transaction.{setting}" for setting in settings))


@pytest.fixture
def broker_in_haste(crash_broker):
    """A broker that asks at once and repeatedly."""
    settings = ("timeout=0.01s", "check_interval=0.02s", "check_max=60000")
    return crash_broker(*(f"transaction.{setting}" for setting in settings))


@pytest.fixture(scope="session")
def tellers(tmp_path_factory):
    """The process that runs tellers."""
    with contextlib.closing(Tellers(tmp_path_factory.mktemp("tellers"))) as found:
        yield found


@pytest.fixture
def bank_for(request, tmp_path):
    """Makes a bank for a kind of source."""
    with contextlib.ExitStack() as stack:

        def make(kind):
            if kind.startswith("sqlite"):
                url = make_url(f"sqlite:///{tmp_path}/bank.db")
            else:
                url = stack.enter_context(request.getfixturevalue("postgres").database())
            bank = Bank(url)
            stack.callback(bank.close)
            return bank.prepare()

        yield make
