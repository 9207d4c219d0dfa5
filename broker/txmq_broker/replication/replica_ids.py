"""The ids under which the members of a broker set register with name servers."""

from __future__ import annotations

__all__ = ["ReplicaIds"]


class ReplicaIds:
    """The ids of a leader's followers, from 1 on; 0 is the leader's own.

    A member keeps its id as long as this leader leads. A new leader gives it the same id again,
    because the follower names the one that it had.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id_of(self, member: str, wanted: int) -> int:
        """The id of a member.

        Args:
            member: Its name.
            wanted: The id that it had before; 0 for none. It gets another one if a member has that.
        """
        found = self._ids.get(member)
        if found is not None:
            return found
        taken = set(self._ids.values())
        free = next(number for number in range(1, len(taken) + 2) if number not in taken)
        self._ids[member] = found = wanted if wanted > 0 and wanted not in taken else free
        return found
