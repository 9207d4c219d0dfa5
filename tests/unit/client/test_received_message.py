"""Records become messages equal to those that the constructor makes."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from txmq.client.received_message import opened
from txmq.errors import RemoteProtocolError
from txmq.message import Queue, ReceivedMessage
from txmq.protocol import compression
from txmq.protocol.record import Record, host_bytes

HOST = host_bytes("10.0.0.1", 10911)


def record_of(text, body=b"body", sys_flag=0):
    return Record(3, 7, 11, 12, sys_flag, 13, HOST, 14, HOST, 2, 0, body, "T", text)


def test_a_record_becomes_a_message_with_all_fields():
    message = opened(record_of("KEYS\x01k l\x02UNIQ_KEY\x01u\x02TAGS\x01A\x02a\x01b\x02"), "b1")

    expected = ReceivedMessage(
        topic="T", body=b"body", tags="A", keys=("k", "l"), properties={"a": "b"}, flag=7,
        queue=Queue("T", "b1", 3), offset=11, position=12, id="u", born_ms=13, stored_ms=14,
        offset_id="0A00000100002A9F000000000000000C", attempts=2,
    )  # fmt: skip
    assert message == expected
    assert type(message) is ReceivedMessage
    assert {field.name: getattr(message, field.name) for field in fields(message)} == {
        field.name: getattr(expected, field.name) for field in fields(expected)
    }
    assert replace(message, tags="B").tags == "B"
    with pytest.raises(FrozenInstanceError):
        message.tags = "B"


def test_a_record_without_properties_has_the_brokers_id():
    message = opened(record_of(""), "b1")

    assert (message.tags, message.keys, message.properties) == ("", (), {})
    assert message.id == message.offset_id


def test_a_compressed_body_is_decompressed_and_a_broken_one_is_marked_unreadable():
    flag, packed = compression.compress(b"x" * 5000, "zlib")

    assert opened(record_of("", packed, flag), "b1").body == b"x" * 5000
    broken = opened(record_of("", b"broken", flag), "b1")
    assert broken.body == b"broken"
    with pytest.raises(RemoteProtocolError) as caught:
        record_of("", b"broken", flag).plain_body()
    assert broken.unreadable == str(caught.value)
