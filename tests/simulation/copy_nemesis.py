"""What goes wrong in a broker set: members are lost, one at a time, and beside that life is hard.

A lost machine counts until it is back. Its disk counts as well: a member is wiped only while
another one that has everything is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.copy_history import HAND_OVER, MemberBack
from tests.simulation.copy_mix import COPY_LOSSES
from tests.simulation.copy_node import MemberNode
from tests.simulation.nemesis import Nemesis
from txmq.runtime.coordinator import AllowedLoss
from txmq.testing import Loss, SeededEntropy

if TYPE_CHECKING:
    from tests.simulation.copy_stage import CopyStage

__all__ = ["CopyNemesis"]

UNFAIR = ("kill ahead", "kill twice", "pause ahead", "store emptied")
"""Losses with something else beside them that keeps copies late."""

_SLOW_BEFORE: Final = "slow disk before a power cut"


class CopyNemesis(Nemesis):
    """Does to a set what the mix has faults for."""

    ends, ends_are = COPY_LOSSES, "losses"
    fair = frozenset(COPY_LOSSES) - {*UNFAIR}
    """The losses beside which nothing keeps copies late."""
    look_s = 0.01
    _stage: CopyStage

    def _deeds(self) -> dict[str, Callable[[SeededEntropy], Awaitable[None]]]:
        return super()._deeds() | {
            "kill ahead": self._kill_ahead,
            "kill twice": self._kill_twice,
            "pause ahead": self._pause_ahead,
            "wipe": self._wipe,
            "kill at a join": self._kill_at_a_join,
            "hand-over": self._hand_over,
            "store emptied": self._empty_store,
            "members apart": self._members_apart,
            "store apart": self._store_apart,
            "client apart": self._client_apart,
            "member isolated": self._isolation,
            "connections cut": self._cut_connections,
            "store restart": self._restart_store,
            "store slow": self._slow_store,
        }

    async def _do(self, fault: str, deed, draw: SeededEntropy) -> None:
        if fault not in self.fair:
            self._stage.disturb(fault, begins=True)
        await deed(draw)
        if fault not in self.fair:
            self._stage.disturb(fault, begins=False)

    def _lose(self, node: MemberNode, how: str) -> None:
        self._stage.disturb(_SLOW_BEFORE, begins=False)
        self._stage.lose(node, how)

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

    def _slow_down(self, node: MemberNode) -> None:
        super()._slow_down(node)
        # A leader that returns has the offsets that its slow disk saved in time.
        self._stage.disturb(_SLOW_BEFORE, begins=True)

    async def _come_back(self, node: MemberNode, draw: SeededEntropy) -> None:
        await asyncio.sleep((0.0, 0.5, 4.0, 8.0)[draw.below(4)] * draw.fraction())
        if not node.machine.is_up:
            node.machine.restart()
        node.disk.slow_sync(*self._stage.mix.sync_s)
        node.start()
        # Only one member is lost at a time: it is back when it is in sync again.
        whole = self._stage.set
        await self._wait_for(lambda: whole.is_serving and node in whole.in_sync(), 5.0)

    async def _kill_ahead(self, draw: SeededEntropy) -> None:
        """The leader dies while one of its followers is behind, perhaps no longer in sync."""
        leader = self._stage.set.leader
        if leader is None:
            return
        follower = self._other(draw, leader)
        self._network.partition(leader.name, follower.name, one_way=draw.chance(0.5))
        await asyncio.sleep(0.2 + (0.5, 1.5 * self._stage.mix.lag_max)[draw.below(2)])
        self._lose(leader, "kill")
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
        self._lose(first, "kill")
        await first.kill()
        self._network.heal(first.name, behind.name)
        await self._until_another_leads(first)
        first.start()
        await asyncio.sleep(0.5 * draw.fraction())
        second = whole.leader
        if second is not None:
            self._lose(second, "kill")
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

    async def _pause(self, draw: SeededEntropy) -> None:
        """The process stands still, mostly for longer than its lease."""
        node = self._node(draw)
        self._lose(node, "pause")
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
        self._lose(first, "pause")
        first.machine.pause()
        self._network.heal(first.name, behind.name)
        await self._until_another_leads(first)
        first.machine.resume()
        self._stage.history.add(MemberBack(self._world.now(), first.name))
        await asyncio.sleep(0.5 * draw.fraction())
        second = whole.leader
        if second is not None and second is not first:
            self._lose(second, "kill")
            await second.kill()
            await self._until_another_leads(second)
            await self._come_back(second, draw)

    async def _wipe(self, draw: SeededEntropy) -> None:
        """A member loses its disk and rejoins with an empty one."""
        node = self._node(draw)
        if not self._stage.has_heir(node):
            return
        self._lose(node, "wipe")
        await node.crash(Loss.EVERYTHING)
        node.wipe()
        await self._come_back(node, draw)

    async def _kill_at_a_join(self, draw: SeededEntropy) -> None:
        """A member begins with an empty disk, and the leader dies as soon as it has joined."""
        whole, leader = self._stage.set, self._stage.set.leader
        if leader is None or not whole.is_serving or not leader.is_whole:
            return
        node = self._other(draw, leader)
        self._lose(node, "wipe")
        await node.crash(Loss.EVERYTHING)
        node.wipe()
        node.start()
        node.disk.slow_sync(*self._stage.mix.sync_s)
        await self._wait_for(lambda: node in whole.in_sync(), 5.0)
        if whole.leader is leader and node in whole.in_sync():
            self._lose(leader, "kill")
            await leader.kill()
            await self._until_another_leads(leader)
            await self._come_back(leader, draw)

    async def _hand_over(self, draw: SeededEntropy) -> None:
        """A member stops in order, and starts again."""
        node = self._node(draw)
        self._lose(node, HAND_OVER)
        await node.stop()
        await self._come_back(node, draw)

    async def _empty_store(self, draw: SeededEntropy) -> None:
        """The store loses its data; later an operator names a member that has everything."""
        coordination, whole = self._stage.coordination, self._stage.set
        in_sync = coordination.view().in_sync
        members = self._stage.members
        if len(whole.in_sync()) < len(members) or not all(node.is_whole for node in members):
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
