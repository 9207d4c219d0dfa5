"""The counters of one relay, and the rows that wait for all relays."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backlog", "RelayTally"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTally:
    """Counters, which only grow, and two gauges."""

    published: int = 0
    """Rows whose messages a broker has stored."""
    requests: int = 0
    """Sends that were answered."""
    deferred: int = 0
    """Rows whose send failed for now; they are sent again."""
    failed: int = 0
    """The number of times that every broker refused a row's message."""
    dead_letters: int = 0
    """Of these, messages sent to the dead-letter topic."""
    lost_leases: int = 0
    """Slots that another relay took over before this one released them."""
    slots: int = 0
    """Slots held now."""
    at_hand: int = 0
    """Rows read and not sent yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The rows in the outbox now."""

    rows: int
    """Rows that wait to be published."""
    oldest_s: float
    """The age of the oldest of them; 0 if there are none."""
    failed: int
    """Rows that were set aside."""
