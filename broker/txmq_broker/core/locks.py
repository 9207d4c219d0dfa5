"""Exclusive locks of queues, so that one consumer of a group can handle them in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from txmq.errors import ServiceUnavailable
from txmq.limits import LOCKS_MAX
from txmq.protocol.bodies import MessageQueue

__all__ = ["EXPIRY_S", "Locks"]

EXPIRY_S: Final = 60.0
"""The time after which an unrenewed lock expires; clients renew every 20 s."""


class LockHolder(NamedTuple):
    """The client that holds a lock, and its last renewal."""

    client_id: str
    at: float


class Locks:
    """All locks, by group and queue."""

    def __init__(self) -> None:
        self._locks: dict[str, dict[MessageQueue, LockHolder]] = {}
        self.count = 0
        """The number of locks, including expired ones that were not removed yet."""
        self.refused = 0
        """The number of requests that would have exceeded the limit."""

    def figures(self) -> dict[str, int]:
        """What the broker keeps for clients, and what it refused them since the start."""
        return {
            "locked_queues": self.count,
            "locks_refused": self.refused,
        }

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now: float
    ) -> list[MessageQueue]:
        """Take or renew free locks; returns those of the given queues that the client holds now.

        Raises:
            ServiceUnavailable: The limit of locks would be exceeded; nothing was locked.
        """
        queues = list(queues)
        table = self._locks.get(group, {})
        fresh = len(set(queues) - table.keys())
        if fresh and self.count + fresh > LOCKS_MAX:
            self.refused += 1
            raise ServiceUnavailable(
                f"this broker has {self.count} locked queues, and {LOCKS_MAX} is the limit; no "
                f"queue of the group {group} was locked; a lock expires after {EXPIRY_S:g} s"
            )
        self.count += fresh
        if fresh:
            self._locks[group] = table
        owned: list[MessageQueue] = []
        for queue in queues:
            holder = table.get(queue)
            if holder is None or holder.client_id == client_id or now - holder.at > EXPIRY_S:
                table[queue] = LockHolder(client_id, now)
                owned.append(queue)
        return owned

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release a client's locks on the given queues; other clients' locks stay."""
        table = self._locks.get(group, {})
        for queue in queues:
            holder = table.get(queue)
            if holder is not None and holder.client_id == client_id:
                self._remove(table, queue)
        if not table:
            self._locks.pop(group, None)

    def release(self, group: str, client_id: str) -> None:
        """Release all locks of a client that leaves a group."""
        self.unlock(group, client_id, list(self._locks.get(group, {})))

    def expire(self, now: float) -> None:
        """Remove expired locks."""
        for group in list(self._locks):
            table = self._locks[group]
            for queue in [queue for queue, holder in table.items() if now - holder.at > EXPIRY_S]:
                self._remove(table, queue)
            if not table:
                del self._locks[group]

    def _remove(self, table: dict[MessageQueue, LockHolder], queue: MessageQueue) -> None:
        del table[queue]
        self.count -= 1
