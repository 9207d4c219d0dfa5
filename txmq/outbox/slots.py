"""The slots of an outbox that a relay has leased: which, how many, and until when. Pure.

A lease only keeps two relays from sending the same rows at the same time. Correctness does not
depend on it: every relay sends the rows of a lane in order and leaves none out, so two relays at
once cause repeats but no disorder. That is why a lease may end by a clock, and why a relay that was
suspended for a while may continue.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from txmq.limits import SLOTS

__all__ = ["SlotChange", "Slots", "fair_share"]


def fair_share(living: int) -> int:
    """The number of slots that one of ``living`` relays may hold."""
    return -(-SLOTS // max(1, living))


class SlotChange(NamedTuple):
    """The changes that a renewal made to the slots."""

    lost: set[int]
    taken: set[int]
    leaving: set[int]
    """Slots to release as soon as none of their rows is being sent."""


class Slots:
    """The slots of one relay.

    Args:
        lease_s: The duration of a lease.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._held: dict[int, int] = {}
        self._turn = 0
        self._until = 0.0
        self.leaving: set[int] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def working(self) -> list[int]:
        """The slots whose rows are read."""
        return [slot for slot in self._held if slot not in self.leaving]

    def turns(self) -> dict[int, int]:
        """The held slots, each with the number of the renewal that took it; a slot may be lost and
        come back.
        """
        return dict(self._held)

    def renew(self, held: Collection[int], living: int, asked_at: float) -> SlotChange:
        """Apply the database's answer after a renewal.

        Args:
            held: The slots this relay holds.
            living: The number of living relays.
            asked_at: The time at which the renewal was sent, by the clock of :meth:`are_safe`.
        """
        self._until = asked_at + self._lease_s
        lost, taken = set(self._held) - set(held), set(held) - set(self._held)
        for slot in lost:
            self.release(slot)
        self._turn += 1
        self._held.update(dict.fromkeys(sorted(taken), self._turn))
        surplus = len(self._held) - fair_share(living)
        chosen = set(sorted(self._held)[-surplus:]) - self.leaving if surplus > 0 else set()
        self.leaving |= chosen
        return SlotChange(lost, taken, chosen)

    def release(self, slot: int) -> None:
        """Stop holding a slot."""
        self._held.pop(slot, None)
        self.leaving.discard(slot)

    def are_safe(self, now: float) -> bool:
        """True if no other relay can hold these slots at this time."""
        return bool(self._held) and now < self._until
