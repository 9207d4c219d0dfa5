"""Settings of clients, producers and consumers; the defaults are those of stock clients."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from txmq.client.allocation import Allocation, Average
from txmq.client.observe.telemetry import Telemetry
from txmq.errors import ConfigError
from txmq.limits import FRAME_BYTES_MAX, MESSAGE_BODY_BYTES_MAX, QUEUES_OF_NEW_TOPICS
from txmq.protocol.compression import Algorithm
from txmq.protocol.topics import TRACES
from txmq.security.signatures import Credentials
from txmq.security.tls import ClientTls
from txmq.settings.units import UNSET, Duration, OptionalSize, Size
from txmq.settings.values import Settings

__all__ = ["TRACE_SETTINGS", "ClientSettings", "ConsumerSettings", "ProducerSettings", "StartFrom"]

_BODY_MAX: Final = FRAME_BYTES_MAX - 64 * 1024
"""The rest of a frame is for the header, which contains the properties."""


class ClientSettings(Settings, kw_only=True):
    """A client's timeouts and intervals.

    Raises:
        ConfigError: A value cannot work.
    """

    instance: str = ""
    """Distinguishes clients of one machine; random if empty."""
    host: str = ""
    """The first part of the client's id; this machine's name if empty."""
    heartbeat: Annotated[Duration, Meta(ge=0.01)] = Duration(30.0)
    route_refresh: Annotated[Duration, Meta(ge=0.01)] = Duration(30.0)
    answer_timeout: Annotated[Duration, Meta(ge=0.01)] = Duration(3.0)
    """The timeout of a request."""
    telemetry: Telemetry | None = None
    """OpenTelemetry for sends and handlers."""
    credentials: Credentials | None = None
    """The account that signs requests; by default from ``TXMQ_ACCESS_KEY`` and ``TXMQ_SECRET_KEY``,
    or from the file that ``TXMQ_CREDENTIALS`` names."""
    tls: ClientTls | None = None
    """Encrypts connections and checks servers; by default as ``TXMQ_TLS`` and the variables that
    begin with ``TXMQ_TLS_`` say, or no TLS if they are not set."""

    def _check(self) -> None:
        if "@" in self.instance or "@" in self.host:
            raise ConfigError("instance and host hold no '@', which joins them to the client's id")


class ProducerSettings(Settings, kw_only=True):
    """A producer's settings.

    Raises:
        ConfigError: A value cannot work.
    """

    timeout: Annotated[Duration, Meta(ge=0.001)] = Duration(3.0)
    """The time limit for one message, over all attempts."""
    retries: Annotated[int, Meta(ge=0)] = 2
    """Further attempts of :meth:`~txmq.client.send.producer.Producer.send`, on another broker if
    there is one, else after a pause. Attempts that reach no broker do not count, but with 0 they
    are not repeated either."""
    retries_nowait: Annotated[int, Meta(ge=0)] = 2
    """Further attempts of ``send_nowait``, on the same broker."""
    retry_not_safe: bool = False
    """Try another broker if the first stored the message but not safely: not on its disk in time,
    or on no replica. The message may then be stored twice."""
    avoid_slow_brokers: bool = False
    """For a while, avoid brokers that failed or were slow."""
    compress_from: Annotated[Size, Meta(ge=1)] = Size(4096)
    """Bodies of this size and larger are compressed."""
    compression: Algorithm = "zlib"
    """Clients older than RocketMQ 5 support only "zlib"."""
    body_size_max: Annotated[Size, Meta(ge=1, le=_BODY_MAX)] = Size(MESSAGE_BODY_BYTES_MAX)
    """The largest body; raise the broker's ``topics.message_size_max`` with it."""
    queues_of_new_topics: Annotated[int, Meta(ge=1)] = QUEUES_OF_NEW_TOPICS
    """The number of queues of a topic that its first message creates."""
    linger: Duration = Duration(0.0)
    """How long a message may wait to share a request; 0 sends each message alone."""
    linger_size: Annotated[Size, Meta(ge=1)] = Size(128 * 1024)
    """The size at which waiting messages are sent."""
    linger_messages: Annotated[int, Meta(ge=1)] = 512
    """The number at which waiting messages are sent."""
    in_flight_max: Annotated[Size, Meta(ge=1)] = Size(64 * 1024 * 1024)
    """The maximum bytes of bodies in flight; a caller that sends more waits."""
    is_traced: bool = False
    """Whether each message leaves a record in ``trace_topic``."""
    trace_topic: str = TRACES


TRACE_SETTINGS: Final = ProducerSettings(timeout=5.0)
"""For the producer that sends traces, as in stock clients."""


class StartFrom(Enum):
    """Where a group begins in a queue it has never consumed."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """Messages stored from now on. Before version 5, RocketMQ starts at the first message if the
    queue still has it."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """The oldest message."""
    TIME = "CONSUME_FROM_TIMESTAMP"
    """Messages stored at ``start_ms`` or later."""


class ConsumerSettings(Settings, kw_only=True):
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
    pull_interval: Duration = Duration(0.0)
    hold_max: Duration = Duration(15.0)
    """How long a broker may hold an empty pull open."""
    cached_max: Annotated[int, Meta(ge=1)] = 1000
    """Fetching of a queue pauses while this many of its messages wait to be consumed."""
    cached_size_max: Annotated[Size, Meta(ge=1)] = Size(100 * 1024 * 1024)
    """Fetching of a queue pauses while its waiting messages have bodies of this size."""
    topic_cached_max: Annotated[int | None, Meta(ge=1)] = None
    """As ``cached_max``, for all queues of a topic together."""
    topic_cached_size_max: Annotated[OptionalSize, Meta(ge=1)] = UNSET
    """As ``cached_size_max``, for all queues of a topic together."""
    all_cached_max: Annotated[int | None, Meta(ge=1)] = None
    """As ``cached_max``, for all queues together: 10,000 for a pull consumer, otherwise
    unlimited."""
    span_max: Annotated[int, Meta(ge=1)] = 2000
    """The maximum distance between a queue's first and last unconsumed message, unless orderly."""
    attempts_max: Annotated[int | None, Meta(ge=1)] = None
    """The number of retries before a message becomes a dead letter; by default the group's setting,
    and unlimited if orderly. One member's number applies to all members while they are connected;
    16, the default of stock consumers, means the group's setting."""
    consume_timeout: Annotated[Duration, Meta(ge=0.001)] = Duration(900.0)
    """The timeout of a handler; after it, the message is sent back for another attempt, and an
    ``async`` handler is cancelled."""
    suspend: Annotated[Duration, Meta(ge=0.01)] = Duration(1.0)
    """How long an orderly queue waits after a failure."""
    allocation: Allocation = Average()
    """The strategy that divides queues among the group's consumers."""
    rebalance_interval: Annotated[Duration, Meta(ge=0.01)] = Duration(20.0)
    commit_interval: Annotated[Duration, Meta(ge=0.01)] = Duration(1.0)
    """How often the consumer commits offsets; each pull commits them too. Stock clients wait 5 s,
    and receive more duplicates after a broker was killed."""
    commits_itself: bool = True
    """Whether the next poll of a pull consumer marks the previous messages as consumed; otherwise
    only ``commit()`` does."""
    stop_timeout: Duration = Duration(30.0)
    """How long a stop waits for running handlers."""
    reads_dead_letters: bool = False
    """Whether it may subscribe to dead letters, the topic ``%DLQ%GROUP``; ``txmq dlq`` shows and
    resends them without a consumer."""
    offsets_path: Path | None = None
    """The directory of a broadcast consumer's offsets; by default, ``~/.txmq/offsets``."""
    is_traced: bool = False
    trace_topic: str = TRACES

    def _check(self) -> None:
        if isinstance(self.allocation, type) or not callable(self.allocation):
            raise ConfigError(
                f"allocation is a strategy, such as allocation.Circle(), not {self.allocation!r}"
            )
        if self.start_ms is not None and self.start is not StartFrom.TIME:
            raise ConfigError("start_ms says from which time on; it needs start=StartFrom.TIME")
