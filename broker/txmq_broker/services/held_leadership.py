"""A leadership that this process holds: its lease is renewed until it ends.

The lease is certain only by the monotonic clock of this machine. A process that was stopped, and
wakes up, sees at its next request that its lease is over.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from txmq.errors import TransportError
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import AllowedLoss, Leadership, SetCoordinator, View

__all__ = ["HeldLeadership"]

log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE: Final = 5
_RETRY_S: Final = 0.2

CLOCK_ERROR: Final = 0.02
"""The part of a lease by which the clocks of this machine and the store may differ in its end."""


class HeldLeadership:
    """One leadership, from its beginning to its end.

    Args:
        coordinator: The access to the store of the set.
        leadership: The proof that this member leads.
        in_sync: The in-sync set at the beginning.
        former: The member that led before, if it is gone without having resigned.
        clock: For the lease.
        loss: The operator's decision by which this member could lead, if there was one.

    Attributes:
        epoch: The epoch of this leadership.
        member: This member.
        in_sync: The other members of the in-sync set, as the store had it last.
        former: As given.
        loss: As given.
        ended: Set when this member does not lead any more.
    """

    def __init__(
        self,
        coordinator: SetCoordinator,
        leadership: Leadership,
        in_sync: tuple[str, ...],
        former: str,
        clock: Clock,
        loss: AllowedLoss | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._leadership = leadership
        self._clock = clock
        self._view: View | None = None
        self._is_cut_off = False
        self.epoch = leadership.epoch
        self.member = leadership.leader.member
        self.in_sync = frozenset(in_sync) - {self.member}
        self.former = former
        self.loss = loss
        self.ended = asyncio.Event()

    @property
    def seconds_since_renewal(self) -> float:
        """The seconds since the request that the store has answered by the present lease."""
        held = self._leadership
        return self._clock.monotonic() - (held.certain_until - held.lease_s)

    def is_certain(self) -> bool:
        """True if no other member can lead at this moment."""
        held = self._leadership
        end = held.certain_until - held.lease_s * CLOCK_ERROR
        if self._clock.monotonic() < end and not self.ended.is_set():
            return True
        self.end("its lease is over")
        return False

    def end(self, reason: str) -> None:
        """Stop leading."""
        if not self.ended.is_set():
            log.warning("%s does not lead any more: %s", self.member, reason)
            self.ended.set()

    async def keep(self) -> None:
        """Renew the lease until it ends."""
        pause_s = self._leadership.lease_s / _RENEWALS_PER_LEASE
        while self.is_certain():
            await asyncio.sleep(_RETRY_S if self._is_cut_off else pause_s)
            try:
                renewed = await self._coordinator.renew(self._leadership)
            except TransportError as error:
                if not self._is_cut_off:
                    self._is_cut_off = True
                    log.warning("the lease could not be renewed, trying again: %s", error)
                continue
            self._is_cut_off = False
            if renewed is None:
                self.end("the store has ended its lease")
            else:
                self._leadership = renewed

    async def record(self, members: frozenset[str]) -> frozenset[str] | None:
        """Have the store replace the in-sync set, however long that takes.

        Args:
            members: The other members of the set.

        Returns:
            The set that the store has; ``None`` if this member does not lead any more.
        """
        while not self.ended.is_set():
            try:
                if await self._change(members):
                    return self.in_sync
            except TransportError as error:
                log.debug("the in-sync set could not be changed, trying again: %s", error)
                self._view = None
            await asyncio.sleep(_RETRY_S)
        return None

    async def _change(self, members: frozenset[str]) -> bool:
        # The answer to an earlier change may have been lost, so the state is read again first.
        seen = self._view or await self._coordinator.view()
        if seen.epoch != self.epoch or seen.leader != self._leadership.leader:
            self.end(f"epoch {seen.epoch} has begun")
            return False
        wanted = tuple(sorted({*members, self.member}))
        self._view = await self._coordinator.change_in_sync(self._leadership, seen, wanted)
        if self._view is None:
            return False
        self.in_sync = frozenset(self._view.in_sync) - {self.member}
        return True

    async def resign(self) -> None:
        """End the lease now, so that another member can lead at once."""
        self.ended.set()
        try:
            await self._coordinator.resign(self._leadership)
        except TransportError as error:
            log.warning("the lease could not be given back, it ends by itself: %s", error)
