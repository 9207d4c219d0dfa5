"""The copy of a dead letter that its group receives again, and its provenance. Pure."""

from __future__ import annotations

from typing import Final

from txmq.errors import UsageError
from txmq.message import Message, ReceivedMessage
from txmq.protocol import properties

__all__ = [
    "RESENT_AT",
    "RESENT_BY",
    "RESENT_FROM",
    "RESENT_REASON",
    "copy_of",
    "mark_of",
    "provenance",
]

RESENT_BY: Final = "TXMQ_RESENT_BY"
RESENT_REASON: Final = "TXMQ_RESENT_REASON"
RESENT_AT: Final = "TXMQ_RESENT_AT_MS"
RESENT_FROM: Final = "TXMQ_RESENT_FROM"
"""The place of the dead letter that was resent."""

_MARK: Final = "resent-"

_LEFT_BEHIND: Final = frozenset(
    {
        properties.WAIT,
        properties.CLUSTER,
        # RocketMQ leaves the last delay on a dead letter; the copy would wait again.
        *properties.DELAYS,
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        properties.REAL_TOPIC,
        properties.REAL_QUEUE,
        properties.TRANSACTION,
        # Attempts before the message became a dead letter.
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "__CRC32#",
    }
)
"""Properties that brokers and clients wrote into the message; the copy drops them."""


def mark_of(message: ReceivedMessage) -> str:
    """The key under which the copy of a dead letter is indexed."""
    return _MARK + message.offset_id


def copy_of(
    message: ReceivedMessage, topic: str, reason: str, operator: str, now_ms: int
) -> Message:
    """The copy of a dead letter: a new message with the mark as a key.

    Raises:
        UsageError: The dead letter does not name its topic, or its body is unreadable.
    """
    if message.unreadable:
        raise UsageError(
            f"{message.offset_id} would only die again: {message.unreadable}; send a whole one"
        )
    if not message.properties.get(properties.RETRY_TOPIC):
        raise UsageError(
            f"{message.offset_id} does not say which topic it was for ({properties.RETRY_TOPIC}), "
            "so no broker put it there; send its body to that topic yourself"
        )
    kept = {name: value for name, value in message.properties.items() if name not in _LEFT_BEHIND}
    kept.setdefault(properties.ORIGIN_ID, message.offset_id)
    kept[properties.UNIQUE_KEY] = message.id
    kept |= {
        RESENT_BY: operator,
        RESENT_REASON: reason,
        RESENT_AT: str(now_ms),
        RESENT_FROM: message.offset_id,
    }
    # Consumers may rely on the first key, or on the id if there is no key; both are unchanged. The
    # mark is the second key, because brokers index a limited number of keys.
    others = [key for key in message.keys[1:] if not key.startswith(_MARK)]
    return Message(
        topic=topic,
        body=message.body,
        tags=message.tags,
        keys=(message.key, mark_of(message), *others),
        properties=kept,
        flag=message.flag,
    )


def provenance(copy: ReceivedMessage) -> str:
    """The operator who resent a message, and the reason."""
    named = copy.properties
    operator = named.get(RESENT_BY, "an unknown operator")
    return f"by {operator}: {named.get(RESENT_REASON, 'no reason given')}"
