"""A message as an application sees it, to and from what travels. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from txmq.errors import LimitExceeded, LocalProtocolError
from txmq.limits import MESSAGE_BODY_BYTES_MAX, PROPERTIES_BYTES_MAX, TOPIC_CHARS_MAX
from txmq.message import LogPosition, Message, Queue, QueueOffset, ReceivedMessage
from txmq.protocol import compression, properties
from txmq.protocol.record import Record

__all__ = ["Envelope", "check_name", "received", "sealed"]

COMPRESS_FROM_BYTES: Final = 4096
"""Bodies from this size on are compressed, as stock producers do."""

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_OWN_FIELDS: Final = (properties.TAGS, properties.KEYS, properties.UNIQUE_KEY)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a send carries of a message."""

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
    if not _NAME.fullmatch(name):
        raise LocalProtocolError(
            f"{name!r} is no name for a {kind}; use letters, digits, '_', '-', '%' and '|'"
        )
    if len(name) > limit:
        raise LimitExceeded(f"the length of a {kind}'s name", limit, len(name))


def sealed(message: Message, fresh_id: str, *, compress: bool = True) -> Envelope:
    """A message made ready to travel.

    A message that carries a unique key in its properties keeps it: that is how the same message is
    sent a second time.

    Raises:
        LocalProtocolError: The protocol cannot carry it.
        LimitExceeded: It is too large.
    """
    check_name("topic", message.topic)
    if not message.body:
        raise LocalProtocolError("a message needs a body; stock clients and brokers refuse none")
    if len(message.body) > MESSAGE_BODY_BYTES_MAX:
        raise LimitExceeded("the size of a message", MESSAGE_BODY_BYTES_MAX, len(message.body))
    named = _properties(message)
    own_id = named.setdefault(properties.UNIQUE_KEY, fresh_id)
    text = properties.render(named)
    size = len(text.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise LimitExceeded("the size of a message's properties", PROPERTIES_BYTES_MAX, size)
    sys_flag, body = 0, message.body
    if compress and len(body) >= COMPRESS_FROM_BYTES:
        sys_flag, body = compression.compress(body)
    return Envelope(message.topic, own_id, message.flag, sys_flag, body, text)


def _properties(message: Message) -> dict[str, str]:
    named = dict(message.properties)
    if properties.TAGS in named or properties.KEYS in named:
        raise LocalProtocolError("give tags and keys as such, not as properties")
    if any(not key or key.split() != [key] for key in message.keys):
        raise LocalProtocolError("a key is empty or holds white space, which separates keys")
    if not all(name and value for name, value in named.items()):
        raise LocalProtocolError("a property without a name or a value would be dropped on its way")
    if message.tags:
        named[properties.TAGS] = message.tags
    if message.keys:
        named[properties.KEYS] = " ".join(message.keys)
    return named


def received(record: Record, broker: str) -> ReceivedMessage:
    """A stored record as a message.

    Raises:
        RemoteProtocolError: Its body does not decompress.
    """
    named = record.property_map()
    offset_id = record.offset_id
    return ReceivedMessage(
        topic=record.topic,
        body=record.plain_body(),
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
    )
