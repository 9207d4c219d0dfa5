"""The op marker, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.protocol import record as records
from txmq.protocol.span import (
    MARKER,
    MARKER_BYTES,
    REASON_BYTES_MAX,
    Decision,
    DecisionKind,
    DecisionSource,
    moment_of,
)

ONE = Decision(
    DecisionKind.COMMITTED, DecisionSource.OPERATOR, 1, 2, 3, 4, 5, "ann: the bank said so"
)
LONGS = st.integers(-(2**63), 2**63 - 1)
DECISIONS = st.builds(
    Decision,
    st.sampled_from(DecisionKind),
    st.sampled_from(DecisionSource),
    LONGS,
    LONGS,
    LONGS,
    LONGS,
    LONGS,
    st.text(max_size=REASON_BYTES_MAX // 4),
)


@given(DECISIONS, st.binary(max_size=40))
def test_a_decision_is_unpacked_unchanged_whatever_follows(decision, rest):
    data = decision.pack()

    assert Decision.unpack(data + rest, 0) == decision
    assert moment_of(data) == decision.decided_ms % 2**64
    assert len(data) == MARKER_BYTES + len(decision.reason.encode())
    assert int.from_bytes(data[:4], "big") == len(data)
    assert data[4:8] == MARKER


def test_the_layout_of_a_marker_on_disk_has_not_changed():
    assert MARKER_BYTES == 52
    assert ONE._replace(reason="r").pack().hex() == (
        "00000035" "74786d6b" "0000000000000001" "0000000000000002" "0000000000000003"
        "0000000000000004" "0000000000000005" "01" "03" "0001" "72"
    )  # fmt: skip
    assert [(kind.name, int(kind)) for kind in DecisionKind] == [
        ("COMMITTED", 1),
        ("ROLLED_BACK", 2),
        ("PARKED", 3),
    ]
    assert [(source.name, int(source)) for source in DecisionSource] == [
        ("PRODUCER", 1),
        ("CHECK", 2),
        ("OPERATOR", 3),
        ("BROKER", 4),
    ]


def test_the_longest_reason_is_packed_and_unpacked():
    reason = "é" * (REASON_BYTES_MAX // 2)

    assert Decision.unpack(ONE._replace(reason=reason).pack(), 0).reason == reason


def test_a_marker_is_never_unpacked_as_a_record():
    with pytest.raises(RemoteProtocolError, match="magic 74786D6B"):
        records.unpack(ONE.pack() + bytes(200))


def test_a_marker_that_ends_early_is_reported_with_its_position():
    for size in range(len(ONE.pack())):
        with pytest.raises(CorruptRecord, match="a marker") as error:
            pytest.fail(f"{size} bytes are read as {Decision.unpack(ONE.pack()[:size], 4711)}")

        assert error.value.position == 4711, size


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"\0\0\0\0"),
        (3, b"\x48"),
        (4, records.MAGIC.to_bytes(4, "big")),
        (48, b"\0"),
        (48, b"\4"),
        (49, b"\0"),
        (49, b"\5"),
        (50, b"\xff\xff"),
        (50, b"\0\0"),
        (52, b"\xff"),
    ],
    ids=[
        "size", "size by one", "magic", "kind 0", "kind 4", "source 0", "source 5",
        "reason longer", "reason shorter", "no text",
    ],
)  # fmt: skip
def test_a_damaged_marker_is_refused(at, data):
    broken = bytearray(ONE.pack())
    broken[at : at + len(data)] = data

    with pytest.raises(CorruptRecord, match="a marker"):
        Decision.unpack(bytes(broken) + bytes(70_000), 0)


@given(st.binary(max_size=120))
def test_random_bytes_are_refused_or_unpacked_exactly(data):
    for candidate in (data, (MARKER_BYTES + 9).to_bytes(4, "big") + MARKER + data):
        try:
            decision = Decision.unpack(candidate, 0)
        except CorruptRecord:
            continue
        assert candidate.startswith(decision.pack())
