"""Rebuilds a broker's log from the records that were pulled from its queues; pure, except that it
reads their files.

A broker shows its log through queues, each in the order of the log, so merging all queues by
position gives the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol import properties
from txmq.protocol.record import COMMITTED, PREPARED, TYPE_BITS, Record, queue_offset_of, unpack
from txmq.protocol.span import Decision, DecisionKind, DecisionSource, Found
from txmq.protocol.topics import DLQ, HALF_TOPIC, OP_TOPIC, PARKED_TOPIC, RETRY, WAITING_TOPICS

__all__ = ["decided_records", "half_of", "marked_records", "merged_records"]

_SIZE_BYTES: Final = 4
_DIGITS_MAX: Final = 18


def merged_records(files: Sequence[Sequence[Path]], *, is_txmq: bool) -> Iterator[Record]:
    """The records in the files of each queue, in the order of the log.

    At a txmq broker, the record that makes a message visible is also the decision, so both have the
    same position, and the decision comes first. Other brokers mark the half message as done later.
    """
    queues = [chain.from_iterable(map(_records_in, paths)) for paths in files]
    return merge(*queues, key=lambda one: (one.position, (one.topic == OP_TOPIC) != is_txmq))


def _records_in(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        while size := file.read(_SIZE_BYTES):
            data = size + file.read(int.from_bytes(size, "big") - _SIZE_BYTES)
            try:
                # Apache RocketMQ stores the properties of a batch as its sender wrote them.
                yield unpack(data, errors="replace")[0]
            except RemoteProtocolError as error:
                why = f"a broken record of offset {queue_offset_of(data)}: {error}"
                raise ReconcileRefused(f"the cluster sent {why}; run the day again") from error


def half_of(record: Record) -> Record:
    """The half message in a record of the half topic, as its producer sent it."""
    topic, queue = record.real_place
    return replace(record, topic=topic, queue_id=queue, sys_flag=record.sys_flag | PREPARED)


def decided_records(records: Iterable[Record]) -> Iterator[Found]:
    """The log of a txmq broker, whose op topic has the decisions.

    Raises:
        ReconcileRefused: A record in the op topic has no decision.
    """
    for record in records:
        if record.topic == HALF_TOPIC:
            yield half_of(record)
        elif record.topic == OP_TOPIC:
            named = record.property_map()
            try:
                kind = DecisionKind[named["TXMQ_DECISION"]]
                source = DecisionSource[named["TXMQ_SOURCE"]]
                half_offset = int(record.body)
            except (KeyError, ValueError) as error:
                where = f"record {record.queue_offset} of {OP_TOPIC}"
                why = f"has no decision of a txmq broker: {error!r}"
                raise ReconcileRefused(f"{where} {why}; report this as a bug of txmq") from error
            reason = named.get("TXMQ_REASON", "")
            decision = _decision(record, kind, record.prepared_position, half_offset)
            yield decision._replace(source=source, reason=reason)
        else:
            yield record


def marked_records(records: Iterable[Record]) -> Iterator[Found]:
    """The log of a broker that only marks half messages as done, as Apache RocketMQ does.

    Its op records name half messages by their offsets. A half message with a visible message of
    the same id is committed, and one with a mark and no such message is rolled back. The broker
    writes the visible message before the mark. When it checks a producer, it writes the half
    message again; the id shows that both are one. A delayed message does not name the place where
    it waited, so it counts from its delivery on.
    """
    marked: dict[int, str] = {}
    """The ids of half messages without a mark, by their offsets in the half topic."""
    held: dict[str, int] = {}
    """The positions of undecided half messages, by their ids."""
    for record in records:
        topic = record.topic
        id_ = properties.find(record.properties, properties.UNIQUE_KEY) or record.offset_id
        if topic == HALF_TOPIC:
            if id_ not in held:
                held[id_] = record.position
                yield half_of(record)
            marked[record.queue_offset] = id_
        elif topic == OP_TOPIC:
            yield from _rolled_back(record, marked, held)
        elif topic == PARKED_TOPIC:
            if id_ in held:
                yield _decision(record, DecisionKind.PARKED, held[id_])
        elif not topic.startswith((RETRY, DLQ, *WAITING_TOPICS)):
            is_committed = record.sys_flag & TYPE_BITS == COMMITTED
            at = held.pop(id_, record.prepared_position) if is_committed else 0
            if at:
                yield _decision(record, DecisionKind.COMMITTED, at)
            # Without a half message, the flag is only the sender's claim.
            flag = record.sys_flag if at else record.sys_flag & ~TYPE_BITS
            yield replace(record, sys_flag=flag, prepared_position=at)
        elif topic not in WAITING_TOPICS or record.real_place[0].startswith(RETRY):
            # A returned message may still have the flag of a committed one.
            yield replace(record, sys_flag=record.sys_flag & ~TYPE_BITS)


def _rolled_back(record: Record, marked: dict[int, str], held: dict[str, int]) -> Iterator[Found]:
    """Decide the half messages that an op record names: one, or several separated by commas."""
    for word in record.body.decode("ascii", "replace").split(","):
        if word.isdecimal() and len(word) <= _DIGITS_MAX:
            offset = int(word)
            # An unknown half message is older than the records; a known one that is no longer held
            # is visible.
            at = held.pop(marked.pop(offset), None) if offset in marked else -1
            if at is not None:
                yield _decision(record, DecisionKind.ROLLED_BACK, at, offset)


def _decision(record: Record, kind: DecisionKind, half_at: int, half_offset: int = -1) -> Decision:
    # A committed message follows, and has its own offset.
    places = record.queue_offset, half_at, half_offset, -1
    return Decision(kind, DecisionSource.BROKER, *places, record.stored_ms, "")
