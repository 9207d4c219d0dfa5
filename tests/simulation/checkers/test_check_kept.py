"""The checker of I3 for transactions passes a good history and finds every broken promise."""

import pytest

from tests.simulation.checkers.kept import broken
from tests.simulation.checkers.told import (
    answered,
    asked,
    audit,
    half,
    looked,
    of_half,
    said,
    taken,
)
from tests.simulation.history import OpenAudited, Standing

A, B = taken(2, "a", 0), taken(3, "b", 1)
HALVES = ("a", "b")


def test_a_good_history_passes():
    history = [
        *A,
        *B,
        asked(4, "a", 0),
        looked(5, halves=HALVES, prepared=HALVES),
        *answered(7, "a", "commit"),
        looked(8, halves=HALVES, markers=[(0, "COMMITTED")], prepared=("b",)),
        audit(9, of_half("a", 0)),
        looked(10, halves=HALVES, markers=[(0, "COMMITTED"), (1, "PARKED")], parked=("b",)),
        *answered(12, "b", "commit", who="operator"),
        *answered(14, "b", "rollback", code=200),
        audit(15, of_half("a", 0), of_half("b", 1)),
        looked(16, halves=HALVES, markers=[(0, "COMMITTED"), (1, "PARKED"), (1, "COMMITTED")]),
    ]

    assert broken(history) == []


def test_an_open_transaction_that_is_gone_is_found():
    assert broken([*A, looked(5, halves=("a",))]) == [
        "at 5.000000 a is not open, and nobody decided it"
    ]


def test_a_transaction_with_an_unanswered_decision_need_not_be_open():
    assert broken([*A, said(4, "a", "rollback"), looked(5, halves=("a",))]) == []


def test_an_answer_unknown_does_not_decide_a_transaction():
    history = [*A, *answered(4, "a", "unknown"), looked(5, halves=("a",))]

    assert len(broken(history)) == 1


def test_a_transaction_accepted_after_the_audit_began_need_not_be_in_it():
    assert broken([*A, looked(5, began=1)]) == []


def test_a_half_message_that_is_gone_or_changed_is_found():
    gone = [*A, said(4, "a", "commit"), looked(5)]
    changed = [*A, said(4, "a", "commit"), looked(5, halves=("b",))]

    for history in (gone, changed):
        assert broken(history) == ["at 5.000000 the half message of a is gone or changed"]


def test_a_transaction_listed_at_another_place_is_found():
    other = {"a": Standing(0, 77, is_parked=False)}
    look = OpenAudited(5, "broker-a", 5, other, (), (of_half("a", 0),), (), ())

    assert "listed at another place" in broken([*A, look])[0]


def test_a_transaction_listed_without_its_half_message_is_found():
    ghost = {"ghost": Standing(3, 3000, is_parked=False)}
    look = OpenAudited(5, "broker-a", 5, ghost, (), (), (), ())

    assert "ghost is listed, and its half message is not there" in broken([look])[0]


def test_a_half_message_acknowledged_at_two_places_is_found():
    assert "taken twice" in broken([*A, *taken(4, "a", 1)])[0]


@pytest.mark.parametrize("code", [0, 201])
def test_an_acknowledged_decision_that_is_not_kept_is_found(code):
    word = "rollback" if code == 0 else "commit"
    history = [*A, *answered(4, "a", word, code=code), looked(5, halves=("a",), prepared=("a",))]

    (still_open, unknown) = broken(history)

    assert "a is open, told as rollback at 4" in still_open
    assert "a is kept as None, told as rollback" in unknown


def test_an_acknowledged_decision_kept_as_its_opposite_is_found():
    history = [*A, *answered(4, "a", "commit")]

    (complaint,) = broken([*history, looked(5, halves=("a",), markers=[(0, "ROLLED_BACK")])])

    assert "a is kept as rollback, told as commit" in complaint


def test_an_invisible_commit_and_a_visible_rollback_are_found():
    commit = [*A, *answered(4, "a", "commit"), audit(5)]
    rollback = [*A, *answered(4, "a", "rollback"), audit(5, of_half("a", 0))]

    assert "a is not visible, told as commit" in broken(commit)[0]
    assert "a is visible, told as rollback" in broken(rollback)[0]


def test_an_answer_after_the_audit_began_does_not_count_in_it():
    assert broken([*A, *answered(4, "a", "commit"), audit(5, began=3)]) == []


def test_decisions_that_change_or_vanish_are_found():
    before = looked(5, halves=("a",), markers=[(0, "PARKED")], parked=("a",))
    for markers in ([], [(0, "COMMITTED")]):
        after = looked(7, halves=("a",), markers=markers)
        history = [*A, before, said(6, "a", "commit"), after]
        assert broken(history) == ["at 7.000000 broker-a has other decisions than before"]


def test_overlapping_audits_may_see_decisions_in_either_order():
    more = looked(6, halves=("a",), markers=[(0, "PARKED"), (0, "COMMITTED")], parked=())
    told = [*A, said(4, "a", "commit"), more]
    for markers, complaints in (([(0, "PARKED")], 0), ([(0, "ROLLED_BACK")], 1)):
        late = looked(7, halves=("a",), markers=markers, parked=("a",), began=5)
        assert (
            len(
                [complaint for complaint in broken([*told, late]) if "other decisions" in complaint]
            )
            == complaints
        )


def test_a_transaction_that_is_no_longer_parked_is_found():
    marked = {"halves": ("a",), "markers": [(0, "PARKED")]}
    history = [*A, looked(5, **marked, parked=("a",)), looked(6, **marked, prepared=("a",))]

    assert broken(history) == ["at 6.000000 a is no longer parked, and nobody decided it"]


@pytest.mark.parametrize("copies", [(), ("a", "a")])
def test_a_parked_transaction_without_exactly_one_copy_is_found(copies):
    (complaint,) = broken([*A, looked(5, halves=("a",), parked=("a",), copies=copies)])

    assert complaint.endswith(f"a is parked, with {len(copies)} copies")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (asked(4, "ghost", 0), "never sent"),
        (asked(4, "a", 0, data=b"else"), "otherwise than it was sent"),
        (asked(4, "a", 0, group="shop"), "of bank"),
        (asked(4, "a", 1), "at another place"),
    ],
)
def test_a_check_with_a_wrong_message_or_group_is_found(wrong, complaint):
    assert complaint in broken([*A, wrong])[0]


def test_an_unacknowledged_half_message_may_be_checked():
    assert broken([half(1, "a"), asked(4, "a", 7)]) == []
