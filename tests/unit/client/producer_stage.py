"""A small cluster and a producer, in a simulated world; brokers can be told what to answer."""

import asyncio
from dataclasses import dataclass

from tests.unit.client.client_stage import STEADY, scenario_test
from tests.unit.client.fake_cluster import FakeCluster
from txmq.client.send.producer import Producer
from txmq.client.settings import ProducerSettings
from txmq.message import Message
from txmq.protocol import command, headers
from txmq.protocol.batch import unpack
from txmq.testing import World

TOPIC = "T"


def message(body=b"hello", topic=TOPIC, **more):
    return Message(topic=topic, body=body, **more)


def refuse(code):
    """A broker that answers with a refusal."""
    return lambda request: command.answer(request, code, remark="because")


def silent(request):
    """A broker that never answers."""


def stored_as(code, offset=7):
    """A broker that has stored the message, but has not flushed or replicated it."""

    def answer(request):
        number = request.read(headers.SendMessageV2).queue_id
        return command.answer(request, code, headers.SendAnswer("00", number, offset))

    return answer


@dataclass
class Stage:
    world: World
    cluster: FakeCluster
    producer: Producer

    def told(self, broker, *answers):
        """Have the broker of this index give these answers in turn, and then its usual ones."""
        which = self.cluster.brokers[broker]
        usual = type(which).on_send_message_v2
        left = list(answers)

        def serve(request):
            return left.pop(0)(request) if left else usual(which, request)

        which.on_send_message_v2 = which.on_send_batch_message = serve

    def always(self, broker, answer):
        """Have one broker give this answer to every send."""
        which = self.cluster.brokers[broker]
        which.on_send_message_v2 = which.on_send_batch_message = answer

    def everywhere(self, answer):
        """Have every broker give this answer to every send."""
        for broker in range(len(self.cluster.brokers)):
            self.always(broker, answer)

    @property
    def sends(self):
        """The brokers that were sent to, in order, as letters."""
        codes = ("SEND_MESSAGE_V2", "SEND_BATCH_MESSAGE")
        return "".join(who[-1] for who, _ in self.cluster.codes(*codes))

    @property
    def fields(self):
        """The header of each send."""
        return [fields for _, code, fields in self.cluster.asked if code in (310, 320)]

    def bodies(self, topic=TOPIC):
        """What is stored, by queue."""
        return {
            (broker.name[-1], number): [record.body for record in queue]
            for broker in self.cluster.brokers
            for (name, number), queue in broker.queues.items()
            if name == topic and queue
        }

    def stop(self, broker):
        """Close the listener of one broker, and its connections."""
        self.cluster.listeners[broker].close()

    async def start(self, broker):
        """Let a stopped broker listen at its address again."""
        await self.cluster.reopen(broker)

    def assert_nothing_is_left(self):
        pending = self.producer._sender.pending
        assert (len(pending), pending.bytes_in_flight) == (0, 0)
        assert not pending._room_line
        assert not pending._at_routes
        assert not pending._at_connections
        assert all(
            len(connection._exchange.waiting) == 0
            for connection in self.producer.client.session.pool.opened()
        )


def produced(*, brokers=1, queues=2, seed=1, topic=TOPIC, **settings):
    """Make a test of an async function of a :class:`Stage`."""

    def run(scenario):
        with World(seed, conditions=STEADY) as world:
            world.run(on_stage(world, scenario))

    async def on_stage(world, scenario):
        server, client = world.machine("server"), world.machine("client")
        served = (server.network, server.clock)
        used = {"network": client.network, "clock": client.clock, "entropy": client.entropy}
        async with FakeCluster(*served, host=server.address, brokers=brokers) as cluster:
            if topic:
                cluster.add_topic(topic, queues)
            chosen = ProducerSettings(**settings)
            async with Producer("g", cluster.names, chosen, **used) as producer:
                stage = Stage(world, cluster, producer)
                await scenario(stage)
                await asyncio.sleep(0)
                if producer._sender is not None:
                    stage.assert_nothing_is_left()

    return lambda scenario: scenario_test(scenario, run)


def sizes(requests):
    """The number of messages in each request."""
    return [len(unpack(body)) for body in requests]
