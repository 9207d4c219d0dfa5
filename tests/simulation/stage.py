"""A cluster with its clients, from the first start to the last look at what is there."""

from __future__ import annotations

import asyncio
from contextvars import Context

from tests.simulation.audit import Auditor, recover_in_several_ways
from tests.simulation.history import (
    Acknowledged,
    Audited,
    Calm,
    Ended,
    HalfSending,
    History,
    Patience,
    QueueEnd,
    half_mark,
)
from tests.simulation.ledger import Ledger
from tests.simulation.mix import Mix
from tests.simulation.node import BrokerNode, NamesNode
from tests.simulation.operators import Operator
from tests.simulation.transactor import Transactor
from tests.simulation.workload import AUTO_TOPIC, Client, Consumer, Producer
from txmq.client import Admin, Session
from txmq.client.routes import TEMPLATE_QUEUES_MAX
from txmq.message import Queue
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC
from txmq.testing import SeededEntropy, World

__all__ = ["Stage"]

SETTLE_S = 200.0
"""How long a run waits for what must come; more than the checker of liveness allows."""

LOOKED_UP = 5
"""So many acknowledged messages are looked for by id and by key when all is over."""

LOOK_S = 0.03
"""How often it is looked whether something has come about."""


class Stage:
    """A cluster with its clients in one world."""

    has_places = True
    """Whether the address in an offset id is that of the broker that has the message."""

    def __init__(self, world: World, mix: Mix) -> None:
        self.world = world
        self.mix = mix
        self.history = History(world.trace)
        self.names = [NamesNode(world, f"names-{n}") for n in range(mix.names)]
        # Embedded in the first broker, whose machine is then the next to get an address.
        known = [node.address for node in self.names]
        self.brokers: list[BrokerNode] = []
        for number in range(mix.brokers):
            node = self._broker(f"broker-{'abc'[number]}", ";".join(known))
            self.brokers.append(node)
            known = known or [node.settings.names_listen]
        self.names_text = ";".join(known)
        self.auditor = Auditor(world, self.history, self.names_text)
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.ledgers: list[Ledger] = []
        self.transactors: list[Transactor] = []
        self.operators: list[Operator] = []
        self._helpers: set[asyncio.Task[bool]] = set()
        self._ends: dict[Queue, int] = {}
        self._draw = world.entropy.fork("stage")

    def _broker(self, name: str, names: str) -> BrokerNode:
        node = BrokerNode(
            self.world,
            name,
            lambda machine: self.mix.settings(name, machine.address, names),
            self.history,
        )
        node.on_serving = self._has_served
        node.disk.slow_sync(*self.mix.sync_s)
        return node

    # What there is

    @property
    def clients(self) -> list[Client]:
        """Producers and consumers."""
        return [*self.producers, *self.consumers, *self.transactors]

    @property
    def topics(self) -> list[str]:
        """The topics made before anything is sent."""
        return [f"Topic{number}" for number in range(self.mix.topics)]

    def queues(self) -> list[Queue]:
        """The queues of these topics."""
        return [
            Queue(topic, node.name, number)
            for topic in self.topics
            for node in self.brokers
            for number in range(self.mix.queues)
        ]

    def sudden_queues(self) -> list[Queue]:
        """The queues that may come into being by sending."""
        return [
            Queue(AUTO_TOPIC, node.name, number)
            for node in self.brokers
            for number in range(TEMPLATE_QUEUES_MAX if self.mix.is_auto_created else 0)
        ]

    def queues_of(self, node: BrokerNode) -> list[Queue]:
        """All queues a broker may have."""
        return [q for q in (*self.queues(), *self.sudden_queues()) if q.broker == node.name]

    # Starting

    async def open(self) -> None:
        """Start name servers and brokers, and make the topics."""
        for node in (*self.names, *self.brokers):
            node.start()
        for node in self.brokers:
            await self.served(node, within_s=30.0)
        operator = self.world.machine("operator")
        ports = (operator.network, operator.clock, operator.entropy)
        async with Session(self.names_text, *ports) as session:
            admin = Admin(session)
            while len(await admin.cluster()) < len(self.brokers):
                await asyncio.sleep(0.1)
            for topic in self.topics:
                await admin.create_topic(topic, self.mix.queues)

    def people(self) -> None:
        """Start producers and consumers."""
        world, mix, names, history = self.world, self.mix, self.names_text, self.history
        self.producers = [
            Producer(world, f"producer-{n}", names, mix, history, self.queues())
            for n in range(mix.producers)
        ]
        wanted = [*self.queues(), *self.sudden_queues()]
        for group in range(mix.groups):
            tags = "red" if mix.has_tags and group == mix.groups - 1 else "*"
            for number in range(mix.consumers):
                mine = wanted[number :: mix.consumers]
                name = f"consumer-{group}-{number}"
                self.consumers.append(
                    Consumer(world, name, names, mix, history, f"group-{group}", mine, tags)
                )
        self._people_of_transactions()
        for client in (*self.clients, *self.operators):
            client.start()

    def _people_of_transactions(self) -> None:
        world, mix, names, history = self.world, self.mix, self.names_text, self.history
        dials = mix.transactions
        if dials is None:
            return
        brokers = [node.address for node in self.brokers]
        for group in range(dials.groups):
            ledger = Ledger(f"bank-{group}", history)
            self.ledgers.append(ledger)
            self.transactors += [
                Transactor(
                    world, f"t{group}-{n}", names, mix, history, ledger, self.queues(), brokers
                )
                for n in range(dials.producers)
            ]
        if dials.operator_s:
            self.operators.append(Operator(world, "on call", names, mix, history, brokers))

    # While it runs

    async def served(self, node: BrokerNode, within_s: float) -> None:
        """Wait, for a limited time, until a broker serves."""
        deadline = self.world.now() + within_s
        while not node.is_serving and self.world.now() < deadline:
            await asyncio.sleep(LOOK_S)

    def examine(self, node: BrokerNode, draw: SeededEntropy, *, lost_power: bool) -> None:
        """Perhaps recover copies of a broker's disk in several ways."""
        if draw.chance(self.mix.recovery_chance):
            topics = self.stored_topics()
            recover_in_several_ways(node, self.history, draw, topics, lost_power=lost_power)

    def stored_topics(self) -> tuple[str, ...]:
        """All topics that a broker's disk may hold."""
        return (*self.topics, AUTO_TOPIC, HALF_TOPIC, OP_TOPIC, PARKED_TOPIC)

    def _has_served(self, node: BrokerNode) -> None:
        if node.lives > 1 and self._draw.chance(self.mix.audit_chance):
            # Called inside the broker's own program; the examination must outlive it.
            self.world.loop.call_soon(self._audit_aside, node, context=Context())

    def _audit_aside(self, node: BrokerNode) -> None:
        task = asyncio.create_task(self._audit(node))
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def _audit(self, node: BrokerNode) -> bool:
        if not await self.auditor.audit(node, self.queues_of(node)):
            return False
        return self.mix.transactions is None or await self.auditor.audit_transactions(node)

    # The end

    def calm(self) -> None:
        """Stop all faults and bring back everything that is down."""
        self.world.network.heal()
        for node in (*self.brokers, *self.names):
            node.machine.resume()
            node.machine.disk.repair()
            node.machine.disk.capacity = None
            node.machine.disk.slow_sync(*self.mix.sync_s)
            node.start()
        for node in self.brokers:
            if node.wire is not None:
                node.wire.clear()
            for client in self.clients:
                self.world.network.slow(node.name, client.name, 0.0)
        for client in (*self.clients, *self.operators):
            client.machine.resume()
            if not client.machine.is_up:
                client.start()
        for transactor in self.transactors:
            transactor.calm()
        self.history.add(Calm(self.world.now()))

    async def settle(self) -> None:
        """See that everything comes to its end: sends, probes, consumers."""
        for producer in self.producers:
            producer.is_enough = True
        try:
            async with asyncio.timeout(SETTLE_S):
                for producer in self.producers:
                    await producer.done()
                await self._settle_transactions()
                await self._probe()
                await self._note_ends()
                while not all(self._has_read_all(consumer) for consumer in self.consumers):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pass  # The checker of liveness says what is missing.
        self.history.add(Ended(self.world.now()))
        for client in self.clients:
            await client.stop()

    async def _settle_transactions(self) -> None:
        """Wait until every open transaction is parked."""
        if self.mix.transactions is None:
            return
        patience_s = self.mix.transactions.patience_s(self.mix.conditions.give_up_s)
        self.history.add(Patience(self.world.now(), patience_s))
        for operator in self.operators:
            await operator.stop()
        while not all(transactor.is_idle for transactor in self.transactors):
            await asyncio.sleep(0.1)
        for node in self.brokers:
            while await self.auditor.undecided(node):
                await asyncio.sleep(0.2)
            await self.auditor.audit_transactions(node)

    async def _probe(self) -> None:
        """Send one more message to every queue."""
        queues = self.queues()
        for node in self.brokers:
            ends = await self.auditor.ends(node, self.sudden_queues())
            queues += [queue for queue, end in ends if end and queue.broker == node.name]
        args = (self.names_text, self.mix, self.history, queues)
        prober = Prober(self.world, "prober", *args)
        self.producers.append(prober)
        prober.start()
        await prober.done()

    async def _note_ends(self) -> None:
        for node in self.brokers:
            for queue, end in await self.auditor.ends(node, self.queues_of(node)):
                if end:
                    self._ends[queue] = end
                    self.history.add(QueueEnd(self.world.now(), queue, end))

    def _has_read_all(self, consumer: Consumer) -> bool:
        return all(
            consumer.places.get(queue, 0) >= self._ends.get(queue, 0) for queue in consumer.queues
        )

    async def close(self) -> None:
        """Stop everything in order, start it once more, and look at all that is there."""
        for node in self.brokers:
            node.on_serving = _unwatched
        while self._helpers:
            await asyncio.wait(self._helpers)
        for node in self.brokers:
            await node.stop()
        for node in self.brokers:
            node.start()
        for node in self.brokers:
            await self.served(node, within_s=30.0)
            await self._audit(node)
            for group in range(self.mix.groups):
                await self.auditor.note_places(f"group-{group}", node, self.queues_of(node))
        await self._look_up()
        for node in (*self.brokers, *self.names):
            await node.stop()

    async def _look_up(self) -> None:
        known = [event for event in self.history.events if isinstance(event, Acknowledged)]
        chosen = [known[self._draw.below(len(known))] for _ in range(min(LOOKED_UP, len(known)))]
        chosen += self._committed_to_look_up()
        await self.auditor.look_up(chosen, by_id=self.has_places)

    def _committed_to_look_up(self) -> list[Acknowledged]:
        """Some messages of transactions, as if each had been sent where it was found last."""
        if self.mix.transactions is None:
            return []
        xids = {sending.xid for sending in self.history.events if isinstance(sending, HalfSending)}
        found: dict[str, Acknowledged] = {}
        for event in self.history.events:
            if isinstance(event, Audited):
                for queue, copies in event.queues.items():
                    for copy in copies:
                        if copy.key in xids and copy.mark == half_mark(copy.key):
                            args = (event.at, copy.key, 0, queue, copy.offset, (copy.offset_id,))
                            found[copy.key] = Acknowledged(*args)
        known = list(found.values())
        return [known[self._draw.below(len(known))] for _ in range(min(LOOKED_UP, len(known)))]


class Prober(Producer):
    """Sends one message to every queue."""

    async def _work(self, session: Session) -> None:
        for queue in self._queues:
            send = self.compose(session, queue.topic, queue, 1, is_batch=False)
            await self.deliver(session, send)


def _unwatched(node: BrokerNode) -> None:
    pass
