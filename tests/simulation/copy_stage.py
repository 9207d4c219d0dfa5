"""A broker set with its store and its clients, from the first start to the last look at it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context

from tests.simulation.copy_history import (
    HAND_OVER,
    Bound,
    CopiesCounted,
    Disturbed,
    LossAllowed,
    MemberLost,
    OffsetShown,
)
from tests.simulation.copy_mix import FULL_STOPS, CopyMix
from tests.simulation.copy_node import MemberNode, SetNode, WatchedCoordination
from tests.simulation.copy_people import FollowerReader, LeaderProbe, Pulse, SetTransactor
from tests.simulation.history import Acknowledged, Calm, Event, HalfSending, HalfTaken, Sending
from tests.simulation.ledger import Ledger
from tests.simulation.observer import Observer
from tests.simulation.operators import Operator
from tests.simulation.stage import LOOK_S, Stage
from tests.simulation.workload import Consumer, Producer
from txmq.errors import BrokerRefused, ServiceUnavailable, TransportError
from txmq.protocol.record import position_in
from txmq.runtime.coordinator import AllowedLoss
from txmq.testing import SeededEntropy, World

__all__ = ["CopyStage"]

RECORD_MAX = 4096
"""No record of these runs is longer."""

JOIN_S = 60.0
"""How long all members may take to be in sync when nothing goes wrong any more."""


class CopyStage(Stage):
    """A broker set with its clients in one world."""

    has_places = False
    mix: CopyMix

    def __init__(self, world: World, mix: CopyMix) -> None:
        super().__init__(world, mix)
        self.history.add(Bound(world.now(), mix.bound_s()))
        self.history.on_event = self._count_copies
        self._bodies: dict[str, bytes] = {}
        self.probe = LeaderProbe(world, self.names_text, mix, self.history, self.members)
        self.pulse = Pulse(world, self.names_text, mix, self.history, self.set, self.queues()[0])
        self.reader = FollowerReader(
            world, self.names_text, mix, self.history, self.members, self.queues()
        )
        self._addresses = [node.address for node in self.members]
        # A follower that serves reads may say where a queue ended a moment ago.
        asked = [] if mix.reads else self.queues()
        args = (world, self.names_text, mix, self.history, self._addresses, asked)
        self.observer = Observer(*args, pause_s=mix.probe_s)

    def _broker(self, name: str, names: str) -> SetNode:
        self.coordination = WatchedCoordination(self.world, self.history)
        self.members = [
            self._member(f"m{number}", names) for number in range(1, 1 + self.mix.members)
        ]
        self.set = SetNode(name, self.members, self.coordination)
        self.set.on_serving = self._has_led
        return self.set

    def _member(self, name: str, names: str) -> MemberNode:
        node = MemberNode(
            self.world,
            name,
            lambda machine: self.mix.settings(name, machine.address, names),
            self.coordination,
            self.history,
        )
        node.disk.slow_sync(*self.mix.sync_s)
        return node

    # Starting

    def people(self) -> None:
        """Start producers, consumers and transactional producers, and the probe."""
        world, mix, names, history = self.world, self.mix, self.names_text, self.history
        args = (names, mix, history)
        self.producers = [
            Producer(world, f"producer-{n}", *args, self.queues()) for n in range(mix.producers)
        ]
        self.consumers = [
            Consumer(world, f"consumer-{group}", *args, f"group-{group}", self.queues())
            for group in range(mix.groups)
        ]
        if mix.transactions is not None:
            self.ledgers = [Ledger("bank-0", history)]
            self.transactors = [
                SetTransactor(world, f"t{n}", *args, self.ledgers[0], self.queues(), ())
                for n in range(mix.transactions.producers)
            ]
            if mix.transactions.operator_s:
                self.operators = [Operator(world, "on call", *args, self._addresses)]
        for client in (self.observer, *self.operators):
            client.start()
        has_pulse = not FULL_STOPS.isdisjoint(mix.faults)
        optional = ((self.reader, mix.reads), (self.pulse, has_pulse))
        beside = [client for client, is_wanted in optional if is_wanted]
        for client in (*self.clients, self.probe, *beside):
            client.start()

    # While it runs

    def _has_led(self, node: SetNode) -> None:
        # Called inside the member's own program; the examination must outlive it.
        self.world.loop.call_soon(self._look_aside, node, context=Context())

    def _look_aside(self, node: SetNode) -> None:
        task = asyncio.create_task(self._look(node))
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def _look(self, node: SetNode) -> bool:
        with suppress(TransportError, BrokerRefused):
            for group in range(self.mix.groups):
                name = f"group-{group}"
                async for queue, offset in self.auditor.places(name, node, self.queues()):
                    self.history.add(OffsetShown(self.world.now(), name, queue, offset))
        with suppress(ServiceUnavailable):  # It may be a follower by now.
            return self._draw.chance(self.mix.audit_chance) and await self._audit(node)
        return False

    def _count_copies(self, event: Event) -> None:
        """Note how many disks have a message when its client gets the answer."""
        match event:
            case Sending():
                self._bodies[event.send] = event.bodies[-1]
                return
            case HalfSending():
                self._bodies[event.xid] = event.body
                return
            case Acknowledged():
                message, position = event.send, position_in(event.offset_ids[-1])
            case HalfTaken():
                message, position = event.xid, event.position
            case _:
                return
        body = self._bodies[message]
        records = ((node, node.durable_record(position)) for node in self.members)
        having = [
            node
            for node, record in records
            if (record is not None and body in record) or node.has_flipped(position, RECORD_MAX)
        ]
        lacking = tuple(node.name for node in self.set.in_sync() if node not in having)
        least = self.mix.min_in_sync
        self.history.add(CopiesCounted(self.world.now(), message, len(having), least, lacking))

    def lose(self, node: MemberNode, how: str) -> None:
        """Note that a member is about to be lost."""
        has_heir = any(other.is_running for other in self.set.in_sync() if other is not node)
        is_leader = self.set.leader is node
        self.history.add(MemberLost(self.world.now(), node.name, how, is_leader, has_heir))

    def has_heir(self, node: MemberNode) -> bool:
        """Whether another member is up that has everything, on a sound disk."""
        others = (other for other in self.set.in_sync() if other is not node)
        return any(other.is_running and other.is_whole for other in others)

    def flip_bits(self, node: MemberNode, draw: SeededEntropy, count: int, **how: bool) -> bool:
        """Flip bits in what every member in sync has; false if there is nothing to flip."""
        limit = min(other.durable_end() for other in self.set.in_sync())
        places = [node.flip_bit(draw, limit, **how) for _ in range(count)]
        return places != [None] * count

    def allow_loss(self, node: MemberNode) -> None:
        """Let an operator allow a member to lead that may lack messages; nothing if one leads."""
        store = self.coordination
        loss = AllowedLoss(node.name_in_set(), "Li Na", "no other is left", 0, ())
        if store.allow_loss(store.view(), loss) is not None:
            self.history.add(LossAllowed(self.world.now(), node.name))

    def disturb(self, what: str, *, begins: bool) -> None:
        """Note that a hardship begins or ends."""
        self.history.add(Disturbed(self.world.now(), what, begins))

    # The end

    def calm(self) -> None:
        """Stop all faults and bring back everything that is down."""
        self.world.network.heal()
        self.coordination.delay = 0.002
        if not self.coordination.is_up:
            self.coordination.start()
        for node in self.members:
            self.coordination.heal(node.name)
            node.machine.resume()
            node.disk.repair()
            node.disk.capacity = None
            node.disk.slow_sync(*self.mix.sync_s)
            if node.wire is not None:
                node.wire.clear()
            for client in (*self.clients, *self.members):
                if client is not node:
                    self.world.network.slow(node.name, client.name, 0.0)
        for node in (*self.names, *self.members):
            node.start()
        self.pulse.end()
        for transactor in self.transactors:
            transactor.calm()
        self.history.add(Calm(self.world.now()))

    async def close(self) -> None:
        """Compare the copies, and let each member lead and be audited."""
        self.set.on_serving = _unwatched
        while self._helpers:
            await asyncio.wait(self._helpers)
        await self._compare()
        for _ in self.members[1:]:
            await self._hand_over()
            await self._compare()
        await self._look_up()
        for client in (self.probe, self.reader, self.pulse, self.observer):
            await client.stop()
        await self.set.stop()
        for node in self.names:
            await node.stop()

    async def _compare(self) -> None:
        await self._join_all()
        for node in self.members:
            self.history.add(node.read_copy())
        await self._look(self.set)
        await self._audit(self.set)

    async def _join_all(self) -> None:
        """Wait, for a limited time, until every member is in sync and has all of the log."""
        deadline = self.world.now() + JOIN_S
        while not self._is_whole() and self.world.now() < deadline:
            await asyncio.sleep(LOOK_S)

    def _is_whole(self) -> bool:
        if not self.set.is_serving or len(self.set.in_sync()) < len(self.members):
            return False
        files = [node.read_copy().files for node in self.members]
        return all(found == files[0] for found in files)

    async def _hand_over(self) -> None:
        leader = self.set.leader
        if leader is None:
            return
        self.lose(leader, HAND_OVER)
        await leader.stop()
        deadline = self.world.now() + self.mix.bound_s()
        while not self.set.is_serving and self.world.now() < deadline:
            await asyncio.sleep(LOOK_S)
        leader.start()


def _unwatched(node: SetNode) -> None:
    pass
