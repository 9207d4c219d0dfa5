import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.client.allocation import (
    Average,
    ByConfig,
    Circle,
    ConsistentHash,
    MachineRoom,
    NearestRoom,
)
from txmq.errors import ConfigError
from txmq.message import Queue

GROUP = "g"


def room_of(name):
    return name.split("@")[0]


def nearest(inner):
    return NearestRoom(inner, room_of, room_of)


SHARING = [
    Average(), Circle(), MachineRoom(frozenset({"x", "y", "z"})), ConsistentHash(),
    ConsistentHash(virtual_nodes=1), nearest(Average()), nearest(Circle()),
    nearest(ConsistentHash()),
]  # fmt: skip
ALL = [*SHARING, ByConfig(frozenset({Queue("T", "x@a", 0)}))]

brokers = st.builds("{}@{}".format, st.sampled_from("xyz"), st.sampled_from("ab"))
queue_lists = st.sets(st.builds(Queue, st.just("T"), brokers, st.integers(0, 12))).map(sorted)
client_lists = st.sets(
    st.builds("{}@{}".format, st.sampled_from("xyw"), st.integers(0, 99)), min_size=1, max_size=12
).map(sorted)


def naming(strategy):
    return strategy.name


def numbered(count, broker="b"):
    return [Queue("T", broker, number) for number in range(count)]


def shares(strategy, queues, clients):
    """The numbers of the queues each client gets."""
    return [
        [queue.number for queue in strategy(GROUP, client, queues, clients)] for client in clients
    ]


# All strategies


@pytest.mark.parametrize("strategy", SHARING, ids=naming)
@given(queues=queue_lists, clients=client_lists)
def test_every_queue_goes_to_exactly_one_client(strategy, queues, clients):
    given_out = [queue for client in clients for queue in strategy(GROUP, client, queues, clients)]

    assert sorted(given_out) == queues


@pytest.mark.parametrize("strategy", ALL, ids=naming)
def test_a_client_outside_the_group_gets_no_queues(strategy):
    queues = numbered(4, "x@a")

    assert strategy(GROUP, "x@9", queues, ["x@1", "x@2"]) == []
    assert strategy(GROUP, "x@9", queues, []) == []


@pytest.mark.parametrize("strategy", ALL, ids=naming)
def test_without_queues_a_client_gets_none(strategy):
    assert strategy(GROUP, "x@1", [], ["x@1"]) == []


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (Average(), "AVG"),
        (Circle(), "AVG_BY_CIRCLE"),
        (ByConfig(frozenset()), "CONFIG"),
        (MachineRoom(frozenset()), "MACHINE_ROOM"),
        (ConsistentHash(), "CONSISTENT_HASH"),
        (nearest(Average()), "MACHINE_ROOM_NEARBY-AVG"),
        (nearest(nearest(Circle())), "MACHINE_ROOM_NEARBY-MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"),
    ],
)
def test_strategies_have_the_names_of_rocketmq(strategy, name):
    assert strategy.name == name


# Average


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        (8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (7, [[0, 1, 2], [3, 4], [5, 6]]),
        (10, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (5, [[0, 1], [2], [3], [4]]),
        (4, [[0], [1], [2], [3]]),
        (2, [[0], [1], []]),
        (1, [[0], [], [], []]),
        (3, [[0, 1, 2]]),
    ],
)
def test_average_gives_adjacent_queues_and_the_remainder_to_the_first_clients(queues, expected):
    clients = [f"c{number}" for number in range(len(expected))]

    assert shares(Average(), numbered(queues), clients) == expected


def java_average(queues, clients, index):
    """The arithmetic of the stock client."""
    mod = queues % clients
    if queues <= clients:
        size = 1
    elif mod > 0 and index < mod:
        size = queues // clients + 1
    else:
        size = queues // clients
    start = index * size if mod > 0 and index < mod else index * size + mod
    return [(start + step) % queues for step in range(min(size, queues - start))]


@given(queues=st.integers(1, 60), clients=st.integers(1, 60))
def test_average_matches_the_stock_client(queues, clients):
    ids = [f"c{number:02}" for number in range(clients)]

    expected = [java_average(queues, clients, index) for index in range(clients)]

    assert shares(Average(), numbered(queues), ids) == expected


# The others


def test_circle_deals_queues_round_robin():
    assert shares(Circle(), numbered(7), ["a", "b", "c"]) == [[0, 3, 6], [1, 4], [2, 5]]
    assert shares(Circle(), numbered(2), ["a", "b", "c"]) == [[0], [1], []]


def test_by_config_gives_the_listed_queues_that_the_topic_has():
    strategy = ByConfig(frozenset({Queue("T", "b", 2), Queue("T", "b", 9), Queue("U", "b", 0)}))

    assert strategy(GROUP, "a", numbered(4), ["a", "b"]) == [Queue("T", "b", 2)]


def test_machine_room_gives_equal_pages_and_the_remainder_one_by_one():
    strategy = MachineRoom(frozenset({"x"}))

    assert shares(strategy, numbered(8, "x@b"), ["a", "b", "c"]) == [[0, 1, 6], [2, 3, 7], [4, 5]]
    assert shares(strategy, numbered(2, "x@b"), ["a", "b", "c"]) == [[0], [1], []]


@pytest.mark.parametrize(
    ("broker", "counts"),
    [
        ("x@b", True), ("x@b@", True), ("y@b", False), ("x", False), ("x@", False), ("@x", False),
        ("x@b@c", False),
    ],
)  # fmt: skip
def test_machine_room_counts_only_brokers_named_after_the_room(broker, counts):
    strategy = MachineRoom(frozenset({"x"}))

    assert bool(strategy(GROUP, "a", numbered(1, broker), ["a"])) is counts


def test_nearest_room_serves_its_own_brokers_and_all_rooms_share_unserved_ones():
    queues = numbered(4, "x@b") + numbered(2, "y@b") + numbered(2, "z@b")
    clients = ["x@1", "x@2", "y@1"]

    found = {client: nearest(Average())(GROUP, client, queues, clients) for client in clients}

    assert found == {
        "x@1": [Queue("T", "x@b", 0), Queue("T", "x@b", 1), Queue("T", "z@b", 0)],
        "x@2": [Queue("T", "x@b", 2), Queue("T", "x@b", 3), Queue("T", "z@b", 1)],
        "y@1": [Queue("T", "y@b", 0), Queue("T", "y@b", 1)],
    }


@pytest.mark.parametrize("nowhere", ["broker", "client"])
def test_an_unknown_room_is_a_config_error(nowhere):
    strategy = NearestRoom(
        Average(),
        lambda _: "" if nowhere == "broker" else "x",
        lambda _: "" if nowhere == "client" else "x",
    )

    with pytest.raises(ConfigError, match="the room of .* is unknown"):
        strategy(GROUP, "a", numbered(1), ["a"])


# Consistent hash

THREE = ["10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"]


def owners(clients):
    queues = numbered(4, "a") + numbered(4, "b")
    strategy = ConsistentHash()
    found = {
        queue: client for client in clients for queue in strategy(GROUP, client, queues, clients)
    }
    return [int(found[queue].split(".")[3][0]) for queue in queues]


def test_consistent_hash_matches_the_stock_client():
    """The numbers come from the same steps done in Java, with its own digest and sorted map."""
    assert owners(THREE) == [2, 2, 2, 1, 3, 1, 2, 3]
    assert owners([THREE[0], THREE[2]]) == [1, 3, 1, 1, 3, 1, 3, 3]


@given(queues=queue_lists, clients=client_lists, data=st.data())
def test_consistent_hash_moves_only_the_queues_of_a_client_that_leaves(queues, clients, data):
    strategy = ConsistentHash()
    leaver = data.draw(st.sampled_from(clients))
    staying = [client for client in clients if client != leaver]

    for client in staying:
        before = set(strategy(GROUP, client, queues, clients))
        after = set(strategy(GROUP, client, queues, staying))
        assert before <= after
        assert after - before <= set(strategy(GROUP, leaver, queues, clients))


@pytest.mark.parametrize("number", [0, -1])
def test_consistent_hash_without_virtual_nodes_is_refused(number):
    with pytest.raises(ConfigError, match="virtual_nodes"):
        ConsistentHash(virtual_nodes=number)
