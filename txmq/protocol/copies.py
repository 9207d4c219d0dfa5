"""The requests of a follower to its leader, 7705, 7706 and 7710, the leader's view of its set,
7707, and an operator's changes of it, 7708.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from txmq.protocol.bodies import (
    Body,
    ConsumerOffsets,
    DataVersion,
    GroupConfigs,
    TopicConfig,
    TopicConfigs,
)
from txmq.protocol.headers import Header, Int64

__all__ = [
    "NO_SPAN",
    "CopiedTables",
    "CopiesView",
    "FetchSpans",
    "FetchedSpans",
    "FollowAnswer",
    "FollowLog",
    "FollowerEntry",
    "NoteCopied",
    "RemovedMember",
    "SetChange",
    "SetChanged",
    "TopicChanges",
]

NO_SPAN = -1
"""The last span of a follower whose log is empty."""


class FollowLog(Header):
    """7705: the spans of the log from a position on, which is the end of the follower's log."""

    member: str
    epoch: Int64
    """The newest epoch that the follower knows."""
    position: Int64
    last_start: Int64
    """Where the follower's last span begins; with its epoch it identifies the history."""
    last_epoch: Int64
    last_checksum: Int64
    waits: bool
    """Whether the leader may hold the request until there is something to send. Otherwise it only
    compares the histories."""
    broker_id: Int64 = 0
    """The id under which the follower registers or did before; 0 if it has none."""
    serves_reads: bool = False
    """Whether consumers may read from it."""
    takes_deflated: bool = False
    """Whether the tables may come compressed; older followers cannot read those."""
    takes_changes: bool = False
    """Whether only the changed topics may come; older followers need all of them."""
    is_out: bool = False
    """Whether its copy does not count as in sync: it is damaged, or it has lost something and has
    not caught up since."""
    can_lead: bool = True
    """Whether its disk has room for what a leader stores."""
    damaged_parts: Int64 = 0
    """The number of damaged parts of its log that are known."""
    verified_ms: Int64 = 0
    """When it had verified its whole log last; 0 before that."""


class FollowAnswer(Header):
    """The answer to 7705. Its body holds the tables, if there are any, and then whole spans."""

    log: str
    """The identity of the leader's log."""
    epoch: Int64
    """The leader's epoch; a follower that has seen a newer one takes nothing."""
    start: Int64
    """Where the leader's log begins."""
    end: Int64
    """Where it ends. The tables may refer to everything before that."""
    is_shared: bool
    """Whether the leader has the follower's last span too; without it there are no spans."""
    file_start: Int64
    """Where the file begins that holds the spans."""
    tables_bytes: Int64
    acknowledged: Int64 = -1
    """Every member in sync has the log durably up to here; readers see nothing behind it."""
    broker_id: Int64 = 0
    """The id under which the follower is to register."""
    is_deflated: bool = False
    """Whether the tables are compressed with zlib: those of 100,000 topics exceed a frame."""


class TopicChanges(Body):
    """The changes that lead to one version of a broker's topics; settings are as they are now."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    changed: dict[str, TopicConfig] = {}
    """Topics that were created or changed."""
    deleted: list[str] = []

    def applied_to(self, topics: TopicConfigs) -> TopicConfigs:
        """The topics with these changes; changes that they have already do no harm."""
        table = topics.topic_config_table | self.changed
        for name in self.deleted:
            table.pop(name, None)
        return TopicConfigs(self.data_version, table)


class CopiedTables(Body):
    """The tables beside the log."""

    topics: TopicConfigs | None = None
    groups: GroupConfigs | None = None
    offsets: ConsumerOffsets | None = None
    """Ahead of everything before the end of the log; a follower saves them when it is there."""
    floors: dict[str, dict[int, int]] | None = None
    """Likewise."""
    accounts: Mapping[str, str] | None = None
    """The texts of the leader's files of accounts, with secrets; empty if it has none, and ``None``
    if the follower has them."""
    topic_changes: TopicChanges | None = None
    """In place of all topics, what changed since those that the follower has."""

    def __repr__(self) -> str:
        return "CopiedTables(***)"


class NoteCopied(Header):
    """7706: the follower has the log durably up to a position."""

    member: str
    position: Int64


class FetchSpans(Header):
    """7710: whole spans in place of those that are damaged in the follower's log."""

    member: str
    epoch: Int64
    """The newest epoch that the follower knows."""
    position: Int64
    """Where the damaged part begins."""
    end: Int64
    """Where it ends."""


class FetchedSpans(Header):
    """The answer to 7710. Its body holds whole spans from that position on; those of a large part
    come in several answers.
    """

    epoch: Int64
    """The leader's epoch."""
    file_start: Int64
    """Where the file begins that holds the spans."""


class FollowerEntry(Body):
    """A follower in the answer to 7707."""

    member: str
    address: str
    """The address of its connection; empty if it is not connected."""
    is_in_sync: bool
    position: int | None = None
    """The end of its durable copy; ``None`` before the follower has confirmed one."""
    bytes_behind: int | None = None
    seconds_behind: float | None = None
    """How long ago the leader's log ended where the copy ends."""
    is_longer: bool = False
    """Whether the copy is further behind than that; the leader remembers a few seconds."""
    damaged_parts: int = 0
    """The number of damaged parts of its log that are known; it is out of sync until they are
    repaired."""
    verified_ms: int = 0
    """When it had verified its whole log last; 0 if that is unknown."""


class RemovedMember(Body):
    """A member in the answer to 7707 that an operator removed."""

    name: str
    """Its name in its settings."""
    operator: str
    reason: str
    at_ms: int


class CopiesView(Body):
    """The answer to 7707: a leader and the other members of its set."""

    member: str
    """The leader's name in its set; empty if it has none."""
    epoch: int
    mode: str
    min_in_sync: int
    log_end: int
    followers: list[FollowerEntry]
    removed: list[RemovedMember] = []
    damaged_parts: int = 0
    """The number of damaged parts of the leader's log that are known."""
    verified_ms: int = 0
    """When the leader had verified its whole log last; 0 before that."""


class SetChange(Header):
    """7708: an operator changes a broker set."""

    act: str
    """``hand-over``, ``remove`` or ``rejoin``."""
    member: str
    """The whole name of a member, or the one in its settings."""
    operator: str
    reason: str
    allow_refused_sends: bool = False
    """Whether a removal may leave too few copies in sync for sends."""


class SetChanged(Header):
    """The answer to 7708, when the store of the set has recorded the change."""

    member: str
    """The name of the member."""
    epoch: Int64
    """The epoch in which it was recorded."""
