"""What ``/health/ready`` of a relay finds out about its database."""

import asyncio

from txmq.cli import relay as command
from txmq.errors import DatabaseFailed


class FakeRelay:
    """A relay whose database does what the test says."""

    def __init__(self, waiting):
        self.waiting = waiting


def objection(waiting):
    return asyncio.run(command._objection(FakeRelay(waiting)))


def test_a_database_that_answers_passes_the_probe():
    async def waiting():
        return None

    assert objection(waiting) == ""


def test_a_failing_database_is_reported_with_its_error():
    async def waiting():
        raise DatabaseFailed("the rows of txmq_outbox cannot be counted: it is down")

    assert objection(waiting) == "the rows of txmq_outbox cannot be counted: it is down"


def test_a_silent_database_is_reported_after_a_timeout(monkeypatch):
    monkeypatch.setattr(command, "COUNT_S", 0.01)

    async def waiting():
        await asyncio.Event().wait()

    assert objection(waiting) == "the database did not answer within 0.01 s"
