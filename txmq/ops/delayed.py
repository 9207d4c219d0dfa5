"""The rows of ``txmq message delayed``, and of the console's page."""

from __future__ import annotations

from typing import Any, Final

from txmq.client import Admin
from txmq.ops.columns import ListColumn
from txmq.ops.moments import time_text
from txmq.protocol.operations import DelayedEntry

__all__ = ["DELAYED_COLUMNS", "delayed_row", "delayed_rows"]

DELAYED_COLUMNS: Final = (
    ListColumn("due", "due_ms", time_text),
    ListColumn("level", "level", lambda level: level or "own time"),
    ListColumn("topic", "topic"),
    ListColumn("id", "id"),
    ListColumn("keys", "keys"),
    ListColumn("bytes", "size"),
    ListColumn("broker", "broker"),
    ListColumn("recall handle", "recall_handle"),
)
"""The columns of :func:`delayed_row`."""


def delayed_row(broker: str, entry: DelayedEntry) -> dict[str, Any]:
    """The row of a message that waits at a broker."""
    return {
        "broker": broker,
        "due_ms": entry.due_ms,
        "level": entry.level,
        "topic": entry.topic or entry.problem,
        "id": entry.message_id,
        "keys": entry.keys,
        "tags": entry.tags,
        "size": entry.size,
        "stored_ms": entry.stored_ms,
        "place": entry.offset_msg_id,
        "recall_handle": entry.recall_handle,
        "problem": entry.problem,
    }


async def delayed_rows(
    admin: Admin, broker: str | None, *, level: int | None, from_ms: int, limit: int
) -> list[dict[str, Any]]:
    """The messages that are due first, at one broker or at all.

    Raises:
        ConfigError: The broker is unknown.
        RequestNotSupported: A broker is not a txmq broker.
        TransportError: A name server or a broker does not answer.
        BrokerRefused: A broker refuses.
    """
    names = [info.name for info in await admin.cluster()] if broker is None else [broker]
    rows: list[dict[str, Any]] = []
    for name in names:
        page = await admin.delayed(name, level=level, from_ms=from_ms, limit=limit)
        rows += [delayed_row(name, entry) for entry in page.messages]
    rows.sort(key=lambda row: row["due_ms"])
    return rows[:limit]
