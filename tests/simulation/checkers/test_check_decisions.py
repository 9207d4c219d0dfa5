"""The checker of I7 passes answers that fit one decision and finds the others."""

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


def test_two_contradicting_accepted_decisions_are_found():
    (complaint,) = broken([*A, *answered(4, "a", "commit"), *answered(5, "a", "rollback")])

    assert complaint.startswith("a is commit by the answer 0 to a producer at 4")
    assert "and rollback by the answer 0" in complaint


@pytest.mark.parametrize(
    ("first", "second", "code"), [("commit", "commit", 201), ("rollback", "rollback", 200)]
)
def test_a_refusal_that_contradicts_an_earlier_success_is_found(first, second, code):
    assert len(broken([*A, *answered(4, "a", first), *answered(5, "a", second, code=code)])) == 1


def test_refusals_that_name_two_decisions_are_found():
    history = [*answered(4, "a", "commit", code=201), *answered(5, "a", "rollback", code=200)]

    assert len(broken([*A, *history])) == 1


@pytest.mark.parametrize("code", [1, 4, 22, 29, 203, 604])
def test_a_valid_end_refused_with_the_wrong_code_is_found(code):
    assert f"was answered {code}" in broken([*A, *answered(4, "a", "commit", code=code)])[0]


@pytest.mark.parametrize("how", ["value", "group", "offset", "position"])
@pytest.mark.parametrize("code", [0, 1, 200])
def test_an_invalid_end_answered_with_the_wrong_code_is_found(how, code):
    assert broken([WrongEnd(3, "a", how, code)]) == [f"a: a wrong {how} was answered {code}"]


def test_a_visible_message_answered_as_rolled_back_is_found():
    for seen in (pulled(5, 0, of_half("a", 0)), audit(5, of_half("a", 0))):
        (complaint,) = broken([*A, *answered(4, "a", "rollback"), seen])
        assert complaint.endswith("and commit by what is visible at 5.000000")


def test_a_marker_that_contradicts_the_answer_is_found():
    look = looked(5, halves=("a",), markers=[(0, "ROLLED_BACK")])

    assert "and rollback by a marker" in broken([*A, *answered(4, "a", "commit"), look])[0]


@pytest.mark.parametrize("kind", ["PARKED", "COMMITTED"])
def test_a_second_marker_after_the_decision_is_found(kind):
    look = looked(5, halves=("a",), markers=[(0, "COMMITTED"), (0, kind)])

    assert broken([*A, look]) == [f"a has a decision after its decision: {kind}"]


def test_decisions_at_different_brokers_are_not_compared():
    look = looked(5, markers=[(0, "COMMITTED")])
    other = replace(looked(5, markers=[(0, "ROLLED_BACK")]), broker="broker-b")

    assert broken([look, other]) == []
