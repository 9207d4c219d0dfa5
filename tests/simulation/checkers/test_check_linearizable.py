"""The checker of linearizability reads a history of events as operations of clients."""

from tests.simulation.checkers.linearizable import broken
from tests.simulation.checkers.told import (
    Q,
    acknowledged,
    answered,
    audit,
    began,
    copy,
    looked,
    of_half,
    pulled,
    said,
    send,
    sent,
    taken,
)
from tests.simulation.history import EndShown, TransactionShown

A = taken(2, "a", 0)
COMMITTED_AT_4 = answered(4, "a", "commit")


def shown(asked, at, state, address="m1"):
    return TransactionShown(at, address, asked, "a", state)


def end_shown(asked, at, offset):
    return EndShown(at, "m1", asked, Q, offset)


def test_a_good_history_passes():
    history = [
        *A,
        shown(2.5, 2.6, "prepared"),
        *answered(3, "a", "unknown", who="check"),
        shown(3.0, 3.1, "parked"),
        *sent(3.2, "s", 0),
        said(3.5, "a", "rollback", who="liar"),
        *COMMITTED_AT_4,
        *answered(5, "a", "rollback", who="liar", code=200),
        *answered(6, "a", "commit", who="operator", code=22),
        end_shown(6, 7, 2),
        shown(6, 7, "committed"),
        began(7, 0),
        pulled(8, 0, copy("s", 0), of_half("a", 1)),
        audit(9, copy("s", 0), of_half("a", 1)),
    ]

    assert broken(history) == []


def test_a_deposed_leader_that_shows_a_decided_transaction_as_open_is_found():
    (complaint,) = broken([*A, *COMMITTED_AT_4, shown(4.5, 5, "prepared", "the old leader")])

    assert complaint.splitlines()[1:] == [
        "    3.000000 to 4.000000: producer: made it committed",
        "    4.500000 to 5.000000: the old leader: found it open",
    ]


def test_an_answer_to_a_question_before_the_decision_may_show_it_open():
    assert broken([*A, *COMMITTED_AT_4, shown(3.5, 5, "prepared", "the old leader")]) == []


def test_an_unanswered_decision_holds_once_it_was_seen():
    history = [*A, said(3, "a", "commit"), pulled(4, 0, of_half("a", 0))]

    assert broken([*history, shown(5, 6, "committed")]) == []
    assert len(broken([*history, shown(5, 6, "prepared")])) == 1
    assert len(broken([*history, looked(6, halves=("a",), prepared=("a",), began=5)])) == 1


def test_a_decision_told_to_an_operator_and_lost_later_is_found():
    unheard = [*A, said(3, "a", "commit")]

    history = [*unheard, *answered(4, "a", "rollback", who="operator", code=22)]

    assert broken(history) == []
    assert len(broken([*history, shown(5, 6, "prepared")])) == 1


def test_a_queue_end_before_an_acknowledged_message_is_found():
    assert len(broken([*sent(1, "s", 0), end_shown(2, 3, 0)])) == 1


def test_a_commit_that_appends_before_it_began_is_found():
    early = [*A, *sent(2.5, "s", 1), *COMMITTED_AT_4, audit(5, of_half("a", 0), copy("s", 1))]

    assert len(broken(early)) == 1


def test_a_pull_that_leaves_out_an_acknowledged_message_is_found():
    history = [*sent(1, "s", 0), *sent(2, "t", 1), *sent(3, "u", 2)]

    (complaint,) = broken([*history, pulled(4, 0, copy("s", 0), copy("u", 2))])

    assert "offset 1 has two messages" in complaint


def test_a_group_with_a_tag_filter_may_skip_messages():
    history = [*sent(1, "s", 0), *sent(2, "t", 1), *sent(3, "u", 2), began(3, 0, tags="red")]

    assert broken([*history, pulled(4, 0, copy("s", 0), copy("u", 2))]) == []


def test_unanswered_and_repeated_attempts_may_both_be_stored():
    attempts = [send(1, "s"), send(3, "s", attempt=1), acknowledged(4, "s", 1, attempt=1)]

    assert broken([*attempts, audit(5, copy("s", 0), copy("s", 1, attempt=1))]) == []
