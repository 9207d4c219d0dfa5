"""A search of all topics of a cluster for messages with a key or an id: topic by topic, in steps.

A step ends after some time, or when it has found enough. Its cursor is the last topic that it
searched, so the next step neither repeats a topic nor leaves one out, also if topics come and go.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from txmq.client import Admin
from txmq.client.values import BrokerInfo
from txmq.errors import BrokerRefused
from txmq.message import ReceivedMessage
from txmq.ops.queries import ASKED_TOGETHER_MAX, sentence_of
from txmq.text import quantity

__all__ = ["STEP_S", "STEP_TOPICS_MAX", "TopicSearchStep", "search_topics"]

STEP_S: Final = 0.25
"""A step begins no further topics after this time; a page of the console takes one step."""
STEP_TOPICS_MAX: Final = 1_000
"""Topics that one step searches at most."""


class TopicSearchStep(NamedTuple):
    """What one step found."""

    messages: list[ReceivedMessage]
    searched: int
    """The topics that this step and those before it have searched."""
    topics: int
    """All topics."""
    next: str
    """The cursor of the next step: the last topic that was searched; empty if it was the last."""
    note: str = ""
    """The topics of this step that brokers refused to search, and why."""


async def search_topics(
    admin: Admin,
    topics: Sequence[str],
    brokers: Sequence[BrokerInfo],
    text: str,
    most: int,
    after: str = "",
) -> TopicSearchStep:
    """Search topics for messages with a key or an id: one step.

    Args:
        admin: Asks the brokers.
        topics: All topics.
        brokers: The brokers of the cluster.
        text: The key or the id.
        most: So many messages are enough.
        after: The cursor of the step before; empty for the first.

    Raises:
        TransportError: A broker does not answer.
    """
    names = sorted(topics)
    start = place = bisect_right(names, after) if after else 0
    end = min(len(names), start + STEP_TOPICS_MAX)
    time = asyncio.get_running_loop().time
    until = time() + STEP_S
    found: list[ReceivedMessage] = []
    refusals: list[BrokerRefused] = []

    async def look(topic: str) -> list[ReceivedMessage]:
        try:
            return await admin.search(topic, text, brokers)
        except BrokerRefused as error:
            refusals.append(error)
            return []

    while place < end and len(found) < most and (place == start or time() < until):
        together = names[place : min(end, place + ASKED_TOGETHER_MAX)]
        lists = await asyncio.gather(*map(look, together))
        found += [message for messages in lists for message in messages]
        place += len(together)
    note = ""
    if refusals:
        count = quantity(len(refusals), "topic")
        note = f"{count} could not be searched; the last refusal: {sentence_of(refusals[-1])}"
    return TopicSearchStep(
        found, place, len(names), names[place - 1] if place < len(names) else "", note
    )
