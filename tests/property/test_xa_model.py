"""The protocol of several databases, on a small model: whoever dies when, both banks do the same.

Two databases, a fence and a broker are a few sets. Whoever takes part is a generator that does one
thing at a time, and between any two of these it may be somebody else's turn, or the transaction's
process dies. What a recovery does with a prepared transaction is asked of the product itself.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.transaction.resources.two_phase import Duty, duty
from txmq.transaction.state import LocalTransactionState

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
BANKS = ("icbc", "ccb")


class World:
    """The state that outlives all programs."""

    def __init__(self):
        self.prepared = set()
        self.done = {}
        self.row = None
        self.told = None

    def claim(self, state):
        """Insert a row unless one exists; return the row that is there."""
        if self.row is None:
            self.row = state
        return self.row

    def end(self, bank, state):
        if bank in self.prepared:
            self.prepared.discard(bank)
            assert self.done.setdefault(bank, state) is state
        assert state is ROLLBACK or self.row is COMMIT, "committed before it was decided"

    def tell(self, state):
        assert self.told in (None, state), "the broker hears both"
        self.told = state


def transaction(world):
    """The first phase, the decision, the word to the broker, the second phase."""
    if world.row is not None:
        yield
        world.tell(world.row)
        return
    yield
    for bank in BANKS:
        world.prepared.add(bank)
        yield
    state = world.claim(COMMIT)
    yield
    if state is ROLLBACK:
        for bank in BANKS:
            world.end(bank, ROLLBACK)
            yield
        world.tell(ROLLBACK)
        return
    world.tell(COMMIT)
    yield
    for bank in BANKS:
        world.end(bank, COMMIT)
        yield


def refused(world):
    """A transaction whose second bank says no: there is no row, and none is needed."""
    yield
    world.prepared.add("icbc")
    yield
    world.end("icbc", ROLLBACK)
    yield
    world.tell(ROLLBACK)


def check(world):
    state = world.claim(ROLLBACK)
    yield
    for bank in BANKS:
        world.end(bank, state)
        yield
    world.tell(state)


def recovery(world, horizon=0.0):
    for bank in BANKS:
        if bank not in world.prepared:
            yield
            continue
        decided = world.row
        yield
        what = duty(decided, 1.0, horizon)
        if what is Duty.ASK:
            what = duty(world.claim(ROLLBACK), 0.0, 1.0)
            yield
        if what is not Duty.WAIT:
            world.end(bank, COMMIT if what is Duty.COMMIT else ROLLBACK)
        yield


def play(first, others, turns, dies_at):
    """Everybody takes turns as told; then who is left goes on to the end, one after the other."""
    world = World()
    running = {0: first(world)} | {n: program(world) for n, program in enumerate(others, 1)}
    steps = 0
    for turn in [*turns, *sorted(running) * 20]:
        if turn not in running or (turn == 0 and steps == dies_at):
            continue
        steps += turn == 0
        if next(running[turn], "over") == "over":
            del running[turn]
    for _ in recovery(world):  # A last recovery looks once more.
        pass
    if world.told is None and dies_at is not None:
        for _ in check(world):
            pass
    return world


def agrees(world):
    assert not world.prepared
    assert len(set(world.done.values())) <= 1, world.done
    if world.row is COMMIT:
        assert world.done == dict.fromkeys(BANKS, COMMIT)
        assert world.told is COMMIT
    else:
        assert COMMIT not in world.done.values()
        assert world.told in (None, ROLLBACK)


@given(
    first=st.sampled_from([transaction, refused]),
    others=st.lists(st.sampled_from([check, recovery]), max_size=3),
    turns=st.lists(st.integers(0, 3), max_size=30),
    dies_at=st.none() | st.integers(0, 9),
)
def test_both_banks_end_alike_in_any_order_of_steps(first, others, turns, dies_at):
    agrees(play(first, others, turns, dies_at))


@pytest.mark.fault("P19", "P20", "P21")
@pytest.mark.parametrize("other", [check, recovery])
@pytest.mark.parametrize("dies_at", [None, *range(10)])
@pytest.mark.parametrize("goes_first", range(10))
def test_both_banks_end_alike_if_a_rival_starts_or_a_program_dies_at_any_step(
    other, dies_at, goes_first
):
    for length in range(6):
        turns = [0] * goes_first + [1] * length + [0] * 10
        agrees(play(transaction, [other], turns, dies_at))


def test_the_model_rejects_a_protocol_that_decides_too_early():
    def hasty(world):
        world.prepared.add("icbc")
        yield
        world.end("icbc", COMMIT)
        yield

    with pytest.raises(AssertionError, match="before it was decided"):
        play(hasty, [], [], None)
