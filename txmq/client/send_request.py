"""Send requests of one message or a batch, and their answers. Pure.

A message becomes an envelope (checked, with an id, compressed); several envelopes become a batch.
Producers, administrators and the outbox use this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from txmq.client.names import check_name
from txmq.client.values import SendResult, SendStatus
from txmq.errors import ConfigError, LimitExceeded, LocalProtocolError, TxmqError, refusal
from txmq.limits import (
    BATCH_MESSAGES_MAX,
    MESSAGE_BODY_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    SPAN_BYTES_MAX,
)
from txmq.message import Message, Queue, QueueOffset
from txmq.protocol import batch, compression, properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.compression import Algorithm
from txmq.protocol.headers import SendAnswer
from txmq.protocol.topics import RETRY
from txmq.settings.units import DurationLike, seconds

__all__ = [
    "STOCK",
    "STORED_BYTES",
    "Envelope",
    "Packing",
    "bundled",
    "common_topic",
    "compressed",
    "packed_size",
    "result_of",
    "results_of",
    "sealed",
    "split",
    "travels_alone",
]

COMPRESS_FROM_BYTES: Final = 4096
"""Bodies from this size on are compressed, as stock producers do."""

_STATUSES: Final = {status.value: status for status in SendStatus}
_OK: Final = SendStatus.OK
_ITEM_BYTES: Final = 22
"""The overhead of a message in a batch, in addition to its body and properties."""
STORED_BYTES: Final = 512
"""The maximum overhead of a stored message: hosts, times, topic, cluster."""
_DELAYS: Final = frozenset(properties.DELAYS)


@dataclass(frozen=True, slots=True)
class Packing:
    """Options for encoding messages."""

    body_bytes_max: int = MESSAGE_BODY_BYTES_MAX
    compress_from: int = COMPRESS_FROM_BYTES
    algorithm: Algorithm = "zlib"


STOCK: Final = Packing()
"""As stock producers do."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An encoded message, or several as one batch."""

    # Created for each message; a frozen dataclass takes six times as long.

    topic: str
    id: str
    flag: int
    sys_flag: int
    body: bytes
    properties: str
    ids: tuple[str, ...] = ()
    """The ids of the messages in a batch."""
    code: int = int(RequestCode.SEND_MESSAGE_V2)
    """The request that sends it."""


@lru_cache(maxsize=1024)
def _check_topic(name: str) -> None:
    check_name("topic", name)  # Cached: every message names a topic, and there are few.


def sealed(
    message: Message,
    fresh_id: str,
    packing: Packing = STOCK,
    *,
    compress: bool = True,
    sys_flag: int = 0,
    marks: str = "",
) -> Envelope:
    """Encode a message.

    A message with a unique key in its properties keeps that key, so that it can be sent again under
    the same id.

    Args:
        message: The message.
        fresh_id: Its id, unless it has one.
        packing: Options for encoding.
        compress: Whether a large body is compressed.
        sys_flag: The kind of message.
        marks: Further properties as text; used only if the message has no properties and
            ``wait_stored`` is true.

    Raises:
        LocalProtocolError: The protocol cannot carry it.
        LimitExceeded: It is too large.
    """
    _check_topic(message.topic)
    body = message.body
    if not isinstance(body, bytes):
        how = "text.encode()" if isinstance(body, str) else "encode_body(value)"
        raise LocalProtocolError(
            f"a body is bytes, not {type(body).__name__}; encode it, as in {how}"
        )
    flag = message.flag
    if flag and not -(2**31) <= flag < 2**31:
        raise LocalProtocolError(f"a flag is a number of 32 bits, not {flag}")
    if not 0 < len(body) <= packing.body_bytes_max:
        raise _wrong_size(body, packing)
    if (
        message.properties
        or not message.wait_stored
        or message.delay_level
        or message.deliver_at_ms is not None
        or message.deliver_after is not None
    ):
        named = _properties(message)
        fresh_id = named.setdefault(properties.UNIQUE_KEY, fresh_id)
        text = properties.render(named)
    elif marks:
        text = f"UNIQ_KEY\x01{fresh_id}\x02{marks}"
        if message.tags or message.keys:
            text += _marks(message)
    else:
        text = f"UNIQ_KEY\x01{fresh_id}\x02"
        if message.tags or message.keys:
            text = _marks(message) + text
    if len(text) > PROPERTIES_BYTES_MAX or not text.isascii():
        _check_properties(text)
    envelope = Envelope(message.topic, fresh_id, flag, sys_flag, body, text)
    if compress and len(body) >= packing.compress_from:
        return compressed(envelope, packing)
    return envelope


def _wrong_size(body: bytes, packing: Packing) -> TxmqError:
    if not body:
        return LocalProtocolError(
            "a message needs a body; stock clients and brokers refuse an empty one"
        )
    return LimitExceeded("the size of a message", packing.body_bytes_max, len(body))


def compressed(envelope: Envelope, packing: Packing = STOCK) -> Envelope:
    """The envelope with a compressed body, if the body is large enough and becomes smaller.

    Raises:
        ConfigError: The algorithm needs a package that is not installed.
    """
    if len(envelope.body) < packing.compress_from:
        return envelope
    sys_flag, body = compression.compress(envelope.body, packing.algorithm)
    if len(body) >= len(envelope.body):
        return envelope
    return msgspec.structs.replace(envelope, sys_flag=envelope.sys_flag | sys_flag, body=body)


def _check_properties(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a message cannot hold this text: {error}") from error
    if size > PROPERTIES_BYTES_MAX:
        raise LimitExceeded("the size of a message's properties", PROPERTIES_BYTES_MAX, size)


def _marks(message: Message) -> str:
    """Tags and keys as text, for messages without other properties."""
    keys, tags = message.keys, message.tags
    if (
        type(keys) is tuple
        and len(keys) == 1
        and type(key := keys[0]) is str
        and key
        and key.isprintable()
        and " " not in key
        and type(tags) is str
        and tags.isprintable()
        and "||" not in tags
    ):
        # The common case. Printable text has no control characters, and no white space but blanks.
        text = f"KEYS\x01{key}\x02"
        return f"TAGS\x01{tags}\x02{text}" if tags else text
    return _checked_marks(message)


def _checked_marks(message: Message) -> str:
    keys = _joined(message.keys)
    _check_tag(message.tags)
    text = f"TAGS\x01{message.tags}\x02" if message.tags else ""
    if keys:
        text += f"KEYS\x01{keys}\x02"
    pairs = bool(message.tags) + bool(keys)
    if text.count("\x01") != pairs or text.count("\x02") != pairs:
        raise LocalProtocolError("a tag or a key holds a control character 1 or 2")
    return text


def _check_tag(tags: object) -> None:
    if not tags:
        return
    if not isinstance(tags, str):
        raise LocalProtocolError(f"a message has one tag, which is a str, not {tags!r}")
    if "||" in tags:
        raise LocalProtocolError(
            f"a message has one tag, not {tags!r}: '||' is for consumers, which may want several"
        )


def _joined(keys: Sequence[str]) -> str:
    if isinstance(keys, str):
        # A string would become one key per character.
        raise LocalProtocolError(f"keys are a tuple, not a str; write keys=({keys!r},)")
    try:
        text = " ".join(keys)
    except TypeError:
        raise LocalProtocolError(f"keys are a tuple of str, not {keys!r}") from None
    if text.split() != list(keys):
        raise LocalProtocolError("a key is empty or holds white space, which separates keys")
    return text


def _properties(message: Message) -> dict[str, str]:
    named = dict(message.properties)
    if properties.TAGS in named or properties.KEYS in named:
        raise LocalProtocolError("give tags and keys as such, not as properties")
    keys = _joined(message.keys)
    _check_tag(message.tags)
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise LocalProtocolError(f"properties are str, not {name!r}: {value!r}")
        if not (name and value):
            raise LocalProtocolError(
                "a property without a name or a value would be dropped on its way"
            )
    if message.tags:
        named[properties.TAGS] = message.tags
    if keys:
        named[properties.KEYS] = keys
    if not message.wait_stored:
        named[properties.WAIT] = "false"
    if (
        message.delay_level
        or message.deliver_at_ms is not None
        or message.deliver_after is not None
    ):
        _add_delay(message, named)
    return named


def _add_delay(message: Message, named: dict[str, str]) -> None:
    wanted = {
        properties.DELAY: ("delay_level", message.delay_level or None),
        properties.DELIVER_AT: ("deliver_at_ms", message.deliver_at_ms),
        properties.DELIVER_AFTER: ("deliver_after", message.deliver_after),
    }
    given = {name: option for name, option in wanted.items() if option[1] is not None}
    if len(given) > 1 or any(name in named for name in properties.DELAYS):
        raise LocalProtocolError(
            "a message is delayed in one way: delay_level, deliver_at_ms or deliver_after"
        )
    for name, (field, value) in given.items():
        if name == properties.DELIVER_AFTER and value is not None:
            _add_after(value, named)
        elif not isinstance(value, int) or value < 0:
            raise LocalProtocolError(f"{field} is a whole number from 0 on, not {value!r}")
        else:
            named[name] = str(value)


def _add_after(value: DurationLike, named: dict[str, str]) -> None:
    try:
        after_s = seconds("deliver_after", value)
    except ConfigError as error:
        raise LocalProtocolError(str(error)) from error
    if after_s.is_integer():
        named[properties.DELIVER_AFTER] = str(int(after_s))
    else:
        named[properties.DELIVER_AFTER_MS] = str(math.ceil(after_s * 1000))


# Requests


def bundled(envelopes: Sequence[Envelope]) -> Envelope:
    """Several messages of one topic as one batch.

    Raises:
        LocalProtocolError: A message cannot be in a batch.
    """
    # Bodies stay uncompressed: stock brokers and consumers do not support compression in a batch.
    body = batch.pack(
        [(envelope.flag, envelope.body, envelope.properties) for envelope in envelopes]
    )
    # The broker reads only a batch's common properties; a batch waits if any of its messages does.
    wait = properties.WAIT
    waits = any(properties.find(envelope.properties, wait) != "false" for envelope in envelopes)
    common = "" if waits else properties.render({wait: "false"})
    ids = tuple([envelope.id for envelope in envelopes])
    code = int(RequestCode.SEND_BATCH_MESSAGE)
    return Envelope(envelopes[0].topic, "", 0, 0, body, common, ids, code)


def result_of(answer: Command, queue: Queue, own_id: str) -> SendResult:
    """The result in an answer, for one message or a whole batch.

    Raises:
        RemoteProtocolError: The answer is invalid.
        BrokerRefused: The broker refused; the subclass says whether it stored the message anyway.
    """
    code = answer.code
    status = _OK if code == 0 else _STATUSES.get(code)
    if status is None or (code and not answer.field_map()):
        # A broker returns the place of a stored message, whatever the status.
        raise refusal(code, answer.remark or "")
    sent = answer.read(SendAnswer)
    if sent.queue_id != queue.number:
        queue = Queue(queue.topic, queue.broker, sent.queue_id)
    offset = QueueOffset(sent.queue_offset)
    return SendResult(
        status, queue, offset, own_id, sent.msg_id, sent.transaction_id, sent.recall_handle
    )


def results_of(answer: Command, queue: Queue, ids: tuple[str, ...]) -> list[SendResult]:
    """The result of each message of a batch.

    Raises:
        RemoteProtocolError: The answer is invalid.
        BrokerRefused: The broker refused; the subclass says whether it stored the messages anyway.
    """
    whole = result_of(answer, queue, ids[0])
    if len(ids) == 1:
        return [whole]
    places: Sequence[str] = whole.offset_id.split(",")
    if len(places) != len(ids):
        places = [""] * len(ids)
    status, stored, first, xid = whole.status, whole.queue, whole.offset, whole.transaction_id
    offsets = map(QueueOffset, range(first, first + len(ids)))
    return [
        SendResult(status, stored, offset, own_id, place, xid)
        for offset, own_id, place in zip(offsets, ids, places, strict=True)
    ]


def packed_size(envelope: Envelope) -> int:
    """The size of a message in a batch, in bytes."""
    text = envelope.properties
    size = len(text) if text.isascii() else len(text.encode())
    return _ITEM_BYTES + len(envelope.body) + size


def split(envelopes: Sequence[Envelope], bytes_max: int) -> list[list[Envelope]]:
    """Split messages into as few batches as possible, in order; an oversized one is alone."""
    parts: list[list[Envelope]] = []
    sizes = [packed_size(envelope) for envelope in envelopes]
    if _fits(len(sizes), sum(sizes), bytes_max):
        return [list(envelopes)]
    size = stored = 0
    for envelope, own in zip(envelopes, sizes, strict=True):
        size += own
        stored += own + STORED_BYTES
        is_full = size > bytes_max or stored > SPAN_BYTES_MAX
        if not parts or is_full or len(parts[-1]) >= BATCH_MESSAGES_MAX:
            parts.append([])
            size, stored = own, own + STORED_BYTES
        parts[-1].append(envelope)
    return parts


def _fits(count: int, size: int, bytes_max: int) -> bool:
    stored = size + count * STORED_BYTES
    return size <= bytes_max and stored <= SPAN_BYTES_MAX and 0 < count <= BATCH_MESSAGES_MAX


def is_delayed(message: Message) -> bool:
    """Whether a message asks for a delay, by its fields or by its properties."""
    return (
        bool(message.delay_level)
        or message.deliver_at_ms is not None
        or message.deliver_after is not None
        or (bool(message.properties) and not _DELAYS.isdisjoint(message.properties))
    )


def travels_alone(message: Message) -> bool:
    """Whether a message cannot be in a batch: it is delayed, a retry, or a half message."""
    return (
        is_delayed(message)
        or message.topic.startswith(RETRY)
        or properties.TRANSACTION in message.properties
    )


def common_topic(messages: Sequence[Message]) -> str:
    """The common topic of messages that may form a batch.

    Raises:
        LocalProtocolError: They may not form a batch.
    """
    if not isinstance(messages, Sequence):
        hint = "; write send_batch([message])" if isinstance(messages, Message) else ""
        given = type(messages).__name__
        raise LocalProtocolError(f"a batch is a list of messages, not a {given}{hint}")
    try:
        topics = {message.topic: None for message in messages}
    except AttributeError as error:
        raise LocalProtocolError("a batch is a list of messages only") from error
    if not topics:
        raise LocalProtocolError("a batch without a message cannot be sent")
    if len(topics) > 1:
        raise LocalProtocolError(f"a batch has one topic, not {', '.join(topics)}")
    if True in map(travels_alone, messages):
        at = [travels_alone(message) for message in messages].index(True)
        raise LocalProtocolError(
            f"message {at} of the batch is {_why_alone(messages[at])}, so send it by itself"
        )
    wait = messages[0].wait_stored
    for at, message in enumerate(messages):
        if message.wait_stored is not wait:
            raise LocalProtocolError(
                f"message {at} of the batch has another wait_stored than the first; a batch is "
                "stored together, so give all of them the same, or send two batches"
            )
    return messages[0].topic


def _why_alone(message: Message) -> str:
    if message.topic.startswith(RETRY):
        return f"for the retry topic {message.topic}"
    if properties.TRANSACTION in message.properties:
        return "half of a transaction"
    return "delayed"
