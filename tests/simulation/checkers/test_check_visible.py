"""The checker of I2 passes databases and queues that agree and finds differences."""

import pytest

from tests.simulation.checkers.told import (
    Q,
    audit,
    decided,
    half,
    looked,
    of_half,
    pulled,
    said,
    taken,
)
from tests.simulation.checkers.visible import broken
from tests.simulation.history import Audited

COMMITTED = [*taken(2, "a", 0), decided(3, "a")]
ROLLED_BACK = [*taken(2, "b", 1), decided(3, "b", committed=False)]
OVER = looked(9)


def test_a_good_history_passes():
    history = [
        *COMMITTED,
        *ROLLED_BACK,
        half(4, "never taken"),
        *taken(5, "open", 2),
        pulled(6, 0, of_half("a", 0)),
        audit(8, of_half("a", 0)),
        looked(9, halves=("a", "b", "open"), prepared=("open",)),
    ]

    assert broken(history) == []


def test_a_committed_message_that_is_not_visible_is_found():
    assert broken([*COMMITTED, audit(8), OVER]) == ["a is committed and not visible"]


def test_a_committed_and_still_open_transaction_is_ignored_by_this_checker():
    assert broken([*COMMITTED, audit(8), looked(9, halves=("a",), prepared=("a",))]) == []


def test_a_visible_message_of_an_open_transaction_is_found():
    history = [*COMMITTED, audit(8, of_half("a", 0)), looked(9, halves=("a",), parked=("a",))]

    assert broken(history) == ["a is visible and still open"]


def test_a_message_visible_twice_is_found():
    history = [*COMMITTED, audit(8, of_half("a", 0), of_half("a", 1)), OVER]

    assert broken(history) == ["a is visible more than once"]


def test_a_message_visible_at_two_places_is_found():
    history = [*COMMITTED, pulled(5, 0, of_half("a", 0)), audit(8, of_half("a", 1)), OVER]

    assert broken(history) == ["a is visible more than once"]


def test_a_visible_message_of_a_rolled_back_transaction_is_found():
    (soon, late) = broken([*ROLLED_BACK, audit(8, of_half("b", 0)), OVER])

    assert soon.endswith("and its database has no commit")
    assert late == "b is visible in the end, and was not committed"


def test_a_message_visible_before_its_database_commit_is_found():
    history = [*taken(2, "a", 0), pulled(3, 0, of_half("a", 0)), decided(4, "a")]

    (complaint,) = broken([*history, audit(8, of_half("a", 0)), OVER])

    assert complaint == "a is visible at 3.000000, and its database has no commit"


def test_a_visible_message_whose_half_was_never_accepted_is_found():
    history = [half(1, "a"), decided(2, "a"), audit(8, of_half("a", 0)), OVER]

    assert broken(history) == ["a is visible, and its half message was never taken"]


@pytest.mark.parametrize("who", ["operator", "liar"])
def test_decisions_by_operators_or_liars_may_differ_from_the_database(who):
    shown = [*ROLLED_BACK, said(4, "b", "commit", who=who), audit(8, of_half("b", 0)), OVER]
    hidden = [*COMMITTED, said(4, "a", "rollback", who=who), audit(8), OVER]

    assert broken(shown) == broken(hidden) == []


def test_a_message_decided_by_a_liar_and_visible_twice_is_found():
    history = [*ROLLED_BACK, said(4, "b", "commit", who="liar")]

    (complaint,) = broken([*history, audit(8, of_half("b", 0), of_half("b", 1)), OVER])

    assert complaint == "b is visible more than once"


def test_a_visible_message_with_another_body_or_queue_is_found():
    elsewhere = Q.__class__("Other", Q.broker, 0)
    history = [*COMMITTED, audit(8, of_half("a", 0, data=b"else")), OVER]
    moved = [*COMMITTED, Audited(8, Q.broker, 8, {elsewhere: (of_half("a", 0),)}), OVER]

    assert broken(history) == broken(moved) == ["a shows up at 8.000000 otherwise than it was sent"]


def test_two_database_outcomes_of_one_transaction_are_found():
    history = [*COMMITTED, decided(4, "a", committed=False), audit(8, of_half("a", 0)), OVER]

    assert broken(history) == ["the database has a in two ways"]


@pytest.mark.parametrize("looks", [[audit(8)], [OVER], []])
def test_a_history_without_a_final_audit_is_found(looks):
    assert broken([*COMMITTED, *looks]) == ["nobody looked at broker-a in the end"]


def test_histories_without_transactions_pass():
    assert broken([]) == []
