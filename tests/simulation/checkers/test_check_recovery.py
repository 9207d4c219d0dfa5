"""The checker of recovery passes equal outcomes and finds differences."""

from dataclasses import replace

from tests.simulation.checkers.recovery import AGAIN, broken
from tests.simulation.history import Recovered, Shape

ONCE = Shape({"0.log": (100, 7), "1.log": (50, 8)}, {("Topic", 0): (0, 3, 9)}, cut_bytes=12)
CALM = replace(ONCE, cut_bytes=0)


def recovered(**others):
    return [Recovered(1.0, "broker-a", ONCE, others)]


def test_equal_outcomes_pass():
    assert broken(recovered(again=CALM, interrupted=ONCE)) == []


def test_a_second_recovery_that_cuts_the_log_again_is_found():
    assert broken(recovered(**{AGAIN: ONCE})) == [
        "broker-a at 1.000000, recovered again: 12 bytes were cut again"
    ]


def test_a_log_that_differs_after_a_second_recovery_is_found():
    other = replace(CALM, log={"0.log": (100, 7), "1.log": (40, 6)})

    (complaint,) = broken(recovered(again=other))

    assert complaint.endswith("file 1.log is (40, 6), was (50, 8) at first")


def test_a_missing_or_new_log_file_is_found():
    other = replace(CALM, log={"0.log": (100, 7), "2.log": (1, 1)})

    assert len(broken(recovered(again=other))) == 2


def test_queues_that_differ_are_found():
    for queues in ({}, {("Topic", 0): (0, 2, 9)}, {("Topic", 0): (0, 3, 1)}):
        assert len(broken(recovered(interrupted=replace(CALM, queues=queues)))) == 1


def test_open_transactions_that_differ_are_found():
    once = replace(ONCE, open={0: False, 3: True})
    for known in ({0: False}, {0: False, 3: False}, {0: False, 3: True, 4: False}):
        found = broken([Recovered(1.0, "broker-a", once, {"again": replace(CALM, open=known)})])
        assert len(found) == 1
        assert "open transaction" in found[0]


def test_waiting_messages_that_differ_are_found():
    once = replace(ONCE, waiting={(2, 0): 5000, (2, 1): 6000})
    for known in ({(2, 0): 5000}, {(2, 0): 5000, (2, 1): 7000}):
        found = broken([Recovered(1.0, "broker-a", once, {"again": replace(CALM, waiting=known)})])
        assert len(found) == 1
        assert "waiting message" in found[0]
