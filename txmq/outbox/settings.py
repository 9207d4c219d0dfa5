"""The settings of relays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta

from txmq.client.settings import check_bounds
from txmq.errors import ConfigError

__all__ = ["OnPoison", "RelaySettings"]

OnPoison: TypeAlias = Literal["block", "skip", "dead_letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """A relay's settings. Durations are seconds, sizes bytes.

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
    blocked_s: Annotated[float, Meta(ge=0.001)] = 60.0
    """The interval at which a blocked row is sent again."""
    group: str = "txmq_relay"
    """The producer group, if the relay makes its own producer."""
    lease_s: Annotated[float, Meta(ge=0.1)] = 10.0
    """The lease. When it expires, another relay takes over the rows of a relay that died. A relay
    renews it three times per lease."""
    poll_s: Annotated[float, Meta(ge=0.001)] = 1.0
    """The longest interval between two looks for rows."""
    rows_max: Annotated[int, Meta(ge=1)] = 4_000
    """The maximum number of rows in memory."""
    bytes_max: Annotated[int, Meta(ge=1)] = 32 * 1024 * 1024
    """Bytes of bodies in memory; one body may exceed it."""
    batch_rows: Annotated[int, Meta(ge=1)] = 500
    """Messages in one request."""
    batch_bytes: Annotated[int, Meta(ge=1)] = 512 * 1024
    """Bytes of bodies in one request; a larger message travels alone."""
    sends_max: Annotated[int, Meta(ge=1)] = 16
    """Requests in flight at once."""
    stop_s: Annotated[float, Meta(ge=0.0)] = 10.0
    """How long a stop waits for requests in flight."""

    def __post_init__(self) -> None:
        """Check the values."""
        check_bounds(self)
        if self.on_poison not in get_args(OnPoison):
            raise ConfigError(f"on_poison is block, skip or dead_letter, not {self.on_poison!r}")
        if (self.on_poison == "dead_letter") != bool(self.dead_letter_topic):
            raise ConfigError('on_poison="dead_letter" and dead_letter_topic="..." belong together')
