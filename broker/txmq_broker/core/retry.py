"""What becomes of a message that its consumers could not handle: it comes again later, or it is
dead.

A message that comes again waits longer each time: by the third delay level first, by the next one
after every failure, and by the last one once there is no further. After so many failures as its
group allows it lies among the group's dead letters, which nobody is given, and says why.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from txmq.limits import PROPERTIES_BYTES_MAX, PROPERTIES_OF_HALF_MAX, REASON_CHARS_MAX
from txmq.protocol import properties
from txmq.protocol.bodies import GroupConfig
from txmq.protocol.record import Record
from txmq.protocol.topics import RETRY
from txmq.quantity import quantity
from txmq_broker.core.clients import ConsumerGroup

__all__ = ["RetryVerdict", "buried", "judge_retry", "returned", "settle_maximum", "why_exhausted"]

C = TypeVar("C")

FIRST_LEVEL: Final = 3
"""The delay level of the first retry: 10 s in RocketMQ's table."""

USUAL_MAXIMUM: Final = 16
"""What stock consumers say where nobody told them how often; so it says nothing."""

ATTEMPTS_TOP: Final = 2**31 - 1
"""A record has no room for more."""

_WRITTEN_ANEW: Final = frozenset(
    {
        properties.RETRY_TOPIC,
        properties.ORIGIN_ID,
        properties.DEAD_REASON,
        properties.DEAD_TOPIC,
        properties.DEAD_ID,
        # An earlier delay, which is over.
        *properties.DELAYS,
        properties.REAL_TOPIC,
        properties.REAL_QUEUE,
    }
)


class RetryVerdict(NamedTuple):
    """What is to become of a message."""

    level: int
    """The delay level it waits for."""
    reason: str = ""
    """Why it is a dead letter; empty where it comes again."""


def settle_maximum(
    said: int | None, online: ConsumerGroup[C] | None, speaker: C, config: GroupConfig
) -> int:
    """How often a message of a group may come again, now that somebody said a number.

    A member's number holds for all members as long as the group is online, and the last one said
    wins. Who says what stock consumers say by themselves, or nothing, leaves it as it is: at what
    another member said, or else at the group's setting.
    """
    if said is not None and said >= 0 and said != USUAL_MAXIMUM:
        if online is not None and speaker in online.members:
            online.attempts_max = said
        return said
    known = None if online is None else online.attempts_max
    return config.retry_max_times if known is None else known


def why_exhausted(attempts: int, maximum: int) -> str:
    """Why a message that failed so often before may not come again; empty where it may."""
    if attempts < maximum:
        return ""
    if not attempts:
        return "no retry is allowed"
    failed = quantity(attempts, "retry", "retries")
    return f"{failed} failed, {quantity(maximum, 'is', 'are')} allowed"


def judge_retry(attempts: int, maximum: int, level: int, words: str = "") -> RetryVerdict:
    """What becomes of a message.

    Args:
        attempts: How often it came again before.
        maximum: How often it may.
        level: The delay level its consumer wants; 0 leaves that to us, less gives it up.
        words: What the consumer says about it.
    """
    reason = "its consumer gave it up" if level < 0 else why_exhausted(attempts, maximum)
    if not reason:
        return RetryVerdict(level or FIRST_LEVEL + max(0, attempts))
    words = properties.one_line(words, REASON_CHARS_MAX)
    return RetryVerdict(0, f"{reason}: {words}" if words else reason)


def returned(record: Record, group: str, verdict: RetryVerdict) -> tuple[RetryVerdict, str]:
    """A message that a group gave back, as it is stored: its verdict, and its properties.

    It is a dead letter, too, where its properties leave no room for those of a retry.
    """
    origin = properties.find(record.properties, properties.ORIGIN_ID) or record.offset_id
    more = {properties.RETRY_TOPIC: _topic_of(record, group), properties.ORIGIN_ID: origin}
    if not verdict.reason:
        text = _with(record.properties, more | {properties.DELAY: str(verdict.level)})
        # They are stored with the place they really go to.
        if len(text.encode()) <= PROPERTIES_OF_HALF_MAX:
            return verdict, text
        verdict = RetryVerdict(0, "its properties leave no room for those of a retry")
    unique = properties.find(record.properties, properties.UNIQUE_KEY) or origin
    return verdict, _with(
        record.properties, more | _marks(more[properties.RETRY_TOPIC], unique, verdict)
    )


def buried(text: str, reason: str) -> str:
    """The properties of a message that was sent to come again, and becomes a dead letter."""
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
    """The topic under which its consumer knows it."""
    if record.topic != RETRY + group:
        # Also where it says another one: of a dead letter of somebody else's, that is history.
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
    """A message's properties with these for those of its past, as far as there is room."""
    # Not taken apart and put together: a stranger's may hold what cannot be written again.
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
