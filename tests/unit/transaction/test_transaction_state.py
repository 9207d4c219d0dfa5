"""The order of the steps of a transaction, and the outcome that a caller gets."""

import asyncio
from itertools import product

import pytest

from tests.unit.transaction.producing_stage import message, staged
from txmq.errors import OutcomeUnknown, RequestTimeout, RollBack, UsageError
from txmq.transaction.machine import LocalAnswer, Transaction
from txmq.transaction.state import (
    TRANSITIONS,
    LocalTransactionState,
    Phase,
    TransactionOutcome,
    TransactionState,
    Verb,
)

TOO_LITTLE = RollBack("too little money")
LOST = RequestTimeout("127.0.0.1:9", 3.0)


def outcome(state, **more):
    return TransactionOutcome(state=state, xid="x-1", is_acknowledged=True, **more)


def test_unwrap_returns_the_result_of_a_commit_whose_answer_was_lost():
    assert outcome(TransactionState.COMMITTED, result=7, problem=LOST).unwrap() == 7


@pytest.mark.parametrize(
    ("state", "problem", "raised"),
    [
        (TransactionState.ROLLED_BACK, TOO_LITTLE, TOO_LITTLE),
        (TransactionState.ROLLED_BACK, None, RollBack("transaction x-1 is rolled back")),
        (TransactionState.ROLLED_BACK, LOST, RollBack("transaction x-1 is rolled back")),
        (TransactionState.UNKNOWN, LOST, OutcomeUnknown("transaction x-1 may have committed; a")),
    ],
)
def test_unwrap_raises_for_a_transaction_that_is_not_committed(state, problem, raised):
    with pytest.raises(type(raised), match=str(raised)) as caught:
        outcome(state, problem=problem).unwrap()

    assert problem in (None, caught.value, caught.value.__cause__)


@pytest.mark.parametrize(("phase", "verb"), list(product(Phase, Verb)))
def test_a_step_outside_the_transition_table_is_refused(phase, verb):
    transaction = Transaction("g", "x-1", None, False, phase=phase)

    if (phase, verb) in TRANSITIONS:
        assert transaction.after(verb) is TRANSITIONS[phase, verb]
    else:
        with pytest.raises(UsageError, match=f"transaction x-1 {phase}, and cannot {verb} now"):
            transaction.after(verb)


def test_every_phase_leads_to_settled_and_nothing_follows_it():
    leading, before = set(), {Phase.SETTLED}
    while before:
        leading |= before
        before = {phase for (phase, _), after in TRANSITIONS.items() if after in before} - leading

    assert leading == set(Phase)
    assert Phase.SETTLED not in {phase for phase, _ in TRANSITIONS}


@staged()
async def test_a_transaction_sends_no_half_message_before_its_function_runs_or_after(stage):
    transaction = stage.producer.new([message()])
    await transaction.begin([message()])

    with pytest.raises(UsageError, match="has begun, and cannot begin now"):
        await transaction.begin([message()])
    with pytest.raises(UsageError, match="has begun, and takes no more messages"):
        transaction.add(message())
    transaction.work_begins()
    await transaction.decide(LocalAnswer(LocalTransactionState.ROLLBACK))
    with pytest.raises(UsageError, match="is settled, and cannot begin now"):
        await transaction.begin([message()])
    with pytest.raises(UsageError, match="is settled, and takes no more messages"):
        transaction.add(message())

    assert len(stage.halves) == 1


@staged()
async def test_a_half_message_stored_after_the_decision_is_refused(stage):
    transaction = stage.producer.new()
    transaction.work_begins()
    sending = asyncio.create_task(transaction.begin([message()]))
    await asyncio.sleep(0)

    assert await transaction.decide(LocalAnswer(LocalTransactionState.UNKNOWN)) is None

    with pytest.raises(UsageError, match="is settled, and cannot begin now"):
        await sending
    assert stage.producer._context.undecided == {}
