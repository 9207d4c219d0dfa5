"""The checkers of clients, on histories written by hand."""

from tests.simulation.checkers import commits, consumed, farewell, in_turn
from tests.simulation.client_history import (
    Buried,
    Committing,
    Grouped,
    Handled,
    Handling,
    Left,
    Loaded,
    Sent,
    Standing,
)
from tests.simulation.delivery_history import DONE, MAYBE, Returned
from tests.simulation.history import Calm, ClientDown, Down, Ended
from txmq.message import Queue

Q = Queue("T", "broker-a", 0)
FREE, STRICT = Grouped(0.0, "g", False, "*"), Grouped(0.0, "g", True, "*")
SENT = [Sent(1.0, f"k{n}", Q, n, "red") for n in range(3)]
REST = [Calm(50.0), Ended(60.0)]


def begin(at, who, offset, queue=Q):
    return Handling(at, who, who, "g", queue, offset, f"k{offset}")


def end(at, who, offset, is_done=True, queue=Q):
    return Handled(at, who, who, "g", queue, offset, f"k{offset}", is_done)


def loaded(at, who, offset, began=None):
    return Loaded(at, who, who, "g", Q, offset, at if began is None else began)


def work(at, who, *offsets):
    return [e for n in offsets for e in (begin(at + n, who, n), end(at + n + 0.5, who, n))]


# Consumed


def test_all_is_handled():
    assert not consumed.broken([FREE, *SENT, *work(2, "a", 0, 1, 2), *REST])


def test_a_message_that_nobody_handled_is_missed():
    (complaint,) = consumed.broken([FREE, *SENT, *work(2, "a", 0, 2), *REST])

    assert "k1 at 1" in complaint


def test_a_failure_is_no_handling_unless_it_comes_again():
    failed = [FREE, SENT[0], begin(2, "a", 0), end(3, "a", 0, is_done=False)]
    retry = Queue("%RETRY%g", "broker-a", 0)

    assert consumed.broken([*failed, *REST])
    assert not consumed.broken([*failed, end(4, "a", 0, queue=retry), *REST])


def test_other_tags_and_brokers_that_are_gone_are_excused():
    blue = Grouped(0.0, "g", False, "blue")

    assert not consumed.broken([blue, *SENT, *REST])
    assert not consumed.broken([FREE, *SENT, Buried(40.0, "broker-a"), *REST])


def test_it_comes_to_an_end_and_soon():
    assert consumed.broken([FREE, Calm(1.0)])
    assert consumed.broken([FREE, Calm(1.0), Ended(500.0)])


# Commits


def test_a_commit_may_name_what_was_handled():
    done = [FREE, *SENT, *work(2, "a", 0, 1)]

    assert not commits.broken([*done, Committing(9, "a", "g", Q, 2), Standing(9, "g", Q, 2)])


def test_a_commit_that_passes_an_open_message_is_found_whoever_shows_it():
    done = [FREE, *SENT, *work(2, "a", 0, 2)]

    assert commits.broken([*done, Committing(9, "a", "g", Q, 2)])
    assert commits.broken([*done, Standing(9, "g", Q, 3)])
    assert not commits.broken([*done, Standing(9, "g", Q, 1)])


def test_a_commit_must_not_come_before_its_message_is_handled():
    assert commits.broken([FREE, SENT[0], Committing(2, "a", "g", Q, 1), *work(3, "a", 0)])


def test_what_failed_may_be_passed_unless_in_order():
    failed = [SENT[0], begin(2, "a", 0), end(3, "a", 0, is_done=False), Standing(9, "g", Q, 1)]

    assert not commits.broken([FREE, *failed])
    assert commits.broken([STRICT, *failed])


def test_what_was_handed_back_may_be_passed_even_in_order():
    args = (1, "g", Q, 0, "k0", 2, -1)
    failed = [STRICT, SENT[0], begin(2, "a", 0), end(3, "a", 0, is_done=False)]
    after = Standing(9, "g", Q, 1)

    assert not commits.broken([*failed, Returned(4.0, *args, DONE), after])
    assert commits.broken([*failed, Returned(4.0, *args, MAYBE), after])


def test_in_the_end_all_is_committed():
    done = [FREE, *SENT, *work(2, "a", 0, 1, 2)]

    assert not commits.broken([*done, Standing(9, "g", Q, 3, is_last=True)])
    assert commits.broken([*done, Standing(9, "g", Q, 2, is_last=True)])
    gone = Buried(8, "broker-a")
    assert not commits.broken([*done, gone, Standing(9, "g", Q, 2, is_last=True)])


# In turn


def test_a_queue_is_handled_in_order_and_handed_over():
    first = [STRICT, loaded(1, "a", 0), *work(2, "a", 0, 1)]

    assert not in_turn.broken([*first, loaded(5, "b", 2), *work(6, "b", 2)])
    # What was not committed comes again, to the next one or to the same that asked anew.
    assert not in_turn.broken([*first, loaded(5, "b", 1), *work(6, "b", 1, 2)])
    assert not in_turn.broken([*first, loaded(5, "a", 1), *work(6, "a", 1, 2)])
    # And an attempt may follow another.
    assert not in_turn.broken([*first, begin(7, "a", 1), end(8, "a", 1)])


def test_two_at_a_time_are_found():
    both = [STRICT, loaded(1, "a", 0), begin(2, "a", 0), loaded(3, "b", 0)]

    assert in_turn.broken([*both, begin(4, "b", 0)])
    assert not in_turn.broken(
        [*both[:3], ClientDown(2.5, "a"), loaded(3, "b", 0), begin(4, "b", 0)]
    )


def test_going_back_is_found():
    assert in_turn.broken([STRICT, loaded(1, "a", 0), *work(2, "a", 0, 1), begin(5, "a", 0)])
    assert in_turn.broken([STRICT, loaded(1, "a", 2), begin(5, "a", 1)])


def test_asking_too_early_or_never_is_found():
    first = [STRICT, loaded(1, "a", 0), loaded(1.5, "b", 0), *work(2, "a", 0, 1)]

    assert in_turn.broken([*first, begin(5, "b", 2)])
    assert in_turn.broken([*first, begin(5, "c", 2)])


def test_a_broker_that_went_down_excuses_it_for_a_while():
    both = [STRICT, loaded(1, "a", 0), begin(3, "a", 0), loaded(3, "b", 0)]

    assert not in_turn.broken([*both, Down(3.5, "broker-a", "kill"), begin(4, "b", 0)])
    assert in_turn.broken([*both, Down(3.5, "broker-a", "kill"), begin(99, "b", 0)])
    assert in_turn.broken([*both, Down(3.5, "broker-b", "kill"), begin(4, "b", 0)])


def test_groups_without_order_are_free():
    assert not in_turn.broken([FREE, begin(2, "a", 1), begin(3, "b", 0)])


# Farewell


def test_whoever_leaves_nothing_behind_may_go():
    assert not farewell.broken([Left(9, "a", 1.0, (), 0, 0)])


def test_whatever_is_left_is_found():
    assert farewell.broken([Left(9, "a", 1.0, ("heartbeats",), 0, 0)])
    assert farewell.broken([Left(9, "a", 1.0, (), 1, 0)])
    assert farewell.broken([Left(9, "a", 1.0, (), 0, 1)])
    assert farewell.broken([Left(9, "a", 99.0, (), 0, 0)])
