"""What goes wrong, and when: two kinds of trouble side by side, one after another within each kind.

*Ends* bring a broker down and up again. *Hardships* make life hard for a while and pass: networks,
disks, clocks, peers that do not read. Everything is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from tests.simulation.node import BrokerNode, NamesNode
from tests.simulation.workload import Client
from txmq.protocol import command
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.headers import PullMessage
from txmq.testing import Loss, SeededEntropy
from txmq.testing.pages import PAGE

if TYPE_CHECKING:
    from tests.simulation.stage import Stage

__all__ = ["ENDS", "Nemesis", "SlowReader"]

Deed = Callable[[], Awaitable[None]]

ENDS = ("power cut", "power cut at an event", "failed sync", "kill", "stop")
LOSSES = (Loss.ANY, Loss.NOTHING, Loss.EVERYTHING, Loss.TAIL, Loss.PAGES)
FAIL_STOP_S = 3.0
"""How long a sync that will fail is waited for."""

LOOK_S = 0.03
"""How often it is looked whether something has come about."""


class Nemesis:
    """Causes the faults of the mix until it is told to stop."""

    ends, ends_are = ENDS, "ends"
    look_s = LOOK_S

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._world = stage.world
        self._network = stage.world.network
        self._clients: Sequence[Client] = stage.clients

    async def torment(self) -> None:
        """Cause faults for as long as the mix says."""
        faults = self._stage.mix.faults
        until = self._world.now() + self._stage.mix.chaos_s
        async with asyncio.TaskGroup() as troubles:
            for kind, chosen in (
                (self.ends_are, [fault for fault in faults if fault in self.ends]),
                ("hardships", [fault for fault in faults if fault not in self.ends]),
            ):
                if chosen:
                    draw = self._world.entropy.fork(kind)
                    troubles.create_task(self._one_after_another(draw, chosen, until))
            await asyncio.sleep(self._stage.mix.chaos_s)

    def _deeds(self) -> dict[str, Callable[[SeededEntropy], Awaitable[None]]]:
        return {
            "power cut": self._power_cut,
            "power cut at an event": self._power_cut_at_an_event,
            "failed sync": self._failed_sync,
            "kill": self._kill,
            "stop": self._stop,
            "names away": self._names_away,
            "client crash": self._client_crash,
            "partition": self._partition,
            "one-way partition": self._one_way_partition,
            "isolation": self._isolation,
            "cut connections": self._cut_connections,
            "slow network": self._slow_network,
            "slow disk": self._slow_disk,
            "full disk": self._full_disk,
            "failed writes": self._failed_writes,
            "read-only disk": self._read_only_disk,
            "clock jump": self._clock_jump,
            "clock drift": self._clock_drift,
            "pause": self._pause,
            "slow reader": self._slow_reader,
        }

    async def _one_after_another(self, draw, chosen, until: float) -> None:
        deeds = self._deeds()
        while True:
            await asyncio.sleep(self._stage.mix.pause_s * 2 * draw.fraction())
            if self._world.now() >= until:
                return
            fault = chosen[draw.below(len(chosen))]
            self._world.trace.record("fault", fault)
            await self._do(fault, deeds[fault], draw)

    async def _do(self, fault: str, deed, draw: SeededEntropy) -> None:
        await deed(draw)

    def _lose(self, node: BrokerNode, how: str) -> None:
        """Note that a broker is about to go down."""

    def _node(self, draw: SeededEntropy) -> BrokerNode:
        return self._stage.brokers[draw.below(len(self._stage.brokers))]

    def _client(self, draw: SeededEntropy) -> Client:
        return self._clients[draw.below(len(self._clients))]

    def _while(self, draw: SeededEntropy) -> float:
        """How long a hardship lasts: mostly moments, sometimes longer than any timeout."""
        return (0.05, 0.5, 4.0, 12.0)[draw.below(4)] * draw.fraction()

    # Ends

    async def _come_back(self, node: BrokerNode, draw: SeededEntropy) -> None:
        """Bring a crashed broker back, perhaps looking at its disk first."""
        await asyncio.sleep((0.0, 0.5, 5.0)[draw.below(3)] * draw.fraction())
        lost_power = not node.machine.is_up
        if lost_power:
            node.machine.restart()
        node.disk.slow_sync(*self._stage.mix.sync_s)
        self._stage.examine(node, draw, lost_power=lost_power)
        node.start()
        await self._stage.served(node, within_s=5.0)

    def _slow_down(self, node: BrokerNode) -> None:
        node.disk.slow_sync(0.0, 0.5)

    async def _power_cut(self, draw: SeededEntropy) -> None:
        """The power goes, in half of all cases while much waits for a slow disk."""
        node = self._node(draw)
        if draw.chance(0.5):
            self._slow_down(node)
            await asyncio.sleep(draw.fraction())
        self._lose(node, "power cut")
        await node.crash(LOSSES[draw.below(len(LOSSES))])
        await self._come_back(node, draw)

    async def _power_cut_at_an_event(self, draw: SeededEntropy) -> None:
        """The power goes at some operation of the disk, perhaps while the broker starts."""
        node = self._node(draw)
        if draw.chance(0.3):
            self._lose(node, "power cut")
            await node.kill()
            node.start()
            await asyncio.sleep(0)
        wire = node.wire
        if wire is None:
            return
        loss = LOSSES[draw.below(len(LOSSES))]
        countdown = 1 + draw.below((2, 6, 40)[draw.below(3)])

        def cut() -> None:
            self._lose(node, "power cut")
            node.is_wanted = False
            node.machine.crash(loss)

        if draw.chance(0.3):
            wire.after_sync(countdown, cut)
        else:
            wire.before(countdown, cut, ("", "write", "sync", "create")[draw.below(4)])
        await self._wait_for(lambda: not node.machine.is_up, 3.0)
        wire.clear()
        if not node.machine.is_up:
            await node.gone()
            await self._come_back(node, draw)

    async def _failed_sync(self, draw: SeededEntropy) -> None:
        """The broker must stop by itself; then the machine is started anew, or just the broker."""
        node = self._node(draw)
        life = node.lives
        node.disk.fail_next_sync(1 + draw.below(2))
        await self._wait_for(lambda: node.lives != life or not node.is_serving, FAIL_STOP_S)
        node.disk.repair()
        if not node.is_serving and draw.chance(0.7):
            await node.crash(LOSSES[draw.below(len(LOSSES))])
            await self._come_back(node, draw)

    async def _kill(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        self._lose(node, "kill")
        await node.kill()
        await self._come_back(node, draw)

    async def _stop(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        await node.stop()
        await self._come_back(node, draw)

    # Hardships: peers and names

    async def _names_away(self, draw: SeededEntropy) -> None:
        if not self._stage.names:
            return
        node: NamesNode = self._stage.names[draw.below(len(self._stage.names))]
        await node.kill()
        await asyncio.sleep(self._while(draw) * 3)
        node.start()

    async def _client_crash(self, draw: SeededEntropy) -> None:
        client = self._client(draw)
        client.crash()
        await asyncio.sleep(self._while(draw))
        client.start()

    async def _slow_reader(self, draw: SeededEntropy) -> None:
        """A peer asks for much and does not read it, then leaves or reads on."""
        node = self._node(draw)
        machine = self._world.machine("slow reader")
        reader = SlowReader(self._stage.queues_of(node), 1 + draw.below(200))
        host, port = node.address.rsplit(":", 1)
        try:
            async with asyncio.timeout(2.0):
                await machine.network.connect(lambda: reader, host, int(port))
        except OSError:
            return
        await asyncio.sleep(self._while(draw))
        reader.leave(read_on=draw.chance(0.5))

    # Hardships: the network

    async def _partition(self, draw: SeededEntropy) -> None:
        a, b = self._node(draw).name, self._client(draw).name
        self._network.partition(a, b)
        await asyncio.sleep(self._while(draw))
        self._network.heal(a, b)

    async def _one_way_partition(self, draw: SeededEntropy) -> None:
        way = [self._node(draw).name, self._client(draw).name]
        if draw.chance(0.5):
            way.reverse()
        self._network.partition(*way, one_way=True)
        await asyncio.sleep(self._while(draw))
        self._network.heal(*way)

    async def _isolation(self, draw: SeededEntropy) -> None:
        nodes = [*self._stage.brokers, *self._stage.names]
        name = nodes[draw.below(len(nodes))].name
        self._network.isolate(name)
        await asyncio.sleep(self._while(draw))
        self._network.heal(name)

    async def _cut_connections(self, draw: SeededEntropy) -> None:
        self._network.cut(self._node(draw).name, self._client(draw).name)

    async def _slow_network(self, draw: SeededEntropy) -> None:
        a, b = self._node(draw).name, self._client(draw).name
        self._network.slow(a, b, (0.05, 0.5, 3.5)[draw.below(3)])
        await asyncio.sleep(self._while(draw))
        self._network.slow(a, b, 0.0)

    # Hardships: the disk

    async def _slow_disk(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        node.disk.slow_sync(0.0, (0.1, 1.0, 5.0)[draw.below(3)])
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

    async def _read_only_disk(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        node.disk.fail_writes(error=errno.EROFS)
        await asyncio.sleep(self._while(draw))
        node.disk.repair()

    # Hardships: time

    async def _clock_jump(self, draw: SeededEntropy) -> None:
        machine = self._machine(draw)
        machine.clock.jump((2 * draw.fraction() - 1) * (1.0, 60.0, 3600.0, 86400.0)[draw.below(4)])

    async def _clock_drift(self, draw: SeededEntropy) -> None:
        machine = self._machine(draw)
        machine.clock.drift(draw.fraction() - 0.5)
        await asyncio.sleep(self._while(draw))
        machine.clock.drift(0.0)

    async def _pause(self, draw: SeededEntropy) -> None:
        machine = self._machine(draw)
        machine.pause()
        await asyncio.sleep(self._while(draw))
        machine.resume()

    def _machine(self, draw: SeededEntropy):
        return (self._node(draw) if draw.chance(0.6) else self._client(draw)).machine

    async def _wait_for(self, condition: Callable[[], bool], within_s: float) -> None:
        deadline = self._world.now() + within_s
        while not condition() and self._world.now() < deadline:
            await asyncio.sleep(self.look_s)


class SlowReader(asyncio.Protocol):
    """Asks for the same messages again and again and does not read the answers."""

    def __init__(self, queues, asks: int) -> None:
        self._queues = queues
        self._asks = asks
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport) -> None:
        self._transport = transport
        transport.pause_reading()
        for number in range(self._asks):
            queue = self._queues[number % len(self._queues)]
            pull = PullMessage(
                consumer_group="SLOW",
                topic=queue.topic,
                queue_id=queue.number,
                queue_offset=0,
                max_msg_nums=32,
                sys_flag=int(PullFlag.SUBSCRIPTION),
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
            transport.write(command.encode(RequestCode.PULL_MESSAGE, number, pull))

    def connection_lost(self, exc) -> None:
        self._transport = None

    def leave(self, *, read_on: bool) -> None:
        """Read what there is and go, or go at once."""
        if self._transport is None:
            return
        if read_on:
            self._transport.resume_reading()
            self._transport.close()
        else:
            self._transport.abort()
