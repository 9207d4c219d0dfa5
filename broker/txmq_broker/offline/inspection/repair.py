"""The repairs of a stopped broker's directory, each with the messages that it loses.

An operator confirms each repair. Before a repair cuts the log, it copies the cut part to
``cut/POSITION-TIME/log``, where ``txmq log`` can read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from txmq.runtime.disk import Disk
from txmq.runtime.entropy import SystemEntropy
from txmq_broker.config import StoreSettings
from txmq_broker.core.offsets import Offsets as GroupOffsets
from txmq_broker.core.topics import queue_counts
from txmq_broker.offline.directory import BrokerDirectory, records_behind
from txmq_broker.offline.inspection.findings import Finding, OffsetRange, offsets_in
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.index_file import path_of
from txmq_broker.store.log.identity import write_identity
from txmq_broker.store.log.segments import CUT_FOLDER, Extent, cut_folder, keep_aside
from txmq_broker.store.log.segments import path_of as log_path_of
from txmq_broker.store.message_store import MessageStore

__all__ = ["CUT_FOLDER", "AcceptLoss", "Cut", "RemoveIndex", "Repair", "RepairLoss", "plan"]


class RepairLoss(NamedTuple):
    """The bytes, records and offsets that a repair removes from the log."""

    size: int
    records: int
    offsets: list[OffsetRange]


class RemoveIndex(NamedTuple):
    """Delete an index file."""

    path: str
    finding: Finding

    def loss(self, disk: Disk) -> RepairLoss:  # noqa: ARG002 - as a cut has it
        """The messages of the missing log file; nothing if the file exists."""
        return _named_loss(self.finding) if self.finding.offsets else RepairLoss(0, 0, [])

    def carry_out(self, disk: Disk, now_ms: int) -> str | None:  # noqa: ARG002 - as a cut has it
        """Delete the index, and keep no copy.

        Raises:
            OSError: The disk refused.
        """
        disk.remove(self.path)
        return None


class Cut(NamedTuple):
    """End the log at a position."""

    position: int
    finding: Finding

    def loss(self, disk: Disk) -> RepairLoss:
        """The readable records after the position.

        Raises:
            OSError: The log cannot be read.
        """
        with BrokerDirectory(disk).log() as log:
            records, offsets = offsets_in(records_behind(log, self.position), log.record_at)
            return RepairLoss(log.end - self.position, records, offsets)

    def carry_out(self, disk: Disk, now_ms: int) -> str | None:
        """Copy the log after the position to a side folder, then cut it; return the folder.

        Each step is durable before the next one, and the last file is cut first, so an interrupted
        repair can be repeated.

        Raises:
            OSError: The disk refused.
        """
        side = cut_folder(self.position, now_ms)
        directory = BrokerDirectory(disk)
        write_identity(disk, directory.log_id, side)
        with directory.log() as log:
            extents = [extent for extent in log.extents() if extent.end > self.position]
        for extent in reversed(extents):
            if extent.start >= self.position and extent is not extents[0]:
                keep_aside(disk, extent, extent.start, side)
                disk.remove(log_path_of(extent.start))
            else:
                keep_aside(disk, extent, self.position, side)
                self._cut_file(disk, extent)
        return side

    def _cut_file(self, disk: Disk, extent: Extent) -> None:
        # The indexes stay: they prove which offsets were assigned, so that none is assigned again.
        file = disk.open(log_path_of(extent.start))
        try:
            file.truncate(self.position - extent.start)
            file.sync()
        finally:
            file.close()


class AcceptLoss(NamedTuple):
    """Accept a loss, as ``txmq serve --accept-loss`` does."""

    finding: Finding

    def loss(self, disk: Disk) -> RepairLoss:  # noqa: ARG002 - as a cut has it
        """The loss that has already happened."""
        return _named_loss(self.finding)

    def carry_out(self, disk: Disk, now_ms: int) -> str | None:
        """Record the loss in the log, so that no offset is assigned again.

        The directory must not be locked.

        Raises:
            StoreError: The broker would not start either.
            OSError: The disk refused.
        """
        keeper, offsets = Keeper(disk), GroupOffsets()
        store = MessageStore(disk, StoreSettings())
        try:
            keeper.owner = f"{store.take(SystemEntropy()):016x}"
            offsets.load(keeper.offsets())
            floors = keeper.floors()
            store.open(
                floors.floors,
                floors_end=floors.log_end,
                committed=offsets.highest(),
                topics=queue_counts(keeper.topics()),
                accept_loss="accepted in txmq log verify --repair",
                now_ms=now_ms,
            )
        finally:
            store.close()
        return None


Repair: TypeAlias = Cut | RemoveIndex | AcceptLoss


def plan(findings: Iterable[Finding]) -> list[Repair]:
    """The next repairs that let the broker start.

    A repair may make another one necessary, so inspect the directory again afterwards.
    """
    known = list(findings)
    cuts = [
        Cut(finding.cut_at, finding)
        for finding in known
        if finding.refuses_start and finding.cut_at is not None
    ]
    cut = min(cuts, key=lambda cut: cut.position, default=None)
    # The cut removes the later files of the log, so their indexes need no repair now.
    repairs: list[Repair] = [
        RemoveIndex(finding.remove, finding)
        for finding in known
        if finding.remove is not None and (cut is None or finding.remove <= path_of(cut.position))
    ]
    if cut is not None:
        repairs.append(cut)
    if not repairs:
        # The total loss is known only after the other repairs.
        repairs += [AcceptLoss(finding) for finding in known if finding.is_acceptable][-1:]
    return repairs


def _named_loss(finding: Finding) -> RepairLoss:
    count = sum(run.last - run.first + 1 for run in finding.offsets)
    return RepairLoss(finding.size or 0, count, finding.offsets)
