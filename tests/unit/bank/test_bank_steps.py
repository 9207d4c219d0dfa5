"""The steps of transactions are read from the log without changing the loggers."""

import asyncio
import logging

import pytest

from examples.bank_transfer.steps import LOGGERS, NINE, TRANSACTIONS_MAX, Steps
from txmq.transaction.story import Step as Told
from txmq.transaction.story import Stories

STORY, CHECKS = map(logging.getLogger, LOGGERS)


@pytest.fixture
def steps():
    with Steps() as found:
        yield found


def tell(xid, *numbers):
    stories = Stories(lambda: None)
    for step in Told:
        if step.value[0] in numbers:
            stories.tell(xid, step, "M" if "%s" in step.value[2] else "")


def numbers(steps, transfer):
    return [step.number for step in steps.of(transfer)]


def test_there_are_nine_steps():
    assert len(NINE) == len(Told) == 9


def test_a_transfer_shows_the_steps_of_its_transaction(steps):
    steps.belong("t-1", "X")
    tell("Y", 1, 2)
    tell("X", 1, 2, 3)

    found = steps.of("t-1")

    assert [step.number for step in found] == [1, 2, 3]
    assert found[0].text == "group M opens the transaction"
    assert found[0].at_s <= found[2].at_s


def test_steps_logged_before_the_transfer_is_known_are_kept(steps):
    tell("X", 1, 2)

    steps.belong("t-1", "X")

    assert numbers(steps, "t-1") == [1, 2]
    assert steps.of("t-2") == []


def test_log_lines_within_a_step_have_no_number(steps):
    steps.belong("t-1", "X")
    CHECKS.debug("the check of %s was answered with %s", "X", "COMMIT", extra={"xid": "X"})

    assert [tuple(step[:2]) for step in steps.of("t-1")] == [
        (0, "the check of X was answered with COMMIT")
    ]


def test_log_lines_without_a_transaction_are_ignored(steps):
    STORY.debug("something: %s", "else")

    assert not steps._stories


def test_steps_of_old_transactions_are_forgotten(steps):
    for n in range(3 * TRANSACTIONS_MAX):
        steps.belong(f"t-{n}", f"X-{n}")
        tell(f"X-{n}", 1)

    assert len(steps._stories) == len(steps._xids) == TRANSACTIONS_MAX
    assert steps.of("t-0") == []
    assert numbers(steps, f"t-{3 * TRANSACTIONS_MAX - 1}") == [1]


def test_loggers_are_restored_after_use():
    before = [(logger.level, list(logger.handlers)) for logger in (STORY, CHECKS)]

    with Steps():
        assert STORY.isEnabledFor(logging.DEBUG)
        with Steps():
            pass
        assert STORY.isEnabledFor(logging.DEBUG)

    assert [(logger.level, list(logger.handlers)) for logger in (STORY, CHECKS)] == before


def test_steps_that_are_switched_off_record_nothing():
    level = STORY.level

    with Steps(is_on=False) as steps:
        steps.belong("t-1", "X")
        tell("X", 1)
        assert STORY.level == level

    assert steps.of("t-1") == []
    assert not steps._xids


def test_a_follower_sees_past_and_future_steps(steps):
    async def follow():
        seen, all_seen = [], asyncio.Event()

        async def look():
            async for step in steps.follow("t-1"):
                seen.append(step.number)
                if step.number == 9:
                    all_seen.set()

        looking = asyncio.create_task(look())
        tell("X", 1, 2)
        await asyncio.sleep(0)
        steps.belong("t-1", "X")
        await asyncio.sleep(0)
        tell("X", 3, 4, 5, 6, 7, 8, 9)
        async with asyncio.timeout(5):
            await all_seen.wait()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        return seen

    assert asyncio.run(follow()) == list(range(1, 10))
