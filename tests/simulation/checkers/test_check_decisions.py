"""The checker of I7 lets answers pass that fit one decision and finds those that do not."""

from dataclasses import replace

import pytest

from tests.simulation.checkers.decisions import broken
from tests.simulation.checkers.told import answered, audit, looked, of_half, pulled, taken
from tests.simulation.history import WrongEnd

A = taken(2, "a", 0)


def test_a_good_history_passes():
    history = [
        *A,
        *answered(3, "a", "unknown", who="check"),
        *answered(4, "a", "commit"),
        *answered(5, "a", "commit", who="check"),
        *answered(6, "a", "rollback", who="liar", code=200),
        *answered(7, "a", "rollback", who="operator", code=22),
        *answered(8, "a", "commit", code=14),
        WrongEnd(9, "a", "group", 203),
        WrongEnd(9, "a", "value", 29),
        WrongEnd(9, "a", "offset", 22),
        WrongEnd(9, "a", "position", 604),
        pulled(10, 0, of_half("a", 0)),
        audit(11, of_half("a", 0)),
        looked(12, halves=("a",), markers=[(0, "PARKED"), (0, "COMMITTED")]),
    ]

    assert broken(history) == []


def test_both_decisions_honoured_are_found():
    (complaint,) = broken([*A, *answered(4, "a", "commit"), *answered(5, "a", "rollback")])

    assert complaint.startswith("a is commit by the answer 0 to a producer at 4")
    assert "and rollback by the answer 0" in complaint


@pytest.mark.parametrize(
    ("first", "second", "code"), [("commit", "commit", 201), ("rollback", "rollback", 200)]
)
def test_a_success_and_then_the_wrong_refusal_are_found(first, second, code):
    assert len(broken([*A, *answered(4, "a", first), *answered(5, "a", second, code=code)])) == 1


def test_refusals_that_speak_of_two_decisions_are_found():
    history = [*answered(4, "a", "commit", code=201), *answered(5, "a", "rollback", code=200)]

    assert len(broken([*A, *history])) == 1


@pytest.mark.parametrize("code", [1, 4, 22, 29, 203, 604])
def test_a_rightful_end_that_is_refused_otherwise_is_found(code):
    assert f"was answered {code}" in broken([*A, *answered(4, "a", "commit", code=code)])[0]


@pytest.mark.parametrize("how", ["value", "group", "offset", "position"])
@pytest.mark.parametrize("code", [0, 1, 200])
def test_a_wrong_end_that_is_not_told_so_is_found(how, code):
    assert broken([WrongEnd(3, "a", how, code)]) == [f"a: a wrong {how} was answered {code}"]


def test_told_as_rolled_back_and_visible_is_found():
    for seen in (pulled(5, 0, of_half("a", 0)), audit(5, of_half("a", 0))):
        (complaint,) = broken([*A, *answered(4, "a", "rollback"), seen])
        assert complaint.endswith("and commit by what is visible at 5.000000")


def test_kept_in_another_way_than_told_is_found():
    look = looked(5, halves=("a",), markers=[(0, "ROLLED_BACK")])

    assert "and rollback by a marker" in broken([*A, *answered(4, "a", "commit"), look])[0]


@pytest.mark.parametrize("kind", ["PARKED", "COMMITTED"])
def test_a_decision_after_the_decision_is_found(kind):
    look = looked(5, halves=("a",), markers=[(0, "COMMITTED"), (0, kind)])

    assert broken([*A, look]) == [f"a has a decision after its decision: {kind}"]


def test_brokers_do_not_answer_for_one_another():
    look = looked(5, markers=[(0, "COMMITTED")])
    other = replace(looked(5, markers=[(0, "ROLLED_BACK")]), broker="broker-b")

    assert broken([look, other]) == []
