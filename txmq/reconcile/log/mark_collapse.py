"""The log of a broker that only marks half messages as done, as Apache RocketMQ does; pure.

An op record there names half messages by their offsets, but no decision and nobody who made it.
The decision follows from what the broker keeps: a half message with a visible message of the same
id is committed, and one with a mark and no such message is rolled back. The broker writes the
visible message before the mark. When it checks a producer, it writes the half message again; the
id shows that both are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from txmq.protocol.codes import SysFlag
from txmq.protocol.record import Record
from txmq.protocol.span import Found
from txmq.protocol.topics import DLQ, HALF_TOPIC, OP_TOPIC, PARKED_TOPIC, RETRY, WAITING_TOPICS
from txmq.reconcile.log.collapse import Collapse, HalfAt, OpenEnds
from txmq.reconcile.log.flows import Flows, MessageRow
from txmq.reconcile.log.pulled_records import half_of
from txmq.reconcile.rules import DayWindow

__all__ = ["MarkCollapse"]

_TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)
_COMMITTED: Final = int(SysFlag.COMMITTED)
_OTHERS: Final = (RETRY, DLQ, *WAITING_TOPICS)
"""In these topics a message may still have the flag of a committed one."""
_DIGITS_MAX: Final = 18


class MarkCollapse(Collapse):
    """Collapses all pulled records of a broker, in the order of its log."""

    def __init__(self, flows: Flows, window: DayWindow) -> None:
        super().__init__(flows, window)
        self._marked: dict[int, int] = {}
        """The positions of held half messages by their offsets in the half topic."""
        self._by_id: dict[str, int] = {}
        """The positions of held half messages by their ids."""
        self._visible: set[str] = set()
        """The ids of visible messages whose half message was not read."""
        self._earlier: dict[int, int] = {}
        """The times of marks on half messages that were not read, by offset."""

    def take(self, found: Iterable[Found]) -> None:
        """Take the next records."""
        for item in found:
            assert isinstance(item, Record), "only a txmq broker's decisions are decoded"
            topic = item.topic
            if topic == HALF_TOPIC:
                self._take_pulled_half(item)
            elif topic == OP_TOPIC:
                for offset in _offsets_in(item.body):
                    self._mark(offset, item.stored_ms)
            elif topic == PARKED_TOPIC:
                row = self._flows.message(half_of(item), "parked")
                held = None if row is None else self._held.get(self._by_id.get(row.id, -1))
                if held is not None:
                    held.state, held.decided_ms, held.decided_by = (
                        "parked",
                        item.stored_ms,
                        "broker",
                    )
            elif topic.startswith((RETRY, DLQ, *WAITING_TOPICS)):
                self._take_plain(item)
            elif item.sys_flag & _TYPE_BITS == _COMMITTED:
                self._take_visible(item)
            else:
                self._take_plain(item)

    def _take_pulled_half(self, record: Record) -> None:
        row = self._flows.message(half_of(record), "prepared")
        if row is None or row.stored_ms >= self._end_ms:
            return
        if row.id not in self._by_id:
            row.queue_offset = None
            self._held[row.position] = row
            self._by_id[row.id] = row.position
        self._marked[record.queue_offset] = self._by_id[row.id]

    def _take_visible(self, record: Record) -> None:
        row = self._flows.message(record, "committed")
        if row is None:
            return
        row.decided_ms = row.stored_ms
        held = self._held.get(self._by_id.get(row.id, -1))
        if held is None:
            self._visible.add(row.id)
            self._keep(row)
            return
        held.queue = row.queue
        self._end(held, "committed", row.stored_ms, row.queue_offset)

    def _mark(self, offset: int, at_ms: int) -> None:
        if offset not in self._marked:
            self._earlier[offset] = at_ms
            return
        held = self._held.get(self._marked.pop(offset))
        if held is not None:  # Otherwise its message is visible.
            self._end(held, "rolled_back", at_ms, None)

    def _end(self, row: MessageRow, state: str, at_ms: int, offset: int | None) -> None:
        # If it was still parked at the end of the day, later decisions do not count.
        if at_ms < self._end_ms or not self._is_in(row.decided_ms):
            row.state, row.decided_ms, row.decided_by = state, at_ms, None
            row.queue_offset = offset
        del self._held[row.position], self._by_id[row.id]
        self._keep(row)

    def _wait(self, position: int, row: MessageRow) -> None:
        """Ignore a delayed message: its delivery, which does not name this place, is its row."""

    def join(self, later: OpenEnds, half_at: HalfAt) -> None:
        """Resolve the marks on half messages from before the records.

        Args:
            later: Nothing; this class takes all records by itself.
            half_at: Reads half messages by their offsets in the half topic.
        """
        del later
        for offset, at_ms in self._earlier.items():
            record = half_at(offset) if self._is_in(at_ms) else None
            row = None if record is None else self._flows.message(record, "rolled_back")
            if row is not None and row.id not in self._visible:
                row.queue_offset, row.decided_ms = None, at_ms
                self._keep(row)


def _offsets_in(body: bytes) -> list[int]:
    """The offsets in an op record: one, or several with commas."""
    words = body.decode("ascii", "replace").split(",")
    return [int(word) for word in words if word.isdecimal() and len(word) <= _DIGITS_MAX]
