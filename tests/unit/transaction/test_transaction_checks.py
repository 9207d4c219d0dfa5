"""Checks: which handler runs, how many at once, and what happens if handlers fail or hang."""

import asyncio

import pytest

from tests.unit.transaction.producing_stage import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    fields_of,
    message,
    refuse,
    silent,
    staged,
)
from txmq.errors import RollBack
from txmq.transaction import checks


class Odd(BaseException):
    """Not an Exception, and still no reason to end."""


def for_ever():
    return asyncio.get_running_loop().create_future()


async def deaf():
    """Ignores its cancellation for 20 seconds."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.sleep(20)
    return COMMIT


@pytest.mark.parametrize("says", [COMMIT, ROLLBACK, RollBack("it never ran")])
def test_a_decision_is_sent_to_the_broker_that_asked(says):
    @staged(bank={"says_of_checks": says})
    async def scenario(stage):
        xid = await stage.half(b"open")
        stage.ask(xid)
        await stage.until(lambda: stage.ends)

        (end,) = stage.ends
        (checked,) = stage.bank.checked
        assert (checked.id, checked.body, checked.topic) == (xid, b"open", TOPIC)
        assert (end["msgId"], end["transactionId"], end["topic"]) == (xid, xid, TOPIC)
        assert end["producerGroup"] == GROUP
        assert end["fromTransactionCheck"] == "true"
        assert (end["tranStateTableOffset"], end["commitLogOffset"]) == ("0", "0")
        assert stage.said == [COMMIT if says is COMMIT else ROLLBACK]

    scenario()


@pytest.mark.fault("M8")
@pytest.mark.parametrize("says", [UNKNOWN, RuntimeError("no database"), None, "COMMIT", Odd()])
def test_a_check_without_a_decision_is_answered_unknown(says):
    @staged(bank={"says_of_checks": says})
    async def scenario(stage):
        stage.ask(await stage.half())
        await stage.until(lambda: stage.ends)
        assert stage.said == [UNKNOWN]
        assert stage.producer.tally.checks_unknown == 1
        # The next check is answered as usual.
        stage.bank.says_of_checks = COMMIT
        stage.ask(await stage.half(b"next"))
        await stage.until(lambda: len(stage.ends) == 2)
        assert stage.said == [UNKNOWN, COMMIT]

    scenario()


@staged(check_workers=2, check_queue=3)
async def test_checks_run_up_to_the_worker_limit_wait_in_a_queue_and_are_dropped_beyond(stage):
    gate = asyncio.Event()

    async def wait():
        await gate.wait()
        return COMMIT

    stage.bank.says_of_checks = wait
    halves = [await stage.half(b"%d" % number) for number in range(8)]
    for half in halves:
        stage.ask(half)
    await asyncio.sleep(1)
    assert len(stage.bank.checked) == 2
    gate.set()
    await stage.until(lambda: len(stage.ends) == 5)

    assert [half.id for half in stage.bank.checked] == halves[:5]
    assert (stage.producer.tally.checks, stage.producer.tally.checks_dropped) == (8, 3)
    assert stage.producer.tally.checks_committed == 5


@staged(check_workers=1, check_queue=0)
async def test_without_a_queue_one_check_still_runs(stage):
    stage.ask(await stage.half())
    await stage.until(lambda: stage.ends)


@staged(check_workers=1)
async def test_repeated_checks_of_one_transaction_call_its_handler_once(stage):
    stage.bank.says_of_checks = lambda: asyncio.sleep(1.0, COMMIT)
    first, second = await stage.half(b"1"), await stage.half(b"2")
    for half in (first, second):
        stage.ask(half, checks=3)
    await stage.until(lambda: len(stage.ends) == 2)

    assert [half.id for half in stage.bank.checked] == [first, second]


@pytest.mark.fault("M8")
@staged(check_workers=1, check_timeout=5.0, bank={"says_of_checks": for_ever})
async def test_a_handler_that_hangs_is_answered_unknown_and_frees_its_worker(stage):
    hanging, next_one = await stage.half(b"1"), await stage.half(b"2")
    stage.ask(hanging)
    await stage.until(lambda: stage.bank.checked)
    stage.bank.says_of_checks = COMMIT
    stage.ask(next_one)
    await stage.until(lambda: len(stage.ends) == 2)

    assert {end["msgId"]: word for end, word in zip(stage.ends, stage.said, strict=True)} == {
        hanging: UNKNOWN,
        next_one: COMMIT,
    }
    assert stage.producer.tally.checks_hung == 1
    # It was cancelled, so it may be asked about again.
    stage.ask(hanging)
    await stage.until(lambda: len(stage.ends) == 3)
    assert stage.said[2] is COMMIT


@staged(check_workers=1, check_timeout=5.0, bank={"says_of_checks": deaf})
async def test_a_handler_that_ignores_its_cancellation_is_answered_late(stage):
    xid = await stage.half()
    stage.ask(xid)
    await stage.until(lambda: stage.ends)
    stage.ask(xid)
    await stage.until(lambda: len(stage.ends) == 2)
    assert len(stage.bank.checked) == 1  # A handler that hangs is not called twice.
    await stage.until(lambda: len(stage.ends) == 3)

    assert stage.said == [UNKNOWN, UNKNOWN, COMMIT]


def test_the_number_of_hung_checks_is_limited(monkeypatch):
    monkeypatch.setattr(checks, "HUNG_CHECKS_MAX", 2)

    @staged(check_workers=1, check_queue=1, check_timeout=5.0, bank={"says_of_checks": deaf})
    async def scenario(stage):
        halves = [await stage.half(b"%d" % number) for number in range(4)]
        for number in (0, 1):
            stage.ask(halves[number])
            await stage.until(lambda done=number + 1: len(stage.ends) == done)
        stage.bank.says_of_checks = COMMIT
        stage.ask(halves[2])  # It waits until one returns.
        stage.ask(halves[3])  # This one finds no room.
        await asyncio.sleep(1)
        assert len(stage.bank.checked) == 2
        assert stage.producer.tally.checks_dropped == 1
        await stage.until(lambda: len(stage.ends) == 5)
        assert [half.id for half in stage.bank.checked] == halves[:3]

    scenario()


@pytest.mark.fault("M7")
@pytest.mark.parametrize(("says", "code"), [(COMMIT, 201), (ROLLBACK, 200)])
def test_an_answer_that_comes_too_late_counts_as_a_conflict(says, code, caplog):
    @staged(bank={"says_of_checks": says})
    async def scenario(stage):
        stage.told("end", refuse(code))
        stage.ask(await stage.half())
        await stage.until(lambda: stage.producer.tally.conflicts)
        await asyncio.sleep(1)
        assert len(stage.ends) == 1

    scenario()
    assert "before the producer sent" in caplog.text


@staged(end_timeout=1.0)
async def test_an_unacknowledged_answer_to_a_check_is_not_repeated(stage):
    stage.told("end", silent, stage.lose)
    stage.ask(await stage.half())
    await asyncio.sleep(5)
    assert len(stage.ends) == 1
    stage.ask(await stage.half())
    await asyncio.sleep(5)
    assert len(stage.ends) == 2


@staged()
async def test_a_check_whose_connection_is_lost_gets_no_answer(stage):
    async def outage():
        stage.broker.connection.abort()
        await asyncio.sleep(1)
        return UNKNOWN

    stage.bank.says_of_checks = outage
    stage.ask(await stage.half())
    await stage.until(lambda: stage.producer.tally.checks_unknown)
    assert stage.ends == []


@staged()
async def test_closing_waits_for_running_checks(stage):
    stage.bank.says_of_checks = lambda: asyncio.sleep(3, COMMIT)
    stage.ask(await stage.half())
    await stage.until(lambda: stage.bank.checked)
    await stage.producer.__aexit__(None, None, None)
    assert stage.said == [COMMIT]


@staged(stop_timeout=5.0, bank={"says_of_checks": deaf})
async def test_closing_does_not_wait_for_hung_checks(stage):
    stage.ask(await stage.half())
    await stage.until(lambda: stage.bank.checked)
    began = stage.world.now()
    await stage.producer.__aexit__(None, None, None)
    assert stage.world.now() - began < 30  # It still waits for the handler once that is cancelled.


@staged(check_timeout=1.0, bank={"says_of_checks": for_ever})
async def test_an_idle_producer_answers_checks(stage):
    xid = await stage.half()
    stage.bank.says_of_checks = COMMIT
    stage.ask(xid, checks=2)
    await stage.until(lambda: stage.ends)
    assert stage.said == [COMMIT]


@staged(bank={"says_of_checks": ROLLBACK})
async def test_a_check_of_a_running_local_transaction_is_answered_unknown(stage):
    stage.bank.says = lambda: asyncio.sleep(30, COMMIT)
    running = asyncio.ensure_future(stage.producer.send_in_transaction(message(b"slow")))
    await stage.until(lambda: stage.bank.executed)
    xid = stage.bank.executed[0][0].id
    stage.ask(xid)
    await stage.until(lambda: stage.ends)
    assert (await running).is_acknowledged
    assert stage.said == [UNKNOWN, COMMIT]
    assert stage.bank.checked == []

    stage.ask(xid)
    await stage.until(lambda: len(stage.ends) == 3)
    assert len(stage.bank.checked) == 1


@staged(bank={"says_of_checks": ROLLBACK})
async def test_a_check_of_a_cancelled_transaction_calls_the_listener(stage):
    stage.bank.says = lambda: asyncio.sleep(30, COMMIT)
    running = asyncio.ensure_future(stage.producer.send_in_transaction(message(b"slow")))
    await stage.until(lambda: stage.bank.executed)
    running.cancel()
    await asyncio.wait([running])
    stage.ask(stage.bank.executed[0][0].id)
    await stage.until(lambda: stage.ends)
    assert stage.said == [ROLLBACK]


@staged(bank={"says_of_checks": ROLLBACK})
async def test_a_check_before_the_answer_to_its_half_message_is_answered_unknown(stage):
    """The answer and the check may arrive together at a process that was paused."""
    stored = stage.broker.on_send_message_v2

    def asked_first(request):
        answered = stored(request)
        stage.ask(fields_of(stage.halves[-1])["UNIQ_KEY"])
        return answered

    stage.broker.on_send_message_v2 = asked_first
    outcome = await stage.producer.send_in_transaction(message())
    assert outcome.is_acknowledged
    await stage.until(lambda: len(stage.ends) == 2)
    assert stage.said == [UNKNOWN, COMMIT]
    assert stage.bank.checked == []
