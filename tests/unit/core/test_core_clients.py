"""Connections are only keys to these tables; here they are letters."""

import pytest

from txmq.protocol.bodies import (
    ConsumerRegistration,
    Heartbeat,
    ProducerRegistration,
    SubscriptionData,
)
from txmq_broker.core.clients import SILENCE_S, Clients


@pytest.fixture
def clients():
    return Clients()


def consumer(group="g", *topics, **given):
    return ConsumerRegistration(
        group, subscription_data_set=[SubscriptionData(topic) for topic in topics], **given
    )


def beat(clients, connection, *consumers, producers=(), client_id=None, now=0.0):
    registrations = [ProducerRegistration(group) for group in producers]
    heartbeat = Heartbeat(client_id or f"id-{connection}", registrations, list(consumers))
    return clients.beat(connection, heartbeat, "JAVA", 409, now)


def test_the_first_heartbeat_adds_a_member_and_reports_a_change(clients):
    assert beat(clients, "a", consumer("g", "T")) == ["g"]

    group = clients.consumer_group("g")
    assert group.client_ids() == ["id-a"]
    assert group.members["a"].version == 409
    assert clients.consumer_groups() == [group]


def test_a_repeated_heartbeat_reports_no_change(clients):
    beat(clients, "a", consumer("g", "T"))

    assert beat(clients, "a", consumer("g", "T")) == []


@pytest.mark.parametrize("topics", [("T", "U"), ("U",), ()])
def test_a_heartbeat_with_other_topics_reports_a_change(clients, topics):
    beat(clients, "a", consumer("g", "T"))

    assert beat(clients, "a", consumer("g", *topics)) == ["g"]
    assert set(clients.consumer_group("g").subscriptions) == set(topics)


def test_a_newer_expression_replaces_the_older_and_reports_no_change(clients):
    newer = ConsumerRegistration(
        "g", subscription_data_set=[SubscriptionData("T", "A", sub_version=2)]
    )
    beat(clients, "a", consumer("g", "T"))

    assert beat(clients, "a", newer) == []
    assert clients.subscription("g", "T").sub_string == "A"
    beat(clients, "b", consumer("g", "T"))  # Its expression is the older one.
    assert clients.subscription("g", "T").sub_string == "A"


def test_the_last_heartbeat_sets_the_consume_settings_of_the_group(clients):
    last = {
        "consume_type": "CONSUME_ACTIVELY",
        "message_model": "BROADCASTING",
        "consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
    }
    beat(clients, "a", consumer("g"))
    beat(clients, "b", consumer("g", **last))

    group = clients.consumer_group("g")
    assert {name: getattr(group, name) for name in last} == last


def test_a_client_with_two_connections_is_one_client(clients):
    beat(clients, "a", consumer("g"), client_id="one")
    beat(clients, "b", consumer("g"), client_id="one")

    assert clients.consumer_group("g").client_ids() == ["one"]


def test_one_heartbeat_can_register_several_groups(clients):
    changed = beat(clients, "a", consumer("g"), consumer("h"), producers=("p", "q"))

    assert changed == ["g", "h"]
    assert set(clients.producer_groups) == {"p", "q"}


def test_a_group_without_members_is_unknown(clients):
    assert clients.consumer_group("g") is None
    assert clients.producers("p") == []
    assert clients.consumer("g", "id-a") is None
    assert clients.subscription("g", "T") is None
    assert not clients.lacks_subscription("g", "T")


def test_a_member_is_found_by_its_id_and_without_an_id_any_is_found(clients):
    beat(clients, "a", consumer("g"))
    beat(clients, "b", consumer("g"))

    assert clients.consumer("g", "id-b").connection == "b"
    assert clients.consumer("g", None).connection == "a"
    assert clients.consumer("g", "id-c") is None


@pytest.mark.parametrize(("topics", "ignored"), [(("T",), False), (("U",), True), ((), False)])
def test_a_group_with_subscriptions_ignores_all_other_topics(clients, topics, ignored):
    beat(clients, "a", consumer("g", *topics))

    assert clients.lacks_subscription("g", "T") is ignored


def test_a_producer_is_found_by_its_id(clients):
    beat(clients, "a", producers=("p",))
    beat(clients, "b", producers=("p", "q"))

    assert clients.find_client("id-b") == "b"
    assert clients.find_client("id-c") is None


# Leaving


def test_unregistering_removes_a_client_only_from_the_named_groups(clients):
    beat(clients, "a", consumer("g"), consumer("h"), producers=("p", "q"))

    assert clients.leave("a", "p", "g")
    assert clients.producers("p") == []
    assert clients.consumer_group("g") is None
    assert clients.producers("q")
    assert clients.consumer_group("h")


def test_a_group_outlives_one_of_its_members(clients):
    for client in "ab":
        beat(clients, client, consumer("g"), producers=("p",))

    assert clients.leave("a", "p", "g")
    assert clients.consumer_group("g").client_ids() == ["id-b"]
    assert [client.connection for client in clients.producers("p")] == ["b"]


@pytest.mark.parametrize(("producers", "consumers"), [(None, None), ("x", "x"), ("p", None)])
def test_unregistering_from_a_group_one_is_not_in_changes_nothing(clients, producers, consumers):
    beat(clients, "a", consumer("g"), producers=("p",))

    assert not clients.leave("b", producers, consumers)
    assert clients.consumer_group("g")
    assert clients.producers("p")


def test_a_lost_connection_leaves_all_its_groups(clients):
    beat(clients, "a", consumer("g"), consumer("h"), producers=("p",))
    beat(clients, "b", consumer("h"))

    assert clients.drop("a") == ["g", "h"]
    assert clients.drop("a") == []
    assert clients.producer_groups == {}
    assert [group.name for group in clients.consumer_groups()] == ["h"]


def test_a_client_without_heartbeats_for_two_minutes_is_silent(clients):
    beat(clients, "a", consumer("g"), producers=("p",), now=0.0)
    beat(clients, "b", consumer("g"), now=1.0)
    beat(clients, "c", producers=("p",), now=1.0)

    assert clients.silent_connections(SILENCE_S) == []
    assert clients.silent_connections(SILENCE_S + 0.5) == ["a"]
    assert clients.silent_connections(SILENCE_S + 2.0) == ["a", "b", "c"]
