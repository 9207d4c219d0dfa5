"""What a caller receives as the outcome of a transaction."""

import pytest

from txmq.errors import OutcomeUnknown, RequestTimeout, RollBack
from txmq.transaction.state import TransactionOutcome, TransactionState

TOO_LITTLE = RollBack("too little money")
LOST = RequestTimeout("127.0.0.1:9", 3.0)


def outcome(state, **more):
    return TransactionOutcome(state=state, xid="x-1", sent=None, is_acknowledged=True, **more)


def test_the_result_of_a_committed_transaction_is_unwrapped_although_its_answer_was_lost():
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
def test_any_other_transaction_raises_when_it_is_unwrapped(state, problem, raised):
    with pytest.raises(type(raised), match=str(raised)) as caught:
        outcome(state, problem=problem).unwrap()

    assert problem in (None, caught.value, caught.value.__cause__)
