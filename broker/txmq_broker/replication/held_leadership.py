"""A leadership that this process holds, and the renewal of its lease.

Only the monotonic clock of this machine decides how long the lease is certain. So a process that
was suspended notices at its next request that its lease is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, cast

from txmq.errors import IllegalOperation, TransportError
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection, RunService, Service
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import (
    Leadership,
    LogEnd,
    SetAct,
    SetCoordinator,
    View,
    known_members,
)

__all__ = ["GatedService", "HeldLeadership", "LeaderGate"]

log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE: Final = 5
_RETRY_S: Final = 0.2
_FIRST_ACKNOWLEDGED_S: Final = 0.05
_ACKNOWLEDGED_S: Final = 1.0
"""How often the end of what the set has acknowledged is sent to the store. A member that lost only
later messages is detected by comparing it with the others.
"""

CLOCK_ERROR: Final = 0.02
"""The fraction of a lease by which the clocks of this machine and of the store may disagree."""


class HeldLeadership:
    """One leadership, from start to end.

    Args:
        coordinator: The access to the store of the set.
        leadership: The proof that this member leads.
        before: The state of the set when it began to lead.
        former: The previous leader; empty if it is unknown or was this member.
        clock: Measures the lease.

    Attributes:
        epoch: The epoch of this leadership.
        member: This member.
        before: As given.
        in_sync: The other members of the in-sync set, as last seen in the store.
        members: All members of the set, as last seen in the store.
        removed: The members that an operator removed, by their short names.
        former: As given.
        ended: Set when this member no longer leads.
        is_handing_over: Set when another member was chosen as the next leader.
        acknowledged: Returns the end of the log that every in-sync member has; ``None`` while that
            is unknown.
    """

    def __init__(
        self,
        coordinator: SetCoordinator,
        leadership: Leadership,
        before: View,
        former: str,
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._leadership = leadership
        self._clock = clock
        self._view: View | None = None
        self._is_cut_off = False
        self.epoch = leadership.epoch
        self.member = leadership.leader.member
        self.before = before
        self.in_sync: frozenset[str] = frozenset()
        self.members: tuple[str, ...] = ()
        self.removed: dict[str, SetAct] = {}
        self._note(before)
        self.former = former
        self.ended = asyncio.Event()
        self.is_handing_over = asyncio.Event()
        self.acknowledged: Callable[[], LogEnd | None] = lambda: None

    @property
    def seconds_since_renewal(self) -> float:
        """The seconds since this member requested its current lease."""
        held = self._leadership
        return self._clock.monotonic() - (held.certain_until - held.lease_s)

    def is_certain(self) -> bool:
        """True if no other member can lead now."""
        held = self._leadership
        end = held.certain_until - held.lease_s * CLOCK_ERROR
        if self._clock.monotonic() < end and not self.ended.is_set():
            return True
        self.end("its lease is over")
        return False

    def end(self, reason: str) -> None:
        """Stop leading."""
        if not self.ended.is_set():
            log.warning("%s no longer leads: %s", self.member, reason)
            self.ended.set()

    def hand_over(self, act: SetAct) -> None:
        """Stop leading once every accepted request is answered, so that another member can lead."""
        log.warning("handing over to %s, as %s asks: %s", act.member, act.operator, act.reason)
        self.is_handing_over.set()

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

    async def keep_acknowledged(self) -> None:
        """Keep recording in the store what the set has acknowledged, until cancelled."""
        noted: LogEnd | None = None
        while True:
            # Soon at first: a log that lost its first messages looks like one that never had any.
            is_first = noted is None or noted.position == 0
            await asyncio.sleep(_FIRST_ACKNOWLEDGED_S if is_first else _ACKNOWLEDGED_S)
            end = self.acknowledged()
            if end is not None and end != noted:
                with suppress(TransportError):
                    await self._coordinator.acknowledge(self._leadership, end)
                    noted = end

    async def record(self, members: frozenset[str]) -> frozenset[str] | None:
        """Replace the in-sync set in the store, and retry until that succeeds.

        Args:
            members: The other members of the set.

        Returns:
            The recorded set; ``None`` if this member no longer leads.
        """
        in_sync = tuple(sorted({*members, self.member}))
        while not self.ended.is_set():
            try:
                if await self._change(lambda seen: seen._replace(in_sync=in_sync)):
                    return self.in_sync
            except TransportError as error:
                log.debug("the in-sync set could not be changed, trying again: %s", error)
            await asyncio.sleep(_RETRY_S)
        return None

    async def carry_out(self, act: SetAct, change: Callable[[View], View]) -> None:
        """Record an operator's act in the store, together with the change that it makes.

        Args:
            act: The act.
            change: Returns the new state for the current one, or raises.

        Raises:
            IllegalOperation: This member no longer leads.
            TransportError: The store does not answer; it may have recorded the act.
        """
        while not self.ended.is_set():
            if await self._change(change, act):
                return
        raise IllegalOperation(f"{self.member} no longer leads")

    async def _change(self, change: Callable[[View], View], act: SetAct | None = None) -> bool:
        # Forget the state first: if the answer gets lost, the next attempt must read it again.
        seen, self._view = self._view, None
        seen = seen or await self._coordinator.view()
        if seen.epoch != self.epoch or seen.leader != self._leadership.leader:
            self.end(f"epoch {seen.epoch} has begun")
            return False
        found = await self._coordinator.change(
            self._leadership, seen, change(seen), act, self.acknowledged()
        )
        if found is None:
            return False
        self._view = found
        self._note(found)
        return True

    def _note(self, view: View) -> None:
        self.in_sync = frozenset(view.in_sync) - {self.member}
        self.members = known_members(view.members, view.in_sync or (self.member,))
        self.removed = {act.member: act for act in view.removed}

    async def resign(self) -> None:
        """End the lease now, so that another member can lead at once."""
        self.ended.set()
        try:
            await self._coordinator.resign(self._leadership)
        except TransportError as error:
            log.warning("the lease could not be given back, it ends by itself: %s", error)


_OF_FOLLOWERS: Final = frozenset(
    (RequestCode.FOLLOW_LOG, RequestCode.NOTE_COPIED, RequestCode.FETCH_SPANS)
)


class LeaderGate:
    """The gate in front of a leader's handlers.

    It does not answer a request that comes too early or too late: it aborts the connection, and the
    client looks for the leader again.

    Attributes:
        is_open: Whether clients may pass; followers may pass even before.
    """

    def __init__(self, leadership: HeldLeadership) -> None:
        self._is_certain = leadership.is_certain
        self.is_open = False

    def lets_in(self, code: int) -> bool:
        """Whether a request of this code may be served now."""
        return self._is_certain() and (self.is_open or code in _OF_FOLLOWERS)

    def before(self, service: Service) -> Service:
        """Put a service behind this gate."""
        return GatedService(self, service)


class GatedService:
    """A service behind a gate; it serves runs if the service does."""

    def __init__(self, gate: LeaderGate, service: Service) -> None:
        self._gate = gate
        self._service = service
        self.run_codes: Collection[int] = getattr(service, "run_codes", ())

    def __call__(self, connection: Connection, request: Command, /) -> bytes | None:
        """Return the service's answer; abort the connection while the gate is closed."""
        if self._gate.lets_in(request.code):
            return self._service(connection, request)
        connection.abort()
        return None

    def serve_run(
        self, connection: Connection, requests: list[Command], answers: list[bytes], /
    ) -> None:
        """Serve a run of requests; abort the connection while the gate is closed."""
        if self._gate.lets_in(requests[0].code):
            cast("RunService", self._service).serve_run(connection, requests, answers)
        else:
            connection.abort()
