"""Brings queues, half and delayed messages up to date with records that are in the log already.

A start restores the records behind the last checkpoint. A follower restores those that it copies.
"""

from __future__ import annotations

from typing import Final

from txmq.errors import CorruptRecord, DiskFull
from txmq.protocol import java, properties
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import SysFlag
from txmq.protocol.span import HEAD_BYTES, AcceptedLoss, Decision, Found
from txmq.protocol.topics import WAITING_TOPICS
from txmq_broker.store.checkpoints import Checkpoints
from txmq_broker.store.delay_store import DelayStore
from txmq_broker.store.evidence import QueueOffsets
from txmq_broker.store.half_store import HalfStore
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.log.segments import Extent
from txmq_broker.store.queue_store import QueueStore, key_hash, keys_in, topic_seed

__all__ = ["RecordRestorer"]

_TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)
_PREPARED: Final = int(SysFlag.PREPARED)


class RecordRestorer:
    """Restores the records of one store, in the order of the log."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueStore,
        halves: HalfStore,
        delays: DelayStore,
        checkpoints: Checkpoints,
    ) -> None:
        self._log = log
        self._queues = queues
        self._halves = halves
        self._delays = delays
        self._checkpoints = checkpoints

    def restore(self, record: Found, position: int, data: bytes) -> None:
        """Restore one record.

        Raises:
            CorruptRecord: It does not follow the last one.
            OSError: An accepted loss needs an index, and the disk refuses it.
        """
        if isinstance(record, AcceptedLoss):
            self._restore_loss(record, position - HEAD_BYTES)
            return
        if isinstance(record, Decision):
            self._log.last_ms = max(self._log.last_ms, record.decided_ms)
            if not self._halves.found_decision(record, position, data):
                raise CorruptRecord(position, "a decision does not follow the last one")
            return
        self._log.last_ms = max(self._log.last_ms, record.stored_ms)
        if record.sys_flag & _TYPE_BITS == _PREPARED:
            if not self._halves.found_half(record, data):
                raise CorruptRecord(position, "a half message does not follow the last one")
            return
        queue = self._queues.queue(record.topic, record.queue_id)
        if record.topic in WAITING_TOPICS:
            tags_code = record.prepared_position
        else:
            tag = properties.find(record.properties, properties.TAGS)
            tags_code = java.string_hash(tag) if tag else 0
        entry = (record.position, len(data), tags_code, crc32(data))
        if not queue.restore(record.queue_offset, entry):
            raise CorruptRecord(
                record.position,
                f"{record.topic}/{record.queue_id} goes on at {record.queue_offset} "
                f"behind {queue.max_offset}",
            )
        seed = topic_seed(record.topic)
        self._queues.restore_keys(
            [key_hash(seed, key) for key in keys_in(record.properties)], position
        )
        if record.prepared_position:
            self._delays.found(record)

    def _restore_loss(self, loss: AcceptedLoss, position: int) -> None:
        extent = self._log.segments.extent_at(position)
        if position > self._checkpoints.checkpointed:
            self._log.segments.harden(self._checkpoints.checkpointed, position)
            self.index_to(position, extent)
        self._log.last_ms = max(self._log.last_ms, loss.accepted_ms)
        self.jump(loss.offsets)

    def jump(self, offsets: QueueOffsets) -> None:
        """Have queues go on at these offsets at least."""
        for topic, numbers in offsets.items():
            for number, offset in numbers.items():
                queue = self._queues.queue(topic, number)
                if offset > queue.next_offset:
                    queue.jump(offset)

    def index_to(self, end: int, extent: Extent) -> None:
        """Write the index of a file up to a position, before the queues jump.

        Raises:
            DiskFull: An earlier file has no complete index.
            OSError: The index file cannot be written.
        """
        if self._checkpoints.checkpointed < extent.start:
            raise DiskFull(
                "the disk is full, and this log cannot be read across an accepted loss before its "
                "indexes are written; make room and start again"
            )
        self._checkpoints.save_to(end, extent)
