"""Owns the two banks that transactions over several databases are tested on."""

import os
from pathlib import Path

import pytest

from tests.integration.xa.xa_stage import Bank, XAStage

FIRST_START_SECONDS = 300


def pytest_collection_modifyitems(items):
    """The first of these tests may have to fetch a server before it has one."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not os.environ.get("TXMQ_SOAK"):
            item.add_marker(pytest.mark.timeout(FIRST_START_SECONDS))


@pytest.fixture(scope="session")
def bank_urls(postgres):
    """Two databases for all tests, each of which makes its tables anew."""
    with postgres.database() as icbc, postgres.database() as ccb:
        yield icbc, ccb


@pytest.fixture
def banks(bank_urls):
    """Two banks, each with a database of its own; the first has the fence."""
    stage = XAStage(*map(Bank, bank_urls))
    try:
        yield stage
    finally:
        for bank in stage.banks.values():
            bank.close()
