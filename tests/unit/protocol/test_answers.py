"""The templates of txmq.protocol.templates give the same answers as the codec."""

import pytest

from txmq.protocol.command import BINARY, JSON, Command, FrameReader, answer, decode
from txmq.protocol.headers import PullAnswer, SendAnswer
from txmq.protocol.templates import done, pulled, sent, sent_delayed

OFFSET_ID = "0A00000100002A9F0000000000000400"
LARGE = 2**63 - 1
ODD_TEXTS = ["", "FOUND", 'a"b\\c\n\x01\x7f', "订单 \N{SNAKE}"]


def received(data):
    (part,) = FrameReader().feed(data)
    return decode(part)


def said(command):
    return (
        command.kind,
        command.code,
        command.opaque,
        command.flag,
        command.version,
        command.client_language,
        command.remark,
        command.field_map(),
        command.body,
    )


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("transaction_id", ODD_TEXTS)
@pytest.mark.parametrize(("opaque", "offset"), [(0, 0), (-1, LARGE), (2**31 - 1, 1)])
def test_the_template_for_the_answer_to_a_send_equals_the_codec(
    kind, transaction_id, opaque, offset
):
    to = Command(code=310, opaque=opaque, kind=kind)

    found = received(sent(to, OFFSET_ID.encode(), 3, offset, transaction_id))

    slow = {
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "msgId": OFFSET_ID, "queueId": "3",
        "queueOffset": str(offset), "transactionId": transaction_id,
    }  # fmt: skip
    assert said(found) == said(received(answer(to, 0, slow)))
    assert found.read(SendAnswer).msg_id == OFFSET_ID


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("opaque", [0, -1, 2**31 - 1, -(2**31)])
def test_the_template_for_an_empty_answer_equals_the_codec(kind, opaque):
    to = Command(code=37, opaque=opaque, kind=kind)

    assert said(received(done(to))) == said(received(answer(to)))


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("code", [0, 19, 20, 21])
@pytest.mark.parametrize("remark", [text for text in ODD_TEXTS if text])
@pytest.mark.parametrize("records", [[], [b"one"], [b"one", b"", b"two"]])
def test_the_template_for_the_answer_to_a_pull_equals_the_codec(kind, code, remark, records):
    to = Command(code=11, opaque=-7, kind=kind)

    found = received(pulled(to, code, (5, 0, LARGE), remark, records))

    slow = answer(to, code, PullAnswer(0, 5, 0, LARGE), body=b"".join(records), remark=remark)
    assert said(found) == said(received(slow))
    assert found.read(PullAnswer) == PullAnswer(0, 5, 0, LARGE)


def test_a_batch_is_answered_with_all_its_ids():
    found = received(sent(Command(code=320), f"{OFFSET_ID},{OFFSET_ID}".encode(), 0, 0, ""))

    assert found.read(SendAnswer).msg_id == f"{OFFSET_ID},{OFFSET_ID}"


@pytest.mark.parametrize("kind", [JSON, BINARY])
def test_the_answer_to_a_delayed_send_has_a_recall_handle(kind):
    to = Command(code=310, opaque=7, kind=kind)

    found = received(sent_delayed(to, OFFSET_ID.encode(), 3, 9, "AC11", "djEgVA=="))

    plain = received(sent(to, OFFSET_ID.encode(), 3, 9, "AC11"))
    assert found.field_map() == {**plain.field_map(), "recallHandle": "djEgVA=="}
    assert found.read(SendAnswer).recall_handle == "djEgVA=="
    assert plain.read(SendAnswer).recall_handle is None
