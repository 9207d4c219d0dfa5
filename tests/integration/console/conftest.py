"""A broker, a console process, and a visitor; modules may define their own."""

import pytest

from tests.integration.console.console_stage import PARKING, ConsoleProcess, Visitor
from txmq_broker.testing import BrokerThread


@pytest.fixture(scope="module")
def broker():
    with BrokerThread(PARKING) as running:
        yield running


@pytest.fixture(scope="module")
def console(broker):
    with ConsoleProcess(broker.names) as running:
        yield running


@pytest.fixture
def visitor(console):
    with Visitor(console.url) as client:
        yield client
