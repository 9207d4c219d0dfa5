"""Facts of txmq.protocol.record, against a record written out field by field."""

import tracemalloc
import zlib

import pytest

from txmq.errors import RemoteProtocolError
from txmq.protocol import compression, record
from txmq.protocol.record import Record, pack, property_text_of, stored_ms_of, unpack, unpack_all

V4_BORN = bytes.fromhex("0a000005 0000e5c1")
V4_STORE = bytes.fromhex("0a000001 00002a9f")
V6_BORN = bytes.fromhex("20010db8000000000000000000000005 0000e5c1")
V6_STORE = bytes.fromhex("20010db8000000000000000000000001 00002a9f")
PROPERTIES = b"KEYS\x01k\x02TAGS\x01A\x02"


def written_out(
    *,
    born=V4_BORN,
    store=V4_STORE,
    sys_flag="00000000",
    topic="01 54",
    magic="daa320a7",
    size=None,
    crc=None,
):
    """A record by hand, in the order of the layout, without the module under test."""
    body = b"hello"
    before = magic + "{crc}" + "00000003 00000007 0000000000000002 0000000000000400" + sys_flag
    crc = f"{zlib.crc32(body) & 0x7FFFFFFF:08x}" if crc is None else crc
    rest = (
        bytes.fromhex(before.format(crc=crc))
        + bytes.fromhex("0000018bcfe56800")
        + born
        + bytes.fromhex("0000018bcfe56801")
        + store
        + bytes.fromhex("00000001 0000000000000200 00000005")
        + body
        + bytes.fromhex(topic)
        + len(PROPERTIES).to_bytes(2, "big")
        + PROPERTIES
    )
    return (len(rest) + 4 if size is None else size).to_bytes(4, "big") + rest


def a_record(**changes):
    values = {
        "queue_id": 3, "flag": 7, "queue_offset": 2, "position": 1024, "sys_flag": 0,
        "born_ms": 1_700_000_000_000, "born_host": V4_BORN, "stored_ms": 1_700_000_000_001,
        "store_host": V4_STORE, "attempts": 1, "prepared_position": 512, "body": b"hello",
        "topic": "T", "properties": PROPERTIES.decode(),
    }  # fmt: skip
    return Record(**values | changes)


SHAPES = [
    pytest.param(V4_BORN, V4_STORE, 0x00, id="both-v4"),
    pytest.param(V6_BORN, V4_STORE, 0x10, id="born-v6"),
    pytest.param(V4_BORN, V6_STORE, 0x20, id="store-v6"),
    pytest.param(V6_BORN, V6_STORE, 0x30, id="both-v6"),
]


@pytest.mark.parametrize(("born", "store", "bits"), SHAPES)
def test_a_record_is_written_and_read_in_the_layout_of_the_protocol(born, store, bits):
    expected = a_record(born_host=born, store_host=store, sys_flag=bits)
    data = written_out(born=born, store=store, sys_flag=f"{bits:08x}")

    assert pack(expected) == data
    assert unpack(data) == (expected, len(data))
    assert len(data) == 91 + 5 + 1 + len(PROPERTIES) + (len(born) - 8) + (len(store) - 8)


@pytest.mark.parametrize(("born", "store", "bits"), SHAPES)
def test_the_host_bits_of_a_record_follow_from_its_hosts(born, store, bits):
    """The claim of a client about its own address does not decide the length of the field."""
    claimed = a_record(born_host=born, store_host=store, sys_flag=0x30 ^ bits | 0x4)

    found, _ = unpack(pack(claimed))

    assert found.sys_flag == bits | 0x4
    assert found.born_host == born
    assert found.store_host == store


@pytest.mark.parametrize(("born", "store", "bits"), SHAPES)
def test_the_store_time_can_be_read_alone(born, store, bits):
    assert stored_ms_of(written_out(born=born, store=store, sys_flag=f"{bits:08x}")) == (
        1_700_000_000_001
    )


@pytest.mark.parametrize(("born", "store", "bits"), SHAPES)
@pytest.mark.parametrize("text", [PROPERTIES.decode(), "", "größe\x01💩\x02"])
def test_the_properties_can_be_read_alone(born, store, bits, text):
    whole = a_record(born_host=born, store_host=store, sys_flag=bits, properties=text)

    assert property_text_of(pack(whole)) == text


def test_properties_that_are_not_utf_8_are_read_with_replacements():
    broken = pack(a_record(properties="a\x01xx\x02")).replace(b"xx", b"\xff\xfe")

    assert property_text_of(broken) == "a\x01\ufffd\ufffd\x02"


def test_the_named_offsets_point_at_their_fields():
    data = written_out()

    assert data[record.SIZE_AT :][:4] == len(data).to_bytes(4, "big")
    assert data[record.MAGIC_AT :][:4] == bytes.fromhex("daa320a7")
    assert data[record.CRC_AT :][:4] == (zlib.crc32(b"hello") & 0x7FFFFFFF).to_bytes(4, "big")
    assert data[record.QUEUE_OFFSET_AT :][:8] == (2).to_bytes(8, "big")
    assert data[record.POSITION_AT :][:8] == (1024).to_bytes(8, "big")
    assert data[record.SYS_FLAG_AT :][:4] == bytes(4)


def test_the_smallest_record_has_91_bytes():
    empty = a_record(body=b"", topic="", properties="")

    data = pack(empty)

    assert len(data) == record.SMALLEST == 91
    assert unpack(data) == (empty, 91)


def test_a_record_of_rocketmq_5_has_two_bytes_for_the_length_of_its_topic():
    data = written_out(magic="daa320ab", topic="00c8" + "54" * 200)

    found, end = unpack(data)

    assert found == a_record(topic="T" * 200)
    assert end == len(data)
    assert property_text_of(data) == PROPERTIES.decode()


def test_a_record_can_start_at_any_offset():
    data = written_out()

    assert unpack(b"xxx" + data + b"yyy", 3) == (a_record(), 3 + len(data))


def test_records_follow_one_another_in_the_body_of_a_pull():
    data = written_out() + written_out(born=V6_BORN, sys_flag="00000010")

    assert [unpacked.born_host for unpacked in unpack_all(data)] == [V4_BORN, V6_BORN]
    assert list(unpack_all(b"")) == []


def test_records_before_a_broken_one_are_still_returned():
    found = unpack_all(written_out() + written_out()[:-1])

    assert next(found) == a_record()
    with pytest.raises(RemoteProtocolError):
        next(found)


def test_a_checksum_of_zero_is_not_checked():
    assert unpack(written_out(crc="00000000"))[0] == a_record()


@pytest.mark.parametrize("crc", ["00000001", "7fffffff", "b610a686"])
def test_a_body_that_differs_from_its_checksum_is_refused(crc):
    """The last one is the unmasked sum of 'hello': Java stores it without its highest bit."""
    with pytest.raises(RemoteProtocolError, match="checksum"):
        unpack(written_out(crc=crc))


def test_the_checksum_is_a_positive_number_in_java():
    assert zlib.crc32(b"\x01") > 0x7FFFFFFF
    stored = pack(a_record(body=b"\x01"))[record.CRC_AT :][:4]
    assert int.from_bytes(stored, "big") == zlib.crc32(b"\x01") & 0x7FFFFFFF


def test_a_record_cut_anywhere_is_refused():
    data = written_out()

    for cut in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            unpack(data[:cut])


def test_a_record_overwritten_with_zeros_from_anywhere_is_refused():
    """Only damage inside topic or properties is not detected: the checksum does not cover them."""
    data = written_out()

    for cut in range(4, len(data) - len(PROPERTIES)):
        with pytest.raises(RemoteProtocolError):
            unpack(data[:cut] + bytes(len(data) - cut))


def at(data, place, text):
    patch = bytes.fromhex(text)
    return data[:place] + patch + data[place + len(patch) :]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(written_out(magic="cbd43194"), id="end-of-file-filler"),
        pytest.param(written_out(size=90), id="size-below-the-smallest"),
        pytest.param(written_out(size=0xFFFFFFFF), id="negative-size"),
        pytest.param(written_out(size=len(written_out()) + 1) + b"x", id="size-too-large"),
        pytest.param(written_out(size=len(written_out()) - 1), id="size-too-small"),
        pytest.param(at(written_out(), 84, "7fffffff"), id="huge-body"),
        pytest.param(at(written_out(), 84, "ffffffff"), id="negative-body"),
        pytest.param(at(written_out(), 93, "ff"), id="huge-topic"),
        pytest.param(at(written_out(), 95, "ffff"), id="huge-properties"),
        pytest.param(at(written_out(), 94, "ff"), id="topic-not-utf-8"),
        pytest.param(at(written_out(), 97, "ff"), id="properties-not-utf-8"),
        pytest.param(written_out(sys_flag="00000010"), id="host-bit-without-such-a-host"),
        pytest.param(written_out(magic="daa320ab", topic="7fff 54"), id="huge-topic-of-5"),
    ],
)
def test_a_record_with_invalid_lengths_is_refused_without_allocating_memory(broken):
    tracemalloc.start()

    with pytest.raises(RemoteProtocolError):
        unpack(broken)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


def test_a_record_has_its_id_its_properties_and_its_plain_body():
    bits, smaller = compression.compress(b"hello" * 50)
    found = a_record(sys_flag=bits, body=smaller)

    assert found.offset_id == "0A000001" + "00002A9F" + "0000000000000400"
    assert found.property_map() == {"KEYS": "k", "TAGS": "A"}
    assert found.plain_body() == b"hello" * 50


def test_the_id_of_a_record_at_an_ipv6_broker_has_56_characters():
    assert a_record(store_host=V6_STORE).offset_id == (
        "20010DB8000000000000000000000001" + "00002A9F" + "0000000000000400"
    )


@pytest.mark.parametrize(
    ("topic", "properties"), [("T" * 128, ""), ("é" * 64, ""), ("T", "x" * 32_768)]
)
def test_lengths_that_java_would_read_as_negative_are_a_programming_error(topic, properties):
    with pytest.raises(AssertionError):
        pack(a_record(topic=topic, properties=properties))


def test_the_longest_topic_and_properties_can_be_written():
    longest = a_record(topic="T" * 127, properties="x" * 32_767)

    assert unpack(pack(longest))[0] == longest


def test_head_body_and_tail_make_up_a_record():
    body = b"hello"
    tail = record.tail_of(record.topic_field("T"), PROPERTIES)

    postmark = (0, 1_700_000_000_000, V4_BORN, 1_700_000_000_001, V4_STORE, 1, 512)
    head, size = record.head_of(3, 7, 2, 1024, postmark, body, len(tail))

    assert head + body + tail == written_out()
    assert size == len(written_out())
