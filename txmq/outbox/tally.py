"""What a relay has done since it was opened, and what waits for all of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RelayTally", "Waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTally:
    """Counters, which only grow; and how things stand."""

    published: int = 0
    """Rows whose messages a broker has stored."""
    requests: int = 0
    """Sends that were answered."""
    deferred: int = 0
    """Rows that could not be sent just then, and were or will be sent again."""
    failed: int = 0
    """Times that a row was found whose message nobody takes."""
    dead_letters: int = 0
    """Of these, sent to the topic for dead letters."""
    lost_leases: int = 0
    """Slots that another relay took over before this one had let go."""
    slots: int = 0
    """Slots held now."""
    at_hand: int = 0
    """Rows read and not sent yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is in the outbox now."""

    rows: int
    """Those that wait to be published."""
    oldest_s: float
    """The age of the oldest of these; 0 where there is none."""
    failed: int
    """Those that were put aside."""
