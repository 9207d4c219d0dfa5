"""The states of a transfer: every state can be reached, and final states stay."""

from itertools import product

from examples.bank_transfer.books import MOVES, State

FIRST = {
    "the bank that pays": {State.REFUSED, State.SENT, State.SETTLED},
    "the bank that is paid": {State.CREDITED, State.RETURNED},
}


def reachable(first):
    found, new = set(), set(first)
    while new:
        found |= new
        new = {after for state in new for after in MOVES[state]} - found
    return found


def test_every_state_lists_its_transitions():
    assert set(MOVES) == set(State)


def test_every_state_can_be_reached():
    paying, paid = (reachable(state) for state in FIRST.values())

    assert paying | paid == set(State)
    assert State.CREDITED not in paying
    assert State.SENT not in paid


def test_a_final_state_has_no_transitions():
    final = {state for state in State if state.is_final}

    assert final == set(State) - {State.SENT}
    assert not any(after in MOVES[before] for before, after in product(final, State))


def test_every_state_can_reach_a_final_state():
    for state in State:
        assert any(after.is_final for after in reachable({state}))
