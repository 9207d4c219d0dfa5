"""What brokers log of simulated trouble is in nobody's interest; formatting it costs time."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
