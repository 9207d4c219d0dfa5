"""The checker of liveness passes a run that settles and finds what is stuck."""

from tests.simulation.checkers.liveness import broken
from tests.simulation.checkers.told import Q, acknowledged, began, copy, down, pulled, send, sent
from tests.simulation.history import Calm, ClientDown, Ended, QueueEnd, Serving

UP = Serving(0, Q.broker)


def run(*trouble, after=(), settled=(), took=10):
    """A run with some trouble, then calm with a probe into the queue."""
    return [
        UP,
        *trouble,
        Calm(100),
        *after,
        *sent(101, "probe", 1),
        QueueEnd(102, Q, 2),
        *settled,
        Ended(100 + took),
    ]


def test_a_run_that_settles_passes():
    trouble = (began(1, 0), send(2, "a"), down(3), Serving(4, Q.broker), acknowledged(5, "a", 0))

    assert broken(run(*trouble, settled=[pulled(103, 0, copy("a", 0), copy("b", 1))])) == []


def test_events_after_the_end_of_the_run_do_not_count():
    assert broken([*run(), down(200), send(201, "late")]) == []


def test_a_run_without_an_end_is_found():
    assert broken(run()[:-1]) == ["the run did not come to its end"]
    assert broken([UP, Ended(1)]) == ["the run did not come to its end"]


def test_a_run_that_takes_too_long_is_found():
    assert broken(run(took=50), soon_s=20) == ["it took 50.0 s to settle"]


def test_a_broker_that_stays_down_is_found():
    assert broken(run(down(3))) == ["broker-a stays down"]


def test_a_send_that_is_never_acknowledged_is_found():
    assert broken(run(send(1, "a"), send(2, "a", attempt=1))) == ["a was never acknowledged"]


def test_one_way_sends_and_sends_of_dead_clients_need_no_answer():
    trouble = (send(1, "a", answered=False), send(2, "b", client="dead"), ClientDown(3, "dead"))

    assert broken(run(*trouble)) == []


def test_a_queue_that_takes_nothing_after_the_calm_is_found():
    history = [UP, *sent(1, "a", 0), Calm(100), QueueEnd(101, Q, 1), Ended(102)]

    assert broken(history) == ["Topic/broker-a/0 takes no messages"]


def test_a_group_that_does_not_reach_the_end_of_its_queue_is_found():
    (complaint,) = broken(run(began(1, 0), pulled(2, 0, copy("a", 0))))

    assert complaint == "group stays at 1 in Topic/broker-a/0, which ends at 2"
