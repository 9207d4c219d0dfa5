"""RocketMQ's setting names and its broker.conf: how each line is read before a broker starts."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import ConfigError
from txmq.settings.loading import Alias, Derived, OneValue, Unused, kinds_of, load
from txmq_broker.config import BrokerSettings
from txmq_broker.core.rocketmq_settings import NAMES

STOCK = """\
# Licensed to the Apache Software Foundation (ASF) under one or more
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""
"""The file that comes with RocketMQ."""

SEEDS = """\
messageDelayLevel = 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h 1d
transactionTimeout=20
transactionCheckMax=5
transactionCheckInterval=10
enablePropertyFilter=true
"""

COMMON = """\
#所属集群名字
brokerClusterName=rocketmq-cluster
brokerName=broker-b
brokerId=0
namesrvAddr=rocketmq-nameserver1:9876;rocketmq-nameserver2:9876
defaultTopicQueueNums=4
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
listenPort=10921
deleteWhen=04
fileReservedTime=120
mapedFileSizeCommitLog=1073741824
mapedFileSizeConsumeQueue=300000
#destroyMapedFileIntervalForcibly=120000
diskMaxUsedSpaceRatio=88
storePathRootDir=/usr/local/rocketmq/store
storePathCommitLog=/usr/local/rocketmq/store/commitlog
storePathConsumeQueue=/usr/local/rocketmq/store/consumequeue
storePathIndex=/usr/local/rocketmq/store/index
storeCheckpoint=/usr/local/rocketmq/store/checkpoint
abortFile=/usr/local/rocketmq/store/abort
maxMessageSize=65536
#flushCommitLogLeastPages=4
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
checkTransactionMessageEnable=false
#sendMessageThreadPoolNums=128
haListenPort=10912
"""
"""As many a tutorial has it; some of its names have never had a meaning to RocketMQ either."""


class Conf:
    """A broker.conf and the notes about it."""

    def __init__(self, path):
        self.path = path
        self.notes = []

    def load(self, text, *arguments, **more):
        self.path.write_text(text)
        return self.load_file(self.path, *arguments, **more)

    def load_file(self, path, *arguments, **more):
        return load(
            BrokerSettings,
            file=path,
            arguments=arguments,
            aliases=NAMES,
            notice=self.notes.append,
            **more,
        )

    def complaint(self, text, *arguments):
        with pytest.raises(ConfigError) as caught:
            self.load(text, *arguments)
        return str(caught.value)


@pytest.fixture
def conf(tmp_path):
    return Conf(tmp_path / "broker.conf")


# Whole files


def test_the_stock_broker_conf_loads_without_notes(conf):
    found = conf.load(STOCK)

    assert (found.name, found.cluster) == ("broker-a", "DefaultCluster")
    assert (found.store.flush, found.retention.keep) == ("async", 48 * 3600)
    assert conf.notes == []


def test_tutorial_settings_load_and_the_check_interval_counts_as_seconds(conf):
    found = conf.load(SEEDS)

    assert found.delay.levels_ms()[18] == 86_400_000
    assert found.transaction.timeout == 20
    assert found.transaction.check_max == 5
    assert found.transaction.check_interval == 10
    assert found.filter.sql
    (note,) = conf.notes
    assert note == (
        "transactionCheckInterval=10 counts as 10 seconds, as tutorials write it; "
        "RocketMQ itself counts milliseconds. Write 10s or 10ms"
    )


def test_a_common_broker_conf_loads_and_one_note_lists_the_unused_settings(conf):
    found = conf.load(COMMON)

    assert found.listen == "127.0.0.1:10921"
    assert found.names == "rocketmq-nameserver1:9876;rocketmq-nameserver2:9876"
    assert found.data == "/usr/local/rocketmq/store"
    assert found.topics.message_size_max == 65536
    assert found.topics.queues == 4
    assert found.store.segment_size == 1 << 30
    assert found.retention.keep == 120 * 3600
    assert found.retention.delete_above == 0.85
    disk, unused = conf.notes
    assert disk == (
        "diskMaxUsedSpaceRatio=88 counts as 85%: above diskSpaceCleanForciblyRatio files are "
        "deleted in any case"
    )
    assert unused == (
        f"{conf.path}: 8 settings have no meaning here: mapedFileSizeConsumeQueue, "
        "storePathCommitLog, storePathConsumeQueue, storePathIndex, storeCheckpoint, abortFile, "
        "checkTransactionMessageEnable, haListenPort; `txmq config reference` says why"
    )


def test_the_note_of_unused_settings_lists_20_and_counts_the_rest(conf):
    names = [name for name, meaning in NAMES.items() if isinstance(meaning, Unused)]
    conf.load("".join(f"{name}=1\n" for name in names))

    (note,) = conf.notes
    assert f"{len(names)} settings have no meaning here: " in note
    assert f" and {len(names) - 20} more; " in note


def test_an_unused_setting_in_an_argument_is_noted_too(conf):
    conf.load("", "sendMessageThreadPoolNums=8")

    assert conf.notes == [
        "1 setting has no meaning here: sendMessageThreadPoolNums; `txmq config reference` says why"
    ]


# Names


def test_every_rocketmq_name_maps_to_a_setting_or_gives_a_reason():
    keys = kinds_of(BrokerSettings)

    for meaning in NAMES.values():
        match meaning:
            case Alias():
                assert meaning.key in keys
            case Derived():
                assert set(meaning.keys) <= keys.keys()
                assert meaning.text
            case OneValue() | Unused():
                assert meaning.why


def test_no_txmq_setting_shares_its_name_with_a_rocketmq_setting():
    assert not NAMES.keys() & kinds_of(BrokerSettings).keys()


@pytest.mark.parametrize(
    ("name", "meaning"), [(n, m) for n, m in NAMES.items() if isinstance(m, OneValue)]
)
def test_a_setting_with_one_allowed_value_refuses_all_others(conf, name, meaning):
    assert conf.load(f"{name}={meaning.value}\n") == BrokerSettings()
    assert conf.complaint(f"\n{name}=other\n") == (
        f"{name} cannot be 'other' (in {conf.path}, line 2); "
        f"it takes {meaning.value or 'no value'}: {meaning.why}"
    )


def test_a_producer_setting_in_a_broker_conf_is_refused_with_its_producer_name(conf):
    said = conf.complaint("retryAnotherBrokerWhenNotStoreOK=true\n")

    assert "ProducerSettings(retry_not_safe=True)" in said
    assert "setRetryAnotherBrokerWhenNotStoreOK(true)" in said


def test_slave_timeout_sets_replication_wait_max(conf):
    assert conf.load("slaveTimeout=1500\n").replication.wait_max == 1.5


@pytest.mark.parametrize("line", ["aclEnable=true", "brokerRole=MASTER", "brokerId=-1"])
def test_unsupported_values_are_refused_in_arguments_too(conf, line):
    assert f"(in argument {line}); it takes" in conf.complaint("", line)


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("brokername=b", "brokerName"),
        ("brokerNmae=b", "brokerName"),
        ("fileReserveTime=48", "fileReservedTime"),
        ("sendThreadPoolNums=4", "sendMessageThreadPoolNums"),
        ("store.flsh=sync", "store.flush"),
        ("segment_size=1GiB", "store.segment_size"),
    ],
)
def test_an_unknown_setting_is_an_error_that_suggests_the_nearest_name(conf, line, near):
    name = line.partition("=")[0]

    assert conf.complaint(f"# a comment\n{line}\n") == (
        f"unknown setting {name}; did you mean {near}? (in {conf.path}, line 2)"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("listenPort=99999", "it takes a whole number as a port from 0 to 65535"),
        ("listenPort=http", "it takes a whole number as a port"),
        ("brokerIP1=localhost", "it takes a numeric address such as 192.0.2.1"),
        ("bindAddress=*", "it takes a numeric address"),
        ("flushDiskType=SYNC", "it takes SYNC_FLUSH or ASYNC_FLUSH"),
        ("fileReservedTime=0", "it takes a whole number of hours, 1 or more"),
        ("fileReservedTime=2d", "it takes a whole number of hours"),
        ("deleteWhen=25", "it takes hours from 0 to 23, separated by ';'"),
        ("diskMaxUsedSpaceRatio=0.8", "it takes a whole number as a percentage from 1 to 100"),
        ("autoCreateTopicEnable=yes", "it takes true or false"),
        ("flushIntervalCommitLog=1s", "it takes a whole number of milliseconds, 1 or more"),
        ("maxMessageSize=4M", "it takes a size from 1 to 16256KiB"),
        ("maxMessageSize=0", "it takes a size from 1 to 16256KiB"),
        ("defaultTopicQueueNums=many", "it takes a whole number from 1 to 1024"),
        ("defaultTopicQueueNums=5000", "it takes a whole number from 1 to 1024"),
        ("transactionCheckMax=0", "it takes a whole number from 1 to 60000"),
        ("mappedFileSizeCommitLog=1024", "it takes a size of at least 16MiB"),
        ("transactionCheckInterval=often", "it takes a duration above 0 such as 20s"),
    ],
)
def test_an_invalid_value_is_refused_with_its_line_number(conf, line, says):
    name, _, value = line.partition("=")
    complaint = conf.complaint(f"\n\n{line}\n")

    assert complaint.startswith(f"{name} cannot be '{value}' (in {conf.path}, line 3); {says}")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("messageDelayLevel=1s x", "delay.levels cannot hold 'x'"),
        ("brokerName=a b", "name cannot be 'a b'"),
        ("diskSpaceCleanForciblyRatio=95", "retention marks must rise"),
    ],
)
def test_an_out_of_range_value_is_refused_with_its_line_number(conf, line, says):
    complaint = conf.complaint(f"{line}\n")

    assert complaint.startswith(says)
    assert complaint.endswith(f" ({line} in {conf.path}, line 1)")


def test_an_error_does_not_name_settings_that_are_valid(conf):
    assert "brokerName" not in conf.complaint("brokerName=b\ndefaultTopicQueueNums=5000\n")


# Addresses


@pytest.mark.parametrize(
    ("lines", "listen", "advertise"),
    [
        ("listenPort=10921", "127.0.0.1:10921", ""),
        ("brokerIP1=127.0.0.1", "127.0.0.1:10911", ""),
        ("brokerIP1=127.0.0.2\nlistenPort=1", "127.0.0.2:1", ""),
        ("brokerIP1=192.0.2.1", "0.0.0.0:10911", "192.0.2.1:10911"),
        ("brokerIP1=192.0.2.1\nlistenPort=10921", "0.0.0.0:10921", "192.0.2.1:10921"),
        ("listenPort=10921\nbrokerIP1=192.0.2.1", "0.0.0.0:10921", "192.0.2.1:10921"),
        ("bindAddress=10.0.0.5\nbrokerIP1=192.0.2.1", "10.0.0.5:10911", "192.0.2.1:10911"),
        ("bindAddress=127.0.0.1\nbrokerIP1=192.0.2.1", "127.0.0.1:10911", "192.0.2.1:10911"),
        ("bindAddress=10.0.0.5", "10.0.0.5:10911", ""),
        ("brokerIP1=2001:db8::1", "[::]:10911", "[2001:db8::1]:10911"),
    ],
)
def test_address_settings_combine_into_listen_and_advertise(conf, lines, listen, advertise):
    found = conf.load(lines)

    assert (found.listen, found.advertise) == (listen, advertise)


def test_listening_on_every_address_needs_an_advertised_address(conf):
    assert "listen '0.0.0.0:10911' is every address" in conf.complaint("bindAddress=0.0.0.0\n")


def test_a_listen_port_argument_keeps_the_bind_address_of_the_file(conf):
    found = conf.load("bindAddress=127.0.0.9\n", "listenPort=7")

    assert found.listen == "127.0.0.9:7"


# Which source counts


def test_arguments_override_variables_and_variables_override_the_file(conf):
    environ = {"TXMQ_NAME": "variable"}

    assert conf.load("brokerName=file\n").name == "file"
    assert conf.load("brokerName=file\n", environ=environ).name == "variable"
    assert conf.load("brokerName=file\n", "brokerName=told", environ=environ).name == "told"
    assert conf.load("brokerName=file\n", "name=told", environ=environ).name == "told"


def test_the_last_line_of_a_repeated_setting_wins(conf):
    assert conf.load("brokerName=a\nbrokerName=b\n").name == "b"


def test_two_names_of_one_setting_must_have_equal_values(conf):
    size = 1 << 25
    same = f"mapedFileSizeCommitLog={size}\nmappedFileSizeCommitLog={size}\n"

    assert conf.load(same).store.segment_size == size
    assert "store.segment_size is set twice" in conf.complaint(same + "store.segment_size=1GiB")
    assert "listen is set twice" in conf.complaint("listen=127.0.0.1:1\nlistenPort=2\n")


# Formats


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broker.conf", "brokerName=b\nfileReservedTime=1"),
        ("broker.PROPERTIES", "brokerName: b\nfileReservedTime 1"),
        ("broker.conf", "\ufeffbrokerName=b\n\tfileReserved\\\n  Time = 1 \t"),
        ("broker.toml", 'brokerName = "b"\nfileReservedTime = 1'),
        ("broker.toml", 'name = "b"\n[retention]\nkeep = "1h"'),
        ("broker", "brokerName=b\nfileReservedTime=1"),
        ("broker", 'brokerName="b"\nfileReservedTime=1'),
        ("broker.txt", "[retention]\nkeep = 3600\n[topics]\n"),
    ],
)
def test_the_file_format_follows_from_its_name_or_else_from_its_content(conf, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    found = conf.load_file(path)

    assert found.retention.keep == 3600
    assert found.name == ("b" if "b\n" in text or '"b"' in text else "broker-a")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("b.conf", "a=1\n[store]\nflush=sync", "b.conf, line 2: [store] is a table of TOML; the n"),
        ("b.conf", 'brokerName = "b"', "b.conf, line 1: in a properties file the quotes of broker"),
        ("b.conf", "a=1\nb=\\u12", "b.conf, line 2: an escape \\u takes four hexadecimal digits"),
        (
            "b.toml",
            "brokerName=b",
            "b.toml is not a TOML file: Invalid value (at line 1, column 12)",
        ),
        ("b.toml", "brokerName=b", "RocketMQ's broker.conf with .conf or .properties"),
    ],
)
def test_toml_in_a_properties_file_and_the_reverse_are_refused_with_the_line(
    conf, tmp_path, name, text, says
):
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        conf.load_file(path)
    assert says in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused_with_the_line(conf):
    conf.path.write_bytes("brokerName=b\n#所属集群名字\n".encode("gbk"))

    with pytest.raises(ConfigError, match="broker.conf, line 2, is not UTF-8"):
        conf.load_file(conf.path)


@given(st.text(max_size=60))
def test_any_file_text_loads_or_raises_a_config_error(tmp_path_factory, text):
    conf = Conf(tmp_path_factory.getbasetemp() / "any.conf")
    conf.path.write_bytes(text.encode("utf-8", "replace"))

    with suppress(ConfigError):
        conf.load_file(conf.path)
