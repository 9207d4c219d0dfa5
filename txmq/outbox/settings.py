"""What can be set about relays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from txmq.client.settings import check_bounds
from txmq.errors import ConfigError

__all__ = ["OnPoison", "RelaySettings"]

OnPoison: TypeAlias = Literal["block", "skip", "dead_letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works. Durations are seconds, sizes bytes.

    Raises:
        ConfigError: A value cannot work.
    """

    on_poison: OnPoison = "block"
    """What becomes of a row whose message nobody takes, however often it is sent. With "block" its
    lane waits for somebody to repair or delete the row; with "skip" the row is put aside, marked
    with the reason, and its lane goes on; with "dead_letter" its message goes to another topic."""
    dead_letter_topic: str = ""
    """That topic."""
    attempts_max: int = 16
    """So often a broker may refuse a message for a reason that may pass, before nobody takes it.
    What is wrong with the message itself is believed at once; that no broker is to be had, or that
    it is busy, never counts."""
    blocked_s: float = 60.0
    """How often a blocked row is tried again."""
    group: str = "txmq_relay"
    """The producer group, where the relay makes its own producer."""
    lease_s: float = 10.0
    """How long rows wait for another relay when one has died. A lease is renewed each third."""
    poll_s: float = 1.0
    """How often it is looked for rows at least, when there are none."""
    rows_max: int = 4_000
    """Rows at hand."""
    bytes_max: int = 32 * 1024 * 1024
    """Bodies at hand, beyond the first that goes over it."""
    batch_rows: int = 500
    """Messages that travel together."""
    batch_bytes: int = 512 * 1024
    """Bytes of these; a larger message travels alone."""
    sends_max: int = 16
    """Requests under way at once."""
    stop_s: float = 10.0
    """How long a stop waits for what is on its way."""

    def __post_init__(self) -> None:
        """See that the values can work."""
        check_bounds(self, {
            "attempts_max": 1, "blocked_s": 0.001, "lease_s": 0.1, "poll_s": 0.001, "rows_max": 1,
            "bytes_max": 1, "batch_rows": 1, "batch_bytes": 1, "sends_max": 1, "stop_s": 0.0,
        })  # fmt: skip
        if self.on_poison not in get_args(OnPoison):
            raise ConfigError(f"on_poison is block, skip or dead_letter, not {self.on_poison!r}")
        if (self.on_poison == "dead_letter") != bool(self.dead_letter_topic):
            raise ConfigError('on_poison="dead_letter" and dead_letter_topic="..." belong together')
