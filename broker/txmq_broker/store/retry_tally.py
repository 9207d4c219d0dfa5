"""Counts the messages that wait for a retry, by consumer group. Pure.

A message that a group failed to handle waits in a delay line for its way to the group's retry
topic. There it is no message of a topic, so no offset counts it as unread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from txmq.limits import WAITING_RETRIES_MAX
from txmq.protocol import properties
from txmq.protocol.topics import RETRY

__all__ = ["Retry", "RetryTally", "retry_of"]

_NOBODY: Final[Mapping[tuple[str, int], int]] = {}


class Retry(NamedTuple):
    """What waiting messages are counted by."""

    group: str
    topic: str
    """The topic that the group received the message from; empty beyond the limit."""
    number: int
    """1 for the first retry; 0 beyond the limit."""


def retry_of(topic: str, attempts: int, text: str) -> Retry | None:
    """The retry that a delayed message for this topic waits for, or ``None``.

    Args:
        topic: The topic that the message goes to when it is due.
        attempts: How often its group has failed.
        text: Its properties.
    """
    if not topic.startswith(RETRY):
        return None
    return Retry(
        topic.removeprefix(RETRY), properties.find(text, properties.RETRY_TOPIC) or "", attempts
    )


class RetryTally:
    """The number of waiting messages by group, topic and retry."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], int]] = {}
        self._kinds = 0

    def add(self, retry: Retry) -> None:
        """Count a message that began to wait."""
        counts = self._groups.setdefault(retry.group, {})
        kind = retry.topic, retry.number
        if kind not in counts:
            # Properties name the topic, so a sender could make as many kinds as messages.
            kind = kind if self._kinds < WAITING_RETRIES_MAX else ("", 0)
            self._kinds += kind not in counts
        counts[kind] = counts.get(kind, 0) + 1

    def remove(self, retry: Retry) -> None:
        """Count a message that waits no longer."""
        counts = self._groups.get(retry.group, {})
        kind = retry.topic, retry.number
        kind = kind if kind in counts else ("", 0)
        if kind not in counts:
            return
        counts[kind] -= 1
        if not counts[kind]:
            del counts[kind]
            self._kinds -= 1
        if not counts:
            del self._groups[retry.group]

    def of_group(self, group: str, topics: Collection[str] = ()) -> dict[int, int]:
        """The messages that wait for each retry of a group, in all topics or in some."""
        found: dict[int, int] = {}
        for (topic, number), count in sorted(self._groups.get(group, _NOBODY).items()):
            if not topics or topic in topics:
                found[number] = found.get(number, 0) + count
        return dict(sorted(found.items()))

    def totals(self) -> Iterator[tuple[str, int]]:
        """The messages that wait, by group."""
        for group, counts in list(self._groups.items()):
            yield group, sum(counts.values())
