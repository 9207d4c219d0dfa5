"""Which slots of an outbox a relay has leased, how many it should have, and until when. Pure.

A lease keeps others from sending the same rows at the same time, and nothing hangs on it but that:
whoever sends the rows of a lane sends them in order and leaves none out, so two who do it at once
repeat, and do not disorder. That is why a lease may end by a clock, and why a relay that was
stopped for a while may go on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from txmq.limits import SLOTS

__all__ = ["Change", "Slots", "fair_share"]


def fair_share(living: int) -> int:
    """How many slots one of so many relays may have."""
    return -(-SLOTS // max(1, living))


class Change(NamedTuple):
    """What is new about the slots."""

    lost: set[int]
    taken: set[int]
    leaving: set[int]
    """Those to let go once nothing of them is on its way."""


class Slots:
    """The slots of one relay.

    Args:
        lease_s: How long a lease lasts.
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
        """Those whose rows are read."""
        return [each for each in self._held if each not in self.leaving]

    def turns(self) -> dict[int, int]:
        """Those that are held, and for the how manieth time; a slot may be lost and come back."""
        return dict(self._held)

    def renewed(self, held: Collection[int], living: int, asked_at: float) -> Change:
        """The database has renewed what is held.

        Args:
            held: What that is.
            living: How many relays there are.
            asked_at: When it was asked to, by the clock that :meth:`are_safe` is asked with.
        """
        self._until = asked_at + self._lease_s
        lost, taken = set(self._held) - set(held), set(held) - set(self._held)
        for each in lost:
            self.let_go(each)
        self._turn += 1
        self._held.update(dict.fromkeys(sorted(taken), self._turn))
        surplus = len(self._held) - fair_share(living)
        chosen = set(sorted(self._held)[-surplus:]) - self.leaving if surplus > 0 else set()
        self.leaving |= chosen
        return Change(lost, taken, chosen)

    def let_go(self, slot: int) -> None:
        """It is not held any more."""
        self._held.pop(slot, None)
        self.leaving.discard(slot)

    def are_safe(self, now: float) -> bool:
        """Whether nobody else can have them yet at this time."""
        return bool(self._held) and now < self._until
