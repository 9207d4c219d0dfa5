"""Find prepared transactions of crashed processes, and end them as the fence decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from txmq.databases.adapter import DatabaseAdapter
from txmq.errors import DatabaseFailed, TxmqError
from txmq.transaction.resources import two_phase
from txmq.transaction.resources.prepared import Duty, duty
from txmq.transaction.resources.sql import SQLResource
from txmq.transaction.resources.two_phase import Prepared
from txmq.transaction.resources.xa_second_phase import AT_ONCE_S, SecondPhase, within
from txmq.transaction.state import LocalTransactionState

__all__ = ["InDoubtBranch", "Look", "Recovered", "XARecovery"]

S = TypeVar("S")

log = logging.getLogger(__name__)

_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_UNKNOWN: Final = LocalTransactionState.UNKNOWN


class InDoubtBranch(NamedTuple):
    """A prepared transaction that has not ended."""

    branch: str
    """The database it is in."""
    prepared: Prepared
    decided: LocalTransactionState | None
    """The fence's decision, if any."""
    duty: Duty
    """The action that a recovery would take now."""

    @property
    def xid(self) -> str:
        """The transaction's id; empty if it is not ours."""
        return "" if self.prepared.parts is None else self.prepared.parts.xid


class Look(NamedTuple):
    """The prepared transactions found in all databases."""

    waiting: list[InDoubtBranch]
    """The oldest of each database first."""
    silent: dict[str, str]
    """The databases that did not answer, and why."""


class Recovered(NamedTuple):
    """The result of one recovery, counted in prepared transactions."""

    committed: int = 0
    rolled_back: int = 0
    left: int = 0
    """Not decided yet, and still may be; or the fence no longer remembers."""
    failed: int = 0
    """Their database did not do it now."""
    silent: tuple[str, ...] = ()
    """Databases that did not answer; theirs is done at the next time."""

    @property
    def is_complete(self) -> bool:
        """Whether the recovery ended everything that it had to end."""
        return not self.failed and not self.silent


class XARecovery(Generic[S]):
    """Ends leftover prepared transactions, regularly.

    Args:
        adapters: The databases by their names.
        fence: The fence, which decides.
        second: Ends decided transactions.
        confirm_s: How long one database may take.
        horizon: How long a transaction may be undecided.
        every_s: How often it recovers.
    """

    def __init__(
        self,
        adapters: Mapping[str, DatabaseAdapter[S]],
        fence: SQLResource[Any],
        second: SecondPhase[S],
        confirm_s: float,
        horizon: float,
        every_s: float,
    ) -> None:
        self._adapters = adapters
        self._fence = fence
        self._second = second
        self._confirm_s = confirm_s
        self._horizon_s = horizon
        self._every_s = every_s

    async def look(self, horizon: float | None = None, *, also_others: bool = False) -> Look:
        """See :meth:`XAResource.look`."""
        limit_s = self._horizon_s if horizon is None else horizon
        seen = Look([], {})
        known: dict[str, LocalTransactionState | None] = {}
        for name in self._adapters:
            try:
                looking = self._second.turn(name, two_phase.found(self._adapters[name]))
                found = await within(self._confirm_s, looking)
            except two_phase.problems_of(self._adapters[name]) as error:
                seen.silent[name] = str(error) or "it did not answer in time"
                continue
            for item in found:
                if item.parts is None or item.parts[1:] != (name, self._fence.identity):
                    if also_others:
                        seen.waiting.append(InDoubtBranch(name, item, None, Duty.NONE))
                    continue
                xid = item.parts.xid
                # Read the fence after the list: no attempt is decided before it is prepared.
                if xid not in known:
                    known[xid] = await self._decided(xid)
                what = duty(known[xid], item.age_s, limit_s)
                seen.waiting.append(InDoubtBranch(name, item, known[xid], what))
        return seen

    async def recover(self, horizon: float | None = None) -> Recovered:
        """See :meth:`XAResource.recover`."""
        done = dict.fromkeys(Duty, 0)
        failed = 0
        kept = set(self._second.kept)
        waiting, silent = await self.look(horizon)
        for name, why in silent.items():
            log.warning("cannot look for prepared transactions in %s now: %s", name, why)
        for branch in waiting:
            if branch.xid in self._second.kept and branch.prepared.age_s < self._confirm_s:
                done[Duty.WAIT] += 1  # This process is ending it, over its own connections.
                kept.discard(branch.xid)
                continue
            try:
                done[await within(self._confirm_s, self._do(branch))] += 1
            except two_phase.problems_of(self._adapters[branch.branch]) as error:
                failed += 1
                log.warning("%s stays prepared for now: %s", branch.prepared.gid, error)
        await self._second.give_back(kept)
        return Recovered(
            committed=done[Duty.COMMIT],
            rolled_back=done[Duty.ROLL_BACK],
            left=done[Duty.WAIT],
            failed=failed,
            silent=tuple(silent),
        )

    async def _decided(self, xid: str) -> LocalTransactionState | None:
        try:
            return await within(self._confirm_s, self._fence.decided(xid))
        except TimeoutError as error:
            raise DatabaseFailed("the fence did not answer in time") from error

    async def _do(self, waiting: InDoubtBranch) -> Duty:
        xid, what = waiting.xid, waiting.duty
        if what is Duty.ASK:
            state = await self._fence.check(xid, "", waiting.prepared.prepared_ms)
            what = duty(None if state is _UNKNOWN else state, 0.0, 1.0)
        if what is Duty.WAIT:
            return what
        state = _COMMIT if what is Duty.COMMIT else _ROLLBACK
        await self._second.finish(waiting.branch, xid, state, is_there=True)
        # A younger one has only just been decided, and its own manager is about to end it.
        level = logging.WARNING if waiting.prepared.age_s >= AT_ONCE_S else logging.DEBUG
        log.log(
            level,
            "%s was left prepared for %.0f s: %s",
            waiting.prepared.gid,
            waiting.prepared.age_s,
            "committed" if state is _COMMIT else "rolled back",
        )
        return what

    async def attend(self) -> None:
        """See :meth:`XAResource.attend`."""
        self._second.begin()
        try:
            while True:
                try:
                    await self._round()
                except (TxmqError, OSError) as error:
                    log.warning("cannot look for prepared transactions now: %s", error)
                await asyncio.sleep(self._every_s)
        finally:
            await self._second.end()

    async def _round(self) -> None:
        """Recover once; if cancelled, wait briefly for its end."""
        # A driver loses a connection if a statement is cancelled halfway.
        working = asyncio.ensure_future(self.recover())
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait((working,), timeout=AT_ONCE_S)
            if not working.done():
                working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            raise
