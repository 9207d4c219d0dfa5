"""Facts of txmq.protocol.recall: handles as RocketMQ 5 writes and reads them."""

import base64

import pytest

from txmq.errors import IllegalOperation, LocalProtocolError
from txmq.protocol.recall import RecallHandle, decode, encode

HANDLE = RecallHandle("Orders", "broker-a", 1735689600001, "AC110001001A355DA2541234ABCD0001")
WRITTEN = "djEgT3JkZXJzIGJyb2tlci1hIDE3MzU2ODk2MDAwMDEgQUMxMTAwMDEwMDFBMzU1REEyNTQxMjM0QUJDRDAwMDE="


def of(text):
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_a_recall_handle_is_its_five_parts_in_base64():
    assert encode(HANDLE) == WRITTEN == of(f"v1 Orders broker-a 1735689600001 {HANDLE.message_id}")
    assert decode(WRITTEN) == HANDLE


def test_a_recall_handle_uses_the_url_safe_alphabet():
    handle = RecallHandle("T", "b", 0, "\N{SNAKE}>>>???")

    written = encode(handle)

    assert {"-", "_"} & set(written)
    assert not {"+", "/"} & set(written)
    assert decode(written) == handle


@pytest.mark.parametrize("message_id", ["x", "xy", "xyz", "an id of words"])
def test_a_recall_handle_is_read_with_or_without_padding(message_id):
    handle = HANDLE._replace(message_id=message_id)

    assert decode(encode(handle)) == decode(encode(handle).rstrip("=")) == handle


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"djEgT3JkZXJz",
        "",
        "=",
        "v1 a b 1 d",
        "\xe9",
        "\N{SNAKE}",
        WRITTEN + "!",
        WRITTEN[:5],
        of("v1 a b 1"),
        of("v1 a b 1 "),
        of("v1  b 1 d"),
        of("v2 a b 1 d"),
        of("v1 a b c d"),
        of("v1 a b -1 d"),
        of("v1 a b +1 d"),
        of("v1 a b 1_0 d"),
        of("v1 a b \N{FULLWIDTH DIGIT ONE} d"),
        of("v1 a b " + "9" * 20 + " d"),
        base64.urlsafe_b64encode(b"v1 a b 1 \xff").decode(),
    ],
)
def test_a_malformed_recall_handle_is_refused(text):
    with pytest.raises(IllegalOperation, match="is not a recall handle"):
        decode(text)


def test_the_error_for_a_long_recall_handle_is_short():
    with pytest.raises(IllegalOperation) as refused:
        decode("x" * 100_000)

    assert len(refused.value.remark) < 300


@pytest.mark.parametrize(
    "change",
    [{"topic": ""}, {"topic": "a b"}, {"broker": "a b"}, {"message_id": ""}, {"due_ms": -1}],
)
def test_a_recall_handle_that_could_not_be_read_again_is_not_written(change):
    with pytest.raises(LocalProtocolError, match="a recall handle cannot hold this"):
        encode(HANDLE._replace(**change))
