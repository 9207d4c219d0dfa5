"""The requests of operators' pages to a broker: 7720 lists its audit, 7721 and 7722 list and recall
delayed messages, 7723 shows its settings, 7724 has a group skip damaged messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from txmq.protocol.bodies import Body
from txmq.protocol.headers import Header, Int32, Int64

__all__ = [
    "AuditPage",
    "AuditedRequest",
    "DelayLevelEntry",
    "DelayedEntry",
    "DelayedPage",
    "ListAudit",
    "ListDelayed",
    "RecallDelayed",
    "SettingEntry",
    "SettingsView",
    "SkipDamaged",
]


class ListAudit(Header):
    """7720: what operators did, newest first."""

    before: str = ""
    """The place to begin at, as an answer names it; empty for the newest entry."""
    since_ms: Int64 = 0
    until_ms: Int64 = 0
    """Only entries before this moment; 0 for all."""
    person: str = ""
    """Only entries whose account, operator or address contains this text."""
    action: str = ""
    """Only requests whose name contains this text."""
    refused: bool = False
    """Only refused requests."""
    count: Int32 = 100


class AuditedRequest(Body):
    """One request of an operator in the answer to 7720."""

    at_ms: int
    request: str
    """The name of the request code."""
    peer: str
    """The address that it came from."""
    account: str = ""
    fields: Mapping[str, str] = {}
    body: str = ""
    refused: str = ""
    """Why it was refused; empty if it was carried out."""


class AuditPage(Body):
    """The answer to 7720. It may have fewer entries than requested, even none, and go on."""

    entries: list[AuditedRequest]
    next: str = ""
    """The place to go on at; empty at the oldest entry."""


class ListDelayed(Header):
    """7721: messages that wait for their time, in order of the seconds in which they are due."""

    level: Int32 = -1
    """Only messages of this delay level, or with a time of their own for 0; -1 for all."""
    from_ms: Int64 = 0
    """Only messages that are due in this second or later."""
    after: str = ""
    """The place to begin at, as an answer names it; empty for the first message."""
    count: Int32 = 100


class DelayedEntry(Body):
    """A message in the answer to 7721."""

    due_ms: int
    level: int
    """Its delay level, or 0 for a time of its own."""
    topic: str = ""
    """The topic that it is for."""
    queue_id: int = 0
    message_id: str = ""
    """The id from its producer."""
    keys: str = ""
    tags: str = ""
    size: int = 0
    """The bytes of its body, as they are stored."""
    stored_ms: int = 0
    offset_msg_id: str = ""
    """The place where it waits."""
    recall_handle: str = ""
    """The handle that recalls it; empty if it has no id."""
    problem: str = ""
    """Why the broker cannot read it."""


class DelayLevelEntry(Body):
    """A delay level in the answer to 7721."""

    level: int
    delay_ms: int
    waiting: int
    """Messages in its line, including those that were recalled and are not due yet."""


class DelayedPage(Body):
    """The answer to 7721. It may have fewer messages than requested, even none, and go on."""

    messages: list[DelayedEntry]
    levels: list[DelayLevelEntry]
    waiting: int
    """All messages that wait at the broker."""
    next: str = ""
    """The place to go on at; empty after the last message."""


class RecallDelayed(Header):
    """7722: an operator recalls a delayed message. Unlike a producer's recall, it is audited."""

    topic: str
    recall_handle: str
    operator: str
    reason: str


class SettingEntry(Body):
    """A setting in the answer to 7723."""

    name: str
    """RocketMQ's name."""
    value: str
    key: str = ""
    """The name of txmq; empty if txmq has no such setting."""
    default: str | None = None
    """The default; ``None`` if it depends on the machine."""
    source: str = ""
    """``default``, ``start`` for a file, a variable or an option, or ``change`` for a change of
    the running broker."""
    can_change: bool = False
    """Whether the setting can change while the broker runs."""


class SettingsView(Body):
    """The answer to 7723."""

    settings: list[SettingEntry]


class SkipDamaged(Header):
    """7724: an operator has a group skip the damaged messages in a range of a queue.

    The group still receives the whole messages of the range.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    offset: Int64
    """The first message of the range, which must be damaged."""
    through: Int64
    """The last message of the range."""
    operator: str
    reason: str
