"""Differences between SQL dialects: time, lock timeouts and commit durability. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from txmq.errors import ConfigError

__all__ = [
    "DURABILITY",
    "ISOLATION",
    "LOCK_TIMEOUTS",
    "NOW_MS",
    "SAVEPOINTS",
    "doubts",
    "kind_of",
    "restore_lock_timeout",
    "set_lock_timeout",
]

NOW_MS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": "CAST(extract(epoch from clock_timestamp()) * 1000 AS BIGINT)",
        # Use UTC: local time repeats an hour in autumn.
        "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
        "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    }
)
"""Milliseconds since 1970 by the database's clock: one clock for all inserts and removals."""

ISOLATION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "mysql": "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    }
)
"""A check's first statement: it must see the latest commits instead of raising an error."""

DURABILITY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "postgresql": ("SELECT current_setting('synchronous_commit'), pg_is_in_recovery()",),
        "mysql": ("SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog",),
        "sqlite": ("PRAGMA synchronous", "PRAGMA journal_mode"),
    }
)
"""The query whose result :func:`doubts` reads."""

LOCK_TIMEOUTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mysql": "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout",
        "sqlite": "PRAGMA busy_timeout",
    }
)
"""The query for a session's lock timeout, for databases where a change outlives the transaction."""

SAVEPOINTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    dict.fromkeys(("mysql", "sqlite"), ("SAVEPOINT txmq_fence", "RELEASE SAVEPOINT txmq_fence"))
)
"""Set and release a savepoint. It lasts as long as its transaction, so releasing it shows whether
the transaction is still the same. MySQL and SQLite silently roll a transaction back, or commit it,
and begin another: at a deadlock, on a full disk, at a CREATE TABLE. PostgreSQL does not, and its
savepoints cost more."""

_FAMILIES: Final[Mapping[str, str]] = MappingProxyType({"mariadb": "mysql"})


def kind_of(dialect: str) -> str:
    """The family of a dialect: postgresql, mysql or sqlite.

    Raises:
        ConfigError: The dialect is not supported.
    """
    kind = _FAMILIES.get(dialect, dialect)
    if kind not in NOW_MS:
        raise ConfigError(f"{dialect} is not supported: use postgresql, mysql or sqlite")
    return kind


def set_lock_timeout(kind: str, wait_ms: int) -> str:
    """The statement that sets the session's lock timeout."""
    if kind == "postgresql":
        return f"SET LOCAL lock_timeout = {wait_ms}"
    if kind == "mysql":
        wait_s = max(1, wait_ms // 1000)  # MySQL accepts whole seconds only, at least one.
        return restore_lock_timeout(kind, (wait_s, wait_s))
    return restore_lock_timeout(kind, (wait_ms,))


def restore_lock_timeout(kind: str, values: tuple[object, ...]) -> str:
    """The statement that sets the lock timeouts read by :data:`LOCK_TIMEOUTS`: for rows, and in
    MySQL also for tables.
    """
    if kind == "mysql":
        return (
            f"SET SESSION innodb_lock_wait_timeout = {values[0]}, lock_wait_timeout = {values[1]}"
        )
    return f"PRAGMA busy_timeout = {values[0]}"


def doubts(kind: str, values: tuple[object, ...]) -> str | None:
    """Why a commit of this session may be lost, and the remedy; ``None`` if commits are durable."""
    if kind == "postgresql":
        if values[1]:
            return "this server is a standby, which takes no writes; connect to the primary"
        if values[0] == "off":
            return (
                "synchronous_commit is off: a crash of the server loses acknowledged commits; "
                "ALTER ROLE ... SET synchronous_commit = on"
            )
    elif kind == "mysql":
        flush, has_log, log_sync = (str(value) for value in values)
        if flush not in {"1", "3"}:
            return (
                "innodb_flush_log_at_trx_commit is not 1: a crash of the server loses "
                "acknowledged commits; set it to 1"
            )
        # A restart rolls back transactions missing from the binary log, except with MariaDB's value
        # 3.
        if flush == "1" and has_log != "0" and log_sync != "1":
            return (
                "sync_binlog is not 1: with the binary log a power cut loses acknowledged "
                "commits; set it to 1"
            )
    else:
        wanted = 2 if str(values[1]).lower() == "wal" else 1
        if int(str(values[0])) < wanted:
            return (
                "PRAGMA synchronous is too low: a power cut loses acknowledged commits; set it "
                "to FULL"
            )
    return None
