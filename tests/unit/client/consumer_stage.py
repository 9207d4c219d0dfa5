"""A simulated world with a small cluster, and consumers on machines of their own."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from unittest.mock import patch

from tests.unit.client.client_stage import STEADY, scenario_test
from tests.unit.client.fake_cluster import FakeCluster
from txmq.client.client import Client
from txmq.client.consume import PushConsumer
from txmq.client.settings import ClientSettings, ConsumerSettings, StartFrom
from txmq.testing import World

__all__ = ["GROUP", "RETRY", "TOPIC", "Stage", "acting", "anywhere"]

GROUP, TOPIC, RETRY = "readers", "T", "%RETRY%readers"


class Stage:
    """The cluster, and the consumers that a test adds."""

    def __init__(self, world, cluster):
        self.world = world
        self.cluster = cluster
        self.broker = cluster.brokers[0]
        self.seen = []
        """What handlers of :meth:`reader` got: client, body, attempts, when."""

    def client(self, name="one", network=None, **settings):
        machine = self.world.machine(name)
        chosen = ClientSettings(instance=name, host="here", **settings)
        ports = (network or machine.network, machine.clock, machine.entropy)
        return Client(self.cluster.names, chosen, *ports)

    def reader(self, client, handler=None, topic=TOPIC, tags="*", **settings):
        """A consumer that starts at the first message and notes what it gets."""
        settings.setdefault("start", StartFrom.FIRST)
        consumer = PushConsumer(GROUP, client, ConsumerSettings(**settings))

        @consumer.on(topic, tags)
        async def read(message):
            self.seen.append((client.id, message.body, message.attempts, self.world.now()))
            if handler is not None:
                return await handler(message)
            return None

        return consumer

    @asynccontextmanager
    async def reading(self, handler=None, **settings):
        """A :meth:`reader` that runs with a client of its own."""
        async with self.client() as client, self.reader(client, handler, **settings) as consumer:
            yield consumer

    def put(self, *bodies, number=0, topic=TOPIC, tags="", properties=None, broker=None):
        """Store messages as if a producer had sent them."""
        broker = broker or self.broker
        sent = SimpleNamespace(born_timestamp=self.cluster.clock.wall_ms())
        named = {**(properties or {}), **({"TAGS": tags} if tags else {})}
        text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
        for body in bodies:
            broker.store(topic, number, sent, body, text, 0)

    def bodies(self):
        return [body for _, body, _, _ in self.seen]

    def committed(self, number=0, topic=TOPIC, broker=None):
        return (broker or self.broker).offsets.get((GROUP, topic, number))

    def asked(self, code):
        """The header fields of each request of one kind."""
        return [fields for _, asked, fields in self.cluster.asked if asked == code]

    async def until(self, holds, within_s=60.0, every_s=0.01):
        """Let time pass until a condition holds."""
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(every_s)


def anywhere(scene):
    """A scenario for `cancelled_everywhere`: a scene of a stage with messages, and the attempt."""

    async def scenario(world, attempt):
        server = world.machine("server")
        ports = (server.network, server.clock)
        async with FakeCluster(*ports, host=server.address, brokers=2) as cluster:
            cluster.add_topic(TOPIC, 2)
            stage = Stage(world, cluster)
            stage.put(b"0", b"1", number=0)
            stage.put(b"2", number=1)
            await scene(stage, attempt)

    return scenario


def acting(*, brokers=1, queues=1, seed=1, empty_pull_s=0.25):
    """Make a test of an async function of a :class:`Stage`."""

    def run(scenario):
        # The fake cluster holds no pull: at the usual pace most work would be empty pulls.
        pace = patch("txmq.client.consume.fetcher.NOT_HELD_S", empty_pull_s)
        with pace, World(seed, conditions=STEADY) as world:
            world.run(on_stage(world, scenario))

    async def on_stage(world, scenario):
        server = world.machine("server")
        ports = (server.network, server.clock)
        async with FakeCluster(*ports, host=server.address, brokers=brokers) as cluster:
            cluster.add_topic(TOPIC, queues)
            await scenario(Stage(world, cluster))

    return lambda scenario: scenario_test(scenario, run)
