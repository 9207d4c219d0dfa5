"""The table of a transaction's life, pair by pair."""

import itertools
import re

import pytest

from txmq_broker.core.transactions import STEPS, Event, State, diagram

PREPARED, PARKED = State.PREPARED, State.PARKED
COMMITTED, ROLLED_BACK = State.COMMITTED, State.ROLLED_BACK
COMMIT, ROLL_BACK, EXHAUSTED = Event.COMMIT, Event.ROLL_BACK, Event.EXHAUSTED

EVERY_PAIR = [
    (PREPARED, COMMIT, COMMITTED), (PREPARED, ROLL_BACK, ROLLED_BACK),
    (PREPARED, EXHAUSTED, PARKED), (PARKED, COMMIT, COMMITTED), (PARKED, ROLL_BACK, ROLLED_BACK),
    (PARKED, EXHAUSTED, PARKED), (COMMITTED, COMMIT, COMMITTED), (COMMITTED, ROLL_BACK, None),
    (COMMITTED, EXHAUSTED, None), (ROLLED_BACK, COMMIT, None),
    (ROLLED_BACK, ROLL_BACK, ROLLED_BACK), (ROLLED_BACK, EXHAUSTED, None),
]  # fmt: skip


@pytest.mark.parametrize(("state", "event", "target"), EVERY_PAIR)
def test_each_event_leads_to_the_state_of_the_table(state, event, target):
    assert STEPS.get((state, event)) is target


def test_the_table_covers_every_pair_of_state_and_event():
    pairs = [pair[:2] for pair in EVERY_PAIR]

    assert sorted(pairs, key=str) == sorted(itertools.product(State, Event), key=str)
    assert set(STEPS) <= set(pairs)


@pytest.mark.parametrize("length", range(5))
def test_a_decided_state_is_never_left(length):
    for events in itertools.product(Event, repeat=length):
        state, decided = PREPARED, None
        for event in events:
            state = STEPS.get((state, event), state)
            if decided is None and state in (COMMITTED, ROLLED_BACK):
                decided = state
            assert decided in (None, state)


def test_running_out_of_checks_only_parks():
    assert all(target is PARKED for (_, event), target in STEPS.items() if event is EXHAUSTED), (
        "running out of checks presumes nothing"
    )


def test_the_diagram_shows_every_step_that_changes_something_and_where_it_ends():
    lines = diagram().splitlines()

    arrows = {tuple(re.split(r" --> |: ", line.strip(), maxsplit=2)) for line in lines[2:]}
    changes = {
        (state.name, target.name, event.value)
        for state, event, target in EVERY_PAIR
        if target not in (None, state)
    }
    assert lines[0] == "stateDiagram-v2"
    assert lines[1].strip() == "[*] --> PREPARED: half message stored"
    assert arrows == changes | {("COMMITTED", "[*]"), ("ROLLED_BACK", "[*]")}
