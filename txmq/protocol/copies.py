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
    """7705: a follower requests the spans that follow the end of its log."""

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
    """The broker id that the follower registers under, or last did; 0 if it has none."""
    serves_reads: bool = False
    """Whether consumers may read from it."""
    takes_deflated: bool = False
    """Whether the follower can read compressed tables; older followers cannot."""
    takes_changes: bool = False
    """Whether the follower accepts only the changed topics; older followers need all of them."""
    is_out: bool = False
    """Whether its copy does not count as in sync: it is damaged, or it has lost something and has
    not caught up since."""
    can_lead: bool = True
    """Whether its disk has room for what a leader stores."""
    damaged_parts: Int64 = 0
    """The number of known damaged parts of its log."""
    verified_ms: Int64 = 0
    """When it last finished verifying its whole log; 0 before the first time."""


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
    """Whether the leader has the follower's last span too; if not, the answer has no spans."""
    file_start: Int64
    """Where the file that holds the spans begins."""
    tables_bytes: Int64
    acknowledged: Int64 = -1
    """Every in-sync member has the log durably up to here; readers see nothing behind it."""
    broker_id: Int64 = 0
    """The broker id that the follower must register under."""
    is_deflated: bool = False
    """Whether the tables are compressed with zlib: those of 100,000 topics exceed a frame."""


class TopicChanges(Body):
    """The changes that lead to one version of a broker's topics, with their current settings."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    changed: dict[str, TopicConfig] = {}
    """Topics that were created or changed."""
    deleted: list[str] = []

    def applied_to(self, topics: TopicConfigs) -> TopicConfigs:
        """Return the topics with these changes; applying a change twice does no harm."""
        table = topics.topic_config_table | self.changed
        for name in self.deleted:
            table.pop(name, None)
        return TopicConfigs(self.data_version, table)


class CopiedTables(Body):
    """The tables that a leader keeps next to its log."""

    topics: TopicConfigs | None = None
    groups: GroupConfigs | None = None
    offsets: ConsumerOffsets | None = None
    """They may refer to anything before the answer's ``end``; a follower saves them once its copy
    reaches it."""
    floors: dict[str, dict[int, int]] | None = None
    """The same applies as for ``offsets``."""
    accounts: Mapping[str, str] | None = None
    """The texts of the leader's account files, with secrets; empty if it has none, ``None`` if the
    follower has them already."""
    topic_changes: TopicChanges | None = None
    """Sent instead of all topics: what changed since the version that the follower has."""

    def __repr__(self) -> str:
        return "CopiedTables(***)"


class NoteCopied(Header):
    """7706: the follower has the log durably up to a position."""

    member: str
    position: Int64


class FetchSpans(Header):
    """7710: a follower requests whole spans to replace damaged ones in its log."""

    member: str
    epoch: Int64
    """The newest epoch that the follower knows."""
    position: Int64
    """Where the damaged part begins."""
    end: Int64
    """Where it ends."""


class FetchedSpans(Header):
    """The answer to 7710. Its body holds whole spans from that position on; a large part takes
    several requests.
    """

    epoch: Int64
    """The leader's epoch."""
    file_start: Int64
    """Where the file that holds the spans begins."""


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
    """Whether the copy is further behind than ``seconds_behind``; the leader remembers only a few
    seconds."""
    damaged_parts: int = 0
    """The number of known damaged parts of its log; it is out of sync until they are repaired."""
    verified_ms: int = 0
    """When it last finished verifying its whole log; 0 if that is unknown."""


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
    """The number of known damaged parts of the leader's log."""
    verified_ms: int = 0
    """When the leader last finished verifying its whole log; 0 before the first time."""


class SetChange(Header):
    """7708: an operator changes a broker set."""

    act: str
    """``hand-over``, ``remove`` or ``rejoin``."""
    member: str
    """A member's full name, or the name in its settings."""
    operator: str
    reason: str
    allow_refused_sends: bool = False
    """Whether a removal may leave too few copies in sync for sends."""


class SetChanged(Header):
    """The answer to 7708, sent once the set's store has recorded the change."""

    member: str
    """The name of the member."""
    epoch: Int64
    """The epoch in which it was recorded."""
