"""The handle by which a producer recalls a delayed message."""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

from txmq.errors import IllegalOperation, LocalProtocolError

__all__ = ["RecallHandle", "decode", "encode"]

_VERSION: Final = "v1"
_PARTS: Final = 5
_DIGITS_MAX: Final = 19
"""The digits of a Java long."""


class RecallHandle(NamedTuple):
    """The identity of a delayed message."""

    topic: str
    """The topic of the message."""
    broker: str
    """The broker where it waits."""
    due_ms: int
    message_id: str
    """The id from its producer."""


def encode(handle: RecallHandle) -> str:
    """Encode a handle in the form of RocketMQ 5.

    Raises:
        LocalProtocolError: A part is empty, or holds the separating space.
    """
    topic, broker, due_ms, message_id = handle
    # The id is the last part, so it may hold spaces.
    if not (topic and broker and message_id) or due_ms < 0 or " " in topic + broker:
        raise LocalProtocolError(f"a recall handle cannot hold this: {handle!r}")
    text = " ".join((_VERSION, topic, broker, str(due_ms), message_id))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(text: str) -> RecallHandle:
    """Decode a handle.

    Raises:
        IllegalOperation: The text is not a handle; RocketMQ answers with the same code.
    """
    if not isinstance(text, str):
        raise _not_a_handle(text)
    padded = text + "=" * (-len(text) % 4)  # Java accepts it with or without padding.
    try:
        raw = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise _not_a_handle(text) from error
    parts = raw.split(" ", _PARTS - 1)
    if len(parts) != _PARTS or parts[0] != _VERSION or not all(parts):
        raise _not_a_handle(text)
    _, topic, broker, due, message_id = parts
    if not (due.isascii() and due.isdigit() and len(due) <= _DIGITS_MAX):
        raise _not_a_handle(text)
    return RecallHandle(topic, broker, int(due), message_id)


def _not_a_handle(text: object) -> IllegalOperation:
    return IllegalOperation(f"{repr(text)[:200]} is not a recall handle")
