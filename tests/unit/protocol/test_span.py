"""The head of a span: it is valid only unchanged, and at the position it was written for."""

import pytest

from txmq.errors import CorruptRecord
from txmq.protocol.record import Record, pack
from txmq.protocol.span import (
    HEAD_BYTES,
    Decision,
    DecisionKind,
    DecisionSource,
    SpanHead,
    ends_in,
    found_in,
    head,
    heads_in,
    name_of,
    read_head,
    start_in,
)

PAYLOAD = b"records"
WRITTEN = head(7, 1000, 900, PAYLOAD, 3)


def test_a_head_is_read_unchanged():
    found = read_head(b"....." + WRITTEN, 5, 1000)

    assert len(WRITTEN) == HEAD_BYTES
    assert found == SpanHead(HEAD_BYTES + len(PAYLOAD), 7, 1000, 900, found.checksum, 3)


def test_a_head_written_for_another_position_is_not_a_head():
    assert read_head(WRITTEN, 0, 1001) is None


def test_a_truncated_head_is_not_a_head():
    for length in range(HEAD_BYTES):
        assert read_head(WRITTEN[:length], 0, 1000) is None, length


def test_a_head_with_any_flipped_bit_is_not_a_head():
    for bit in range(HEAD_BYTES * 8):
        broken = bytearray(WRITTEN)
        broken[bit // 8] ^= 1 << bit % 8

        assert read_head(bytes(broken), 0, 1000) is None, bit


def test_a_head_with_a_size_below_its_own_is_not_a_head():
    assert read_head(head(7, 0, 0, b"", 0), 0, 0) is not None
    assert read_head(bytes(4) + WRITTEN[4:], 0, 1000) is None


def test_heads_are_found_at_any_offset():
    other = head(7, 2000, 1000, b"", 0)
    data = b"?" * 7 + WRITTEN + PAYLOAD + WRITTEN + b"txmq" + other

    at = 1000 - 7
    assert [span_head.position for span_head in heads_in(data, at)] == [1000]
    second = 2000 - data.index(other)
    assert [span_head.position for span_head in heads_in(data, second)] == [2000]
    assert list(heads_in(WRITTEN[4:], 1004)) == []


def test_ends_of_spans_are_found_while_each_follows_the_one_before():
    second = head(7, 1000 + len(WRITTEN + PAYLOAD), 900, b"x" * 60, 0)
    data = WRITTEN + PAYLOAD + second
    ends = [1000 + len(WRITTEN + PAYLOAD), 1000 + len(data) + 60]

    assert list(ends_in(data + b"x" * 60, 1000)) == list(ends_in(data, 1000)) == ends
    assert list(ends_in(data[:-1], 1000)) == ends[:1]
    assert list(ends_in(WRITTEN + PAYLOAD + WRITTEN, 1000)) == ends[:1]
    assert list(ends_in(b"?" + data, 999)) == []
    assert list(ends_in(bytes(4) + WRITTEN[4:], 1000)) == []


@pytest.mark.parametrize(
    "name", ["", "1.log", f"{name_of(1)}", f"{name_of(1)}.idx", f"{name_of(1)}.log.bak", "x.log"]
)
def test_files_with_other_names_do_not_belong_to_the_log(name):
    assert start_in(name) is None
    assert start_in(f"{name_of(4711)}.log") == 4711


HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
DECISION = Decision(DecisionKind.COMMITTED, DecisionSource.CHECK, 3, 1000, 2, 7, 1_700_000_000_000)


def record_at(position):
    return Record(0, 0, 1, position, 0, 1, HOST, 2, HOST, 0, 0, b"body", "T", "A\x01b\x02")


def test_markers_and_records_of_a_span_are_found_in_order():
    marker, record = DECISION.pack(), record_at(1000 + len(DECISION.pack()))
    payload = marker + pack(record) + marker

    found = list(found_in(payload, 1000))

    assert [entry for entry, _, _ in found] == [DECISION, record, DECISION]
    assert [where for _, where, _ in found] == [
        1000,
        record.position,
        1000 + len(payload) - len(marker),
    ]
    assert b"".join(data for _, _, data in found) == payload


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (pack(record_at(1001)), "states position 1001"),
        (pack(record_at(1000))[:-1], "not a record"),
        (DECISION.pack()[:-1], "ends in the middle"),
    ],
)
def test_a_damaged_span_is_reported_with_its_position(payload, why):
    with pytest.raises(CorruptRecord, match=f"at position 1000: .*{why}"):
        list(found_in(payload, 1000))
