"""Retries and dead letters: what happens to a message that its consumers failed to handle.

The first retry waits for the third delay level, each further one for the next level, up to the
last. After the group's maximum of retries the message becomes a dead letter: it goes to the group's
dead-letter topic with the reason, and no consumer receives it.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from txmq.limits import PROPERTIES_BYTES_MAX, PROPERTIES_OF_HALF_MAX, REASON_CHARS_MAX
from txmq.protocol import properties
from txmq.protocol.bodies import GroupConfig
from txmq.protocol.record import Record
from txmq.protocol.topics import RETRY
from txmq.text import quantity
from txmq_broker.core.clients import ConsumerGroup

__all__ = [
    "RetryVerdict",
    "apply_verdict",
    "dead_letter_properties",
    "exhaustion_reason",
    "judge_retry",
    "known_maximum",
    "retry_maximum",
]

C = TypeVar("C")

FIRST_LEVEL: Final = 3
"""The delay level of the first retry: 10 s in RocketMQ's table."""

USUAL_MAXIMUM: Final = 16
"""The default that stock consumers send; it therefore does not count as the user's choice."""

ATTEMPTS_TOP: Final = 2**31 - 1
"""The largest number of attempts that a record can hold."""

_WRITTEN_ANEW: Final = frozenset(
    {
        properties.RETRY_TOPIC,
        properties.ORIGIN_ID,
        properties.DEAD_REASON,
        properties.DEAD_TOPIC,
        properties.DEAD_ID,
        # An earlier delay is over.
        *properties.DELAYS,
        properties.REAL_TOPIC,
        properties.REAL_QUEUE,
    }
)


class RetryVerdict(NamedTuple):
    """Whether a failed message comes again, and when."""

    level: int
    """The delay level it waits for."""
    reason: str = ""
    """Why it is a dead letter; empty if it comes again."""


def retry_maximum(
    requested: int | None, online: ConsumerGroup[C] | None, connection: C, config: GroupConfig
) -> int:
    """The maximum number of retries of a group, after a request that may state one.

    While the group is online, the latest number that a member stated holds for all members;
    without one, the group's setting does. A request with no number or with 16, the default of stock
    consumers, states none.
    """
    if requested is not None and requested >= 0 and requested != USUAL_MAXIMUM:
        if online is not None and connection in online.members:
            online.attempts_max = requested
        return requested
    return known_maximum(online, config)


def known_maximum(online: ConsumerGroup[C] | None, config: GroupConfig) -> int:
    """The maximum number of retries: what online consumers ask for, else the setting."""
    known = None if online is None else online.attempts_max
    return config.retry_max_times if known is None else known


def exhaustion_reason(attempts: int, maximum: int) -> str:
    """Why a message with this many attempts may not come again; empty if it may."""
    if attempts < maximum:
        return ""
    if not attempts:
        return "no retry is allowed"
    failed = quantity(attempts, "retry", "retries")
    return f"{failed} failed, {quantity(maximum, 'is', 'are')} allowed"


def judge_retry(attempts: int, maximum: int, level: int, words: str = "") -> RetryVerdict:
    """Decide whether a failed message comes again.

    Args:
        attempts: The number of retries so far.
        maximum: The maximum number of retries.
        level: The consumer's delay level; 0 leaves it to the broker, and with a negative level the
            consumer gives the message up.
        words: The consumer's reason.
    """
    reason = "its consumer gave it up" if level < 0 else exhaustion_reason(attempts, maximum)
    if not reason:
        return RetryVerdict(level or FIRST_LEVEL + max(0, attempts))
    words = properties.one_line(words, REASON_CHARS_MAX)
    return RetryVerdict(0, f"{reason}: {words}" if words else reason)


def apply_verdict(record: Record, group: str, verdict: RetryVerdict) -> tuple[RetryVerdict, str]:
    """The verdict and the stored properties of a message that a group returned.

    The message is also a dead letter if its properties leave no room for those of a retry.
    """
    origin = properties.find(record.properties, properties.ORIGIN_ID) or record.offset_id
    more = {properties.RETRY_TOPIC: _topic_of(record, group), properties.ORIGIN_ID: origin}
    if not verdict.reason:
        text = _with(record.properties, more | {properties.DELAY: str(verdict.level)})
        # The real topic and queue are added when they are stored.
        if len(text.encode()) <= PROPERTIES_OF_HALF_MAX:
            return verdict, text
        verdict = RetryVerdict(0, "its properties leave no room for those of a retry")
    unique = properties.find(record.properties, properties.UNIQUE_KEY) or origin
    return verdict, _with(
        record.properties, more | _marks(more[properties.RETRY_TOPIC], unique, verdict)
    )


def dead_letter_properties(text: str, reason: str) -> str:
    """The properties of a message that was sent as a retry but becomes a dead letter."""
    found = properties.parse(text)
    kept = {
        name: found[name]
        for name in (properties.RETRY_TOPIC, properties.ORIGIN_ID)
        if name in found
    }
    origin = found.get(properties.UNIQUE_KEY) or found.get(properties.ORIGIN_ID, "")
    marks = _marks(found.get(properties.RETRY_TOPIC, ""), origin, RetryVerdict(0, reason))
    return _with(text, kept | marks)


def _topic_of(record: Record, group: str) -> str:
    """The topic from which its consumer received it."""
    if record.topic != RETRY + group:
        # A RETRY_TOPIC property here is history, from another group's dead letter.
        return record.topic
    return properties.find(record.properties, properties.RETRY_TOPIC) or record.topic


def _marks(topic: str, unique: str, verdict: RetryVerdict) -> dict[str, str]:
    marks = {
        properties.DEAD_TOPIC: topic,
        properties.DEAD_ID: unique,
        properties.DEAD_REASON: verdict.reason,
    }
    return {name: value for name, value in marks.items() if value}


def _with(text: str, more: dict[str, str]) -> str:
    """Replace the properties of earlier retries with the new ones, as long as there is room."""
    # Edited as text, because other clients' properties may hold what render refuses.
    pairs = [
        pair
        for pair in text.split("\x02")
        if pair and pair.partition("\x01")[0] not in _WRITTEN_ANEW
    ]
    size = len("\x02".join(pairs).encode()) + 1
    for name, value in more.items():
        pair = f"{name}\x01{value}"
        size += len(pair.encode()) + 1
        if size <= PROPERTIES_BYTES_MAX:
            pairs.append(pair)
    return "\x02".join(pairs) + "\x02"
