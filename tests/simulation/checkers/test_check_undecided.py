"""The checker of I5 passes a run that settles, and finds open or vanished transactions."""

from tests.simulation.checkers.told import answered, half, looked, said, taken
from tests.simulation.checkers.undecided import broken
from tests.simulation.history import Calm, Ended, Patience

A, B = taken(2, "a", 0), taken(3, "b", 1)
HALVES = ("a", "b")
DONE = {"halves": HALVES, "markers": [(0, "COMMITTED"), (1, "PARKED")], "parked": ("b",)}


def run(*events, last, settled_at=110):
    return [
        *A,
        *B,
        *events,
        Calm(100),
        Patience(101, 60),
        looked(settled_at, **last),
        Ended(200),
        looked(300, **last),
    ]


def test_a_good_history_passes():
    assert broken(run(*answered(5, "a", "commit"), last=DONE)) == []


def test_histories_without_transactions_pass():
    assert broken([]) == []


def test_a_run_without_an_end_is_found():
    assert broken(run(last=DONE)[:-2]) == ["the run did not come to its end"]


def test_a_broker_without_a_look_at_its_transactions_is_found():
    history = [half(1, "a"), Calm(100), Patience(101, 60), Ended(200)]

    assert broken(history) == ["nobody looked at the transactions of broker-a"]


def test_a_transaction_that_stays_open_is_found():
    still = {"halves": HALVES, "markers": [(0, "COMMITTED")], "prepared": ("b",)}

    found = broken(run(said(5, "a", "commit"), last=still))

    assert found == [
        "b is neither decided nor parked",
        "broker-a took inf s to settle its transactions",
    ]


def test_transactions_that_take_too_long_to_settle_are_found():
    found = broken(run(said(5, "a", "commit"), last=DONE, settled_at=170))

    assert found == ["broker-a took 70.0 s to settle its transactions"]


def test_an_undecided_transaction_that_vanished_is_found():
    gone = {**DONE, "parked": ()}

    assert broken(run(said(5, "a", "commit"), last=gone)) == ["b is gone and was never decided"]


def test_a_parked_transaction_missing_from_the_list_is_found():
    short = {**DONE, "listed_parked": ()}

    (complaint,) = broken(run(said(5, "a", "commit"), last=short))

    assert complaint == "the list of the parked of broker-a is wrong about ['b']"


def test_a_parked_transaction_listed_twice_is_found():
    twice = {**DONE, "listed_parked": ("b", "b")}

    assert len(broken(run(said(5, "a", "commit"), last=twice))) == 1


def test_a_decision_that_nobody_made_is_found():
    for said_instead in ((), (said(5, "a", "rollback"),), (said(5, "a", "unknown"),)):
        (complaint,) = broken(run(*said_instead, last=DONE))
        assert complaint == "a was decided, commit, and nobody had said so"
