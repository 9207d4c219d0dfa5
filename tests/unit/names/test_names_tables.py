"""The key-value texts, the options, and the body of a registration."""

import json
import zlib

import pytest

from tests.unit.names.names_peer import registration
from txmq.errors import (
    ConfigError,
    InternalError,
    LimitExceeded,
    NoPermission,
    RemoteProtocolError,
    WriteFailed,
)
from txmq.protocol.bodies import DataVersion, RegistrationBody, TopicConfigs
from txmq_broker.names import key_values as module
from txmq_broker.names.handlers import NameOptions, OptionTable, read_registration
from txmq_broker.names.key_values import KeyValues


def failing(data):
    raise WriteFailed("the disk is full")


# Key-value texts


def save(values):
    values.durable = values.staged
    return values.durable.encode()


def test_values_are_stored_by_namespace_and_key():
    values = KeyValues()
    values.put("A", "k", "1")
    values.put("B", "k", "2")
    values.put("A", "k", "3")
    save(values)

    assert (values.get("A", "k"), values.get("B", "k"), values.get("C", "k")) == ("3", "2", None)
    assert values.space("A") == {"k": "3"}
    assert values.space("C") == {}


def test_the_file_has_the_format_of_rocketmq():
    values = KeyValues()
    values.put("A", "k", "1")
    assert json.loads(save(values)) == {"configTable": {"A": {"k": "1"}}}

    values.delete("A", "unknown")
    assert values.is_saved
    values.delete("A", "k")
    assert json.loads(save(values)) == {"configTable": {}}


def test_saved_values_are_loaded_at_the_next_start():
    values = KeyValues()
    values.put("A", "k", "ü")

    assert KeyValues(save(values)).get("A", "k") == "ü"


def test_a_change_is_visible_only_once_it_is_saved():
    values = KeyValues(b'{"configTable":{"A":{"k":"1"}}}')
    values.put("A", "k", "2")
    values.put("A", "l", "1")
    values.delete("A", "k")

    assert values.space("A") == {"k": "1"}
    assert values.figures()["key_values"] == 1
    values.undo()
    assert values.is_saved
    values.put("A", "m", "1")
    assert json.loads(save(values)) == {"configTable": {"A": {"k": "1", "m": "1"}}}


@pytest.mark.parametrize("data", [b"", b"{", b'{"configTable":{"A":1}}'])
def test_a_damaged_file_is_refused(data):
    with pytest.raises(ConfigError):
        KeyValues(data)


def test_the_number_of_values_is_limited(monkeypatch):
    monkeypatch.setattr(module, "KEY_VALUES_MAX", 2)
    values = KeyValues()
    values.put("A", "k", "1")
    values.put("B", "k", "1")
    values.put("B", "k", "2")

    with pytest.raises(LimitExceeded):
        values.put("A", "l", "1")
    values.delete("B", "k")
    values.put("A", "l", "1")


def test_the_total_size_of_values_is_limited(monkeypatch):
    monkeypatch.setattr(module, "KEY_VALUE_BYTES_MAX", 12)
    values = KeyValues()
    values.put("A", "k", "1234567890")
    for namespace, value in (("A", "12345678901"), ("B", "")):
        with pytest.raises(LimitExceeded):
            values.put(namespace, "k", value)
    values.put("A", "k", "1")
    values.put("B", "k", "")

    assert values.staged[1:] == (2, 5)
    values.delete("A", "k")
    assert values.staged[1:] == (1, 2)
    again = KeyValues(save(values))
    assert again.durable[1:] == (1, 2)


# Options


def test_options_and_facts_have_the_names_of_rocketmq():
    table = OptionTable(failing)
    table.facts["listenPort"] = 9876

    assert table.text().decode().splitlines() == [
        "orderMessageEnable=false",
        "returnOrderTopicConfigToBroker=true",
        "enableAllTopicList=true",
        "listenPort=9876",
    ]


def test_a_changed_option_is_saved():
    saved = []
    table = OptionTable(saved.append)
    table.update(b"orderMessageEnable=TRUE\n")

    assert table.current == NameOptions(order_message_enable=True)
    assert OptionTable(failing, saved[-1]).current == table.current


@pytest.mark.parametrize("name", ["configStorePath", "kvConfigPath", "listenPort"])
def test_paths_and_ports_cannot_be_changed_remotely(name):
    table = OptionTable(failing)
    table.facts["listenPort"] = 9876

    with pytest.raises(NoPermission, match="black list"):
        table.update(f"orderMessageEnable=true\n{name}=x".encode())

    assert table.current == NameOptions()


@pytest.mark.parametrize("text", [b"clusterTest=true", b"orderMessageEnable=maybe"])
def test_an_unknown_or_invalid_option_is_refused(text):
    with pytest.raises(InternalError):
        OptionTable(failing).update(b"enableAllTopicList=false\n" + text)


def test_an_option_that_cannot_be_saved_keeps_its_value():
    table = OptionTable(failing)

    with pytest.raises(WriteFailed):
        table.update(b"orderMessageEnable=true")

    assert table.current == NameOptions()


# The body of a registration


def piece(text):
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


NO_FILTER_SERVERS = piece("[]")


def compressed(*topics, tail=NO_FILTER_SERVERS):
    parts = [piece('{"counter":3,"timestamp":7}'), len(topics).to_bytes(4, "big")]
    return zlib.compress(b"".join(parts) + b"".join(map(piece, topics)) + tail)


def test_a_registration_body_of_rocketmq_4_9_is_read():
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,'
        b'"timestamp":7},"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":8,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}}'
    )
    found = read_registration(registration(), body)

    assert found.data_version == DataVersion(timestamp=7, counter=3)
    assert found.topic_config_table["T"].write_queue_nums == 4


def test_a_registration_body_of_rocketmq_5_is_read():
    body = (
        b'{"filterServerList":null,"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,'
        b'"stateVersion":1,"timestamp":7},"mappingDataVersion":{"counter":0},'
        b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{},"topicConfigTable":{"T":'
        b'{"attributes":{"+message.type":"NORMAL"},"perm":6,"readQueueNums":8,"topicName":"T",'
        b'"writeQueueNums":8}}}}'
    )
    found = read_registration(registration(), body)

    assert found.data_version.state_version == 1
    assert list(found.topic_config_table) == ["T"]


@pytest.mark.parametrize(
    ("who", "body"), [({}, b""), ({"body_crc32": 0}, b"{}")], ids=["no body", "checksum 0"]
)
def test_a_registration_without_topics_or_a_checksum_is_read(who, body):
    assert read_registration(registration(**who), body) == TopicConfigs()


def test_a_compressed_registration_body_is_read():
    found = read_registration(
        registration(compressed=True), compressed("T 8 4 6 SINGLE_TAG", "U 1 1 4 MULTI_TAG")
    )

    assert found.data_version == DataVersion(timestamp=7, counter=3)
    topic = found.topic_config_table["T"]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (8, 4, 6)
    assert found.topic_config_table["U"].topic_filter_type == "MULTI_TAG"


def test_topic_attributes_and_mappings_of_rocketmq_5_are_ignored():
    """5.x writes topic attributes after the five parts of 4.9, and mappings after all topics."""
    body = compressed(
        'T 8 4 6 SINGLE_TAG {"a": "b c"}', tail=piece("[]") + b"\0\0\0\1" + piece("{}")
    )
    found = read_registration(registration(compressed=True), body)

    assert found.topic_config_table["T"].topic_filter_type == "SINGLE_TAG"


@pytest.mark.parametrize(
    "body",
    [
        b"no stream",
        zlib.compress(b"\0\0"),
        zlib.compress(piece("{}") + b"\x7f\xff\xff\xff"),
        zlib.compress(piece("{}") + b"\xff\xff\xff\xff"),
        zlib.compress(piece("{}") + b"\0\0\0\1\0\0\0\1\xff"),
        zlib.compress(piece("[]")),
        compressed("T 8 4"),
        compressed("T 8 four 6 SINGLE_TAG"),
        compressed("T 8 4 6 SINGLE_TAG")[:-12],
        zlib.compress(bytes(20_000_000)),
    ],
)
def test_a_malformed_compressed_body_is_refused(body):
    with pytest.raises(RemoteProtocolError):
        read_registration(registration(compressed=True), body)


def test_a_checksum_is_compared_without_its_highest_bit():
    body = next(
        data
        for number in range(100)
        if zlib.crc32(data := RegistrationBody(filter_server_list=[str(number)]).write()) >> 31
    )
    read_registration(registration(body_crc32=zlib.crc32(body) & 0x7FFFFFFF), body)

    with pytest.raises(InternalError, match="crc32 not match"):
        read_registration(registration(body_crc32=1), body)
