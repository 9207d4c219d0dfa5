"""The settings of relays."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from txmq.errors import ConfigError
from txmq.settings.units import Duration, Size
from txmq.settings.values import Settings

__all__ = ["OnPoison", "RelaySettings"]

OnPoison: TypeAlias = Literal["block", "skip", "dead_letter"]


class RelaySettings(Settings, kw_only=True):
    """A relay's settings.

    Raises:
        ConfigError: A value is out of range, or two values contradict each other.
    """

    on_poison: OnPoison = "block"
    """What happens to a row whose message brokers refuse for good. "block": its lane waits until an
    operator repairs or deletes the row. "skip": the row is set aside with the reason, and its lane
    continues. "dead_letter": its message goes to another topic.
    """
    dead_letter_topic: str = ""
    """The topic for "dead_letter"."""
    attempts_max: Annotated[int, Meta(ge=1)] = 16
    """The number of refusals for a temporary reason after which the refusal counts as final. An
    error in the message itself is final at once. An unreachable or busy broker never counts.
    """
    blocked_interval: Annotated[Duration, Meta(ge=0.001)] = Duration(60.0)
    """The interval at which a blocked row is sent again."""
    group: str = "txmq_relay"
    """The producer group, if the relay makes its own producer."""
    lease: Annotated[Duration, Meta(ge=0.1)] = Duration(10.0)
    """The lease. When it expires, another relay takes over the rows of a relay that died. A relay
    renews it three times per lease."""
    poll_interval: Annotated[Duration, Meta(ge=0.001)] = Duration(1.0)
    """The longest interval between two reads of the outbox."""
    rows_max: Annotated[int, Meta(ge=1)] = 4_000
    """The maximum number of rows in memory."""
    size_max: Annotated[Size, Meta(ge=1)] = Size(32 * 1024 * 1024)
    """The maximum size of all message bodies in memory; a single body may exceed it."""
    batch_rows: Annotated[int, Meta(ge=1)] = 500
    """The maximum number of messages in one request."""
    batch_size: Annotated[Size, Meta(ge=1)] = Size(512 * 1024)
    """The maximum size of all bodies in one request; a larger message travels alone."""
    sends_max: Annotated[int, Meta(ge=1)] = 16
    """The maximum number of requests in flight."""
    stop_timeout: Duration = Duration(10.0)
    """How long a stop waits for requests in flight."""

    def _check(self) -> None:
        if (self.on_poison == "dead_letter") != bool(self.dead_letter_topic):
            raise ConfigError('on_poison="dead_letter" and dead_letter_topic="..." belong together')
