"""A message as an application sees it, to and from what travels. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from txmq.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from txmq.limits import MESSAGE_BODY_BYTES_MAX, PROPERTIES_BYTES_MAX, TOPIC_CHARS_MAX
from txmq.message import LogPosition, Message, Queue, QueueOffset, ReceivedMessage
from txmq.protocol import compression, properties
from txmq.protocol.compression import Algorithm
from txmq.protocol.record import Record

__all__ = [
    "STOCK",
    "Envelope",
    "Packing",
    "check_name",
    "compressed",
    "opened",
    "received",
    "sealed",
]

COMPRESS_FROM_BYTES: Final = 4096
"""Bodies from this size on are compressed, as stock producers do."""

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_OWN_FIELDS: Final = (properties.TAGS, properties.KEYS, properties.UNIQUE_KEY)


@dataclass(frozen=True, slots=True)
class Packing:
    """How messages are made ready to travel."""

    body_bytes_max: int = MESSAGE_BODY_BYTES_MAX
    compress_from: int = COMPRESS_FROM_BYTES
    algorithm: Algorithm = "zlib"


STOCK: Final = Packing()
"""As stock producers do."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """What a send carries of a message."""

    # There is one for each message; a frozen dataclass takes six times as long to make.

    topic: str
    id: str
    flag: int
    sys_flag: int
    body: bytes
    properties: str


def check_name(kind: str, name: str, limit: int = TOPIC_CHARS_MAX) -> None:
    """Refuse a name the protocol cannot carry.

    Raises:
        LocalProtocolError: It is empty, or holds a character that names may not hold.
        LimitExceeded: It is too long.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise LocalProtocolError(
            f"{name!r} is no name for a {kind}; use letters, digits, '_', '-', '%' and '|'"
        )
    if len(name) > limit:
        raise LimitExceeded(f"the length of a {kind}'s name", limit, len(name))


@lru_cache(maxsize=1024)
def _check_topic(name: str) -> None:
    check_name("topic", name)  # Every message names its topic, and there are few of them.


def sealed(
    message: Message, fresh_id: str, packing: Packing = STOCK, *, compress: bool = True
) -> Envelope:
    """A message made ready to travel.

    A message that carries a unique key in its properties keeps it: that is how the same message is
    sent a second time.

    Raises:
        LocalProtocolError: The protocol cannot carry it.
        LimitExceeded: It is too large.
    """
    _check_topic(message.topic)
    body = message.body
    if not isinstance(body, bytes):
        hint = "; encode it, as in text.encode()" if isinstance(body, str) else ""
        raise LocalProtocolError(f"a body is bytes, not {type(body).__name__}{hint}")
    flag = message.flag
    if flag and not -(2**31) <= flag < 2**31:
        raise LocalProtocolError(f"a flag is a number of 32 bits, not {flag}")
    if not body:
        raise LocalProtocolError("a message needs a body; stock clients and brokers refuse none")
    if len(body) > packing.body_bytes_max:
        raise LimitExceeded("the size of a message", packing.body_bytes_max, len(body))
    if message.properties or not message.wait_stored or _has_delay(message):
        named = _properties(message)
        fresh_id = named.setdefault(properties.UNIQUE_KEY, fresh_id)
        text = properties.render(named)
    else:
        text = f"UNIQ_KEY\x01{fresh_id}\x02"
        if message.tags or message.keys:
            text = _marks(message) + text
    if 3 * len(text) > PROPERTIES_BYTES_MAX:
        _check_properties(text)
    envelope = Envelope(message.topic, fresh_id, flag, 0, body, text)
    return compressed(envelope, packing) if compress else envelope


def compressed(envelope: Envelope, packing: Packing = STOCK) -> Envelope:
    """The same with a smaller body, where the body is large enough for that.

    Raises:
        ConfigError: The algorithm needs a package that is not installed.
    """
    if len(envelope.body) < packing.compress_from:
        return envelope
    sys_flag, body = compression.compress(envelope.body, packing.algorithm)
    return msgspec.structs.replace(envelope, sys_flag=envelope.sys_flag | sys_flag, body=body)


def _check_properties(text: str) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > PROPERTIES_BYTES_MAX:
        raise LimitExceeded("the size of a message's properties", PROPERTIES_BYTES_MAX, size)


def _marks(message: Message) -> str:
    """Tags and keys as text, for the many messages that have no other properties."""
    keys = _joined(message.keys)
    if message.tags and not isinstance(message.tags, str):
        raise _no_tag(message.tags)
    text = f"TAGS\x01{message.tags}\x02" if message.tags else ""
    if keys:
        text += f"KEYS\x01{keys}\x02"
    pairs = bool(message.tags) + bool(keys)
    if text.count("\x01") != pairs or text.count("\x02") != pairs:
        raise LocalProtocolError("a tag or a key holds a control character 1 or 2")
    return text


def _no_tag(given: object) -> LocalProtocolError:
    return LocalProtocolError(f"a message has one tag, which is a str, not {given!r}")


def _joined(keys: Sequence[str]) -> str:
    if isinstance(keys, str):
        # It would be taken for a key of each of its characters.
        raise LocalProtocolError(f"keys are a tuple, not a str; write keys=({keys!r},)")
    try:
        text = " ".join(keys)
    except TypeError:
        raise LocalProtocolError(f"keys are a tuple of str, not {keys!r}") from None
    if text.split() != list(keys):
        raise LocalProtocolError("a key is empty or holds white space, which separates keys")
    return text


def _has_delay(message: Message) -> bool:
    return bool(
        message.delay_level
        or message.deliver_at_ms is not None
        or message.deliver_after_s is not None
    )


def _properties(message: Message) -> dict[str, str]:
    named = dict(message.properties)
    if properties.TAGS in named or properties.KEYS in named:
        raise LocalProtocolError("give tags and keys as such, not as properties")
    keys = _joined(message.keys)
    if message.tags and not isinstance(message.tags, str):
        raise _no_tag(message.tags)
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
    if _has_delay(message):
        _add_delay(message, named)
    return named


def _add_delay(message: Message, named: dict[str, str]) -> None:
    wanted = {
        properties.DELAY: ("delay_level", message.delay_level or None),
        properties.DELIVER_AT: ("deliver_at_ms", message.deliver_at_ms),
        properties.DELIVER_AFTER: ("deliver_after_s", message.deliver_after_s),
    }
    asked = {name: said for name, said in wanted.items() if said[1] is not None}
    if len(asked) > 1 or any(name in named for name in properties.DELAYS):
        raise LocalProtocolError(
            "a message is delayed in one way: delay_level, deliver_at_ms or deliver_after_s"
        )
    for name, (field, value) in asked.items():
        if not isinstance(value, int) or value < 0:
            raise LocalProtocolError(f"{field} is a whole number from 0 on, not {value!r}")
        named[name] = str(value)


def received(record: Record, broker: str) -> ReceivedMessage:
    """A stored record as a message.

    Raises:
        RemoteProtocolError: Its body does not decompress.
    """
    message = opened(record, broker)
    if message.unreadable:
        raise RemoteProtocolError(message.unreadable)
    return message


def opened(record: Record, broker: str) -> ReceivedMessage:
    """A stored record as a message, which says so where its body does not decompress."""
    named = record.property_map()
    offset_id = record.offset_id
    unreadable = ""
    try:
        body = record.plain_body()
    except RemoteProtocolError as problem:
        body, unreadable = record.body, str(problem)
    return ReceivedMessage(
        topic=record.topic,
        body=body,
        tags=named.get(properties.TAGS, ""),
        keys=tuple(named.get(properties.KEYS, "").split()),
        properties={name: value for name, value in named.items() if name not in _OWN_FIELDS},
        flag=record.flag,
        queue=Queue(record.topic, broker, record.queue_id),
        offset=QueueOffset(record.queue_offset),
        position=LogPosition(record.position),
        id=named.get(properties.UNIQUE_KEY) or offset_id,
        offset_id=offset_id,
        born_ms=record.born_ms,
        stored_ms=record.stored_ms,
        attempts=record.attempts,
        unreadable=unreadable,
    )
