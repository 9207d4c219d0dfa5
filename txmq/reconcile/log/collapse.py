"""Records of the log become one row per message, with its decision; pure.

The records come in the order of the log. A half message is held until it is decided, so memory
grows with the undecided messages and not with the log. A part of a log can be collapsed by
itself: records about earlier parts are left for :meth:`Collapse.join`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from txmq.protocol import properties
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import Record
from txmq.protocol.span import AcceptedLoss, Decision, DecisionKind, DecisionSource, Found
from txmq.protocol.topics import DLQ, RETRY, WAITING_TOPICS
from txmq.reconcile.log.flows import FailureRow, Flows, MessageRow, printable_text, real_place_of
from txmq.reconcile.rules import DayWindow

__all__ = ["Collapse", "HalfOf", "OpenEnds"]

_TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)
_PREPARED: Final = int(SysFlag.PREPARED)
_COMMITTED: Final = int(SysFlag.COMMITTED)

_STATES: Final = {kind: kind.name.lower() for kind in DecisionKind}
_SOURCES: Final = {source: source.name.lower() for source in DecisionSource}
_RECALLED_ID: Final = "TIMER_DEL_UNIQKEY"

HalfOf: TypeAlias = Callable[[Decision], Record | None]
"""Reads the half message of a decision from before the log; ``None`` if it was deleted."""


class OpenEnds(NamedTuple):
    """The open messages at the end of a part of the log, and records about earlier parts."""

    held: dict[int, MessageRow | None]
    waiting: dict[int, MessageRow]
    orphans: list[Callable[[Collapse], None]]
    """Each applies a record to the parts before it."""


class Collapse:
    """Collapses the records of a log, or of a part of it.

    Args:
        flows: The messages that count.
        window: Messages stored or decided in it have a row. Later decisions are included too,
            except on messages parked in it.
        half_of: Reads half messages from before the log; left out for a part that others precede.
    """

    def __init__(self, flows: Flows, window: DayWindow, half_of: HalfOf | None = None) -> None:
        self.messages: list[MessageRow] = []
        """Rows that will not change any more; the caller may write them and clear the list."""
        self.failures: list[FailureRow] = []
        """Rows of failures; the last one of each group and message gives its state."""
        self.gone = 0
        """The number of the window's decisions on half messages whose file was deleted: they
        have no row."""
        self._flows = flows
        self._half_of = half_of
        self._start_ms, self._end_ms = window
        self._held: dict[int, MessageRow | None] = {}
        """Undecided and parked half messages, by position; those that do not count have no row."""
        self._waiting: dict[int, MessageRow] = {}
        self._waiting_by_id: dict[str, set[int]] = {}
        self._copied: dict[int, Decision] = {}
        """Decisions whose copies come next, by the position of the half message."""
        self._before: set[int] = set()
        """The positions of half messages from before the log, which one decision ends."""
        self._orphans: list[Callable[[Collapse], None]] = []

    # Records

    def take(self, found: Iterable[Found]) -> None:
        """Take the next records."""
        for item in found:
            if isinstance(item, Decision):
                self._take_decision(item)
                continue
            if isinstance(item, AcceptedLoss):
                # It names missing offsets, not their messages; each of these becomes a break.
                continue
            kind = item.sys_flag & _TYPE_BITS
            if kind == _PREPARED:
                self._take_half(item)
            elif kind == _COMMITTED:
                self._take_copy(item)
            else:
                self._take_plain(item)

    def _take_half(self, record: Record) -> None:
        row = self._flows.message(record, "prepared") if record.stored_ms < self._end_ms else None
        if row is not None:
            row.queue_offset = None  # That offset is in the queue of half messages.
        self._held[record.position] = row

    def _take_decision(self, decision: Decision) -> None:
        if decision.kind is DecisionKind.COMMITTED and decision.queue_offset < 0:
            self._copied[decision.half_position] = decision
        elif not self._decide(decision):
            self._decide_earlier(decision, None)

    def _take_copy(self, record: Record) -> None:
        decision = self._copied.pop(record.prepared_position, None)
        if decision is None:
            return
        decision = decision._replace(queue_offset=record.queue_offset)
        if not self._decide(decision):
            row = self._flows.message(record, "prepared")
            if row is not None:
                self._decide_earlier(decision, row)

    def _take_plain(self, record: Record) -> None:
        topic = record.topic
        if topic in WAITING_TOPICS:
            self._take_waiting(record)
        elif topic.startswith(RETRY):
            self._fail(record, topic.removeprefix(RETRY), "retrying")
        elif topic.startswith(DLQ):
            self._fail(record, topic.removeprefix(DLQ), "dead")
        elif record.prepared_position or self._is_in(record.stored_ms):
            row = self._flows.message(record, "sent")
            if row is not None and record.prepared_position:
                self._arrive(record.prepared_position, row)
            else:
                self._keep(row)

    def _take_waiting(self, record: Record) -> None:
        recalled = properties.find(record.properties, _RECALLED_ID)
        if recalled is not None:
            self._recall(printable_text(recalled), record.stored_ms)
            return
        topic, queue = real_place_of(record)
        if topic.startswith(RETRY):
            self._fail(record, topic.removeprefix(RETRY), "retrying")
            return
        row = self._flows.message(record, "sent", topic) if self._is_in(record.stored_ms) else None
        if row is not None:
            row.queue, row.queue_offset = queue, None
            self._wait(record.position, row)

    def _fail(self, record: Record, group: str, state: str) -> None:
        if record.stored_ms >= self._start_ms:
            row = self._flows.failure(record, group, state)
            if row is not None:
                self.failures.append(row)

    # Decisions, arrivals and recalls

    def _decide(self, decision: Decision) -> bool:
        """Apply a decision; returns whether its half message is known."""
        at = decision.half_position
        if at not in self._held:
            return False
        row = self._held[at]
        is_later = decision.decided_ms >= self._end_ms
        # At the end of the day it was still parked; later decisions do not count.
        if row is not None and not (is_later and self._is_in(row.decided_ms)):
            row.state = _STATES[decision.kind]
            row.decided_ms = decision.decided_ms
            row.decided_by = _SOURCES[decision.source]
            row.reason = printable_text(decision.reason) if decision.reason else None
            if decision.kind is DecisionKind.COMMITTED:
                row.queue_offset = decision.queue_offset
        if decision.kind is not DecisionKind.PARKED:
            del self._held[at]
            self._keep(row)
        return True

    def _decide_earlier(self, decision: Decision, copy: MessageRow | None) -> None:
        """Apply a decision on a half message of an earlier part, or from before the log.

        Args:
            decision: The decision.
            copy: The committed message, if the decision made a copy of it.
        """
        if self._decide(decision):
            return
        if self._half_of is None:
            again = partial(Collapse._decide_earlier, decision=decision, copy=copy)
            self._orphans.append(again)
            return
        if not self._is_in(decision.decided_ms):
            return
        record = self._half_of(decision)
        row = copy if record is None else self._flows.message(record, "prepared")
        if row is None:
            self.gone += record is None
            return
        if record is None:
            # It was stored before all records that were read.
            row.stored_ms = min(row.stored_ms, self._start_ms - 1)
            row.position = decision.half_position
        row.queue_offset = None
        if row.position not in self._before:
            self._before.add(row.position)
            self._held[row.position] = row
            self._decide(decision._replace(half_position=row.position))

    def _wait(self, position: int, row: MessageRow) -> None:
        self._waiting[position] = row
        self._waiting_by_id.setdefault(row.id, set()).add(position)

    def _leave(self, position: int) -> MessageRow | None:
        row = self._waiting.pop(position, None)
        if row is not None:
            same = self._waiting_by_id[row.id]
            same.discard(position)
            if not same:
                del self._waiting_by_id[row.id]
        return row

    def _arrive(self, waited_at: int, row: MessageRow) -> None:
        waited = self._leave(waited_at)
        if waited is not None:
            if row.stored_ms < self._end_ms:
                waited.queue, waited.queue_offset = row.queue, row.queue_offset
            self._keep(waited)
        elif self._half_of is None:
            self._orphans.append(partial(Collapse._arrive, waited_at=waited_at, row=row))
        else:
            self._keep(row)

    def _recall(self, id_: str, at_ms: int) -> None:
        positions = self._waiting_by_id.get(id_)
        if positions is None:
            if self._half_of is None:
                self._orphans.append(partial(Collapse._recall, id_=id_, at_ms=at_ms))
            return
        for position in sorted(positions):
            row = self._leave(position)
            assert row is not None, "every waiting message is in both indexes"
            if at_ms < self._end_ms:  # A later recall does not count.
                row.state, row.decided_ms, row.decided_by = "rolled_back", at_ms, "producer"
            self._keep(row)

    def _keep(self, row: MessageRow | None) -> None:
        if row is not None and (self._is_in(row.stored_ms) or self._is_in(row.decided_ms)):
            self.messages.append(row)

    def _is_in(self, moment_ms: int | None) -> bool:
        return moment_ms is not None and self._start_ms <= moment_ms < self._end_ms

    # Parts

    def open_ends(self) -> OpenEnds:
        """The state that the next parts need from this one."""
        return OpenEnds(self._held, self._waiting, self._orphans)

    def join(self, later: OpenEnds) -> None:
        """Apply the orphans of the next part, and take over its open messages."""
        for orphan in later.orphans:
            orphan(self)
        self._held |= later.held
        for position, row in later.waiting.items():
            self._wait(position, row)

    def finish(self) -> None:
        """End the log: undecided messages have a row too."""
        for row in (*self._held.values(), *self._waiting.values()):
            self._keep(row)
        self._held.clear()
        self._waiting.clear()
