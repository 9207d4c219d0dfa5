"""Brokers' answers: receipts, batches, and views of topics, groups and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from txmq.message import Queue, QueueOffset, ReceivedMessage

__all__ = [
    "BrokerCopies",
    "BrokerInfo",
    "CheckReport",
    "ConnectedClient",
    "ConsumerReport",
    "FollowerCopy",
    "FormerMember",
    "GroupConnections",
    "GroupLag",
    "HandledMessage",
    "HeldQueueReport",
    "OffsetMove",
    "OpenTransaction",
    "PullOutcome",
    "PulledBatch",
    "QueueProgress",
    "QueueStatus",
    "RecheckReport",
    "SendResult",
    "SendStatus",
    "StoredBatch",
    "TopicTraffic",
    "TransactionDecision",
    "TransactionReport",
    "WaitingRetries",
    "WholeTransaction",
]


class SendStatus(Enum):
    """The durability of a stored message."""

    OK = 0
    """As durable as the broker's configuration demands."""
    FLUSH_DISK_TIMEOUT = 10
    """The broker did not flush it to disk in time."""
    SLAVE_NOT_AVAILABLE = 11
    """No replica was available."""
    FLUSH_SLAVE_TIMEOUT = 12
    """No replica stored it in time."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """A broker's receipt for a stored message."""

    # Created for each message; a frozen dataclass takes six times as long.

    status: SendStatus
    queue: Queue
    offset: QueueOffset
    id: str
    """The id from its sender."""
    offset_id: str
    """Its place in the broker's log; empty if the broker does not return places for a batch."""
    transaction_id: str | None = None
    recall_handle: str | None = None
    """The handle for recalling a delayed message, if its broker supports that."""


class PullOutcome(Enum):
    """The result of a pull."""

    FOUND = "found"
    EMPTY = "empty"
    """No message has arrived at the offset yet."""
    NONE_MATCHED = "none matched"
    """No message matched the filter; continue at the next offset."""
    MOVED = "moved"
    """The offset lies outside the queue; the next offset is the nearest inside."""


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """The messages of one pull."""

    outcome: PullOutcome
    messages: tuple[ReceivedMessage, ...]
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset

    @property
    def found(self) -> bool:
        """Whether the broker had messages; messages filtered out by tag count too."""
        return self.outcome is PullOutcome.FOUND


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The records of one pull, as they are stored."""

    outcome: PullOutcome
    records: tuple[bytes, ...]
    next_offset: QueueOffset


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue as its broker sees it."""

    queue: Queue
    min_offset: QueueOffset
    max_offset: QueueOffset
    updated_ms: int

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A group's offset in one queue, before and after a reset."""

    queue: Queue
    before: QueueOffset | None
    """The current offset; ``None`` if the group never committed one."""
    after: QueueOffset


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in one queue."""

    queue: Queue
    broker_offset: QueueOffset
    group_offset: QueueOffset
    consumed_ms: int

    @property
    def lag(self) -> int:
        """Stored messages that are not consumed yet."""
        return max(0, self.broker_offset - self.group_offset)


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A client as brokers see it."""

    id: str
    address: str
    language: str
    version: int
    seen_ms: int = 0
    """When the broker last received its heartbeat; 0 if the broker's answer does not say."""


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The connected clients of a consumer group, and their subscriptions."""

    clients: tuple[ConnectedClient, ...]
    subscriptions: Mapping[str, str]
    """The filter expression by topic."""
    message_model: str
    consume_type: str


@dataclass(frozen=True, slots=True)
class WaitingRetries:
    """Messages that a group failed to handle and that wait for a retry."""

    by_number: Mapping[int, int]
    """How many wait for each retry; 1 is the first. Key 0 counts those whose number is unknown,
    because their broker has too many to track it."""
    last: int | None = None
    """The last retry before a message becomes a dead letter; ``None`` if it is unknown."""

    @property
    def count(self) -> int:
        """How many wait."""
        return sum(self.by_number.values())


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, in all its topics or in one."""

    group: str
    topics: tuple[str, ...]
    """The topics in which it has offsets."""
    lag: int
    """Stored messages that are not consumed yet."""
    per_second: float
    """Messages that it fetches per second, over the last minute."""
    oldest_ms: int | None
    """How long its oldest unread message has been stored, by its broker's clock; ``None`` if it is
    not behind."""
    retries: WaitingRetries | None = None
    """The messages that wait for a retry, which are not in the lag; ``None`` if a broker does not
    report them, such as Apache RocketMQ's or one that has just started."""

    @property
    def unconsumed(self) -> int:
        """The lag and the messages that are known to wait for a retry."""
        return self.lag + (self.retries.count if self.retries else 0)


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """The traffic of a topic, and of one group that consumes it."""

    topic: str
    group: str
    """Empty if no group consumes the topic."""
    lag: int
    """Stored messages that the group has not consumed yet."""
    retries: WaitingRetries | None
    """Messages of the topic that wait for a retry; see :attr:`GroupLag.retries`."""
    in_per_second: float
    """Messages that arrive per second, over the last minute."""
    out_per_second: float
    """Messages that the group fetches per second, over the last minute."""
    in_of_day: int
    """Messages that arrived in the last 24 hours."""
    out_of_day: int
    """Messages that the group fetched in the last 24 hours."""


@dataclass(frozen=True, slots=True)
class HeldQueueReport:
    """A queue that a consumer holds, as the consumer reports it."""

    queue: Queue
    offset: QueueOffset
    """Everything before it is consumed."""
    fetched: int
    """Messages that it has fetched and not consumed yet."""


@dataclass(frozen=True, slots=True)
class ConsumerReport:
    """What a consumer reports about itself."""

    client: str
    is_orderly: bool
    started_ms: int | None
    subscriptions: Mapping[str, str]
    """The filter expression by topic."""
    queues: tuple[HeldQueueReport, ...]


@dataclass(frozen=True, slots=True)
class HandledMessage:
    """The result of a message that an operator made a consumer handle."""

    client: str
    is_consumed: bool
    result: str
    """RocketMQ's word for it, such as ``CR_SUCCESS``."""
    remark: str
    """The consumer's error, if it failed."""
    spent_ms: int


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker as the name server knows it."""

    name: str
    cluster: str
    addresses: Mapping[int, str]
    """By replica number; 0 is the master."""


@dataclass(frozen=True, slots=True)
class FollowerCopy:
    """A follower's copy of a broker's log, as its leader knows it."""

    member: str
    """Its name in the set. The part after the last dot belongs to its directory."""
    address: str
    """The address of its connection; empty if it is not connected."""
    in_sync: bool
    """Whether it has everything that the leader acknowledged."""
    position: int | None
    """The end of its durable copy; ``None`` before it has confirmed one."""
    bytes_behind: int | None
    seconds_behind: float | None
    """How long ago the leader's log ended where the copy ends."""
    is_longer: bool
    """Whether the copy is further behind than ``seconds_behind``."""
    damaged_parts: int = 0
    """The number of known damaged parts of its log; it is out of sync until they are repaired."""
    verified_ms: int = 0
    """When it last finished verifying its whole log; 0 if that is unknown."""


@dataclass(frozen=True, slots=True)
class FormerMember:
    """A member that an operator removed from a broker set."""

    name: str
    """Its name in its settings."""
    operator: str
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class BrokerCopies:
    """The copies of a broker's log."""

    broker: str
    leader: str
    """The leader's name in its set; empty if it has none."""
    epoch: int
    """The number of the current leadership; 0 without a coordinator."""
    mode: str
    """"sync" if answers wait for every follower in sync, "async" if they wait for none."""
    min_in_sync: int
    """The leader refuses sends while fewer copies are in sync, its own included."""
    log_end: int
    followers: tuple[FollowerCopy, ...]
    removed: tuple[FormerMember, ...] = ()
    """The members that an operator removed."""
    damaged_parts: int = 0
    """The number of known damaged parts of the leader's log."""
    verified_ms: int = 0
    """When the leader last finished verifying its whole log; 0 before the first time."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An undecided transaction, or one message of it if it has several."""

    id: str
    state: str
    """"prepared" while the broker checks it with its producer, "parked" after the last check."""
    group: str
    queue: Queue
    """The topic and queue of its message after the commit."""
    half_offset: int
    offset_id: str
    """The place of its half message."""
    keys: tuple[str, ...]
    stored_ms: int
    checks: int
    """Checks that reached a producer without a decision."""
    origin: str
    """The client that sent it; empty if unknown."""
    is_being_decided: bool
    xid: str
    """The id of its transaction, which the messages of one transaction share."""


@dataclass(frozen=True, slots=True)
class WholeTransaction:
    """The messages of one transaction at the brokers of a cluster."""

    messages: tuple[OpenTransaction, ...]
    """In order, open or decided: ``state`` may also be "committed" or "rolled back". A second copy
    of a message at another broker is not among them, because it is a transaction of its own."""
    silent: dict[str, str]
    """Brokers that may have more of its messages but did not answer, with the reasons."""

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        """The messages that wait for the decision."""
        return tuple(item for item in self.messages if item.state in {"prepared", "parked"})


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A check that a broker sent to a producer of an open transaction."""

    asked_ms: int
    client_id: str
    address: str
    answer: str
    """"unknown"; "silent" if no answer came until the next check; "lost" if the connection closed;
    "decided" if a decision came; empty while the check is open."""
    answered_ms: int


@dataclass(frozen=True, slots=True)
class RecheckReport:
    """An operator's request to check a transaction again."""

    at_ms: int
    operator: str
    """The person named in the request; empty without one."""
    account: str
    """The account that sent the request; empty without one."""
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """A commit, a rollback, or the parking of a transaction."""

    kind: str
    """"committed", "rolled_back" or "parked"."""
    source: str
    """"producer", "check" if it answered a check, "operator", or "broker"."""
    at_ms: int
    reason: str
    """The operator and the reason, if an operator decided."""
    offset_id: str
    """The visible message's offset id; empty if there is none, or if the log has it elsewhere."""


@dataclass(frozen=True, slots=True)
class TransactionReport:
    """What a broker knows about a transaction, open or decided."""

    transaction: OpenTransaction
    """Its ``state`` may also be "committed" or "rolled back"."""
    born_ms: int
    address: str
    """The address from which the half message came."""
    decisions: tuple[TransactionDecision, ...]
    checks: tuple[CheckReport, ...]
    """The latest checks since the start of the broker, oldest first."""
    check_max: int
    """After this many checks without a decision, the broker parks the transaction."""
    next_check_ms: int
    """When the broker asks again; 0 if it asks no more, or does not know."""
    waits_for_producer: bool
    """Whether a check is due, but no producer of the group can be asked."""
    producers: int
    """The number of connected producers of the group."""
    rechecks: tuple[RecheckReport, ...] = ()
    """The latest requests to check it again, since the start of the broker, oldest first."""

    @property
    def final(self) -> TransactionDecision | None:
        """The commit or the rollback, if the transaction is decided."""
        return next((item for item in self.decisions if item.kind != "parked"), None)
