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


def test_a_history_with_all_messages_handled_passes():
    assert not consumed.broken([FREE, *SENT, *work(2, "a", 0, 1, 2), *REST])


def test_a_message_that_was_not_handled_is_found():
    (complaint,) = consumed.broken([FREE, *SENT, *work(2, "a", 0, 2), *REST])

    assert "k1 at 1" in complaint


def test_a_failed_message_counts_as_handled_only_after_its_retry():
    failed = [FREE, SENT[0], begin(2, "a", 0), end(3, "a", 0, is_done=False)]
    retry = Queue("%RETRY%g", "broker-a", 0)

    assert consumed.broken([*failed, *REST])
    assert not consumed.broken([*failed, end(4, "a", 0, queue=retry), *REST])


def test_messages_excluded_by_the_filter_or_of_a_lost_broker_are_excused():
    blue = Grouped(0.0, "g", False, "blue")

    assert not consumed.broken([blue, *SENT, *REST])
    assert not consumed.broken([FREE, *SENT, Buried(40.0, "broker-a"), *REST])


def test_a_run_without_an_end_or_with_a_late_one_is_found():
    assert consumed.broken([FREE, Calm(1.0)])
    assert consumed.broken([FREE, Calm(1.0), Ended(500.0)])


# Commits


def test_a_commit_of_handled_messages_passes():
    done = [FREE, *SENT, *work(2, "a", 0, 1)]

    assert not commits.broken([*done, Committing(9, "a", "g", Q, 2), Standing(9, "g", Q, 2)])


def test_a_commit_past_an_unhandled_message_is_found():
    done = [FREE, *SENT, *work(2, "a", 0, 2)]

    assert commits.broken([*done, Committing(9, "a", "g", Q, 2)])
    assert commits.broken([*done, Standing(9, "g", Q, 3)])
    assert not commits.broken([*done, Standing(9, "g", Q, 1)])


def test_a_commit_before_its_message_is_handled_is_found():
    assert commits.broken([FREE, SENT[0], Committing(2, "a", "g", Q, 1), *work(3, "a", 0)])


def test_a_commit_may_pass_a_failed_message_only_without_order():
    failed = [SENT[0], begin(2, "a", 0), end(3, "a", 0, is_done=False), Standing(9, "g", Q, 1)]

    assert not commits.broken([FREE, *failed])
    assert commits.broken([STRICT, *failed])


def test_an_orderly_commit_may_pass_a_message_returned_for_retry():
    args = (1, "g", Q, 0, "k0", 2, -1)
    failed = [STRICT, SENT[0], begin(2, "a", 0), end(3, "a", 0, is_done=False)]
    after = Standing(9, "g", Q, 1)

    assert not commits.broken([*failed, Returned(4.0, *args, DONE), after])
    assert commits.broken([*failed, Returned(4.0, *args, MAYBE), after])


def test_handled_messages_without_a_final_commit_are_found():
    done = [FREE, *SENT, *work(2, "a", 0, 1, 2)]

    assert not commits.broken([*done, Standing(9, "g", Q, 3, is_last=True)])
    assert commits.broken([*done, Standing(9, "g", Q, 2, is_last=True)])
    gone = Buried(8, "broker-a")
    assert not commits.broken([*done, gone, Standing(9, "g", Q, 2, is_last=True)])


# In turn


def test_an_orderly_queue_may_be_handed_over_or_retried():
    first = [STRICT, loaded(1, "a", 0), *work(2, "a", 0, 1)]

    assert not in_turn.broken([*first, loaded(5, "b", 2), *work(6, "b", 2)])
    # Uncommitted messages come again, to the next member or to the same one after it asked again.
    assert not in_turn.broken([*first, loaded(5, "b", 1), *work(6, "b", 1, 2)])
    assert not in_turn.broken([*first, loaded(5, "a", 1), *work(6, "a", 1, 2)])
    # And an attempt may follow another.
    assert not in_turn.broken([*first, begin(7, "a", 1), end(8, "a", 1)])


def test_two_orderly_consumers_at_one_queue_are_found():
    both = [STRICT, loaded(1, "a", 0), begin(2, "a", 0), loaded(3, "b", 0)]

    assert in_turn.broken([*both, begin(4, "b", 0)])
    assert not in_turn.broken(
        [*both[:3], ClientDown(2.5, "a"), loaded(3, "b", 0), begin(4, "b", 0)]
    )


def test_an_orderly_consumer_that_goes_back_is_found():
    assert in_turn.broken([STRICT, loaded(1, "a", 0), *work(2, "a", 0, 1), begin(5, "a", 0)])
    assert in_turn.broken([STRICT, loaded(1, "a", 2), begin(5, "a", 1)])


def test_an_orderly_consumer_that_loads_its_offset_too_early_or_never_is_found():
    first = [STRICT, loaded(1, "a", 0), loaded(1.5, "b", 0), *work(2, "a", 0, 1)]

    assert in_turn.broken([*first, begin(5, "b", 2)])
    assert in_turn.broken([*first, begin(5, "c", 2)])


def test_a_broker_failure_excuses_two_orderly_consumers_for_a_while():
    both = [STRICT, loaded(1, "a", 0), begin(3, "a", 0), loaded(3, "b", 0)]

    assert not in_turn.broken([*both, Down(3.5, "broker-a", "kill"), begin(4, "b", 0)])
    assert in_turn.broken([*both, Down(3.5, "broker-a", "kill"), begin(99, "b", 0)])
    assert in_turn.broken([*both, Down(3.5, "broker-b", "kill"), begin(4, "b", 0)])


def test_groups_without_order_may_handle_in_any_order():
    assert not in_turn.broken([FREE, begin(2, "a", 1), begin(3, "b", 0)])


# Farewell


def test_a_client_that_leaves_nothing_behind_passes():
    assert not farewell.broken([Left(9, "a", 1.0, (), 0, 0)])


def test_what_a_client_leaves_behind_or_a_slow_exit_is_found():
    assert farewell.broken([Left(9, "a", 1.0, ("heartbeats",), 0, 0)])
    assert farewell.broken([Left(9, "a", 1.0, (), 1, 0)])
    assert farewell.broken([Left(9, "a", 1.0, (), 0, 1)])
    assert farewell.broken([Left(9, "a", 99.0, (), 0, 0)])
