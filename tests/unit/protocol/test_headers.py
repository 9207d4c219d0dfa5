"""Facts of txmq.protocol.headers: how wire names are formed and how values become texts."""

import msgspec
import pytest

from txmq.errors import RemoteProtocolError
from txmq.protocol.command import JSON, decode, fields_of
from txmq.protocol.headers import (
    ClientGroups,
    OffsetQuery,
    PullMessage,
    RouteQuery,
    SendMessage,
    SendMessageV2,
    TopicSettings,
    camel,
)


def read(shape, fields):
    header = b'{"code":1,"extFields":' + msgspec.json.encode(fields) + b"}"
    return decode((JSON, header, b"")).read(shape)


SENT = SendMessage("g", "T", "TBW102", 4, -1, 0, 1_700_000_000_000, 0, batch=True, broker_name="b")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("topic", "topic"), ("queue_id", "queueId"), ("max_reconsume_times", "maxReconsumeTimes")],
)
def test_snake_case_names_become_camel_case(ours, theirs):
    assert camel(ours) == theirs


def test_fields_are_written_as_texts_and_omitted_ones_left_out():
    assert fields_of(SENT) == {
        "producerGroup": "g", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "-1", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0",
        "batch": "true", "bname": "b",
    }  # fmt: skip


def wire_names(header):
    return zip(header.__struct_fields__, header.__struct_encode_fields__, strict=True)


def test_the_short_form_of_a_send_has_a_letter_for_each_name():
    letters = dict(zip(SendMessage.__struct_fields__, "abcdefghijklmn", strict=True))
    sent = SendMessageV2(**{name: getattr(SENT, name) for name in letters})

    assert dict(wire_names(SendMessageV2)) == letters
    assert fields_of(sent) == {
        letters[ours]: fields_of(SENT)[theirs]
        for ours, theirs in wire_names(SendMessage)
        if theirs in fields_of(SENT)
    }
    assert isinstance(sent, SendMessage)


def test_the_long_and_short_forms_of_a_send_are_read_into_the_same_attributes():
    long = read(SendMessage, fields_of(SENT))
    short = read(
        SendMessageV2,
        {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "1700000000000"}
        | {"h": "0", "m": "true", "n": "b"},
    )

    assert long == SENT
    assert msgspec.structs.asdict(short) == msgspec.structs.asdict(long)


def test_omitted_letters_of_a_send_are_none():
    """Clients before 4.9 leave out k, m and n."""
    sent = read(SendMessageV2, dict.fromkeys("abc", "x") | dict.fromkeys("defgh", "1"))

    assert (sent.unit_mode, sent.batch, sent.broker_name, sent.properties) == (None,) * 4


@pytest.mark.parametrize(
    ("written", "truth"),
    [("true", True), ("false", False), ("1", True), ("0", False), ("TRUE", True), (True, True)]
    + [(False, False), (1, True), (0, False)],
)
def test_a_boolean_is_read_in_every_known_spelling(written, truth):
    """The C++ client writes "0" and "1", ali-ons true and false without quotes."""
    assert read(RouteQuery, {"topic": "T", "acceptStandardJsonOnly": written}) == RouteQuery(
        "T", truth
    )


@pytest.mark.parametrize("number", ["3", 3, 3.0])
def test_a_number_is_read_with_or_without_quotes(number):
    query = read(OffsetQuery, {"consumerGroup": "g", "topic": "T", "queueId": number})

    assert query == OffsetQuery("g", "T", 3)


def test_a_name_that_looks_like_a_number_stays_a_text():
    assert read(RouteQuery, {"topic": "123"}).topic == "123"
    assert read(RouteQuery, {"topic": 123}).topic == "123"
    assert read(RouteQuery, {"topic": "null"}).topic == "null"


@pytest.mark.parametrize("missing", ["consumerGroup", "topic", "queueId"])
def test_a_missing_field_is_named(missing):
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "3"}
    del fields[missing]

    with pytest.raises(RemoteProtocolError, match=f"OffsetQuery: .*{missing}"):
        read(OffsetQuery, fields)


def test_numbers_have_the_ranges_of_java():
    def pull(queue_id, offset):
        fields = fields_of(PullMessage("g", "T", 0, 0, 32, 0, 0, 0, 0))
        return read(PullMessage, fields | {"queueId": queue_id, "queueOffset": offset})

    assert pull(str(2**31 - 1), str(-(2**63))).queue_offset == -(2**63)
    for queue_id, offset in (("2147483648", "0"), ("0", "9223372036854775808")):
        with pytest.raises(RemoteProtocolError):
            pull(queue_id, offset)


def test_a_required_flag_is_written_as_false_by_default():
    settings = TopicSettings("T", "TBW102", 8, 8, 6)

    assert fields_of(settings)["order"] == "false"
    assert fields_of(settings)["topicFilterType"] == "SINGLE_TAG"
    assert "attributes" not in fields_of(settings)


def test_the_client_id_of_client_groups_is_written_as_stock_brokers_spell_it():
    assert fields_of(ClientGroups("c", consumer_group="g")) == {
        "clientID": "c",
        "consumerGroup": "g",
    }
