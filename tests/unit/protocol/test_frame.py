"""Facts of txmq.protocol.command: where one frame ends and the next begins."""

import tracemalloc
from itertools import combinations

import pytest

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX, HEADER_FIELDS_MAX
from txmq.protocol.command import BINARY, JSON, FrameReader, frame
from txmq.text import quantity

FIRST = bytes.fromhex("0000000a 00000002") + b"{}" + b"body"
SECOND = bytes.fromhex("00000007 01000003") + b"abc"


def test_a_frame_starts_with_its_length_and_the_form_of_its_header():
    assert frame(JSON, b"{}", b"body") == FIRST
    assert frame(BINARY, b"abc") == SECOND


def test_the_header_word_matches_that_of_java():
    """RemotingCommandTest of RocketMQ: 261 as JSON is 00 00 01 05."""
    assert frame(JSON, bytes(261))[4:8] == bytes([0, 0, 1, 5])


def test_a_reader_returns_frames_in_order():
    frames = FrameReader().feed(FIRST + SECOND)

    assert frames == [(JSON, b"{}", b"body"), (BINARY, b"abc", b"")]


def test_a_frame_that_arrives_byte_by_byte_is_read_unchanged():
    reader = FrameReader()

    frames = [part for byte in FIRST + SECOND for part in reader.feed(bytes([byte]))]

    assert frames == [(JSON, b"{}", b"body"), (BINARY, b"abc", b"")]
    assert len(reader.held) == 0


def test_a_reader_holds_an_incomplete_frame():
    reader = FrameReader()

    frames = reader.feed(FIRST + SECOND[:9])

    assert frames == [(JSON, b"{}", b"body")]
    assert len(reader.held) == 9
    assert reader.feed(SECOND[9:]) == [(BINARY, b"abc", b"")]
    assert len(reader.held) == 0


def test_frames_are_the_same_wherever_reads_end():
    data = FIRST + SECOND + FIRST
    whole = FrameReader().feed(data)

    for first, second in combinations(range(len(data) + 1), 2):
        reader = FrameReader()
        frames = reader.feed(data[:first])
        frames += reader.feed(data[first:second])
        assert frames + reader.feed(data[second:]) == whole
        assert all(type(part) is bytes for _, *parts in frames for part in parts)


def test_empty_input_gives_no_frames():
    reader = FrameReader()

    assert reader.feed(b"") == []
    assert len(reader.held) == 0


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_length_too_small_for_the_header_word_is_refused(length):
    data = length.to_bytes(4, "big") + bytes(4)

    with pytest.raises(RemoteProtocolError, match=f"claims {quantity(length, 'byte')} with"):
        FrameReader().feed(data)


def test_a_header_longer_than_its_frame_is_refused():
    with pytest.raises(RemoteProtocolError, match="header of 3"):
        FrameReader().feed(bytes.fromhex("00000006 00000003") + b"ab")


@pytest.mark.parametrize("kind", [2, 0x16, 0x7F, 0x80, 0xFF])
def test_an_unknown_header_form_is_refused(kind):
    with pytest.raises(RemoteProtocolError, match=f"form {kind}"):
        FrameReader().feed(bytes.fromhex("00000004") + bytes([kind, 0, 0, 0]))


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX - 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_frame_over_the_limit_is_refused_as_soon_as_its_length_arrives(length):
    """This includes negative lengths: Java reads 80000000 and above as negative."""
    with pytest.raises(RemoteProtocolError, match="limit"):
        FrameReader().feed(length.to_bytes(4, "big") + bytes(4))


@pytest.mark.parametrize("kind", [JSON, BINARY])
def test_a_header_over_the_limit_is_refused_as_soon_as_its_length_arrives(kind):
    most = b"x" * HEADER_BYTES_MAX
    word = (kind << 24 | HEADER_BYTES_MAX + 1).to_bytes(4, "big")

    assert FrameReader().feed(frame(kind, most)) == [(kind, most, b"")]
    with pytest.raises(RemoteProtocolError, match=f"the limits are .* {HEADER_BYTES_MAX}"):
        FrameReader().feed((4 + len(most) + 1).to_bytes(4, "big") + word)
    with pytest.raises(LocalProtocolError, match=str(HEADER_BYTES_MAX)):
        frame(kind, most + b"x")


def header_with(count, field='"f%d":"12345"'):
    fields = ",".join(field % number for number in range(count))
    return f'{{"code":34,"extFields":{{{fields}}}}}'.encode()


@pytest.mark.parametrize("read_size", [FRAME_BYTES_MAX, 1000], ids=["whole", "in-pieces"])
def test_a_header_with_too_many_fields_is_refused_before_it_is_decoded(read_size):
    def read(header):
        data, reader, frames = frame(JSON, header), FrameReader(), []
        for at in range(0, len(data), read_size):
            frames += reader.feed(data[at : at + read_size])
        return frames

    most = header_with(HEADER_FIELDS_MAX)
    assert read(most) == [(JSON, most, b"")]
    with pytest.raises(RemoteProtocolError, match=f"more than {HEADER_FIELDS_MAX} fields"):
        read(header_with(2 * HEADER_FIELDS_MAX))


def test_text_that_looks_like_fields_is_not_counted():
    """A property may hold a JSON text of any number of members."""
    member = r"\"f\":\"x\","
    text = header_with(1, '"i%d":"' + member * HEADER_FIELDS_MAX * 2 + '"')

    assert FrameReader().feed(frame(JSON, text)) == [(JSON, text, b"")]
    unescaped = text.replace(b"\\", b"")
    assert FrameReader().feed(frame(BINARY, unescaped)) == [(BINARY, unescaped, b"")]


def test_the_limit_counts_the_length_prefix_itself():
    reader = FrameReader(limit=16)

    assert reader.feed(frame(JSON, b"{}", b"123456")) == [(JSON, b"{}", b"123456")]
    with pytest.raises(RemoteProtocolError):
        reader.feed(frame(JSON, b"{}", b"1234567"))


def test_the_largest_frame_allocates_no_memory_until_its_bytes_arrive():
    reader = FrameReader()
    claim = (FRAME_BYTES_MAX - 4).to_bytes(4, "big") + bytes(4)
    tracemalloc.start()

    frames = reader.feed(claim + b"x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert frames == []
    assert len(reader.held) == 9
    assert peak < 10_000


def test_a_large_frame_in_many_pieces_is_joined_once():
    """Joining at every piece would copy gigabytes here."""
    whole = frame(JSON, b"{}", bytes(8 * 1024 * 1024))
    reader = FrameReader()

    frames = [
        part for at in range(0, len(whole), 1000) for part in reader.feed(whole[at : at + 1000])
    ]

    assert frames == [(JSON, b"{}", bytes(8 * 1024 * 1024))]


def test_the_largest_frame_can_be_written_and_read():
    body = bytes(FRAME_BYTES_MAX - 8)

    written = frame(JSON, b"", body)

    assert len(written) == FRAME_BYTES_MAX
    assert FrameReader().feed(written) == [(JSON, b"", body)]


def test_a_frame_above_the_limit_is_not_written():
    with pytest.raises(LocalProtocolError, match=str(FRAME_BYTES_MAX + 1)):
        frame(JSON, b"", bytes(FRAME_BYTES_MAX - 7))
