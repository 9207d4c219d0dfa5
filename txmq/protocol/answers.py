"""The most frequent answers, encoded by hand because every message needs one.

Their bytes equal those of :func:`txmq.protocol.command.answer`; a test compares them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from txmq.protocol.command import Command, answer
from txmq.protocol.frame import JSON
from txmq.protocol.headers import PullAnswer

__all__ = ["done", "pulled", "sent", "sent_delayed"]

_WORDS: Final = Struct(">II")
_REGION: Final = "DefaultRegion"
_text: Final = msgspec.json.encode

_SENT: Final = (
    b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"%b",'
    b'"queueId":"%d","queueOffset":"%d","transactionId":%b},"flag":1,"language":"JAVA",'
    b'"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)
_DONE: Final = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
    b'"version":409}'
)
_LENGTHS: Final = [_WORDS.pack(4 + size, size) for size in range(len(_DONE) + 16)]
_PULLED: Final = (
    b'{"code":%d,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"0"},"flag":1,"language":"JAVA","opaque":%d,"remark":%b,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}'
)


def sent(
    to: Command, offset_ids: bytes, queue_id: int, queue_offset: int, transaction_id: str
) -> bytes:
    """The answer to a send. It always has fields: Java clients read them without a check."""
    if to.kind == JSON:
        header = _SENT % (offset_ids, queue_id, queue_offset, _text(transaction_id), to.opaque)
        return _WORDS.pack(4 + len(header), len(header)) + header
    return answer(to, 0, _sent_fields(offset_ids, queue_id, queue_offset, transaction_id))


def sent_delayed(
    to: Command,
    offset_id: bytes,
    queue_id: int,
    queue_offset: int,
    transaction_id: str,
    recall_handle: str,
) -> bytes:
    """The answer to a send of a delayed message, with the handle for a recall."""
    fields = _sent_fields(offset_id, queue_id, queue_offset, transaction_id)
    return answer(to, 0, {**fields, "recallHandle": recall_handle})


def _sent_fields(
    offset_ids: bytes, queue_id: int, queue_offset: int, transaction_id: str
) -> dict[str, str]:
    return {
        "MSG_REGION": _REGION,
        "TRACE_ON": "true",
        "msgId": offset_ids.decode(),
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "transactionId": transaction_id,
    }


def done(to: Command) -> bytes:
    """The answer "success" without fields."""
    if to.kind == JSON:
        header = _DONE % to.opaque
        return _LENGTHS[len(header)] + header
    return answer(to)


def pulled(
    to: Command, code: int, bounds: tuple[int, int, int], remark: str, records: list[bytes]
) -> bytes:
    """The answer to a pull; ``bounds`` are the next, the minimum and the maximum offset."""
    next_offset, min_offset, max_offset = bounds
    if to.kind == JSON:
        header = _PULLED % (code, max_offset, min_offset, next_offset, to.opaque, _text(remark))
        size = sum([len(record) for record in records])
        return b"".join([_WORDS.pack(4 + len(header) + size, len(header)), header, *records])
    fields = PullAnswer(0, next_offset, min_offset, max_offset)
    return answer(to, code, fields, body=b"".join(records), remark=remark)
