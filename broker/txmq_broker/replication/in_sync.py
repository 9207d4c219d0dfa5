"""The in-sync set: the followers that every answer waits for.

A follower joins once it has everything that was answered, and leaves when it is late or gone. The
store of the set has to confirm a change before it counts. Until then answers wait for the followers
of both sets, so a member that the store calls in sync always has everything that was answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["InSyncSet"]

NEAR_BYTES: Final = 1024 * 1024
"""A follower that lacks no more than this is waited for, so that it can join."""


class InSyncSet:
    """The followers of one leader.

    Args:
        confirmed: The followers in the set as the store has it.
        former: The leader before; it is gone, so the set is to lose it.
    """

    def __init__(self, confirmed: Iterable[str] = (), former: str = "") -> None:
        self.confirmed = frozenset(confirmed)
        """The set that the store has confirmed."""
        self._asked: frozenset[str] | None = None
        """The set that the store was asked for; it may have it already."""
        self._present = set(self.confirmed) - {former}
        self._joining: set[str] = set()
        """Those that answers wait for until they have everything that was answered."""
        self._copied: dict[str, int] = {}

    @property
    def awaited(self) -> frozenset[str]:
        """The followers that answers wait for."""
        asked = frozenset() if self._asked is None else self._asked
        return self.confirmed | asked | self._present | self._joining

    @property
    def present(self) -> frozenset[str]:
        """The followers that are to be in the set."""
        return frozenset(self._present)

    def copied_to(self, member: str) -> int:
        """The end of a follower's durable copy; -1 if it is unknown."""
        return self._copied.get(member, -1)

    def has_copied(self, end: int, least: int = 0) -> bool:
        """True if every follower that answers wait for has the log up to a position.

        Args:
            end: The position.
            least: How many followers must have it, even if answers wait for fewer.
        """
        copied, awaited = self._copied, self.awaited
        return len(awaited) >= least and all(copied.get(one, -1) >= end for one in awaited)

    # What happens to followers

    def note_copied(self, member: str, position: int, answered: int) -> None:
        """Note that a follower has the log durably up to a position.

        One that is near is waited for first: under load there is always something new.

        Args:
            member: The follower.
            position: The end of its durable copy.
            answered: The end of what was answered; who has less does not join yet.
        """
        self._copied[member] = position
        if position >= answered:
            self._joining.discard(member)
            self._present.add(member)
        elif position >= answered - NEAR_BYTES and member not in self._present:
            self._joining.add(member)

    def leave(self, member: str) -> None:
        """Forget a follower, because its connection is lost."""
        self._copied.pop(member, None)
        self._present.discard(member)
        self._joining.discard(member)

    def drop_behind(self, position: int) -> list[str]:
        """Have those leave that lack a part of the log before a position; returns them."""
        near = self._present | self._joining
        late = sorted(member for member in near if self.copied_to(member) < position)
        self._present.difference_update(late)
        self._joining.difference_update(late)
        return late

    # Changes of the set

    def next_change(self) -> frozenset[str] | None:
        """The set that the store is to be asked for now; ``None`` if there is nothing to ask."""
        if self._asked is not None or self._present == self.confirmed:
            return None
        self._asked = frozenset(self._present)
        return self._asked

    def confirm(self, members: Iterable[str]) -> None:
        """Note the set that the store has, after it was asked."""
        self.confirmed = frozenset(members)
        self._asked = None
