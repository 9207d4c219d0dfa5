import math
import random
import zlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.client.names import check_name
from txmq.client.received_message import received
from txmq.client.send_request import COMPRESS_FROM_BYTES, sealed
from txmq.errors import LimitExceeded, LocalProtocolError
from txmq.limits import MESSAGE_BODY_BYTES_MAX, PROPERTIES_BYTES_MAX, TOPIC_CHARS_MAX
from txmq.message import Message, Queue
from txmq.protocol import properties
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import Record, host_bytes

HOST = host_bytes("10.0.0.1", 10911)


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def message(**changes):
    return Message(**{"topic": "T", "body": b"hello", **changes})


def stored(envelope, queue=3, offset=7, position=1000):
    return Record(
        queue, envelope.flag, offset, position, envelope.sys_flag, 11, HOST, 12, HOST, 2, 0,
        envelope.body, envelope.topic, envelope.properties,
    )  # fmt: skip


texts = st.text(
    st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=20
)
keys = st.text(st.characters(categories=["L", "N", "P"], codec="utf-8"), min_size=1, max_size=10)
names = texts.filter(lambda each: each not in {"KEYS", "TAGS", "UNIQ_KEY"})


@given(
    st.builds(
        Message,
        topic=st.just("T"),
        body=st.binary(min_size=1, max_size=3 * COMPRESS_FROM_BYTES),
        tags=st.one_of(st.just(""), texts),
        keys=st.lists(keys, max_size=3).map(tuple),
        properties=st.dictionaries(names, texts, max_size=4),
        flag=st.integers(-(2**31), 2**31 - 1),
    )
)
def test_a_sealed_message_is_received_unchanged(sent):
    got = received(stored(sealed(sent, "ID")), "b")

    assert (got.topic, got.body, got.tags, got.keys) == (
        sent.topic,
        sent.body,
        sent.tags,
        sent.keys,
    )
    assert (got.properties, got.flag, got.id) == (sent.properties, sent.flag, "ID")


def sealing(**changes):
    try:
        return sealed(message(**changes), "ID")
    except LocalProtocolError as error:
        return type(error)


@given(
    st.one_of(st.text("aä \x01\x02\n\u2003\ud800", max_size=2), st.just(7)),
    st.one_of(st.text("aä \x01\x02\n\u2003\ud800", max_size=2), st.just(7)),
)
def test_a_single_key_is_encoded_like_one_of_several(tags, key):
    # Only a tuple of one key takes the fast path.
    assert sealing(tags=tags, keys=(key,)) == sealing(tags=tags, keys=[key])


def test_a_received_message_has_its_queue_offset_and_times():
    got = received(stored(sealed(message(), "ID")), "b")

    assert got.queue == Queue("T", "b", 3)
    assert (got.offset, got.position, got.attempts) == (7, 1000, 2)
    assert (got.born_ms, got.stored_ms) == (11, 12)
    assert got.offset_id == "0A00000100002A9F00000000000003E8"


def test_without_a_unique_key_the_offset_id_is_the_message_id():
    record = stored(sealed(message(), "ID"))
    record.properties = ""

    got = received(record, "b")

    assert got.id == got.offset_id == record.offset_id


@pytest.mark.parametrize("more", [{}, {"tags": "a"}, {"properties": {"k": "v"}}])
def test_a_message_that_does_not_wait_for_the_disk_has_the_wait_property(more):
    waits = sealed(message(**more), "ID").properties
    assert properties.find(waits, "WAIT") is None
    plain = sealed(message(wait_stored=False, **more), "ID").properties
    assert properties.parse(plain) == {**properties.parse(waits), "WAIT": "false"}


def test_properties_are_encoded_as_stock_clients_read_them():
    text = sealed(message(tags="A", keys=("k1", "k2"), properties={"p": "q"}), "ID").properties

    assert text == "p\x01q\x02TAGS\x01A\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ID\x02"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"tags": "A"}, "TAGS\x01A\x02"),
        ({"keys": ("k1", "k2")}, "KEYS\x01k1 k2\x02"),
        ({"tags": "A", "keys": ("k1",)}, "TAGS\x01A\x02KEYS\x01k1\x02"),
    ],
)
def test_tags_and_keys_are_encoded_before_the_id(changes, expected):
    assert sealed(message(**changes), "ID").properties == expected + "UNIQ_KEY\x01ID\x02"


def test_a_resent_message_keeps_its_id():
    again = message(properties={properties.UNIQUE_KEY: "FIRST"})

    envelope = sealed(again, "SECOND")

    assert envelope.id == "FIRST"
    assert properties.find(envelope.properties, properties.UNIQUE_KEY) == "FIRST"


def test_large_bodies_are_compressed_with_zlib_by_default():
    body = b"x" * COMPRESS_FROM_BYTES

    envelope = sealed(message(body=body), "ID")

    assert envelope.sys_flag == SysFlag.COMPRESSED
    assert zlib.decompress(envelope.body) == body


def test_a_body_that_compression_would_enlarge_is_sent_uncompressed():
    body = random.Random(1).randbytes(COMPRESS_FROM_BYTES)

    envelope = sealed(message(body=body), "ID")

    assert (envelope.sys_flag, envelope.body) == (0, body)


@pytest.mark.parametrize(
    ("body", "compress"), [(b"x" * (COMPRESS_FROM_BYTES - 1), True), (b"x" * 9999, False)]
)
def test_small_bodies_and_batches_are_sent_uncompressed(body, compress):
    envelope = sealed(message(body=body), "ID", compress=compress)

    assert (envelope.sys_flag, envelope.body) == (0, body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": b""}, {"topic": ""}, {"topic": "with space"}, {"topic": "ümlaut"},
        {"keys": ("two words",)}, {"keys": ("",)}, {"keys": ("ok", " ")},
        {"properties": {"TAGS": "A"}}, {"properties": {"KEYS": "A"}}, {"properties": {"empty": ""}},
        {"properties": {"": "nameless"}}, {"properties": {"UNIQ_KEY": ""}},
        {"properties": {"p": "a\x01b"}}, {"tags": "a\x02b"}, {"tags": "a\x01b"},
        {"keys": ("a\x01b",)}, {"keys": ("a\x02b", "c")},
    ],
)  # fmt: skip
def test_a_message_that_the_protocol_cannot_carry_is_refused(wrong):
    with pytest.raises(LocalProtocolError):
        sealed(message(**wrong), "ID")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"body": "text"}, "a body is bytes, not str; encode it, as in text.encode()"),
        (
            {"body": bytearray(b"b")},
            "a body is bytes, not bytearray; encode it, as in encode_body(value)",
        ),
        ({"topic": b"T"}, "b'T' is not a valid topic name; use letters, "),
        ({"topic": None}, "None is not a valid topic name; use letters, "),
        ({"keys": "order-1"}, "keys are a tuple, not a str; write keys=('order-1',)"),
        ({"keys": "k"}, "keys are a tuple, not a str; write keys=('k',)"),
        ({"keys": (1,)}, "keys are a tuple of str, not (1,)"),
        ({"keys": 1}, "keys are a tuple of str, not 1"),
        ({"tags": ["A"]}, "a message has one tag, which is a str, not ['A']"),
        ({"tags": ["A"], "properties": {"p": "q"}}, "a message has one tag, which is a str, "),
        ({"properties": {"p": 1}}, "properties are str, not 'p': 1"),
        ({"delay_level": "3"}, "delay_level is a whole number from 0 on, not '3'"),
        ({"delay_level": -1}, "delay_level is a whole number from 0 on, not -1"),
        (
            {"deliver_after": "2 x"},
            "deliver_after cannot be '2 x'; it takes a duration such as 20s",
        ),
        ({"deliver_after": -0.5}, "deliver_after cannot be -0.5; it takes a duration"),
        ({"deliver_after": math.nan}, "deliver_after cannot be nan; it takes a duration"),
        ({"tags": "A || B"}, "a message has one tag, not 'A || B': '||' is for consumers, which"),
        ({"tags": "A||B", "properties": {"p": "q"}}, "a message has one tag, not 'A||B': "),
        ({"deliver_at_ms": NOON}, "deliver_at_ms is a whole number from 0 on, not datetime.da"),
        ({"delay_level": 1, "deliver_after": 1}, "a message is delayed in one way: delay_level"),
        ({"delay_level": 1, "properties": {"DELAY": "2"}}, "a message is delayed in one way: "),
        ({"delay_level": 1, "properties": {"TIMER_DELAY_MS": "2"}}, "a message is delayed in one "),
    ],
)
def test_common_mistakes_are_refused_with_a_helpful_sentence(wrong, said):
    with pytest.raises(LocalProtocolError) as caught:
        sealed(message(**wrong), "ID")

    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("wrong", "limit"),
    [
        ({"body": b"x" * (MESSAGE_BODY_BYTES_MAX + 1)}, MESSAGE_BODY_BYTES_MAX),
        ({"topic": "t" * (TOPIC_CHARS_MAX + 1)}, TOPIC_CHARS_MAX),
        ({"properties": {"p": "x" * PROPERTIES_BYTES_MAX}}, PROPERTIES_BYTES_MAX),
        ({"tags": "ü" * (PROPERTIES_BYTES_MAX // 2)}, PROPERTIES_BYTES_MAX),
        ({"properties": {"p": "ü" * (PROPERTIES_BYTES_MAX // 2)}}, PROPERTIES_BYTES_MAX),
    ],
)
def test_a_value_that_is_too_large_is_refused_with_its_size_and_the_limit(wrong, limit):
    with pytest.raises(LimitExceeded) as caught:
        sealed(message(**wrong), "ID")

    assert caught.value.value == limit
    assert caught.value.offered > limit


@pytest.mark.parametrize("name", ["T", "%RETRY%group", "a-b_c|d", "9" * TOPIC_CHARS_MAX])
def test_topic_names_that_stock_brokers_accept_are_accepted(name):
    check_name("topic", name)
