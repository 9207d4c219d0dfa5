"""What goes wrong in a broker set: members are lost, one at a time, and beside that life is hard.

A lost machine counts until it is back. Its disk counts as well: a member is wiped only while
another one that has everything is up.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tests.simulation.copy_history import HAND_OVER, MemberBack
from tests.simulation.copy_mix import COPY_HARDSHIPS, COPY_LOSSES
from tests.simulation.copy_node import MemberNode
from tests.simulation.nemesis import LOSSES
from txmq.runtime.coordinator import AllowedLoss
from txmq.testing import Loss, SeededEntropy
from txmq.testing.pages import PAGE

if TYPE_CHECKING:
    from tests.simulation.copy_stage import CopyStage

__all__ = ["CopyNemesis"]

CUT_S = 3.0
"""How long an operation of the disk is waited for at which the power is to go."""

LOOK_S = 0.01

UNFAIR = ("kill ahead", "kill twice", "pause ahead", "store emptied")
"""Losses with something else beside them that keeps copies late."""


class CopyNemesis:
    """Does what the mix has faults for."""

    def __init__(self, stage: CopyStage) -> None:
        self._stage = stage
        self._world = stage.world
        self._network = stage.world.network

    async def torment(self) -> None:
        """Let things go wrong for as long as the mix says."""
        faults, chaos_s = self._stage.mix.faults, self._stage.mix.chaos_s
        until = self._world.now() + chaos_s
        async with asyncio.TaskGroup() as troubles:
            for kind, among in (("losses", COPY_LOSSES), ("hardships", COPY_HARDSHIPS)):
                chosen = [fault for fault in faults if fault in among]
                if chosen:
                    draw = self._world.entropy.fork(kind)
                    troubles.create_task(self._one_after_another(draw, chosen, until))
            await asyncio.sleep(chaos_s)

    async def _one_after_another(self, draw, chosen: list[str], until: float) -> None:
        while True:
            await asyncio.sleep(self._stage.mix.pause_s * 2 * draw.fraction())
            if self._world.now() >= until:
                return
            fault = chosen[draw.below(len(chosen))]
            self._world.trace.record("fault", fault)
            is_loss = fault in COPY_LOSSES and fault not in UNFAIR
            if not is_loss:
                self._stage.disturb(fault, begins=True)
            await self._deeds[fault](self, draw)
            if not is_loss:
                self._stage.disturb(fault, begins=False)

    def _node(self, draw: SeededEntropy) -> MemberNode:
        """A member, mostly the leader."""
        leader = self._stage.set.leader
        if leader is not None and draw.chance(0.5):
            return leader
        return self._stage.members[draw.below(len(self._stage.members))]

    def _while(self, draw: SeededEntropy) -> float:
        """How long a hardship lasts: moments, or longer than a lease."""
        return (0.1, 1.0, 2.0, 8.0)[draw.below(4)] * draw.fraction()

    # Losses

    async def _come_back(self, node: MemberNode, draw: SeededEntropy) -> None:
        await asyncio.sleep((0.0, 0.5, 4.0, 8.0)[draw.below(4)] * draw.fraction())
        if not node.machine.is_up:
            node.machine.restart()
        node.disk.slow_sync(*self._stage.mix.sync_s)
        node.start()
        # Only one member is lost at a time: it is back when it is in sync again.
        whole = self._stage.set
        await self._wait_for(lambda: whole.is_serving and node in whole.in_sync(), 5.0)

    async def _kill(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        self._stage.lose(node, "kill")
        await node.kill()
        await self._come_back(node, draw)

    async def _kill_ahead(self, draw: SeededEntropy) -> None:
        """The leader dies while one of its followers is behind, perhaps no longer in sync."""
        leader = self._stage.set.leader
        if leader is None:
            return
        follower = self._other(draw, leader)
        self._network.partition(leader.name, follower.name, one_way=draw.chance(0.5))
        await asyncio.sleep(0.2 + (0.5, 1.5 * self._stage.mix.lag_max)[draw.below(2)])
        self._stage.lose(leader, "kill")
        await leader.kill()
        self._network.heal(leader.name, follower.name)
        await self._until_another_leads(leader)
        await self._come_back(leader, draw)

    async def _kill_twice(self, draw: SeededEntropy) -> None:
        """The leader dies while a follower is behind, and so does the next leader.

        The first one is up again by then.
        """
        whole, first = self._stage.set, self._stage.set.leader
        if first is None:
            return
        behind = self._other(draw, first)
        others = [node.name for node in self._stage.members if node is not first]
        self._network.partition(first.name, behind.name)
        self._network.slow(*others[:2], extra_s=0.3)
        await asyncio.sleep(0.2 + 0.5 * draw.fraction())
        self._stage.lose(first, "kill")
        await first.kill()
        self._network.heal(first.name, behind.name)
        await self._until_another_leads(first)
        first.start()
        await asyncio.sleep(0.5 * draw.fraction())
        second = whole.leader
        if second is not None:
            self._stage.lose(second, "kill")
            await second.kill()
        self._network.slow(*others[:2], extra_s=0.0)
        if second is not None:
            await self._come_back(second, draw)

    async def _until_another_leads(self, node: MemberNode) -> None:
        whole = self._stage.set
        patience_s = self._stage.mix.bound_s()
        await self._wait_for(lambda: whole.is_serving and whole.leader is not node, patience_s)

    def _other(self, draw: SeededEntropy, node: MemberNode) -> MemberNode:
        others = [other for other in self._stage.members if other is not node]
        return others[draw.below(len(others))]

    async def _power_cut(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        if draw.chance(0.5):
            node.disk.slow_sync(0.0, 0.5)
            await asyncio.sleep(draw.fraction())
        self._stage.lose(node, "power cut")
        await node.crash(LOSSES[draw.below(len(LOSSES))])
        await self._come_back(node, draw)

    async def _power_cut_at_an_event(self, draw: SeededEntropy) -> None:
        """The power goes at some operation of the disk, perhaps while the member starts."""
        node = self._node(draw)
        if draw.chance(0.3):
            self._stage.lose(node, "power cut")
            await node.kill()
            node.start()
            await asyncio.sleep(0)
        wire = node.wire
        if wire is None:
            return
        loss = LOSSES[draw.below(len(LOSSES))]
        countdown = 1 + draw.below((2, 6, 40)[draw.below(3)])

        def cut() -> None:
            self._stage.lose(node, "power cut")
            node.is_wanted = False
            node.machine.crash(loss)

        if draw.chance(0.3):
            wire.after_sync(countdown, cut)
        else:
            wire.before(countdown, cut, ("", "write", "sync", "create")[draw.below(4)])
        await self._wait_for(lambda: not node.machine.is_up, CUT_S)
        wire.clear()
        if not node.machine.is_up:
            await node.gone()
            await self._come_back(node, draw)

    async def _pause(self, draw: SeededEntropy) -> None:
        """The process stands still, mostly for longer than its lease."""
        node = self._node(draw)
        self._stage.lose(node, "pause")
        node.machine.pause()
        await asyncio.sleep(self._stage.mix.lease * (0.2 + 2 * draw.fraction()))
        node.machine.resume()
        self._stage.history.add(MemberBack(self._world.now(), node.name))

    async def _pause_ahead(self, draw: SeededEntropy) -> None:
        """The leader stands still while a follower is behind, and goes on beside the next leader.

        Then that one dies.
        """
        whole, first = self._stage.set, self._stage.set.leader
        if first is None:
            return
        behind = self._other(draw, first)
        self._network.partition(first.name, behind.name)
        await asyncio.sleep(0.2 + (0.5, 1.5 * self._stage.mix.lag_max)[draw.below(2)])
        self._stage.lose(first, "pause")
        first.machine.pause()
        self._network.heal(first.name, behind.name)
        await self._until_another_leads(first)
        first.machine.resume()
        self._stage.history.add(MemberBack(self._world.now(), first.name))
        await asyncio.sleep(0.5 * draw.fraction())
        second = whole.leader
        if second is not None and second is not first:
            self._stage.lose(second, "kill")
            await second.kill()
            await self._until_another_leads(second)
            await self._come_back(second, draw)

    async def _wipe(self, draw: SeededEntropy) -> None:
        """A member loses its disk and rejoins with an empty one."""
        node = self._node(draw)
        others = [other for other in self._stage.set.in_sync() if other is not node]
        if not any(other.machine.is_up for other in others):
            return
        self._stage.lose(node, "wipe")
        await node.crash(Loss.EVERYTHING)
        node.wipe()
        await self._come_back(node, draw)

    async def _kill_at_a_join(self, draw: SeededEntropy) -> None:
        """A member begins with an empty disk, and the leader dies as soon as it has joined."""
        whole, leader = self._stage.set, self._stage.set.leader
        if leader is None or not whole.is_serving:
            return
        node = self._other(draw, leader)
        self._stage.lose(node, "wipe")
        await node.crash(Loss.EVERYTHING)
        node.wipe()
        node.start()
        node.disk.slow_sync(*self._stage.mix.sync_s)
        await self._wait_for(lambda: node in whole.in_sync(), 5.0)
        if whole.leader is leader and node in whole.in_sync():
            self._stage.lose(leader, "kill")
            await leader.kill()
            await self._until_another_leads(leader)
            await self._come_back(leader, draw)

    async def _hand_over(self, draw: SeededEntropy) -> None:
        """A member stops in order, and starts again."""
        node = self._node(draw)
        self._stage.lose(node, HAND_OVER)
        await node.stop()
        await self._come_back(node, draw)

    async def _empty_store(self, draw: SeededEntropy) -> None:
        """The store loses its data; later an operator names a member that has everything."""
        coordination, whole = self._stage.coordination, self._stage.set
        in_sync = coordination.view().in_sync
        if len(whole.in_sync()) < len(self._stage.members):
            return  # A member that has seen no epoch would begin a set of its own.
        coordination.forget()
        await asyncio.sleep(self._stage.mix.lease * (1.0 + draw.fraction()))
        chosen = in_sync[draw.below(len(in_sync))]
        coordination.allow_loss(coordination.view(), AllowedLoss(chosen, "Li Na", "", 0, ()))
        await self._wait_for(lambda: whole.is_serving, self._stage.mix.bound_s())

    # Hardships

    async def _members_apart(self, draw: SeededEntropy) -> None:
        one, other = self._node(draw), self._node(draw)
        if one is other:
            return
        self._network.partition(one.name, other.name, one_way=draw.chance(0.3))
        await asyncio.sleep(self._while(draw))
        self._network.heal(one.name, other.name)

    async def _store_apart(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        self._stage.coordination.partition(node.name)
        await asyncio.sleep(self._while(draw))
        self._stage.coordination.heal(node.name)

    async def _client_apart(self, draw: SeededEntropy) -> None:
        clients = self._stage.clients
        one, other = self._node(draw).name, clients[draw.below(len(clients))].name
        self._network.partition(one, other, one_way=draw.chance(0.3))
        await asyncio.sleep(self._while(draw))
        self._network.heal(one, other)

    async def _isolation(self, draw: SeededEntropy) -> None:
        """A member loses its network; mostly its way to the store as well."""
        node, is_whole = self._node(draw), draw.chance(0.7)
        self._network.isolate(node.name)
        if is_whole:
            self._stage.coordination.partition(node.name)
        await asyncio.sleep(self._while(draw))
        self._network.heal(node.name)
        self._stage.coordination.heal(node.name)

    async def _cut_connections(self, draw: SeededEntropy) -> None:
        others = [*self._stage.members, *self._stage.clients]
        one, other = self._node(draw).name, others[draw.below(len(others))].name
        self._network.cut(one, other)

    async def _restart_store(self, draw: SeededEntropy) -> None:
        for _ in range(1 + draw.below(4)):
            self._stage.coordination.restart()
            await asyncio.sleep(0.2 * draw.fraction())

    async def _slow_store(self, draw: SeededEntropy) -> None:
        self._stage.coordination.delay = (0.1, 0.5, 2.0)[draw.below(3)]
        await asyncio.sleep(self._while(draw))
        self._stage.coordination.delay = 0.002

    async def _slow_network(self, draw: SeededEntropy) -> None:
        others = [*self._stage.members, *self._stage.clients]
        one, other = self._node(draw).name, others[draw.below(len(others))].name
        self._network.slow(one, other, (0.05, 0.5, 2.0)[draw.below(3)])
        await asyncio.sleep(self._while(draw))
        self._network.slow(one, other, 0.0)

    async def _slow_disk(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        node.disk.slow_sync(0.0, (0.1, 1.0, 4.0)[draw.below(3)])
        await asyncio.sleep(self._while(draw))
        node.disk.slow_sync(*self._stage.mix.sync_s)

    async def _full_disk(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        node.disk.capacity = node.disk.space().used + PAGE * draw.below(6)
        await asyncio.sleep(self._while(draw))
        node.disk.capacity = None

    async def _failed_writes(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        node.disk.fail_writes(1 + draw.below(4), (errno.EIO, errno.ENOSPC)[draw.below(2)])
        await asyncio.sleep(self._while(draw))
        node.disk.repair()

    async def _wait_for(self, condition: Callable[[], bool], within_s: float) -> None:
        deadline = self._world.now() + within_s
        while not condition() and self._world.now() < deadline:
            await asyncio.sleep(LOOK_S)

    _deeds: dict[str, Callable[[CopyNemesis, SeededEntropy], Awaitable[None]]] = {
        "kill": _kill,
        "kill ahead": _kill_ahead,
        "kill twice": _kill_twice,
        "power cut": _power_cut,
        "power cut at an event": _power_cut_at_an_event,
        "pause": _pause,
        "pause ahead": _pause_ahead,
        "wipe": _wipe,
        "kill at a join": _kill_at_a_join,
        "hand-over": _hand_over,
        "store emptied": _empty_store,
        "members apart": _members_apart,
        "store apart": _store_apart,
        "client apart": _client_apart,
        "member isolated": _isolation,
        "connections cut": _cut_connections,
        "store restart": _restart_store,
        "store slow": _slow_store,
        "slow network": _slow_network,
        "slow disk": _slow_disk,
        "full disk": _full_disk,
        "failed writes": _failed_writes,
    }
