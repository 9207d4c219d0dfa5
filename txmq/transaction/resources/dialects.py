"""What databases say differently: time, patience, and how sure a commit is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from txmq.errors import ConfigError

__all__ = ["DURABILITY", "ISOLATION", "NOW_MS", "PATIENCE", "doubts", "kind_of", "patience"]

NOW_MS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": "CAST(extract(epoch from clock_timestamp()) * 1000 AS BIGINT)",
        "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)",
        "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    }
)
"""Milliseconds since 1970 by the database's clock: one clock for all who insert and remove."""

ISOLATION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "mysql": "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    }
)
"""First of a check's statements: what another has just committed must be seen, not be an error."""

DURABILITY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "postgresql": ("SELECT current_setting('synchronous_commit'), pg_is_in_recovery()",),
        "mysql": ("SELECT @@innodb_flush_log_at_trx_commit",),
        "sqlite": ("PRAGMA synchronous", "PRAGMA journal_mode"),
    }
)
"""What :func:`doubts` reads."""

PATIENCE: Final[Mapping[str, str]] = MappingProxyType(
    {"mysql": "SELECT @@innodb_lock_wait_timeout", "sqlite": "PRAGMA busy_timeout"}
)
"""How long a session waits for locks, where that is not forgotten with the transaction."""

_SAME: Final[Mapping[str, str]] = MappingProxyType({"mariadb": "mysql"})


def kind_of(dialect: str) -> str:
    """Which of the three families a dialect belongs to.

    Raises:
        ConfigError: None of them.
    """
    kind = _SAME.get(dialect, dialect)
    if kind not in NOW_MS:
        raise ConfigError(f"no fence for {dialect}: it is postgresql, mysql or sqlite")
    return kind


def patience(kind: str, wait_ms: int) -> str:
    """Wait this long for somebody else's lock, and no longer."""
    if kind == "postgresql":
        return f"SET LOCAL lock_timeout = {wait_ms}"
    if kind == "mysql":
        return f"SET SESSION innodb_lock_wait_timeout = {max(1, wait_ms // 1000)}"
    return f"PRAGMA busy_timeout = {wait_ms}"


def doubts(kind: str, said: tuple[object, ...]) -> str | None:
    """Why a commit of this session may be forgotten, with what to do; nothing where it is kept."""
    if kind == "postgresql":
        if said[1]:
            return "this server is a standby and takes no writes; name the primary"
        if said[0] == "off":
            return (
                "synchronous_commit is off: a crash of the server forgets commits that were "
                "acknowledged; ALTER ROLE ... SET synchronous_commit = on"
            )
    elif kind == "mysql":
        if str(said[0]) != "1":
            return (
                "innodb_flush_log_at_trx_commit is not 1: a crash of the server forgets commits "
                "that were acknowledged; set it to 1"
            )
    else:
        wanted = 2 if str(said[1]).lower() == "wal" else 1
        if int(str(said[0])) < wanted:
            return (
                "PRAGMA synchronous is too low: a power cut forgets commits that were "
                "acknowledged; set it to FULL"
            )
    return None
