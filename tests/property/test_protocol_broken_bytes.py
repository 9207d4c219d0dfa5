"""Whatever arrives: every reader gives a value or says who broke the protocol, and nothing else.

No reader may set aside what a length claims; the last tests here watch the memory.
"""

import tracemalloc
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.protocol_strategies import (
    ANY_BODY,
    ANY_HEADER,
    BATCH_ITEMS,
    BODY_SHAPES,
    FIELD_MAPS,
    HEADER_SHAPES,
    INT32,
    JSON_VALUES,
    PER_SHAPE,
    TEXT,
    broken,
    records,
    struct,
)
from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.protocol import (
    batch,
    fastjson,
    header_binary,
    headers,
    java,
    properties,
    record,
)
from txmq.protocol.bodies import MessageQueue, QueueStats, queue_map, read_queue_map
from txmq.protocol.command import BINARY, JSON, FrameReader, decode, encode
from txmq.protocol.compression import compress, decompress
from txmq.protocol.record import split_offset_id
from txmq.remoting.pool import split_address


def read_stream(data):
    for part in FrameReader().feed(data):
        read_command(part)


def read_command(part):
    """Read everything that a command offers."""
    command = decode(part)
    assert (command.kind, command.body) == (part[0], part[2])
    assert -(2**31) <= command.opaque < 2**31
    assert command.client_language
    assert command.is_answer in (True, False)
    for shape in [headers.SendMessageV2, *HEADER_SHAPES[::7]]:
        try:
            command.read(shape)
        except RemoteProtocolError:
            continue
    assert all(isinstance(text, str) for pair in command.field_map().items() for text in pair)


def read_records(data):
    for message in record.unpack_all(data):
        assert message.offset_id
        assert isinstance(message.property_map(), dict)
        try:
            message.plain_body()
        except RemoteProtocolError:
            continue


def read_json_header(data):
    read_command((JSON, data, b""))


def read_binary_header(data):
    read_command((BINARY, data, b""))


def frames_of(kind):
    return st.builds(
        lambda code, opaque, header, body: encode(code, opaque, header, body=body, kind=kind),
        st.integers(0, 400),
        INT32,
        ANY_HEADER | FIELD_MAPS,
        st.binary(max_size=20),
    )


SENDS = st.builds(
    lambda opaque, header: encode(310, opaque, header), INT32, struct(headers.SendMessageV2)
)


def header_of(data):
    (part,) = FrameReader().feed(data)
    return part[1]


QUEUE_MAPS = st.dictionaries(struct(MessageQueue), struct(QueueStats), max_size=3).map(
    lambda entries: b'{"offsetTable":' + queue_map(entries) + b"}"
)

READERS = {
    "stream-json": (read_stream, st.lists(frames_of(JSON), max_size=3).map(b"".join)),
    "sends": (read_stream, st.lists(SENDS, min_size=1, max_size=2).map(b"".join)),
    "send-header": (read_json_header, SENDS.map(header_of)),
    "stream-binary": (read_stream, st.lists(frames_of(BINARY), max_size=3).map(b"".join)),
    "json-header": (read_json_header, frames_of(JSON).map(header_of)),
    "binary-header": (read_binary_header, frames_of(BINARY).map(header_of)),
    "records": (read_records, st.lists(records().map(record.pack), max_size=2).map(b"".join)),
    "batch": (batch.unpack, st.lists(BATCH_ITEMS, min_size=1, max_size=3).map(batch.pack)),
    "json": (fastjson.loads, JSON_VALUES.map(msgspec.json.encode)),
    "queue-map": (lambda data: read_queue_map(data, "offsetTable", QueueStats), QUEUE_MAPS),
    "queue-map-as-json": (fastjson.loads, QUEUE_MAPS),
    "settings": (
        java.loads,
        st.dictionaries(TEXT, TEXT, max_size=3).map(java.dumps),
    ),
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_broken_frames_headers_and_records_are_read_or_refused(name, data):
    read, intact = READERS[name]

    with suppress(RemoteProtocolError):
        read(data.draw(broken(intact)))


@pytest.mark.parametrize("name", READERS)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(name, data):
    read, _ = READERS[name]

    with suppress(RemoteProtocolError):
        read(data)


GOLDEN = Path(__file__).parents[1] / "interop" / "golden"


def golden(*patterns):
    """Recorded bytes of real clients and brokers."""
    files = sorted(path for pattern in patterns for path in GOLDEN.glob(pattern))
    assert files
    return st.sampled_from(files).map(Path.read_bytes)


REAL = {
    "frames": (
        read_stream,
        golden("java-*-json.bin", "java-*-binary.bin", "cpp-*.bin", "ons-*.bin"),
    ),
    "records": (read_records, golden("java*-record-*.bin")),
    "batches": (batch.unpack, golden("java*-batch.bin")),
    "bodies": (fastjson.loads, golden("java-body-*.json")),
    "maps": (lambda data: read_queue_map(data, "offsetTable", QueueStats), golden("*stats.json")),
}


@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
def test_damaged_golden_bytes_are_read_or_refused(name, data):
    read, intact = REAL[name]

    with suppress(RemoteProtocolError):
        read(data.draw(broken(intact)))


@pytest.mark.parametrize("shape", BODY_SHAPES, ids=lambda shape: shape.__name__)
@given(data=st.data())
@PER_SHAPE
def test_a_broken_body_is_read_or_refused(shape, data):
    """Its own damaged text, or the text of another body."""
    text = data.draw(broken((struct(shape) | ANY_BODY).map(lambda body: body.write())))

    with suppress(RemoteProtocolError):
        assert type(shape.read(text)) is shape


@pytest.mark.parametrize("shape", HEADER_SHAPES, ids=lambda shape: shape.__name__)
@given(
    st.dictionaries(st.integers(0, 20), JSON_VALUES, max_size=8),
    st.sampled_from([b"", b",", b" "]),
)
@PER_SHAPE
def test_header_fields_of_any_type_are_read_or_refused(shape, values, trailer):
    """With the right names, so that each value meets its type; a comma takes the slow path."""
    names = list(shape.__struct_encode_fields__) or ["x"]
    fields = {names[number % len(names)]: value for number, value in values.items()}
    text = msgspec.json.encode({"code": 1, "extFields": fields})

    with suppress(RemoteProtocolError):
        decode((JSON, text[:-1] + trailer + b"}", b"")).read(shape)


NUMBER_TEXTS = st.sampled_from(
    ["", "-", "+1", " 1", "1 ", "1.0", "1.5", "1e5", "1e400", "0x10", "nan", "inf", "-inf", "null"]
    + ["true", "٣", "1_000", "9" * 19, "9" * 40, "9" * 5000, "-" + "9" * 5000, "0" * 5000]
)


@pytest.mark.parametrize("shape", HEADER_SHAPES, ids=lambda shape: shape.__name__)
@given(text=NUMBER_TEXTS, kind=st.sampled_from([JSON, BINARY]))
@PER_SHAPE
def test_odd_number_texts_in_headers_are_read_or_refused(shape, text, kind):
    fields = dict.fromkeys(shape.__struct_encode_fields__, text)
    (part,) = FrameReader().feed(encode(1, 1, fields, kind=kind))

    with suppress(RemoteProtocolError):
        decode(part).read(shape)


@given(
    st.sampled_from(["zlib", "lz4", "zstd"]),
    st.integers(0, 0x7FF),
    st.binary(max_size=300),
    st.data(),
)
def test_a_broken_compressed_body_is_decompressed_or_refused(algorithm, other_flags, body, data):
    bits, smaller = compress(body, algorithm)
    smaller = data.draw(broken(st.just(smaller)))

    for flags in (bits, other_flags):
        try:
            opened = decompress(flags, smaller, limit=100_000)
        except RemoteProtocolError:
            continue
        assert len(opened) <= max(100_000, len(smaller))


@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEF \t", max_size=60))
def test_a_broken_message_id_is_read_or_refused(text):
    with suppress(RemoteProtocolError):
        address, position = split_offset_id(text)
        host, port = split_address(address)
        assert isinstance(host, str)
        assert 0 <= port <= 65535
        assert -(2**63) <= position < 2**63


@given(st.text())
def test_any_text_parses_as_properties(text):
    found = properties.parse(text)

    assert all(name and value for name, value in found.items())


@given(st.binary(max_size=200), st.integers(8, 100))
def test_a_reader_never_holds_more_than_its_limit(data, limit):
    reader = FrameReader(limit)

    try:
        for byte in data:
            reader.feed(bytes([byte]))
            assert len(reader.held) < limit
    except RemoteProtocolError:
        pass


@given(st.binary(max_size=60), FIELD_MAPS)
def test_unencodable_text_is_written_or_raises_a_local_error(noise, fields):
    """Lone surrogates come from file names and settings of misconfigured machines."""
    half = noise.decode("utf-8", "surrogateescape")

    for kind in (JSON, BINARY):
        with suppress(LocalProtocolError):
            read_stream(encode(1, 1, fields | {"half": half}, kind=kind))
    with suppress(LocalProtocolError):
        batch.unpack(batch.pack([(0, b"", half)]))


# Claims

BIG = (2**31 - 1).to_bytes(4, "big")


def claims(data):
    """The same bytes with a huge number at every position."""
    return [data[:at] + BIG + data[at + 4 :] for at in range(len(data))]


def _a_record():
    return record.pack(
        record.Record(0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"body", "T", "a\x01b\x02")
    )


@pytest.mark.fault("M14")
@pytest.mark.parametrize(
    ("read", "intact"),
    [
        pytest.param(read_records, _a_record(), id="record"),
        pytest.param(batch.unpack, batch.pack([(0, b"body", "a\x01b\x02")]), id="batch"),
        pytest.param(read_stream, encode(105, 1, {"topic": "T"}, body=b"x"), id="json-frame"),
        pytest.param(
            read_stream,
            encode(105, 1, {"topic": "T"}, body=b"x", kind=BINARY),
            id="binary-frame",
        ),
        pytest.param(
            read_binary_header,
            header_binary.pack(header_binary.BinaryHeader(1, 0, 0, 0, 0, "r", {"a": "b"})),
            id="binary-header",
        ),
        pytest.param(
            lambda data: decompress(0x201, data, 10_000), compress(b"x", "zstd")[1], id="zstd"
        ),
        pytest.param(
            lambda data: decompress(0x101, data, 10_000), compress(b"x", "lz4")[1], id="lz4"
        ),
        pytest.param(
            lambda data: decompress(0x1, data, 10_000), compress(b"x", "zlib")[1], id="zlib"
        ),
    ],
)
def test_a_false_length_field_allocates_little_memory(read, intact):
    tracemalloc.start()
    try:
        for data in claims(intact):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(RemoteProtocolError):
                read(data)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 200_000, data
    finally:
        tracemalloc.stop()
