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


def test_a_new_message_wakes_the_held_pulls_of_its_queue_oldest_first(holds):
    assert holds.wake("T", 0) == ["a", "c"]
    assert holds.wake("T", 0) == []
    assert holds.wake("U", 0) == []
    assert len(holds.held) == 1


def test_expired_pulls_are_released_earliest_first(holds):
    assert holds.expired(4.9) == []
    assert holds.expired(7.0) == ["b", "c"]
    assert holds.wake("T", 0) == ["a"]
    assert holds.wake("T", 1) == []


def test_a_woken_pull_does_not_expire(holds):
    holds.wake("T", 0)

    assert holds.expired(100.0) == ["b"]


def test_the_next_deadline_is_that_of_a_pull_still_held(holds):
    assert holds.next_deadline() == 5.0
    holds.wake("T", 1)
    assert holds.next_deadline() == 7.0
    holds.wake("T", 0)
    assert holds.next_deadline() is None


def test_a_pull_held_after_an_expiry_sets_the_next_deadline(holds):
    assert holds.expired(5.0) == ["b"]
    holds.hold("T", 1, "d", 6.0)

    assert holds.next_deadline() == 6.0


def test_all_held_pulls_can_be_released_at_once(holds):
    assert holds.release_all() == ["a", "b", "c"]
    assert len(holds.held) == 0
    assert holds.next_deadline() is None
    assert holds.wake("T", 0) == []


def test_held_pulls_are_full_at_the_limit(holds):
    assert not holds.is_full
    holds.hold("T", 0, "d", 1.0)
    holds.hold("T", 0, "e", 1.0)

    assert holds.is_full


def test_pulls_that_are_held_and_woken_repeatedly_use_no_more_memory():
    holds = HeldPulls()
    holds.hold("U", 0, "still here", 1.0)
    for number in range(5000):
        holds.hold("T", 0, number, 20.0 + number)
        assert holds.wake("T", 0) == [number]

    assert len(holds._deadlines) < 1100
    assert holds.expired(1.0) == ["still here"]


def test_remaining_pulls_expire_in_the_order_of_their_deadlines():
    order = random.Random(1)
    deadlines = [float(number) for number in range(4000)]
    order.shuffle(deadlines)
    holds = HeldPulls()
    for number, deadline in enumerate(deadlines):
        holds.hold("T", number % 100, deadline, deadline)
    woken = [pull for queue in range(80) for pull in holds.wake("T", queue)]
    holds.hold("T", 0, 4000.0, 4000.0)

    left = sorted({*deadlines, 4000.0} - set(woken))
    assert holds.expired(10_000.0) == left
    assert len(left) == 801
