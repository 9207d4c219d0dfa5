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


def test_a_database_that_answers_is_no_objection():
    async def waiting():
        return None

    assert objection(waiting) == ""


def test_a_database_that_fails_gives_its_reason():
    async def waiting():
        raise DatabaseFailed("the rows of txmq_outbox cannot be counted: it is down")

    assert objection(waiting) == "the rows of txmq_outbox cannot be counted: it is down"


def test_a_database_that_is_silent_is_named_after_a_while(monkeypatch):
    monkeypatch.setattr(command, "COUNT_S", 0.01)

    async def waiting():
        await asyncio.Event().wait()

    assert objection(waiting) == "the database did not answer within 0.01 s"
