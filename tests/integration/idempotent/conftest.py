"""Owns the stage on which guards in Redis are tested."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the stage beside this file

pytest.register_assert_rewrite("redis_stage")

from redis_stage import ALONE, IN_FRONT, Stage, prepared  # noqa: E402


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
