"""A message as a row, and back: everything that can be sent is restored unchanged."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq import Message, Reply
from txmq.client.send_request import sealed
from txmq.errors import LimitExceeded, LocalProtocolError, TxmqError, UsageError
from txmq.limits import PROPERTIES_BYTES_MAX, SLOTS
from txmq.outbox.table import pack, slot_of, unpack
from txmq.protocol import properties

WORD = st.text(min_size=1, max_size=8)
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["transfer", "%RETRY%icbc", "a topic"]),
    body=st.binary(max_size=20),
    tags=st.text(max_size=5),
    keys=st.lists(WORD, max_size=3).map(tuple),
    properties=st.dictionaries(WORD, WORD, max_size=3),
    flag=st.integers(-(2**31), 2**31 - 1),
    delay_level=st.sampled_from([0, 0, 3]),
    deliver_at_ms=st.sampled_from([None, None, 0, 1_700_000_000_000]),
    deliver_after=st.sampled_from([None, None, 0, 5]),
)
FRESH = "A" * 32


def row(message, lane=None, fresh_id=FRESH):
    return pack(message, lane, fresh_id)


@given(MESSAGES, st.none() | WORD)
def test_a_message_packed_into_a_row_is_unpacked_unchanged(message, lane):
    try:
        found = pack(message, lane, FRESH)
    except TxmqError:
        return
    back = unpack(SimpleNamespace(**found, body=memoryview(message.body)))

    assert back.properties.pop(properties.UNIQUE_KEY) == FRESH
    assert back == message
    assert found["lane"] == lane
    assert found["slot"] == slot_of(lane or FRESH)
    assert sealed(back, "B" * 32)


@given(MESSAGES)
def test_a_message_that_a_producer_refuses_is_refused(message):
    try:
        sealed(message, FRESH)
    except TxmqError as problem:
        with pytest.raises(type(problem)):
            pack(message, None, FRESH)


def test_a_message_with_an_id_keeps_it():
    message = Message(topic="t", body=b"x", properties={properties.UNIQUE_KEY: "mine"})

    assert row(message)["message_id"] == "mine"


def test_wait_stored_survives_the_outbox():
    found = row(Message(topic="t", body=b"x", wait_stored=False))
    back = unpack(SimpleNamespace(**found, body=b"x"))
    assert properties.find(sealed(back, "ID").properties, "WAIT") == "false"


def test_properties_of_none_are_stored_as_an_empty_map():
    assert row(Message(topic="t", body=b"x", properties=None))["properties"] == "{}"


def test_properties_must_leave_room_for_those_that_a_relay_adds():
    room = PROPERTIES_BYTES_MAX - len(f"UNIQ_KEY\x01{FRESH}\x02p\x01\x02")
    fits = Message(topic="t", body=b"x", properties={"p": "x" * (room - 280)})
    too_large = Message(topic="t", body=b"x", properties={"p": "x" * room})

    assert sealed(too_large, FRESH)
    assert row(fits)
    with pytest.raises(LimitExceeded, match="properties"):
        row(too_large)
    with pytest.raises(LimitExceeded, match="properties"):
        row(fits, "l" * 100)


@pytest.mark.parametrize(
    ("message", "lane", "problem"),
    [
        (Message(topic="t", body=b"x"), "", LocalProtocolError),
        (Message(topic="t", body=b"x"), 7, LocalProtocolError),
        (Message(topic="t", body=b"x"), "a\0", LocalProtocolError),
        (Message(topic="t", body=b"x"), "a\x01", LocalProtocolError),
        (Message(topic="t", body=b"x"), "\ud800", LocalProtocolError),
        (Message(topic="t", body=b"x"), "x" * 256, LimitExceeded),
        (Message(topic="t", body=b"x", tags="\0"), None, LocalProtocolError),
        (Message(topic="t", body=b"x", tags="\ud800"), None, LocalProtocolError),
        (Message(topic="t", body="x"), None, LocalProtocolError),
        (Message(topic="t", body=b"x", keys="k"), None, LocalProtocolError),
        (
            Message(topic="t", body=b"x", properties={properties.UNIQUE_KEY: "x" * 256}),
            None,
            LimitExceeded,
        ),
        (Reply(topic="t", body=b"x", asked_in=None), None, UsageError),
        (None, None, LocalProtocolError),
    ],
)
def test_a_message_or_lane_that_no_row_can_hold_is_refused(message, lane, problem):
    with pytest.raises(problem):
        row(message, lane)


def test_lanes_are_spread_over_the_slots():
    used = [slot_of(f"account-{number}") for number in range(64 * 40)]

    assert set(used) == set(range(SLOTS))
    assert max(used.count(slot) for slot in range(SLOTS)) < 80
