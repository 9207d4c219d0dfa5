"""Facts of txmq.protocol.header_binary, against bytes written out by hand."""

import tracemalloc
from struct import pack as binary

import pytest

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import HEADER_FIELDS_MAX
from txmq.protocol.header_binary import BinaryHeader, pack, unpack

EMPTY = bytes.fromhex("0067 00 0199 00000007 00000000 00000000 00000000")
FULL = (
    bytes.fromhex("fc18 0c ffff ffffffff 00000003")
    + bytes.fromhex("00000003")
    + "né".encode()
    + bytes.fromhex("0000000d")
    + bytes.fromhex("0003")
    + b"key"
    + bytes.fromhex("00000004")
    + b"\xf0\x9f\x90\x8d"
)


def with_fields(fields):
    return EMPTY[:17] + len(fields).to_bytes(4, "big") + fields


def test_a_header_without_remark_and_fields_takes_21_bytes():
    header = BinaryHeader(103, 0, 409, 7, 0, None, {})

    assert pack(header) == EMPTY
    assert unpack(EMPTY) == header


def test_numbers_are_signed_and_texts_are_utf_8():
    """-1000 is a code of RocketMQ 5; counters wrap around into negative numbers."""
    header = BinaryHeader(-1000, 12, -1, -1, 3, "né", {"key": "\N{SNAKE}"})

    assert pack(header) == FULL
    assert unpack(FULL) == header


def test_the_language_is_an_unsigned_byte():
    assert unpack(EMPTY[:2] + b"\xff" + EMPTY[3:]).language == 255


def test_an_empty_remark_is_written_as_no_remark():
    assert pack(BinaryHeader(103, 0, 409, 7, 0, "", {})) == EMPTY


def test_an_empty_field_is_read_as_empty_text():
    """Java reads null; Go sends batches with an empty default topic, which must be there."""
    fields = bytes.fromhex("0001 61 00000000")

    assert unpack(with_fields(fields)).fields == {"a": ""}
    assert pack(unpack(with_fields(fields))) == with_fields(fields)


def test_of_two_fields_with_one_name_the_last_one_counts():
    fields = bytes.fromhex("0001 61 00000001 31 0001 61 00000001 32")

    assert unpack(with_fields(fields)).fields == {"a": "2"}


def test_bytes_after_the_fields_are_ignored():
    """Java also reads only what the lengths cover."""
    assert unpack(EMPTY + b"more") == unpack(EMPTY)


@pytest.mark.parametrize("cut", range(len(FULL)))
def test_a_header_cut_anywhere_is_refused(cut):
    with pytest.raises(RemoteProtocolError):
        unpack(FULL[:cut])


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(EMPTY[:13] + bytes.fromhex("ffffffff") + EMPTY[17:], id="negative-remark"),
        pytest.param(EMPTY[:13] + bytes.fromhex("7fffffff") + EMPTY[17:], id="huge-remark"),
        pytest.param(EMPTY[:17] + bytes.fromhex("ffffffff"), id="negative-fields"),
        pytest.param(EMPTY[:17] + bytes.fromhex("7fffffff"), id="huge-fields"),
        pytest.param(with_fields(bytes.fromhex("ffff 61 00000001 31")), id="negative-name"),
        pytest.param(with_fields(bytes.fromhex("7fff 61 00000001 31")), id="huge-name"),
        pytest.param(with_fields(bytes.fromhex("0001 61 ffffffff 31")), id="negative-value"),
        pytest.param(with_fields(bytes.fromhex("0001 61 7fffffff 31")), id="huge-value"),
        pytest.param(with_fields(bytes.fromhex("0001 61 00")), id="half-length"),
        pytest.param(with_fields(bytes.fromhex("0001 ff 00000001 31")), id="name-not-utf-8"),
        pytest.param(with_fields(bytes.fromhex("0001 61 00000001 ff")), id="value-not-utf-8"),
        pytest.param(EMPTY[:13] + bytes.fromhex("00000001 ff 00000000"), id="remark-not-utf-8"),
        pytest.param(
            EMPTY[:17] + bytes.fromhex("00000007 0001 61 00000002 3132"), id="field-overruns"
        ),
    ],
)
def test_invalid_lengths_and_texts_are_refused_without_allocating_memory(broken):
    tracemalloc.start()

    with pytest.raises(RemoteProtocolError):
        unpack(broken)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


def test_more_fields_than_any_header_has_are_refused():
    def fields(count):
        return b"".join(binary(">h4si1s", 4, b"%04d" % number, 1, b"x") for number in range(count))

    assert len(unpack(with_fields(fields(HEADER_FIELDS_MAX))).fields) == HEADER_FIELDS_MAX
    with pytest.raises(RemoteProtocolError, match=str(HEADER_FIELDS_MAX)):
        unpack(with_fields(fields(HEADER_FIELDS_MAX + 1)))


def test_repeated_fields_count_towards_the_limit():
    """They take no room in a map, but reading 43,000 of them took 50 ms."""
    same = binary(">h1si", 1, b"a", 0)

    assert unpack(with_fields(same * HEADER_FIELDS_MAX)).fields == {"a": ""}
    with pytest.raises(RemoteProtocolError, match=str(HEADER_FIELDS_MAX)):
        unpack(with_fields(same * (HEADER_FIELDS_MAX + 1)))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(BinaryHeader(200050, 0, 409, 7, 0, None, {}), id="code"),
        pytest.param(BinaryHeader(1, 0, 409, 2**31, 0, None, {}), id="opaque"),
        pytest.param(BinaryHeader(1, 0, 409, 7, 0, None, {"x" * 32_768: "y"}), id="name"),
        pytest.param(BinaryHeader(1, 0, 409, 7, 0, "\ud800", {}), id="half-character-remark"),
        pytest.param(BinaryHeader(1, 0, 409, 7, 0, None, {"a": "\ud800"}), id="half-character"),
    ],
)
def test_a_header_that_binary_form_cannot_hold_is_a_local_protocol_error(header):
    with pytest.raises(LocalProtocolError):
        pack(header)
