"""Something quick and forgetful in front of a table: it is asked first, and the table decides.

What is in front may say "done" only of what is in the table. So it is told after the commit, or
when the table itself has said so, and never otherwise. Then whatever it forgets costs a question to
the table and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Literal, Protocol, Self, TypeVar

from txmq.errors import DatabaseFailed, UsageError
from txmq.idempotent.guard import Attempt, Payload, SessionGuard
from txmq.idempotent.verdict import Found, Verdict
from txmq.runtime.clock import Clock

__all__ = ["Front", "Lease", "Outage"]

S = TypeVar("S")
T = TypeVar("T")

log = logging.getLogger(__name__)

_PASSED_BY_S: Final = 1.0
"""Long enough that waiting for who does not answer is not felt, short enough that its coming back
is."""


class Lease(Protocol):
    """A key, as one attempt sees it; each step raises ``DatabaseFailed`` where nobody answers."""

    async def claim(self) -> Found:
        """Have the key, or hear how it stands."""
        ...

    async def finish(self, result: str | None, payload: str | None = None) -> object:
        """Write that it is done, by a fingerprint that may be another one than ours."""
        ...

    async def release(self) -> None:
        """Free the key, if it is still ours."""
        ...


class Outage:
    """Whether those in front answer, as far as was seen last; shared by all attempts.

    Args:
        clock: Where the time comes from.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: float | None = None

    def may_ask(self) -> bool:
        """Whether to ask; in an outage one of all is let through now and then."""
        until = self._until  # Another thread may hear an answer meanwhile.
        if until is None:
            return True
        now = self._clock.monotonic()
        if now < until:
            return False
        self._until = now + _PASSED_BY_S
        return True

    def began(self, problem: Exception) -> None:
        """There was no answer."""
        if self._until is None:
            log.warning("the table is asked alone for now: %s", problem)
        self._until = self._clock.monotonic() + _PASSED_BY_S

    def ended(self) -> None:
        """There was one."""
        if self._until is not None:
            self._until = None
            log.info("what is in front of the table answers again")


class Front(Generic[S]):
    """The guard over both; see :meth:`txmq.idempotent.redis.RedisGuard.before`.

    Args:
        lease: Makes what an attempt has in front, of a key, a scope and a payload.
        table: Whoever decides.
        outage: What is known of those in front.
    """

    has_session: Literal[True] = True

    def __init__(
        self,
        lease: Callable[[str, str, Payload], Lease],
        table: SessionGuard[str, S],
        outage: Outage,
    ) -> None:
        self._lease = lease
        self._table = table
        self._outage = outage

    @property
    def is_blocking(self) -> bool:
        """Whether its attempts are for ``with``, otherwise for ``async with``."""
        return self._table.is_blocking

    @property
    def keeps_result(self) -> bool | None:
        """Whether results are kept where nobody says; as the table has it."""
        return getattr(self._table, "keeps_result", None)

    def attempt(self, key: str, *, scope: str = "", payload: Payload = None) -> Attempt[S]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`.

        Raises:
            UsageError: That is no key.
            LimitExceeded: It is too long.
        """
        inner = self._table.attempt(key, scope=scope, payload=payload)
        return _Attempt(self._lease(key, scope, payload), inner, self._outage)


class _Attempt(Attempt[S]):
    def __init__(self, lease: Lease, inner: Attempt[S], outage: Outage) -> None:
        super().__init__()
        self._lease = lease
        self._inner = inner
        self._outage = outage
        self._is_told = False

    @property
    def is_blocking(self) -> bool:
        return self._inner.is_blocking

    @property
    def session(self) -> S:
        if self.verdict is not Verdict.FIRST:
            raise UsageError(f"there is nothing to do: this key is {self.verdict.value}")
        return self._inner.session

    def abandon(self) -> None:
        super().abandon()
        self._inner.abandon()

    async def begin(self) -> Self:
        found = await self._asked(self._lease.claim)
        if found is not None and found.verdict is not Verdict.FIRST:
            self.found, self._is_told = found, True
            return self
        try:
            await self._inner.begin()
        except BaseException:
            await self._release()
            raise
        self.found = self._inner.found
        return self

    async def end(self, problem: BaseException | None) -> None:
        if self._is_told:
            return
        self._inner.kept = self.kept
        try:
            await self._inner.end(problem)
        except BaseException:
            # Also where the commit may have been done: the table will know, so it shall be asked.
            await self._release()
            raise
        if self.is_abandoned:
            return
        if self.verdict is Verdict.DONE:
            # By its own fingerprint, so that whoever comes next hears what the table would say.
            found = self.found
            await self._asked(lambda: self._lease.finish(found.result, found.fingerprint))
        elif self.verdict is Verdict.FIRST and problem is None:
            await self._asked(lambda: self._lease.finish(self.kept))
        else:
            await self._release()

    async def _release(self) -> None:
        # Also of what nobody seemed to answer: the key may be ours all the same.
        await self._asked(self._lease.release)

    async def _asked(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """What is said in front, if anything is."""
        if not self._outage.may_ask():
            return None
        try:
            said = await step()
        except DatabaseFailed as problem:
            self._outage.began(problem)
            return None
        self._outage.ended()
        return said
