"""Records of the log become one row per message, with its decision; pure.

The records come in the order of the log. A half message is held until it is decided, so memory
grows with the undecided messages and not with the log. A part of a log can be collapsed by
itself: records about earlier parts are left for :meth:`Collapse.join`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txmq.printable import printable
from txmq.protocol import properties
from txmq.protocol.record import COMMITTED, PREPARED, TYPE_BITS, Record
from txmq.protocol.span import AcceptedLoss, Decision, DecisionKind, DecisionSource, Found
from txmq.protocol.topics import DLQ, RETRY, WAITING_TOPICS
from txmq.reconcile.extract.books import Piece
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.log.files import STRETCH_BYTES
from txmq.reconcile.log.flows import facts_of
from txmq.reconcile.rules import DayWindow, Flow, LogRules, Money
from txmq.reconcile.tables import FAILURES, MESSAGES, FailureRow, MessageRow, TableSchema

__all__ = ["RECORDS_A_BATCH", "Collapse", "LogRequest", "rows_at"]

RECORDS_A_BATCH: Final = 16 * 1024
"""The number of records after which a reader gives the rows that will not change any more."""

_STATES: Final = {kind: kind.name.lower() for kind in DecisionKind}
_SOURCES: Final = {source: source.name.lower() for source in DecisionSource}
_REASON_CHARS_MAX: Final = 1_020
_RECALLED_ID: Final = "TIMER_DEL_UNIQKEY"
_BITS: Final = {"position": 48, "queue": 16}
"""The bits of a column below the broker's number."""

HalfOf: TypeAlias = Callable[[Decision], Record | None]
"""Reads the half message of a decision from before the log; ``None`` if it was deleted."""


class LogRequest(NamedTuple):
    """The logs to read, and the window of the day."""

    log: LogRules
    money: Mapping[str, Money]
    window: DayWindow
    stretch: int = STRETCH_BYTES
    """The size of a stretch of a log in a directory."""


def rows_at(broker: int, table: TableSchema, rows: Sequence[Any]) -> Piece:
    """Rows of the log of the broker with a number.

    A position and a queue are unique at one broker only, so its number is part of both, above their
    own bits: everything after the extract compares plain numbers. It must be the same every night,
    since open items carry their rows into the next day.
    """
    schema, columns = arrow_schema(table), []
    for name, type_ in zip(schema.names, schema.types, strict=True):
        column = pa.array(map(attrgetter(name), rows), type_, size=len(rows))
        if broker and name in _BITS:
            column = pc.add(column, pa.scalar(broker << _BITS[name], type_))
        columns.append(column)
    return table, pa.RecordBatch.from_arrays(columns, schema=schema)


class Collapse:
    """Collapses the records of the log of a broker, or of a part of it.

    Messages that were stored or decided in the window of the day have a row. Later decisions are
    included too, except on messages parked in it.

    Args:
        request: The messages that count.
        broker: The broker's number.
        half_of: Reads half messages from before the log; left out for a part that others precede.
        tells_who: False if the broker does not tell who decided a transaction.
    """

    def __init__(
        self,
        request: LogRequest,
        broker: int,
        half_of: HalfOf | None = None,
        *,
        tells_who: bool = True,
    ) -> None:
        self.messages: list[MessageRow] = []
        """Rows that will not change any more."""
        self.failures: list[FailureRow] = []
        """Rows of failures; the last one of each group and message gives its state."""
        self._flows, self._money = request.log.flow, request.money
        self._start_ms, self._end_ms = request.window
        self._broker = broker
        self._half_of = half_of
        self._tells_who = tells_who
        self.open: dict[int, MessageRow | None] = {}
        """Undecided, parked and delayed messages, by position; those that do not count have no
        row."""
        self.recalled: dict[str, tuple[int, int]] = {}
        """The position and the time of the last recall of each id."""
        self._copied: dict[int, Decision] = {}
        """Decisions whose copies come next, by the position of the half message."""
        self._before: set[int] = set()
        """The positions of half messages from before the log, which one decision ends."""
        self.orphans: list[Callable[[Collapse], None]] = []
        """Each applies a record to the parts before this one."""

    def take_rows(self) -> list[Piece]:
        """Take out the rows that will not change any more."""
        found = [
            rows_at(self._broker, MESSAGES, self.messages),
            rows_at(self._broker, FAILURES, self.failures),
        ]
        self.messages.clear()
        self.failures.clear()
        return found

    def take(self, found: Found) -> None:
        """Take the next record."""
        if isinstance(found, AcceptedLoss):
            # It names missing offsets, not their messages; each of these becomes a break.
            return
        if isinstance(found, Decision):
            if found.kind is DecisionKind.COMMITTED and found.queue_offset < 0:
                self._copied[found.half_position] = found
            else:
                self._decide(found)
        elif (kind := found.sys_flag & TYPE_BITS) == PREPARED:
            row = self._message(found, "prepared") if found.stored_ms < self._end_ms else None
            self.open[found.position] = row
        elif kind == COMMITTED:
            self._take_copy(found)
        else:
            self._take_plain(found)

    def _take_copy(self, record: Record) -> None:
        decision = self._copied.pop(record.prepared_position, None)
        if decision is None:
            return
        is_known = decision.half_position in self.open
        copy = None if is_known else self._message(record, "prepared")
        if is_known or copy is not None:
            self._decide(decision._replace(queue_offset=record.queue_offset), copy)

    def _take_plain(self, record: Record) -> None:
        topic, queue, is_waiting = record.topic, record.queue_id, record.topic in WAITING_TOPICS
        if is_waiting:
            recalled = properties.find(record.properties, _RECALLED_ID)
            if recalled is not None:
                if self._is_in(record.stored_ms):  # A later recall does not count.
                    self.recalled[printable(recalled)] = record.position, record.stored_ms
                return
            topic, queue = record.real_place
        if topic.startswith((RETRY, DLQ)):
            self._fail(record, topic)
        elif is_waiting and self._is_in(record.stored_ms):
            row = self._message(record, "sent", topic)
            if row is not None:
                row.queue, row.queue_offset = queue, None
                self.open[record.position] = row
        elif not is_waiting and (record.prepared_position or self._is_in(record.stored_ms)):
            row = self._message(record, "sent")
            if row is not None and record.prepared_position:
                self._arrive(record.prepared_position, row)
            else:
                self._keep(row)

    def _fail(self, record: Record, topic: str) -> None:
        state, prefix = ("retrying", RETRY) if topic.startswith(RETRY) else ("dead", DLQ)
        text = record.properties
        flow = self._flow(properties.find(text, properties.RETRY_TOPIC) or "", text)
        if flow is None or record.stored_ms < self._start_ms:
            return
        key, *_ = facts_of(record, flow, self._money)
        reason = properties.find(text, properties.DEAD_REASON) if state == "dead" else None
        row = FailureRow(
            key, _id_of(record), topic.removeprefix(prefix), state, record.attempts,
            record.stored_ms, _shortened(reason), record.position,
        )  # fmt: skip
        self.failures.append(row)

    def _message(self, record: Record, state: str, topic: str = "") -> MessageRow | None:
        """The row of a message, ``None`` without a flow; ``topic`` if it is stored in another."""
        topic = topic or record.topic
        flow = self._flow(topic, record.properties)
        if flow is None:
            return None
        key, payer, payee, amount, currency, problem = facts_of(record, flow, self._money)
        # The offset of a half message is in the queue of half messages.
        offset = None if state == "prepared" else record.queue_offset
        return MessageRow(
            key, _id_of(record), payer, payee, amount, currency, state, topic, record.queue_id,
            offset, record.stored_ms, None, None, None, record.position, problem,
        )  # fmt: skip

    def _flow(self, topic: str, text: str) -> Flow | None:
        for flow in (one for one in self._flows if one.topic == topic):
            if not flow.tags or properties.find(text, properties.TAGS) in flow.tags:
                return flow
        return None

    def _decide(self, decision: Decision, copy: MessageRow | None = None) -> None:
        """Apply a decision; ``copy`` is the committed message if the decision made a copy of it."""
        at = decision.half_position
        if at not in self.open:
            if self._half_of is None:
                self.orphans.append(partial(Collapse._decide, decision=decision, copy=copy))
                return
            if not self._is_in(decision.decided_ms):
                return
            record = self._half_of(decision)
            earlier = copy if record is None else self._message(record, "prepared")
            if earlier is None:
                return
            if record is None:
                # The copy stands in: it was stored before all records that were read.
                earlier.stored_ms = min(earlier.stored_ms, self._start_ms - 1)
                earlier.position = at
            if earlier.position in self._before:
                return
            at = earlier.position
            self._before.add(at)
            self.open[at] = earlier
        row = self.open[at]
        is_later = decision.decided_ms >= self._end_ms
        # At the end of the day it was still parked; later decisions do not count.
        if row is not None and not (is_later and self._is_in(row.decided_ms)):
            row.state = _STATES[decision.kind]
            row.decided_ms = decision.decided_ms
            row.decided_by = _SOURCES[decision.source]
            row.reason = _shortened(decision.reason)
            if decision.kind is DecisionKind.COMMITTED:
                row.queue_offset = decision.queue_offset
        if decision.kind is not DecisionKind.PARKED:
            del self.open[at]
            self._keep(row)

    def _arrive(self, waited_at: int, row: MessageRow) -> None:
        waited = self.open.pop(waited_at, None)
        if waited is not None:
            if row.stored_ms < self._end_ms:
                waited.queue, waited.queue_offset = row.queue, row.queue_offset
            self._keep(waited)
        elif self._half_of is None:
            self.orphans.append(partial(Collapse._arrive, waited_at=waited_at, row=row))
        else:
            self._keep(row)

    def _keep(self, row: MessageRow | None) -> None:
        if row is not None and (self._is_in(row.stored_ms) or self._is_in(row.decided_ms)):
            if not self._tells_who and row.state != "parked":
                row.decided_by = None
            self.messages.append(row)

    def _is_in(self, moment_ms: int | None) -> bool:
        return moment_ms is not None and self._start_ms <= moment_ms < self._end_ms

    def join(self, later: Collapse) -> None:
        """Apply the orphans of the next part, and take over its open messages."""
        for orphan in later.orphans:
            orphan(self)
        self.open |= later.open
        self.recalled |= later.recalled

    def finish(self) -> None:
        """End the log: messages that are undecided, wait or were recalled have a row too."""
        for position, row in self.open.items():
            if row is not None:
                recalled_at, moment_ms = self.recalled.get(row.id, (-1, None))
                if row.state == "sent" and recalled_at > position:
                    row.state, row.decided_ms, row.decided_by = "rolled_back", moment_ms, "producer"
                self._keep(row)
        self.open.clear()


def _id_of(record: Record) -> str:
    text = record.properties
    unique = properties.find(text, properties.UNIQUE_KEY)
    return printable(unique or properties.find(text, properties.ORIGIN_ID) or record.offset_id)


def _shortened(reason: str | None) -> str | None:
    return printable(reason[:_REASON_CHARS_MAX]) if reason else None
