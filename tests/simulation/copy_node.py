"""A member of a broker set on a machine of its own, and the set as one broker."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

from tests.simulation.copy_history import CopyRead, Leading, SetChanged
from tests.simulation.history import History
from tests.simulation.node import Node, Tripwire
from txmq.errors import ForeignFile, StoreError
from txmq.runtime.coordinator import View
from txmq.testing import Loss, Machine, MemoryDisk, SeededEntropy, World
from txmq.testing.coordination import SimulatedCoordination
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings
from txmq_broker.processes.member import SetMember
from txmq_broker.store.log.segments import path_of

__all__ = ["MemberNode", "SetNode", "WatchedCoordination", "durable_end", "machine_of"]

TAIL_MAX = 60_000
"""So many bytes are lost at most where a tail is lost."""


def machine_of(member: str) -> str:
    """The machine of a member, whose name in the store has a token behind it."""
    return member.partition(".")[0]


def log_files(disk: MemoryDisk) -> list[tuple[str, int, int]]:
    """The files of a log: path, first position and durable size."""
    starts = sorted(int(name.partition(".")[0]) for name in disk.names("log"))
    return [(path_of(start), start, len(disk.durable(path_of(start)))) for start in starts]


def durable_end(disk: MemoryDisk) -> int:
    """Where a log ends after a loss of power."""
    files = log_files(disk)
    return files[-1][1] + files[-1][2] if files else 0


class WatchedCoordination(SimulatedCoordination):
    """The store of the set, which tells the history of its changes."""

    def __init__(self, world: World, history: History) -> None:
        super().__init__(world.entropy.fork("store"))
        self._world = world
        self._history = history

    def _change(self, view: View) -> None:
        super()._change(view)
        leader = view.leader.member if view.leader else ""
        removed = tuple(act.member for act in view.removed)
        self._history.add(SetChanged(self._world.now(), leader, view.epoch, view.in_sync, removed))


class MemberNode(Node):
    """A machine with one member."""

    def __init__(
        self,
        world: World,
        name: str,
        settings: Callable[[Machine], BrokerSettings],
        coordination: WatchedCoordination,
        history: History,
    ) -> None:
        super().__init__(world, name)
        self.settings = settings(self.machine)
        self.address = self.settings.listen
        self.member: SetMember | None = None
        self.wire: Tripwire | None = None
        self.on_leading: Callable[[MemberNode], None] = _nothing
        self.leads = 0
        self._coordination = coordination
        self._history = history
        self._disks = 1
        self._flipped: dict[int, bytes] = {}
        """What stood at each position of the log at which bits were flipped."""
        self._must_reach = 0
        """Where the log has to end before this disk has again what it has lost."""

    @property
    def disk(self) -> MemoryDisk:
        """The disk of the machine's present life, with its faults."""
        return self.machine.disk

    @property
    def is_leading(self) -> bool:
        """Whether it serves clients, or believes so."""
        return self.member is not None and self.member.broker is not None

    @property
    def is_following(self) -> bool:
        """Whether it follows a leader, or tries to."""
        return self.member is not None and self.member.follower is not None

    @property
    def is_running(self) -> bool:
        """Whether it runs, and is meant to."""
        return self.member is not None and self.is_wanted

    def name_in_set(self) -> str:
        """Its name in the in-sync set, which belongs to its disk; empty before its first start."""
        try:
            token = self.disk.durable("member").decode().strip()
        except FileNotFoundError:
            return ""
        return f"{self.name}.{token}"

    def wipe(self) -> None:
        """Put an empty disk into a machine that is down."""
        self._disks += 1
        self.machine.disk = MemoryDisk(self.machine.entropy.fork(f"disk {self._disks}"))

    # Damage

    def snapshot(self) -> MemoryDisk:
        """The disk as a loss of power would leave it now."""
        disk = self.disk.clone()
        disk.crash(loss=Loss.ANY)
        return disk

    def put_back(self, disk: MemoryDisk) -> None:
        """Give a machine on which nothing runs the disk that it had some time ago."""
        self._must_reach = max(self._must_reach, self.durable_end())
        self.machine.disk = disk

    def lose_tail(self, draw: SeededEntropy, *, with_mark: bool) -> int:
        """Cut the newest file of the log, of a member that does not run; return how much is gone.

        Args:
            draw: Decides how much.
            with_mark: Whether the high-water mark, which would show it, is lost as well.
        """
        files = log_files(self.disk)
        if not files:
            return 0
        path, _, size = files[-1]
        # A log that is there without a mark shows that something is wrong.
        most = min(size - with_mark, TAIL_MAX)
        lost = 1 + draw.below(most) if most > 0 else 0
        self._must_reach = max(self._must_reach, self.durable_end())
        self.disk.cut_tail(path, size - lost)
        if with_mark and "high-water" in self.disk.names(""):
            self.disk.remove("high-water")
        return lost

    def flip_bit(
        self, draw: SeededEntropy, limit: int, *, since: int = 0, only_closed: bool
    ) -> int | None:
        """Flip a bit of the log; return where, or nothing if there is no such file.

        Args:
            draw: Decides where.
            limit: The position before which it must be.
            since: The position from which on it may be.
            only_closed: Whether the newest file, which is being written, is spared.
        """
        files = log_files(self.disk)
        files = files[:-1] if only_closed else files
        files = [file for file in files if file[1] < limit and file[1] + file[2] > since]
        if not files:
            return None
        path, start, size = files[draw.below(len(files))]
        low, high = max(since - start, 0), min(size, limit - start)
        at = low + draw.below(high - low)
        self._flipped.setdefault(start + at, self.disk.durable(path)[at : at + 1])
        self.disk.flip_bit(path, at, draw.below(8))
        return start + at

    @property
    def is_damaged(self) -> bool:
        """Whether a bit that was flipped is still wrong."""
        self._flipped = {at: was for at, was in self._flipped.items() if self._byte(at) != was}
        return bool(self._flipped)

    @property
    def is_whole(self) -> bool:
        """Whether its disk has again, durably, all that it lost."""
        return not self.is_damaged and self.durable_end() >= self._must_reach

    def has_flipped(self, start: int, size: int) -> bool:
        """Whether a bit was flipped in this part of the log, and may still be wrong."""
        return any(start <= at < start + size for at in self._flipped)

    def durable_end(self) -> int:
        """Where the log ends after a loss of power."""
        return durable_end(self.disk)

    def _byte(self, position: int) -> bytes:
        for path, start, size in log_files(self.disk):
            if start <= position < start + size:
                return self.disk.durable(path)[position - start : position - start + 1]
        return b""

    # What it has

    def read_copy(self) -> CopyRead:
        """The files of its log."""
        files = {}
        for name in self.disk.names("log"):
            file = self.disk.open(f"log/{name}")
            data = file.read(0, file.size())
            files[name] = len(data), zlib.crc32(data)
            file.close()
        return CopyRead(self.world.now(), self.name, files)

    def durable_record(self, position: int) -> bytes | None:
        """The record that its disk keeps at a position of the log; ``None`` if it is not whole."""
        starts = [int(name.partition(".")[0]) for name in self.disk.names("log")]
        start = max((start for start in starts if start <= position), default=None)
        if start is None:
            return None
        data = self.disk.durable(path_of(start))[position - start :]
        size = int.from_bytes(data[:4])
        return data[:size] if 0 < size <= len(data) else None

    async def _serve(self) -> None:
        machine = self.machine
        self.wire = Tripwire(machine.disk)
        self.wire.clear()
        member = self.member = SetMember(
            self.settings,
            self._coordination.coordinator(self.name),
            clock=machine.clock,
            network=machine.network,
            disk=self.wire,
            entropy=machine.entropy,
            on_leading=self._leads,
        )
        running = asyncio.create_task(member.run(), name="member")
        leaving = asyncio.create_task(self._leave.wait())
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        member.stop()
        try:
            await running
        except ForeignFile as error:
            # The checkers say that members have different logs.
            raise StoreError(str(error)) from error
        finally:
            self.member = None

    def _leads(self, broker: Broker) -> None:
        self.leads += 1
        self._history.add(Leading(self.world.now(), self.name, broker.store.log.epoch))
        self.on_leading(self)

    def _went_down(self, how: str, *, kept: bool = False) -> None:
        self.member = None


class SetNode:
    """A broker set, to those that know it as one broker."""

    def __init__(
        self, name: str, members: Sequence[MemberNode], coordination: WatchedCoordination
    ) -> None:
        self.name = name
        self.members = members
        self.on_serving: Callable[[SetNode], None] = _unwatched
        self._coordination = coordination
        for member in members:
            member.on_leading = self._leads

    @property
    def leader(self) -> MemberNode | None:
        """The member that the store calls the leader."""
        leader = self._coordination.view().leader
        return None if leader is None else self._named(machine_of(leader.member))

    def _named(self, name: str) -> MemberNode:
        return next(member for member in self.members if member.name == name)

    @property
    def address(self) -> str:
        """Where the leader listens; without one, where the first member does."""
        return (self.leader or self.members[0]).address

    @property
    def is_serving(self) -> bool:
        """Whether a leader serves."""
        return self.leader is not None and self.leader.is_leading

    @property
    def lives(self) -> int:
        """How often a member began to lead."""
        return sum(member.leads for member in self.members)

    def in_sync(self) -> list[MemberNode]:
        """The members that the store calls in sync."""
        names = self._coordination.view().in_sync
        return [member for member in self.members if member.name_in_set() in names]

    def start(self) -> None:
        """Run all members."""
        for member in self.members:
            member.start()

    async def stop(self) -> None:
        """Let all members end, the leader last."""
        leader = self.leader
        for member in self.members:
            if member is not leader:
                await member.stop()
        if leader is not None:
            await leader.stop()

    def _leads(self, member: MemberNode) -> None:
        self.on_serving(self)


def _nothing(node: MemberNode) -> None:
    pass


def _unwatched(node: SetNode) -> None:
    pass
