"""Prepared transactions: how ours are named, and what a recovery does with one.

Pure: knows no database. PostgreSQL keeps a prepared transaction over every crash, with its locks,
until a session ends it by its name. The name says all that another process needs for that: which
transaction, which branch of it, and which fence has decided, or will.
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
    """What is to be done with a prepared transaction."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    ASK = "decide"
    """It is not decided, and its process has had the time to decide."""
    WAIT = "wait"
    """It is not decided yet, and its process still may decide."""
    NONE = "none of ours"


def check_branch(name: str) -> None:
    """See that a branch can be called that.

    Raises:
        ConfigError: It cannot.
    """
    if not _BRANCH.fullmatch(name):
        raise ConfigError(f"{name!r} names no branch: letters, digits, _ and -, at most 32")


def gid_of(xid: str, branch: str, fence: str) -> str:
    """How the branch of a transaction is called in its database.

    Raises:
        UsageError: The id holds what a name may not hold.
        LimitExceeded: PostgreSQL takes no name of this length.
    """
    if not _XID.fullmatch(xid):
        raise UsageError(f"{xid!r} cannot name a prepared transaction")
    gid = f"{PREFIX}{xid}:{branch}:{fence}"
    if len(gid) > GID_CHARS_MAX:
        raise LimitExceeded("the length of a prepared transaction's name", GID_CHARS_MAX, len(gid))
    return gid


def can_name(xid: str, branch: str, fence: str) -> bool:
    """Whether :func:`gid_of` can; nothing is prepared of a transaction of which it cannot."""
    try:
        gid_of(xid, branch, fence)
    except (UsageError, LimitExceeded):
        return False
    return True


def parse(gid: str) -> Gid | None:
    """The parts of a name of ours; none of anybody else's."""
    found = _GID.fullmatch(gid)
    return Gid(*found.groups()) if found else None


def duty(decided: LocalTransactionState | None, age_s: float, horizon_s: float) -> Duty:
    """What is to be done.

    Args:
        decided: What the fence says, if anything.
        age_s: How long it has been prepared.
        horizon_s: The time that its own process has to decide.
    """
    if decided is LocalTransactionState.COMMIT:
        return Duty.COMMIT
    if decided is LocalTransactionState.ROLLBACK:
        return Duty.ROLL_BACK
    return Duty.ASK if age_s >= horizon_s else Duty.WAIT


def prepared(gid: str) -> str:
    """The statement that prepares."""
    return f"PREPARE TRANSACTION '{gid}'"


def committed(gid: str) -> str:
    """The statement that commits what is prepared."""
    return f"COMMIT PREPARED '{gid}'"


def rolled_back(gid: str) -> str:
    """The statement that rolls back what is prepared."""
    return f"ROLLBACK PREPARED '{gid}'"
