"""The topics of a broker that a name server still has to receive. Pure.

A broker with few topics registers all of them in one request, as Apache RocketMQ does. One with
many sends them in parts, and later only those that changed: encoding 100,000 topics takes 30 ms at
the broker, and reading them 100 ms at the name server.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from txmq.protocol.bodies import DataVersion, TopicConfigs
from txmq_broker.core.topics import Topics

__all__ = ["PART_TOPICS", "RegisteredTopics"]

PART_TOPICS: Final = 1_000
"""Topics in one registration; Apache RocketMQ's ``splitRegistrationSize`` is 800."""


class RegisteredTopics:
    """What one name server has received over one connection."""

    def __init__(self) -> None:
        self.version: DataVersion | None = None
        """The version of the topics that it has; ``None`` before the first registration."""
        self._sent = 0

    def parts(self, topics: Topics) -> Iterator[TopicConfigs]:
        """The topics to register, in parts; the last part has the version of all topics.

        The name server has them when the iterator ends.

        Args:
            topics: All topics of the broker.
        """
        version, known = topics.version, self.version
        changes = None
        if known is not None and len(topics) > PART_TOPICS:
            changes = topics.changes_since(known)
        wanted = topics.saved().topic_config_table if changes is None else changes.changed
        left = iter(wanted.items())
        for _ in range((len(wanted) - 1) // PART_TOPICS):
            # A name server takes topics only with a version that it does not have. It must have
            # the broker's own version only when it has all topics.
            self._sent += 1
            own = DataVersion(version.timestamp, -self._sent)
            yield TopicConfigs(own, dict(islice(left, PART_TOPICS)))
        yield TopicConfigs(version, dict(left))
        self.version = version
