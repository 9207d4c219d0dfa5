"""A shelf as a leader, and a copy of its log; the requests between the two are plain calls."""

from __future__ import annotations

from copy import deepcopy
from functools import wraps

from tests.unit.store.delay_shelf import DelayShelf
from txmq.protocol.bodies import ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.protocol.copies import CopiedTables
from txmq.protocol.span import ends_in
from txmq.runtime.clock import SystemClock
from txmq.testing import MemoryDisk, SeededEntropy, simulate
from txmq_broker.core.offsets import Offsets
from txmq_broker.offline.inspection.directory_inspection import Inspection
from txmq_broker.replication.log_copy import LogCopy
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.log.spans import heads_of

__all__ = ["FollowedShelf", "LeadingShelf", "damage_in", "in_virtual_time", "log_of", "promoted"]


def in_virtual_time(scenario):
    """Run a coroutine test in its own world."""

    @wraps(scenario)
    def test(**given):
        async def run(world):
            await scenario(**given)

        simulate(run, 0, timeout=600.0)

    return test


class LeadingShelf(DelayShelf):
    """A leader's store. The shelf keeps its floors, and tests set its committed offsets."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.offsets = {}

    def tables(self):
        return CopiedTables(
            TopicConfigs({}), GroupConfigs({}), ConsumerOffsets(deepcopy(self.offsets)), self.floors
        )

    def spans_at(self, position, most):
        """What a leader sends from a position on, and where its file begins."""
        segments = self.store.log.segments
        extent = segments.extent_at(position)
        data = segments.read(position, extent.end - position)
        ends = list(ends_in(data, position))
        end = max([end for end in ends if end - position <= most], default=ends[0])
        return data[: end - position], extent.start

    def heads(self):
        segments = self.store.log.segments
        return [head for extent in segments.extents() for head in heads_of(segments, extent)]


class FollowedShelf:
    """The copy of a leading shelf's log."""

    def __init__(self, leader, disk=None, *, is_lazy=False):
        self.is_lazy = is_lazy
        self.leader = leader
        self.disk = MemoryDisk() if disk is None else disk
        self.copy = LogCopy(self.disk, leader.sizes, SystemClock(), SeededEntropy(2))
        try:
            self.copy.lock()
        except BaseException:
            self.copy._store.close()
            raise

    async def join(self):
        """Compare the histories as a follower does, and cut what the leader does not have."""
        leader, copy = self.leader, self.copy
        segments = leader.store.log.segments
        copy.open_as(segments.log_id, segments.start, leader.tables())
        heads = leader.heads()
        is_shared = copy.last in heads if copy.last else copy.end == segments.start
        if not is_shared:
            copy.cut_back(self.last_shared(), segments.start, leader.tables())
        copy.take_tables(leader.tables(), segments.end)
        await copy.sync()

    def last_shared(self):
        heads = self.leader.heads()
        own = (self.copy.head_at(at) for file in self.copy.span_starts() for at in file[::-1])
        return next((head for head in own if head in heads), None)

    async def follow(self, most=2500, end=None):
        """Copy the leader's log, up to a position or to its end."""
        leader, copy = self.leader, self.copy
        end = leader.store.log.end if end is None else end
        while copy.end < end:
            spans, file_start = leader.spans_at(copy.end, min(most, end - copy.end))
            copy.take_spans(spans, file_start, leader.store.log.epoch)
            if not self.is_lazy:
                await copy.index()
            await copy.drop_files_before(leader.store.log.start)
        await copy.drop_files_before(leader.store.log.start)
        copy.take_tables(leader.tables(), leader.store.log.end)
        await copy.sync()

    async def join_and_follow(self, **given):
        await self.join()
        await self.follow(**given)

    async def close(self):
        await self.copy.close()


def log_of(disk):
    """The log files on a disk, without an empty newest file."""
    found = {}
    for name in disk.names("log"):
        file = disk.open(f"log/{name}")
        found[name] = file.read(0, file.size())
        file.close()
    return {name: data for name, data in found.items() if data}


def promoted(disk, sizes):
    """A leader's store on a directory that a follower has left, as its broker opens it."""
    keeper = Keeper(disk)
    state = keeper.copy_state()
    floors = keeper.floors()
    offsets = Offsets()
    offsets.load(keeper.offsets())
    known = {"floors_end": floors.log_end, "committed": offsets.highest()}
    return LeadingShelf(disk, sizes, floors.floors, is_copy=state.is_copy, **known)


def damage_in(disk):
    """The findings of an inspection, except for files that a crash may tear in any broker."""
    return [
        finding
        for finding in Inspection(disk).findings()
        if finding.severity != "note"
        and not finding.file.endswith(".old")
        and finding.kind != "mark-damaged"
    ]
