"""A record of a broker's log as a line: for people, and as JSON without any loss."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Literal

from txmq.errors import ConfigError, RemoteProtocolError
from txmq.ops.moments import time_text
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import host_text

if TYPE_CHECKING:
    from txmq.protocol.record import Record
    from txmq_broker.offline.inspection.log_records import LogRecord

__all__ = ["BodyForm", "plain_body", "record_fields", "record_line"]

BodyForm = Literal["none", "plain", "stored"]
"""No body, the body that its producer sent, or the stored bytes."""

_ALGORITHMS = {SysFlag.LZ4: "lz4", SysFlag.ZSTD: "zstd"}
_ALGORITHM_BITS = 0x700


def record_line(found: LogRecord, *, with_body: bool) -> str:
    """A record on one line for people."""
    place = f"{found.topic or '?'}/{found.queue}"
    if found.offset >= 0:
        place += f"@{found.offset}"
    if found.loss is not None:
        place = f"{len(found.loss.offsets)} topics"
    parts = [f"{found.position:>14}", time_text(found.time_ms), f"{found.kind:8}", place]
    parts += _special_parts(found)
    if found.tag:
        parts.append(f"tag={found.tag}")
    if found.keys:
        parts.append(f"keys={','.join(found.keys)}")
    if found.unique:
        is_transaction = found.kind in ("half", "decision")
        parts.append(f"{'xid' if is_transaction else 'id'}={found.unique}")
    if found.epoch:
        parts.append(f"epoch={found.epoch}")
    if found.record is not None and found.decision is None:
        parts.append(f"body={len(found.record.body)}B")
        if with_body:
            parts.append(_body_text(found.record))
    return "  ".join(parts)


def _special_parts(found: LogRecord) -> list[str]:
    """The parts of a line for a record that is not a plain message."""
    decision, parts = found.decision, []
    if decision is not None:
        by = f"{decision.kind.name} by {decision.source.name}"
        parts = [by.lower().replace("_", "-"), f"half={decision.half_position}"]
        if decision.reason:
            parts.append(f"reason={decision.reason}")
    elif found.loss is not None:
        parts = [f"reason={found.loss.reason}"]
    elif found.kind == "delayed" and found.record is not None:
        parts = [f"due={time_text(found.record.prepared_position)}"]
    return parts


def _body_text(record: Record) -> str:
    body, _ = plain_body(record)
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(body).decode()}"


def plain_body(record: Record) -> tuple[bytes, str]:
    """The body that the producer sent; if it cannot be decompressed, the stored bytes and why."""
    try:
        return record.plain_body(), ""
    except (RemoteProtocolError, ConfigError) as error:
        return record.body, str(error)


def record_fields(found: LogRecord, form: BodyForm) -> dict[str, object]:
    """All fields of a record, for a line of JSON.

    A body that is text is in ``body``, any other in ``body_base64``. ``compressed`` names the
    algorithm of the stored bytes; the body is decompressed unless ``stored`` is set.
    """
    fields: dict[str, object] = {
        "kind": found.kind,
        "position": found.position,
        "size": found.size,
        "epoch": found.epoch,
        "topic": found.topic,
        "queue": found.queue,
        "offset": found.offset if found.offset >= 0 else None,
        "stored_ms": found.time_ms,
    }
    decision, record = found.decision, found.record
    if decision is not None:
        fields |= {
            "decision": decision.kind.name,
            "source": decision.source.name,
            "reason": decision.reason,
            "half_position": decision.half_position,
            "half_offset": decision.half_offset,
            "op_offset": decision.offset,
        }
    if found.loss is not None:
        return fields | {"reason": found.loss.reason, "next_offsets": found.loss.offsets}
    fields |= {"id": found.unique, "tag": found.tag, "keys": found.keys}
    if record is None or decision is not None:
        return fields
    if found.kind == "delayed":
        fields["due_ms"] = record.prepared_position
        fields["waits_in"] = {
            "topic": record.topic, "queue": record.queue_id, "offset": record.queue_offset,
        }  # fmt: skip
    if found.kind == "half":
        fields["half_offset"] = record.queue_offset
    named = record.property_map()
    fields |= {
        "offset_id": record.offset_id,
        "properties": named,
        "born_ms": record.born_ms,
        "born_host": host_text(record.born_host),
        "store_host": host_text(record.store_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "attempts": record.attempts,
        "prepared_position": record.prepared_position,
        "body_size": len(record.body),
    }
    pairs = "\x02".join(f"{name}\x01{value}" for name, value in named.items())
    if pairs != record.properties.removesuffix("\x02"):
        # The text has more than the map, such as a name that occurs twice.
        fields["properties_text"] = record.properties
    if record.sys_flag & SysFlag.COMPRESSED:
        fields["compressed"] = _ALGORITHMS.get(SysFlag(record.sys_flag & _ALGORITHM_BITS), "zlib")
    if form != "none":
        fields |= _body_fields(record, form)
    return fields


def _body_fields(record: Record, form: BodyForm) -> dict[str, object]:
    fields: dict[str, object] = {}
    body, fault = (record.body, "") if form == "stored" else plain_body(record)
    if fault:
        fields["unreadable"] = fault
    if fault or (form == "stored" and record.sys_flag & SysFlag.COMPRESSED):
        fields["stored"] = True
    try:
        fields["body"] = body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(body).decode()
    return fields
