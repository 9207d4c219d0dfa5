"""Facts of txmq.protocol.batch, against a batch written out by hand."""

import tracemalloc

import pytest

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import BATCH_MESSAGES_MAX, PROPERTIES_BYTES_MAX
from txmq.protocol.batch import pack, unpack

FIRST = (
    bytes.fromhex("0000001f 00000000 00000000 ffffffff 00000005")
    + b"hello"
    + bytes.fromhex("0004")
    + b"a\x01b\x02"
)
SECOND = bytes.fromhex("00000016 00000000 00000000 00000000 00000000 0000")
ITEMS = [(-1, b"hello", "a\x01b\x02"), (0, b"", "")]


def test_messages_of_a_batch_are_encoded_in_the_layout_of_the_protocol():
    assert pack(ITEMS) == FIRST + SECOND
    assert unpack(FIRST + SECOND) == ITEMS


def test_magic_and_checksum_of_a_message_are_not_checked():
    odd = FIRST[:4] + bytes.fromhex("daa320a7 12345678") + FIRST[12:]

    assert unpack(odd) == ITEMS[:1]


def test_an_empty_batch_is_refused():
    with pytest.raises(RemoteProtocolError, match="empty"):
        unpack(b"")


def test_a_batch_cut_anywhere_but_between_messages_is_refused():
    whole = FIRST + SECOND

    for cut in range(1, len(whole)):
        if cut != len(FIRST):
            with pytest.raises(RemoteProtocolError):
                unpack(whole[:cut])


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(b"\x00\x00\x00\x1e" + FIRST[4:], id="size-too-small"),
        pytest.param(b"\x00\x00\x00\x20" + FIRST[4:], id="size-too-large"),
        pytest.param(b"\x00\x00\x00\x00" + FIRST[4:], id="no-size"),
        pytest.param(b"\xff\xff\xff\xff" + FIRST[4:], id="negative-size"),
        pytest.param(FIRST[:16] + b"\x7f\xff\xff\xff" + FIRST[20:], id="huge-body"),
        pytest.param(FIRST[:16] + b"\xff\xff\xff\xff" + FIRST[20:], id="negative-body"),
        pytest.param(FIRST[:25] + b"\xff\xff" + FIRST[27:], id="huge-properties"),
        pytest.param(FIRST[:-1] + b"\xff", id="properties-not-utf-8"),
    ],
)
def test_invalid_lengths_are_refused_without_allocating_memory_for_them(broken):
    tracemalloc.start()

    with pytest.raises(RemoteProtocolError):
        unpack(broken)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


def test_more_messages_than_a_batch_may_hold_are_refused():
    assert len(unpack(SECOND * BATCH_MESSAGES_MAX)) == BATCH_MESSAGES_MAX
    with pytest.raises(RemoteProtocolError, match=str(BATCH_MESSAGES_MAX)):
        unpack(SECOND * (BATCH_MESSAGES_MAX + 1))


def test_the_longest_properties_can_be_written():
    longest = [(0, b"", "x" * PROPERTIES_BYTES_MAX)]

    assert unpack(pack(longest)) == longest


@pytest.mark.parametrize(
    "item",
    [
        pytest.param((0, b"", "x" * (PROPERTIES_BYTES_MAX + 1)), id="long-properties"),
        pytest.param((0, b"", "é" * 16_384), id="long-in-bytes"),
        pytest.param((0, b"", "\ud800"), id="half-character"),
        pytest.param((2**31, b"", ""), id="flag"),
    ],
)
def test_an_item_that_a_batch_cannot_hold_is_a_local_protocol_error(item):
    with pytest.raises(LocalProtocolError):
        pack([item])
