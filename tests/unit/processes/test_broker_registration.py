"""A broker registers over the line to its supervisor, in parts that fit it."""

from types import SimpleNamespace

import msgspec
import pytest

from txmq.errors import TopicNotFound
from txmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigs
from txmq.runtime.clock import SystemClock
from txmq.runtime.parent_link import LINE_BYTES_MAX
from txmq_broker.config import BrokerSettings
from txmq_broker.processes.child import TOPICS_AT_ONCE, registration_notices
from txmq_broker.processes.plan import DECODE_NOTICE
from txmq_broker.processes.service import OwnNames

MESSAGE_QUEUES = 4


def broker(name, port):
    return SimpleNamespace(
        name=name, address=f"127.0.0.1:{port}", cluster="C", broker_id=0, proof=name
    )


def topics(names, counter=1):
    table = {name: TopicConfig(name, MESSAGE_QUEUES, MESSAGE_QUEUES) for name in names}
    saved = TopicConfigs(DataVersion(counter=counter, timestamp=1), table)
    return SimpleNamespace(saved=lambda: saved)


def sent(identity, saved_topics):
    """The notices as the supervisor reads them; none is longer than a line."""
    lines = [msgspec.json.encode(notice) for notice in registration_notices(identity, saved_topics)]
    assert max(map(len, lines)) < LINE_BYTES_MAX - 1000
    return [DECODE_NOTICE.decode(line) for line in lines]


def brokers_of(names, topic):
    return sorted(queues.broker_name for queues in names._server.routes.route(topic).queue_datas)


def test_a_large_registration_takes_effect_with_its_last_part():
    names = OwnNames(BrokerSettings(data="unused"), SystemClock())
    topic_names = [f"{number:0>127}" for number in range(2 * TOPICS_AT_ONCE + 1)]

    *first, last = sent(broker("broker-a", 1), topics(topic_names))
    for notice in first:
        names.register(1, notice)
    with pytest.raises(TopicNotFound):
        brokers_of(names, topic_names[0])
    names.register(1, last)
    names.register(2, *sent(broker("broker-b", 2), topics(["T", topic_names[0]])))

    assert len(first) == 2
    assert brokers_of(names, topic_names[0]) == ["broker-a", "broker-b"]
    assert brokers_of(names, topic_names[-1]) == ["broker-a"]


def test_a_dead_broker_loses_its_routes_and_its_unfinished_registration():
    names = OwnNames(BrokerSettings(data="unused"), SystemClock())
    names.register(1, *sent(broker("broker-a", 1), topics(["T"])))
    names.register(2, *sent(broker("broker-b", 2), topics(["T"])))
    large = topics([f"Lost{number}" for number in range(TOPICS_AT_ONCE + 1)], counter=2)
    names.register(1, sent(broker("broker-a", 1), large)[0])

    names.unregister(1)
    assert brokers_of(names, "T") == ["broker-b"]

    names.register(1, *sent(broker("broker-a", 1), topics(["T"], counter=3)))
    assert brokers_of(names, "T") == ["broker-a", "broker-b"]
    with pytest.raises(TopicNotFound):
        brokers_of(names, "Lost0")


def test_a_broker_without_topics_registers():
    names = OwnNames(BrokerSettings(data="unused"), SystemClock())

    names.register(1, *sent(broker("broker-a", 1), topics([])))

    assert list(names._server.routes.clusters().broker_addr_table) == ["broker-a"]
