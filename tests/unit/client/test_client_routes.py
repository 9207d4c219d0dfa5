import pytest

from txmq.client.routes import FRESH_S, RouteTable, route_of
from txmq.errors import ConnectFailed, TopicNotFound
from txmq.message import Queue
from txmq.protocol.bodies import BrokerRoute, QueueRoute, TopicRoute


def body(*queues, **addresses):
    return TopicRoute(
        queue_datas=[QueueRoute(*queue) for queue in queues],
        broker_datas=[BrokerRoute(name, at) for name, at in addresses.items()],
    )


def test_queues_of_a_route_are_sorted_by_broker_and_number():
    route = route_of("T", body(("b", 1, 1, 6), ("a", 2, 2, 6), a={0: "a:1"}, b={0: "b:1"}))

    assert route.writable == (Queue("T", "a", 0), Queue("T", "a", 1), Queue("T", "b", 0))
    assert route.readable == route.writable
    assert route.brokers == ("a", "b")


def test_read_and_write_queues_are_counted_separately():
    route = route_of("T", body(("a", 3, 1, 6), a={0: "a:1"}))

    assert [queue.number for queue in route.readable] == [0, 1, 2]
    assert [queue.number for queue in route.writable] == [0]


@pytest.mark.parametrize(
    ("perm", "readable", "writable"), [(6, 1, 1), (4, 1, 0), (2, 0, 1), (0, 0, 0), (7, 1, 1)]
)
def test_the_permission_decides_which_queues_are_readable_and_writable(perm, readable, writable):
    route = route_of("T", body(("a", 1, 1, perm), a={0: "a:1"}))

    assert (len(route.readable), len(route.writable)) == (readable, writable)


def test_a_broker_without_a_master_is_readable_but_not_writable():
    route = route_of("T", body(("a", 1, 1, 6), a={1: "a:9", 2: "a:10"}))

    assert route.writable == ()
    assert route.readable == (Queue("T", "a", 0),)
    assert route.reader("a") == "a:9"
    with pytest.raises(ConnectFailed, match="broker a has no master now"):
        route.master("a")


def test_reading_prefers_the_master():
    assert route_of("T", body(("a", 1, 1, 6), a={1: "a:9", 0: "a:1"})).reader("a") == "a:1"


def test_queues_of_a_broker_without_an_address_are_ignored():
    route = route_of("T", body(("a", 1, 1, 6), ("b", 1, 1, 6), a={0: "a:1"}, b={}))

    assert route.brokers == ("a",)
    with pytest.raises(TopicNotFound, match="topic T has nothing at broker 'b'"):
        route.reader("b")


def test_a_topic_to_be_created_has_no_more_queues_than_clients_ask_for():
    route = route_of(
        "T", body(("a", 8, 8, 7), ("b", 2, 2, 7), a={0: "a:1"}, b={0: "b:1"}), template=True
    )

    assert [queue.broker for queue in route.writable] == ["a"] * 4 + ["b"] * 2
    assert {queue.topic for queue in route.writable} == {"T"}


def test_a_route_is_cached_until_it_is_stale():
    table, route = RouteTable(), route_of("T", body(("a", 1, 1, 6), a={0: "a:1"}))

    table.put(route, 100.0)

    assert table.get("T", 100.0 + FRESH_S) is route
    assert table.get("T", 100.0 + FRESH_S + 0.1) is None
    assert table.get("other", 100.0) is None


def test_a_route_without_a_master_is_cached_for_a_second():
    table = RouteTable()
    table.put(route_of("T", body(("a", 1, 1, 6), a={1: "a:1"})), 100.0)

    assert table.get("T", 100.9) is not None
    assert table.get("T", 101.1) is None


@pytest.mark.fault("N5")
def test_the_last_route_is_kept_after_it_is_stale_or_forgotten():
    table, route = RouteTable(), route_of("T", body(("a", 1, 1, 6), a={0: "a:1"}))
    table.put(route, 0.0)

    table.forget("T")
    table.forget("never known")

    assert table.get("T", 0.0) is None
    assert table.get("T", 1000.0 * FRESH_S) is None
    assert table.last("T") is route
    assert table.last("other") is None
