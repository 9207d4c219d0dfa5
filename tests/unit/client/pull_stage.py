"""A simulated world with a real broker on one machine, and consumers on machines of their own."""

import asyncio
from dataclasses import dataclass

from msgspec.structs import replace

from tests.simulation.mix import SmallStore
from tests.unit.client.client_stage import STEADY, scenario_test
from txmq.client.client import Client
from txmq.client.consume import PullConsumer, ScheduledPull
from txmq.client.settings import ClientSettings, ConsumerSettings, StartFrom
from txmq.message import Message, Queue
from txmq.settings.units import Duration
from txmq.testing import World
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings

GROUP, TOPIC = "readers", "T"
SOON = ConsumerSettings(start=StartFrom.FIRST, commit_interval=1.0, rebalance_interval=2.0)
BY_HAND = replace(SOON, commits_itself=False)


@dataclass
class Stage:
    world: World
    broker: Broker
    operator: Client

    @property
    def admin(self):
        return self.operator.admin

    def ports(self, name):
        machine = self.world.machine(name)
        return machine.network, machine.clock, machine.entropy

    def client(self, name="reader"):
        """A client that a test opens itself, on the machine of this name."""
        settings = ClientSettings(instance=name)
        return Client(self.broker.names, settings, *self.ports(name))

    def consumer(self, settings=SOON, name="reader", group=GROUP):
        return PullConsumer(group, self.broker.names, settings, *self.ports(name))

    def subscribed(self, *settings, tags="*", **given):
        """A consumer that subscribes to the topic."""
        consumer = self.consumer(*settings, **given)
        consumer.subscribe(TOPIC, tags)
        return consumer

    def schedule(self, settings=SOON, name="reader", group=GROUP):
        return ScheduledPull(group, self.broker.names, settings, *self.ports(name))

    async def topic(self, queues=1, messages=0, name=TOPIC):
        """A topic with this number of messages in each queue."""
        await self.admin.create_topic(name, queues)
        made = [Queue(name, "broker-a", number) for number in range(queues)]
        for queue in made:
            await self.send(queue, messages)
        return made

    async def send(self, queue, count, first=0, **more):
        for number in range(first, first + count):
            body = b"%d/%d" % (queue.number, number)
            await self.admin.send(Message(topic=queue.topic, body=body, **more), queue)

    async def saved(self, queue, group=GROUP):
        return await self.admin.committed_offset(group, queue)


def bodies(messages):
    return [message.body for message in messages]


def numbered(number, *offsets):
    """The bodies of messages of a queue, by their offsets."""
    return [b"%d/%d" % (number, offset) for offset in offsets]


async def polled(consumer, count):
    """This number of messages, in the order of their arrival."""
    found = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await consumer.poll(1.0)
    return found


async def until(holds, within_s=60.0):
    """Wait until a condition holds."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


def staged(scenario, within_s=3600.0):
    """Make a test of an async function of a :class:`Stage`; ``within_s`` is virtual time."""

    def run(scenario):
        with World(1, conditions=STEADY) as world:
            world.run(on_stage(world, scenario), timeout=within_s)

    async def on_stage(world, scenario):
        server, desk = world.machine("server"), world.machine("desk")
        settings = BrokerSettings(
            name="broker-a",
            listen=f"{server.address}:10911",
            names_listen=f"{server.address}:9876",
            # No test here cuts the power, and in virtual hours most of the work would be syncs.
            store=SmallStore(flush="async", flush_interval=Duration(60)),
        )
        ports = {"clock": server.clock, "network": server.network, "entropy": server.entropy}
        async with (
            Broker(settings, disk=server.disk, **ports) as broker,
            Client(broker.names, None, desk.network, desk.clock, desk.entropy) as operator,
        ):
            await scenario(Stage(world, broker, operator))

    return scenario_test(scenario, run)
