"""What damages the disks of a broker set, and what happens to several of its machines at once.

A disk is damaged only while another member is up that has everything, on a sound disk. What only
one disk had, and lost, a set cannot keep; there it must refuse to go on until a person decides.

Nor does a disk lose anything of which there is no sign: the store of the set knows what was
acknowledged up to a second ago, and what came later only the other members know. Where they cannot
be heard, nothing tells an older state from the newest one.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

from tests.simulation.copy_history import LOSE_COPIES, AllBack, Damaged, Mended, WritesFail
from tests.simulation.copy_mix import COPY_DAMAGES, COPY_HARDSHIPS, COPY_LOSSES
from tests.simulation.copy_nemesis import CopyNemesis
from tests.simulation.copy_node import MemberNode, durable_end
from tests.simulation.nemesis import LOSSES
from tests.simulation.workload import TROUBLE
from txmq.client import Admin, Session
from txmq.errors import ConfigError
from txmq.testing import MemoryDisk, SeededEntropy

__all__ = ["DamageNemesis"]

ELECTION_S = (1.0, 3.0)
"""How long the store is without a leader of its own, at least and at most."""

MENDED_S = 15.0
"""How long a deed waits for a disk to be whole again; nothing else is lost before that."""

OPERATOR = "Li Na"


class DamageNemesis(CopyNemesis):
    """Does also what more than a single loss of a machine or a directory is."""

    ends = COPY_LOSSES + COPY_DAMAGES
    fair = CopyNemesis.fair | {*COPY_DAMAGES} - {"last copy older"}

    def _deeds(self):
        return super()._deeds() | {
            "lost tail": self._lose_tail,
            "older state": self._go_back,
            "bits flipped": self._flip_bits,
            "all at once": self._all_at_once,
            "leaders together": self._leaders_together,
            "writes fail": self._fail_writes,
            "no room": self._fill_disk,
            "removal": self._remove,
            "last copy older": self._last_goes_back,
        }

    # One disk

    async def _lose_tail(self, draw: SeededEntropy) -> None:
        """A member is killed, and the end of its newest file is gone when it comes back."""
        node = self._node(draw)
        if not self._stage.has_heir(node):
            return
        self._lose(node, "lost tail")
        await node.kill()
        # The high-water mark survives a kill: that it is gone, or knows more, is a sign.
        node.lose_tail(draw, with_mark=draw.chance(0.5))
        await self._come_back(node, draw)
        await self._until_whole(node)

    async def _go_back(self, draw: SeededEntropy) -> None:
        """A member is killed, and comes back with its directory as it was some time before."""
        node = self._node(draw)
        before = node.snapshot()
        await asyncio.sleep((0.5, 3.0, 8.0)[draw.below(3)] * draw.fraction())
        if not (self._stage.has_heir(node) and self._is_known_to_lack(before)):
            return
        self._lose(node, "older state")
        await node.kill()
        node.put_back(before)
        await self._come_back(node, draw)
        await self._until_whole(node)

    async def _flip_bits(self, draw: SeededEntropy) -> None:
        """Bits of one member or two are flipped, at different places, mostly while they run."""
        first = self._node(draw)
        nodes = [first, self._other(draw, first)][: 1 + draw.chance(0.3)]
        is_stopped = draw.chance(0.3)
        flipped = []
        for node in nodes:
            if not self._stage.has_heir(node):
                continue
            if is_stopped:
                self._lose(node, "kill")
                await node.kill()
            if self._stage.flip_bits(node, draw, 1 + draw.below(3), only_closed=not is_stopped):
                flipped.append(node)
        for node in flipped:
            self._stage.history.add(Damaged(self._world.now(), node.name))
        if is_stopped:
            for node in nodes:
                await self._come_back(node, draw)
        for node in flipped:
            await self._wait_for(lambda node=node: not node.is_damaged, MENDED_S)
            if not node.is_damaged:
                self._stage.history.add(Mended(self._world.now(), node.name))

    def _is_known_to_lack(self, disk: MemoryDisk) -> bool:
        """Whether the store of the set knows that a disk lacks something."""
        acknowledged = self._stage.coordination.acknowledged
        return acknowledged is not None and durable_end(disk) < acknowledged.position

    @property
    def _is_peaceful(self) -> bool:
        """Whether nothing ever keeps members from hearing each other."""
        return set(COPY_HARDSHIPS).isdisjoint(self._stage.mix.faults)

    async def _until_whole(self, node: MemberNode) -> None:
        await self._wait_for(lambda: node.is_whole, MENDED_S)

    # Several machines

    async def _all_at_once(self, draw: SeededEntropy) -> None:
        """All members and the store go down; one of them may come back with less than it had."""
        stage = self._stage
        harmed, how = self._node(draw), ("power cut", *LOSE_COPIES[1:])[draw.below(3)]
        before = harmed.snapshot()
        await asyncio.sleep((0.5, 3.0)[draw.below(2)] * draw.fraction())
        is_known = how == "lost tail" or self._is_known_to_lack(before)
        if not stage.has_heir(harmed) or not (is_known or self._is_peaceful):
            how = "power cut"
        if draw.chance(0.8):
            stage.coordination.stop()
        await self._end_all(draw, harmed, how)
        self._harm(draw, harmed, how, before)
        # What the store does not know, a member can learn from the others alone.
        pauses = (0.0, 0.5, 2.0 * stage.mix.lease) if is_known else (0.0, 0.0, 0.3)
        nodes = self._shuffled(draw)
        if is_known and draw.chance(0.5):
            nodes.remove(harmed)
            if not stage.coordination.is_up:
                stage.coordination.start()
            self._start(harmed)
            await asyncio.sleep((stage.mix.lease + 4.0) * (0.5 + draw.fraction()))
        for node in nodes:
            await asyncio.sleep(pauses[draw.below(3)] * draw.fraction())
            if not stage.coordination.is_up and draw.chance(0.5):
                stage.coordination.start()
            self._start(node)
        if not stage.coordination.is_up:
            stage.coordination.start()
        stage.history.add(AllBack(self._world.now()))
        whole = stage.set
        await self._wait_for(lambda: whole.is_serving, stage.mix.bound_s())
        await self._until_whole(harmed)

    def _start(self, node: MemberNode) -> None:
        node.start()
        node.disk.slow_sync(*self._stage.mix.sync_s)

    async def _end_all(self, draw: SeededEntropy, harmed: MemberNode, how: str) -> None:
        is_power_cut = draw.chance(0.5)
        for node in self._stage.members:
            self._lose(node, how if node is harmed else "power cut")
            node.is_wanted = False
            # After a power cut, the high-water mark of a lost tail may be as old as the rest.
            if is_power_cut and (node is not harmed or how != "lost tail"):
                node.machine.crash(LOSSES[draw.below(len(LOSSES))])
            else:
                node.machine.kill()
        for node in self._stage.members:
            await node.gone()

    def _harm(self, draw: SeededEntropy, node: MemberNode, how: str, before: MemoryDisk) -> None:
        if how == "older state":
            node.put_back(before)
        elif how == "lost tail":
            node.lose_tail(draw, with_mark=draw.chance(0.5))

    def _shuffled(self, draw: SeededEntropy) -> list[MemberNode]:
        left, nodes = [*self._stage.members], []
        while left:
            nodes.append(left.pop(draw.below(len(left))))
        return nodes

    async def _leaders_together(self, draw: SeededEntropy) -> None:
        """The leader dies while the store has no leader of its own."""
        stage, leader = self._stage, self._stage.set.leader
        if leader is None:
            return
        stage.disturb("store down", begins=True)
        stage.coordination.stop()
        self._lose(leader, "kill")
        await leader.kill()
        least, most = ELECTION_S
        await asyncio.sleep(least + (most - least) * draw.fraction())
        stage.coordination.start()
        stage.disturb("store down", begins=False)
        # Its lease lasts its whole time from now on.
        stage.history.add(AllBack(self._world.now()))
        await self._until_another_leads(leader)
        await self._come_back(leader, draw)

    # A leader that can write nothing

    async def _fail_writes(self, draw: SeededEntropy) -> None:
        """Every write of the leader fails, until another member has led for a while."""
        await self._stop_writes(draw, lambda disk: disk.fail_writes(error=errno.EIO))

    async def _fill_disk(self, draw: SeededEntropy) -> None:
        """The leader's disk is full, until another member has led for a while."""

        def fill(disk: MemoryDisk) -> None:
            disk.capacity = disk.space().used

        await self._stop_writes(draw, fill)

    async def _stop_writes(self, draw: SeededEntropy, stop) -> None:
        stage, leader = self._stage, self._stage.set.leader
        if leader is None or not stage.set.is_serving:
            return
        stage.history.add(WritesFail(self._world.now(), leader.name, stage.has_heir(leader)))
        stop(leader.disk)
        await asyncio.sleep(stage.mix.bound_s() + 3.0 * draw.fraction())
        leader.disk.repair()
        leader.disk.capacity = None
        whole = stage.set
        await self._wait_for(lambda: whole.is_serving and leader in whole.in_sync(), 5.0)

    # Operators

    async def _remove(self, draw: SeededEntropy) -> None:
        """An operator removes a follower, and lets it back; between, the leader may die."""
        stage, leader = self._stage, self._stage.set.leader
        if leader is None:
            return
        node = self._other(draw, leader)
        store = stage.coordination
        machine = self._world.machine("operator of the set")
        ports = (machine.network, machine.clock, machine.entropy)
        async with Session(stage.names_text, *ports) as session:
            admin, known = Admin(session), {"reason": "a test", "operator": OPERATOR}
            with suppress(*TROUBLE, ConfigError):
                await admin.remove_member(
                    stage.set.name, node.name, allow_refused_sends=True, **known
                )
            await asyncio.sleep(3.0 * draw.fraction())
            if draw.chance(0.5) and stage.set.leader is leader and stage.has_heir(leader):
                self._lose(leader, "kill")
                await leader.kill()
                await self._until_another_leads(leader)
                await self._come_back(leader, draw)
            while store.view().removal_of(node.name) is not None:
                with suppress(*TROUBLE, ConfigError):
                    await admin.rejoin_member(stage.set.name, node.name, **known)
                await asyncio.sleep(0.5)
        await self._wait_for(lambda: node in stage.set.in_sync(), 5.0)

    async def _last_goes_back(self, draw: SeededEntropy) -> None:
        """The only member in sync comes back older than the others know: a person decides."""
        stage, whole, leader = self._stage, self._stage.set, self._stage.set.leader
        others = [node for node in stage.members if node is not leader]
        if leader is None or len(whole.in_sync()) < len(stage.members):
            return
        before = leader.snapshot()
        for node in others:
            stage.coordination.partition(node.name)
            self._network.partition(leader.name, node.name)
        await self._wait_for(lambda: whole.in_sync() == [leader], stage.mix.lag_max + 5.0)
        await asyncio.sleep(2.0 * draw.fraction())
        if whole.in_sync() == [leader] and self._is_known_to_lack(before):
            self._lose(leader, "older state")
            await leader.kill()
            leader.put_back(before)
        for node in others:
            stage.coordination.heal(node.name)
            self._network.heal(leader.name, node.name)
        leader.start()
        await self._wait_for(lambda: whole.is_serving, stage.mix.bound_s())
        if not whole.is_serving:
            stage.allow_loss(stage.members[draw.below(len(stage.members))])
            await self._wait_for(lambda: whole.is_serving, stage.mix.bound_s())
