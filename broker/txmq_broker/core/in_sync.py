"""The in-sync followers of a leader, and when a span counts as copied.

A follower joins when it has everything that was answered. From then on every answer waits until it
has the span too. A follower that is late leaves, and the answer goes out without it.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["CopyVerdict", "InSyncSet"]


class CopyVerdict(Enum):
    """What is known about the copies of one span."""

    WAIT = "wait"
    COPIED = "copied"
    """Every in-sync follower has it durably, and there is one."""
    MISSING = "missing"
    """No follower is in sync."""
    LATE = "late"
    """Every follower was late."""


class InSyncSet:
    """The followers of one leader.

    Args:
        patience_s: How long an answer waits for a follower.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._copied: dict[str, int] = {}
        self.members: set[str] = set()
        """The in-sync followers."""

    def note_copied(self, member: str, position: int, answered: int) -> None:
        """Note that a follower has the log durably up to a position.

        Args:
            member: The follower.
            position: The end of its durable copy.
            answered: The end of the last span whose answers were sent.
        """
        self._copied[member] = position
        if position >= answered:
            self.members.add(member)
        else:
            self.members.discard(member)

    def leave(self, member: str) -> None:
        """Forget a follower, because its connection is lost."""
        self._copied.pop(member, None)
        self.members.discard(member)

    def judge(self, end: int, waited_s: float) -> CopyVerdict:
        """The verdict about the span that ends at a position, and has waited for some time.

        After too long a wait the late followers leave the set.
        """
        if not self.members:
            return CopyVerdict.MISSING
        late = {member for member in self.members if self._copied[member] < end}
        if not late:
            return CopyVerdict.COPIED
        if waited_s < self._patience_s:
            return CopyVerdict.WAIT
        self.members -= late
        return CopyVerdict.COPIED if self.members else CopyVerdict.LATE

    def copied_to(self) -> dict[str, int]:
        """The end of each follower's durable copy."""
        return dict(self._copied)
