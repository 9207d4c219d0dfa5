"""A producer of transactions and a small cluster, in a simulated world; tests set the answers
of the broker to half messages and ENDs, and have it send checks.
"""

import asyncio
import inspect
from dataclasses import dataclass, field

from tests.unit.client.fake_cluster import FakeCluster
from txmq.message import Message
from txmq.protocol import command, headers, properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.record import pack
from txmq.testing import Conditions, World
from txmq.transaction import LocalTransactionState, TransactionProducer, TransactionSettings

__all__ = ["Bank", "Stage", "fields_of", "message", "refuse", "silent", "staged"]

STEADY = Conditions(jitter_s=0.0, spike_chance=0.0)
TOPIC = "TTopic"
GROUP = "tpg"
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
END = "END_TRANSACTION"


def message(body=b"hello", **more):
    return Message(topic=TOPIC, body=body, **more)


def refuse(code):
    """A broker that answers with a refusal."""
    return lambda request: command.answer(request, code, remark="because")


def silent(request):
    """A broker that never answers."""


@dataclass
class Bank:
    """A listener that answers as it is told, and notes what it was asked."""

    says: object = COMMIT
    says_of_checks: object = COMMIT
    executed: list = field(default_factory=list)
    checked: list = field(default_factory=list)

    async def execute_local_transaction(self, message, arg):
        self.executed.append((message, arg))
        return await said(self.says)

    async def check_local_transaction(self, message):
        self.checked.append(message)
        return await said(self.says_of_checks)


async def said(what):
    if callable(what):
        what = what()
    if inspect.isawaitable(what):
        what = await what
    if isinstance(what, BaseException):
        raise what
    return what


@dataclass
class Stage:
    world: World
    cluster: FakeCluster
    producer: TransactionProducer
    bank: Bank

    @property
    def broker(self):
        return self.cluster.brokers[0]

    @property
    def ends(self):
        """The header of each END, from all brokers."""
        return [fields for _, code, fields in self.cluster.asked if code.name == END]

    @property
    def said(self):
        """The decisions of the ENDs."""
        words = {str(state.value): state for state in LocalTransactionState}
        return [words[end["commitOrRollback"]] for end in self.ends]

    @property
    def halves(self):
        """The header of each half message that was sent."""
        return [fields for _, code, fields in self.cluster.asked if code.name == "SEND_MESSAGE_V2"]

    def told(self, kind, *answers, broker=0):
        """Have a broker answer half messages or ENDs with these in turn, and then as usual."""
        which = self.cluster.brokers[broker]
        name = {"half": "on_send_message_v2", "end": "on_end_transaction"}[kind]
        usual, left = getattr(type(which), name), list(answers)
        setattr(which, name, lambda asked: left.pop(0)(asked) if left else usual(which, asked))

    def ask(self, half, *, broker=0, checks=1):
        """Send a check (39) over the open connection of the client."""
        which = self.cluster.brokers[broker]
        record = next(
            stored
            for queue in which.queues.values()
            for stored in queue
            if stored.property_map()["UNIQ_KEY"] == half
        )
        header = headers.CheckState(record.queue_offset, record.position, half, half, "")
        for _ in range(checks):
            which.connection.oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body=pack(record))

    async def half(self, body=b"open"):
        """A half message that nobody decides; returns its id."""
        return (await self.producer.prepare(message(body))).id

    async def until(self, holds, within_s=60.0):
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.01)

    def lose(self, request):
        """A broker that receives the request, and whose connection breaks before it answers."""
        self.broker.connection.abort()


def fields_of(half):
    """The properties of a half message's header."""
    return properties.parse(half["i"])


def staged(*, brokers=1, seed=1, bank=None, **settings):
    """Make a test of an async function of a :class:`Stage`."""

    def decorate(scenario):
        def test():
            with World(seed, conditions=STEADY) as world:
                world.run(on_stage(world))

        async def on_stage(world):
            server, client = world.machine("server"), world.machine("client")
            async with FakeCluster(
                server.network, server.clock, host=server.address, brokers=brokers
            ) as cluster:
                cluster.add_topic(TOPIC, 2)
                listener = Bank(**(bank or {}))
                async with TransactionProducer(
                    GROUP,
                    cluster.names,
                    listener,
                    TransactionSettings(**settings),
                    network=client.network,
                    clock=client.clock,
                    entropy=client.entropy,
                ) as producer:
                    await scenario(Stage(world, cluster, producer, listener))
                assert len(producer.client.tasks) == 0

        test.__name__, test.__doc__ = scenario.__name__, inspect.getdoc(scenario)
        return test

    return decorate
