"""The guard outside the database: a key in Redis, held by a lease during the work.

The value of a key shows its state: ``p:token:fingerprint`` during the work, with the lease as its
time to live, then ``d:token:fingerprint:result``. The token identifies the attempt that holds the
key, so no attempt ends or frees the key of another. Each step is one script, which Redis runs
atomically. A client that gets no answer may safely send it again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha1
from typing import Any, Final, Generic, Literal, Self, TypeAlias, TypeVar

import redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from txmq.databases.failures import words
from txmq.errors import ConfigError, DatabaseFailed, LeaseLost, UsageError
from txmq.idempotent.guard import (
    Attempt,
    KeyState,
    Payload,
    SessionGuard,
    Verdict,
    check_text,
    fingerprint,
    judge,
    redelivery_horizon,
)
from txmq.runtime.clock import Clock, SystemClock
from txmq.settings.units import DurationLike, seconds

__all__ = ["CachedGuard", "Outage", "RedisGuard"]

S = TypeVar("S")
T = TypeVar("T")

Client: TypeAlias = redis.Redis | redis.RedisCluster | AsyncRedis | AsyncRedisCluster

log = logging.getLogger(__name__)

_PROBLEMS: Final = (RedisError, RedisClusterException, OSError)


class RedisScript:
    """A script that Redis runs atomically, and the hash by which Redis knows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.name: str = sha1(text.encode(), usedforsecurity=False).hexdigest()


_CLAIM: Final = RedisScript("""
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return '' end
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return '' end
return held
""")
"""Claim the key; returns its value if another attempt holds it."""

_FINISH: Final = RedisScript("""
local held = redis.call('GET', KEYS[1])
if held == ARGV[2] then return 'kept' end
if held and held ~= ARGV[1] then return 'taken' end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return held and 'kept' or 'gone'
""")
"""Mark the key as done, unless another attempt holds it. Mark it also if the key is gone: the work
is done, and later attempts must see that."""

_RELEASE: Final = RedisScript("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return ''
""")

_LOST: Final = {
    b"gone": "its lease ended, or Redis lost the key, and another attempt may have begun since",
    b"taken": "its lease ended, and another attempt holds the key",
}


class RedisGuard:
    """A guard in Redis, outside the transaction of the work.

    It is fast, needs no database, and guards work of any kind. But the key and the work are in
    different systems, and no transaction covers both. It lets one of several simultaneous
    deliveries through and stops later ones, as long as Redis remembers the key and the lease lasts.
    The work is done twice, without any warning, if

    - Redis evicts the key, is flushed, or restarts without its data;
    - Redis fails over to a replica that has not received the key;
    - the function takes longer than ``lease``, and the message is delivered again while it runs;
    - the process dies between the work and the end, or Redis does not answer at the end: the work
      is done again once the lease has expired.

    It tolerates a process that dies before the work (the lease frees the key), a function that
    fails (the key is free at once), any number of simultaneous deliveries, and lost answers from
    Redis. It never skips work that was not done: a key is marked as done only after its work. If
    doing the work twice does harm, put this guard in front of a table: :meth:`before`.

    Give the client short time-outs and few retries, because a hung Redis delays every message for
    that long: ``redis.Redis(..., socket_timeout=0.25, socket_connect_timeout=0.25,
    retry=Retry(NoBackoff(), 1))``.

    Args:
        client: A client of redis-py, blocking or asyncio, for one server, sentinels or a cluster.
            You close it.
        lease: The longest time that the function may take. In front of a table, it is only the time
            until the key of a dead process is free.
        keep: How long done keys are remembered; :func:`redelivery_horizon` by default.
        horizon: How long messages can be delivered again, if not :func:`redelivery_horizon`. In
            front of a table any value works, because the table remembers.
        prefix: The beginning of its keys. Databases that share a Redis need different prefixes, for
            example one for each service or stage: "done" is true in one database only.
        clock: The source of time.

    Raises:
        ConfigError: The client is not one of these or has no time-out, a time is out of range, or
            messages can be delivered again after their key is forgotten.
    """

    has_session: Literal[False] = False

    def __init__(
        self,
        client: Client,
        *,
        lease: DurationLike = 60.0,
        keep: DurationLike | None = None,
        horizon: DurationLike | None = None,
        prefix: str = "txmq:done:",
        clock: Clock | None = None,
    ) -> None:
        least_s = redelivery_horizon() if horizon is None else seconds("horizon", horizon)
        kept_s = least_s if keep is None else seconds("keep", keep)
        lease_s = seconds("lease", lease, least=0.001)
        if kept_s < least_s:
            raise ConfigError(
                f"a message can be delivered again for {least_s:.0f} s, but keep is only "
                f"{kept_s:.0f} s: raise keep, or set horizon to the real time"
            )
        if kept_s < lease_s:
            raise ConfigError(f"keep is {kept_s} s, but lease is {lease_s} s: raise keep")
        self._redis = RedisConnection(client)
        self.is_blocking: bool = self._redis.is_blocking
        """True if its attempts use ``with``; otherwise they use ``async with``."""
        self._prefix = check_text(prefix, "prefix")
        self._lease_ms = int(lease_s * 1000)
        self._keep_ms = int(kept_s * 1000)
        self._outage = Outage(SystemClock() if clock is None else clock)

    def attempt(self, key: str, *, scope: str = "", payload: Payload = None) -> Attempt[None]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`.

        Entering it raises :class:`txmq.DatabaseFailed` if Redis does not answer; nothing was done.
        Leaving it raises :class:`txmq.LeaseLost` if the work is done but the attempt had lost the
        key. If Redis does not answer at that point, the attempt logs a warning and raises nothing:
        after an error the caller would repeat the message, and the work would be done twice.

        Raises:
            UsageError: The key is invalid.
            LimitExceeded: It is too long.
        """
        return RedisAttempt(self._redis.is_blocking, self._lease(key, scope, payload))

    def before(self, table: SessionGuard[str, S]) -> CachedGuard[S]:
        """A guard that asks Redis first, and then the table, which decides.

        Redis alone answers for keys that are done or in progress. The table handles all others: the
        work and its row are committed together, and only then is Redis told. So Redis may forget,
        hang or be down at any moment, and the work is still done exactly once, only more slowly. If
        Redis does not answer, it is bypassed for a second, with one line in the log.

        One case remains. If the database returns to an older state, through a backup or a failover
        that loses commits, Redis still marks the lost work as done. Then remove the keys with this
        guard's prefix.

        Args:
            table: A :class:`UniqueKeyTable`, or another guard with a session and text keys.

        Raises:
            ConfigError: One of the two is blocking and the other is not, or the table has no
                session.
        """
        if not table.has_session:
            raise ConfigError("the guard behind Redis needs a session, as a UniqueKeyTable has")
        if self.is_blocking is not table.is_blocking:
            wanted = "redis.Redis" if table.is_blocking else "redis.asyncio.Redis"
            raise ConfigError(f"this table needs a {wanted} in front of it")
        return CachedGuard(self._lease, table, self._outage)

    def _lease(self, key: str, scope: str, payload: Payload) -> RedisLease:
        # No scope and no key contains the separator, so two keys never share a name in Redis.
        full = f"{self._prefix}{check_text(scope, 'scope')}\0{check_text(key)}"
        times = self._lease_ms, self._keep_ms
        return RedisLease(self._redis, full.encode(), fingerprint(payload), times)


class RedisConnection:
    """A blocking or asyncio client, used with bytes whatever its own decoding is."""

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Client):
            raise ConfigError(f"{client!r} is not a client of redis-py")
        self._client: Any = client
        self.is_blocking: bool = isinstance(client, redis.Redis | redis.RedisCluster)
        if not _has_timeout(client):
            raise ConfigError(
                "this client would wait for Redis for ever: give it a socket_timeout, for example "
                "0.25 s"
            )

    async def run(self, script: RedisScript, key: bytes, *values: bytes | int) -> bytes:
        """Run a script on a key.

        Raises:
            DatabaseFailed: Redis did not answer, or answered with an error.
        """
        try:
            try:
                return await self._ask("EVALSHA", script.name, 1, key, *values)
            except NoScriptError:
                return await self._ask("EVAL", script.text, 1, key, *values)
        except _PROBLEMS as error:
            raise DatabaseFailed(f"Redis did not answer: {words(error)}") from error

    async def _ask(self, *command: object) -> bytes:
        reply = self._client.execute_command(*command, **{NEVER_DECODE: True})
        answer: bytes = reply if self.is_blocking else await reply
        return answer


class RedisLease:
    """A key in Redis during one attempt."""

    def __init__(
        self, connection: RedisConnection, key: bytes, payload: str, times: tuple[int, int]
    ) -> None:
        self._redis = connection
        self._key = key
        self._payload = payload
        self._lease_ms, self._keep_ms = times
        self._token = secrets.token_hex(16)
        self._ours = f"p:{self._token}:{payload}".encode()

    async def claim(self) -> KeyState:
        """Claim the key, or return its state."""
        try:
            answer = await self._redis.run(_CLAIM, self._key, self._ours, self._lease_ms)
        except Exception:
            raise
        except BaseException:
            # Redis may have executed the claim before this task was cancelled.
            with suppress(DatabaseFailed):
                await self.release()
            raise
        held = answer.decode(errors="replace")
        if not held:
            return KeyState(Verdict.FIRST)
        kind, *parts = held.split(":", 3)
        if kind == "p":
            return KeyState(Verdict.IN_PROGRESS)
        if kind != "d" or len(parts) != 3:
            raise DatabaseFailed(
                f"the Redis key {self._key!r} holds a value that no guard wrote: choose another "
                "prefix"
            )
        _, theirs, result = parts
        return judge(self._payload, theirs, result or None)

    async def finish(self, result: str | None, payload: str | None = None) -> bytes:
        """Mark the key as done; returns the script's answer.

        Args:
            result: The result to store with it.
            payload: The fingerprint of the work, if it differs from this attempt's.
        """
        theirs = self._payload if payload is None else payload
        done = f"d:{self._token}:{theirs}:{result or ''}".encode()
        return await self._redis.run(_FINISH, self._key, self._ours, done, self._keep_ms)

    async def release(self) -> None:
        """Free the key if this attempt still holds it."""
        await self._redis.run(_RELEASE, self._key, self._ours)


class RedisAttempt(Attempt[None]):
    """An attempt under a lease in Redis.

    Args:
        is_blocking: Whether it uses ``with`` instead of ``async with``.
        lease: The key.
    """

    def __init__(self, is_blocking: bool, lease: RedisLease) -> None:
        super().__init__()
        self.is_blocking = is_blocking
        self._lease = lease
        self._has_begun = False

    @property
    def session(self) -> None:
        """No session."""
        return None

    async def begin(self) -> Self:
        """See :meth:`Attempt.begin`."""
        if self._has_begun:
            # The same token would be granted the key again.
            raise UsageError("an attempt is used once; ask the guard for another")
        self._has_begun = True
        self.found: KeyState = await self._lease.claim()
        return self

    async def end(self, error: BaseException | None) -> None:
        """See :meth:`Attempt.end`."""
        if self.verdict is not Verdict.FIRST or self.is_abandoned:
            return
        try:
            if error is not None:
                await self._lease.release()
                return
            answer = await self._lease.finish(self.kept)
        except DatabaseFailed as no_answer:
            what = "is done, but Redis could not record it" if error is None else "failed"
            log.warning("the work %s; its key is free when its lease ends: %s", what, no_answer)
            return
        if answer in _LOST:
            raise LeaseLost(f"the work is done, but {_LOST[answer]}: it may be done a second time")


def _has_timeout(client: Client) -> bool:
    """True if the client's settings limit how long it waits."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        return True  # Each node of a cluster has its own pool.
    # This opens no connection. It finds the class's default if the client sets no timeout.
    return pool.connection_class(**pool.connection_kwargs).socket_timeout is not None


_BYPASS_S: Final = 1.0
"""How long a cache that does not answer is bypassed: long enough that waiting for it does not slow
the messages down, short enough that its return is noticed soon."""


class Outage:
    """Remembers that the cache did not answer; shared by all attempts.

    Args:
        clock: Gives the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: float | None = None

    def may_ask(self) -> bool:
        """True if this caller may ask the cache; during an outage, only one caller a second may."""
        until = self._until  # Another thread may end the outage now.
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
        lease: Callable[[str, str, Payload], RedisLease],
        table: SessionGuard[str, S],
        outage: Outage,
    ) -> None:
        self._lease = lease
        self._table = table
        self._outage = outage
        self.is_blocking: bool = table.is_blocking
        """True if its attempts use ``with``; otherwise they use ``async with``."""

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

    def __init__(self, lease: RedisLease, inner: Attempt[S], outage: Outage) -> None:
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
