"""Stored records as the messages that applications receive. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from txmq.errors import RemoteProtocolError
from txmq.message import Message, Queue, ReceivedMessage
from txmq.protocol import compression, properties
from txmq.protocol.record import Record

__all__ = ["opened", "received"]


class _Draft(Message):
    """A message whose fields can still be set; it becomes a :class:`ReceivedMessage` at the end.

    The constructor of a frozen dataclass takes six times as long, and a consumer needs one for
    every message.
    """

    __slots__ = ReceivedMessage.__slots__
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__  # Setting only one of the two gains nothing.


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
    """A stored record as a message; if its body does not decompress, the message is marked."""
    named = record.property_map()
    offset_id = record.offset_id
    tags, keys = named.pop(properties.TAGS, ""), named.pop(properties.KEYS, "")
    message: Any = _Draft.__new__(_Draft)
    message.topic = record.topic
    message.body = record.body
    message.unreadable = ""
    if record.sys_flag & compression.COMPRESSED:
        try:
            message.body = record.plain_body()
        except RemoteProtocolError as error:
            message.unreadable = str(error)
    message.tags = tags
    message.keys = tuple(keys.split()) if keys else ()
    message.id = named.pop(properties.UNIQUE_KEY, "") or offset_id
    message.properties = named
    message.flag = record.flag
    message.delay_level = 0
    message.deliver_at_ms = message.deliver_after = None
    message.wait_stored = True
    message.queue = _queue_of(record.topic, broker, record.queue_id)
    message.offset = record.queue_offset
    message.position = record.position
    message.offset_id = offset_id
    message.born_ms = record.born_ms
    message.stored_ms = record.stored_ms
    message.attempts = record.attempts
    message.__class__ = ReceivedMessage
    return cast("ReceivedMessage", message)


@lru_cache(maxsize=1024)
def _queue_of(topic: str, broker: str, number: int) -> Queue:
    return Queue(topic, broker, number)
