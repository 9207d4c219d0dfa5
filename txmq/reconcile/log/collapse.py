"""Collapses the records of a log into one row per message, with its decision; pure.

The records come in the order of the log. A half message is held until it is decided, so memory
grows with the undecided messages and not with the log. A part of a log can be collapsed on its
own: records about earlier parts are left for :meth:`Collapse.join`.

Every sender can write anything into a body, so nothing here trusts it: a message that is not a
valid order becomes a row with a problem, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol import properties
from txmq.protocol.record import COMMITTED, PREPARED, TYPE_BITS, Record
from txmq.protocol.span import AcceptedLoss, Decision, DecisionKind, Found
from txmq.protocol.topics import DLQ, RETRY, WAITING_TOPICS
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.extract.books import Piece
from txmq.reconcile.extract.file_rows import value_at
from txmq.reconcile.log.files import STRETCH_BYTES
from txmq.reconcile.rules import Constant, DayWindow, Flow, LogRules, Money
from txmq.reconcile.tables import FAILURES, MESSAGES, FailureRow, MessageRow, TableSchema
from txmq.settings.loading import did_you_mean
from txmq.text import printable

__all__ = ["RECORDS_A_BATCH", "TEXT_CHARS_MAX", "Collapse", "LogRequest", "facts_of", "rows_at"]

RECORDS_A_BATCH: Final = 16 * 1024
"""The number of records after which a reader yields the rows that are final."""

_REASON_CHARS_MAX: Final = 1_020
_RECALLED_ID: Final = "TIMER_DEL_UNIQKEY"
_BITS: Final = {"position": 48, "queue": 16}
"""The bits of a column below the broker's number."""
TEXT_CHARS_MAX: Final = 4_096
"""The most characters of an id or an account: a body may have 4 MiB."""
_PROBLEM_CHARS_MAX: Final = 200
_LONG: Final = range(-(2**63), 2**63)
_DECODER: Final = msgspec.json.Decoder()
_EXACT_DECODER: Final = msgspec.json.Decoder(float_hook=Decimal)
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that not every table can hold."""
_MAJOR: Final = re.compile(r"-?[0-9]{1,16}(\.[0-9]{1,9})?")

HalfOf: TypeAlias = Callable[[Decision], Record | None]
"""Reads a decision's half message from before the log; gives ``None`` if it was deleted."""


class LogRequest(NamedTuple):
    """The logs to read, and the window of the day."""

    log: LogRules
    money: Mapping[str, Money]
    window: DayWindow
    stretch: int = STRETCH_BYTES
    """The size in bytes of a stretch of a log in a directory."""

    def check_names(self, where: str, topics: set[str], groups: set[str], remedy: str) -> None:
        """Check that the topics and groups of the flows exist; a retry topic proves its group.

        Raises:
            ReconcileRefused: A name does not exist. The message suggests the nearest one, and
                ``remedy``, whose ``{}`` stands for the kind of name.
        """
        groups = groups | {topic.removeprefix(RETRY) for topic in topics if topic.startswith(RETRY)}
        wanted = [("topic", flow.topic, topics) for flow in self.log.flow]
        wanted += [("group", flow.group, groups) for flow in self.log.flow if flow.group]
        for kind, name, known in wanted:
            if name not in known:
                hint, what_next = did_you_mean(name, known), remedy.format(kind)
                raise ReconcileRefused(f"the {where} has no {kind} {name!r}{hint}; {what_next}")


def rows_at(broker: int, table: TableSchema, rows: Sequence[Any]) -> Piece:
    """Rows of the log of the broker with this number.

    Positions and queues are unique only within a broker, so its number becomes their upper bits:
    everything after the extract compares plain numbers. The number must be the same every night,
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
    """Collapses the records of a broker's log, or of a part of it.

    Messages that were stored or decided in the day's window have a row. The row includes a later
    decision, except for a message that was parked in the window.

    Args:
        request: The messages that count.
        broker: The broker's number.
        half_of: Reads half messages from before the log; left out for a part that follows others.
        tells_who: False if the broker does not record who decided a transaction.
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
        """The rows that are final."""
        self.failures: list[FailureRow] = []
        """Rows of failures; the last one of each group and message gives its state."""
        self._flows, self._money = request.log.flow, request.money
        self._start_ms, self._end_ms = request.window
        self._broker = broker
        self._half_of = half_of
        self._tells_who = tells_who
        self.open: dict[int, MessageRow | None] = {}
        """Undecided, parked and delayed messages, by position; ``None`` for those that do not
        count."""
        self.recalled: dict[str, tuple[int, int]] = {}
        """The position and the time of the last recall of each id."""
        self._copied: dict[int, Decision] = {}
        """Decisions whose copies come next, by the position of the half message."""
        self._before: set[int] = set()
        """The positions of half messages from before the log that were already taken up."""
        self.orphans: list[Callable[[Collapse], None]] = []
        """Functions that each apply a record to an earlier part."""

    def take_rows(self) -> list[Piece]:
        """Take out the rows that are final."""
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
            # It names missing offsets, not their messages; each lost message becomes a break.
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

    def _take_delayed(self, record: Record, decision: Decision, topic: str, queue: int) -> None:
        """Take the message of a committed transaction that waits for its time."""
        is_known = decision.half_position in self.open
        copy = None if is_known else self._message(record, "prepared", topic)
        if copy is not None:
            copy.queue = queue
        if is_known or copy is not None:
            self._decide(decision, copy, record.position)

    def _take_plain(self, record: Record) -> None:
        topic, queue, is_waiting = record.topic, record.queue_id, record.topic in WAITING_TOPICS
        if is_waiting:
            recalled = properties.find(record.properties, _RECALLED_ID)
            if recalled is not None:
                if self._is_in(record.stored_ms):  # A later recall does not count.
                    self.recalled[printable(recalled)] = record.position, record.stored_ms
                return
            topic, queue = record.real_place
            if (decision := self._copied.pop(record.half_position, None)) is not None:
                self._take_delayed(record, decision, topic, queue)
                return
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
        """The row of a message; ``None`` if it belongs to no flow.

        ``topic`` is the message's own topic if it is stored in another one.
        """
        topic = topic or record.topic
        flow = self._flow(topic, record.properties)
        if flow is None:
            return None
        key, payer, payee, amount, currency, problem = facts_of(record, flow, self._money)
        # The offset of a half message belongs to the queue of the half topic.
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

    def _decide(
        self, decision: Decision, copy: MessageRow | None = None, waits_at: int | None = None
    ) -> None:
        """Apply a decision.

        Args:
            decision: The decision.
            copy: The committed message, if the decision made a copy of it.
            waits_at: Where this copy waits until it is delivered, if it is delayed.
        """
        at = decision.half_position
        if at not in self.open:
            if self._half_of is None:
                self.orphans.append(
                    partial(Collapse._decide, decision=decision, copy=copy, waits_at=waits_at)
                )
                return
            taken = self._take_up(decision, copy, self._half_of)
            if taken is None:
                return
            at = taken
        row = self.open[at]
        is_later = decision.decided_ms >= self._end_ms
        # At the end of the day it was still parked; later decisions do not count.
        if row is not None and not (is_later and self._is_in(row.decided_ms)):
            row.state = decision.kind.name.lower()
            row.decided_ms = decision.decided_ms
            row.decided_by = decision.source.name.lower()
            row.reason = _shortened(decision.reason)
            if decision.kind is DecisionKind.COMMITTED and waits_at is None:
                row.queue_offset = decision.queue_offset
        if waits_at is not None:
            self.open[waits_at] = self.open.pop(at)
        elif decision.kind is not DecisionKind.PARKED:
            del self.open[at]
            self._keep(row)

    def _take_up(self, decision: Decision, copy: MessageRow | None, half_of: HalfOf) -> int | None:
        """Open the half message from before the log that a decision is about; returns its position,
        or ``None`` if it does not count.
        """
        if not self._is_in(decision.decided_ms):
            return None
        record = half_of(decision)
        earlier = copy if record is None else self._message(record, "prepared")
        if earlier is None:
            return None
        if record is None:
            # The copy stands in for the half message, which is older than all records read.
            earlier.stored_ms = min(earlier.stored_ms, self._start_ms - 1)
            earlier.position = decision.half_position
        if earlier.position in self._before:
            return None
        at = earlier.position
        self._before.add(at)
        self.open[at] = earlier
        return at

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
        """End the log: undecided, waiting and recalled messages also get a row."""
        for position, row in self.open.items():
            if row is not None:
                recalled_at, moment_ms = self.recalled.get(row.id, (-1, None))
                if row.state in ("sent", "committed") and recalled_at > position:
                    row.state, row.decided_ms, row.decided_by = "rolled_back", moment_ms, "producer"
                self._keep(row)
        self.open.clear()


def _id_of(record: Record) -> str:
    text = record.properties
    unique = properties.find(text, properties.UNIQUE_KEY)
    return printable(unique or properties.find(text, properties.ORIGIN_ID) or record.offset_id)


def _shortened(reason: str | None) -> str | None:
    return printable(reason[:_REASON_CHARS_MAX]) if reason else None


_Facts: TypeAlias = tuple[str | None, str | None, str | None, int | None, str | None, str | None]


def facts_of(record: Record, flow: Flow, money: Mapping[str, Money]) -> _Facts:
    """Key, payer, payee, amount and currency in a message, and any problem with them.

    Raises:
        ConfigError: The package that decompresses its body is not installed.
    """
    problems: list[str] = []
    payer = payee = currency = None
    amount: Any = None
    body = _body(record, flow, problems)
    if body is not None and flow.key:
        named = value_at(body, flow.key)
        key = _text(named, flow.key, problems) or _own_key(record, []) or _cut(named)
    else:
        key = _own_key(record, problems)
        if key is None and not problems:
            problems.append("it has no key")
    if body is not None:
        payer = _text(value_at(body, flow.payer), flow.payer, problems)
        payee = _text(value_at(body, flow.payee), flow.payee, problems)
        amount = value_at(body, flow.amount)
        if flow.units == "major":
            given = flow.currency
            code = given.value if isinstance(given, Constant) else value_at(body, given)
            amount = _minor_units(amount, money.get(str(code), Money()))
        if type(amount) is not int or amount not in _LONG:
            problems.append(_why(flow.amount, amount, "whole number of minor units"))
            amount = None
        if isinstance(flow.currency, Constant):
            currency = flow.currency.value
        else:
            currency = _text(value_at(body, flow.currency), flow.currency, problems)
            if currency is not None and _CURRENCY.fullmatch(currency) is None:
                problems.append(_why(flow.currency, currency, "currency such as CNY"))
                currency = None
    if key is not None:
        key = f"{flow.namespace}/{key}"
    return key, payer, payee, amount, currency, "; ".join(problems)[:_PROBLEM_CHARS_MAX] or None


def _body(record: Record, flow: Flow, problems: list[str]) -> dict[str, Any] | None:
    decoder = _DECODER if flow.units == "minor" else _EXACT_DECODER
    try:
        body = decoder.decode(record.plain_body())
        if isinstance(body, dict):
            return body
        why = "its body is not a JSON object"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"its body is not JSON: {error}"
    except RemoteProtocolError as error:
        why = str(error)
    problems.append(properties.one_line(why, _PROBLEM_CHARS_MAX))
    return None


def _minor_units(amount: Any, money: Money) -> Any:
    """Convert a number in major units to minor units; another value becomes text or stays."""
    if not isinstance(amount, int | str | Decimal):
        return amount
    scaled = _MAJOR.fullmatch(str(amount)) and Decimal(amount).scaleb(money.digits)
    return int(scaled) if scaled is not None and scaled % 1 == 0 else str(amount)


def _own_key(record: Record, problems: list[str]) -> str | None:
    """The first of a message's keys; the others are for searches."""
    word, *_ = (properties.find(record.properties, properties.KEYS) or "").split(" ", 1)
    return (_text(word, "its key", problems) or _cut(word)) if word else None


def _text(found: Any, name: str, problems: list[str]) -> str | None:
    """A text unchanged, or a whole number as text; ``None`` for other values, with a problem."""
    if type(found) is int:
        found = str(found)
    if type(found) is str and found and _is_storable(found):
        if len(found) <= TEXT_CHARS_MAX:
            return found
        problems.append(f"{name} has {len(found):,} characters, more than {TEXT_CHARS_MAX:,}")
    else:
        problems.append(_why(name, found, "name or number"))
    return None


def _cut(key: Any) -> str | None:
    """The beginning of a text that is too long, with an end that keeps it from matching."""
    is_text = type(key) is str and key and _is_storable(key)
    return f"{key[:TEXT_CHARS_MAX]}…" if is_text else None


def _is_storable(text: str) -> bool:
    return text.isprintable() or _UNFIT.search(text) is None


def _why(path: str, found: Any, wanted: str) -> str:
    if found is None or found == "":
        return f"it has no {path}"
    return f"{path} is not a {wanted} but {properties.one_line(repr(found), 40)}"
