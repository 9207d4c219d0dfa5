"""The checker of I6 passes a good history and finds every break of the order."""

from tests.simulation.checkers.order import broken
from tests.simulation.checkers.told import (
    Q,
    acknowledged,
    audit,
    began,
    commit,
    copy,
    down,
    pulled,
    send,
    sent,
)
from tests.simulation.history import Committed, Committing, Moved

A, B, C = copy("a", 0), copy("b", 1), copy("c", 2)

GOOD = [
    *sent(1, "a", 0),
    *sent(1, "b", 1),
    began(2, 0),
    pulled(3, 0, A, B),
    *commit(4, 1),
    began(5, 1),
    pulled(6, 1, B),
    *sent(6, "c", 2),
    pulled(7, 2, C),
    *commit(8, 3),
    down(9),
    began(10, 1),
    pulled(11, 1, B, C),
    audit(12, A, B, C),
]


def test_a_good_history_passes():
    assert broken(GOOD) == []


# Groups


def test_a_group_that_pulls_from_an_earlier_offset_is_found():
    history = [began(1, 0), pulled(2, 0, A, B), pulled(3, 1, B)]

    assert "pulls from 1, not from 2" in broken(history)[0]


def test_a_group_sent_back_by_the_broker_is_found():
    history = [began(1, 2), pulled(2, 2, to=1)]

    assert any("sent back from 2 to 1" in complaint for complaint in broken(history))


def test_a_message_left_out_of_a_pull_is_found():
    history = [began(1, 0), pulled(2, 0, A, C)]

    assert broken(history) == ["group in Topic/broker-a/0 at 2.000000 is led past 1"]


def test_messages_left_out_at_the_end_of_a_pull_are_found():
    history = [began(1, 0), pulled(2, 0, A, to=3)]

    assert [complaint.rpartition(" ")[2] for complaint in broken(history)] == ["1", "2"]


def test_messages_out_of_order_within_a_pull_are_found():
    history = [began(1, 0), pulled(2, 0, B, A, to=2)]

    assert any("gets 0 where" in complaint for complaint in broken(history))


def test_pulled_messages_out_of_log_order_are_found():
    history = [began(1, 0), pulled(2, 0, A, copy("b", 1, at=0))]

    assert "gets 1, stored before what it got last" in broken(history)[0]


def test_a_group_told_that_its_offset_does_not_exist_is_found():
    assert "is told that 5 is not there" in broken([began(1, 0), Moved(2, "group", Q, 5, 3)])[0]


def test_a_group_that_begins_before_its_committed_offset_is_found():
    history = [began(1, 0), pulled(2, 0, A, B), *commit(3, 2), began(4, 0)]

    assert "begins at 0 though 2 was committed" in broken(history)[0]


def test_a_group_that_begins_past_its_committed_offset_is_found():
    history = [began(1, 0), pulled(2, 0, A), *commit(3, 1), began(4, 2)]

    assert "begins at 2, never committed past 1" in broken(history)[0]


def test_after_a_crash_only_offsets_committed_long_before_must_be_kept():
    history = [began(1, 0), *commit(2, 1), *commit(50, 2), down(60), began(61, 0)]

    assert "begins at 0 though 1 was committed" in broken(history)[0]
    assert broken([*history[:-1], began(61, 1)]) == []


def test_after_an_orderly_stop_all_committed_offsets_must_be_kept():
    history = [began(1, 0), *commit(2, 1), down(3, kept=True), began(4, 0)]

    assert len(broken(history)) == 1


def test_a_commit_under_way_during_a_crash_may_be_lost():
    history = [
        began(1, 0),
        Committing(2, "group", Q, 1),
        down(3),
        Committed(4, "group", Q, 1),
        began(5, 0),
    ]

    assert broken(history) == []


def test_offsets_of_different_groups_are_not_compared():
    history = [
        began(1, 0, group="one"),
        pulled(2, 0, A, group="one"),
        *commit(3, 1, group="one"),
        began(4, 0, group="two"),
        pulled(5, 0, A, group="two"),
    ]

    assert broken(history) == []


# Tags


def test_a_group_may_skip_messages_that_its_filter_excludes():
    red, blue = copy("a", 0, tags="red"), copy("b", 1, tags="blue")
    history = [began(1, 0, tags="red"), pulled(2, 0, red, to=2), audit(3, red, blue)]

    assert broken(history) == []


def test_a_group_that_skips_a_message_its_filter_wants_is_found():
    red, also = copy("a", 0, tags="red"), copy("b", 1, tags="red")
    history = [began(1, 0, tags="red"), pulled(2, 0, red, to=2), audit(3, red, also)]

    assert broken(history) == ["group in Topic/broker-a/0 was led past 1, tagged red"]


# Queues


def test_an_offset_left_out_of_a_queue_is_found():
    assert "has 2 where 1 is due" in broken([audit(1, A, C)])[0]


def test_a_queue_that_does_not_begin_at_offset_0_is_found():
    assert "has 1 where 0 is due" in broken([audit(1, B)])[0]


def test_a_queue_in_another_order_than_the_log_is_found():
    history = [audit(1, copy("a", 0, at=300), copy("b", 1, at=200))]

    assert any("was stored before" in complaint for complaint in broken(history))


def test_a_store_time_that_goes_back_is_found():
    history = [audit(1, copy("a", 0, stored_ms=9), copy("b", 1, stored_ms=8))]

    assert "has an earlier time than" in broken(history)[0]


def test_a_send_stored_before_one_already_acknowledged_is_found():
    history = [*sent(1, "a", 5), *sent(2, "b", 3)]

    assert "b#0 got Topic/broker-a/0@3 though 5 was acknowledged" in broken(history)[0]


def test_a_send_stored_inside_an_acknowledged_batch_is_found():
    history = [*sent(1, "batch", 0, count=3), *sent(2, "b", 2)]

    assert "though 2 was acknowledged" in broken(history)[0]


def test_concurrent_sends_may_be_stored_in_either_order():
    history = [send(1, "a"), send(2, "b"), acknowledged(3, "b", 1), acknowledged(4, "a", 0)]

    assert broken(history) == []
