"""Half messages in the log: stored once in their final form, and decided by a marker.

On commit the queue's entry points to the marker, and the body stays where the half message put it.
Both lie in the same file of the log, so they are deleted together. If the half message lies in
another file, or its file is nearly full, the commit writes the message a second time.
"""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from txmq.errors import CorruptRecord
from txmq.limits import RECALLED_TRANSACTIONS, RECENT_TRANSACTIONS, SPAN_BYTES_MAX
from txmq.protocol import java, properties
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import SysFlag
from txmq.protocol.headers import EndTransaction
from txmq.protocol.record import Postmark, Record
from txmq.protocol.span import (
    HEAD_BYTES,
    MARKER_BYTES,
    MARKER_MAGIC,
    REASON_BYTES_MAX,
    Decision,
    DecisionKind,
    DecisionSource,
    marker_of,
)
from txmq.protocol.topics import PARKED_TOPIC
from txmq_broker.store.entry_group import stage_entries
from txmq_broker.store.half_reader import HIDDEN, HalfReader, moved
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.pending_transactions import (
    KEY_MASK,
    UNPACK_FOR_END,
    Changes,
    Half,
    PendingTransactions,
    transaction_key,
)
from txmq_broker.store.queue_store import ENTRY, ConsumeQueue, QueueStore

__all__ = ["Closing", "CommittedMessages", "HalfStore", "Opening", "RecentDecision"]

log = logging.getLogger(__name__)

_COMMITTED, _ROLLED_BACK, _PARKED = (
    DecisionKind.COMMITTED,
    DecisionKind.ROLLED_BACK,
    DecisionKind.PARKED,
)
"""Used for every END, because looking up an enum member is slow."""

_SOURCES: Final = (int(DecisionSource.PRODUCER), int(DecisionSource.CHECK))
"""By whether an END answers a check."""

_MARKER_BEGINNING: Final = Struct(">II").pack(MARKER_BYTES, MARKER_MAGIC)
_ENDING: Final = Struct(">qBBH")
_PIECES: Final = Struct(f">8sqqqq{_ENDING.size}s")
"""A marker without a reason, packed from pieces: many share its beginning and its ending."""

assert _PIECES.size == MARKER_BYTES

_TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)


class RecentDecision(NamedTuple):
    """A recently decided transaction."""

    offset: int
    position: int
    kind: DecisionKind


Opening: TypeAlias = tuple[list[int], list[int], bytes, int]
"""Half messages that are not durable yet: their transactions' keys, their positions, their entries
in the half queue, and the seconds without checks that all of them want.
"""


class Closing(NamedTuple):
    """Markers that are not durable yet, each with a part in every list."""

    keys: list[int]
    positions: Sequence[int]
    half_positions: list[int]
    decisions: list[int]
    """The half message's offset and the kind of decision, as one number."""
    owners: list[int]
    groups: dict[int, str]
    """The producer groups of these owners."""
    entries: bytes
    """Their entries in the op queue."""
    is_parking: bool = False


class CommittedMessages(NamedTuple):
    """What the decisions make visible in one queue."""

    topic: str
    number: int
    size: int
    """Their bytes."""


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
        """True if a staged record must lie in the file that is being written now."""
        self.recent: dict[int, int] = {}
        """The last decisions: the half message's offset and the kind of decision, as one number."""
        self.older: dict[int, int] = {}
        """The decisions before those; they are dropped together."""
        self.staged: list[Opening] = []
        self.markers: list[Closing] = []
        self._open: dict[int, bool] = {}

    # Appending

    def prepare(
        self,
        key: int,
        queue: ConsumeQueue,
        postmark: Postmark,
        flag: int,
        body: bytes,
        tail: bytes,
        tags_code: int,
        key_hashes: tuple[int, ...],
        group: str,
        origin: str,
        immunity_s: int,
    ) -> tuple[int, int]:
        """Stage a half message; returns its place in the half queue and its position.

        The flags of the postmark must say that the message is prepared.
        """
        log, half_queue = self.log, self.half_queue
        position, offset = log.next_position, half_queue.next_offset
        head, size = records.head_of(
            queue.number, flag, offset, position, postmark, body, len(tail)
        )
        checksum = crc32(tail, crc32(body, crc32(head)))
        data = self.pending.pack(
            offset, position, size, tags_code, checksum, queue, group, origin, key_hashes,
            immunity_s,
        )  # fmt: skip
        log.last_ms = postmark[3]
        # log.stage inlined.
        log.staged += head, body, tail
        log.next_position = position + size
        half_queue.next_offset = offset + 1
        self.opening[key] = data
        entry = ENTRY.pack(position, size, tags_code, checksum ^ HIDDEN)
        self.staged.append(([key], [position], entry, immunity_s))
        return offset, position

    def decide(
        self,
        key: int,
        half: Half,
        kind: DecisionKind,
        source: DecisionSource,
        now_ms: int,
        reason: str = "",
    ) -> None:
        """Stage the decision on an open transaction, with the message or copy that it needs.

        Raises:
            CorruptRecord: The half message must be copied and cannot be read.
        """
        log, op_queue = self.log, self.op_queue
        assert not reason or len(reason.encode()) <= REASON_BYTES_MAX, "a reason was not checked"
        is_known = half.queue is not self.half_queue
        is_here = kind is _COMMITTED and half.position >= self.oldest_shown() and is_known
        copy = None if is_here or kind is _ROLLED_BACK else self._copied(half, kind)
        position = log.next_position
        offset = half.queue.next_offset if is_here else -1
        marker = marker_of(
            kind, source, op_queue.next_offset, half.position, half.offset, offset, now_ms,
            reason.encode() if reason else b"",
        )  # fmt: skip
        size = len(marker)
        # log.stage inlined.
        log.last_ms = now_ms
        log.staged.append(marker)
        log.next_position = position + size
        op_queue.next_offset += 1
        entry = ENTRY.pack(position, size, half.offset, crc32(marker) ^ HIDDEN)
        if is_here:
            self.must_stay = True
            half.queue.next_offset = offset + 1
            shown = ENTRY.pack(position, half.size, half.tags_code, half.checksum ^ HIDDEN)
            hashes = half.key_hashes
            self.queues.staged.append(
                (half.queue, position, shown, hashes, (position,) * len(hashes))
            )
        elif copy is not None:
            self._stage_copy(half, copy, kind, now_ms)
        if kind is _PARKED:
            self.parking.add(key)
        else:
            self.closing[key] = kind
        owner = self.pending.owner_at(key)
        self.markers.append(
            Closing(
                [key],
                [position],
                [half.position],
                [half.offset << 2 | kind],
                [owner],
                {owner: half.group},
                entry,
                kind is _PARKED,
            )
        )

    def decide_usual(  # noqa: PLR0915  the hot path: a call would cost every END
        self, ends: Sequence[EndTransaction], kinds: Mapping[int, DecisionKind], now_ms: int
    ) -> tuple[int, list[CommittedMessages]]:
        """Stage the decisions of the usual ENDs at the beginning of a sequence.

        An END is usual if its transaction is open and has its id, place and group, and if no
        message must be copied.

        Args:
            ends: The ENDs.
            kinds: The kinds of decision by the ENDs' numbers for them.
            now_ms: The time of the decisions.

        Returns:
            How many ENDs were usual, and what they make visible.
        """
        pending, closing, op_queue, log = self.pending, self.closing, self.op_queue, self.log
        find, unpack_for = pending.table.get, UNPACK_FOR_END
        pack_marker, pack_entry, beginning = _PIECES.pack, ENTRY.pack, _MARKER_BEGINNING
        first, op_offset = log.next_position, op_queue.next_offset
        position, oldest = first, self.oldest_shown()
        last_owner = last_number = -1
        last_is_check: bool | None = None
        shown: defaultdict[ConsumeQueue, list[bytes]] = defaultdict(list)
        sizes: defaultdict[ConsumeQueue, list[int]] = defaultdict(list)
        key_hashes: list[bytes] = []
        key_positions: list[int] = []
        keys: list[int] = []
        half_positions: list[int] = []
        decisions: list[int] = []
        owners: list[int] = []
        groups: dict[int, str] = {}
        markers: list[bytes] = []
        entries: list[bytes] = []
        for end in ends:
            key = hash(end.msg_id or end.transaction_id or "") & KEY_MASK
            packed = find(key)
            if packed is None or key in closing:
                break
            (
                half_offset, half_position, size, tags_code, checksum, owner, its_hashes
            ) = unpack_for[len(packed)](packed)  # fmt: skip
            if owner != last_owner:
                queue, group, _ = pending.owners[owner]
                last_owner, groups[owner] = owner, group
                show, note_size = shown[queue].append, sizes[queue].append
            number, is_check = end.commit_or_rollback, end.from_transaction_check
            if number != last_number or is_check is not last_is_check:
                known_kind = kinds.get(number)
                if known_kind is None:
                    break
                kind, last_number, last_is_check = known_kind, number, is_check
                ending = _ENDING.pack(now_ms, kind, _SOURCES[is_check], 0)
            if (
                half_offset != end.tran_state_table_offset
                or half_position != end.commit_log_offset
                or group != end.producer_group
                or (kind is _COMMITTED and half_position < oldest)
            ):
                break
            if kind is _COMMITTED:
                offset = queue.next_offset
                queue.next_offset = offset + 1
                show(pack_entry(position, size, tags_code, checksum ^ HIDDEN))
                note_size(size)
                key_hashes.append(its_hashes)
                key_positions += (position,) * (len(its_hashes) // 4)
            else:
                offset = -1
            marker = pack_marker(beginning, op_offset, half_position, half_offset, offset, ending)
            markers.append(marker)
            entries.append(pack_entry(position, MARKER_BYTES, half_offset, crc32(marker) ^ HIDDEN))
            closing[key] = kind
            keys.append(key)
            half_positions.append(half_position)
            decisions.append(half_offset << 2 | kind)
            owners.append(owner)
            position += MARKER_BYTES
            op_offset += 1
        if not keys:
            return 0, []
        log.last_ms = now_ms
        log.staged += markers
        log.next_position = position
        op_queue.next_offset = op_offset
        positions = range(first, position, MARKER_BYTES)
        joined = b"".join(entries)
        self.markers.append(
            Closing(keys, positions, half_positions, decisions, owners, groups, joined)
        )
        if key_hashes:  # Every message has a unique key.
            self.must_stay = True
            hashes = array("I", b"".join(key_hashes))
            stage_entries(self.queues, shown, first, hashes, key_positions)
        committed = [
            CommittedMessages(queue.topic, len(of_queue), sum(of_queue))
            for queue, of_queue in sizes.items()
            if of_queue
        ]
        return len(keys), committed

    def oldest_shown(self) -> int:
        """The oldest position of a half message that a marker can show; others must be copied."""
        segments = self.log.segments
        if not segments.starts:
            return self.log.next_position
        file_start = segments.starts[-1]
        # The file must have room for this span, however long it grows.
        room = segments.end + 2 * SPAN_BYTES_MAX + HEAD_BYTES - file_start
        return file_start if room <= self.log.segment_size else self.log.next_position

    def _copied(self, half: Half, kind: DecisionKind) -> bytes | None:
        """The half message to write again; ``None`` if it is damaged and its transaction parked."""
        try:
            return self._read_half(half)
        except CorruptRecord as error:
            if kind is _PARKED:
                return None
            raise CorruptRecord(
                half.position,
                f"{error.reason}, so its transaction cannot be committed; restore the log, or roll "
                "the transaction back and send the message again",
            ) from error

    def _stage_copy(self, half: Half, data: bytes, kind: DecisionKind, now_ms: int) -> None:
        queue, hashes = half.queue, half.key_hashes
        if kind is _PARKED:
            queue, hashes = self.queues.queue(PARKED_TOPIC, 0), ()
        position = self.log.next_position
        shown = records.committed(data, queue.next_offset, position, now_ms, half.position)
        if kind is _PARKED:
            record, _ = records.unpack(shown)
            flags = record.sys_flag & ~_TYPE_BITS
            shown = records.pack(moved(record, PARKED_TOPIC, sys_flag=flags))
        self.queues.stage(queue, (shown,), len(shown), half.tags_code, crc32(shown), hashes)

    # After the write

    def take_back(self, halves: Sequence[Opening], markers: Sequence[Closing]) -> None:
        """Undo the staged changes, because the write failed."""
        for keys, *_ in halves:
            self.half_queue.next_offset -= len(keys)
            for key in keys:
                self.pending.drop(self.opening.pop(key))
        for keys, *_, is_parking in markers:
            self.op_queue.next_offset -= len(keys)
            for key in keys:
                if is_parking:
                    self.parking.discard(key)
                else:
                    del self.closing[key]

    def publish(self, halves: Sequence[Opening], markers: Sequence[Closing]) -> None:
        """Apply the half messages and decisions of a durable span."""
        if halves:
            self._open_all(halves)
        if markers:
            self._close_all(markers)

    def _open_all(self, halves: Sequence[Opening]) -> None:
        pending, opening = self.pending, self.opening
        if len(opening) == sum([len(keys) for keys, *_ in halves]):
            # Nothing was staged since. New ones are never parked.
            pending.table.update(opening)
            opening.clear()
        else:
            for keys, *_ in halves:
                for key in keys:
                    pending.table[key] = opening.pop(key)
        for _, half_positions, entries, _ in halves:
            self.half_queue.publish(entries)
            pending.opened.extend(half_positions)

    def _close_all(self, markers: Sequence[Closing]) -> None:
        if len(self.recent) >= RECENT_TRANSACTIONS // 2:
            self.older, self.recent = self.recent, {}
        pending, closing, recent = self.pending, self.closing, self.recent
        for (
            keys, positions, half_positions, decisions, owners, _, entries, is_parking
        ) in markers:  # fmt: skip
            self.op_queue.publish(entries)
            if is_parking:
                for key, at, half in zip(keys, positions, half_positions, strict=True):
                    self.parking.discard(key)
                    pending.park(key)
                    pending.note_parked(at, half)
                continue
            if len(closing) == len(keys):
                closing.clear()
            else:
                for key in keys:
                    del closing[key]
            pending.closings.extend(positions)
            pending.closed.extend(half_positions)
            recent.update(zip(keys, decisions, strict=True))
            pending.close_all(keys, owners)

    # Recovery

    def found_half(self, record: Record, data: bytes) -> bool:
        """Add a half message found in the log; return false if it does not follow the last one."""
        tag = properties.find(record.properties, properties.TAGS)
        code = java.string_hash(tag) if tag else 0
        entry = (record.position, len(data), code, crc32(data) ^ HIDDEN)
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
            CorruptRecord: The half queue lacks one of them, or two have one id.
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
                data = self.pending.pack(*msgspec.structs.astuple(half))
                self.pending.open(key, data)
        self._open.clear()
        self._recall()

    def _unknown_half(self, position: int, error: CorruptRecord) -> Half:
        """An open half message that tells neither its queue nor its group any more.

        Its transaction is parked. An operator can roll it back; a commit would have to read it.

        Raises:
            CorruptRecord: The half queue has none there.
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
            offset, position, size, tags_code, checksum ^ HIDDEN, self.half_queue, "", "", (),
            is_parked=True,
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
                # The error is raised where somebody reads the damaged message itself.
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
