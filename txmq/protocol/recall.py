"""What a message that is to come later is recalled by: a handle that says where it waits."""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

from txmq.errors import IllegalOperation, LocalProtocolError

__all__ = ["RecallHandle", "decode", "encode"]

_VERSION: Final = "v1"
_PARTS: Final = 5
_DIGITS_MAX: Final = 19
"""Of a Java long."""


class RecallHandle(NamedTuple):
    """A message that waits for its time."""

    topic: str
    """Where it will go."""
    broker: str
    """Where it waits."""
    due_ms: int
    message_id: str
    """The one its producer gave it."""


def encode(handle: RecallHandle) -> str:
    """A handle as it travels, in the form of RocketMQ 5.

    Raises:
        LocalProtocolError: A part is empty, or holds the space that separates the parts.
    """
    topic, broker, due_ms, message_id = handle
    # The id stands last, and may hold what it likes.
    if not (topic and broker and message_id) or due_ms < 0 or " " in topic + broker:
        raise LocalProtocolError(f"no handle can say this: {handle!r}")
    text = " ".join((_VERSION, topic, broker, str(due_ms), message_id))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(text: str) -> RecallHandle:
    """Read a handle.

    Raises:
        IllegalOperation: It is none; RocketMQ answers the same.
    """
    if not isinstance(text, str):
        raise _nonsense(text)  # None, where a broker gave no handle.
    padded = text + "=" * (-len(text) % 4)  # Java reads it with or without.
    try:
        raw = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise _nonsense(text) from error
    parts = raw.split(" ", _PARTS - 1)
    if len(parts) != _PARTS or parts[0] != _VERSION or not all(parts):
        raise _nonsense(text)
    _, topic, broker, due, message_id = parts
    if not (due.isascii() and due.isdigit() and len(due) <= _DIGITS_MAX):
        raise _nonsense(text)
    return RecallHandle(topic, broker, int(due), message_id)


def _nonsense(text: object) -> IllegalOperation:
    return IllegalOperation(f"{repr(text)[:200]} is no handle of a message that waits")
