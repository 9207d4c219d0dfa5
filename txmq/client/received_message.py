"""Stored records as the messages that applications receive. Pure."""

from __future__ import annotations

from typing import Final

from txmq.errors import RemoteProtocolError
from txmq.message import LogPosition, Queue, QueueOffset, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.record import Record

__all__ = ["opened", "received"]

_OWN_FIELDS: Final = (properties.TAGS, properties.KEYS, properties.UNIQUE_KEY)


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
    unreadable = ""
    try:
        body = record.plain_body()
    except RemoteProtocolError as error:
        body, unreadable = record.body, str(error)
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
