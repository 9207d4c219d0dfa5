"""What a guard in Redis refuses before it sends anything to Redis."""

import pytest
import redis
import redis.asyncio

from txmq.errors import ConfigError, LimitExceeded, UsageError
from txmq.idempotent.guard import redelivery_horizon
from txmq.idempotent.redis import RedisGuard

CLIENT = redis.Redis(socket_timeout=0.25)
HOUR = 3600.0


class Table:
    """The attributes of a guard that are read before it is used."""

    has_session = True

    def __init__(self, *, is_blocking):
        self.is_blocking = is_blocking
        self.has_session = True


@pytest.mark.parametrize(
    ("client", "is_blocking"),
    [
        (CLIENT, True),
        (redis.Redis.from_url("redis://localhost/3", socket_timeout=1), True),
        (redis.Redis.from_url("rediss://localhost/3", socket_timeout=1), True),
        (redis.Redis(connection_pool=redis.BlockingConnectionPool(socket_timeout=1)), True),
        (redis.Sentinel([("localhost", 1)], socket_timeout=1).master_for("m"), True),
        (redis.Redis(unix_socket_path="/run/redis", socket_timeout=1), True),
        (redis.asyncio.Redis(socket_timeout=0.25), False),
        (redis.asyncio.Redis.from_url("redis://localhost/3?socket_timeout=1"), False),
        (redis.asyncio.RedisCluster("localhost"), False),
    ],
)
def test_a_guard_is_blocking_or_asyncio_like_its_redis_client(client, is_blocking):
    assert RedisGuard(client).is_blocking is is_blocking
    assert RedisGuard(client).has_session is False


@pytest.mark.parametrize(
    "client",
    [
        redis.Redis(socket_timeout=None),
        redis.Redis.from_url("redis://localhost", socket_timeout=None),
        redis.asyncio.Redis(socket_timeout=None),
    ],
)
def test_a_redis_client_without_a_socket_timeout_is_refused(client):
    with pytest.raises(ConfigError, match="socket_timeout"):
        RedisGuard(client)


@pytest.mark.parametrize("client", [None, "redis://localhost", object()])
def test_an_object_that_is_not_a_redis_client_is_refused(client):
    with pytest.raises(ConfigError, match="not a client"):
        RedisGuard(client)


def test_results_must_be_kept_longer_than_messages_can_be_redelivered():
    horizon = redelivery_horizon()

    RedisGuard(CLIENT, keep=horizon)
    RedisGuard(CLIENT, keep=HOUR, horizon=HOUR)
    with pytest.raises(ConfigError, match="can be delivered again"):
        RedisGuard(CLIENT, keep=horizon - 1)
    with pytest.raises(ConfigError, match="can be delivered again"):
        RedisGuard(CLIENT, keep=HOUR, horizon=2 * HOUR)


@pytest.mark.parametrize("lease", [0.0, -1.0, 0.0001])
def test_a_lease_that_is_too_short_is_refused(lease):
    with pytest.raises(ConfigError, match="lease"):
        RedisGuard(CLIENT, lease=lease)


def test_a_lease_longer_than_results_are_kept_is_refused():
    with pytest.raises(ConfigError, match="lease"):
        RedisGuard(CLIENT, lease=HOUR, horizon=60)


def test_an_invalid_key_scope_or_prefix_is_refused():
    guard = RedisGuard(CLIENT)

    for key in ("", "a\nb", "a\0b", None, "a "):
        with pytest.raises(UsageError):
            guard.attempt(key)
    with pytest.raises(UsageError):
        guard.attempt("a", scope="b\0")
    with pytest.raises(LimitExceeded):
        guard.attempt("a" * 256)
    with pytest.raises(UsageError):
        RedisGuard(CLIENT, prefix="a\0")


def test_a_table_and_its_redis_client_must_both_be_blocking_or_asyncio():
    blocking, waiting = RedisGuard(CLIENT), RedisGuard(redis.asyncio.Redis(socket_timeout=1))

    assert blocking.before(Table(is_blocking=True)).is_blocking
    assert not waiting.before(Table(is_blocking=False)).is_blocking
    with pytest.raises(ConfigError, match=r"needs a redis\.asyncio\.Redis"):
        blocking.before(Table(is_blocking=False))
    with pytest.raises(ConfigError, match=r"needs a redis\.Redis"):
        waiting.before(Table(is_blocking=True))


def test_a_redis_guard_in_front_of_a_guard_without_a_session_is_refused():
    guard = RedisGuard(CLIENT)

    with pytest.raises(ConfigError, match="needs a session"):
        guard.before(RedisGuard(CLIENT))
