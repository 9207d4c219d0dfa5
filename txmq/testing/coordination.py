"""A simulated store for coordinators: linearizable, with leases that expire in virtual time.

Each request takes effect at one moment between its start and its answer. Partition a member, and
its requests fail: some before they take effect, some after. Restart the store, and every request
and wait that is under way fails. Stop it, and it answers nobody until it is started.
"""

from __future__ import annotations

import asyncio
from typing import Final

from txmq.errors import ConnectionLost
from txmq.runtime.coordinator import (
    AllowedLoss,
    Leader,
    Leadership,
    LogEnd,
    SetAct,
    Standing,
    View,
    known_members,
    short_name,
)
from txmq.testing.entropy import SeededEntropy

__all__ = ["SimulatedCoordination", "SimulatedCoordinator"]

_DELAY_S: Final = 0.002


class SimulatedCoordination:
    """The store of one set.

    Args:
        entropy: Decides delays, and which requests of a partitioned member take effect.
        delay: The longest time in seconds that a request or an answer travels.
    """

    def __init__(self, entropy: SeededEntropy, *, delay: float = _DELAY_S) -> None:
        self.delay = delay
        self.losses: list[AllowedLoss] = []
        self.acts: list[SetAct] = []
        self._entropy = entropy
        self._view = View(None, 0, (), 0)
        self._lease = 0
        self._leases: dict[int, float] = {}
        self._lasts: dict[int, int] = {}
        """The seconds that each lease lasts after it is granted or renewed."""
        self._stopped_at: float | None = None
        self._leases_given = 0
        self._partitioned: set[str] = set()
        self._lives = 1
        self._changed = asyncio.Event()
        self.acknowledged: LogEnd | None = None
        self._standing: dict[tuple[int, str], tuple[Standing, int]] = {}
        """The candidates after each epoch: the state of their log, and the lease that limits their
        offer.
        """

    def coordinator(self, member: str) -> SimulatedCoordinator:
        """One member's access to the store."""
        return SimulatedCoordinator(self, member)

    def partition(self, member: str) -> None:
        """Separate a member from the store; its waits end with an error."""
        self._partitioned.add(member)
        self._wake()

    def heal(self, member: str) -> None:
        """Connect a member again."""
        self._partitioned.discard(member)

    def restart(self) -> None:
        """Restart the store, which keeps its state and its leases."""
        self._lives += 1
        self._wake()

    @property
    def is_up(self) -> bool:
        """False between :meth:`stop` and :meth:`start`."""
        return self._stopped_at is None

    def stop(self) -> None:
        """Stop answering, like a store that has no leader or whose machines are all down.

        No lease expires until :meth:`start`.
        """
        self.view()
        self._stopped_at = asyncio.get_running_loop().time()
        self.restart()

    def start(self) -> None:
        """Answer again. Each lease that had not expired starts over with its full time."""
        alive = [lease for lease in self._leases if self.is_alive(lease)]
        self._stopped_at = None
        for lease in alive:
            self._prolong(lease)
        self.restart()

    def forget(self) -> None:
        """Restart the store without its state and its leases, as from an empty disk."""
        self._leases.clear()
        self._standing.clear()
        self.acknowledged = None
        self._change(View(None, 0, (), 0))
        self.restart()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def pass_through(self, member: str) -> int:
        """Delay a request or an answer, and return which life of the store it reached.

        Raises:
            ConnectionLost: The member is partitioned.
        """
        life = self._lives
        await asyncio.sleep(self._entropy.fraction() * self.delay)
        self.check(member, life)
        return life

    def check(self, member: str, life: int) -> None:
        """Refuse a partitioned member, a request from before a restart, and all if stopped.

        Raises:
            ConnectionLost: One of these is the case.
        """
        is_away = member in self._partitioned or not self.is_up
        if is_away or life != self._lives:
            raise ConnectionLost(f"{member} has lost the connection to the store")

    async def wait(self, member: str, life: int) -> None:
        """Wait until the state, the connections or the store change.

        Raises:
            ConnectionLost: The member is partitioned, or the store has restarted.
        """
        changed = self._changed
        # Without a leader no lease can end.
        end = None if self._view.leader is None else self._leases.get(self._lease)
        try:
            async with asyncio.timeout_at(end):
                await changed.wait()
        except TimeoutError:
            pass
        self.check(member, life)

    # The state, at one moment

    def view(self) -> View:
        """The state now."""
        if self._view.leader is not None and not self.is_alive(self._lease):
            self._change(self._view._replace(leader=None))
        return self._view

    def is_alive(self, lease: int) -> bool:
        """True if a lease has not ended."""
        now = asyncio.get_running_loop().time() if self._stopped_at is None else self._stopped_at
        return self._leases.get(lease, 0.0) > now

    def grant(self, lease_s: int) -> int:
        """Begin a lease."""
        self._leases_given += 1
        self._lasts[self._leases_given] = lease_s
        self._prolong(self._leases_given)
        return self._leases_given

    def _prolong(self, lease: int) -> None:
        self._leases[lease] = asyncio.get_running_loop().time() + self._lasts[lease]

    def renew(self, lease: int) -> bool:
        """Renew a lease; false if it has ended."""
        if not self.is_alive(lease):
            return False
        self._prolong(lease)
        return True

    def revoke(self, lease: int) -> None:
        """End a lease."""
        self._leases.pop(lease, None)
        self.view()

    def lead(self, leader: Leader, seen: View, lease: int, end: LogEnd) -> bool:
        """Begin an epoch if the state has not changed since it was seen, and nobody leads."""
        now = self.view()
        if now.leader is not None or now.version != seen.version:
            return False
        if now.loss is not None:
            self.acknowledged = end
        self._lease = lease
        in_sync = now.in_sync or (leader.member,)
        members = known_members(now.members, in_sync)
        self._change(
            View(leader, seen.epoch + 1, in_sync, now.version + 1, None, members, now.removed)
        )
        return True

    def change(
        self,
        lease: int,
        seen: View,
        wanted: View,
        act: SetAct | None,
        acknowledged: LogEnd | None,
    ) -> View | None:
        """Apply a leader's change if the state has not changed, and this lease leads."""
        now = self.view()
        if now.leader is None or self._lease != lease or now.version != seen.version:
            return None
        if act is not None:
            self.acts.append(act)
        if acknowledged is not None:
            self.acknowledged = acknowledged
        self._change(
            now._replace(
                in_sync=tuple(sorted(wanted.in_sync)),
                members=known_members(wanted.members, wanted.in_sync),
                removed=wanted.removed,
                hand_over=wanted.hand_over,
                version=now.version + 1,
            )
        )
        return self._view

    def acknowledge(self, lease: int, end: LogEnd) -> None:
        """Record how far the set has acknowledged the log, if this lease leads."""
        if self.view().leader is not None and self._lease == lease:
            self.acknowledged = end

    def stand(self, member: str, standing: Standing, epoch: int, lease: int) -> None:
        """Record a candidate after an epoch, until this lease ends."""
        self._standing[epoch, member] = (standing, lease)

    def standing(self, epoch: int) -> dict[str, Standing]:
        """The present candidates for the leadership after an epoch."""
        return {
            member: standing
            for (after, member), (standing, lease) in self._standing.items()
            if after == epoch and self.is_alive(lease)
        }

    def allow_loss(self, seen: View, loss: AllowedLoss) -> View | None:
        """Make one member the in-sync set if the state has not changed, and nobody leads."""
        now = self.view()
        if now.leader is not None or now.version != seen.version:
            return None
        self.losses.append(loss)
        members = known_members(now.members, (loss.member,))
        name = short_name(loss.member)
        removed = tuple(act for act in now.removed if act.member != name)
        self._change(View(None, now.epoch, (loss.member,), now.version + 1, loss, members, removed))
        return self._view

    def _change(self, view: View) -> None:
        self._view = view
        self._wake()


class SimulatedCoordinator:
    """A :class:`txmq.runtime.SetCoordinator` of one member over a simulated store."""

    def __init__(self, store: SimulatedCoordination, member: str) -> None:
        self._store = store
        self._member = member

    async def _arrive(self) -> int:
        return await self._store.pass_through(self._member)

    async def _return(self, life: int) -> None:
        await self._store.pass_through(self._member)
        self._store.check(self._member, life)

    async def view(self) -> View:
        """See :meth:`SetCoordinator.view`."""
        life = await self._arrive()
        found = self._store.view()
        await self._return(life)
        return found

    async def lead(
        self, leader: Leader, seen: View, lease_s: int, end: LogEnd
    ) -> Leadership | None:
        """See :meth:`SetCoordinator.lead`."""
        asked = asyncio.get_running_loop().time()
        life = await self._arrive()
        lease = self._store.grant(lease_s)
        has_begun = self._store.lead(leader, seen, lease, end)
        await self._return(life)
        if not has_begun:
            return None
        return Leadership(leader, seen.epoch + 1, lease, lease_s, asked + lease_s)

    async def renew(self, leadership: Leadership) -> Leadership | None:
        """See :meth:`SetCoordinator.renew`."""
        asked = asyncio.get_running_loop().time()
        life = await self._arrive()
        is_alive = self._store.renew(leadership.lease)
        await self._return(life)
        certain_until = asked + leadership.lease_s
        return leadership._replace(certain_until=certain_until) if is_alive else None

    async def resign(self, leadership: Leadership) -> None:
        """See :meth:`SetCoordinator.resign`."""
        life = await self._arrive()
        self._store.revoke(leadership.lease)
        await self._return(life)

    async def change(
        self,
        leadership: Leadership,
        seen: View,
        wanted: View,
        act: SetAct | None = None,
        acknowledged: LogEnd | None = None,
    ) -> View | None:
        """See :meth:`SetCoordinator.change`."""
        life = await self._arrive()
        found = self._store.change(leadership.lease, seen, wanted, act, acknowledged)
        await self._return(life)
        return found

    async def acknowledge(self, leadership: Leadership, end: LogEnd) -> None:
        """See :meth:`SetCoordinator.acknowledge`."""
        life = await self._arrive()
        self._store.acknowledge(leadership.lease, end)
        await self._return(life)

    async def acknowledged(self) -> LogEnd | None:
        """See :meth:`SetCoordinator.acknowledged`."""
        life = await self._arrive()
        found = self._store.acknowledged
        await self._return(life)
        return found

    async def stand(self, member: str, standing: Standing, epoch: int, for_s: int) -> None:
        """See :meth:`SetCoordinator.stand`."""
        life = await self._arrive()
        self._store.stand(member, standing, epoch, self._store.grant(for_s))
        await self._return(life)

    async def standing(self, epoch: int) -> dict[str, Standing]:
        """See :meth:`SetCoordinator.standing`."""
        life = await self._arrive()
        found = self._store.standing(epoch)
        await self._return(life)
        return found

    async def allow_loss(self, seen: View, loss: AllowedLoss) -> View | None:
        """See :meth:`SetCoordinator.allow_loss`."""
        life = await self._arrive()
        found = self._store.allow_loss(seen, loss)
        await self._return(life)
        return found

    async def changed(self, seen: View) -> View:
        """See :meth:`SetCoordinator.changed`."""
        life = await self._arrive()
        while (found := self._store.view()) == seen:
            await self._store.wait(self._member, life)
        await self._return(life)
        return found
