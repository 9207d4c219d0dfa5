"""The checkers of delivery, on histories written by hand."""

import pytest

from tests.simulation.checkers import delays, forward, retries
from tests.simulation.checkers.clocks import Clocks
from tests.simulation.client_history import Grouped, Handled, Handling, Sent
from tests.simulation.delivery_history import (
    DONE,
    MAYBE,
    REFUSED,
    ClockSet,
    Kept,
    Recalled,
    Recalling,
    Returned,
    Returning,
    Rules,
    Shelf,
    Waits,
    Wish,
    Writing,
)
from tests.simulation.history import Calm, Ended
from txmq.message import Queue

Q, RETRY, DLQ = (Queue(topic, "a", 0) for topic in ("T", "%RETRY%g", "%DLQ%g"))
START = [
    Rules(0.0, (1000, 1000, 1000, 2000), 2, 5.0),
    ClockSet(0.0, "a", 0, 0, 1.0),
    Grouped(0.0, "g", False, "*"),
]
REST = [Calm(50.0), Ended(60.0)]


def writing(at, key="k", wish=None):
    return Writing(at, key, f"id-{key}", "T", "red", wish)


def later(wish=None, due_ms=3000):
    """Written at second 1 and promised for second 3 by default."""
    return [writing(1.0, wish=wish or Wish(level=4)), Waits(1.1, "k", "a", due_ms)]


def kept(key="k", stored_ms=3000, position=0, attempts=0, dead=("", "", "")):
    return Kept(position, position, key, f"id-{key}", attempts, stored_ms, *dead)


def given(at, attempts=0, queue=Q, offset=0, key="k"):
    return Handling(at, "m", "m/1", "g", queue, offset, key, attempts)


def ended(at, attempts=0, queue=Q, is_done=True, level=0, key="k"):
    return Handled(at, "m", "m/1", "g", queue, 0, key, is_done, attempts, level)


# Clocks


def test_clock_bounds_include_the_times_before_and_after_a_jump():
    clocks = Clocks(
        [
            ClockSet(0.0, "a", 100, 100, 1.0),
            ClockSet(10.0, "a", 10_100, 5100, 0.5),
            ClockSet(20.0, "a", 10_100, 60_000, 1.0),
        ]
    )

    assert (clocks.lowest("a", 1.0, 2.0), clocks.highest("a", 1.0, 2.0)) == (1100, 2100)
    assert (clocks.lowest("a", 8.0, 12.0), clocks.highest("a", 8.0, 12.0)) == (5100, 10_100)
    assert clocks.highest("a", 8.0, 21.0) == 61_000


# Delays


def judged(*events):
    return delays.broken([*START, *events])


def test_a_message_delivered_on_time_passes():
    assert not judged(*later(), given(3.0), Shelf(9.0, Q, (kept(),)))


def test_a_message_stored_or_handled_early_is_found():
    (stored,) = judged(*later(), given(3.0), Shelf(9.0, Q, (kept(stored_ms=2999),)))
    (handled,) = judged(*later(), given(2.9), Shelf(9.0, Q, (kept(),)))

    assert "stored at 2999" in stored
    assert "had it at 2900" in handled


def test_a_late_message_is_found_unless_faults_delayed_it():
    late = [*later(), Shelf(90.0, Q, (kept(stored_ms=20_000),))]

    assert judged(*late, Calm(2.0))
    assert not judged(*late, Calm(15.0))


def test_a_clock_set_forward_may_deliver_a_message_sooner():
    jump = ClockSet(2.0, "a", 2000, 4000, 1.0)

    assert not judged(*later(), jump, given(2.1), Shelf(9.0, Q, (kept(stored_ms=4000),)))


def test_an_acknowledged_due_time_that_differs_from_the_wish_is_found():
    here = Shelf(9.0, Q, (kept(stored_ms=9000),))

    assert judged(*later(due_ms=2000), here)
    assert judged(*later(due_ms=9000), here)
    assert judged(*later(wish=Wish(at_ms=2000)), here)
    assert not judged(*later(wish=Wish(at_ms=3000)), here)
    assert not judged(*later(wish=Wish(after_s=2)), here)


def test_a_delayed_message_acknowledged_as_immediate_is_found():
    here = Shelf(9.0, Q, (kept(stored_ms=1000),))

    assert not judged(writing(1.0, wish=Wish(at_ms=900)), Sent(1.1, "k", Q, 0, "red"), here)
    assert judged(writing(1.0, wish=Wish(at_ms=2000)), Sent(1.1, "k", Q, 0, "red"), here)
    assert judged(writing(1.0, wish=Wish(level=4)), Sent(1.1, "k", Q, 0, "red"), here)


def test_an_acknowledged_delayed_message_must_come_exactly_once():
    assert judged(*later(), Shelf(9.0, Q, ()))
    assert judged(*later(), Shelf(9.0, Q, (kept(), kept(position=1))))
    assert judged(*later(), Shelf(9.0, Queue("U", "a", 0), (kept(),)))


def test_an_unacknowledged_delayed_message_may_come_at_most_once():
    asked = writing(1.0, wish=Wish(level=4))

    assert not judged(asked, Shelf(9.0, Q, ()))
    assert not judged(asked, Shelf(9.0, Q, (kept(),)))
    assert judged(asked, Shelf(9.0, Q, (kept(), kept(position=1))))
    # And not early, although no time was acknowledged.
    assert judged(asked, Shelf(9.0, Q, (kept(stored_ms=2900),)))


def test_a_recalled_message_must_not_come():
    recalled = [*later(), Recalling(2.0, "k"), Recalled(2.1, "k", DONE)]

    assert not judged(*recalled, Shelf(9.0, Q, ()))
    assert judged(*recalled, Shelf(9.0, Q, (kept(),)))
    assert judged(*recalled, given(3.0), Shelf(9.0, Q, ()))


@pytest.mark.parametrize(
    ("answers", "may_be_missing"),
    [((REFUSED,), False), ((MAYBE,), True), ((MAYBE, REFUSED), False), ((), True)],
)
def test_a_message_with_an_uncertain_recall_may_be_missing(answers, may_be_missing):
    asked = [event for answer in answers for event in (Recalling(2, "k"), Recalled(2, "k", answer))]

    found = judged(*later(), *(asked or [Recalling(2.0, "k")]), Shelf(9.0, Q, ()))

    assert bool(found) is not may_be_missing


def test_a_recall_also_covers_earlier_attempts_of_the_same_message():
    line, recalls = (Queue("rmq_sys_wheel_timer", "a", number) for number in (0, 8))
    wish = Wish(at_ms=3000)
    one, other = Writing(0.5, "j", "id-k", "T", "red", wish), later(wish=wish)
    asked = [one, *other, Recalling(2.0, "k"), Recalled(2.1, "k", DONE)]
    waited = Shelf(9.0, line, (kept("j", position=10), kept(position=20)))
    came = Shelf(9.0, Q, (kept("j", position=40),))

    for position, is_late in ((30, False), (5, True)):
        said = kept("", position=position)._replace(recalls="id-k")
        found = judged(*asked, waited, Shelf(9.0, recalls, (said,)), came)
        # A message that arrives after the recall is new to the broker.
        assert bool(found) is not is_late


# Retries


def tried(*events, shelves=(), rest=REST):
    sent = [writing(1.0), Sent(1.1, "k", Q, 0, "red")]
    return retries.broken([*START, *sent, *events, *rest, Shelf(61.0, Q, (kept(),)), *shelves])


def failed(at, attempts=0, queue=Q, level=0, answer=DONE):
    """A failed attempt that was handed back, at the position of its number."""
    number = 100 + attempts
    args = ("g", queue, 0, "k", attempts, level, answer)
    return [
        given(at, attempts, queue),
        ended(at, attempts, queue, is_done=False, level=level),
        Returning(at, number, "g", queue, attempts, "k", level),
        Returned(at + 0.1, number, *args),
    ]


def again(attempts=1, stored_ms=3000):
    return Shelf(61.0, RETRY, (kept(stored_ms=stored_ms, position=attempts, attempts=attempts),))


def dead(attempts=3, marks=("too often", "T", "id-k")):
    return Shelf(61.0, DLQ, (kept(position=9, attempts=attempts, dead=marks),))


SECOND = [given(4.0, 1, RETRY, 1), ended(4.0, 1, RETRY)]
ALL = [*failed(2.0), *failed(4.0, 1, RETRY), *failed(7.0, 2, RETRY)]
COPIES = Shelf(61.0, RETRY, (again(1).kept[0], again(2, 6000).kept[0]))


def test_a_message_consumed_at_once_or_after_a_retry_passes():
    assert not tried(given(2.0), ended(2.0))
    assert not tried(*failed(2.0), *SECOND, shelves=[again()])


def test_a_message_neither_consumed_nor_dead_is_found():
    (complaint,) = tried(*failed(2.0), shelves=[again()])

    assert "neither consumed nor buried k" in complaint


def test_a_message_that_used_up_its_attempts_may_be_dead():
    assert not tried(*ALL, shelves=[COPIES, dead()])


def test_a_gap_in_the_attempts_is_found():
    assert tried(given(2.0, 1), ended(2.0, 1))
    assert tried(given(2.0), given(2.5, 1), ended(3.0), ended(3.0, 1))


def test_a_handler_that_exceeds_its_time_counts_as_failed():
    slow = [given(2.0), Returning(7.5, 1, "g", Q, 0, "k", 3)]
    slow.append(Returned(7.6, 1, "g", Q, 0, "k", 0, 3, DONE))

    assert not tried(*slow, given(9.0, 1, RETRY, 1), ended(9.0, 1, RETRY), shelves=[again(1, 9000)])


def test_an_attempt_beyond_the_maximum_is_found():
    more = [given(9.0, 3), ended(9.0, 3)]

    assert tried(*ALL, *more, shelves=[COPIES, dead()])
    # Unless nobody was told that it is dead already.
    unheard = [*ALL[:-1], Returned(7.1, 102, "g", RETRY, 0, "k", 2, 0, MAYBE)]
    assert not tried(*unheard, *more, shelves=[COPIES, dead()])


def test_a_returned_message_must_be_stored_for_retry_exactly_once():
    twice = Shelf(61.0, RETRY, (again().kept[0], kept(position=2, attempts=1)))

    assert tried(*failed(2.0), given(2.5), ended(2.6))
    assert tried(*failed(2.0), *SECOND, shelves=[twice])
    assert tried(given(2.0), ended(2.0), shelves=[again()])
    assert tried(*failed(2.0, answer=REFUSED), *SECOND, shelves=[again()])
    assert not tried(*failed(2.0, answer=MAYBE), *SECOND, shelves=[again()])
    assert not tried(*failed(2.0, answer=MAYBE), given(2.5), ended(2.6))


def test_a_retry_that_comes_too_soon_is_found():
    assert tried(*failed(2.0), *SECOND, shelves=[again(stored_ms=2900)])
    early = [given(2.9, 1, RETRY, 1), ended(2.9, 1, RETRY)]
    assert tried(*failed(2.0), *early, shelves=[again()])


def test_a_retry_before_its_requested_delay_level_is_found():
    assert tried(*failed(2.0, level=4), *SECOND, shelves=[again(stored_ms=3500)])
    assert not tried(*failed(2.0, level=4), *SECOND, shelves=[again(stored_ms=4000)])


def test_a_dead_letter_before_the_last_attempt_is_found_unless_requested():
    assert len(tried(*failed(2.0), shelves=[dead(1)])) == 2
    assert not tried(*failed(2.0, level=-1), shelves=[dead(1)])


def test_a_delivery_after_the_dead_letter_is_found():
    third = Shelf(61.0, RETRY, (*COPIES.kept, again(3, 9000).kept[0]))

    assert tried(*ALL, given(9.0), ended(9.0), shelves=[third])


@pytest.mark.parametrize("marks", [("", "T", "id-k"), ("why", "", "id-k"), ("why", "T", "id-j")])
def test_a_dead_letter_without_its_reason_or_origin_is_found(marks):
    (complaint,) = tried(*ALL, shelves=[COPIES, dead(marks=marks)])

    assert "k lies in %DLQ%g/a/0" in complaint


def test_a_run_without_an_end_or_with_a_late_one_is_found():
    assert tried(given(2.0), ended(2.0), rest=[Calm(1.0)])
    assert tried(given(2.0), ended(2.0), rest=[Calm(1.0), Ended(500.0)])


# Forward


def test_a_new_message_before_an_older_one_is_found_and_retries_pass():
    first = [given(n, offset=n, key=f"k{n}") for n in range(4)]

    assert not forward.broken([*first, given(5.0, offset=1), given(6.0, offset=4)])
    assert not forward.broken([given(1.0, offset=2), given(2.0, offset=5)])
    assert forward.broken([given(1.0, offset=2), given(2.0, offset=1)])
