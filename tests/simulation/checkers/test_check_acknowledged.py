"""The checker of I3 passes a good history and finds each way to break a promise."""

import pytest

from tests.simulation.checkers.acknowledged import broken
from tests.simulation.checkers.told import (
    Q,
    acknowledged,
    audit,
    copy,
    half,
    of_half,
    pulled,
    refused,
    send,
    sent,
)
from tests.simulation.history import Found
from txmq.errors import Effect

GOOD = [
    *sent(1, "a", 0),
    send(2, "b"),
    refused(3, "b", Effect.MAYBE),
    send(4, "b", attempt=1),
    acknowledged(5, "b", 2, attempt=1),
    *sent(6, "batch", 3, count=2),
    send(7, "one-way", answered=False),
    audit(
        8,
        copy("a", 0),
        copy("b", 1),
        copy("b", 2, attempt=1),
        copy("batch", 3),
        copy("batch", 4, index=1),
        copy("one-way", 5),
    ),
]


def test_a_good_history_passes():
    assert broken(GOOD) == []


def test_a_message_acknowledged_after_the_audit_began_need_not_be_in_it():
    assert broken([*sent(2, "a", 0), audit(3, began=1)]) == []


def test_an_acknowledged_message_that_is_gone_is_found():
    history = [*sent(1, "a", 0), *sent(2, "b", 1), audit(3, copy("a", 0))]

    (complaint,) = broken(history)

    assert "b#0.0, acknowledged at 2" in complaint
    assert "gone from Topic/broker-a/0@1" in complaint


def test_a_missing_second_message_of_a_batch_is_found():
    history = [*sent(1, "a", 0, count=2), audit(3, copy("a", 0))]

    assert "a#0.1" in broken(history)[0]


def test_a_message_shown_to_a_consumer_and_gone_later_is_found():
    history = [send(1, "a"), pulled(2, 0, copy("a", 0)), audit(3)]

    assert "a#0.0, shown at 2" in broken(history)[0]


def test_a_message_missing_in_an_earlier_audit_is_found():
    history = [*sent(1, "a", 0), audit(2), audit(3, copy("a", 0))]

    assert len(broken(history)) == 1


@pytest.mark.parametrize(
    "moved",
    [copy("a", 0, at=50), copy("a", 0, attempt=1)],
    ids=["another place in the log", "another attempt"],
)
def test_an_acknowledged_message_that_moved_is_found(moved):
    history = [*sent(1, "a", 0), send(1, "a", attempt=1), audit(2, moved)]

    assert any("was acknowledged as a#0.0" in complaint for complaint in broken(history))


def test_an_offset_given_to_two_messages_is_found():
    history = [*sent(1, "a", 0), *sent(2, "b", 0)]

    assert "was acknowledged as a#0.0" in broken(history)[0]


def test_a_body_that_changed_is_found():
    history = [*sent(1, "a", 0), audit(2, copy("a", 0, data=b"body of b"))]

    assert "sent otherwise" in broken(history)[0]


def test_a_message_that_nobody_sent_is_found():
    assert "never sent" in broken([audit(2, copy("ghost", 0))])[0]


def test_an_attempt_that_is_stored_twice_is_found():
    history = [*sent(1, "a", 0), audit(2, copy("a", 0), copy("a", 1))]

    assert any("stored twice" in complaint for complaint in broken(history))


@pytest.mark.parametrize("seen_first", [True, False])
def test_a_stored_message_that_was_refused_without_effect_is_found(seen_first):
    seen, no = pulled(2, 0, copy("a", 0)), refused(3, "a", Effect.NONE)
    history = [send(1, "a"), *((seen, no) if seen_first else (no, seen))]

    assert "though it was refused" in broken(history)[0]


def test_a_lookup_that_finds_nothing_or_something_else_is_found():
    other = copy("a", 0, at=7)
    history = [
        Found(1, "key", "a#0.0", "id-0", copy("a", 0)),
        Found(2, "key", "a#0.0", "id-0", None),
        Found(3, "offset id", "a#0.0", "id-0", other),
    ]

    assert broken(history) == [
        "a#0.0 is not found by key",
        "a#0.0 is found by offset id as id-7, not as id-0",
    ]


def test_an_audit_of_another_broker_does_not_count():
    elsewhere = Q.__class__("Topic", "broker-b", 0)

    assert broken([*sent(1, "a", 0), audit(2, queue=elsewhere)]) == []


def test_a_transactional_message_is_compared_with_its_half_message():
    assert broken([half(1, "a"), audit(2, of_half("a", 0))]) == []
    assert "sent otherwise" in broken([half(1, "a"), audit(2, of_half("a", 0, data=b"x"))])[0]
