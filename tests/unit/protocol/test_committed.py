"""A half message patched into its committed message, compared with one packed anew."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txmq.limits import PROPERTIES_BYTES_MAX, PROPERTIES_OF_HALF_MAX
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.record import Record

V4, V6 = bytes(range(8)), bytes(range(20))
LONGS = st.integers(-(2**63), 2**63 - 1)
HALF = Record(
    queue_id=3, flag=7, queue_offset=11, position=4711, sys_flag=0x4, born_ms=1, born_host=V4,
    stored_ms=2, store_host=V4, attempts=5, prepared_position=0, body=b"body", topic="T",
    properties="TRAN_MSG\x01true\x02",
)  # fmt: skip
HALVES = st.builds(
    Record,
    queue_id=st.integers(0, 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_offset=LONGS,
    position=LONGS,
    sys_flag=st.sampled_from([0x4, 0x5, 0x304, 0x2C4]),
    born_ms=LONGS,
    born_host=st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
    stored_ms=LONGS,
    store_host=st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
    attempts=st.integers(0, 99),
    prepared_position=st.just(0),
    body=st.binary(min_size=1, max_size=60),
    topic=st.text("abc%|-_9", min_size=1, max_size=127),
    properties=st.sampled_from(
        ["", "a\x01b", "a\x01b\x02", "ä\x01ß\x02KEYS\x01k l\x02", "\x02", "TAGS\x01x\x02\x02"]
    ),
)


def rebuilt(half, queue_offset, position, stored_ms, half_position):
    """The committed message built field by field, the slow way."""
    more = f"REAL_TOPIC\x01{half.topic}\x02REAL_QID\x01{half.queue_id}\x02"
    return msgspec.structs.replace(
        half,
        queue_offset=queue_offset,
        position=position,
        stored_ms=stored_ms,
        sys_flag=half.sys_flag & ~0xC | 0x8,
        prepared_position=half_position,
        properties=properties.join(half.properties, more),
    )


@given(HALVES, st.tuples(LONGS, LONGS, LONGS, LONGS))
@example(HALF, (0, 0, 0, 0))
@example(msgspec.structs.replace(HALF, born_host=V6), (1, 2, 3, 4))
@example(msgspec.structs.replace(HALF, store_host=V6), (1, 2, 3, 4))
@example(msgspec.structs.replace(HALF, born_host=V6, store_host=V6), (1, 2, 3, 4))
def test_a_patched_half_message_equals_the_message_packed_anew(half, places):
    data = records.pack(half)

    shown = records.committed(data, *places)

    assert shown == records.pack(rebuilt(records.unpack(data)[0], *places))
    assert data == records.pack(half), "what is stored stays as it is"


@pytest.mark.parametrize("born_host", [V4, V6])
@pytest.mark.parametrize("store_host", [V4, V6])
@pytest.mark.parametrize("text", ["", "a\x01b", "a\x01b\x02"])
def test_a_committed_message_has_its_new_position_and_its_original_fields(
    born_host, store_host, text
):
    half = msgspec.structs.replace(
        HALF, born_host=born_host, store_host=store_host, properties=text, sys_flag=0x304
    )

    shown, end = records.unpack(records.committed(records.pack(half), 8, 9, 10, 4711))

    assert (shown.queue_offset, shown.position, shown.stored_ms) == (8, 9, 10)
    assert (shown.prepared_position, shown.sys_flag & 0x30F) == (4711, 0x308)
    assert (shown.born_host, shown.store_host) == (born_host, store_host)
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 3, b"body")
    assert (shown.flag, shown.attempts, shown.born_ms) == (7, 5, 1)
    wanted = {**properties.parse(text), "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert shown.property_map() == wanted
    assert end == len(records.committed(records.pack(half), 8, 9, 10, 4711))


def test_a_half_message_with_the_longest_properties_can_be_committed():
    text = "a\x01" + "x" * (PROPERTIES_OF_HALF_MAX - 2)
    half = msgspec.structs.replace(HALF, topic="x" * 127, queue_id=2**31 - 1, properties=text)

    shown, _ = records.unpack(records.committed(records.pack(half), 0, 0, 0, 0))

    assert len(shown.properties.encode()) <= PROPERTIES_BYTES_MAX
    assert shown.property_map()["REAL_TOPIC"] == "x" * 127


def test_the_offset_of_a_half_message_is_read_without_the_rest():
    assert records.queue_offset_of(records.pack(HALF)) == 11
