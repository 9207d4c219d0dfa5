"""The broker's settings, grouped by the part they steer.

How they are read (defaults, TOML, ``TXMQ_*`` variables, arguments) is :mod:`txmq.config`'s
business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from txmq.config import Duration, Size
from txmq.errors import ConfigError
from txmq.limits import FRAME_BYTES_MAX, MESSAGE_BODY_BYTES_MAX, SPAN_BYTES_MAX

__all__ = ["BrokerSettings", "RetentionSettings", "StoreSettings", "TopicDefaults"]

FlushMode = Literal["sync", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How the log is kept."""

    flush: FlushMode = "sync"
    """"sync": a send is answered when it would survive a power cut; "async": when it is written."""

    flush_interval: Duration = Duration(0.5)
    """With ``flush = "async"``, how often what was written is made durable."""

    segment_size: Size = Size(1024**3)
    """The log is kept in files of this size."""

    checkpoint_every: Size = Size(32 * 1024**2)
    """After this much log the indexes are saved; a restart after a crash reads at most about
    this.
    """

    def __post_init__(self) -> None:
        """Refuse sizes that cannot work."""
        if self.segment_size < 2 * SPAN_BYTES_MAX:
            raise ConfigError(f"store.segment_size must be at least {2 * SPAN_BYTES_MAX} bytes")
        if self.checkpoint_every < 64 * 1024:
            raise ConfigError("store.checkpoint_every must be at least 64KiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """When stored messages are deleted."""

    keep: Duration = Duration(72 * 3600.0)
    """How long a message is kept at least, unless the disk runs full."""

    delete_at: str = "04"
    """The hours of the day, separated by ``;``, in which old files are deleted."""

    delete_above: float = 0.75
    """Used part of the disk above which old files are deleted at any hour."""

    force_above: float = 0.85
    """Used part of the disk above which files are deleted before they are old."""

    refuse_above: float = 0.90
    """Used part of the disk above which sends are refused."""

    def __post_init__(self) -> None:
        """Refuse marks out of order."""
        if not 0 < self.delete_above <= self.force_above <= self.refuse_above <= 1:
            raise ConfigError(
                "retention marks must rise: 0 < delete_above <= force_above <= refuse_above <= 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """How topics and groups come to be."""

    auto_create: bool = True
    """Whether sending to an unknown topic makes it."""

    queues: int = 8
    """Queues of the template ``TBW102``; a client asks for up to as many, stock ones for 4."""

    auto_create_groups: bool = True
    """Whether a consumer group comes into being by consuming."""

    message_size_max: Size = Size(MESSAGE_BODY_BYTES_MAX)
    """The largest body, as sent."""

    def __post_init__(self) -> None:
        """Refuse what no frame can carry."""
        if not 0 < self.message_size_max <= FRAME_BYTES_MAX - 128 * 1024:
            raise ConfigError(
                f"topics.message_size_max must fit a frame of {FRAME_BYTES_MAX} bytes"
            )
        if not 1 <= self.queues <= 1024:
            raise ConfigError("topics.queues must be from 1 to 1024")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Everything ``txmq serve`` can be told."""

    name: str = "broker-a"
    """This broker's name; brokers that share a cluster must differ in it."""

    cluster: str = "DefaultCluster"
    """The cluster it belongs to."""

    data: str = "txmq-data"
    """The directory that holds everything it keeps."""

    listen: str = "127.0.0.1:10911"
    """Where clients reach it."""

    advertise: str = ""
    """The address clients are told, where it differs from ``listen``; numeric, as records need
    it.
    """

    names_listen: str = "127.0.0.1:9876"
    """Where its own name server listens."""

    names: str = ""
    """Name servers elsewhere, separated by ``;``; with any, it runs none of its own."""

    connections_max: int = 10_000
    """Connections open at once; one more is closed at once."""

    hold_max: Duration = Duration(20.0)
    """The longest a pull is held open; stock clients give up after 30 s."""

    store: StoreSettings = field(default_factory=StoreSettings)
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
