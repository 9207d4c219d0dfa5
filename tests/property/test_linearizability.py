"""The search for a possible order agrees with trying all orders."""

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traffic.linearizability import (
    ABSENT,
    COMMITTED,
    OPEN,
    ROLLED_BACK,
    Append,
    End,
    Operation,
    Read,
    Show,
    Write,
    contradiction,
)

STATES = (ABSENT, OPEN, COMMITTED, ROLLED_BACK)
OPENED, COMMIT, ROLLBACK = Write(OPEN), Write(COMMITTED), Write(ROLLED_BACK)


def shown(*states):
    return Show(states)


def history(*operations):
    return [Operation(begun, ended, "a client", action) for begun, ended, action in operations]


# Every order


def decided(state, action):
    """Apply an action to a transaction; None if that is impossible."""
    if isinstance(action, Show):
        return state if state in action.states else None
    if action.state == OPEN:
        return OPEN if state == ABSENT else state
    return action.state if state in (OPEN, action.state) else None


def appended(log, action):
    """Apply an action to a queue; None if that is impossible."""
    match action:
        case Append(messages, offset):
            return None if offset not in (None, len(log)) else log + messages
        case Read(offset, messages):
            return log if log[offset : offset + len(messages)] == messages else None
        case End(offset):
            return log if offset == len(log) else None


def has_order(operations, start, do):
    """Whether an order of the operations exists; unanswered ones may be left out."""
    answered = [operation for operation in operations if operation.ended is not None]
    silent = [operation for operation in operations if operation.ended is None]
    return any(
        in_time(order) and follows(order, start, do)
        for count in range(len(silent) + 1)
        for some in combinations(silent, count)
        for order in permutations([*answered, *some])
    )


def in_time(order):
    return not any(
        later.ended is not None and later.ended < earlier.begun
        for at, earlier in enumerate(order)
        for later in order[at + 1 :]
    )


def follows(order, state, do):
    for operation in order:
        state = do(state, operation.action)
        if state is None:
            return False
    return True


MOMENTS = st.integers(0, 6)
STATE_ACTIONS = st.one_of(
    st.sampled_from([OPENED, COMMIT, ROLLBACK]),
    st.lists(st.sampled_from(STATES), min_size=1, max_size=2, unique=True).map(
        lambda states: shown(*states)
    ),
)


@st.composite
def timed(draw, action):
    begun = draw(MOMENTS)
    ended = draw(st.integers(begun, begun + 3))
    if isinstance(action, Write | Append) and draw(st.booleans()):
        ended = None
        if isinstance(action, Append):
            action = Append(action.messages)  # The answer would say at which offset.
    return Operation(begun, ended, "a client", action)


@st.composite
def queue_histories(draw):
    """Appends of different messages, and some reads; most of them fit one log."""
    names = [f"m{number}" for number in range(draw(st.integers(0, 3)))]
    log = (*draw(st.permutations(names)),)
    actions = []
    for name in names:
        place = draw(st.sampled_from([None, log.index(name), log.index(name), 0]))
        actions.append(Append((name,), place))
    for _ in range(draw(st.integers(0, 3))):
        offset = draw(st.integers(0, 2))
        part = log[offset : offset + draw(st.integers(1, 2))]
        reads = [Read(offset, part)] if part else []
        actions.append(draw(st.sampled_from([*reads, End(offset), End(len(log))])))
    return [draw(timed(action)) for action in actions]


@given(st.lists(STATE_ACTIONS.flatmap(timed), max_size=6))
def test_a_transaction_history_is_judged_as_by_trying_every_order(operations):
    found = contradiction("t1", operations)

    assert (found is None) == has_order(operations, ABSENT, decided), found


@given(queue_histories())
def test_a_queue_history_is_judged_as_by_trying_every_order(operations):
    found = contradiction("queue", operations)

    assert (found is None) == has_order(operations, (), appended), found


# What must be refused, and what must not


REFUSED = {
    "open is shown after an acknowledged commit": [
        (0, 1, OPENED), (2, 3, COMMIT), (4, 5, shown(OPEN)),
    ],
    "open is shown after a read of the commit": [
        (0, 1, OPENED), (2, None, COMMIT), (3, 4, shown(COMMITTED)), (5, 6, shown(OPEN)),
    ],
    "commit and rollback are both acknowledged": [
        (0, 1, OPENED), (2, 5, COMMIT), (3, 6, ROLLBACK),
    ],
    "a commit is shown that nobody had begun": [
        (0, 1, OPENED), (2, 3, shown(COMMITTED)), (4, 5, COMMIT),
    ],
    "a half message is gone that was acknowledged": [
        (0, 1, OPENED), (2, 3, shown(ABSENT)),
    ],
    "an acknowledged message is lost": [
        (0, 1, Append(("a",), 0)), (2, 3, Append(("b",), 1)), (4, 5, End(1)),
    ],
    "two messages have one offset": [
        (0, 1, Append(("a",), 0)), (0, 1, Append(("b",), 0)),
    ],
    "a message has two offsets": [
        (0, 1, Append(("a",), 0)), (2, 3, Read(1, ("a",))),
    ],
    "messages lie against the order in which they were sent": [
        (0, 1, Append(("a",), 1)), (2, 3, Append(("b",), 0)),
    ],
    "a read leaves out a message that was acknowledged": [
        (0, 1, Append(("a",), 0)), (0, 1, Append(("b",), 1)), (0, 1, Append(("c",), 2)),
        (2, 3, Read(0, ("a", None, "c"))),
    ],
    "a message is read before it was sent": [
        (0, 1, Read(0, ("a",))), (2, 3, Append(("a",), 0)),
    ],
    "an end goes back after a read": [
        (0, None, Append(("a",))), (1, 2, Read(0, ("a",))), (3, 4, End(0)),
    ],
    "a batch is torn": [
        (0, 4, Append(("a", "b"), 0)), (0, 4, Read(0, ("a", "c"))), (0, 4, Append(("c",), 1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_contradictory_history_is_refused_with_its_key(case):
    assert contradiction("t1 of bank", history(*REFUSED[case])).startswith("t1 of bank: ")


POSSIBLE = {
    "open is shown while a commit is under way": [
        (0, 1, OPENED), (2, 5, COMMIT), (3, 6, shown(OPEN)),
    ],
    "a commit without an answer takes effect late": [
        (0, 1, OPENED), (2, None, COMMIT), (4, 5, shown(OPEN)), (6, 7, shown(COMMITTED)),
    ],
    "a commit without an answer never takes effect": [
        (0, 1, OPENED), (2, None, COMMIT), (4, 5, ROLLBACK),
    ],
    "a commit is repeated": [
        (0, 1, OPENED), (2, 3, COMMIT), (4, 5, COMMIT),
    ],
    "sends under way at the same time lie in any order": [
        (0, 3, Append(("a",), 1)), (1, 2, Append(("b",), 0)),
    ],
    "a send without an answer is stored all the same": [
        (0, None, Append(("a",))), (1, 2, Append(("b",), 1)), (3, 4, Read(0, ("a", "b"))),
    ],
    "nobody ever looked at what lies below": [
        (0, None, Append(("a",))), (1, 2, Append(("b",), 1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", POSSIBLE)
def test_a_possible_history_is_not_refused(case):
    assert contradiction("t1 of bank", history(*POSSIBLE[case])) is None


@pytest.mark.slow
def test_a_report_shows_only_the_contradicting_operations():
    before = [(0, number + 1, Append((f"m{number}",), number)) for number in range(300)]
    stale = [(400, 401, Append(("late",), 300)), (402, 403, Read(299, ("m299", "late")))]
    reads = [(500 + number, 501 + number, Read(number, (f"m{number}",))) for number in range(300)]
    found = contradiction("queue 0", history(*before, *stale, *reads, (900, 901, End(300))))

    assert found.splitlines() == [
        "queue 0: no order of these is possible:",
        "    402.000000 to 403.000000: a client: read m299 late at 299",
        "    900.000000 to 901.000000: a client: found its end at 300",
    ]


@pytest.mark.slow
def test_thousands_of_concurrent_operations_are_judged_quickly():
    sends = [(number, number + 30, Append((f"m{number}",), number)) for number in range(3000)]
    lost = [(number, None, Append((f"lost{number}",))) for number in range(0, 3000, 30)]
    reads = [(number + 40, number + 70, Read(number, (f"m{number}",))) for number in range(3000)]

    assert contradiction("queue 0", history(*sends, *lost, *reads)) is None
