"""37, 323, and of txmq 7701 to 7704, 7709, 7711, 7713: ENDs; operators list and decide
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from typing import Final

from msgspec.structs import replace

from txmq.errors import (
    CorruptRecord,
    InvalidParameter,
    NotFound,
    RemoteProtocolError,
    ServiceUnavailable,
    ShouldCommit,
    ShouldRollBack,
)
from txmq.limits import MESSAGES_OF_TRANSACTION_MAX
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.bodies import OpenTransactions, TransactionEntry, TransactionMessages
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.command import ONEWAY, Command, answer
from txmq.protocol.headers import (
    DECIDED,
    DecideTransaction,
    EndTransaction,
    ListTransactions,
    NamedTransaction,
    ResumeCheck,
)
from txmq.protocol.operations import (
    RECHECK_REASON_BYTES_MAX,
    CheckEntry,
    DecisionEntry,
    RecheckedTransactions,
    RecheckEntry,
    RecheckTransaction,
    RecheckTransactions,
    TransactionHistory,
)
from txmq.protocol.properties import id_in_transaction, xid_in
from txmq.protocol.record import host_text, offset_id, position_in
from txmq.protocol.span import REASON_BYTES_MAX, DecisionKind, DecisionSource
from txmq.protocol.templates import done, done_all
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler, RunHandler
from txmq_broker.access.audit import account_of
from txmq_broker.core.check_history import RecheckNote
from txmq_broker.core.transactions import Event, State, TransactionStatus
from txmq_broker.parts import Parts
from txmq_broker.store.pending_transactions import Half, transaction_key

__all__ = ["TransactionHandlers"]

_EVENTS: Final = {int(SysFlag.COMMITTED): Event.COMMIT, int(SysFlag.ROLLED_BACK): Event.ROLL_BACK}
_BY_HAND: Final = {"commit": Event.COMMIT, "rollback": Event.ROLL_BACK}
_CHECK, _PRODUCER, _OPERATOR = (
    DecisionSource.CHECK,
    DecisionSource.PRODUCER,
    DecisionSource.OPERATOR,
)
_UNKNOWN: Final = 0
_LISTED_MAX: Final = 500
_ACCOUNT_CHARS_MAX: Final = 128
"""How many characters of an account the history of checks keeps."""
_RECHECKED_MAX: Final = 2_000
"""Transactions that one request may check again, because other requests wait for it."""


_STATES: Final = {
    DecisionKind.COMMITTED: State.COMMITTED,
    DecisionKind.ROLLED_BACK: State.ROLLED_BACK,
    DecisionKind.PARKED: State.PARKED,
}


class TransactionHandlers:
    """Ends transactions, lists open ones, and shows everything known about one."""

    def __init__(self, parts: Parts) -> None:
        self._transactions = parts.transactions
        self._checker = parts.checker
        self._clients = parts.clients
        self._admission = parts.admission
        self._flusher = parts.flusher
        self._clock = parts.clock
        self._store_host = parts.identity.store_host
        self._pending = parts.transactions.halves.pending

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.END_TRANSACTION: RunHandler(self.end, self.end_run),
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
            RequestCode.LIST_TRANSACTIONS: self.list_open,
            RequestCode.SHOW_TRANSACTION: self.show,
            RequestCode.SHOW_TRANSACTION_HISTORY: self.history,
            RequestCode.LIST_TRANSACTION_MESSAGES: self.list_messages,
            RequestCode.DECIDE_TRANSACTION: self.decide,
            RequestCode.RECHECK_TRANSACTION: self.recheck,
            RequestCode.RECHECK_TRANSACTIONS: self.recheck_all,
        }

    # Producers

    def end_run(self, connection: Connection, requests: list[Command]) -> int:
        """37: decide the open transactions of the ENDs at the beginning of a run.

        Returns:
            How many ENDs it took; the next one needs :meth:`end`.
        """
        if self._admission.reasons:
            return 0
        try:
            # Before any look-up: starting a turn may end another turn, whose write may fail.
            now_ms = self._flusher.decision_ms()
            ends = [
                request.ext if isinstance(request.ext, EndTransaction)
                # Unlike the 37s of a run, it is not decoded yet.
                else request.read(EndTransaction)
                for request in requests
            ]  # fmt: skip
        except (ServiceUnavailable, RemoteProtocolError):
            return 0
        count = self._transactions.end(ends, now_ms)
        answered = [request for request in requests[:count] if not request.flag & ONEWAY]
        self._flusher.answer(connection, answered, done_all(answered))
        return count

    def end(self, connection: Connection, request: Command) -> bytes | None:
        """37: a producer reports the outcome of its local transaction."""
        header: EndTransaction = request.ext  # type: ignore[assignment]  # A cast costs a call.
        if type(header) is not EndTransaction:  # A run's 37 is decoded this far.
            header = request.read(EndTransaction)
        event = _EVENTS.get(header.commit_or_rollback)
        if event is None:
            if header.commit_or_rollback != _UNKNOWN:
                raise InvalidParameter(
                    f"commitOrRollback must be 8, 12 or 0, not {header.commit_or_rollback}"
                )
            found = self._transactions.find(header)
            if header.from_transaction_check and found.half is not None:
                self._checker.note_unknown(found.key)
            return None if request.flag & ONEWAY else answer(request)
        if self.end_run(connection, [request]):
            return None
        source = _CHECK if header.from_transaction_check else _PRODUCER

        def decide(now_ms: int) -> int:
            found = self._transactions.find_all(header)
            self._transactions.decide(found, event, source, now_ms)
            return len(found)

        self._decide(connection, request, decide)
        return None

    def _decide(
        self, connection: Connection, request: Command, decide: Callable[[int], int]
    ) -> None:
        """Decide one transaction; a conflict is reported once the earlier decision is durable.

        Args:
            connection: The connection of the request.
            request: The request.
            decide: Finds the transaction, stages the decision with the given time stamp, and
                returns how many half messages it is about.
        """
        if self._admission.reasons:
            self._admission.check_decisions()
        # Before any look-up, as in end_run.
        now_ms = self._flusher.decision_ms()
        try:
            count = decide(now_ms)
        except (ShouldCommit, ShouldRollBack) as error:
            reply = answer(request, error.code, remark=str(error))
        else:
            reply = done(request) if count == 1 else answer(request, 0, {DECIDED: str(count)})
        if not request.flag & ONEWAY:
            self._flusher.answer(connection, [request], [reply])

    # Operators

    def resume_check(self, connection: Connection, request: Command) -> bytes:
        """323: check a transaction again, parked or not; RocketMQ's request for it."""
        name = request.read(ResumeCheck).msg_id or ""
        self._recheck_whole(name, self._recheck_note(connection, request))
        return answer(request)

    def recheck(self, connection: Connection, request: Command) -> bytes:
        """7704: check a transaction again, by its unique key or an offset id."""
        header = request.read(RecheckTransaction)
        note = self._recheck_note(connection, request, header.operator, header.reason)
        self._recheck_whole(header.transaction_id, note)
        return answer(request)

    def recheck_all(self, connection: Connection, request: Command) -> bytes:
        """7709: check many transactions again: all, those of a group, or those in a state."""
        header = request.read(RecheckTransactions)
        note = self._recheck_note(connection, request, header.operator, header.reason)
        # One more than a page, because it shows where the next page begins.
        page = self._page(header, _RECHECKED_MAX + 1)
        rest = page[_RECHECKED_MAX:]
        for key, _ in page[:_RECHECKED_MAX]:
            self._recheck(key, note)
        found = RecheckedTransactions(len(page) - len(rest), rest[0][1].offset if rest else -1)
        return answer(request, 0, found)

    def _recheck_whole(self, name: str, note: RecheckNote) -> None:
        for status in self._whole(name):
            self._recheck(status.key, note)

    def _recheck(self, key: int, note: RecheckNote) -> None:
        self._checker.history.note_recheck(key, note)
        self._checker.recheck(key)

    def _recheck_note(
        self, connection: Connection, request: Command, operator: str = "", reason: str = ""
    ) -> RecheckNote:
        size = len(f"{operator}{reason}".encode())
        if size > RECHECK_REASON_BYTES_MAX:
            raise InvalidParameter(
                f"operator and reason have at most {RECHECK_REASON_BYTES_MAX} bytes together, not "
                f"{size}; shorten the reason"
            )
        account = account_of(connection, request.field_map())[:_ACCOUNT_CHARS_MAX]
        now_ms = self._clock.wall_ms()
        return RecheckNote(now_ms, operator, account, connection.address, reason)

    def decide(self, connection: Connection, request: Command) -> bytes | None:
        """7703: an operator's decision; the log keeps the operator and the reason."""
        header = request.read(DecideTransaction)
        event = _BY_HAND.get(header.decision)
        if event is None:
            raise InvalidParameter(f"decision must be commit or rollback, not {header.decision!r}")
        if not header.operator.strip() or not header.reason.strip():
            raise InvalidParameter("operator and reason must not be empty")
        reason = f"{header.operator}: {header.reason}"
        if "\x01" in reason or "\x02" in reason:
            # They become a property of the marker, and these characters end properties.
            raise InvalidParameter("operator and reason must not contain control character 1 or 2")
        if len(reason.encode()) > REASON_BYTES_MAX:
            raise InvalidParameter(f"operator and reason have at most {REASON_BYTES_MAX} bytes")

        def decide(now_ms: int) -> int:
            found = self._whole(header.transaction_id)
            first, *rest = self._transactions.spans_of(found)
            self._transactions.decide(first, event, _OPERATOR, now_ms, reason)
            for part in rest:
                later_ms = self._flusher.decision_ms()
                self._transactions.decide(part, event, _OPERATOR, later_ms, reason)
            return len(found)

        self._decide(connection, request, decide)
        return None

    def show(self, _: Connection, request: Command) -> bytes:
        """7702: an open transaction, with its half message as sent."""
        key = self._named(request.read(NamedTransaction).transaction_id).key
        half = self._pending.find(key)
        assert half is not None
        record = self._transactions.halves.record_of(half)
        shown = self._described(key, half).write().decode()
        return answer(request, 0, {"transaction": shown}, body=records.pack(record))

    def list_open(self, _: Connection, request: Command) -> bytes:
        """7701: open transactions, oldest first, a page at a time."""
        header = request.read(ListTransactions)
        page = self._page(header, max(1, min(header.count, _LISTED_MAX)))
        body = OpenTransactions(
            [self._described(key, half) for key, half in page],
            len(self._pending),
            self._pending.parked,
            self._pending.count_of(header.producer_group) if header.producer_group else 0,
        )
        return answer(request, body=body.write())

    def _page(
        self, header: ListTransactions | RecheckTransactions, count: int
    ) -> list[tuple[int, Half]]:
        if header.state not in ("", "prepared", "parked"):
            raise InvalidParameter("state must be prepared, parked or empty")
        matching = self._matching(header)
        if header.state == "parked":
            # They are in order of parking, but pages are in order of offsets.
            return nsmallest(count, matching, key=lambda item: item[1].offset)
        return list(islice(matching, count))

    def _matching(
        self, header: ListTransactions | RecheckTransactions
    ) -> Iterator[tuple[int, Half]]:
        is_parked = {"parked": True, "prepared": False}.get(header.state)
        if is_parked:
            keys = self._pending.parked_keys()
        elif header.producer_group:
            keys = self._pending.keys_of(header.producer_group, header.from_offset)
        else:
            keys = self._pending.keys_from(header.from_offset)
        for key in keys:
            if self._pending.offset_of(key) < header.from_offset:
                continue
            half = self._pending.find(key)
            assert half is not None
            if header.producer_group and half.group != header.producer_group:
                continue
            if is_parked is None or half.is_parked is is_parked:
                yield key, half

    def _described(self, key: int, half: Half) -> TransactionEntry:
        # A damaged half message is listed with the known fields, and does not hide the others.
        record = None
        with suppress(CorruptRecord):
            record = self._transactions.halves.record_of(half)
        return self._entry(key, half, State.PARKED if half.is_parked else State.PREPARED, record)

    def _entry(
        self, key: int, half: Half, state: State, record: records.Record | None
    ) -> TransactionEntry:
        text = "" if record is None else record.properties
        return TransactionEntry(
            transaction_id=properties.find(text, properties.UNIQUE_KEY) or "",
            state=state.value,
            producer_group=half.group,
            topic=half.queue.topic,
            queue_id=half.queue.number,
            half_offset=half.offset,
            commit_log_offset=half.position,
            offset_msg_id=offset_id(
                self._store_host if record is None else record.store_host, half.position
            ),
            keys=properties.find(text, properties.KEYS) or "",
            stored_ms=0 if record is None else record.stored_ms,
            checks=half.checks,
            client_id=half.origin,
            is_being_decided=key in self._transactions.halves.closing,
            xid=xid_in(text),
        )

    def list_messages(self, _: Connection, request: Command) -> bytes:
        """7713: the messages of a transaction that are open or known by their ids here."""
        xid = request.read(NamedTransaction).transaction_id
        entries = [
            self._by_key(transaction_key(id_in_transaction(xid, number)))
            for number in range(MESSAGES_OF_TRANSACTION_MAX)
        ]
        # Other clients may give ids that look like these.
        body = TransactionMessages([entry for entry in entries if entry and entry.xid == xid])
        return answer(request, body=body.write())

    def _by_key(self, key: int) -> TransactionEntry | None:
        half = self._pending.find(key)
        if half is not None:
            return self._described(key, half)
        halves = self._transactions.halves
        done = halves.find_done(key)
        if done is not None:
            with suppress(CorruptRecord):
                found = halves.half_of(done.offset, done.position)
                if found is not None:
                    half, _ = found
                    return self._entry(key, half, _STATES[done.kind], halves.record_of(half))
        return None

    def history(self, _: Connection, request: Command) -> bytes:
        """7711: a transaction, open or decided: its half message, checks and decisions."""
        name = request.read(NamedTransaction).transaction_id
        halves = self._transactions.halves
        key, half = self._known(name)
        pending = self._pending.find(key)
        is_open = pending is not None and pending.offset == half.offset
        if is_open and pending is not None:
            half = pending
        record = halves.record_of(half)
        decisions: list[DecisionEntry] = []
        state = State.PREPARED
        if not is_open or half.is_parked:
            for position, marker in halves.markers_of(half):
                state = _STATES[marker.kind]
                place = offset_id(record.store_host, position) if marker.queue_offset >= 0 else ""
                decisions.append(
                    DecisionEntry(
                        kind=marker.kind.name.lower(),
                        source=marker.source.name.lower(),
                        at_ms=marker.decided_ms,
                        reason=marker.reason,
                        offset_msg_id=place,
                    )
                )
        outlook = self._checker.outlook(key, half if is_open else None)
        history = TransactionHistory(
            transaction=replace(
                self._entry(key, half, state, record),
                client_id=half.origin or self._client_at(half.group, record.born_host),
                is_being_decided=is_open and key in halves.closing,
            ),
            born_ms=record.born_ms,
            born_host=host_text(record.born_host),
            decisions=decisions,
            checks=[
                CheckEntry(
                    note.asked_ms, note.client_id, note.address, note.answer, note.answered_ms
                )
                for note in outlook.checks
            ],
            check_max=self._checker.check_max,
            next_check_ms=outlook.next_ms,
            waits_for_producer=outlook.waits_for_producer,
            producers=len(self._clients.producers(half.group)),
            rechecks=[
                RecheckEntry(note.at_ms, note.operator, note.account, note.address, note.reason)
                for note in self._checker.history.rechecks_of(key)
            ],
        )
        shown = history.write().decode()
        return answer(request, 0, {"history": shown}, body=records.pack(record))

    def _client_at(self, group: str, born_host: bytes) -> str:
        """The client that sent a half message, if its connection is still open; the log has only
        the address.
        """
        members = self._clients.producer_groups.get(group, {})
        return next(
            (
                member.client_id
                for connection, member in members.items()
                if connection.born_host == born_host
            ),
            "",
        )

    def _whole(self, name: str) -> Sequence[TransactionStatus]:
        """The open half messages here of the transaction that this id or offset id belongs to.

        Raises:
            NotFound: None is open.
        """
        try:
            named = self._named(name)
        except NotFound:
            # Another broker may have the message that carries the transaction's id.
            if found := self._transactions.together(name):
                return found
            raise
        xid = self._transactions.xid_of(named)
        found = self._transactions.together(xid) if xid else []
        # A client may name a transaction that its message is not part of.
        return found if any(status.key == named.key for status in found) else [named]

    def _named(self, name: str) -> TransactionStatus:
        """The open transaction with this id, or whose half message has this offset id.

        It is open until its decision is durable, because a power cut may undo the decision.
        """
        transactions = self._transactions
        found = transactions.find_by_key(transaction_key(name))
        if found is None:
            found = self._with_offset_id(name)
        if found is None:
            raise NotFound(f"no transaction {name} is open")
        return found

    def _with_offset_id(self, name: str) -> TransactionStatus | None:
        try:
            position = position_in(name)
        except RemoteProtocolError:
            return None
        sent = self._transactions.halves.sent_at(position)
        if sent is not None:
            return self._transactions.find_by_key(transaction_key(sent.unique))
        # It may be damaged; its transaction is still open.
        key = self._pending.key_at(position)
        return None if key is None else self._transactions.find_by_key(key)

    def _known(self, name: str) -> tuple[int, Half]:
        """The transaction with this id, or whose half or visible message has this offset id.

        Raises:
            NotFound: The broker does not know it.
        """
        halves = self._transactions.halves
        key = transaction_key(name)
        half = halves.pending.find(key)
        if half is not None:
            return key, half
        done = halves.find_done(key)
        found = None if done is None else halves.half_of(done.offset, done.position)
        if found is None:
            try:
                found = halves.half_behind(position_in(name))
            except RemoteProtocolError:
                found = None
        if found is None:
            raise NotFound(f"no transaction {name} is known")
        return transaction_key(found[1]), found[0]
