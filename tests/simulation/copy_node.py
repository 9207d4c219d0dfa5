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
from txmq.testing import Machine, MemoryDisk, World
from txmq.testing.coordination import SimulatedCoordination
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings
from txmq_broker.member import SetMember
from txmq_broker.store.log.segments import path_of

__all__ = ["MemberNode", "SetNode", "WatchedCoordination", "machine_of"]


def machine_of(member: str) -> str:
    """The machine of a member, whose name in the store has a token behind it."""
    return member.partition(".")[0]


class WatchedCoordination(SimulatedCoordination):
    """The store of the set, which tells the history of its changes."""

    def __init__(self, world: World, history: History) -> None:
        super().__init__(world.entropy.fork("store"))
        self._world = world
        self._history = history

    def _change(self, view: View) -> None:
        super()._change(view)
        leader = view.leader.member if view.leader else ""
        self._history.add(SetChanged(self._world.now(), leader, view.epoch, view.in_sync))


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
