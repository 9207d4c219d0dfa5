"""Settings of clients, producers and consumers; the defaults are those of stock clients.

Durations are seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from txmq.client.allocation import Allocation, Average
from txmq.client.observe.telemetry import Telemetry
from txmq.errors import ConfigError
from txmq.limits import FRAME_BYTES_MAX, MESSAGE_BODY_BYTES_MAX
from txmq.protocol.compression import Algorithm
from txmq.protocol.topics import TRACES

__all__ = [
    "TRACE_SETTINGS", "ClientSettings", "ConsumerSettings", "ProducerSettings", "StartFrom",
    "check_bounds", "settings_or",
]  # fmt: skip

S = TypeVar("S")

_FRAME_ROOM: Final = 64 * 1024
"""What a frame holds beside a message's body: its header, and that holds the properties."""


def check_bounds(settings: object, least: Mapping[str, float]) -> None:
    """Check that settings are not too small.

    Raises:
        ConfigError: A value is too small.
    """
    for name, bound in least.items():
        value: Any = getattr(settings, name)
        if value < bound:
            raise ConfigError(f"{name} is at least {bound}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """A client's timeouts and intervals.

    Raises:
        ConfigError: A value cannot work.
    """

    instance: str = ""
    """Tells clients of one machine apart; drawn by lot where it is empty."""
    host: str = ""
    """The first part of the client's id; this machine's name where it is empty."""
    heartbeat_s: float = 30.0
    route_refresh_s: float = 30.0
    answer_s: float = 3.0
    """How long an answer may take."""
    telemetry: Telemetry | None = None
    """Where spans of messages sent and handled go, for OpenTelemetry."""

    def __post_init__(self) -> None:
        """Check that the values can work."""
        check_bounds(self, {"heartbeat_s": 0.01, "route_refresh_s": 0.01, "answer_s": 0.01})
        if "@" in self.instance or "@" in self.host:
            raise ConfigError("instance and host hold no '@', which joins them to the client's id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """A producer's settings.

    Raises:
        ConfigError: A value cannot work.
    """

    timeout_s: float = 3.0
    """For one message, over all attempts."""
    retries: int = 2
    """Further attempts of :meth:`~txmq.client.send.producer.Producer.send`, on another broker."""
    retries_nowait: int = 2
    """The same for ``send_nowait``, on the same broker."""
    retry_not_safe: bool = False
    """Try another broker also where the first has the message, but not safely: not on its disk in
    time, or on no replica. The message may then be there twice."""
    avoid_slow_brokers: bool = False
    """Keep away for a while from brokers that failed or were slow."""
    compress_from: int = 4096
    """Bodies of this size and larger are compressed."""
    compression: Algorithm = "zlib"
    """Only "zlib" is understood by clients older than RocketMQ 5."""
    body_bytes_max: int = MESSAGE_BODY_BYTES_MAX
    """The largest body; the broker's ``max_message_size`` is to be raised with it."""
    queues_of_new_topics: int = 4
    """Queues wanted for a topic that comes into being by its first message."""
    linger_s: float = 0.0
    """How long a message may wait for others to travel with; 0 sends each by itself."""
    linger_bytes: int = 128 * 1024
    """So many bytes of waiting messages are sent at once."""
    linger_messages: int = 512
    """So many waiting messages are sent at once."""
    in_flight_bytes_max: int = 64 * 1024 * 1024
    """Bodies that are on their way; a caller that sends more waits."""
    is_traced: bool = False
    """Whether each message leaves a record in ``trace_topic``."""
    trace_topic: str = TRACES

    def __post_init__(self) -> None:
        """Check that the values can work."""
        check_bounds(self, {
            "timeout_s": 0.001, "retries": 0, "retries_nowait": 0, "compress_from": 1,
            "body_bytes_max": 1, "queues_of_new_topics": 1, "linger_s": 0.0, "linger_bytes": 1,
            "linger_messages": 1, "in_flight_bytes_max": 1,
        })  # fmt: skip
        most = FRAME_BYTES_MAX - _FRAME_ROOM
        if self.body_bytes_max > most:
            raise ConfigError(
                f"body_bytes_max is at most {most}, not {self.body_bytes_max}: "
                f"no frame holds more than {FRAME_BYTES_MAX} bytes"
            )


TRACE_SETTINGS: Final = ProducerSettings(timeout_s=5.0)
"""For the producer that sends a trace: as stock clients do."""


class StartFrom(Enum):
    """Where a group begins in a queue it has never consumed."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """With what is stored from now on. RocketMQ before version 5 begins a queue that still has its
    first message with that."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """With the oldest message."""
    TIME = "CONSUME_FROM_TIMESTAMP"
    """With what was stored at ``start_ms`` or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """A consumer's settings.

    Raises:
        ConfigError: A value cannot work.
    """

    start: StartFrom = StartFrom.LAST
    start_ms: int | None = None
    """For :attr:`StartFrom.TIME`; half an hour before the start where it is ``None``."""
    is_broadcast: bool = False
    """Whether every consumer of the group gets every message, and none is tried again."""
    is_orderly: bool = False
    """Whether each queue is consumed strictly in order, by one consumer at a time."""
    concurrency: int = 20
    """Handlers that run at once."""
    batch_max: int = 1
    """The most messages a handler of batches gets at once."""
    pull_batch: int = 32
    """The most messages fetched at once."""
    pull_interval_s: float = 0.0
    hold_s: float = 15.0
    """How long a broker may hold a pull open that finds nothing."""
    cached_max: int = 1000
    """Messages of one queue that are fetched and not consumed, before fetching pauses."""
    cached_bytes_max: int = 100 * 1024 * 1024
    """The same, by the size of their bodies."""
    topic_cached_max: int | None = None
    """The same over all queues of a topic, shared among them."""
    topic_cached_bytes_max: int | None = None
    all_cached_max: int | None = None
    """The same over all queues, shared among them: 10,000 for a pull consumer, else no bound."""
    span_max: int = 2000
    """How far apart the first and last unconsumed message of a queue may be, unless orderly."""
    attempts_max: int | None = None
    """After so many retries a message goes to the dead letters: as many as its group is set to, and
    never if orderly. A number of one member's holds for all of them while they are connected; 16,
    which stock consumers say by themselves, leaves it to the group."""
    consume_timeout_s: float = 900.0
    """A message that is worked on for longer is sent back for another attempt."""
    suspend_s: float = 1.0
    """How long an orderly queue waits after a failure."""
    allocation: Allocation = field(default_factory=Average)
    """Which queues fall to which consumer of the group."""
    rebalance_s: float = 20.0
    commit_s: float = 1.0
    """How often the consumer reports how far the group has come; each pull reports it too. Stock
    clients wait 5 s, and get more again after a broker was killed."""
    commits_itself: bool = True
    """Whether a pull consumer takes what it gave out for consumed once it is asked for more;
    otherwise only its ``commit()`` says so."""
    stop_s: float = 30.0
    """How long a stop waits for handlers that are at work."""
    offsets_path: Path | None = None
    """The directory of a broadcast consumer's offsets; ``~/.txmq/offsets`` where it is ``None``."""
    is_traced: bool = False
    trace_topic: str = TRACES

    def __post_init__(self) -> None:
        """Check that the values can work."""
        check_bounds(self, {
            "concurrency": 1, "batch_max": 1, "pull_batch": 1, "pull_interval_s": 0.0,
            "hold_s": 0.0, "cached_max": 1, "cached_bytes_max": 1, "span_max": 1,
            "consume_timeout_s": 0.001, "suspend_s": 0.01, "rebalance_s": 0.01, "commit_s": 0.01,
            "stop_s": 0.0,
        })  # fmt: skip
        if not isinstance(self.start, StartFrom):
            raise ConfigError(f"start is one of StartFrom's values, not {self.start!r}")
        if self.start_ms is not None and self.start is not StartFrom.TIME:
            raise ConfigError("start_ms says from which time on; it needs start=StartFrom.TIME")
        bounds = "topic_cached_max", "topic_cached_bytes_max", "all_cached_max"
        for name in ("attempts_max", *bounds):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is at least 1, not {value}")


def settings_or(kind: type[S], given: S | None) -> S:
    """The settings that were given, or the defaults.

    Raises:
        ConfigError: The settings have the wrong type.
    """
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    hint = ""
    if isinstance(given, dict):
        pairs = ", ".join(f"{name}={value!r}" for name, value in given.items())
        hint = f"; write {kind.__name__}({pairs})"
    raise ConfigError(f"settings are a {kind.__name__}, not {given!r}{hint}")
