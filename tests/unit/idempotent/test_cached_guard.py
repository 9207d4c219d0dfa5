"""A cache in front of a table: when it is read, when it is written, and what an outage costs."""

import logging

import pytest

from txmq.errors import DatabaseFailed, OutcomeUnknown, UsageError
from txmq.idempotent.guard import Attempt, KeyState, Verdict
from txmq.idempotent.redis import CachedGuard, Outage

FIRST = KeyState(Verdict.FIRST)
IN_PROGRESS = KeyState(Verdict.IN_PROGRESS)
DONE = KeyState(Verdict.DONE, '"a receipt"', "theirs")
CONFLICT = KeyState(Verdict.CONFLICT)


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


class Stage:
    """A table and its cache, which answer as they are told, and the steps that were taken."""

    def __init__(self):
        self.steps = []
        self.table = self.front = FIRST
        self.begins = self.ends = None
        self.is_away = False
        self.clock = Clock()
        self.is_blocking = True
        self.has_session = True
        self.guard = CachedGuard(lambda *named: Lease(self), self, Outage(self.clock))

    def attempt(self, key, *, scope="", payload=None):
        return Row(self)

    def take(self, step):
        self.steps.append(step)

    def deliver(self, problem=None):
        """Make one attempt, and note its steps."""
        self.steps = []
        with self.guard.attempt("order-1") as attempt:
            if attempt.verdict is Verdict.FIRST:
                self.take("work")
                attempt.keep("a receipt")
                if problem:
                    raise problem
        return attempt


class Lease:
    def __init__(self, stage):
        self.stage = stage

    def answered(self, step):
        self.stage.take(step)
        if self.stage.is_away:
            raise DatabaseFailed("gone fishing")

    async def claim(self):
        self.answered("claim")
        return self.stage.front

    async def finish(self, result, payload=None):
        self.answered(f"finish {result} {payload}")

    async def release(self):
        self.answered("release")


class Row(Attempt):
    is_blocking = True
    session = "a session"

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    async def begin(self):
        self.stage.take("begin")
        if self.stage.begins:
            raise self.stage.begins
        self.found = self.stage.table
        return self

    async def end(self, problem):
        if self.verdict is Verdict.FIRST:
            self.stage.take("rollback" if problem or self.is_abandoned else f"commit {self.kept}")
            if self.stage.ends:
                raise self.stage.ends


@pytest.fixture
def stage():
    return Stage()


def test_the_cache_is_updated_after_the_commit(stage):
    assert stage.deliver().verdict is Verdict.FIRST
    assert stage.steps == [
        "claim",
        "begin",
        "work",
        'commit "a receipt"',
        'finish "a receipt" None',
    ]


@pytest.mark.parametrize("said", [IN_PROGRESS, DONE, CONFLICT], ids=lambda said: said.verdict.name)
def test_a_cached_verdict_is_returned_without_asking_the_table(stage, said):
    stage.front = said

    attempt = stage.deliver()

    assert attempt.verdict is said.verdict
    assert stage.steps == ["claim"]
    with pytest.raises(UsageError):
        _ = attempt.session


def test_a_result_found_in_the_table_is_copied_to_the_cache(stage):
    stage.table = DONE

    assert stage.deliver().result == "a receipt"
    assert stage.steps == ["claim", "begin", 'finish "a receipt" theirs']


@pytest.mark.parametrize("said", [IN_PROGRESS, CONFLICT], ids=lambda said: said.verdict.name)
def test_a_verdict_of_the_table_other_than_done_releases_the_key_in_the_cache(stage, said):
    stage.table = said

    assert stage.deliver().verdict is said.verdict
    assert stage.steps == ["claim", "begin", "release"]


def test_a_table_that_fails_releases_the_key_in_the_cache(stage):
    stage.begins = OSError("no route")

    with pytest.raises(OSError, match="no route"):
        stage.deliver()
    assert stage.steps == ["claim", "begin", "release"]


@pytest.mark.parametrize("problem", [ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_work_that_fails_releases_the_key_in_the_cache(stage, problem):
    with pytest.raises(type(problem)):
        stage.deliver(problem)
    assert stage.steps == ["claim", "begin", "work", "rollback", "release"]


@pytest.mark.parametrize("problem", [OutcomeUnknown("who knows"), ValueError("no")], ids=repr)
def test_a_commit_that_fails_releases_the_key_in_the_cache(stage, problem):
    stage.ends = problem

    with pytest.raises(type(problem)):
        stage.deliver()
    assert stage.steps == ["claim", "begin", "work", 'commit "a receipt"', "release"]


def test_an_abandoned_attempt_does_not_update_the_cache(stage):
    with stage.guard.attempt("order-1") as attempt:
        assert attempt.session == "a session"
        attempt.abandon()

    assert stage.steps == ["claim", "begin", "rollback"]


@pytest.mark.fault("D10")
def test_an_unavailable_cache_is_bypassed_and_logged_once(stage, caplog):
    caplog.set_level(logging.INFO)
    stage.is_away = True

    stage.deliver()
    assert stage.steps == ["claim", "begin", "work", 'commit "a receipt"']
    for _ in range(10):
        stage.deliver()
        assert stage.steps == ["begin", "work", 'commit "a receipt"']
    assert [record.getMessage() for record in caplog.records] == [
        "the cache is bypassed and only the table is asked for now: gone fishing"
    ]


def test_an_unavailable_cache_is_tried_again_once_a_second(stage, caplog):
    caplog.set_level(logging.INFO)
    stage.is_away = True
    stage.deliver()

    for _ in range(3):
        stage.clock.now += 1.0
        stage.deliver()
        assert stage.steps[:2] == ["claim", "begin"]
        stage.deliver()
        assert stage.steps[0] == "begin"
    stage.is_away = False
    stage.deliver()
    assert stage.steps[0] == "begin"
    stage.clock.now += 1.0
    for _ in range(2):
        stage.deliver()
        assert stage.steps[0] == "claim"

    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_only_one_attempt_at_a_time_tries_an_unavailable_cache(stage):
    stage.is_away = True
    stage.deliver()
    stage.clock.now += 1.0
    outage = stage.guard._outage

    assert [outage.may_ask() for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("said", [None, True, False])
def test_keeps_result_is_the_setting_of_the_table(stage, said):
    stage.keeps_result = said

    assert stage.guard.keeps_result is said


def test_an_outage_that_ends_during_a_check_is_not_an_error(stage):
    stage.is_away = True
    stage.deliver()
    outage = stage.guard._outage

    class Interrupted(Clock):
        def monotonic(self):
            outage.ended()
            return self.now

    outage._clock = Interrupted()

    assert not outage.may_ask()


def test_work_done_while_the_cache_was_unavailable_is_stored_when_it_returns(stage):
    stage.is_away = True
    stage.steps = []

    with stage.guard.attempt("order-1"):
        stage.is_away = False
        stage.clock.now += 1.0

    assert stage.steps == ["claim", "begin", "commit None", "finish None None"]
