"""Records that were pulled from the queues of a broker become the records of its log again; pure
but for reading the files that hold them.

A broker shows its log through queues, each in the order of the log, so the merge of all queues by
position is the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol import properties
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import Record, unpack
from txmq.protocol.span import Decision, DecisionKind, DecisionSource
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC

__all__ = ["half_of", "log_record", "merged_records"]

_PREPARED: Final = int(SysFlag.PREPARED)
_SIZE_BYTES: Final = 4


def merged_records(files: Sequence[Sequence[Path]], *, is_txmq: bool) -> Iterator[Record]:
    """The records in the files of each queue, in the order of the log.

    A txmq broker decides with the record that makes the message visible, so both have one position,
    and the decision comes first. Another broker marks the half message as done at last.

    Raises:
        ReconcileRefused: A file is damaged.
    """
    queues = [chain.from_iterable(map(_records_in, paths)) for paths in files]
    return merge(*queues, key=lambda one: (one.position, (one.topic == OP_TOPIC) != is_txmq))


def _records_in(path: Path) -> Iterator[Record]:
    try:
        with path.open("rb") as file:
            while size := file.read(_SIZE_BYTES):
                yield unpack(size + file.read(int.from_bytes(size, "big") - _SIZE_BYTES))[0]
    except (OSError, RemoteProtocolError) as error:
        raise ReconcileRefused(
            f"{path}, which has records of the cluster, cannot be read: {error}; delete its "
            "folder, and run the day again"
        ) from error


def half_of(record: Record) -> Record:
    """The half message in a record of the half topic, as its producer sent it."""
    text = record.properties
    queue = properties.find(text, properties.REAL_QUEUE) or ""
    return msgspec.structs.replace(
        record,
        topic=properties.find(text, properties.REAL_TOPIC) or "",
        queue_id=int(queue) if queue.isascii() and queue.isdecimal() else 0,
        sys_flag=record.sys_flag | _PREPARED,
    )


def log_record(record: Record) -> Record | Decision:
    """A pulled record of a txmq broker as it stands in the log.

    Raises:
        ReconcileRefused: The record in the op topic has no decision.
    """
    if record.topic == HALF_TOPIC:
        return half_of(record)
    if record.topic != OP_TOPIC:
        return record
    named = record.property_map()
    try:
        return Decision(
            DecisionKind[named["TXMQ_DECISION"]],
            DecisionSource[named["TXMQ_SOURCE"]],
            record.queue_offset,
            record.prepared_position,
            int(record.body),
            -1,  # The committed message follows, and has its offset.
            record.stored_ms,
            named.get("TXMQ_REASON", ""),
        )
    except (KeyError, ValueError) as error:
        raise ReconcileRefused(
            f"the record {record.queue_offset} of {OP_TOPIC} is not a decision of a txmq broker: "
            f"{error!r}; report this as a bug of txmq"
        ) from error
