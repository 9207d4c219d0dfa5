"""Reads and selects the records of a stopped broker's log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import CorruptRecord
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.record import PREPARED, TYPE_BITS, Record
from txmq.protocol.span import AcceptedLoss, Decision, Found
from txmq.protocol.topics import WAITING_TOPICS, WHEEL_TOPIC
from txmq_broker.store.delay_lines import WHEEL_LINES
from txmq_broker.store.log.reader import Gap, LogReader, Piece
from txmq_broker.store.queue_store import keys_in

__all__ = ["Broken", "Item", "LogRecord", "RecordKind", "Selection", "committed_message", "select"]

_NO_OFFSET: Final = -1


class RecordKind(StrEnum):
    """The kind of a record of the log."""

    MESSAGE = "message"
    """A message that consumers can read."""
    HALF = "half"
    """A half message: a prepared transaction."""
    DECISION = "decision"
    """The decision on a half message; a commit is also the message's place in its queue."""
    DELAYED = "delayed"
    """A message that waits for its due time; then the broker writes it again as a message."""
    LOSS = "loss"
    """A loss that an operator accepted; the queues it names continue at later offsets."""
    RECALL = "recall"
    """The recall of a delayed message."""


class LogRecord(NamedTuple):
    """One record of the log."""

    kind: RecordKind
    position: int
    size: int
    topic: str
    """Its topic; empty if unreadable. A decision has the topic of its half message, and a delayed
    message the topic that it will be delivered to.
    """
    queue: int
    offset: int
    """Its offset in that queue, or -1 if it has none."""
    time_ms: int
    """The time at which it was stored or decided."""
    record: Record | None
    """The message; for a decision its half message, if readable."""
    decision: Decision | None
    loss: AcceptedLoss | None = None
    epoch: int = 0
    """The epoch of the leadership that wrote it."""

    @property
    def unique(self) -> str:
        """The id that its producer gave it; it is also the id of its transaction."""
        return self._property(properties.UNIQUE_KEY)

    @property
    def tag(self) -> str:
        """Its tag."""
        return self._property(properties.TAGS)

    @property
    def keys(self) -> list[str]:
        """Its keys, without its id."""
        return self._property(properties.KEYS).split()

    def _property(self, name: str) -> str:
        return "" if self.record is None else properties.find(self.record.properties, name) or ""


class Broken(NamedTuple):
    """An unreadable record in a span with a valid checksum; readers skip the rest of the span."""

    position: int
    end: int
    reason: str


Item: TypeAlias = LogRecord | Gap | Broken


class Selection(NamedTuple):
    """The criteria for records. An empty field selects all."""

    kinds: frozenset[RecordKind] = frozenset()
    topic: str = ""
    queue: int | None = None
    key: str = ""
    transaction: str = ""
    since_ms: int = 0
    until_ms: int = 1 << 62
    start: int = 0
    """The position of the log at which to begin."""
    end: int = 1 << 62
    """The position at which to stop."""

    def wants(self, found: LogRecord) -> bool:
        """Return true if a record is selected."""
        return (
            self.start <= found.position < self.end
            and self.since_ms <= found.time_ms <= self.until_ms
            and (not self.kinds or found.kind in self.kinds)
            and (not self.topic or found.topic == self.topic)
            and (self.queue is None or found.queue == self.queue)
            and (not self.transaction or found.unique == self.transaction)
            and (not self.key or self._has_key(found))
        )

    def _has_key(self, found: LogRecord) -> bool:
        return found.record is not None and self.key in keys_in(found.record.properties)


def select(
    log: LogReader, selection: Selection, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Item]:
    """The wanted records of a log in order, and the damaged parts between them.

    Reading stops at a torn tail, where the broker would end the log.

    Args:
        log: An open log.
        selection: The wanted records.
        progress: Called with the number of bytes that were read or skipped.
    """
    extents = log.extents()
    for number, extent in enumerate(extents):
        after = extents[number + 1] if number + 1 < len(extents) else None
        if extent.start >= selection.end:
            return
        # Times in a log never decrease, so the next file's first record bounds the times in this.
        until_ms = log.first_ms(after) if after is not None else None
        from_ms = log.first_ms(extent)
        is_early = until_ms is not None and until_ms < selection.since_ms
        is_late = from_ms is not None and from_ms > selection.until_ms
        if extent.end <= selection.start or is_early or is_late:
            progress(extent.end - extent.start)
            continue
        reached = extent.start
        for piece in log.pieces(extent, max(extent.start, selection.start)):
            if piece.position >= selection.end:
                return
            yield from _items(log, piece, selection)
            progress(piece.end - reached)
            reached = piece.end
            if isinstance(piece, Gap) and piece.is_torn:
                return


def _items(log: LogReader, piece: Piece, selection: Selection) -> Iterator[Item]:
    if isinstance(piece, Gap):
        yield piece
        return
    try:
        for found, position, data in piece.found():
            item = _log_record(log, found, position, len(data))._replace(epoch=piece.epoch)
            if selection.wants(item):
                yield item
    except CorruptRecord as error:
        yield Broken(error.position, piece.end, error.reason)


def _log_record(log: LogReader, found: Found, position: int, size: int) -> LogRecord:
    if isinstance(found, Decision):
        half = log.record_at(found.half_position)
        record = None if half is None else half[0]
        topic, queue = ("", 0) if record is None else (record.topic, record.queue_id)
        return LogRecord(
            RecordKind.DECISION, position, size, topic, queue, found.queue_offset,
            found.decided_ms, record, found,
        )  # fmt: skip
    if isinstance(found, AcceptedLoss):
        return LogRecord(
            RecordKind.LOSS, position, size, "", 0, _NO_OFFSET, found.accepted_ms, None, None, found
        )
    kind, topic, queue, offset = _place(found)
    return LogRecord(kind, position, size, topic, queue, offset, found.stored_ms, found, None)


def _place(found: Record) -> tuple[RecordKind, str, int, int]:
    if found.sys_flag & TYPE_BITS == PREPARED:
        return RecordKind.HALF, found.topic, found.queue_id, _NO_OFFSET
    if found.topic not in WAITING_TOPICS:
        return RecordKind.MESSAGE, found.topic, found.queue_id, found.queue_offset
    if found.topic == WHEEL_TOPIC and found.queue_id == WHEEL_LINES:
        return RecordKind.RECALL, found.topic, found.queue_id, found.queue_offset
    return RecordKind.DELAYED, *found.real_place, _NO_OFFSET


def committed_message(log: LogReader, found: LogRecord) -> LogRecord | None:
    """The message that a decision put into a queue, as consumers read it.

    ``None`` if the decision did not put it into a queue, or the half message cannot be read.
    """
    decision = found.decision
    if decision is None or decision.queue_offset < 0:
        return None
    half = log.record_at(decision.half_position)
    if half is None:
        return None
    _, data = half
    record, _ = records.unpack(
        records.committed(
            data, decision.queue_offset, found.position, decision.decided_ms, decision.half_position
        )
    )
    return found._replace(kind=RecordKind.MESSAGE, record=record, decision=None)
