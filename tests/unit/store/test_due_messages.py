"""Delayed messages in memory: in order of their times, and in few bytes."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq_broker.store.due_messages import (
    LINES_MAX,
    NOWHERE,
    Due,
    DueMessages,
    LinePlace,
    split_where,
    where_of,
)

NOW = 1_700_000_000_000
OFFSET_MAX = (1 << 45) - 1


def taken(waiting, now_ms, at_most=1 << 30):
    found = []
    while len(found) < at_most and (due := waiting.first(now_ms)) is not None:
        found.append(due)
        waiting.drop_first()
    return found


@pytest.mark.parametrize("line", [0, 1, LINES_MAX - 1])
@pytest.mark.parametrize("offset", [0, 1, OFFSET_MAX])
def test_a_line_and_an_offset_are_packed_into_one_record_field(line, offset):
    where = where_of(line, offset)

    assert split_where(where) == (line, offset)
    assert 0 <= where < 1 << 63


def test_nowhere_sorts_before_every_place():
    assert NOWHERE < LinePlace(0, 0) < LinePlace(0, 1) < LinePlace(1, 0)


def test_a_new_list_is_empty():
    waiting = DueMessages()

    assert len(waiting) == 0
    assert waiting.first(1 << 60) is None
    assert waiting.next_ms() is None


@pytest.mark.parametrize("ms", [0, 1, 500, 999])
def test_a_message_is_due_in_its_millisecond_and_not_before(ms):
    waiting = DueMessages()
    waiting.add(NOW + ms, 3, 17)

    assert waiting.first(NOW - 1) is None
    assert NOW <= waiting.next_ms() <= NOW + ms
    assert waiting.first(NOW + ms - 1) is None
    assert waiting.first(NOW + ms) == Due(NOW + ms, 3, 17)
    assert waiting.first(NOW + ms).place == (NOW + ms, 17)
    assert len(waiting) == 1  # Until it is dropped.

    waiting.drop_first()
    assert waiting.first(1 << 60) is None
    assert len(waiting) == 0


def test_the_next_due_time_is_exact_once_its_second_has_begun():
    waiting = DueMessages()
    waiting.add(NOW + 999, 0, 0)

    assert waiting.next_ms() == NOW
    assert waiting.first(NOW) is None
    assert waiting.next_ms() == NOW + 999


@pytest.mark.parametrize("line", [0, LINES_MAX - 1])
def test_the_largest_lines_offsets_and_times_are_stored_exactly(line):
    waiting = DueMessages()
    far = NOW + 999 + 100 * 365 * 86_400_000
    waiting.add(far, line, OFFSET_MAX)

    assert taken(waiting, far) == [Due(far, line, OFFSET_MAX)]


def test_messages_due_at_the_same_time_are_ordered_by_line_and_offset():
    waiting = DueMessages()
    dues = [Due(NOW, line, offset) for line in (2, 0, 1) for offset in (5, 3, 4)]
    for due in dues:
        waiting.add(*due)

    assert taken(waiting, NOW) == sorted(dues)


def test_a_message_added_to_a_second_in_progress_is_sorted_in():
    waiting = DueMessages()
    waiting.add(NOW + 500, 0, 0)
    waiting.add(NOW + 1500, 0, 1)
    assert waiting.first(NOW) is None

    waiting.add(NOW + 400, 1, 0)
    waiting.add(NOW - 5000, 1, 1)
    waiting.add(NOW + 600, 1, 2)

    assert waiting.next_ms() == NOW - 5000
    assert [due.due_ms - NOW for due in taken(waiting, NOW + 3000)] == [-5000, 400, 500, 600, 1500]


def test_messages_that_are_put_back_come_first_again():
    waiting = DueMessages()
    for offset in range(5):
        waiting.add(NOW + offset, 0, offset)
    left = taken(waiting, NOW + 10, at_most=3)

    for due in left:
        waiting.add(*due)

    assert [due.offset for due in taken(waiting, NOW + 10)] == [0, 1, 2, 3, 4]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(-3000, 90_000), st.integers(0, 255)),
            st.tuples(st.just("take"), st.integers(-2000, 8000), st.integers(0, 5)),
        ),
        max_size=60,
    )
)
def test_messages_come_in_sorted_order_whatever_the_clock_does(steps):
    waiting, expected, now = DueMessages(), [], NOW
    for number, (what, ms, more) in enumerate(steps):
        if what == "add":
            waiting.add(now + ms, more, number)
            expected.append(Due(now + ms, more, number))
            continue
        now += ms
        expected.sort()
        ready = [due for due in expected if due.due_ms <= now][:more]
        assert taken(waiting, now, more) == ready
        del expected[: len(ready)]
        assert len(waiting) == len(expected)
        if expected:
            assert waiting.next_ms() <= expected[0].due_ms
        else:
            assert waiting.next_ms() is None
    assert taken(waiting, 1 << 60) == sorted(expected)


def bytes_each(due_times):
    tracemalloc.start()
    try:
        waiting = DueMessages()
        for offset, due_ms in enumerate(due_times):
            waiting.add(due_ms, 3, offset)
        return tracemalloc.get_traced_memory()[0] / len(waiting)
    finally:
        tracemalloc.stop()


def test_a_waiting_message_takes_few_bytes():
    # Thirty a second for an hour, and all in one second.
    assert bytes_each([NOW + 33 * number for number in range(30_000)]) < 20
    assert bytes_each([NOW + 5000] * 30_000) < 10


def test_a_clock_set_back_does_not_increase_the_memory_per_message():
    waiting = DueMessages()
    waiting.add(NOW + 10**8, 0, 0)
    taken(waiting, NOW + 10**8)  # The clock was a day ahead.

    tracemalloc.start()
    try:
        for number in range(30_000):
            waiting.add(NOW + 33 * number, 3, number)
        assert tracemalloc.get_traced_memory()[0] / len(waiting) < 20
    finally:
        tracemalloc.stop()
    assert [due.offset for due in taken(waiting, NOW + 10**8)] == list(range(30_000))
