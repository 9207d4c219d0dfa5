import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.client.routes import FaultTable, QueueRotation, Route, route_of
from txmq.errors import ConnectFailed, NoPermission
from txmq.message import Queue
from txmq.protocol.bodies import BrokerRoute, QueueRoute, TopicRoute

NOW = 1_000.0


def route(topic="T", **queues):
    """A route with this number of writable queues at each broker."""
    made = [Queue(topic, broker, number) for broker in queues for number in range(queues[broker])]
    return Route(topic, tuple(made), tuple(made), {name: {0: f"{name}:1"} for name in queues})


def names(queues):
    return [f"{queue.broker}{queue.number}" for queue in queues]


def faulty(*brokers):
    table = FaultTable()
    for step, broker in enumerate(brokers):
        table.note(broker, 3.0 + step, NOW)
    return table


# Without a fault table


def test_queues_are_taken_in_turn_from_a_random_start():
    turns, three = QueueRotation(), route(a=3)

    assert [turns.next_queue(three, first=5).number for _ in range(5)] == [2, 0, 1, 2, 0]


def test_each_topic_has_a_rotation_of_its_own():
    turns = QueueRotation()
    routes = [route("T", a=4), route("U", a=4)]

    assert [turns.next_queue(topic_route, first=0).number for topic_route in routes * 2] == [
        0,
        0,
        1,
        1,
    ]


def test_a_rotation_continues_when_queues_are_added_or_removed():
    turns = QueueRotation()

    taken = [turns.next_queue(route(a=count), 0).number for count in (8, 8, 8, 2, 8)]

    assert taken == [0, 1, 2, 1, 4]


def test_a_broker_to_avoid_is_skipped():
    turns, both = QueueRotation(), route(a=2, b=2)

    assert names(turns.next_queue(both, 0, avoid="a") for _ in range(3)) == ["b0", "b1", "b0"]
    assert names([turns.next_queue(both, 0)]) == ["b1"]


def test_a_broker_to_avoid_is_used_when_there_is_no_other():
    turns, alone = QueueRotation(), route(a=3)

    # Each try counts the whole round that it skipped, as in stock clients.
    assert names(turns.next_queue(alone, 0, avoid="a") for _ in range(4)) == [
        "a0",
        "a1",
        "a2",
        "a0",
    ]


@given(
    queues=st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), min_size=1),
    first=st.integers(0, 1 << 16),
)
def test_one_round_takes_every_queue_once(queues, first):
    turns, whole = QueueRotation(), route(**queues)

    taken = [turns.next_queue(whole, first) for _ in whole.writable]

    assert sorted(taken) == sorted(whole.writable)


@pytest.mark.parametrize("avoid", [None, "a"])
def test_a_topic_without_writable_queues_raises_no_permission(avoid):
    closed = Route("T", (), (Queue("T", "a", 0),), {"a": {0: "a:1"}})

    with pytest.raises(NoPermission, match="topic T has no queue that can be written to"):
        QueueRotation().next_queue(closed, 0, avoid)
    with pytest.raises(NoPermission, match="topic T has no queue that can be written to"):
        QueueRotation().next_available(closed, 0, FaultTable(), NOW, avoid)


def test_a_broker_without_a_master_raises_connect_failed():
    """Its followers are registered while no member leads."""
    broker = BrokerRoute(broker_name="a", broker_addrs={1: "a:1"})
    waiting = route_of(
        "T", TopicRoute(queue_datas=[QueueRoute("a", 1, 1, 6)], broker_datas=[broker])
    )

    for choose in (
        lambda: QueueRotation().next_queue(waiting, 0),
        lambda: QueueRotation().next_available(waiting, 0, FaultTable(), NOW),
        waiting.queues_to_write,
    ):
        with pytest.raises(ConnectFailed, match="broker a has no master now"):
            choose()


def test_the_rotation_of_the_least_recently_used_topic_is_dropped_above_the_limit():
    turns = QueueRotation(limit=2)
    for topic in ("T", "U", "T", "V"):
        turns.next_queue(route(topic, a=9), first=0)

    assert len(turns) == 2
    assert turns.next_queue(route("T", a=9), first=0).number == 2
    assert turns.next_queue(route("U", a=9), first=7).number == 7


# With a fault table


def test_available_brokers_are_used_in_turn():
    turns, both = QueueRotation(), route(a=2, b=2)

    taken = [turns.next_available(both, 3, FaultTable(), NOW) for _ in range(5)]

    assert names(taken) == ["b1", "a0", "a1", "b0", "b1"]


def test_unavailable_brokers_are_skipped():
    turns, three = QueueRotation(), route(a=1, b=1, c=1)

    taken = [turns.next_available(three, 0, faulty("a", "c"), NOW) for _ in range(3)]

    assert names(taken) == ["b0"] * 3


def test_a_broker_is_used_again_after_its_pause():
    turns, both, faults = QueueRotation(), route(a=1, b=1), faulty("a")

    assert names([turns.next_available(both, 0, faults, NOW + 179)]) == ["b0"]
    assert names(turns.next_available(both, 0, faults, NOW + 180) for _ in range(2)) == ["b0", "a0"]


def test_a_broker_to_avoid_is_used_only_if_it_is_the_only_available_one():
    turns, three = QueueRotation(), route(a=1, b=1, c=1)

    assert names([turns.next_available(three, 0, faulty("b"), NOW, avoid="a")]) == ["c0"]
    assert names([turns.next_available(three, 0, faulty("b", "c"), NOW, avoid="a")]) == ["a0"]


def test_without_an_available_broker_the_faster_half_is_used_in_turn():
    turns, four = QueueRotation(), route(a=1, b=1, c=1, d=1)
    faults = faulty("c", "a", "d", "b")

    taken = [turns.next_available(four, 0, faults, NOW) for _ in range(4)]

    assert names(taken) == ["c0", "a0", "c0", "a0"]


def test_all_queues_of_the_least_bad_broker_are_used():
    turns, both = QueueRotation(), route(a=3, b=4)

    taken = [turns.next_available(both, 0, faulty("b", "a"), NOW) for _ in range(5)]

    assert names(taken) == ["b0", "b1", "b2", "b3", "b0"]


def test_a_least_bad_broker_without_the_topic_is_forgotten():
    turns, both, faults = QueueRotation(), route(a=1, b=1), faulty("elsewhere", "a", "b")

    first = turns.next_available(both, 1, faults, NOW)

    assert names([first]) == ["b0"]
    assert faults.is_available("elsewhere", NOW)
    assert names([turns.next_available(both, 1, faults, NOW)]) == ["a0"]
