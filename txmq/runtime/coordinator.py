"""The leadership of a set of members: a lease, an epoch that only grows, and the in-sync set.

A consensus store decides all three. A member leads as long as its lease lasts. A new leader begins
a new epoch in the same step, so of two leaders the later one has the higher epoch. Only the leader
changes the in-sync set, and only from the version that it has seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

__all__ = [
    "AllowedLoss",
    "Leader",
    "Leadership",
    "LogEnd",
    "SetAct",
    "SetCoordinator",
    "View",
    "known_members",
    "short_name",
]

_TOKEN: Final = re.compile(r"\.[0-9a-f]{8}$")
"""The end of a member's name, which identifies its directory."""


class Leader(NamedTuple):
    """The member that leads, and where it is reached."""

    member: str
    address: str


class LogEnd(NamedTuple):
    """How far a log goes. Of two members of a set, the one with the higher end has more."""

    epoch: int
    """The epoch of its last span."""
    position: int


class Standing(NamedTuple):
    """What a candidate for leadership states about its log."""

    end: LogEnd
    doubt: str = ""
    """Why the log may have lost something; empty if there is no sign of that."""
    had: int = 0
    """Where the log once ended, according to a mark that it contradicts; otherwise 0."""


class AllowedLoss(NamedTuple):
    """An operator's decision that a member may lead although acknowledged messages may be lost."""

    member: str
    operator: str
    reason: str
    at_ms: int
    former: tuple[str, ...]
    """The in-sync set before."""


class SetAct(NamedTuple):
    """A change of the set that an operator requested from the leader."""

    act: str
    """``hand-over``, ``remove`` or ``rejoin``."""
    member: str
    operator: str
    reason: str
    at_ms: int


class View(NamedTuple):
    """The state of a set at one moment."""

    leader: Leader | None
    """``None`` while no member has a lease."""
    epoch: int
    """The epoch of the last leadership; 0 before the first one."""
    in_sync: tuple[str, ...]
    """The members that have everything the leader acknowledged, sorted."""
    version: int
    """Increases whenever anything but the leader changes."""
    loss: AllowedLoss | None = None
    """The decision behind the present in-sync set, if any; ``None`` again once a member leads."""
    members: tuple[str, ...] = ()
    """The members that have been in sync and were not removed since, sorted."""
    removed: tuple[SetAct, ...] = ()
    """The members that an operator removed, by the names in their settings."""
    hand_over: SetAct | None = None
    """The member that an operator chose as the next leader; ``None`` again once a member leads."""

    def may_lead(self, member: str) -> bool:
        """True if nobody leads and this member has everything that was acknowledged."""
        if self.leader is not None or self.removal_of(member) is not None:
            return False
        return not self.in_sync or member in self.in_sync

    def gives_way(self, member: str) -> bool:
        """True if an operator chose another in-sync member to lead."""
        chosen = "" if self.hand_over is None else self.hand_over.member
        return chosen != member and chosen in self.in_sync

    def removal_of(self, member: str) -> SetAct | None:
        """The operator's decision that removed a member; ``None`` if it was not removed."""
        name = short_name(member)
        return next((act for act in self.removed if act.member == name), None)


def short_name(member: str) -> str:
    """A member's name as in its settings, without the part that identifies its directory."""
    return _TOKEN.sub("", member)


def known_members(before: Iterable[str], in_sync: Iterable[str]) -> tuple[str, ...]:
    """The members after the in-sync set changed; of those with one short name, only the latest."""
    names = set(map(short_name, in_sync))
    return tuple(sorted({*in_sync, *(one for one in before if short_name(one) not in names)}))


class Leadership(NamedTuple):
    """The proof that a member leads."""

    leader: Leader
    epoch: int
    lease: int
    lease_s: int
    certain_until: float
    """The monotonic time until which no other member can lead; :meth:`SetCoordinator.renew`
    moves it.
    """


class SetCoordinator(Protocol):
    """One member's access to the store that decides about its set.

    A request that fails with ``TransportError`` may have taken effect, so the member reads the
    state again. Answers about the state are linearizable: they include every change that was
    confirmed to any member before.
    """

    async def view(self) -> View:
        """Read the state.

        Raises:
            TransportError: The store does not answer.
        """
        ...

    async def lead(
        self, leader: Leader, seen: View, lease_s: int, end: LogEnd
    ) -> Leadership | None:
        """Begin an epoch as its leader; ``None`` if the state has changed since it was seen.

        The leader joins the in-sync set if that is empty. The caller asks :meth:`View.may_lead`
        first.

        Args:
            leader: The member.
            seen: The state that it has seen.
            lease_s: How long it leads unless it renews the lease.
            end: The end of its log. After an allowed loss, this is what the set has acknowledged.

        Raises:
            TransportError: The store does not answer.
        """
        ...

    async def renew(self, leadership: Leadership) -> Leadership | None:
        """Renew the lease; ``None`` if it has ended.

        Raises:
            TransportError: The store does not answer; the old lease still counts until its end.
        """
        ...

    async def resign(self, leadership: Leadership) -> None:
        """End the lease now, so that another member can lead at once.

        Raises:
            TransportError: The store does not answer; the lease ends by itself.
        """
        ...

    async def change(
        self,
        leadership: Leadership,
        seen: View,
        wanted: View,
        act: SetAct | None = None,
        acknowledged: LogEnd | None = None,
    ) -> View | None:
        """Replace the in-sync set, the members, the removed ones, and the hand-over.

        Args:
            leadership: The proof that this member leads.
            seen: The state that it has seen.
            wanted: The state with the new values of these fields.
            act: The operator's act that this change carries out; the store keeps it for good.
            acknowledged: As for :meth:`acknowledge`, in the same step.

        Returns:
            The new state; ``None`` if the lease has ended, or the state has changed since it was
            seen.

        Raises:
            TransportError: The store does not answer.
        """
        ...

    async def acknowledge(self, leadership: Leadership, end: LogEnd) -> None:
        """Record how far every in-sync member has the log; no effect if the lease has ended.

        Raises:
            TransportError: The store does not answer.
        """
        ...

    async def acknowledged(self) -> LogEnd | None:
        """How far every in-sync member had the log when that was last recorded; ``None`` if it
        never was. A member that lacks part of this must not lead.

        Raises:
            TransportError: The store does not answer.
        """
        ...

    async def stand(self, member: str, standing: Standing, epoch: int, for_s: int) -> None:
        """Offer a member as the next leader after an epoch, for ``for_s`` seconds.

        Raises:
            TransportError: The store does not answer.
        """
        ...

    async def standing(self, epoch: int) -> dict[str, Standing]:
        """The present candidates for the leadership after an epoch.

        Candidates of earlier elections are not included: their logs may have ended earlier.

        Raises:
            TransportError: The store does not answer.
        """
        ...

    async def allow_loss(self, seen: View, loss: AllowedLoss) -> View | None:
        """Make one member the in-sync set; ``None`` if a member leads or the state has changed.

        A removed member rejoins the set. The store keeps the decision for good.

        Raises:
            TransportError: The store does not answer.
        """
        ...

    async def changed(self, seen: View) -> View:
        """Wait until the state differs from the one that was seen, and return it.

        Raises:
            TransportError: The store does not answer, or the connection to it broke.
        """
        ...
