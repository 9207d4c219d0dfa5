import random

import pytest

from txmq_broker.handlers.pull import HeldPulls


@pytest.fixture
def holds():
    made = HeldPulls(limit=5)
    made.hold("T", 0, "a", 10.0)
    made.hold("T", 1, "b", 5.0)
    made.hold("T", 0, "c", 7.0)
    return made


def test_a_queue_that_grows_wakes_those_who_wait_for_it_oldest_first(holds):
    assert holds.wake("T", 0) == ["a", "c"]
    assert holds.wake("T", 0) == []
    assert holds.wake("U", 0) == []
    assert len(holds.held) == 1


def test_those_whose_time_is_over_are_let_go_earliest_first(holds):
    assert holds.expired(4.9) == []
    assert holds.expired(7.0) == ["b", "c"]
    assert holds.wake("T", 0) == ["a"]
    assert holds.wake("T", 1) == []


def test_who_was_woken_does_not_expire(holds):
    holds.wake("T", 0)

    assert holds.expired(100.0) == ["b"]


def test_the_next_deadline_is_that_of_somebody_who_still_waits(holds):
    assert holds.next_deadline() == 5.0
    holds.wake("T", 1)
    assert holds.next_deadline() == 7.0
    holds.wake("T", 0)
    assert holds.next_deadline() is None


def test_the_deadline_of_who_is_woken_first_does_not_hide_the_others(holds):
    assert holds.expired(5.0) == ["b"]
    holds.hold("T", 1, "d", 6.0)

    assert holds.next_deadline() == 6.0


def test_everybody_can_be_let_go_at_once(holds):
    assert holds.release_all() == ["a", "b", "c"]
    assert len(holds.held) == 0
    assert holds.next_deadline() is None
    assert holds.wake("T", 0) == []


def test_no_more_are_held_than_the_limit_says(holds):
    assert not holds.is_full
    holds.hold("T", 0, "d", 1.0)
    holds.hold("T", 0, "e", 1.0)

    assert holds.is_full


def test_pulls_that_are_woken_again_and_again_leave_nothing_behind():
    holds = HeldPulls()
    holds.hold("U", 0, "still here", 1.0)
    for number in range(5000):
        holds.hold("T", 0, number, 20.0 + number)
        assert holds.wake("T", 0) == [number]

    assert len(holds._deadlines) < 1100
    assert holds.expired(1.0) == ["still here"]


def test_those_who_are_left_still_go_in_the_order_of_their_deadlines():
    order = random.Random(1)
    deadlines = [float(number) for number in range(4000)]
    order.shuffle(deadlines)
    holds = HeldPulls()
    for number, deadline in enumerate(deadlines):
        holds.hold("T", number % 100, deadline, deadline)
    woken = [each for queue in range(80) for each in holds.wake("T", queue)]
    holds.hold("T", 0, 4000.0, 4000.0)

    left = sorted({*deadlines, 4000.0} - set(woken))
    assert holds.expired(10_000.0) == left
    assert len(left) == 801
