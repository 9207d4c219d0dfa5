"""The parts of a broker or a follower that its request handlers use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from txmq.protocol.bodies import TopicConfig
from txmq.protocol.copies import CopiesView
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk
from txmq.runtime.entropy import Entropy
from txmq_broker.config import BrokerSettings
from txmq_broker.core.admission import Admission
from txmq_broker.core.clients import Clients
from txmq_broker.core.filter.filters import Filters
from txmq_broker.core.groups import Groups
from txmq_broker.core.identity import Identity
from txmq_broker.core.locks import Locks
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.schedule import Schedule
from txmq_broker.core.statistics import Statistics
from txmq_broker.core.topics import Topics
from txmq_broker.core.transactions import Transactions
from txmq_broker.replication.held_leadership import HeldLeadership
from txmq_broker.services.checker import Checker
from txmq_broker.services.flusher import Flusher
from txmq_broker.services.log_verifier import LogVerifier
from txmq_broker.store.message_store import MessageStore

__all__ = ["Counted", "Parts", "ReadParts"]


class Counted(Protocol):
    """A part that keeps something for clients."""

    def figures(self) -> dict[str, int]:
        """What it keeps, and what it refused since the start."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadParts:
    """The parts that serve reads, of a leader or of a follower."""

    settings: BrokerSettings
    """The settings at the start; a change reaches the parts through ``settings_changed``."""
    identity: Identity
    access: str
    """Who may use the broker, in words."""
    started_ms: int
    disk: Disk
    clock: Clock

    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients[Connection]
    filters: Filters
    locks: Locks
    statistics: Statistics

    figures: Callable[[], dict[str, int]]
    """Counts what the broker keeps for its peers, and what it refused them, by name."""
    create_topics: Callable[[Iterable[TopicConfig]], None]
    """Creates the topics that a client's request needs; see ``TopicCreator.create``."""
    producers_seen: Callable[[Iterable[str]], None]
    """Notes that producers of these groups are connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(ReadParts):
    """The parts of a running broker; each family of handlers takes the parts it needs."""

    entropy: Entropy
    transactions: Transactions
    schedule: Schedule
    admission: Admission

    flusher: Flusher
    checker: Checker
    verifier: LogVerifier

    is_open: Callable[[], bool]
    """Returns whether the broker serves or drains; false once its files are closed."""
    leadership: HeldLeadership | None
    """The leadership under a coordinator, if there is one."""
    show_copies: Callable[[], CopiesView]
    """Returns the progress of the followers."""
    is_registered: Callable[[], bool]
    """Returns whether a name server knows the broker."""
    floors: Callable[[], dict[str, dict[int, int]]]
    """Returns the offsets below which queues were emptied, by topic and queue."""
    names: Callable[[], str]
    """Returns the addresses of the name servers."""
    topics_changed: Callable[[], None]
    """Saves the topics and registers them with the name servers."""
    groups_changed: Callable[[], None]
    """Saves the groups."""
    settings_changed: Callable[[BrokerSettings], None]
    """Applies new settings."""
    forget_topic: Callable[[str], None]
    """Hides the messages of a deleted topic for good, saves the topics without it, and registers
    them with the name servers."""
    delete_old_files: Callable[[], None]
    """Deletes the old files of the log at once, whatever the hour."""
