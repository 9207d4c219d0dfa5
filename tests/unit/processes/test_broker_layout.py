"""The names, ports and directories of several brokers, and what they cannot share."""

from pathlib import Path

import pytest

from txmq.errors import ConfigError
from txmq_broker.config import BrokerSettings, ReplicationSettings
from txmq_broker.processes.layout import BROKERS_MAX, settings_of_brokers


def test_names_ports_and_directories_are_numbered_from_the_first():
    shared = BrokerSettings(
        name="orders-a", data="/d", listen="[::1]:20000", advertise="192.0.2.1:30000"
    )

    brokers = settings_of_brokers(shared, 3)

    assert [(broker.name, broker.data, broker.listen, broker.advertise) for broker in brokers] == [
        ("orders-a", "/d/orders-a", "[::1]:20000", "192.0.2.1:30000"),
        ("orders-b", "/d/orders-b", "[::1]:20010", "192.0.2.1:30010"),
        ("orders-c", "/d/orders-c", "[::1]:20020", "192.0.2.1:30020"),
    ]


def test_with_port_0_the_system_chooses_the_ports_of_all_brokers():
    brokers = settings_of_brokers(BrokerSettings(listen="127.0.0.1:0"), BROKERS_MAX)

    assert {broker.listen for broker in brokers} == {"127.0.0.1:0"}
    assert brokers[-1].name == "broker-z"


@pytest.mark.parametrize(
    ("settings", "count", "text"),
    [
        (BrokerSettings(), 0, "from 1 to 26, not 0"),
        (BrokerSettings(), BROKERS_MAX + 1, "from 1 to 26, not 27"),
        (BrokerSettings(name="orders"), 2, "ends in -a, as broker-a"),
        (BrokerSettings(name="-a"), 2, "ends in -a"),
        (BrokerSettings(listen="127.0.0.1:65530"), 2, "choose a lower port"),
        (
            BrokerSettings(
                names="h:1", replication=ReplicationSettings(role="follower", member="1")
            ),
            2,
            "without a coordinator",
        ),
        (BrokerSettings(replication=ReplicationSettings(address="h:1")), 2, "replication.address"),
    ],
)
def test_settings_that_several_brokers_cannot_share_are_refused(settings, count, text):
    with pytest.raises(ConfigError, match=text):
        settings_of_brokers(settings, count)


def test_the_directory_of_a_broker_is_absolute():
    (only,) = settings_of_brokers(BrokerSettings(data="here"), 1)

    assert only.data == str(Path("here").absolute() / "broker-a")
