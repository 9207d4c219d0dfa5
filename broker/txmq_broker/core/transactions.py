"""Transactions at their broker: their states in one table, and the decisions on them.

ENDs, answers to checks and operators decide them. The table defines the allowed steps, but the log
has the final word: a transaction exists only if its half message does, and a step counts once its
marker is durable. Nothing here waits; the flusher makes staged steps durable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from txmq.errors import (
    CorruptRecord,
    IllegalOperation,
    InvalidParameter,
    NotFound,
    ShouldCommit,
    ShouldRollBack,
    TransactionFailed,
    TransactionGroupWrong,
)
from txmq.limits import MESSAGES_OF_TRANSACTION_MAX, SPAN_BYTES_MAX
from txmq.protocol.codes import SysFlag
from txmq.protocol.headers import EndTransaction, OtherHalf
from txmq.protocol.properties import id_in_transaction, xid_in
from txmq.protocol.span import DecisionKind, DecisionSource
from txmq.runtime.clock import Clock
from txmq.text import quantity
from txmq_broker.config import CheckBackSettings
from txmq_broker.core.schedule import Schedule
from txmq_broker.core.topics import Topics
from txmq_broker.store.half_store import HalfStore, NewDecision
from txmq_broker.store.pending_transactions import KEY_MASK, Half, transaction_key

__all__ = ["STEPS", "Event", "State", "Tally", "TransactionStatus", "Transactions", "diagram"]


log = logging.getLogger(__name__)


class State(Enum):
    """The state of a transaction."""

    __hash__ = object.__hash__  # Enum's own hash takes as long as the rest of a step.

    PREPARED = "prepared"
    PARKED = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Event(Enum):
    """An event that may change the state."""

    __hash__ = object.__hash__

    COMMIT = "END(commit)"
    ROLL_BACK = "END(rollback)"
    EXHAUSTED = "check_max checks without a decision"


STEPS: Final[Mapping[tuple[State, Event], State]] = {
    (State.PREPARED, Event.COMMIT): State.COMMITTED,
    (State.PREPARED, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.PREPARED, Event.EXHAUSTED): State.PARKED,
    (State.PARKED, Event.COMMIT): State.COMMITTED,
    (State.PARKED, Event.ROLL_BACK): State.ROLLED_BACK,
    # A repeated event changes nothing and is not an error.
    (State.PARKED, Event.EXHAUSTED): State.PARKED,
    (State.COMMITTED, Event.COMMIT): State.COMMITTED,
    (State.ROLLED_BACK, Event.ROLL_BACK): State.ROLLED_BACK,
}
"""All steps. A missing pair is a conflict: the first decision holds."""


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "stateDiagram-v2"
    yield "    [*] --> PREPARED: half message stored"
    for (state, event), target in STEPS.items():
        if target is not state:
            yield f"    {state.name} --> {target.name}: {event.value}"
    for state in State:
        if not any(was is state and now is not state for (was, _), now in STEPS.items()):
            yield f"    {state.name} --> [*]"


_PARKED, _PREPARED, _COMMIT = State.PARKED, State.PREPARED, Event.COMMIT
_COMMITTED, _ROLLED_BACK = DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK
_OPERATOR: Final = DecisionSource.OPERATOR
"""Names for the hot path, because looking up an enum member is slow."""

_KINDS: Final = {
    int(SysFlag.COMMITTED): _COMMITTED,
    int(SysFlag.ROLLED_BACK): _ROLLED_BACK,
}
"""The kinds of decision by their numbers in an END."""

_END_SOURCES: Final = (DecisionSource.PRODUCER, DecisionSource.CHECK)
"""The source of a decision, by whether the END answers a check."""

_COPIED_BYTES_MAX: Final = SPAN_BYTES_MAX // 2
"""The bytes of half messages that are decided together: their copies join what is staged already,
and followers receive the whole span in one frame.
"""

_SOURCES: Final = {
    DecisionSource.PRODUCER: "its producer",
    DecisionSource.CHECK: "a producer's answer to a check",
    DecisionSource.OPERATOR: "an operator",
    DecisionSource.BROKER: "the broker",
}
_STATES: Final = {
    DecisionKind.COMMITTED: State.COMMITTED,
    DecisionKind.ROLLED_BACK: State.ROLLED_BACK,
}


class TransactionStatus(msgspec.Struct, frozen=True, gc=False):
    """A transaction's state: open with its half message, or decided."""

    key: int
    state: State
    half: Half | None
    """The half message while the transaction is open."""
    group: str
    offset: int
    """The half message's offset in the half queue."""


@dataclass(slots=True)
class Tally:
    """Counters since the start."""

    prepared: int = 0
    committed: int = 0
    rolled_back: int = 0
    parked: int = 0
    forced: int = 0
    repeated: int = 0
    conflicts: int = 0
    checks_sent: int = 0
    checks_unknown: int = 0
    checks_unanswered: int = 0
    checks_lost: int = 0
    refused: int = 0


class Transactions:
    """Decides transactions, each exactly once."""

    def __init__(
        self,
        halves: HalfStore,
        topics: Topics,
        settings: CheckBackSettings,
        schedule: Schedule,
        clock: Clock,
    ) -> None:
        self.halves = halves
        halves.delay = self._delay
        self.settings = settings
        self.tally = Tally()
        self._topics = topics
        self._schedule = schedule
        self._clock = clock

    # Deciding

    def end(self, ends: Sequence[EndTransaction], now_ms: int) -> int:
        """Stage the decisions of ENDs, from the first one on.

        It stops at the first END that needs :meth:`find` and :meth:`decide`: its id, place or group
        does not match an open transaction, the message must be copied or delayed, or it is about
        several. It does not consult STEPS, because an open transaction, parked or not, takes every
        END.

        Returns:
            How many ENDs it took.
        """
        halves = self.halves
        read, closing, oldest = halves.pending.read, halves.closing, halves.oldest_shown()
        decisions: list[NewDecision] = []
        decided: set[int] = set()
        for end in ends:
            kind = _KINDS.get(end.commit_or_rollback)
            key = hash(end.msg_id or end.transaction_id or "") & KEY_MASK
            found = read(key)
            if kind is None or found is None or key in closing or key in decided:
                break
            entry, shared = found
            position = entry[1]
            if (
                end.others
                or entry[0] != end.tran_state_table_offset
                or position != end.commit_log_offset
                or shared[1] != end.producer_group
                or (kind is _COMMITTED and (position < oldest or shared[3]))
            ):
                break
            decided.add(key)
            source = _END_SOURCES[end.from_transaction_check]
            decisions.append((key, entry, shared, kind, source, b""))
        if decisions:
            self._stage(decisions, now_ms)
        return len(decisions)

    def find(self, header: EndTransaction) -> TransactionStatus:
        """The transaction that an END names.

        Raises:
            NotFound: The half queue never had a message at this offset.
            IllegalOperation: The offset and the position belong to different messages.
            TransactionFailed: The half message was deleted long after its decision.
            TransactionGroupWrong: The transaction belongs to another producer group.
        """
        offset, position = header.tran_state_table_offset, header.commit_log_offset
        key = transaction_key(header.msg_id or header.transaction_id or "")
        return self._find(key, offset, position, header.producer_group)

    def find_all(self, header: EndTransaction) -> list[TransactionStatus]:
        """The half messages that an END names, which share a decision; only the first one if they
        are too large together for a span, into which they may have to be copied.

        Raises:
            RemoteProtocolError: The END does not name them properly.
            TxmqError: As for :meth:`find`.
        """
        others = OtherHalf.read(header.others) if header.others else ()
        if len(others) >= MESSAGES_OF_TRANSACTION_MAX:
            limit = MESSAGES_OF_TRANSACTION_MAX
            raise InvalidParameter(f"an END is about at most {limit} half messages")
        group = header.producer_group
        found = [self.find(header)]
        found += [
            self._find(transaction_key(other.id), other.offset, other.position, group)
            for other in others
        ]
        first, *rest = self.spans_of(list({status.key: status for status in found}.values()))
        # As a stock broker does: the producer sends an END for each.
        return first if not rest else found[:1]

    def spans_of(self, found: Sequence[TransactionStatus]) -> list[list[TransactionStatus]]:
        """Half messages in parts, each small enough for one span: a commit may have to copy it."""
        parts: list[list[TransactionStatus]] = [[]]
        left = _COPIED_BYTES_MAX
        for status in found:
            size = 0 if status.half is None else status.half.size
            if size > left and parts[-1]:
                parts.append([])
                left = _COPIED_BYTES_MAX
            left -= size
            parts[-1].append(status)
        return parts

    def _find(self, key: int, offset: int, position: int, group: str) -> TransactionStatus:
        half, is_open = self.halves.pending.find(key), True
        if half is None or half.offset != offset or half.position != position:
            # Clients may change the id; offset and position always come from the broker.
            key, half, is_open = self._find_by_place(offset, position)
        if half.group != group:
            raise TransactionGroupWrong(f"the transaction belongs to {half.group}, not to {group}")
        return self._as_it_stands(key, half) if is_open else self._decided(key, half)

    def _find_by_place(self, offset: int, position: int) -> tuple[int, Half, bool]:
        queue = self.halves.half_queue
        if not 0 <= offset < queue.max_offset:
            raise NotFound(f"the half queue has no message at offset {offset}")
        if offset < queue.min_offset:
            raise TransactionFailed(
                f"the half message at offset {offset} was decided and deleted long ago; "
                f"the oldest kept one is at {queue.min_offset}"
            )
        found = self.halves.half_of(offset, position)
        if found is None:
            raise IllegalOperation(
                f"the half message at offset {offset} is not at position {position}"
            )
        half, unique = found
        key = transaction_key(unique)
        known = self.halves.pending.find(key)
        # A later half message may have the same id; it does not affect this one.
        if known is not None and known.offset == offset:
            return key, known, True
        return key, half, False

    def find_by_key(self, key: int) -> TransactionStatus | None:
        """An open transaction, or ``None``."""
        half = self.halves.pending.find(key)
        return None if half is None else self._as_it_stands(key, half)

    def together(self, xid: str) -> list[TransactionStatus]:
        """The open half messages here of the transaction with this id."""
        keys = (
            transaction_key(id_in_transaction(xid, number))
            for number in range(MESSAGES_OF_TRANSACTION_MAX)
        )
        found = filter(None, map(self.find_by_key, keys))
        # Other clients may give ids that look like these.
        return [status for status in found if self.xid_of(status) == xid]

    def xid_of(self, status: TransactionStatus) -> str | None:
        """The id of a half message's transaction; ``None`` if the half message is damaged."""
        half = status.half or self.halves.pending.find(status.key)
        if half is None:
            return None
        try:
            return xid_in(self.halves.record_of(half).properties) or None
        except CorruptRecord:
            return None

    def _as_it_stands(self, key: int, half: Half) -> TransactionStatus:
        kind = self.halves.closing.get(key)
        if kind is not None:
            return TransactionStatus(key, _STATES[kind], None, half.group, half.offset)
        state = _PARKED if half.is_parked else _PREPARED
        return TransactionStatus(key, state, half, half.group, half.offset)

    def _decided(self, key: int, half: Half) -> TransactionStatus:
        done = self.halves.find_done(key)
        if done is not None and done.offset == half.offset:
            return TransactionStatus(key, _STATES[done.kind], None, half.group, half.offset)
        marker = self.halves.decision_on(half)
        if marker is None:
            raise NotFound(f"the transaction at offset {half.offset} of the half queue is unknown")
        return TransactionStatus(key, _STATES[marker.kind], None, half.group, half.offset)

    def decide(
        self,
        found: Sequence[TransactionStatus],
        event: Event,
        source: DecisionSource,
        now_ms: int,
        reason: str = "",
    ) -> None:
        """Stage one decision on half messages of a transaction, except those with this decision.

        All of them go into one span of the log, so a crash leaves all decided or none. A conflict
        in one is a conflict of the whole.

        Raises:
            ShouldCommit: One of them was committed before; nothing was staged.
            ShouldRollBack: One of them was rolled back before; nothing was staged.
        """
        for status in found:
            if (status.state, event) not in STEPS:
                self._conflict(status, event, source)
        kind = _COMMITTED if event is _COMMIT else _ROLLED_BACK
        read, text = self.halves.pending.read, reason.encode()
        decisions: list[NewDecision] = []
        for status in found:
            entry = None if status.half is None else read(status.key)
            if entry is None:
                self.tally.repeated += 1
            else:
                decisions.append((status.key, *entry, kind, source, text))
        if decisions:
            self._stage(decisions, now_ms)
        if source is _OPERATOR:
            self.tally.forced += len(decisions)

    def _stage(self, decisions: Sequence[NewDecision], now_ms: int) -> None:
        self.halves.decide(decisions, now_ms)
        topics, committed = self._topics.by_name, 0
        for _, entry, (queue, _, _, is_delayed), kind, _, _ in decisions:
            if kind is _COMMITTED:
                committed += 1
                topic = topics.get(queue.topic)
                if topic is not None and not is_delayed:  # See _delay.
                    topic.put_count += 1
                    topic.put_bytes += entry[2]
        self.tally.committed += committed
        if decisions[0][3] is DecisionKind.PARKED:
            self.tally.parked += len(decisions)
        else:
            self.tally.rolled_back += len(decisions) - committed

    def _delay(self, half: Half, data: bytes, stored_ms: int) -> bool:
        # Log time may be ahead of a clock that was set back; a delay goes by the clock.
        if self._schedule.put_committed(half, data, stored_ms, self._clock.wall_ms()):
            return True  # It counts when it is delivered.
        topic = self._topics.by_name.get(half.queue.topic)
        if topic is not None:
            topic.put_count += 1
            topic.put_bytes += half.size
        return False

    def _conflict(self, found: TransactionStatus, event: Event, source: DecisionSource) -> None:
        self.tally.conflicts += 1
        log.error(
            "the transaction of %s at offset %d of the half queue is %s, but %s came from %s; "
            "the first decision holds",
            found.group,
            found.offset,
            found.state.value,
            event.value,
            _SOURCES[source],
        )
        if found.state is State.COMMITTED:
            raise ShouldCommit("the transaction was committed before; the first decision holds")
        raise ShouldRollBack("the transaction was rolled back before; the first decision holds")

    # Checks without a decision

    def spend_check(self, key: int, half: Half) -> bool:
        """Count a check that brought no decision; returns whether to park the transaction."""
        checks = half.checks + 1
        self.halves.pending.count_checks(key, checks)
        return not half.is_parked and checks >= self.settings.check_max

    def park(self, key: int, now_ms: int) -> None:
        """Stage that a transaction is parked until an operator decides it, if it is still open."""
        half = self.halves.pending.find(key)
        if half is None or key in self.halves.parking or key in self.halves.closing:
            return
        found = self.halves.pending.read(key)
        assert found is not None, "it is open"
        self._stage([(key, *found, DecisionKind.PARKED, DecisionSource.BROKER, b"")], now_ms)
        sent = self.halves.sent_at(half.position)
        log.error(
            "the transaction %s of %s is parked: %s brought no decision; "
            "once the cause is fixed, check it again with: txmq tx recheck",
            f"with the damaged half message {half.offset}" if sent is None else sent.unique,
            half.group,
            quantity(half.checks, "check"),
        )
