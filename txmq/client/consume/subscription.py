"""A group's subscription to one topic. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from txmq.client.settings import ConsumerSettings
from txmq.errors import LocalProtocolError, UsageError
from txmq.limits import SUBSCRIPTION_CHARS_MAX
from txmq.message import ReceivedMessage
from txmq.protocol import bodies
from txmq.protocol.java import string_hash
from txmq.protocol.topics import DLQ

__all__ = ["ANY_TAG", "TopicSubscription", "check_dead_letters"]

ANY_TAG: Final = "*"
"""The expression that matches every message."""

_TAG: Final = "TAG"
_SQL: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """A topic and a filter for its messages: tags (``A || B``) or a condition.

    Raises:
        LocalProtocolError: Both are given, or the expression is too long or names no tag.
    """

    topic: str
    tags: str = ANY_TAG
    sql: str = ""
    wanted: frozenset[str] = field(init=False, compare=False)
    """The accepted tags; empty if it accepts all messages or uses a condition."""

    def __post_init__(self) -> None:
        """Parse the expression."""
        if self.sql and self.tags != ANY_TAG:
            raise LocalProtocolError("a subscription is by tags or by a condition, not by both")
        size = len(self.sql or self.tags)
        if size > SUBSCRIPTION_CHARS_MAX:
            raise LocalProtocolError(
                f"a subscription has at most {SUBSCRIPTION_CHARS_MAX} characters, not {size}"
            )
        named = {tag.strip() for tag in self._named} - {""}
        for tag in named:
            if "|" in tag or "&&" in tag:
                raise LocalProtocolError(f"{tag!r} is not a tag; write '||' between tags")
        if not named:
            raise LocalProtocolError("a subscription names no tag; '*' stands for all of them")
        object.__setattr__(self, "wanted", frozenset(named - {ANY_TAG} if self.by_tags else ()))

    @property
    def _named(self) -> list[str]:
        return self.tags.split("||")

    @property
    def by_tags(self) -> bool:
        """Whether it filters by tags."""
        return not self.sql and any(tag.strip() not in {"", ANY_TAG} for tag in self._named)

    @property
    def expression(self) -> str:
        """The expression in the form that brokers receive."""
        # Brokers recognize the star only on its own; next to a blank, it counts as a tag.
        return self.sql or (self.tags if self.by_tags else ANY_TAG)

    @property
    def kind(self) -> str:
        """The language of the expression."""
        return _SQL if self.sql else _TAG

    def wants(self, message: ReceivedMessage) -> bool:
        """Whether a message matches. Brokers filter by a tag's hash; this compares the text."""
        return not self.wanted or message.tags in self.wanted

    def registration(self, version: int) -> bodies.SubscriptionData:
        """The subscription as brokers register it."""
        tags = sorted(self.wanted)
        return bodies.SubscriptionData(
            self.topic,
            self.expression,
            tags,
            sorted({string_hash(tag) for tag in tags}),
            version,
            self.kind,
        )


def check_dead_letters(topic: str, settings: ConsumerSettings) -> None:
    """Check that a consumer reads dead letters only if it is meant to.

    Raises:
        UsageError: The topic holds dead letters, and the settings exclude them.
    """
    if topic.startswith(DLQ) and not settings.reads_dead_letters:
        group = topic.removeprefix(DLQ)
        raise UsageError(
            f"{topic} holds the dead letters of group {group}, which are not for consuming: "
            f"show and resend them with 'txmq dlq show {group}'; a consumer that is meant to read "
            f"them needs ConsumerSettings(reads_dead_letters=True)"
        )
