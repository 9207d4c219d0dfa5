"""The records of a log in order, each with its kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from txmq.errors import ReconcileRefused
from txmq.protocol import properties
from txmq.protocol.codes import SysFlag
from txmq.protocol.span import AcceptedLoss, Decision, Found
from txmq.protocol.topics import DLQ, PARKED_TOPIC, RETRY, WAITING_TOPICS
from txmq.reconcile.log.files import OpenFile
from txmq.reconcile.log.spans import LogStretch, records_from

__all__ = ["RawRecord", "raw_record", "raw_records"]

_TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)
_PREPARED: Final = int(SysFlag.PREPARED)
_COMMITTED: Final = int(SysFlag.COMMITTED)


class RawRecord(NamedTuple):
    """A record; fields that its kind does not have are ``None``.

    ``docs/howto/read-the-log-from-spark.md`` describes them as columns.
    """

    position: int
    kind: str
    topic: str | None = None
    queue: int | None = None
    queue_offset: int | None = None
    stored_ms: int = 0
    born_ms: int | None = None
    id: str | None = None
    keys: str | None = None
    tags: str | None = None
    attempts: int | None = None
    body: bytes | None = None
    properties: dict[str, str] | None = None
    half_position: int | None = None
    outcome: str | None = None
    decided_by: str | None = None
    reason: str | None = None


def raw_record(found: Found, position: int) -> RawRecord:
    """A record with its kind."""
    if isinstance(found, Decision):
        return RawRecord(
            position,
            "decision",
            stored_ms=found.decided_ms,
            queue_offset=found.queue_offset if found.queue_offset >= 0 else None,
            half_position=found.half_position,
            outcome=found.kind.name.lower(),
            decided_by=found.source.name.lower(),
            reason=found.reason or None,
        )
    if isinstance(found, AcceptedLoss):
        return RawRecord(position, "loss", stored_ms=found.accepted_ms, reason=found.reason)
    topic, bits = found.topic, found.sys_flag & _TYPE_BITS
    named = found.property_map()
    if bits == _PREPARED:
        kind = "half"
    elif topic in WAITING_TOPICS:
        kind = "waiting"
    elif topic.startswith(RETRY):
        kind = "retry"
    elif topic.startswith(DLQ):
        kind = "dead_letter"
    else:
        kind = "parked" if topic == PARKED_TOPIC else "message"
    has_half = bits == _COMMITTED or kind == "parked"
    return RawRecord(
        position, kind, topic, found.queue_id, found.queue_offset, found.stored_ms, found.born_ms,
        named.get(properties.UNIQUE_KEY) or found.offset_id, named.get(properties.KEYS),
        named.get(properties.TAGS), found.attempts, found.body, named,
        found.prepared_position if has_half else None,
        reason=named.get(properties.DEAD_REASON) if kind == "dead_letter" else None,
    )  # fmt: skip


def raw_records(part: LogStretch) -> Iterator[RawRecord]:
    """The records of a part of the log that begins where a span does.

    Raises:
        ReconcileRefused: The file is damaged or was deleted.
    """
    try:
        with OpenFile(part.file) as opened:
            for _, found in records_from(opened, part.start, part.end):
                for item, position, _ in found:
                    yield raw_record(item, position)
    except FileNotFoundError:
        raise ReconcileRefused(
            f"{part.file.path} was deleted by the broker before it was read; read the log again"
        ) from None
