"""When which transaction is checked, and how many at once."""

import math
import sys
import tracemalloc
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from txmq.limits import CHECKS_MAX, CHECKS_PER_PRODUCER_MAX
from txmq_broker.services import checker as module
from txmq_broker.services.checker import Checks, OpenCheck

LATE_S = 0.05
EVERYTHING = 1 << 40


@pytest.fixture
def checks():
    return Checks()


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=30))
def test_no_check_is_early_or_later_than_the_width_of_a_bucket(times):
    checks = Checks()
    for key, due in enumerate(times):
        checks.arm(key, due)

    taken = {}
    while (at := checks.next_due()) is not None:
        for key in checks.take_due(at, EVERYTHING):
            taken[key] = at

    assert set(taken) == set(range(len(times)))
    for key, at in taken.items():
        # Floats are exact only to their last digit.
        assert times[key] - math.ulp(times[key]) <= at <= times[key] + LATE_S + math.ulp(at)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 0.3)), max_size=40))
def test_at_any_time_exactly_the_due_checks_are_taken(steps):
    checks, now, armed = Checks(), 0.0, {}
    for key, (wait, passes) in enumerate(steps):
        armed[key] = now + wait
        checks.arm(key, now + wait)
        now += passes
        for taken in checks.take_due(now, EVERYTHING):
            assert armed.pop(taken) <= now + 1e-9
        assert all(due > now - LATE_S - 1e-9 for due in armed.values())


def stranded(checks):
    return {group: len(waiting) for group, waiting in checks.stranded.items()}


def test_checks_come_due_in_time_order_whatever_the_order_of_arming(checks):
    for key, due in ((1, 30.0), (2, 10.0), (3, 20.0)):
        checks.arm(key, due)

    assert checks.next_due() == pytest.approx(10.0)
    assert checks.take_due(9.99, 100) == []
    assert checks.take_due(40.0, 100) == [2, 3, 1]
    assert checks.next_due() is None


def test_checks_due_at_the_same_time_can_be_armed_and_taken_together(checks):
    checks.arm_all(range(5), 1.0)
    checks.arm(9, 1.0)

    assert checks.take_due(1.0, 100) == [0, 1, 2, 3, 4, 9]


def test_due_checks_beyond_the_requested_count_stay_due(checks):
    checks.arm_all(range(10), 1.0)

    assert checks.take_due(2.0, 4) == [0, 1, 2, 3]
    assert checks.next_due() == 0.0
    assert checks.take_due(2.0, 4) == [4, 5, 6, 7]
    assert checks.take_due(2.0, 4) == [8, 9]
    assert checks.next_due() is None


def test_taking_due_checks_does_not_touch_the_waiting_ones(checks):
    for number in range(10_000):
        checks.arm(number, 1000.0 + number)
    checks.arm(-1, 1.0)

    assert len(checks._buckets) == 10_001
    assert checks.take_due(1.0, 100) == [-1]
    assert len(checks._buckets) == len(checks._order) == 10_000, "nothing else was touched"


# Under way


def test_an_open_check_is_known_until_it_is_settled(checks):
    checks.ask(7, "a", 3.0)
    assert len(checks.asked) == 1

    assert checks.settle(7) == OpenCheck("a", 3.0)
    assert checks.settle(7) is None
    assert len(checks.asked) == 0
    assert not checks._at


def test_the_number_of_open_checks_is_limited(checks, monkeypatch):
    monkeypatch.setattr(module, "CHECKS_MAX", 3)
    checks.arm_all(range(10), 1.0)
    for key in checks.take_due(1.0, 100):
        checks.ask(key, "a", 1.0)
    assert len(checks.asked) == 3

    assert checks.take_due(5.0, 100) == []
    assert checks.next_due() is None, "nobody wakes up to find that it must wait"
    checks.settle(1)
    assert checks.next_due() == 0.0
    assert checks.take_due(5.0, 100) == [3]


def test_the_next_due_time_is_kept_while_the_open_checks_are_at_the_limit(checks, monkeypatch):
    monkeypatch.setattr(module, "CHECKS_MAX", 1)
    checks.ask(0, "a", 0.0)
    checks.arm(1, 1.0)

    assert checks.next_due() == pytest.approx(1.0)
    assert checks.take_due(2.0, 100) == []
    assert checks.next_due() is None


def test_the_number_of_open_checks_per_producer_is_limited(checks):
    for key in range(CHECKS_PER_PRODUCER_MAX):
        assert checks.may_ask("a")
        checks.ask(key, "a", 0.0)

    assert not checks.may_ask("a")
    assert checks.may_ask("b")
    checks.settle(5)
    assert checks.may_ask("a")


def test_the_limits_leave_room_for_several_producers():
    assert CHECKS_PER_PRODUCER_MAX < 2000, "a stock client queues so many"
    assert CHECKS_MAX >= 2 * CHECKS_PER_PRODUCER_MAX


def test_a_lost_producer_returns_its_open_checks(checks):
    for key, who in enumerate("aabab"):
        checks.ask(key, who, 0.0)

    assert sorted(checks.lost("a")) == [0, 1, 3]
    assert len(checks.asked) == 2
    assert checks.lost("a") == []
    assert checks.settle(0) is None
    assert checks.settle(2) == OpenCheck("b", 0.0)


# Waiting for a producer


def test_checks_without_a_producer_wait_until_one_is_found(checks):
    assert checks.strand("g", 1)
    assert not checks.strand("g", 2)
    assert checks.strand("h", 3)
    assert stranded(checks) == {"g": 2, "h": 1}
    assert checks.next_due() is None

    assert checks.found("g") == 2

    assert checks.next_due() == 0.0
    assert checks.take_due(0.0, 100) == [1, 2]
    assert stranded(checks) == {"h": 1}
    assert checks.found("g") == 0
    assert checks.strand("g", 1), "it is the first again"


def test_no_more_waiting_checks_return_than_the_producer_can_take(checks):
    for key in range(10):
        checks.strand("g", key)

    assert checks.found("g", 4) == 4
    assert stranded(checks) == {"g": 6}
    assert checks.take_due(0.0, 100) == [0, 1, 2, 3]
    assert not checks.strand("g", 0)
    assert checks.found("g", 100) == 7
    assert checks.take_due(0.0, 100) == [4, 5, 6, 7, 8, 9, 0]


@given(st.lists(st.one_of(st.integers(1, 5), st.integers(-5, -1))))
def test_checks_that_wait_for_a_producer_keep_their_order(steps):
    checks, model, count = Checks(), [], 0
    for step in steps:
        if step > 0:
            for _ in range(step):
                checks.strand("g", count)
                model.append(count)
                count += 1
        else:
            checks.found("g", -step)
            assert checks.take_due(0.0, 100) == model[:-step]
            del model[:-step]
        assert len(checks.stranded.get("g", ())) == len(model)


def test_a_check_that_waits_already_keeps_its_place_and_waits_once(checks):
    for key in (1, 2, 1):
        checks.strand("g", key)

    assert stranded(checks) == {"g": 2}
    assert checks.found("g") == 2
    assert checks.take_due(0.0, 100) == [1, 2]


def test_a_check_that_was_removed_and_waits_again_returns_once(checks):
    for key in (1, 2, 3):
        checks.strand("g", key)
    checks.unstrand("g", 1)
    checks.strand("g", 1)

    assert stranded(checks) == {"g": 3}
    assert checks.found("g") == 3
    assert sorted(checks.take_due(0.0, 100)) == [1, 2, 3]


class Stranded(RuleBasedStateMachine):
    """Two waiting groups, compared with plain dictionaries; every key belongs to one of them."""

    def __init__(self):
        super().__init__()
        self.checks = Checks()
        self.model = {"g": OrderedDict(), "h": OrderedDict()}
        self.next = 0

    @rule(group=st.sampled_from("gh"), count=st.integers(1, 9))
    def strand(self, group, count):
        for _ in range(count):
            assert self.checks.strand(group, self.next) is (not self.model[group])
            self.model[group][self.next] = None
            self.next += 1

    @rule(group=st.sampled_from("gh"), which=st.integers(0, 99))
    def strand_again(self, group, which):
        if waiting := self.model[group]:
            assert not self.checks.strand(group, list(waiting)[which % len(waiting)])

    @rule(group=st.sampled_from("gh"), which=st.lists(st.integers(0, 99), max_size=9))
    def unstrand(self, group, which):
        """Remove keys that were added once; some have left since, or wait in the other group."""
        for percent in which:
            key = self.next * percent // 100
            self.checks.unstrand(group, key)
            self.model[group].pop(key, None)

    @rule(group=st.sampled_from("gh"), count=st.integers(1, 9))
    def found(self, group, count):
        waiting = self.model[group]
        expected = [waiting.popitem(last=False)[0] for _ in range(min(count, len(waiting)))]
        assert self.checks.found(group, count) == len(expected)
        assert self.checks.take_due(0.0, 100) == expected

    @invariant()
    def all_are_counted(self):
        assert stranded(self.checks) == {
            group: len(waiting) for group, waiting in self.model.items() if waiting
        }


TestStranded = Stranded.TestCase


def test_removed_checks_free_their_memory_while_another_waits(checks):
    checks.strand("g", 0)
    for key in range(1, 10_000):
        checks.strand("g", key)
        checks.unstrand("g", key)

    assert stranded(checks) == {"g": 1}
    assert sys.getsizeof(checks.stranded["g"]._queue.keys) < 1000


@pytest.mark.slow
def test_waiting_checks_take_little_memory(checks):
    tracemalloc.start()
    for key in range(200_000):
        checks.strand("g", hash(str(key)))
    size = tracemalloc.get_traced_memory()[0] / 200_000
    tracemalloc.stop()

    assert size < 40, "an entry of a dictionary takes a hundred bytes"
