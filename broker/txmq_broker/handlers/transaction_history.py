"""7711 of txmq: one transaction, open or decided, with its checks and its decisions."""

from __future__ import annotations

from typing import Final

from txmq.errors import NotFound, RemoteProtocolError
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.bodies import TransactionEntry
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import NamedTransaction
from txmq.protocol.operations import (
    CheckEntry,
    DecisionEntry,
    RecheckEntry,
    TransactionHistory,
)
from txmq.protocol.record import host_text, offset_id, position_in
from txmq.protocol.span import DecisionKind
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.core.transactions import State
from txmq_broker.parts import Parts
from txmq_broker.store.pending_transactions import Half, transaction_key

__all__ = ["TransactionHistoryHandlers"]

_STATES: Final = {
    DecisionKind.COMMITTED: State.COMMITTED,
    DecisionKind.ROLLED_BACK: State.ROLLED_BACK,
    DecisionKind.PARKED: State.PARKED,
}


class TransactionHistoryHandlers:
    """Shows what the broker knows about a transaction."""

    def __init__(self, parts: Parts) -> None:
        self._halves = parts.transactions.halves
        self._checker = parts.checker
        self._clients = parts.clients

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.SHOW_TRANSACTION_HISTORY: self.show}

    def show(self, _: Connection, request: Command) -> bytes:
        """7711: a transaction, open or decided: its half message, checks and decisions."""
        name = request.read(NamedTransaction).transaction_id
        key, half = self._named(name)
        pending = self._halves.pending.find(key)
        is_open = pending is not None and pending.offset == half.offset
        if is_open and pending is not None:
            half = pending
        record = self._halves.record_of(half)
        decisions: list[DecisionEntry] = []
        state = State.PREPARED
        if not is_open or half.is_parked:
            for position, marker in self._halves.markers_of(half):
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
            transaction=TransactionEntry(
                transaction_id=properties.find(record.properties, properties.UNIQUE_KEY) or "",
                state=state.value,
                producer_group=half.group,
                topic=half.queue.topic,
                queue_id=half.queue.number,
                half_offset=half.offset,
                commit_log_offset=half.position,
                offset_msg_id=record.offset_id,
                keys=properties.find(record.properties, properties.KEYS) or "",
                stored_ms=record.stored_ms,
                checks=half.checks,
                client_id=half.origin or self._client_at(half.group, record.born_host),
                is_being_decided=is_open and key in self._halves.closing,
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
        body = records.pack(record)
        return answer(request, 0, {"history": shown}, body=body)

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

    def _named(self, name: str) -> tuple[int, Half]:
        """The transaction with this id, or whose half or visible message has this offset id.

        Raises:
            NotFound: The broker knows none.
        """
        halves = self._halves
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
