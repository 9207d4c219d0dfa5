"""The most frequent frames, made from templates because every message needs one: sends, 310 and
320, and the answers to sends and pulls.

Their bytes equal those of :mod:`txmq.protocol.command`; tests compare them.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from txmq.errors import LocalProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import JSON, ONEWAY, VERSION, Command, answer, encode
from txmq.protocol.headers import PullAnswer
from txmq.security.signatures import Credentials

__all__ = [
    "SendHeaderTemplate",
    "done",
    "done_all",
    "pulled",
    "quoted",
    "sent",
    "sent_delayed",
    "sent_one",
]

_WORDS: Final = Struct(">II")
_SINGLE: Final = int(RequestCode.SEND_MESSAGE_V2)
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_SENDS: Final = (_SINGLE, _BATCH, int(RequestCode.SEND_DELAYED_HALF))
_text: Final = msgspec.json.encode


def quoted(text: str) -> bytes:
    """A text as a JSON string.

    Raises:
        LocalProtocolError: The text holds a lone surrogate.
    """
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a header cannot hold this text: {error}") from error


class SendHeaderTemplate:
    """The common header of all sends of one group to one topic at one broker, with placeholders.

    Args:
        group: The producer group.
        topic: The topic.
        template: The topic whose settings a new topic inherits.
        queues_of_new: The number of queues of a new topic.
        broker: The broker's name.
        credentials: The credentials that sign the sends.

    Raises:
        LocalProtocolError: A name holds a lone surrogate.
    """

    __slots__ = ("_credentials", "_forms", "_names")

    def __init__(
        self,
        group: str,
        topic: str,
        template: str,
        queues_of_new: int,
        broker: str,
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials
        self._names = {"a": group, "b": topic, "c": template, "d": str(queues_of_new), "n": broker}
        # Some topics' names contain a percent sign, which must not become a placeholder.
        group_text, topic_text, template_text, broker_text = (
            quoted(name).replace(b"%", b"%%") for name in (group, topic, template, broker)
        )
        names = b',"extFields":{"a":%b,"b":%b,"c":%b,' % (group_text, topic_text, template_text)
        begins = names + b'"d":"%d",' % queues_of_new
        placeholders = b'"e":"%d","f":"%d","g":"%d","h":"%d","i":%b,"j":"0","k":"false",'
        ends = (
            b',"n":%b},"flag":%%d,"language":"JAVA","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (broker_text, VERSION)
        )
        self._forms = {
            code: b'{"code":%d%b%b"m":"%b"%b'
            % (code, begins, placeholders, b"true" if code == _BATCH else b"false", ends)
            for code in _SENDS
        }

    def head(
        self,
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: str,
        body: bytes,
        *,
        code: int = _SINGLE,
        is_oneway: bool = False,
    ) -> bytes:
        """The bytes of a frame before its body.

        Args:
            opaque: The request's number.
            queue_id: The queue.
            sys_flag: The body's compression and the kind of message.
            born_ms: The time of sending.
            flag: The application's flag.
            properties: The message's properties, without a lone surrogate.
            body: The body, which is not part of the result.
            code: The request: a message, a batch or a half message that asks for a delay.
            is_oneway: Whether the sender wants no answer.

        Raises:
            LocalProtocolError: The frame would exceed the size that peers accept.
        """
        if self._credentials is not None:
            fields = self._fields(queue_id, sys_flag, born_ms, flag, properties, code)
            signed, mode = self._credentials.sign(fields, body), ONEWAY if is_oneway else 0
            whole = encode(code, opaque, signed, body=body, flag=mode)
            return whole[: len(whole) - len(body)]
        header = self._forms[code] % (
            queue_id, sys_flag, born_ms, flag, _text(properties), ONEWAY if is_oneway else 0, opaque
        )  # fmt: skip
        size, body_bytes = len(header), len(body)
        if size + body_bytes + 8 > FRAME_BYTES_MAX:
            raise LocalProtocolError(
                f"a frame of {size + body_bytes + 8} bytes exceeds {FRAME_BYTES_MAX}"
            )
        return _WORDS.pack(4 + size + body_bytes, size) + header

    def _fields(
        self,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: str,
        code: int,
    ) -> dict[str, str]:
        return {
            **self._names,
            "e": str(queue_id),
            "f": str(sys_flag),
            "g": str(born_ms),
            "h": str(flag),
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "true" if code == _BATCH else "false",
        }


_REGION: Final = "DefaultRegion"

_SENT: Final = (
    b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"%b",'
    b'"queueId":"%d","queueOffset":"%d","transactionId":%b},"flag":1,"language":"JAVA",'
    b'"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)
_SENT_ONE: Final = _SENT.replace(b'"%b"', b'"%b%016X"')
_SHORT_HEADER: Final = 1024
_DONE: Final = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
    b'"version":409}'
)
_LENGTHS: Final = [_WORDS.pack(4 + size, size) for size in range(_SHORT_HEADER)]
"""The first two words of short frames without a body, by the header's size."""
_PULLED: Final = (
    b'{"code":%d,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"%d"},"flag":1,"language":"JAVA","opaque":%d,"remark":%b,'
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


def sent_one(
    to: Command,
    store_host_hex: bytes,
    position: int,
    queue_id: int,
    queue_offset: int,
    transaction_id: str,
) -> bytes:
    """:func:`sent` for one message, with the two parts of its offset id: the broker's address in
    hexadecimal digits, and the position. Every message needs it, so it formats everything at once.
    """
    if to.kind == JSON:
        header = _SENT_ONE % (
            store_host_hex, position, queue_id, queue_offset, _text(transaction_id), to.opaque
        )  # fmt: skip
        if (size := len(header)) < _SHORT_HEADER:
            return _LENGTHS[size] + header
    return sent(to, b"%b%016X" % (store_host_hex, position), queue_id, queue_offset, transaction_id)


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


def done_all(requests: Sequence[Command]) -> list[bytes]:
    """:func:`done` for each of these requests; none of them may be one-way."""
    lengths, form = _LENGTHS, _DONE
    answers: list[bytes] = []
    for to in requests:
        if to.kind != JSON:
            answers.append(done(to))
        else:
            header = form % to.opaque
            answers.append(lengths[len(header)] + header)
    return answers


def pulled(
    to: Command,
    code: int,
    bounds: tuple[int, int, int],
    remark: str,
    records: list[bytes],
    replica: int = 0,
) -> bytes:
    """The answer to a pull.

    Args:
        to: The request.
        code: The code of the answer.
        bounds: The next, the minimum and the maximum offset.
        remark: The outcome as a word.
        records: The records that were found.
        replica: Which replica of the broker to pull from next; 0 is the leader.
    """
    next_offset, min_offset, max_offset = bounds
    if to.kind == JSON:
        header = _PULLED % (
            code,
            max_offset,
            min_offset,
            next_offset,
            replica,
            to.opaque,
            _text(remark),
        )
        size = sum(map(len, records))
        return b"".join([_WORDS.pack(4 + len(header) + size, len(header)), header, *records])
    fields = PullAnswer(replica, next_offset, min_offset, max_offset)
    return answer(to, code, fields, body=b"".join(records), remark=remark)
