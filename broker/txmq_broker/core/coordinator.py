"""The coordinator applies half messages, ENDs and answers to checks to transactions.

The table in :mod:`txmq_broker.core.transaction` defines the allowed steps; the log holds the steps
taken. Nothing here waits: a staged step counts once the flusher has made it durable.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import msgspec

from txmq.errors import (
    BrokerBusy,
    IllegalOperation,
    MessageIllegal,
    NotFound,
    ShouldCommit,
    ShouldRollBack,
    TransactionFailed,
    TransactionGroupWrong,
)
from txmq.protocol.codes import SysFlag
from txmq.protocol.headers import EndTransaction
from txmq.protocol.record import Postmark
from txmq.protocol.span import DecisionKind, DecisionSource
from txmq.text import quantity
from txmq_broker.config import CheckBackSettings
from txmq_broker.core.arrival import HalfArrival
from txmq_broker.core.topics import Topic, Topics
from txmq_broker.core.transaction import STEPS, Event, State
from txmq_broker.store.half_store import HalfStore, RecentDecision
from txmq_broker.store.pending_transactions import KEY_MASK, Half, transaction_key

__all__ = ["Coordinator", "Tally", "TransactionStatus"]

log = logging.getLogger(__name__)

_PARKED, _PREPARED, _COMMIT = State.PARKED, State.PREPARED, Event.COMMIT
_COMMITTED, _ROLLED_BACK = DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK
_OPERATOR: Final = DecisionSource.OPERATOR
"""Kept as names for the hot path, because enum members are slow to access."""

_length: Final = Struct(">H").pack

_KINDS: Final = {
    int(SysFlag.COMMITTED): _COMMITTED,
    int(SysFlag.ROLLED_BACK): _ROLLED_BACK,
}
"""The kinds of decision by the numbers that stand for them in an END."""

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


class Coordinator:
    """Prepares and decides transactions; each is decided exactly once."""

    def __init__(
        self,
        halves: HalfStore,
        topics: Topics,
        settings: CheckBackSettings,
    ) -> None:
        self.halves = halves
        self.settings = settings
        self.tally = Tally()
        self._topics = topics

    # Preparing

    def prepare(
        self,
        topic: Topic,
        number: int,
        postmark: Postmark,
        flag: int,
        body: bytes,
        arrival: HalfArrival,
        origin: str,
    ) -> tuple[int, int, bool]:
        """Stage a half message, or find the earlier one with the same id.

        Returns:
            Its offset in the half queue, its position in the log, and whether it is new.

        Raises:
            BrokerBusy: The limit of open transactions is reached.
            MessageIllegal: The id belongs to another message.
        """
        data, unique, tags_code, hashes, group, immunity_s = arrival
        key = hash(unique) & KEY_MASK  # transaction_key inlined.
        halves = self.halves
        table, opening = halves.pending.table, halves.opening
        is_known = key in table or key in opening or key in halves.recent or key in halves.older
        if is_known and (known := self._known(key)) is not None:
            return self._again(known, key, topic, unique, body)
        if len(table) + len(opening) >= self.settings.pending_max:
            self.tally.refused += 1
            raise BrokerBusy(
                f"{self.settings.pending_max} transactions are open, which is the limit; this "
                "one was not prepared; decide some, or raise transaction.pending_max"
            )
        offset, position = halves.prepare(
            key,
            topic.queues[number],
            postmark,
            flag,
            body,
            topic.name_field + _length(len(data)) + data,  # tail_of inlined.
            tags_code,
            hashes,
            group,
            origin,
            immunity_s,
        )
        self.tally.prepared += 1
        return offset, position, True

    def _known(self, key: int) -> Half | RecentDecision | None:
        halves = self.halves
        opening = halves.opening.get(key)
        if opening is not None:
            return halves.pending.unpack(opening)
        return halves.pending.find(key) or halves.find_done(key)

    def _again(
        self, known: Half | RecentDecision, key: int, topic: Topic, unique: str, body: bytes
    ) -> tuple[int, int, bool]:
        if isinstance(known, Half) and known.queue.topic != topic.name:
            raise MessageIllegal(f"the id {unique} belongs to a transaction of another topic")
        if key not in self.halves.opening:
            self._check_same(known, topic, unique, body)
        self.tally.repeated += 1
        return known.offset, known.position, False

    def _check_same(
        self, known: Half | RecentDecision, topic: Topic, unique: str, body: bytes
    ) -> None:
        found = self.halves.sent_at(known.position)
        if found is not None and found != (unique, topic.name, body):
            raise MessageIllegal(f"the id {unique} belongs to another transaction")

    # Deciding

    def end_usual(self, ends: Sequence[EndTransaction], now_ms: int) -> int:
        """Stage the decisions of the usual ENDs at the beginning of a sequence.

        An open transaction, parked or not, follows every END: STEPS refuses none.

        Returns:
            How many these are. The next one needs :meth:`find` and :meth:`decide`.
        """
        count, committed = self.halves.decide_usual(ends, _KINDS, now_ms)
        messages = 0
        for name, number, size in committed:
            messages += number
            topic = self._topics.by_name.get(name)
            if topic is not None:
                topic.put_count += number
                topic.put_bytes += size
        self.tally.committed += messages
        self.tally.rolled_back += count - messages
        return count

    def find(self, header: EndTransaction) -> TransactionStatus:
        """The transaction that an END names.

        Raises:
            NotFound: The half queue never had a message at this offset.
            IllegalOperation: The offset and the position belong to different messages.
            TransactionFailed: The half message was deleted long after its decision.
            TransactionGroupWrong: It belongs to another producer group.
        """
        offset, position = header.tran_state_table_offset, header.commit_log_offset
        key = transaction_key(header.msg_id or header.transaction_id or "")
        half, is_open = self.halves.pending.find(key), True
        if half is None or half.offset != offset or half.position != position:
            # Clients may change the id; offset and position always come from the broker.
            key, half, is_open = self._find_by_place(offset, position)
        if half.group != header.producer_group:
            raise TransactionGroupWrong(
                f"the transaction belongs to {half.group}, not to {header.producer_group}"
            )
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
        found: TransactionStatus,
        event: Event,
        source: DecisionSource,
        now_ms: int,
        reason: str = "",
    ) -> bool:
        """Stage a decision; returns false if the same decision was made before.

        Raises:
            ShouldCommit: The transaction was committed before.
            ShouldRollBack: The transaction was rolled back before.
        """
        target = STEPS.get((found.state, event))
        if target is None:
            self._conflict(found, event, source)
        if target is found.state or found.half is None:
            self.tally.repeated += 1
            return False
        self._stage(found.key, found.half, event, source, now_ms, reason)
        if source is _OPERATOR:
            self.tally.forced += 1
        return True

    def _stage(
        self,
        key: int,
        half: Half,
        event: Event,
        source: DecisionSource,
        now_ms: int,
        reason: str = "",
    ) -> None:
        if event is _COMMIT:
            self.halves.decide(key, half, _COMMITTED, source, now_ms, reason)
            self.tally.committed += 1
            topic = self._topics.by_name.get(half.queue.topic)
            if topic is not None:
                topic.put_count += 1
                topic.put_bytes += half.size
        else:
            self.halves.decide(key, half, _ROLLED_BACK, source, now_ms, reason)
            self.tally.rolled_back += 1

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

    def park(self, key: int, half: Half, now_ms: int) -> None:
        """Stage that a transaction is parked until an operator decides it."""
        if key in self.halves.parking or key in self.halves.closing:
            return
        self.halves.decide(key, half, DecisionKind.PARKED, DecisionSource.BROKER, now_ms)
        self.tally.parked += 1
        sent = self.halves.sent_at(half.position)
        log.error(
            "the transaction %s of %s is parked: %s brought no decision; "
            "once the cause is fixed, check it again with: txmq tx recheck",
            f"with the damaged half message {half.offset}" if sent is None else sent.unique,
            half.group,
            quantity(half.checks + 1, "check"),
        )
