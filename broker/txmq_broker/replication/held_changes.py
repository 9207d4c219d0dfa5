"""Answers to changes of topics, groups and accounts, which wait until the followers have them.

After a fail-over the new leader has every change that was answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from txmq.protocol.bodies import DataVersion
from txmq.remoting.connection import Connection
from txmq_broker.replication.copied_answers import CopiedAnswers

__all__ = ["HeldChanges", "TableVersions"]

TableVersions: TypeAlias = tuple[DataVersion, DataVersion, DataVersion]
"""The versions of the topics, the groups and the accounts."""


class HeldChange(NamedTuple):
    """The answer to a change that the followers do not have yet."""

    versions: TableVersions
    connection: Connection
    answer: bytes


class HeldChanges:
    """The answers that wait, oldest first.

    Args:
        answers: Knows which followers count, and whether this member leads.
        taken_by: Returns the versions that a follower has saved; ``None`` if it has saved none.
    """

    def __init__(
        self, answers: CopiedAnswers, taken_by: Callable[[str], TableVersions | None]
    ) -> None:
        self._answers = answers
        self._taken_by = taken_by
        self._held: deque[HeldChange] = deque()

    @property
    def are_held(self) -> bool:
        """Whether an answer waits."""
        return bool(self._held)

    def hold(self, versions: TableVersions, connection: Connection, answer: bytes) -> None:
        """Have an answer wait for followers with these versions at least."""
        self._held.append(HeldChange(versions, connection, answer))

    def release(self) -> None:
        """Send the answers whose changes every follower in the set has."""
        while self._held and self._answers.is_certain():
            versions, connection, answer = self._held[0]
            if not all(self._has(member, versions) for member in self._answers.awaited):
                return
            self._held.popleft()
            connection.send(answer)

    def _has(self, member: str, wanted: TableVersions) -> bool:
        taken = self._taken_by(member)
        return taken is not None and all(
            own.counter >= version.counter for own, version in zip(taken, wanted, strict=True)
        )

    def clear(self) -> None:
        """Give up: what is held is never answered."""
        self._held.clear()
