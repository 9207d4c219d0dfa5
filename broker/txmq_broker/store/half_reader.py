"""Half messages and decisions as readers see them, built from the records of the log.

An entry has an inverted checksum if readers see its record in another form: a half message under
the half topic, a marker under the op topic, or a committed message, whose entry names the marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import msgspec

from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.record import Record
from txmq.protocol.span import MARKER, MARKER_BYTES, REASON_BYTES_MAX, Decision, DecisionKind
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.pending_transactions import Half
from txmq_broker.store.queue_store import (
    HIDDEN,
    ConsumeQueue,
    Entry,
    QueueStore,
    key_hashes_in,
    tags_code_in,
    topic_seed,
)

__all__ = [
    "HalfContent",
    "HalfReader",
    "moved",
    "seconds_in",
]

_NOWHERE: Final = bytes(8)
_BODY_CRC: Final = records.CRC_AT
_HALF_DIFFERS: Final = "a half message differs from what was stored"


class HalfContent(NamedTuple):
    """The parts of a half message that identify it."""

    unique: str
    topic: str
    body: bytes


class HalfReader:
    """Reads the half messages of one store, and the decisions on them."""

    def __init__(self, log: CommitLog, queues: QueueStore) -> None:
        self.log = log
        self.queues = queues
        self.half_queue = ConsumeQueue(HALF_TOPIC, 0)
        self.op_queue = ConsumeQueue(OP_TOPIC, 0)

    def begin(self) -> None:
        """Set the two queues once their floors are known."""
        self.half_queue = self.queues.queue(HALF_TOPIC, 0)
        self.op_queue = self.queues.queue(OP_TOPIC, 0)

    # By place

    def _half_at(self, position: int) -> tuple[Half, str]:
        """The half message at a position, with its unique key; its body may be damaged.

        Raises:
            CorruptRecord: More than its body is damaged, or the half queue has no entry for it.
        """
        data = self._record_at(position)
        try:
            record, _ = records.unpack(data)
        except RemoteProtocolError:
            # If only the body differs from its checksum, the other fields are intact.
            record, _ = _unpacked(data[:_BODY_CRC] + bytes(4) + data[_BODY_CRC + 4 :], position)
            is_body_whole = False
        else:
            is_body_whole = True
        text = record.properties
        known = self._entry_if(self.half_queue, record.queue_offset, position)
        if known is not None:
            _, size, tags_code, checksum = known[1]
        elif is_body_whole and record.queue_offset < self.half_queue.min_offset:
            # A crash came before its file could be deleted.
            size, tags_code = len(data), tags_code_in(text)
            checksum = crc32(data) ^ HIDDEN
        else:
            raise CorruptRecord(position, "the half queue has no half message there")
        if is_body_whole and crc32(data) ^ HIDDEN != checksum:
            raise CorruptRecord(position, _HALF_DIFFERS)
        half = Half(
            offset=record.queue_offset,
            position=position,
            size=size,
            tags_code=tags_code,
            checksum=checksum ^ HIDDEN,
            queue=self.queues.queue(record.topic, record.queue_id),
            group=properties.find(text, properties.PRODUCER_GROUP) or "",
            origin="",
            is_delayed=properties.delay_in(partial(properties.find, text)) is not None,
            key_hashes=key_hashes_in(topic_seed(record.topic), text),
            immunity_s=seconds_in(properties.find(text, properties.CHECK_IMMUNITY)),
        )
        return half, properties.find(text, properties.UNIQUE_KEY) or ""

    def sent_at(self, position: int) -> HalfContent | None:
        """The content of the half message at a position, or ``None`` if it was deleted."""
        try:
            record, _ = _unpacked(self._record_at(position), position)
        except CorruptRecord:
            return None
        unique = properties.find(record.properties, properties.UNIQUE_KEY) or ""
        return HalfContent(unique, record.topic, record.body)

    def _record_at(self, position: int) -> bytes:
        data = self.log.bytes_at(position)
        if data is None:
            raise CorruptRecord(
                position, "the half message of an open transaction is missing there"
            )
        return data

    def half_of(self, offset: int, position: int) -> tuple[Half, str] | None:
        """The half message at this offset and position, with its unique key, if there is one."""
        entries = self.half_queue.read(offset, 1) if offset >= self.half_queue.min_offset else []
        if not entries or entries[0][0] != position:
            return None
        return self._half_at(position)

    def decision_on(self, half: Half) -> Decision | None:
        """The last marker of a half message; the search begins in the half message's file."""
        found = None
        for _, found in self.markers_of(half):
            if found.kind is not DecisionKind.PARKED:
                break
        return found

    def markers_of(self, half: Half) -> Iterator[tuple[int, Decision]]:
        """The markers of a half message with their positions, oldest first.

        The search begins in the half message's file.
        """
        for entry in self.op_queue.with_code(half.offset, self.log.file_at(half.position)):
            yield entry[0], self._decision_at(entry)

    def half_behind(self, position: int) -> tuple[Half, str] | None:
        """The half message at a position, or behind the committed message there, with its unique
        key.

        The position comes from a client, so the half queue must have an entry for it.
        """
        decision = self._marker_at(position)
        if decision is not None:
            position = decision.half_position
        else:
            data = self.log.bytes_at(position)
            if data is None:
                return None
            try:
                record, _ = _unpacked(data, position)
            except CorruptRecord:
                return None
            # A commit in a later file wrote the message again.
            if record.sys_flag & records.TYPE_BITS != records.PREPARED:
                if record.sys_flag & records.TYPE_BITS == records.COMMITTED:
                    position = record.prepared_position
                else:
                    position = record.half_position or record.prepared_position
                if not position:
                    return None
        try:
            return self._half_at(position)
        except CorruptRecord:
            return None

    def _decision_at(self, entry: Entry) -> Decision:
        position, size, _, checksum = entry
        data = self.log.read(position, size)
        if crc32(data) ^ HIDDEN != checksum:
            raise CorruptRecord(position, "a marker differs from what was stored")
        return Decision.unpack(data, position)

    def _read_half(self, half: Half) -> bytes:
        data = self.log.read(half.position, half.size)
        if crc32(data) != half.checksum:
            raise CorruptRecord(half.position, _HALF_DIFFERS)
        return data

    def record_of(self, half: Half) -> Record:
        """An open half message as its producer sent it.

        Raises:
            CorruptRecord: It differs from what was stored.
        """
        record, _ = _unpacked(self._read_half(half), half.position)
        return msgspec.structs.replace(record, sys_flag=record.sys_flag & ~records.TYPE_BITS)

    def shown(self, queue: ConsumeQueue, entry: Entry) -> bytes:
        """The record for an entry with an inverted checksum, in the form that readers of a queue
        see.

        Raises:
            CorruptRecord: The bytes there differ from the stored ones.
        """
        position, size, _, checksum = entry
        if queue.topic == OP_TOPIC:
            return self._shown_marker(self._decision_at(entry), position)
        if queue.topic == HALF_TOPIC:
            data = self.log.read(position, size)
            if crc32(data) ^ HIDDEN != checksum:
                raise CorruptRecord(position, _HALF_DIFFERS)
            record, _ = _unpacked(data, position)
            flags = record.sys_flag & ~records.TYPE_BITS
            return records.pack(moved(_with_real_place(record), HALF_TOPIC, sys_flag=flags))
        decision = self._marker_at(position)
        if decision is None:
            raise CorruptRecord(position, "a message differs from what was stored")
        data = self.log.read(decision.half_position, size)
        if crc32(data) ^ HIDDEN != checksum:
            raise CorruptRecord(
                decision.half_position, "a committed message differs from what was stored"
            )
        return records.committed(
            data, decision.queue_offset, position, decision.decided_ms, decision.half_position
        )

    def _shown_marker(self, decision: Decision, position: int) -> bytes:
        try:
            host = _unpacked(self._record_at(decision.half_position), position)[0].store_host
        except CorruptRecord:
            host = _NOWHERE  # The half message was deleted, and only it had the address.
        fields = {
            "TAGS": "d",
            "TXMQ_DECISION": decision.kind.name,
            "TXMQ_SOURCE": decision.source.name,
            "TXMQ_REASON": decision.reason,
        }
        return records.pack(
            Record(
                queue_id=0,
                flag=0,
                queue_offset=decision.offset,
                position=position,
                sys_flag=0,
                born_ms=decision.decided_ms,
                born_host=host,
                stored_ms=decision.decided_ms,
                store_host=host,
                attempts=0,
                prepared_position=decision.half_position,
                body=str(decision.half_offset).encode(),
                topic=OP_TOPIC,
                properties=properties.render({name: text for name, text in fields.items() if text}),
            )
        )

    def is_hidden(self, head: bytes) -> bool:
        """Return true if the record with this head is a half message or a marker."""
        if head[4:8] == MARKER:
            return len(head) >= MARKER_BYTES
        return (
            len(head) >= records.SMALLEST
            and head[records.SYS_FLAG_AT + 3] & records.TYPE_BITS == records.PREPARED
        )

    def entry_at(self, position: int, head: bytes) -> tuple[ConsumeQueue, Entry] | None:
        """The queue and entry of the record with this head at a position.

        The position comes from a client, so the queue must have an entry for it.
        """
        if head[4:8] != MARKER:
            return self._entry_if(self.half_queue, records.queue_offset_of(head), position)
        decision = self._marker_at(position)
        if decision is None:
            return None
        if decision.queue_offset < 0:
            return self._entry_if(self.op_queue, decision.offset, position)
        queue = self._half_at(decision.half_position)[0].queue
        return self._entry_if(queue, decision.queue_offset, position)

    def _marker_at(self, position: int) -> Decision | None:
        data = self.log.read(position, MARKER_BYTES + REASON_BYTES_MAX)
        try:
            decision = Decision.unpack(data, position)
        except CorruptRecord:
            return None
        known = self._entry_if(self.op_queue, decision.offset, position)
        if known is None or crc32(data[: known[1][1]]) ^ HIDDEN != known[1][3]:
            return None
        return decision

    def _half_entry_at(self, position: int) -> tuple[int, Entry] | None:
        """The offset and the entry of the half message at a position, or ``None``."""
        queue = self.half_queue
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            offset = queue.next_kept(middle)
            entries = queue.read(offset, 1) if offset < high else []
            if not entries or entries[0][0] > position:
                high = middle
            elif entries[0][0] < position:
                low = offset + 1
            else:
                return offset, entries[0]
        return None

    def _entry_if(
        self, queue: ConsumeQueue, offset: int, position: int
    ) -> tuple[ConsumeQueue, Entry] | None:
        entries = queue.read(offset, 1) if offset >= queue.min_offset else []
        return (queue, entries[0]) if entries and entries[0][0] == position else None


def seconds_in(text: str | None) -> int:
    """For how many seconds the producer wants no check; 0 leaves that to the broker."""
    if text is None or not text.isascii() or not text.isdecimal():
        return 0
    return min(int(text[:10]), 0xFFFF_FFFF)


def _unpacked(data: bytes, position: int) -> tuple[Record, int]:
    try:
        return records.unpack(data)
    except RemoteProtocolError as error:
        raise CorruptRecord(position, str(error)) from error


def _with_real_place(record: Record) -> Record:
    more = records.real_place(record.topic, record.queue_id).decode()
    return msgspec.structs.replace(record, properties=properties.join(record.properties, more))


def moved(record: Record, topic: str, *, sys_flag: int) -> Record:
    """The record under one of the broker's own topics."""
    return msgspec.structs.replace(record, topic=topic, queue_id=0, sys_flag=sys_flag)
