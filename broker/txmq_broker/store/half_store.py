"""Half messages in the log: stored once in their final form, and decided by a marker.

On commit the queue's entry points to the marker, and the body stays where the half message put it.
Both lie in the same file of the log, so they are deleted together. If the half message lies in
another file, or its file is nearly full, the commit writes the message a second time.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec

from txmq.errors import CorruptRecord
from txmq.limits import RECALLED_TRANSACTIONS, RECENT_TRANSACTIONS, SPAN_BYTES_MAX
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.record import Record
from txmq.protocol.span import (
    HEAD_BYTES,
    Decision,
    DecisionKind,
    marker_of,
)
from txmq.protocol.topics import PARKED_TOPIC
from txmq_broker.store.half_reader import HalfReader, moved
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.pending_transactions import (
    Changes,
    Half,
    OpenEntry,
    PendingTransactions,
    Shared,
    transaction_key,
)
from txmq_broker.store.queue_store import (
    ENTRY,
    HIDDEN,
    ConsumeQueue,
    NewRecord,
    Place,
    QueueStore,
    tags_code_in,
)

__all__ = ["Closing", "HalfStore", "NewDecision", "NewHalf", "Opening", "RecentDecision"]

log = logging.getLogger(__name__)

_COMMITTED, _ROLLED_BACK, _PARKED = (
    DecisionKind.COMMITTED,
    DecisionKind.ROLLED_BACK,
    DecisionKind.PARKED,
)
"""Names for the hot path, because looking up an enum member is slow."""


class RecentDecision(NamedTuple):
    """A recently decided transaction."""

    offset: int
    position: int
    kind: DecisionKind


NewHalf: TypeAlias = tuple[int, int, str, str, int, bool]
"""A half message in a run of new records: its index in the run, its transaction's key, its group,
the client that sent it, for how many seconds it wants no check, and whether its message asks for a
delay.
"""

NewDecision: TypeAlias = tuple[int, OpenEntry, Shared, DecisionKind, int, bytes]
"""A decision without a place in the log: the key of an open transaction and the result of
:meth:`PendingTransactions.read` for it, the kind and the source of the decision, and an operator's
reason.
"""


Delay: TypeAlias = Callable[[Half, bytes, int], bool]
"""Takes an open half message, its record, and the time of the decision."""


class Opening(NamedTuple):
    """Half messages that are not durable yet."""

    keys: list[int]
    """Their transactions' keys."""
    positions: list[int]
    immune: dict[int, int]
    """For how many seconds a half message wants no check, by key; others are left out."""


class Closing(NamedTuple):
    """Decisions that are not durable yet, and the positions of their markers."""

    decisions: Sequence[NewDecision]
    positions: Sequence[int]
    is_parking: bool
    """Whether they park their transactions, which stay open."""


class HalfStore(HalfReader):
    """The half messages of one store, and the decisions on them."""

    def __init__(self, log: CommitLog, queues: QueueStore) -> None:
        super().__init__(log, queues)
        self.pending = PendingTransactions()
        self.opening: dict[int, bytes] = {}
        """Half messages that are staged or written but not durable yet, packed."""
        self.closing: dict[int, DecisionKind] = {}
        """Decisions that are staged or written but not durable yet."""
        self.parking: set[int] = set()
        """Transactions whose parking is staged or written but not durable yet."""
        self.must_stay = False
        """True if a staged record must go to the current file of the log."""
        self.recent: dict[int, int] = {}
        """The last decisions: the half message's offset and the kind of decision, as one number."""
        self.older: dict[int, int] = {}
        """The decisions before :attr:`recent`; all of them are dropped at once."""
        self.staged: list[Opening] = []
        self.markers: list[Closing] = []
        self._open: dict[int, bool] = {}
        self.delay: Delay = lambda *_: False
        """Stages a committed message that asks for a delay; returns false if it is due already."""

    # Appending

    def prepare(
        self, halves: Sequence[NewHalf], new: Sequence[NewRecord], places: Sequence[Place]
    ) -> None:
        """Note the half messages among records that were just staged.

        Args:
            halves: The half messages.
            new: The records, whose flags say that these are prepared.
            places: Where the records were staged.
        """
        opening, pack = self.opening, self.pending.pack
        keys: list[int] = []
        positions: list[int] = []
        immune: dict[int, int] = {}
        for index, key, group, origin, immunity_s, is_delayed in halves:
            queue, _, _, _, _, tags_code, hashes, _ = new[index]
            place = places[index]
            shared = queue, group, origin, is_delayed
            opening[key] = pack(place, tags_code, shared, hashes, immunity_s)
            keys.append(key)
            positions.append(place[1])
            if immunity_s:
                immune[key] = immunity_s
        self.staged.append(Opening(keys, positions, immune))

    def decide(self, decisions: Sequence[NewDecision], now_ms: int) -> None:
        """Stage decisions on open transactions, with the messages or copies that they need.

        Either all of them park their transactions, or none does.

        Raises:
            CorruptRecord: A half message must be copied and cannot be read; nothing was staged.
        """
        log, op_queue, pack = self.log, self.op_queue, ENTRY.pack
        is_parking = decisions[0][3] is _PARKED
        first = position = log.next_position
        op_offset, oldest = op_queue.next_offset, self.oldest_shown()
        shown: dict[ConsumeQueue, list[bytes]] = {}
        hashes: list[bytes] = []
        hash_positions: list[int] = []
        markers: list[bytes] = []
        entries: list[bytes] = []
        positions: list[int] = []
        copies: list[tuple[Half, bytes]] = []
        for key, entry, shared, kind, source, reason in decisions:
            half_offset, half_position, size, tags_code, checksum, _, its_hashes = entry
            queue, _, _, is_delayed = shared
            offset = -1
            if (
                kind is _COMMITTED
                and half_position >= oldest
                and queue is not self.half_queue
                and not is_delayed
            ):
                of_queue = shown.get(queue)
                if of_queue is None:
                    of_queue = shown[queue] = []
                offset = queue.next_offset + len(of_queue)
                of_queue.append(pack(position, size, tags_code, checksum ^ HIDDEN))
                hashes.append(its_hashes)
                hash_positions += (position,) * (len(its_hashes) // 4)
            elif kind is not _ROLLED_BACK:
                half = self.pending.unpack(self.pending.table[key])
                copy = self._copied(half, is_parking=is_parking)
                if copy is not None:
                    copies.append((half, copy))
            marker = marker_of(
                kind, source, op_offset, half_position, half_offset, offset, now_ms, reason
            )
            marker_size = len(marker)
            markers.append(marker)
            entries.append(pack(position, marker_size, half_offset, crc32(marker) ^ HIDDEN))
            positions.append(position)
            position += marker_size
            op_offset += 1
        # Nothing fails from here on.
        if is_parking:
            self.parking.update([decision[0] for decision in decisions])
        else:
            self.closing.update([(decision[0], decision[3]) for decision in decisions])
        log.stage(markers, position - first, now_ms)
        op_queue.next_offset = op_offset
        self.queues.staged.append((op_queue, first, b"".join(entries), (), ()))
        if shown:
            self.must_stay = True
            key_hashes = array("I", b"".join(hashes))
            self.queues.stage_entries(shown, first, key_hashes, hash_positions)
        for half, copy in copies:
            if half.is_delayed and not is_parking and self.delay(half, copy, now_ms):
                continue
            self._stage_copy(half, copy, now_ms, is_parking=is_parking)
        self.markers.append(Closing(decisions, positions, is_parking))

    def oldest_shown(self) -> int:
        """The position from which on a marker can show a half message; older ones are copied."""
        segments = self.log.segments
        if not segments.starts:
            return self.log.next_position
        file_start = segments.starts[-1]
        # The file must have room for this span, however long it grows.
        room = segments.end + 2 * SPAN_BYTES_MAX + HEAD_BYTES - file_start
        return file_start if room <= self.log.segment_size else self.log.next_position

    def _copied(self, half: Half, *, is_parking: bool) -> bytes | None:
        """The half message to write again; ``None`` if it is damaged and its transaction parked."""
        try:
            return self._read_half(half)
        except CorruptRecord as error:
            if is_parking:
                return None
            raise CorruptRecord(
                half.position,
                f"{error.reason}, so its transaction cannot be committed; restore the log, or roll "
                "the transaction back and send the message again",
            ) from error

    def _stage_copy(self, half: Half, data: bytes, now_ms: int, *, is_parking: bool) -> None:
        queue, hashes = half.queue, half.key_hashes
        if is_parking:
            queue, hashes = self.queues.queue(PARKED_TOPIC, 0), ()
        position = self.log.next_position
        shown = records.committed(data, queue.next_offset, position, now_ms, half.position)
        if is_parking:
            record, _ = records.unpack(shown)
            flags = record.sys_flag & ~records.TYPE_BITS
            shown = records.pack(moved(record, PARKED_TOPIC, sys_flag=flags))
        self.log.stage((shown,), len(shown), now_ms)
        entry = ENTRY.pack(position, len(shown), half.tags_code, crc32(shown))
        positions = (position,) * len(hashes)
        self.queues.stage_entries({queue: [entry]}, position, hashes, positions)

    # After the write

    def take_back(self, halves: Sequence[Opening], markers: Sequence[Closing]) -> None:
        """Undo the staged changes, because the write failed."""
        for keys, _, _ in halves:
            for key in keys:
                self.pending.drop(self.opening.pop(key))
        for decisions, _, is_parking in markers:
            for key, *_ in decisions:
                if is_parking:
                    self.parking.discard(key)
                else:
                    del self.closing[key]

    def publish(self, halves: Sequence[Opening], markers: Sequence[Closing]) -> None:
        """Apply the half messages and decisions of a durable span."""
        pending, opening, closing = self.pending, self.opening, self.closing
        if len(opening) == sum([len(keys) for keys, _, _ in halves]):
            # Nothing was staged since. New half messages are never parked.
            pending.table.update(opening)
            opening.clear()
        else:
            for keys, _, _ in halves:
                for key in keys:
                    pending.table[key] = opening.pop(key)
        for _, positions, _ in halves:
            pending.opened.extend(positions)
        if markers and len(self.recent) >= RECENT_TRANSACTIONS // 2:
            self.older, self.recent = self.recent, {}
        for decisions, at, is_parking in markers:
            keys = [decision[0] for decision in decisions]
            entries = [decision[1] for decision in decisions]
            if is_parking:
                for key, position, entry in zip(keys, at, entries, strict=True):
                    self.parking.discard(key)
                    pending.park(key)
                    pending.note_parked(position, entry[1])
                continue
            for key in keys:
                del closing[key]
            pending.closings.extend(at)
            pending.closed.extend([entry[1] for entry in entries])
            self.recent.update(
                [(key, entry[0] << 2 | kind) for key, entry, _, kind, _, _ in decisions]
            )
            pending.close_all(keys, [entry[5] for entry in entries])

    # Recovery

    def found_half(self, record: Record, data: bytes) -> bool:
        """Add a half message found in the log; return false if it does not follow the last one."""
        tags_code = tags_code_in(record.properties)
        entry = (record.position, len(data), tags_code, crc32(data) ^ HIDDEN)
        self._open[record.position] = False
        self.pending.opened.append(record.position)
        return self.half_queue.restore(record.queue_offset, entry)

    def found_decision(self, decision: Decision, position: int, data: bytes) -> bool:
        """Apply a marker found in the log; return false if it does not follow the last one."""
        if decision.kind is _PARKED:
            if decision.half_position in self._open:
                self._open[decision.half_position] = True
            self.pending.note_parked(position, decision.half_position)
        else:
            self._open.pop(decision.half_position, None)
            self.pending.note_closed(position, decision.half_position)
        entry = (position, len(data), decision.half_offset, crc32(data) ^ HIDDEN)
        if not self.op_queue.restore(decision.offset, entry):
            return False
        if decision.queue_offset < 0:
            return True
        half, _ = self._half_at(decision.half_position)
        committed = (position, half.size, half.tags_code, half.checksum ^ HIDDEN)
        if not half.queue.restore(decision.queue_offset, committed):
            return False
        self.queues.restore_keys(half.key_hashes, position)
        return True

    def loaded(self, changes: Changes) -> None:
        """Apply a checkpoint's changes for a part of the log."""
        self._open |= dict.fromkeys(changes.opened, False)
        for position in changes.parked:
            if position in self._open:
                self._open[position] = True
        for position in changes.closed:
            self._open.pop(position, None)

    def recovered(self, start: int, end: int) -> None:
        """Read the open half messages, now that the end of the log is known.

        Args:
            start: Half messages before it were lost, and the loss was accepted.
            end: The position after the log's last byte.

        Raises:
            CorruptRecord: The half queue lacks one of them, or two have the same id.
        """
        for position, is_parked in self._open.items():
            if start <= position < end:
                try:
                    half, unique = self._half_at(position)
                    key = transaction_key(unique)
                except CorruptRecord as error:
                    half, unique = self._unknown_half(position, error), ""
                    key = -1 - position  # No id has a negative key.
                if key in self.pending:
                    raise CorruptRecord(position, f"two open half messages have the id {unique}")
                half = msgspec.structs.replace(half, is_parked=is_parked or half.is_parked)
                self.pending.open(key, self.pending.pack(*half.parts))
        self._open.clear()
        self._recall()

    def _unknown_half(self, position: int, error: CorruptRecord) -> Half:
        """An open half message whose queue and group can no longer be read.

        Its transaction is parked. An operator can roll it back; a commit would have to read it.

        Raises:
            CorruptRecord: The half queue has no entry for it.
        """
        found = self._half_entry_at(position)
        if found is None:
            raise error
        offset, (_, size, tags_code, checksum) = found
        log.error(
            "the half message %d of an open transaction is damaged (%s), and neither its topic nor "
            "its producer is known; the transaction is parked: restore the log, or find out what "
            "became of the transaction, and roll it back (txmq tx list, txmq tx rollback)",
            offset,
            error,
        )
        return Half(
            offset, position, size, tags_code, checksum ^ HIDDEN, self.half_queue, "", "", False,
            (), is_parked=True,
        )  # fmt: skip

    def _recall(self) -> None:
        """Remember the last decisions: a producer may still repeat its half message or END."""
        queue = self.op_queue
        offset = max(queue.min_offset, queue.max_offset - RECALLED_TRANSACTIONS)
        while offset < queue.max_offset:
            entries = queue.read(offset, RECALLED_TRANSACTIONS)
            offset = queue.next_kept(offset + len(entries))
            if len(self.recent) >= RECENT_TRANSACTIONS // 2:
                self.older, self.recent = self.recent, {}
            for entry in entries:
                # Reading the damaged message itself raises the error.
                with suppress(CorruptRecord):
                    self._recall_decision(self._decision_at(entry))

    def _recall_decision(self, decision: Decision) -> None:
        if decision.kind is not _PARKED and decision.half_position >= self.log.start:
            half, unique = self._half_at(decision.half_position)
            self.recent[transaction_key(unique)] = half.offset << 2 | decision.kind

    # Reading

    def find_done(self, key: int) -> RecentDecision | None:
        """Return a transaction's decision, if it is recent."""
        packed = self.recent.get(key, self.older.get(key))
        if packed is None:
            return None
        offset, kind = packed >> 2, DecisionKind(packed & 3)
        entries = self.half_queue.read(offset, 1) if offset >= self.half_queue.min_offset else []
        return RecentDecision(offset, entries[0][0], kind) if entries else None
