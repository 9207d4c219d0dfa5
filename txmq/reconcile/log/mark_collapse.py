"""The log of a broker that only marks half messages as done, as Apache RocketMQ does; pure.

An op record there names the half message by its offset, and neither the decision nor who made it.
The decision follows from what the broker keeps: a half message with a visible message of the same
id is committed, and one with a mark and no such message is rolled back. The broker writes the
visible message before the mark. When it checks a producer, it writes the half message again; the
id shows that both are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from txmq.protocol import properties
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import Record
from txmq.protocol.span import Found
from txmq.protocol.topics import DLQ, HALF_TOPIC, OP_TOPIC, PARKED_TOPIC, RETRY, WAITING_TOPICS
from txmq.reconcile.log.collapse import (
    Collapse,
    EarlierMark,
    EarlierParking,
    EarlierTransaction,
    HalfAt,
    OpenEnds,
)
from txmq.reconcile.log.flows import Flows, MessageRow
from txmq.reconcile.log.pulled_records import half_of
from txmq.reconcile.rules import DayWindow

__all__ = ["MarkCollapse"]

_TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)
_COMMITTED: Final = int(SysFlag.COMMITTED)
_OFFSET_DIGITS_MAX: Final = 19

_Earlier: TypeAlias = EarlierMark | EarlierParking | EarlierTransaction


class MarkCollapse(Collapse):
    """Collapses pulled records in the order of the log, or a part of them.

    A half message of an earlier part is known by its offset in the half topic, so ``half_at`` of
    :meth:`join` takes offsets.
    """

    def __init__(self, flows: Flows, window: DayWindow) -> None:
        super().__init__(flows, window)
        self._marked: dict[int, int] = {}
        """The positions of undecided half messages by their offsets in the half topic."""
        self._by_id: dict[str, int] = {}
        """The positions of undecided half messages by their ids."""
        self._rewritten: set[str] = set()
        """The ids of half messages of which this part may have only a later copy."""
        self._decided: set[str] = set()
        """The ids of decided messages whose half message was not read."""

    def take(self, found: Iterable[Found]) -> None:
        """Take the next records."""
        for item in found:
            assert isinstance(item, Record), "only a txmq broker's decisions are decoded"
            topic = item.topic
            if topic == HALF_TOPIC:
                self._take_pulled_half(item)
            elif topic == OP_TOPIC:
                for offset in _offsets_in(item.body):
                    self._settle(EarlierMark(offset, item.stored_ms))
            elif topic == PARKED_TOPIC:
                row = self._flows.message(half_of(item), "parked")
                if row is not None:
                    self._settle(EarlierParking(row.id, item.stored_ms))
            elif item.sys_flag & _TYPE_BITS == _COMMITTED and not topic.startswith((RETRY, DLQ)):
                self._take_visible(item)
            else:
                self._take_plain(item)

    def _take_pulled_half(self, record: Record) -> None:
        if record.stored_ms >= self._end_ms:
            return
        row = self._flows.message(half_of(record), "prepared")
        if row is None:
            return
        row.queue_offset = None
        if row.id not in self._by_id:
            self._hold(row)
            if properties.find(record.properties, properties.CHECK_TIMES) is not None:
                self._rewritten.add(row.id)
        self._marked[record.queue_offset] = self._by_id[row.id]

    def _take_visible(self, record: Record) -> None:
        # A delayed message counts once it has left the topic in which it waits: the copy does not
        # name that place.
        if record.topic not in WAITING_TOPICS:
            row = self._flows.message(record, "committed")
            if row is not None:
                row.decided_ms = row.stored_ms
                self._settle(EarlierTransaction(row))

    def _wait(self, position: int, row: MessageRow) -> None:
        """Ignore a message that waits, as in :meth:`_take_visible`."""

    def _hold(self, row: MessageRow) -> None:
        self._held[row.position] = row
        self._by_id[row.id] = row.position

    # Decisions

    def _settle(self, earlier: _Earlier) -> None:
        """Apply what happened to a half message; keep it for :meth:`join` if that is unknown."""
        if not self._apply(earlier):
            self._orphans.append(earlier)

    def _apply(self, earlier: _Earlier) -> bool:
        if isinstance(earlier, EarlierMark):
            at = self._marked.pop(earlier.half_offset, None)
        else:
            id_ = earlier.id if isinstance(earlier, EarlierParking) else earlier.row.id
            at = self._by_id.get(id_)
        if at is None:
            return False
        row = self._held.get(at)
        if row is None:
            return True  # It is decided already, so this is only its mark.
        if isinstance(earlier, EarlierParking):
            row.state, row.decided_ms, row.decided_by = "parked", earlier.at_ms, "broker"
            return True
        done = earlier.row if isinstance(earlier, EarlierTransaction) else None
        at_ms = earlier.at_ms if isinstance(earlier, EarlierMark) else earlier.row.decided_ms
        # At the end of the day it was still parked; later decisions do not count.
        if not (at_ms is not None and at_ms >= self._end_ms and self._is_in(row.decided_ms)):
            row.state = "rolled_back" if done is None else done.state
            row.decided_ms, row.decided_by = at_ms, None
            if done is not None:
                row.queue, row.queue_offset = done.queue, done.queue_offset
        del self._held[at], self._by_id[row.id]
        if row.id in self._rewritten:
            self._orphans.append(EarlierTransaction(row))
        else:
            self._keep(row)
        return True

    # Parts

    def open_ends(self) -> OpenEnds:
        """The state that the next parts need from this one."""
        return super().open_ends()._replace(marked=self._marked)

    def join(self, later: OpenEnds, half_at: HalfAt) -> None:
        """Resolve the orphans of the next part, and take over its open messages.

        Args:
            later: The open ends of the next part.
            half_at: Reads half messages from before the first part, by their offsets in the half
                topic.
        """
        for earlier in later.orphans:
            assert isinstance(earlier, EarlierMark | EarlierParking | EarlierTransaction)
            if not self._apply(earlier):
                self._apply_unknown(earlier, half_at)
        for row in later.held.values():
            if row.id not in self._by_id:
                self._hold(row)
        for offset, position in later.marked.items():
            row_or_none = later.held.get(position)
            if row_or_none is not None:
                self._marked[offset] = self._by_id[row_or_none.id]

    def _apply_unknown(self, earlier: _Earlier, half_at: HalfAt) -> None:
        """Apply what happened to a half message that was not read."""
        if isinstance(earlier, EarlierTransaction):
            self._decided.add(earlier.row.id)
            self._keep(earlier.row)
        elif isinstance(earlier, EarlierMark) and self._is_in(earlier.at_ms):
            record = half_at(earlier.half_offset)
            row = None if record is None else self._flows.message(record, "rolled_back")
            if row is not None and row.id not in self._decided:
                row.queue_offset, row.decided_ms = None, earlier.at_ms
                self._keep(row)


def _offsets_in(body: bytes) -> list[int]:
    """The offsets in an op record: one, or several with commas."""
    words = body.decode("ascii", "replace").split(",")
    return [int(word) for word in words if word.isdecimal() and len(word) <= _OFFSET_DIGITS_MAX]
