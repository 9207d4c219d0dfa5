"""A fast guard in front of a table: it may forget keys, and the table decides.

The cache may say "done" only about keys that are done in the table. So it stores a key only after
the commit, or when the table reports the key as done. If the cache forgets a key, the only cost is
a query to the table.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Literal, Protocol, Self, TypeVar

from txmq.errors import DatabaseFailed, UsageError
from txmq.idempotent.guard import Attempt, Payload, SessionGuard
from txmq.idempotent.verdict import KeyState, Verdict
from txmq.runtime.clock import Clock

__all__ = ["CachedGuard", "KeyLease", "Outage"]

S = TypeVar("S")
T = TypeVar("T")

log = logging.getLogger(__name__)

_BYPASS_S: Final = 1.0
"""How long a cache that does not answer is bypassed: long enough that waiting for it does not slow
the messages down, short enough that its return is used soon."""


class KeyLease(Protocol):
    """A key of the cache during one attempt; each step raises ``DatabaseFailed`` without an answer
    from the cache.
    """

    async def claim(self) -> KeyState:
        """Claim the key, or return its state."""
        ...

    async def finish(self, result: str | None, payload: str | None = None) -> object:
        """Mark the key as done, by a fingerprint that may differ from this attempt's."""
        ...

    async def release(self) -> None:
        """Free the key if this attempt still holds it."""
        ...


class Outage:
    """Remembers that the cache did not answer; shared by all attempts.

    Args:
        clock: Gives the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: float | None = None

    def may_ask(self) -> bool:
        """True if this caller may ask the cache; during an outage one caller a second may."""
        until = self._until  # Another thread may end the outage meanwhile.
        if until is None:
            return True
        now = self._clock.monotonic()
        if now < until:
            return False
        self._until = now + _BYPASS_S
        return True

    def began(self, error: Exception) -> None:
        """Note that the cache did not answer."""
        if self._until is None:
            log.warning("the cache is bypassed and only the table is asked for now: %s", error)
        self._until = self._clock.monotonic() + _BYPASS_S

    def ended(self) -> None:
        """Note that the cache answered."""
        if self._until is not None:
            self._until = None
            log.info("the cache in front of the table answers again")


class CachedGuard(Generic[S]):
    """A guard over a cache and a table; see :meth:`txmq.idempotent.redis.RedisGuard.before`.

    Args:
        lease: Makes the lease of an attempt in the cache, from a key, a scope and a payload.
        table: The guard that decides.
        outage: Whether the cache answers.
    """

    has_session: Literal[True] = True

    def __init__(
        self,
        lease: Callable[[str, str, Payload], KeyLease],
        table: SessionGuard[str, S],
        outage: Outage,
    ) -> None:
        self._lease = lease
        self._table = table
        self._outage = outage
        self.is_blocking: bool = table.is_blocking
        """True if its attempts are used by ``with``; otherwise by ``async with``."""

    @property
    def keeps_result(self) -> bool | None:
        """True if results are stored by default, as the table defines it."""
        return getattr(self._table, "keeps_result", None)

    def attempt(self, key: str, *, scope: str = "", payload: Payload = None) -> Attempt[S]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`.

        Raises:
            UsageError: The key is invalid.
            LimitExceeded: It is too long.
        """
        inner = self._table.attempt(key, scope=scope, payload=payload)
        return CachedAttempt(self._lease(key, scope, payload), inner, self._outage)


class CachedAttempt(Attempt[S]):
    """An attempt that claims the key in the cache, then in the table.

    Args:
        lease: The key in the cache.
        inner: The attempt at the table.
        outage: Whether the cache answers.
    """

    def __init__(self, lease: KeyLease, inner: Attempt[S], outage: Outage) -> None:
        super().__init__()
        self._lease = lease
        self._inner = inner
        self._outage = outage
        self._is_from_cache = False
        self.is_blocking: bool = inner.is_blocking

    @property
    def session(self) -> S:
        """The session of the table's attempt.

        Raises:
            UsageError: There is no work to do.
        """
        if self.verdict is not Verdict.FIRST:
            raise UsageError(f"there is nothing to do: this key is {self.verdict.value}")
        return self._inner.session

    def abandon(self) -> None:
        """See :meth:`Attempt.abandon`."""
        super().abandon()
        self._inner.abandon()

    async def begin(self) -> Self:
        """See :meth:`Attempt.begin`."""
        found = await self._ask(self._lease.claim)
        if found is not None and found.verdict is not Verdict.FIRST:
            self.found, self._is_from_cache = found, True
            return self
        try:
            await self._inner.begin()
        except BaseException:
            await self._release()
            raise
        self.found: KeyState = self._inner.found
        return self

    async def end(self, error: BaseException | None) -> None:
        """See :meth:`Attempt.end`."""
        if self._is_from_cache:
            return
        self._inner.kept = self.kept
        try:
            await self._inner.end(error)
        except BaseException:
            # Even after a commit that may have succeeded: then the next attempt queries the table.
            await self._release()
            raise
        if self.is_abandoned:
            return
        if self.verdict is Verdict.DONE:
            # With the table's fingerprint, so the cache answers later attempts as the table would.
            found = self.found
            await self._ask(lambda: self._lease.finish(found.result, found.fingerprint))
        elif self.verdict is Verdict.FIRST and error is None:
            await self._ask(lambda: self._lease.finish(self.kept))
        else:
            await self._release()

    async def _release(self) -> None:
        # Also after a claim without an answer: the cache may have executed it.
        await self._ask(self._lease.release)

    async def _ask(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """The cache's answer; ``None`` during an outage."""
        if not self._outage.may_ask():
            return None
        try:
            answer = await step()
        except DatabaseFailed as error:
            self._outage.began(error)
            return None
        self._outage.ended()
        return answer
