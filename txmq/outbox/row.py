"""A message as a row of the outbox, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

import msgspec

from txmq.client.send.producer import check_kind
from txmq.client.send_request import sealed
from txmq.errors import LimitExceeded, LocalProtocolError
from txmq.limits import LANE_CHARS_MAX, MESSAGE_ID_CHARS_MAX, SLOTS
from txmq.message import Message
from txmq.protocol import properties

__all__ = ["check_lane", "pack", "slot_of", "unpack"]

_MARK_CHARS: Final = 256
"""Room for what a relay adds to the properties."""
_NOT_WAITING: Final = {properties.WAIT: "false"}
_MARK: Final = {"TXMQ_OUTBOX": "-" * _MARK_CHARS}


def slot_of(text: str) -> int:
    """The slot of a lane, or of the id of a message without a lane."""
    return crc32(text.encode()) % SLOTS


def check_lane(lane: str) -> None:
    """Refuse an invalid lane name.

    Raises:
        LocalProtocolError: It is not a text, is empty or holds a character 0.
        LimitExceeded: It is too long.
    """
    if not isinstance(lane, str) or not lane or "\0" in lane:
        raise LocalProtocolError(f"a lane is a text of one or more characters, not {lane!r}")
    if len(lane) > LANE_CHARS_MAX:
        raise LimitExceeded("the length of a lane's name", LANE_CHARS_MAX, len(lane))


def pack(message: Message, lane: str | None, fresh_id: str) -> dict[str, Any]:
    """The columns of a message's row, except its body and its time.

    A message that carries a unique key in its properties keeps it.

    Raises:
        LocalProtocolError: The message could never be sent.
        UsageError: It is a reply.
        LimitExceeded: It is too large.
    """
    check_kind(message)
    if lane is not None:
        check_lane(lane)
    added = _MARK if lane is None else {**_MARK, properties.SHARDING_KEY: lane}
    all_properties = {**(message.properties or {}), **added}
    envelope = sealed(replace(message, properties=all_properties), fresh_id, compress=False)
    try:
        envelope.properties.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"no table can hold this message: {error}") from error
    if "\0" in message.tags or "\0" in envelope.id:
        raise LocalProtocolError("a tag or a message's id holds a character 0")
    if len(envelope.id) > MESSAGE_ID_CHARS_MAX:
        raise LimitExceeded("the length of a message's id", MESSAGE_ID_CHARS_MAX, len(envelope.id))
    delay = {
        name: value
        for name in ("delay_level", "deliver_at_ms", "deliver_after_s")
        if (value := getattr(message, name)) or (value is not None and name != "delay_level")
    }
    return {
        "slot": slot_of(lane or envelope.id),
        "lane": lane,
        "message_id": envelope.id,
        "topic": message.topic,
        "tags": message.tags,
        "keys_": _text(list(message.keys)),
        "properties": _text(
            {**(message.properties or {}), **({} if message.wait_stored else _NOT_WAITING)}
        ),
        "flag": message.flag,
        "delay": _text(delay) if delay else None,
    }


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def unpack(row: Any) -> Message:
    """The message of a row; its properties carry its id."""
    stored: Mapping[str, str] = msgspec.json.decode(row.properties, type=dict[str, str])
    delay: dict[str, Any] = msgspec.json.decode(row.delay) if row.delay else {}
    return Message(
        topic=row.topic,
        body=bytes(row.body),
        tags=row.tags,
        keys=msgspec.json.decode(row.keys_, type=tuple[str, ...]),
        properties={**stored, properties.UNIQUE_KEY: row.message_id},
        flag=row.flag,
        **delay,
    )
