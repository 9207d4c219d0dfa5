import pytest

from tests.unit.names.names_peer import offer, registration
from txmq.errors import LimitExceeded, NoPermission, TopicNotFound
from txmq.protocol.bodies import DataVersion, QueueRoute
from txmq_broker.names import routes as module
from txmq_broker.names.routes import RouteRegistry
from txmq_broker.services.slices import whole

HERE = "the connection"
A = "10.0.0.1:10911"
B = "10.0.0.2:10911"


def known(*topics, **given):
    table = RouteRegistry()
    table.register(registration(), offer(*topics, **given), HERE, 0.0)
    return table


@pytest.fixture
def table():
    """What a name server knows after a broker-a at A has registered topic T."""
    return known("T")


def queues(table, topic):
    return {queue.broker_name: queue for queue in table.route(topic).queue_datas}


def addresses(table, topic):
    return {broker.broker_name: broker.broker_addrs for broker in table.route(topic).broker_datas}


# Names that are claimed twice

THERE = "another connection"


def claim(first, second):
    """The addresses of the name after two registrations, each over a connection of its own."""
    table = RouteRegistry()
    table.register(registration(**first), offer("T"), HERE, 0.0)
    table.register(registration(**second), offer("T"), THERE, 1.0)
    return addresses(table, "T")["broker-a"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"address": B}),
        ({"proof": "p"}, {"address": B}),
        ({"proof": "p"}, {"address": B, "proof": "q"}),
        ({}, {"address": B, "proof": "q"}),
        ({"proof": "p"}, {"address": A}),
        ({"proof": "p"}, {"number": 1, "address": B}),
        ({}, {"number": 1, "address": B, "cluster": "Other"}),
    ],
)
def test_another_broker_cannot_take_the_name_of_a_live_one(first, second):
    with pytest.raises(NoPermission, match=r"belongs to the broker at 10\.0\.0\.1:10911, which is"):
        claim(first, second)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({}, {"address": A}, {0: A}),
        ({"proof": "p"}, {"address": B, "proof": "p"}, {0: B}),
        ({}, {"number": 1, "address": B}, {0: A, 1: B}),
        ({}, {"address": A, "proof": "p"}, {0: A}),
    ],
)
def test_the_same_broker_and_its_replicas_can_register_under_its_name(first, second, found):
    assert claim(first, second) == found


def test_a_replica_of_a_stock_set_can_become_master_while_the_old_one_is_known(table):
    table.register(registration(number=1, address=B), offer("T"), THERE, 0.0)
    table.register(registration(address=B), offer("T"), THERE, 0.0)
    assert addresses(table, "T") == {"broker-a": {0: B}}


@pytest.mark.parametrize("leave", [lambda table: table.disconnect(HERE),
                                   lambda table: table.expire(121.0)])  # fmt: skip
def test_the_name_of_a_broker_that_is_gone_can_be_taken(leave):
    table = RouteRegistry()
    table.register(registration(proof="p"), offer("T"), HERE, 0.0)
    leave(table)
    table.register(registration(address=B, proof="q"), offer("T"), THERE, 130.0)
    assert addresses(table, "T") == {"broker-a": {0: B}}


def test_a_broker_with_a_proof_is_unregistered_only_with_the_same_proof():
    table = RouteRegistry()
    table.register(registration(proof="p"), offer("T"), HERE, 0.0)
    with pytest.raises(NoPermission, match="stays registered"):
        table.unregister("broker-a", A, "q")
    assert addresses(table, "T") == {"broker-a": {0: A}}
    table.unregister("broker-a", A, "p")
    assert table.topics().topic_list == []


# Routes


def test_a_route_has_the_queues_and_addresses_of_a_topic():
    table = known("T", read_queue_nums=8, write_queue_nums=4, perm=6, topic_sys_flag=1)

    assert table.route("T").queue_datas == [QueueRoute("broker-a", 8, 4, 6, 1)]
    (broker,) = table.route("T").broker_datas
    assert (broker.broker_name, broker.cluster) == ("broker-a", "DefaultCluster")
    assert broker.broker_addrs == {0: A}


def test_the_table_of_filter_servers_is_empty_not_absent():
    """Old Java clients use it without a check for null."""
    assert known("T").route("T").filter_server_table == {}


def test_an_unknown_topic_is_refused_rather_than_answered_empty():
    """Clients raise on an empty answer, but create the topic from its template on code 17."""
    with pytest.raises(TopicNotFound, match="No topic route info .*: T$"):
        RouteRegistry().route("T")


def test_a_route_has_all_brokers_of_its_topic(table):
    table.register(registration("broker-b", address=B), offer("T"), HERE, 0.0)

    assert addresses(table, "T") == {"broker-a": {0: A}, "broker-b": {0: B}}
    assert list(queues(table, "T")) == ["broker-a", "broker-b"]


def test_replicas_of_a_route_are_sorted_by_their_ids():
    table = RouteRegistry()
    table.register(registration(number=2, address="10.0.0.3:1"), offer(), HERE, 0.0)
    table.register(registration(number=1, address=B), offer(), HERE, 0.0)
    table.register(registration(), offer("T"), HERE, 0.0)

    assert list(addresses(table, "T")["broker-a"]) == [0, 1, 2]


def test_a_returned_route_does_not_change_afterwards(table):
    route = table.route("T")

    whole(table.forbid_writing("broker-a"))

    assert route.queue_datas[0].perm == 6


# Registering


@pytest.mark.parametrize(
    ("counter", "perm", "topics"), [(1, 4, ["T"]), (2, 6, ["T", "U"])], ids=["known", "new"]
)
def test_only_topics_of_a_new_version_are_applied(table, counter, perm, topics):
    """A broker registers every 30 s; changes of an operator in between must stay."""
    whole(table.forbid_writing("broker-a"))

    table.register(registration(), offer("T", "U", counter=counter), HERE, 30.0)

    assert queues(table, "T")["broker-a"].perm == perm
    assert table.topics().topic_list == topics


def test_registered_topics_are_merged_and_not_replaced():
    """A registration may bring one changed topic only."""
    table = known("T", "U")

    table.register(registration(), offer("U", counter=2, perm=2), HERE, 1.0)

    assert queues(table, "T")["broker-a"].perm == 6
    assert queues(table, "U")["broker-a"].perm == 2


def test_a_topic_is_registered_under_its_own_name_and_not_its_key():
    table = RouteRegistry()
    given = offer("T")
    given.topic_config_table["key"] = given.topic_config_table.pop("T")

    table.register(registration(), given, HERE, 0.0)

    assert table.topics().topic_list == ["T"]


def test_the_topics_of_a_replica_are_not_applied():
    """They are those of its master, and the replica may be behind."""
    table = RouteRegistry()

    table.register(registration(number=1), offer("T"), HERE, 0.0)

    with pytest.raises(TopicNotFound):
        table.route("T")


def test_a_replica_is_told_where_its_master_is(table):
    answer = table.register(registration(number=1, address=B), offer(), HERE, 0.0)

    assert (answer.master_addr, answer.ha_server_addr) == (A, "10.0.0.1:10912")


def test_no_master_is_reported_to_a_master_or_a_replica_without_one():
    table = RouteRegistry()

    for number in (1, 0):
        answer = table.register(
            registration(number=number, address=f"h:{number}"), offer(), HERE, 0
        )
        assert (answer.master_addr, answer.ha_server_addr) == (None, None)


def test_a_replica_that_becomes_master_gives_up_its_old_id(table):
    """One address has one id, or clients would read from a replica that does not exist."""
    table.register(registration(number=1, address=B), offer("T", counter=5), HERE, 0.0)

    table.register(registration(number=0, address=B), offer("T", "U", counter=5), HERE, 1.0)

    assert addresses(table, "T") == {"broker-a": {0: B}}
    assert table.route("U")


def test_a_master_at_a_new_address_replaces_the_old_one(table):
    table.register(registration(address=B), offer("U"), HERE, 1.0)

    assert addresses(table, "T") == {"broker-a": {0: B}}
    assert table.route("U"), (
        "topics of the same version count, for nothing was known of this address"
    )


def test_a_broker_that_moves_to_another_cluster_is_found_there(table):
    table.register(registration(cluster="Other"), offer("T"), HERE, 1.0)

    assert table.clusters().cluster_addr_table == {"Other": ["broker-a"]}
    assert addresses(table, "T")


def test_a_registration_with_one_topic_too_many_is_refused_whole():
    table = RouteRegistry(topics_max=2)
    table.register(registration(), offer("T", "U"), HERE, 0.0)
    table.register(registration(), offer("T", "U", counter=2), HERE, 1.0)

    with pytest.raises(LimitExceeded) as caught:
        table.register(registration("broker-b", address=B), offer("U", "V"), HERE, 2.0)

    assert (caught.value.value, caught.value.offered) == (2, 3)
    assert table.topics().topic_list == ["T", "U"]
    assert list(table.clusters().broker_addr_table) == ["broker-a"]


def test_one_broker_too_many_is_refused(monkeypatch):
    monkeypatch.setattr(module, "ROUTE_BROKERS_MAX", 1)
    table = known("T")
    table.register(registration(), offer("T", counter=2), HERE, 1.0)

    with pytest.raises(LimitExceeded):
        table.register(registration("broker-b", address=B), offer(), HERE, 2.0)


# Leaving


def test_a_broker_silent_for_two_minutes_is_forgotten(table):
    assert table.expire(120.0) == []
    assert [broker.address for broker in table.expire(120.1)] == [A]
    with pytest.raises(TopicNotFound):
        table.route("T")
    assert table.clusters().cluster_addr_table == {}


@pytest.mark.parametrize(
    "renew",
    [
        lambda table: table.register(registration(), offer("T"), HERE, 100.0),
        lambda table: table.refresh("broker-a", A, 100.0),
    ],
    ids=["registering again", "a heartbeat"],
)
def test_registering_again_or_a_heartbeat_restarts_the_two_minutes(table, renew):
    renew(table)

    assert table.expire(220.0) == []
    assert len(table.expire(220.1)) == 1


def test_a_heartbeat_does_not_register_a_broker(table):
    table.refresh("broker-b", A, 1.0)
    table.refresh("broker-a", B, 1.0)

    assert list(table.clusters().broker_addr_table) == ["broker-a"]


@pytest.mark.parametrize(("millis", "seconds"), [(10_000, 10.0), (0, 120.0), (None, 120.0)])
def test_a_broker_can_set_its_own_timeout(millis, seconds):
    table = RouteRegistry()
    table.register(registration(heartbeat_timeout_millis=millis), offer("T"), HERE, 0.0)

    assert table.expire(seconds) == []
    assert len(table.expire(seconds + 0.1)) == 1


def test_a_closed_connection_unregisters_its_brokers(table):
    table.register(registration("broker-b", address=B), offer("T"), "another", 0.0)

    assert [broker.address for broker in table.disconnect(HERE)] == [A]
    assert addresses(table, "T") == {"broker-b": {0: B}}
    assert list(queues(table, "T")) == ["broker-b"]


def test_closing_the_old_connection_of_a_broker_does_not_unregister_it(table):
    """It came back over a new connection before the old one was noticed to be dead."""
    table.register(registration(), offer("T"), "another", 1.0)

    assert table.disconnect(HERE) == []
    assert addresses(table, "T") == {"broker-a": {0: A}}


def test_topics_stay_while_a_replica_lives(table):
    """Consumers go on reading from it."""
    table.register(registration(number=1, address=B), offer(), "another", 0.0)

    table.disconnect(HERE)
    assert addresses(table, "T") == {"broker-a": {1: B}}

    table.disconnect("another")
    assert table.topics().topic_list == []


def test_a_broker_can_unregister(table):
    assert [broker.address for broker in table.unregister("broker-a", A)] == [A]
    assert table.topics().topic_list == []


def test_a_late_unregistration_does_not_remove_the_successor(table):
    """Another broker has the id by then; only the address tells which one leaves."""
    table.register(registration(address=B), offer("T"), HERE, 1.0)

    assert table.unregister("broker-a", A) == []
    assert addresses(table, "T") == {"broker-a": {0: B}}


def test_a_broker_that_registers_again_restores_its_topics(table):
    """It is no longer known, so there is no version to compare with."""
    table.unregister("broker-a", A)

    table.register(registration(), offer("T"), HERE, 1.0)

    assert table.route("T")


# What version of its topics a broker registered


def test_the_data_version_of_a_broker_is_found_by_its_address(table):
    assert table.version("broker-a", A) == DataVersion(timestamp=1, counter=1)
    assert table.version("broker-a", B) is None
    assert table.version("broker-b", A) is None


# Topics that are added without their broker


def test_a_topic_can_be_added_for_known_brokers(table):
    table.add_topic("S", [QueueRoute("broker-a", 1, 1, 6)])
    table.add_topic("S", [QueueRoute("broker-a", 2, 2, 6)])

    assert queues(table, "S")["broker-a"].read_queue_nums == 2


def test_adding_a_topic_stops_at_the_first_unknown_broker(table):
    table.add_topic("S", [QueueRoute("broker-x", 1, 1, 6), QueueRoute("broker-a", 1, 1, 6)])

    assert table.topics().topic_list == ["T"]


def test_an_added_topic_counts_towards_the_limit():
    table = RouteRegistry(topics_max=1)
    table.register(registration(), offer("T"), HERE, 0.0)

    with pytest.raises(LimitExceeded):
        table.add_topic("S", [QueueRoute("broker-a", 1, 1, 6)])


# Operators


def two_clusters():
    table = known("T", "U")
    table.register(registration("broker-b", address=B, cluster="Other"), offer("U", "V"), HERE, 0.0)
    return table


def test_clusters_and_brokers_are_listed():
    view = two_clusters().clusters()

    assert view.cluster_addr_table == {"DefaultCluster": ["broker-a"], "Other": ["broker-b"]}
    assert view.broker_addr_table["broker-b"].broker_addrs == {0: B}


def test_topics_are_listed_in_total_and_by_cluster():
    table = two_clusters()

    assert table.topics().topic_list == ["T", "U", "V"]
    assert table.topics_of_cluster("Other").topic_list == ["U", "V"]
    assert table.topics_of_cluster("none").topic_list == []


def test_system_topics_are_named_after_clusters_and_brokers():
    found = two_clusters().system_topics()

    assert found.topic_list == ["DefaultCluster", "broker-a", "Other", "broker-b"]
    assert found.broker_addr == A


def test_system_topics_have_no_address_without_a_master():
    table = RouteRegistry()
    assert table.system_topics().topic_list == []
    table.register(registration(number=1), offer(), HERE, 0.0)

    assert table.system_topics().broker_addr is None


def test_topics_are_listed_by_the_flag_of_their_first_broker():
    table = known("T", topic_sys_flag=1)
    table.register(registration(), offer("U", counter=2, topic_sys_flag=2), HERE, 0.0)
    table.register(registration("broker-b", address=B), offer("U", topic_sys_flag=1), HERE, 0.0)

    assert table.topics_by_flag(lambda flag: bool(flag & 1)).topic_list == ["T"]


def test_members_are_the_replicas_of_a_name(table):
    table.register(registration(number=1, address=B), offer(), HERE, 0.0)

    assert table.members("DefaultCluster", "broker-a").broker_addrs == {0: A, 1: B}
    assert table.members("C", "unknown").broker_addrs == {}


def test_removing_write_permission_affects_all_topics_of_one_broker():
    table = two_clusters()

    assert whole(table.forbid_writing("broker-a")) == 2
    assert whole(table.forbid_writing("none")) == 0

    assert queues(table, "T")["broker-a"].perm == 4
    assert queues(table, "U")["broker-a"].perm == 4
    assert queues(table, "U")["broker-b"].perm == 6


@pytest.mark.parametrize(
    ("change", "perm"),
    [(RouteRegistry.forbid_writing, 5), (RouteRegistry.allow_writing, 6)],
    ids=["removed", "restored as in RocketMQ, whatever it was"],
)
def test_removing_write_permission_keeps_the_others_and_restoring_it_sets_read_and_write(
    change, perm
):
    """TBW102 must stay inheritable without it, or no topic could be created from it."""
    table = known("TBW102", perm=7)

    assert whole(change(table, "broker-a")) == 1
    assert queues(table, "TBW102")["broker-a"].perm == perm


def test_a_topic_is_deleted_everywhere():
    table = two_clusters()

    table.delete_topic("U")
    table.delete_topic("unknown")

    assert table.topics().topic_list == ["T", "V"]


def test_a_topic_is_deleted_at_one_cluster():
    table = two_clusters()

    table.delete_topic("U", "Other")
    assert list(queues(table, "U")) == ["broker-a"]

    table.delete_topic("U", "none")
    table.delete_topic("unknown", "Other")
    table.delete_topic("U", "DefaultCluster")
    assert table.topics().topic_list == ["T", "V"]


def test_a_deleted_topic_stays_deleted_until_its_broker_has_a_new_version(table):
    table.delete_topic("T")

    table.register(registration(), offer("T"), HERE, 1.0)
    assert table.topics().topic_list == []

    table.register(registration(), offer("T", counter=2), HERE, 2.0)
    assert table.topics().topic_list == ["T"]
