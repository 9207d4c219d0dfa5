"""A real broker and clients that talk to it in real bytes, on machines of a simulated world.

``in_world`` runs it where waiting for a minute takes no time. It fails if a task or a callback
raises, and if a task is left over. ``tests.integration.loopback_stage`` has the same on sockets.
"""

import asyncio

from msgspec.structs import replace

from txmq.protocol import batch, properties
from txmq.protocol import command as commands
from txmq.protocol import record as records
from txmq.protocol.bodies import (
    ConsumerRegistration,
    Heartbeat,
    MessageQueue,
    ProducerRegistration,
    SubscriptionData,
)
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.command import JSON
from txmq.protocol.headers import (
    OffsetAnswer,
    OffsetCommit,
    OffsetQuery,
    PullAnswer,
    PullMessage,
    QueueHeader,
    SendMessage,
    SendMessageV2,
    TopicSettings,
)
from txmq.protocol.java import string_hash
from txmq.remoting.connection import PendingResponse
from txmq.remoting.pool import ConnectionPool
from txmq.testing import Conditions, World
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, StoreSettings, TopicDefaults

PATIENCE_S = 10.0
STEADY = Conditions(spike_chance=0.0)
"""Times are compared, so no packet shall be lost and sent again."""
SETTINGS = BrokerSettings(store=StoreSettings(flush="async"))


def with_topics(**given):
    return replace(SETTINGS, topics=TopicDefaults(**given))


class Client:
    """One client with a connection of its own: what it asks, what it is asked, what it answers."""

    def __init__(self, connection, inbox, name):
        self.connection = connection
        self.name = name
        self.inbox = inbox
        self.replies = inbox.replies

    # Asking

    def asking(self, code, header=None, *, body=b"", kind=JSON, oneway=False, version=None):
        """Ask, and return a future of the answer."""
        assert self.connection.is_open
        waiter = PendingResponse(asyncio.get_running_loop().create_future())
        waiter.future.add_done_callback(lambda done: done.cancelled() or done.exception())
        clock = self.connection._clock
        opaque = self.connection.number()
        self.connection._exchange.add(opaque, waiter, clock.monotonic() + 1e6)
        frame = commands.encode(code, opaque, header, body=body, kind=kind, flag=2 * oneway)
        if version is not None:
            frame = frame.replace(b'"version":409', b'"version":%-3d' % version)
        self.connection.send(frame)
        return waiter.future

    async def ask(self, code, header=None, **given):
        async with asyncio.timeout(PATIENCE_S * 10):
            return await self.asking(code, header, **given)

    async def ok(self, code, header=None, **given):
        answer = await self.ask(code, header, **given)
        assert answer.code == 0, (answer.code, answer.remark)
        return answer

    async def code_of(self, code, header=None, **given):
        return (await self.ask(code, header, **given)).code

    async def is_silent(self, code, header=None, **given):
        """Whether a request is still unanswered when a later request is answered."""
        unanswered = self.asking(code, header, **given)
        await self.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        return not unanswered.done()

    # Being asked

    async def heard(self, code):
        """The next request from the broker; it must have this code."""
        async with asyncio.timeout(PATIENCE_S):
            request = await self.inbox.get()
        assert request.code == code
        return request

    def heard_nothing(self):
        return self.inbox.empty()

    # What nearly every test does

    async def topic(self, name, queues=1, *, write=None, perm=6, order=False):
        header = TopicSettings(name, "TBW102", queues, queues if write is None else write, perm)
        header.order = order
        await self.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def send(self, topic, body=b"body", *, queue=0, **props):
        header = sending(topic, queue=queue, **props)
        return await self.ok(RequestCode.SEND_MESSAGE, header, body=body)

    async def fill(self, topic, count, *, queue=0, **props):
        """Send several messages, all at once."""
        header = sending(topic, queue=queue, **props)
        sent = [
            self.asking(RequestCode.SEND_MESSAGE, header, body=b"%d" % number)
            for number in range(count)
        ]
        for answer in await asyncio.gather(*sent):
            assert answer.code == 0

    async def pull(self, topic, offset=0, **given):
        return pulled(await self.ask(RequestCode.PULL_MESSAGE, pulling(topic, offset, **given)))

    async def beat(self, *consumers, producers=(), version=None):
        beat = Heartbeat(self.name, [ProducerRegistration(group) for group in producers], consumers)
        return await self.ok(RequestCode.HEART_BEAT, body=beat.write(), version=version)

    async def commit(self, group, topic, queue, offset):
        await self.ok(RequestCode.UPDATE_CONSUMER_OFFSET, OffsetCommit(group, topic, queue, offset))

    async def committed(self, group, topic, queue=0, *, zero=None):
        header = OffsetQuery(group, topic, queue, zero)
        answer = await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        return answer.read(OffsetAnswer).offset if answer.code == 0 else -answer.code

    async def max_offset(self, topic, queue=0):
        answer = await self.ok(RequestCode.GET_MAX_OFFSET, QueueHeader(topic, queue))
        return answer.read(OffsetAnswer).offset

    def close(self):
        self.connection.close()


class Inbox(asyncio.Queue):
    """Requests from the broker, and the replies to them: by default none."""

    def __init__(self):
        super().__init__()
        self.replies = {}

    def serve(self, connection, request):
        self.put_nowait(request)
        reply = self.replies.get(request.code)
        return None if reply is None else reply(request)


class Stage:
    """A broker and its clients."""

    def __init__(self, broker, clock, connect, world):
        self.broker = broker
        self.clock = clock
        self.disk = broker.disk
        self.world = world
        self._connect = connect
        self._clients = 0

    async def passes(self, seconds):
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    async def client(self, name=None, *, address=None, topic=None):
        """A new client, who has created this topic."""
        self._clients += 1
        inbox = Inbox()
        connection = await self._connect(inbox.serve, self._clients, address)
        client = Client(connection, inbox, name or f"client-{self._clients}")
        if topic is not None:
            await client.topic(topic)
        return client

    async def clients(self, count):
        return [await self.client() for _ in range(count)]


# Requests


def text_of(**props):
    return properties.render(props)


def sending(topic, *, queue=0, default="TBW102", queues=4, sys_flag=0, shape=SendMessage, **props):
    born = int(props.pop("born", 1_700_000_000_000))
    return shape("producers", topic, default, queues, queue, sys_flag, born, 7, text_of(**props), 0)


def batching(topic, *, queue=0, **props):
    header = sending(topic, queue=queue, shape=SendMessageV2, **props)
    header.batch = True
    return header


def batch_of(*bodies, **props):
    return batch.pack([(0, body, text_of(**props)) for body in bodies])


def pulling(topic, offset=0, *, group="group", queue=0, count=32, hold_ms=0, tags="*", **given):
    """A pull with a subscription of its own, as Go's; ``tags=None`` relies on the heartbeat."""
    flags = given.pop("flags", 0)
    if hold_ms:
        flags |= PullFlag.SUSPEND
    if tags is not None:
        flags |= PullFlag.SUBSCRIPTION
    commit = given.pop("commit", None)
    if commit is not None:
        flags |= PullFlag.COMMIT_OFFSET
    version = given.pop("version", 0)
    header = PullMessage(
        group, topic, queue, offset, count, int(flags), commit or 0, hold_ms, version, tags
    )
    header.dead_letters = topic.startswith("%DLQ%") or None
    for name, value in given.items():
        setattr(header, name, value)
    return header


class Pulled:
    """The answer to a pull, taken apart."""

    def __init__(self, answer):
        self.answer = answer
        self.code = answer.code
        self.remark = answer.remark
        self.records = list(records.unpack_all(answer.body))
        self.bodies = [record.body for record in self.records]
        self.bounds = answer.read(PullAnswer) if answer.code in (0, 19, 20, 21) else None
        self.next = self.bounds and self.bounds.next_begin_offset


def pulled(answer):
    return Pulled(answer)


def consumer(group="group", *topics, model="CLUSTERING", **tags):
    """A group's part of a heartbeat; ``T="A || B"`` subscribes to tags."""
    wanted = [subscription(topic) for topic in topics]
    wanted += [subscription(topic, text) for topic, text in tags.items()]
    return ConsumerRegistration(group, message_model=model, subscription_data_set=wanted)


def subscription(topic, text="*", *, version=1, kind="TAG"):
    words = [] if text == "*" else [word.strip() for word in text.split("||")]
    return SubscriptionData(
        topic, text, words, [string_hash(word) for word in words], version, kind
    )


def queue(topic, number=0, broker="broker-a"):
    return MessageQueue(broker, number, topic)


def in_world(main, settings=SETTINGS, *, within=3600.0):
    """Run a coroutine function of a :class:`Stage` in a world where waiting takes no time.

    A test that waits for over two minutes needs new clients: idle connections are closed.
    """

    async def scenario(world):
        server = world.machine("server")
        at = {"listen": f"{server.address}:10911", "names_listen": f"{server.address}:9876"}

        async def connect(service, number, address):
            machine = world.machine(f"client-{number}", address)
            pool = ConnectionPool(machine.network, machine.clock, service)
            return await machine.run(pool.connection(at["listen"]))

        broker = Broker(
            replace(settings, **at),
            clock=server.clock,
            network=server.network,
            disk=server.disk,
            entropy=server.entropy,
        )
        ready, over = asyncio.Event(), asyncio.Event()
        serving = server.run(serve(broker, ready, over))
        await ready.wait()
        await main(Stage(broker, server.clock, connect, world))
        over.set()
        await serving

    async def serve(broker, ready, over):
        async with broker:
            ready.set()
            await over.wait()

    world = World(1, scenario=main.__qualname__, conditions=STEADY)
    world.run(scenario(world), timeout=within)


def with_client(main, settings=SETTINGS, *, topic=None, run=in_world, **options):
    """Run a coroutine function of a client, who has created this topic."""

    async def of_client(stage):
        await main(await stage.client(topic=topic))

    of_client.__qualname__ = main.__qualname__
    run(of_client, settings, **options)


def in_world_with_client(main, settings=SETTINGS, *, topic=None, run=in_world, **options):
    """Run a coroutine function of a stage and a client, who has created this topic."""

    async def of_both(stage):
        await main(stage, await stage.client(topic=topic))

    of_both.__qualname__ = main.__qualname__
    run(of_both, settings, **options)


async def arrival(client, topic, offset=0):
    """The next message of a topic, waited for as a consumer does."""
    while True:
        header = pulling(topic, offset, hold_ms=20_000)
        found = pulled(await client.ask(RequestCode.PULL_MESSAGE, header))
        if found.code == 0:
            return found.records[0]
