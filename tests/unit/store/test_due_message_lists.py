"""All waiting messages are listed in pieces, however many there are, also in the current second."""

import pytest

from txmq_broker.store.due_messages import DueMessages, ListPlace

EVERY = 1_000_000


def everything(waiting, *, count=EVERY, budget=EVERY, lines=None):
    """The due times of all listed messages, and how many pieces they came in."""
    place, found, pieces = ListPlace(0, 0), [], 0
    while place is not None:
        piece = waiting.found_from(
            place, lambda line: lines is None or line in lines, count, budget
        )
        found += [due.due_ms for _, due in piece.messages]
        assert len(piece.messages) <= count
        place, pieces = piece.next, pieces + 1
    return found, pieces


@pytest.fixture
def waiting():
    """Messages in a row of seconds, after a gap of hours, and after one of years."""
    messages = DueMessages()
    for number in range(40):
        messages.add(5_000 + number * 250, number % 3, number)
    for second in (20_000, 20_001, 400_000_000):
        messages.add(second * 1000 + 7, 1, second)
    return messages


@pytest.mark.parametrize("count", [1, 3, EVERY])
@pytest.mark.parametrize("budget", [1, 25, EVERY])
def test_every_message_is_listed_once_in_order_of_its_second(waiting, count, budget):
    found, pieces = everything(waiting, count=count, budget=budget)
    assert [ms // 1000 for ms in found] == sorted(ms // 1000 for ms in found)
    assert len(found) == len(set(found)) == len(waiting) == 43
    assert (pieces == 1) == (count == EVERY and budget == EVERY)


def test_only_messages_of_the_wanted_lines_are_listed(waiting):
    found, _ = everything(waiting, lines={2}, budget=7)
    assert found == [5_000 + number * 250 for number in range(2, 40, 3)]


def test_a_second_in_progress_is_listed_without_the_delivered_messages(waiting):
    waiting.first(6_300)
    while (due := waiting.first(6_300)) is not None:
        assert due.due_ms <= 6_300
        waiting.drop_first()
    found, _ = everything(waiting, count=2)
    assert len(found) == len(waiting) == 37
    assert min(found) == 6_500
    waiting.add(6_400, 0, 99)
    assert 6_400 in everything(waiting)[0]


def test_a_list_can_start_at_a_given_time(waiting):
    piece = waiting.found_from(ListPlace(20_001, 0), lambda _: True, EVERY, EVERY)
    assert [due.due_ms for _, due in piece.messages] == [20_001_007, 400_000_000_007]
    past = waiting.found_from(ListPlace(10**11, 0), lambda _: True, EVERY, EVERY)
    assert (past.messages, past.next) == ([], None)


def test_a_list_covers_messages_that_are_left_only_in_the_current_second():
    messages = DueMessages()
    assert everything(messages) == ([], 1)
    messages.add(5_500, 0, 1)
    assert messages.first(5_100) is None
    assert everything(messages, budget=1)[0] == [5_500]
