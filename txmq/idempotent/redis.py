"""The guard beside the work: a key of Redis, held by a lease while somebody is at it.

The value of a key says what stands behind it: ``p:token:fingerprint`` while somebody is at work,
with the lease as its time to live, then ``d:token:fingerprint:result``. Whoever holds it knows it
by the token, so nobody ends or frees what has become another's. Each step is one script, which
Redis runs with nothing in between, and which is harmless when a client without an answer sends it
once more.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from hashlib import sha1
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

import redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from txmq.databases.failures import words
from txmq.errors import ConfigError, DatabaseFailed, LeaseLost, UsageError
from txmq.idempotent.front import Front, Outage
from txmq.idempotent.guard import Attempt, Payload, SessionGuard
from txmq.idempotent.keys import named, redelivery_horizon_s
from txmq.idempotent.verdict import Found, Verdict, fingerprint, judged
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["RedisGuard"]

S = TypeVar("S")

Client: TypeAlias = redis.Redis | redis.RedisCluster | AsyncRedis | AsyncRedisCluster

log = logging.getLogger(__name__)

_PROBLEMS: Final = (RedisError, RedisClusterException, OSError)


class _Script:
    """What Redis runs as one, by its text and by the name that Redis gives it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.name = sha1(text.encode(), usedforsecurity=False).hexdigest()


_CLAIM: Final = _Script("""
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return '' end
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return '' end
return held
""")
"""Have the key, unless it is another's; then what it holds."""

_FINISH: Final = _Script("""
local held = redis.call('GET', KEYS[1])
if held == ARGV[2] then return 'kept' end
if held and held ~= ARGV[1] then return 'taken' end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return held and 'kept' or 'gone'
""")
"""Write that it is done, unless the key is another's. Where it is nobody's, it is done all the
same, and whoever comes next shall know."""

_RELEASE: Final = _Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return ''
""")

_LOST: Final = {
    b"gone": "its lease ended, or Redis forgot it, and somebody else may have begun since",
    b"taken": "its lease ended, and somebody else has the key",
}


class RedisGuard:
    """A guard that stands beside the work, in Redis.

    It is quick, needs no database, and serves work of any kind. But a key and what it stands for
    are in two places, and nothing makes them one. It keeps apart who comes at the same moment, and
    keeps away who comes later, as long as Redis remembers and the lease lasts. There is a second
    effect, and nobody notices before it, if

    - Redis evicts the key, is flushed, or starts again without what it knew;
    - Redis fails over to a replica that has not heard of the key;
    - the function takes longer than ``lease_s``, and the same comes meanwhile;
    - the process dies between the effect and the end, or Redis does not answer at the end: the
      same is done again once the lease is over.

    It tolerates a process that dies before the effect (the lease frees the key), a function that
    fails (the key is free at once), any number of deliveries at once, and answers of Redis that get
    lost. It never keeps work from being done that was not done: what is written as done was done
    before. Where a second effect does harm, put it in front of a table: :meth:`before`.

    Give the client short time-outs and few retries, for a Redis that is stuck holds up every
    message as long: ``redis.Redis(..., socket_timeout=0.25, socket_connect_timeout=0.25,
    retry=Retry(NoBackoff(), 1))``.

    Args:
        client: redis-py's, blocking or asyncio's, for one server, sentinels or a cluster. It stays
            yours to close.
        lease_s: How long the function has. In front of a table only a dead process has to be waited
            for so long.
        keep_s: How long is remembered what was done; :func:`redelivery_horizon_s` by default.
        horizon_s: How long a message can still come again, if not that long. In front of a table
            any will do, since that remembers.
        prefix: What its keys begin with. Whatever shares a Redis and has a database of its own,
            such as a service or a stage of one, needs a prefix of its own: one database's "done"
            is nothing to another.
        clock: Where the time comes from.

    Raises:
        ConfigError: The client is none of these or waits for Redis without end, a time cannot be,
            or messages can come again after what is kept is forgotten.
    """

    has_session: Literal[False] = False

    def __init__(
        self,
        client: Client,
        *,
        lease_s: float = 60.0,
        keep_s: float | None = None,
        horizon_s: float | None = None,
        prefix: str = "txmq:done:",
        clock: Clock | None = None,
    ) -> None:
        least_s = redelivery_horizon_s() if horizon_s is None else horizon_s
        kept_s = least_s if keep_s is None else keep_s
        if lease_s < 0.001:
            raise ConfigError(f"a lease of {lease_s} s is none")
        if kept_s < least_s:
            raise ConfigError(
                f"a message can come again for {least_s:.0f} s: what is done must be kept as long, "
                f"not for {kept_s:.0f} s; or say with horizon_s for how long it really can"
            )
        if kept_s < lease_s:
            raise ConfigError("what is done is kept at least as long as a lease lasts")
        self._redis = _Redis(client)
        self._prefix = named(prefix, "prefix")
        self._lease_ms = int(lease_s * 1000)
        self._keep_ms = int(kept_s * 1000)
        self._outage = Outage(SystemClock() if clock is None else clock)

    @property
    def is_blocking(self) -> bool:
        """Whether its attempts are for ``with``, otherwise for ``async with``."""
        return self._redis.is_blocking

    def attempt(self, key: str, *, scope: str = "", payload: Payload = None) -> Attempt[None]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`.

        Entering it raises :class:`txmq.DatabaseFailed` if Redis does not answer; nothing was done.
        Leaving it raises :class:`txmq.LeaseLost` if the work is done and the key was not ours any
        more. If Redis does not answer then, the log says so and nothing is raised: whoever heard
        of a problem would bring the same again, and it would be done again.

        Raises:
            UsageError: That is no key.
            LimitExceeded: It is too long.
        """
        return _Attempt(self._redis.is_blocking, self._lease(key, scope, payload))

    def before(self, table: SessionGuard[str, S]) -> Front[S]:
        """A guard that asks Redis first, and then the table, which decides.

        What Redis knows to be done is answered without the database, and so is what somebody is at
        work on. All else is the table's: the effect and its row are committed together, and only
        then Redis hears of it. So Redis may forget, be stuck or be away at any moment, and nothing
        is done twice or left out; it only costs what it saves otherwise. Where it does not answer
        it is passed by for a second, and the log says so once.

        There is one case left: a database that is set back to an older state, from a backup or by a
        failover that loses commits, has not done what Redis still knows as done. Remove the keys
        with this guard's prefix then.

        Args:
            table: A :class:`UniqueKeyTable`, or another guard with a session and texts for keys.

        Raises:
            ConfigError: One of both blocks, and the other does not; or it has no session.
        """
        if not table.has_session:
            raise ConfigError("what is behind Redis works in a session, as a UniqueKeyTable does")
        if self.is_blocking is not table.is_blocking:
            wanted = "redis.Redis" if table.is_blocking else "redis.asyncio.Redis"
            raise ConfigError(f"this table needs a {wanted} in front of it")
        return Front(self._lease, table, self._outage)

    def _lease(self, key: str, scope: str, payload: Payload) -> _Lease:
        # Neither can have the separator in it, so two keys are never the same for Redis.
        full = f"{self._prefix}{named(scope, 'scope')}\0{named(key)}"
        times = self._lease_ms, self._keep_ms
        return _Lease(self._redis, full.encode(), fingerprint(payload), times)


class _Redis:
    """A client of either kind, whatever it takes texts for: it is given bytes, and gives them."""

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Client):
            raise ConfigError(f"{client!r} is no client of redis-py")
        self._client: Any = client
        self.is_blocking = isinstance(client, redis.Redis | redis.RedisCluster)
        if _is_patient(client):
            raise ConfigError(
                "this client would wait for Redis without end: give it a socket_timeout, of 0.25 s "
                "or so"
            )

    async def run(self, script: _Script, key: bytes, *values: bytes | int) -> bytes:
        """Run a script on a key.

        Raises:
            DatabaseFailed: There was no answer, or not the one that was asked for.
        """
        try:
            try:
                return await self._ask("EVALSHA", script.name, 1, key, *values)
            except NoScriptError:
                return await self._ask("EVAL", script.text, 1, key, *values)
        except _PROBLEMS as problem:
            raise DatabaseFailed(f"Redis did not answer: {words(problem)}") from problem

    async def _ask(self, *command: object) -> bytes:
        said = self._client.execute_command(*command, **{NEVER_DECODE: True})
        answer: bytes = said if self.is_blocking else await said
        return answer


class _Lease:
    """A key of Redis, as one attempt sees it."""

    def __init__(self, door: _Redis, key: bytes, payload: str, times: tuple[int, int]) -> None:
        self._door = door
        self._key = key
        self._payload = payload
        self._lease_ms, self._keep_ms = times
        self._token = secrets.token_hex(16)
        self._ours = f"p:{self._token}:{payload}".encode()

    async def claim(self) -> Found:
        """Have the key, or hear how it stands."""
        try:
            said = await self._door.run(_CLAIM, self._key, self._ours, self._lease_ms)
        except Exception:
            raise
        except BaseException:
            # Whoever is cancelled here has the key all the same if Redis has heard of it.
            with suppress(DatabaseFailed):
                await self.release()
            raise
        held = said.decode(errors="replace")
        if not held:
            return Found(Verdict.FIRST)
        kind, *parts = held.split(":", 3)
        if kind == "p":
            return Found(Verdict.IN_PROGRESS)
        if kind != "d" or len(parts) != 3:
            raise DatabaseFailed(f"Redis holds something of somebody else under {self._key!r}")
        _, theirs, result = parts
        return judged(self._payload, theirs, result or None)

    async def finish(self, result: str | None, payload: str | None = None) -> bytes:
        """Write that it is done; the word of the script.

        Args:
            result: What is stored with it.
            payload: By which fingerprint it was done, if not by ours.
        """
        theirs = self._payload if payload is None else payload
        done = f"d:{self._token}:{theirs}:{result or ''}".encode()
        return await self._door.run(_FINISH, self._key, self._ours, done, self._keep_ms)

    async def release(self) -> None:
        """Free the key, if it is still ours."""
        await self._door.run(_RELEASE, self._key, self._ours)


class _Attempt(Attempt[None]):
    def __init__(self, is_blocking: bool, lease: _Lease) -> None:
        super().__init__()
        self._is_blocking = is_blocking
        self._lease = lease
        self._has_begun = False

    @property
    def is_blocking(self) -> bool:
        return self._is_blocking

    @property
    def session(self) -> None:
        return None

    async def begin(self) -> Self:
        if self._has_begun:
            # Its token would have the key again.
            raise UsageError("one object is one attempt; ask the guard for another")
        self._has_begun = True
        self.found = await self._lease.claim()
        return self

    async def end(self, problem: BaseException | None) -> None:
        if self.verdict is not Verdict.FIRST or self.is_abandoned:
            return
        try:
            if problem is not None:
                await self._lease.release()
                return
            said = await self._lease.finish(self.kept)
        except DatabaseFailed as silence:
            what = "is done, which nobody will know" if problem is None else "failed"
            log.warning("something %s; its key is free when its lease is over: %s", what, silence)
            return
        if said in _LOST:
            raise LeaseLost(f"it is done, but {_LOST[said]}: it may be done a second time")


def _is_patient(client: Client) -> bool:
    """Whether it waits without end; what is not seen from here is believed."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        return False  # A cluster's nodes have pools of their own.
    # Nothing is opened: where a client is told nothing, its connections know what it does.
    return pool.connection_class(**pool.connection_kwargs).socket_timeout is None
