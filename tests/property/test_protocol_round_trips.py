"""Everything that the protocol carries survives a round trip, in every encoding."""

import json

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.property.protocol_strategies import (
    BATCH_ITEMS,
    BODY_SHAPES,
    BYTES,
    FIELD_MAPS,
    HEADER_SHAPES,
    INT32,
    INT64,
    JSON_VALUES,
    NONEMPTY,
    PER_SHAPE,
    PLAIN,
    TEXT,
    broken,
    records,
    struct,
)
from txmq.errors import ProtocolError, RemoteProtocolError
from txmq.protocol import batch, fastjson, header_binary, java, properties, record
from txmq.protocol.bodies import MessageQueue, OffsetPair, queue_map, read_queue_map
from txmq.protocol.command import BINARY, JSON, FrameReader, answer, decode, encode, frame
from txmq.protocol.compression import compress, decompress
from txmq.protocol.java import string_hash
from txmq.protocol.record import (
    host_bytes,
    host_text,
    offset_id,
    split_offset_id,
    unique_id,
)
from txmq.remoting.pool import split_address

KINDS = st.sampled_from([JSON, BINARY])


def only(data):
    (part,) = FrameReader().feed(data)
    return part


# Frames


@given(st.lists(st.tuples(KINDS, BYTES, BYTES), max_size=5), st.data())
def test_frames_survive_any_split_of_the_stream(frames, data):
    stream = b"".join(frame(*parts) for parts in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()

    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])

    assert found == frames
    assert len(reader.held) == 0


@given(st.tuples(KINDS, BYTES, BYTES), st.data())
def test_a_reader_holds_exactly_the_incomplete_frame(part, data):
    stream = frame(*part)
    cut = data.draw(st.integers(0, len(stream) - 1))
    reader = FrameReader()

    assert reader.feed(stream[:cut]) == []
    assert len(reader.held) == cut


# Headers and commands


@pytest.mark.parametrize("shape", HEADER_SHAPES, ids=lambda shape: shape.__name__)
@given(data=st.data(), opaque=INT32, body=BYTES)
@PER_SHAPE
def test_a_request_header_survives_a_json_round_trip(shape, data, opaque, body):
    header = data.draw(struct(shape))

    command = decode(only(encode(10, opaque, header, body=body)))

    assert command.read(shape) == header
    assert (command.kind, command.opaque, command.body) == (JSON, opaque, body)


@pytest.mark.parametrize("shape", HEADER_SHAPES, ids=lambda shape: shape.__name__)
@given(data=st.data(), opaque=INT32, body=BYTES)
@PER_SHAPE
def test_a_request_header_survives_a_binary_round_trip(shape, data, opaque, body):
    header = data.draw(struct(shape))

    command = decode(only(encode(10, opaque, header, body=body, kind=BINARY)))

    assert command.read(shape) == header
    assert (command.kind, command.opaque, command.body) == (BINARY, opaque, body)


@pytest.mark.parametrize("shape", HEADER_SHAPES, ids=lambda shape: shape.__name__)
@given(data=st.data())
@PER_SHAPE
def test_a_json_header_may_have_unquoted_numbers_and_booleans(shape, data):
    """ali-ons and the C++ client omit quotes where Java writes them."""
    header = data.draw(struct(shape))
    bare = {
        theirs: getattr(header, ours)
        for ours, theirs in zip(
            shape.__struct_fields__, shape.__struct_encode_fields__, strict=True
        )
        if getattr(header, ours) is not None
    }

    command = decode((JSON, msgspec.json.encode({"code": 1, "extFields": bare}), b""))

    assert command.read(shape) == header


@given(FIELD_MAPS, KINDS, INT32, st.integers(-(2**15), 2**15 - 1), st.none() | NONEMPTY, BYTES)
def test_an_answer_survives_a_round_trip_in_its_requests_encoding(
    fields, kind, opaque, code, remark, body
):
    to = decode(only(encode(10, opaque, kind=kind)))

    command = decode(only(answer(to, code, fields, body=body, remark=remark)))

    assert command.is_answer
    assert (command.kind, command.opaque, command.code) == (kind, opaque, code)
    assert (command.remark, command.body) == (remark, body)
    assert command.field_map() == fields


@given(
    st.builds(
        header_binary.BinaryHeader,
        st.integers(-(2**15), 2**15 - 1),
        st.integers(0, 255),
        st.integers(-(2**15), 2**15 - 1),
        INT32,
        INT32,
        st.none() | NONEMPTY,
        FIELD_MAPS,
    )
)
def test_a_binary_header_survives_a_round_trip(header):
    assert header_binary.unpack(header_binary.pack(header)) == header


# Bodies


@pytest.mark.parametrize("shape", BODY_SHAPES, ids=lambda shape: shape.__name__)
@given(data=st.data())
@PER_SHAPE
def test_a_body_survives_a_round_trip(shape, data):
    body = data.draw(struct(shape))

    written = body.write()

    assert shape.read(written) == body
    assert json.loads(written) is not None


@pytest.mark.parametrize("shape", BODY_SHAPES, ids=lambda shape: shape.__name__)
@given(data=st.data())
@PER_SHAPE
def test_a_body_with_a_trailing_comma_reads_the_same_in_the_fastjson_dialect(shape, data):
    """A trailing comma makes the strict reader fail."""
    body = data.draw(struct(shape))
    written = body.write()
    assume(written != b"{}")

    assert shape.read(written[:-1] + b",}") == body


@given(st.dictionaries(struct(MessageQueue), INT64, max_size=4))
def test_a_map_keyed_by_queue_survives_a_round_trip(entries):
    data = b'{"offsetTable":' + queue_map(entries) + b"}"

    assert read_queue_map(data, "offsetTable", int) == entries


@given(st.dictionaries(struct(MessageQueue), struct(OffsetPair), max_size=4))
def test_a_map_of_structs_keyed_by_queue_survives_a_round_trip(entries):
    data = b'{"consumeTps":1.5,"offsetTable":' + queue_map(entries) + b"}"

    assert read_queue_map(data, "offsetTable", OffsetPair) == entries


# Records, batches, properties, ids


@given(records())
def test_a_stored_record_survives_a_round_trip(one):
    data = record.pack(one)

    assert record.unpack(data) == (one, len(data))
    assert record.stored_ms_of(data) == one.stored_ms
    assert int.from_bytes(data[record.SIZE_AT :][:4], "big") == len(data)


@given(st.lists(records(), max_size=4))
def test_the_records_of_a_pull_survive_a_round_trip(several):
    assert list(record.unpack_all(b"".join(map(record.pack, several)))) == several


@given(st.lists(BATCH_ITEMS, min_size=1, max_size=5))
def test_a_batch_survives_a_round_trip(items):
    assert batch.unpack(batch.pack(items)) == items


@given(st.dictionaries(PLAIN, PLAIN, max_size=6))
def test_properties_survive_a_round_trip(values):
    text = properties.render(values)

    assert properties.parse(text) == values
    assert all(properties.find(text, name) == value for name, value in values.items())


PAIR_TEXTS = st.text("ab\x01\x02", max_size=30)


@given(PAIR_TEXTS, st.sampled_from(["a", "b", "ab", "aa"]))
@example("a\x01b\x02a\x01\x02", "a")
def test_finding_and_removing_one_property_agrees_with_parsing_all(text, name):
    """For anything a client may write: repeated, truncated or empty properties."""
    whole = properties.parse(text)

    assert properties.find(text, name) == whole.get(name)
    rest = properties.without(text, name)
    assert properties.parse(rest) == {key: whole[key] for key in whole if key != name}


@given(PAIR_TEXTS, st.dictionaries(PLAIN, PLAIN, max_size=3))
def test_joined_properties_hold_both_sets_and_later_values_win(text, more):
    joined = properties.join(text, properties.render(more))

    assert properties.parse(joined) == properties.parse(text) | more


@given(st.dictionaries(TEXT, TEXT, max_size=4))
def test_any_properties_are_rendered_readably_or_refused(values):
    try:
        text = properties.render(values)
    except ProtocolError:
        assert any(mark in part for pair in values.items() for part in pair for mark in "\x01\x02")
    else:
        kept = {name: value for name, value in values.items() if name and value}
        assert properties.parse(text) == kept


@given(st.ip_addresses(), st.integers(0, 65535), INT64)
def test_an_offset_id_survives_a_round_trip(address, port, position):
    packed = host_bytes(str(address), port)

    text = offset_id(packed, position)

    address, found_position = split_offset_id(text)
    assert host_bytes(*split_address(address)) == packed
    assert found_position == position
    assert len(text) == (32 if len(packed) == 8 else 56)
    assert host_text(packed).endswith(f":{port}")


@given(st.binary(min_size=4, max_size=4), *[st.integers(0, 2**40)] * 4)
def test_a_unique_id_always_has_32_characters(address, process, seed, month_ms, count):
    text = unique_id(address, process, seed, month_ms, count)

    assert len(text) == 32
    assert bytes.fromhex(text)[:4] == address
    assert text == text.upper()


@given(st.text())
def test_string_hash_agrees_with_javas_as_a_signed_32_bit_number(text):
    units = text.encode("utf-16-be", "surrogatepass")
    slow = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        slow = slow * 31 + high * 256 + low

    found = string_hash(text)

    assert -(2**31) <= found < 2**31
    assert (found - slow) % 2**32 == 0


@given(BYTES | st.binary(min_size=500, max_size=3000), st.sampled_from(["zlib", "lz4", "zstd"]))
def test_a_compressed_body_survives_a_round_trip(body, algorithm):
    bits, smaller = compress(body, algorithm)

    assert decompress(bits, smaller) == body
    assert decompress(bits, smaller, limit=len(body)) == body


@given(st.dictionaries(TEXT, TEXT, max_size=4))
def test_java_properties_survive_a_round_trip(settings):
    assert java.loads(java.dumps(settings)) == settings


# The dialect


@given(JSON_VALUES, st.booleans(), st.sampled_from([None, 0, 2]))
def test_json_reads_the_same_in_the_fastjson_dialect(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    assert fastjson.loads(text.encode()) == value


def strict(data):
    """The value of strict JSON text, or the reason why it is none (or none we mean)."""

    def no(name):
        raise ValueError(name)

    def short(kind):
        return lambda digits: kind(digits) if len(digits) <= 40 else no(digits)

    value = json.loads(
        data.decode(), parse_constant=no, parse_int=short(int), parse_float=short(float)
    )
    json.dumps(value, ensure_ascii=False).encode()  # lone surrogates raise here
    return value


@given(broken(JSON_VALUES.map(lambda value: json.dumps(value).encode())))
def test_the_dialect_reads_all_strict_json_to_the_same_value(data):
    try:
        value = strict(data)
    except (ValueError, RecursionError):
        return

    assert fastjson.loads(data) == value


@st.composite
def dialect(draw, value):
    """One of the ways in which Java's library would read this value."""
    gap = draw(st.sampled_from(["", "", " ", "\n\t"]))
    comma = draw(st.sampled_from(["", ","]))
    if isinstance(value, dict):
        members = [
            f"{gap}{draw(key(name))}{gap}:{draw(dialect(item))}" for name, item in value.items()
        ]
        return "{" + ",".join(members) + (comma if members else "") + gap + "}"
    if isinstance(value, list):
        items = [gap + draw(dialect(item)) for item in value]
        return "[" + ",".join(items) + (comma if items else "") + gap + "]"
    if isinstance(value, str):
        return gap + draw(quoted(value))
    return gap + json.dumps(value)


@st.composite
def quoted(draw, text):
    quote = draw(st.sampled_from("\"'"))
    escape_all = draw(st.booleans())
    written = ""
    for sign in text:
        if sign in (quote, "\\"):
            written += "\\" + sign
        elif escape_all and ord(sign) < 0x100:
            written += f"\\x{ord(sign):02X}"
        elif escape_all:
            written += json.dumps(sign)[1:-1]
        else:
            written += sign
    return quote + written + quote


def key(name):
    bare = name.isascii() and (name.isidentifier() or name.isdigit())
    return st.just(name) | quoted(name) if bare else quoted(name)


@given(st.data(), JSON_VALUES)
def test_every_way_to_write_a_value_in_the_dialect_is_read(data, value):
    text = data.draw(dialect(value))

    assert fastjson.loads(text.encode()) == value


@given(st.dictionaries(NONEMPTY, st.none() | INT64 | TEXT, max_size=4), INT64)
def test_an_object_used_as_a_map_key_survives_a_round_trip(members, value):
    written = fastjson.object_keyed([(members, value)])

    assert fastjson.loads(written) == {tuple(sorted(members.items())): value}


@given(st.integers(), st.booleans())
def test_an_integer_is_read_exactly_or_refused_as_too_long(number, quoted_too):
    try:
        found = fastjson.loads(str(number).encode())
    except RemoteProtocolError:
        assert len(str(number)) > 40
    else:
        assert found == number
