"""Names of prepared transactions, and what a recovery does with each. Pure.

PostgreSQL keeps a prepared transaction and its locks across crashes, until a session ends it by
name. The name contains all that another process needs for that: the transaction, its branch, and
the fence that decides.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from txmq.errors import ConfigError, LimitExceeded, UsageError
from txmq.limits import GID_CHARS_MAX
from txmq.transaction.state import LocalTransactionState

__all__ = [
    "PREFIX",
    "Duty",
    "Gid",
    "can_name",
    "check_branch",
    "committed",
    "duty",
    "gid_of",
    "parse",
    "prepared",
    "rolled_back",
]

PREFIX: Final = "txmq:"
"""Whatever is called otherwise is not ours, and is never touched."""

_XID: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_BRANCH: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_GID: Final = re.compile(r"txmq:([A-Za-z0-9_.:-]+):([A-Za-z0-9_-]{1,32}):([A-Za-z0-9-]{1,36})")


class Gid(NamedTuple):
    """The parts of a name."""

    xid: str
    branch: str
    fence: str
    """The identity of the fence that decides."""


class Duty(Enum):
    """What a recovery must do with a prepared transaction."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    ASK = "decide"
    """It is not decided, and its process has had the time to decide."""
    WAIT = "wait"
    """It is not decided yet, and its process still may decide."""
    NONE = "none of ours"


def check_branch(name: str) -> None:
    """Check the name of a branch.

    Raises:
        ConfigError: The name is invalid.
    """
    if not _BRANCH.fullmatch(name):
        raise ConfigError(f"{name!r} names no branch: letters, digits, _ and -, at most 32")


def gid_of(xid: str, branch: str, fence: str) -> str:
    """The name under which a branch is prepared in its database.

    Raises:
        UsageError: The id contains an invalid character.
        LimitExceeded: The name is too long for PostgreSQL.
    """
    if not _XID.fullmatch(xid):
        raise UsageError(f"{xid!r} cannot name a prepared transaction")
    gid = f"{PREFIX}{xid}:{branch}:{fence}"
    if len(gid) > GID_CHARS_MAX:
        raise LimitExceeded("the length of a prepared transaction's name", GID_CHARS_MAX, len(gid))
    return gid


def can_name(xid: str, branch: str, fence: str) -> bool:
    """Whether :func:`gid_of` accepts the id; otherwise the transaction was never prepared."""
    try:
        gid_of(xid, branch, fence)
    except (UsageError, LimitExceeded):
        return False
    return True


def parse(gid: str) -> Gid | None:
    """The parts of a txmq name; ``None`` for any other name."""
    found = _GID.fullmatch(gid)
    return Gid(*found.groups()) if found else None


def duty(decided: LocalTransactionState | None, age_s: float, horizon: float) -> Duty:
    """Decide what a recovery must do.

    Args:
        decided: The fence's decision, if any.
        age_s: How long it has been prepared.
        horizon: The time within which its own process decides.
    """
    if decided is LocalTransactionState.COMMIT:
        return Duty.COMMIT
    if decided is LocalTransactionState.ROLLBACK:
        return Duty.ROLL_BACK
    return Duty.ASK if age_s >= horizon else Duty.WAIT


def prepared(gid: str) -> str:
    """The statement that prepares."""
    return f"PREPARE TRANSACTION '{gid}'"


def committed(gid: str) -> str:
    """The statement that commits a prepared transaction."""
    return f"COMMIT PREPARED '{gid}'"


def rolled_back(gid: str) -> str:
    """The statement that rolls back a prepared transaction."""
    return f"ROLLBACK PREPARED '{gid}'"
