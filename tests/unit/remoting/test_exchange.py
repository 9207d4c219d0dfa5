"""The table of open requests: numbers, deadlines, and that nothing stays in it."""

import random

import pytest

from txmq.remoting.connection import Exchange

LAST = 2**31 - 1


@pytest.fixture
def exchange():
    return Exchange()


def enter(exchange, waiter, deadline):
    number = exchange.number()
    exchange.add(number, waiter, deadline)
    return number


def test_numbers_rise_and_find_their_waiters_in_any_order(exchange):
    numbers = [enter(exchange, f"waiter {n}", 10.0) for n in range(5)]

    assert numbers == [0, 1, 2, 3, 4]
    found = [exchange.waiting.pop(number, None) for number in (3, 0, 4, 1, 2)]
    assert found == [f"waiter {n}" for n in (3, 0, 4, 1, 2)]
    assert len(exchange.waiting) == 0


def test_a_late_repeated_or_unknown_answer_finds_no_waiter(exchange):
    number = enter(exchange, "waiter", 1.0)
    assert exchange.expired(1.0) == ["waiter"]
    assert exchange.waiting.pop(number, None) is None

    again = enter(exchange, "again", 2.0)
    assert exchange.waiting.pop(again, None) == "again"
    assert exchange.waiting.pop(again, None) is None
    assert exchange.waiting.pop(-1, None) is None
    assert exchange.waiting.pop(12345, None) is None


def test_numbers_wrap_within_31_bits():
    exchange = Exchange(first=LAST)

    assert [enter(exchange, name, 5.0) for name in ("last", "wrapped", "next")] == [LAST, 0, 1]
    assert exchange.waiting == {LAST: "last", 0: "wrapped", 1: "next"}


def test_a_number_without_a_waiter_finds_no_waiter(exchange):
    waiting = enter(exchange, "waiter", 1.0)
    number = exchange.number()

    assert number != waiting
    assert exchange.waiting.pop(number, None) is None
    assert enter(exchange, "next", 1.0) not in (waiting, number)


def test_deadlines_expire_in_their_own_order(exchange):
    for seconds in (5.0, 1.0, 3.0, 2.0, 4.0):
        enter(exchange, seconds, seconds)

    assert exchange.next_deadline() == 1.0
    assert exchange.expired(0.999) == []
    assert exchange.expired(3.0) == [1.0, 2.0, 3.0]
    assert exchange.next_deadline() == 4.0
    assert exchange.expired(100.0) == [4.0, 5.0]
    assert exchange.next_deadline() is None


def test_an_answered_request_no_longer_has_a_deadline(exchange):
    soon, later = enter(exchange, "soon", 1.0), enter(exchange, "later", 2.0)

    exchange.waiting.pop(soon, None)
    assert exchange.next_deadline() == 2.0
    assert exchange.expired(1.5) == []
    exchange.waiting.pop(later, None)
    assert exchange.next_deadline() is None


def test_closing_returns_all_waiters_in_the_order_they_were_added(exchange):
    for name, deadline in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        enter(exchange, name, deadline)
    exchange.waiting.pop(1, None)

    assert exchange.close() == ["a", "c"]
    assert len(exchange.waiting) == 0
    assert exchange.close() == []
    assert exchange.expired(10.0) == []
    assert exchange.next_deadline() is None


def test_deadlines_of_answered_requests_are_swept(exchange):
    held = enter(exchange, "held", 1e9)
    for n in range(100_000):
        exchange.waiting.pop(enter(exchange, n, 1e6 + n))
        assert len(exchange._deadlines) <= 300

    assert exchange.next_deadline() == 1e9
    assert exchange.waiting.pop(held, None) == "held"


def test_sweeping_loses_no_deadline(exchange):
    """Against a model that is only a dictionary."""
    chance = random.Random(7)
    model: dict[int, float] = {}
    now = 0.0
    for _ in range(20_000):
        draw = chance.random()
        if draw < 0.5:
            deadline = now + chance.uniform(0, 50)
            number = enter(exchange, deadline, deadline)
            assert number not in model
            model[number] = deadline
        elif draw < 0.95 and model:
            number = chance.choice(list(model))
            assert exchange.waiting.pop(number, None) == model.pop(number)
        else:
            now += chance.uniform(0, 5)
            due = sorted(moment for moment in model.values() if moment <= now)
            model = {k: moment for k, moment in model.items() if moment > now}
            assert exchange.expired(now) == due
        assert exchange.next_deadline() == min(model.values(), default=None)
        assert len(exchange.waiting) == len(model)
