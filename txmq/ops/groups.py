"""How far consumer groups are behind, and what a move of their offsets does, in words. Pure."""

from __future__ import annotations

from typing import Final

from txmq.client import GroupLag
from txmq.client.values import OffsetMove, WaitingRetries
from txmq.ops.moments import age_of
from txmq.ops.rows import ListColumn
from txmq.text import quantity

__all__ = ["WAITING_COLUMN", "consequence_of", "is_of_system", "lag_words"]

_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_OF_THE_SYSTEM: Final = frozenset(
    (
        "DEFAULT_CONSUMER",
        "SCHEDULE_CONSUMER",
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_CONSUMER_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
    )
)


def is_of_system(group: str) -> bool:
    """Whether RocketMQ's own programs use this group."""
    return group in _OF_THE_SYSTEM or group.startswith(_SYSTEM_PREFIX)


def lag_words(found: GroupLag, unit: str = "") -> str:
    """How far a group is behind, such as ``3 (oldest 2 h), 4 wait for retry 2 of 16``.

    Args:
        found: The lag.
        unit: Words after the number, if no heading has them.
    """
    words = f"{found.lag}{unit}"
    if found.oldest_ms is not None:
        words += f" (oldest {age_of(found.oldest_ms)})"
    retries = found.retries
    if retries is None or not retries.count:
        return words
    return f"{words}, {quantity(retries.count, 'waits', 'wait')} {_for_retries(retries)}"


def _for_retries(retries: WaitingRetries) -> str:
    numbers = [number for number in retries.by_number if number]
    if not numbers:
        return "for a retry"
    first, last = min(numbers), max(numbers)
    words = f"for retry {first}" if first == last else f"for retries {first} to {last}"
    return words if retries.last is None else f"{words} of {retries.last}"


def _waiting_cell(retries: WaitingRetries | None) -> str:
    if retries is None or not retries.count:
        return ""
    return f"{retries.count} {_for_retries(retries)}"


WAITING_COLUMN: Final = ListColumn(
    "waiting", "retries", _waiting_cell, lambda retries: retries.count if retries else 0
)
"""The column of messages that wait for a retry; it comes next to the lag."""


def consequence_of(plan: list[OffsetMove]) -> str:
    """How many messages a reset skips, and how many it delivers again."""
    changes = [move.after - move.before for move in plan if move.before is not None]
    skipped, repeated = sum(n for n in changes if n > 0), -sum(n for n in changes if n < 0)
    parts = [f"{quantity(skipped, 'message')} skipped"] if skipped else []
    parts += [f"{quantity(repeated, 'message')} delivered again"] if repeated else []
    return ", ".join(parts) or "no message skipped or delivered again"
