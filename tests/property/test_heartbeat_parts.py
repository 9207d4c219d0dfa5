"""A heartbeat recorded in parts has the same effect as one recorded at once."""

from hypothesis import given
from hypothesis import strategies as st

from txmq.protocol.bodies import (
    ConsumerRegistration,
    Heartbeat,
    ProducerRegistration,
    SubscriptionData,
)
from txmq_broker.core.clients import Clients

NAMES = st.sampled_from([f"g{number}" for number in range(8)])
SUBSCRIPTIONS = st.builds(
    SubscriptionData, st.sampled_from(["T", "U", "V"]), sub_version=st.integers(0, 3)
)
CONSUMERS = st.builds(
    ConsumerRegistration,
    NAMES,
    subscription_data_set=st.lists(SUBSCRIPTIONS, max_size=3, unique_by=lambda one: one.topic),
)
BEATS = st.builds(
    Heartbeat,
    st.just("c"),
    st.lists(st.builds(ProducerRegistration, NAMES), max_size=8),
    st.lists(CONSUMERS, max_size=8),
)


def state(clients):
    groups = {
        group.name: (list(group.members), group.subscriptions)
        for group in clients.consumer_groups()
    }
    producers = {name: list(members) for name, members in clients.producer_groups.items()}
    return groups, producers, clients.members, clients.subscriptions


@given(st.lists(st.tuples(st.sampled_from(["one", "two"]), BEATS), max_size=4), st.integers(1, 5))
def test_a_heartbeat_in_parts_has_the_effect_of_the_whole(beats, size):
    at_once, in_parts = Clients(), Clients()
    for connection, beat in beats:
        changed = at_once.beat(connection, beat, "JAVA", 409, 0.0)
        changed_in_parts = [
            name
            for part in beat.parts(size)
            for name in in_parts.beat(connection, part, "JAVA", 409, 0.0)
        ]
        assert changed_in_parts == changed
        assert state(in_parts) == state(at_once)

    for connection in ("one", "two"):
        in_parts.drop(connection)
    assert state(in_parts) == ({}, {}, 0, 0)
