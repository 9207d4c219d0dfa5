"""Settings of clients, producers and consumers; the defaults are those of stock clients.

Durations are seconds, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from msgspec import Meta

from txmq.client.allocation import Allocation, Average
from txmq.client.observe.telemetry import Telemetry
from txmq.errors import ConfigError
from txmq.limits import FRAME_BYTES_MAX, MESSAGE_BODY_BYTES_MAX, QUEUES_OF_NEW_TOPICS
from txmq.protocol.compression import Algorithm
from txmq.protocol.topics import TRACES
from txmq.security.signatures import Credentials
from txmq.security.tls import ClientTls

__all__ = [
    "TRACE_SETTINGS", "ClientSettings", "ConsumerSettings", "ProducerSettings", "StartFrom",
    "check_bounds", "settings_or",
]  # fmt: skip

S = TypeVar("S")

_FRAME_ROOM: Final = 64 * 1024
"""The room in a frame for the header, which contains the properties."""


class _Bound(NamedTuple):
    least: Any
    kind: type
    is_optional: bool


@cache
def _bounds(kind: type) -> dict[str, _Bound]:
    return {
        name: _Bound(meta.ge, type(meta.ge), NoneType in get_args(hint.__origin__))
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for meta in getattr(hint, "__metadata__", ())
        if isinstance(meta, Meta)
    }


def check_bounds(settings: object) -> None:
    """Check settings against the bounds in their types.

    Raises:
        ConfigError: A value is too small, or not such a number.
    """
    kind: Any = type(settings)
    for name, bound in _bounds(kind).items():
        value: Any = getattr(settings, name)
        if value is None and bound.is_optional:
            continue
        if not isinstance(value, int | bound.kind):
            number = "a whole number" if bound.kind is int else "a number"
            raise ConfigError(f"{name} is {number}, not {value!r}")
        if value < bound.least:
            raise ConfigError(f"{name} is at least {bound.least}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """A client's timeouts and intervals.

    Raises:
        ConfigError: A value cannot work.
    """

    instance: str = ""
    """Distinguishes clients of one machine; random if empty."""
    host: str = ""
    """The first part of the client's id; this machine's name if empty."""
    heartbeat_s: Annotated[float, Meta(ge=0.01)] = 30.0
    route_refresh_s: Annotated[float, Meta(ge=0.01)] = 30.0
    answer_s: Annotated[float, Meta(ge=0.01)] = 3.0
    """The timeout of a request."""
    telemetry: Telemetry | None = None
    """OpenTelemetry for sends and handlers."""
    credentials: Credentials | None = None
    """The account that requests are signed with; without it ``TXMQ_ACCESS_KEY`` and
    ``TXMQ_SECRET_KEY``, or the file that ``TXMQ_CREDENTIALS`` names."""
    tls: ClientTls | None = None
    """Encrypts connections and checks servers; without it what ``TXMQ_TLS`` and the variables that
    begin with ``TXMQ_TLS_`` say, and no TLS without them."""

    def __post_init__(self) -> None:
        """Check that the values can work."""
        check_bounds(self)
        if "@" in self.instance or "@" in self.host:
            raise ConfigError("instance and host hold no '@', which joins them to the client's id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """A producer's settings.

    Raises:
        ConfigError: A value cannot work.
    """

    timeout_s: Annotated[float, Meta(ge=0.001)] = 3.0
    """For one message, over all attempts."""
    retries: Annotated[int, Meta(ge=0)] = 2
    """Further attempts of :meth:`~txmq.client.send.producer.Producer.send`, on another broker if
    there is one, else after a pause. Attempts that reach no broker do not count; if it is 0, these
    are not repeated either."""
    retries_nowait: Annotated[int, Meta(ge=0)] = 2
    """The same for ``send_nowait``, on the same broker."""
    retry_not_safe: bool = False
    """Try another broker also if the first stored the message, but not safely: not on its disk in
    time, or on no replica. The message may then be stored twice."""
    avoid_slow_brokers: bool = False
    """Avoid brokers for a while that failed or were slow."""
    compress_from: Annotated[int, Meta(ge=1)] = 4096
    """Bodies of this size and larger are compressed."""
    compression: Algorithm = "zlib"
    """Clients older than RocketMQ 5 support only "zlib"."""
    body_bytes_max: Annotated[int, Meta(ge=1)] = MESSAGE_BODY_BYTES_MAX
    """The largest body; raise the broker's ``topics.message_size_max`` with it."""
    queues_of_new_topics: Annotated[int, Meta(ge=1)] = QUEUES_OF_NEW_TOPICS
    """The number of queues of a topic that its first message creates."""
    linger_s: Annotated[float, Meta(ge=0.0)] = 0.0
    """How long a message may wait to share a request; 0 sends each message alone."""
    linger_bytes: Annotated[int, Meta(ge=1)] = 128 * 1024
    """The size at which waiting messages are sent."""
    linger_messages: Annotated[int, Meta(ge=1)] = 512
    """The number at which waiting messages are sent."""
    in_flight_bytes_max: Annotated[int, Meta(ge=1)] = 64 * 1024 * 1024
    """The maximum bytes of bodies in flight; a caller that sends more waits."""
    is_traced: bool = False
    """Whether each message leaves a record in ``trace_topic``."""
    trace_topic: str = TRACES

    def __post_init__(self) -> None:
        """Check that the values can work."""
        check_bounds(self)
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
    """Messages stored from now on. Before version 5, RocketMQ starts at the first message if the
    queue still has it."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """The oldest message."""
    TIME = "CONSUME_FROM_TIMESTAMP"
    """Messages stored at ``start_ms`` or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """A consumer's settings.

    Raises:
        ConfigError: A value cannot work.
    """

    start: StartFrom = StartFrom.LAST
    start_ms: int | None = None
    """For :attr:`StartFrom.TIME`; by default, half an hour before the start."""
    is_broadcast: bool = False
    """Whether every consumer of the group receives every message, without retries."""
    is_orderly: bool = False
    """Whether each queue is consumed strictly in order, by one consumer at a time."""
    concurrency: Annotated[int, Meta(ge=1)] = 20
    """Handlers that run at once."""
    batch_max: Annotated[int, Meta(ge=1)] = 1
    """The maximum number of messages for one call of a batch handler."""
    pull_batch: Annotated[int, Meta(ge=1)] = 32
    """The maximum number of messages in one pull."""
    pull_interval_s: Annotated[float, Meta(ge=0.0)] = 0.0
    hold_s: Annotated[float, Meta(ge=0.0)] = 15.0
    """How long a broker may hold an empty pull open."""
    cached_max: Annotated[int, Meta(ge=1)] = 1000
    """Messages of one queue that are fetched and not consumed, before fetching pauses."""
    cached_bytes_max: Annotated[int, Meta(ge=1)] = 100 * 1024 * 1024
    """The same, by the size of their bodies."""
    topic_cached_max: Annotated[int | None, Meta(ge=1)] = None
    """The same over all queues of a topic, shared among them."""
    topic_cached_bytes_max: Annotated[int | None, Meta(ge=1)] = None
    all_cached_max: Annotated[int | None, Meta(ge=1)] = None
    """The same over all queues, shared among them: 10,000 for a pull consumer, otherwise
    unlimited."""
    span_max: Annotated[int, Meta(ge=1)] = 2000
    """The maximum distance between a queue's first and last unconsumed message, unless orderly."""
    attempts_max: Annotated[int | None, Meta(ge=1)] = None
    """The number of retries before a message becomes a dead letter; by default the group's setting,
    and unlimited if orderly. One member's number applies to all members while they are connected;
    16, the default of stock consumers, means the group's setting."""
    consume_timeout_s: Annotated[float, Meta(ge=0.001)] = 900.0
    """The timeout of a handler; then the message is sent back for another attempt, and an ``async``
    handler is cancelled."""
    suspend_s: Annotated[float, Meta(ge=0.01)] = 1.0
    """How long an orderly queue waits after a failure."""
    allocation: Allocation = field(default_factory=Average)
    """The strategy that divides queues among the group's consumers."""
    rebalance_s: Annotated[float, Meta(ge=0.01)] = 20.0
    commit_s: Annotated[float, Meta(ge=0.01)] = 1.0
    """How often the consumer commits offsets; each pull commits them too. Stock clients wait 5 s,
    and receive more duplicates after a broker was killed."""
    commits_itself: bool = True
    """Whether the next poll of a pull consumer marks the previous messages as consumed; otherwise
    only ``commit()`` does."""
    stop_s: Annotated[float, Meta(ge=0.0)] = 30.0
    """How long a stop waits for running handlers."""
    reads_dead_letters: bool = False
    """Whether it may subscribe to dead letters, the topic ``%DLQ%GROUP``; ``txmq dlq`` shows and
    resends them without a consumer."""
    offsets_path: Path | None = None
    """The directory of a broadcast consumer's offsets; by default, ``~/.txmq/offsets``."""
    is_traced: bool = False
    trace_topic: str = TRACES

    def __post_init__(self) -> None:
        """Check that the values can work."""
        check_bounds(self)
        if not isinstance(self.start, StartFrom):
            raise ConfigError(f"start is one of StartFrom's values, not {self.start!r}")
        if isinstance(self.allocation, type) or not callable(self.allocation):
            raise ConfigError(
                f"allocation is a strategy, such as allocation.Circle(), not {self.allocation!r}"
            )
        if self.start_ms is not None and self.start is not StartFrom.TIME:
            raise ConfigError("start_ms says from which time on; it needs start=StartFrom.TIME")


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
