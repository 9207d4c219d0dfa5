"""The head of a span: it is exactly what was written, where it was written, or it is none."""

import pytest

from txmq.protocol.span import HEAD_BYTES, SpanHead, head, read_head

PAYLOAD = b"records"
WRITTEN = head(1000, 900, PAYLOAD, 3)


def test_a_head_reads_as_it_was_written():
    found = read_head(b"....." + WRITTEN, 5, 1000)

    assert len(WRITTEN) == HEAD_BYTES
    assert found == SpanHead(HEAD_BYTES + len(PAYLOAD), 1000, 900, found.checksum, 3)


def test_a_head_written_for_another_place_is_none():
    assert read_head(WRITTEN, 0, 1001) is None


@pytest.mark.parametrize("length", range(HEAD_BYTES))
def test_a_head_that_is_cut_is_none(length):
    assert read_head(WRITTEN[:length], 0, 1000) is None


def test_a_head_with_any_bit_turned_over_is_none():
    for bit in range(HEAD_BYTES * 8):
        broken = bytearray(WRITTEN)
        broken[bit // 8] ^= 1 << bit % 8

        assert read_head(bytes(broken), 0, 1000) is None, bit


def test_a_head_that_claims_less_than_itself_is_none():
    assert read_head(head(0, 0, b"", 0), 0, 0) is not None
    assert read_head(bytes(4) + WRITTEN[4:], 0, 1000) is None
