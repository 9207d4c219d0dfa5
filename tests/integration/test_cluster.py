"""A name server alone and two brokers, each a process of its own: how the death of one affects
the others.
"""

import asyncio
import sys
import time

import pytest

from tests.servers.serving import BrokerProcess, free_port
from txmq import Message
from txmq.client import Admin, Session
from txmq.errors import TransportError, TxmqError
from txmq.message import Queue

QUEUES = 4
TOPIC = "Both"
SOON_S = 1.0
AGAIN_S = 5.0
"""How long brokers may take to be known again to a name server that was away."""


class NamesProcess(BrokerProcess):
    def command(self):
        return [sys.executable, "-m", "txmq", "names", "--listen", self.names]


class MemberProcess(BrokerProcess):
    def __init__(self, folder, name, names):
        super().__init__(folder, flush="sync")
        self.name = name
        self.names = names

    def command(self):
        where = ["--data", str(self.folder / "data"), "--flush", self.flush]
        who = ["--name", self.name, "--listen", self.address, "--names", self.names]
        return [sys.executable, "-m", "txmq", "serve", *where, *who]


class Cluster:
    def __init__(self, folder):
        self.names = NamesProcess(folder / "names")
        self.names.names = f"127.0.0.1:{free_port()}"
        self.a, self.b = (
            MemberProcess(folder / name, name, self.names.names)
            for name in ("broker-a", "broker-b")
        )

    def close(self):
        for process in (self.a, self.b, self.names):
            process.close()


@pytest.fixture
def cluster(tmp_path):
    running = Cluster(tmp_path)
    try:
        running.names.start()
        running.a.start()
        running.b.start()
        yield running
    finally:
        running.close()


async def eventually(holds, within_s, what):
    """Seconds until a condition holds."""
    began = time.monotonic()
    while not await holds():
        assert time.monotonic() - began < within_s, what
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def brokers_of(session):
    try:
        return (await session.fresh_route(TOPIC)).brokers
    except TxmqError:
        return ()


async def write(admin, broker, *bodies):
    """Send to one broker; returns where each body was acknowledged."""
    places = {}
    for number, body in enumerate(bodies):
        queue = Queue(TOPIC, broker, number % QUEUES)
        receipt = await admin.send(Message(topic=TOPIC, body=body), queue)
        places[queue, receipt.offset] = body
    return places


async def read(admin, places):
    """What is stored at these places."""
    stored = {}
    for queue, offset in places:
        (message, *_) = (await admin.pull(queue, offset)).messages
        stored[queue, message.offset] = message.body
    return stored


def bodies(prefix, count=20):
    return [b"%s-%d" % (prefix, number) for number in range(count)]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_cluster_outlives_a_broker_and_its_name_server(cluster):
    async def scenario():
        async with Session(cluster.names.names) as session:
            admin = Admin(session)
            places = await two_brokers_share_a_topic(admin)
            places |= await one_broker_dies_and_comes_back(cluster, session, admin, places)
            await the_name_server_dies_and_comes_back(cluster, session, admin, places)

    asyncio.run(scenario())
    for process in (cluster.a, cluster.b, cluster.names):
        process.stop()
        assert "Traceback" not in process.log.read_text(errors="replace")


async def two_brokers_share_a_topic(admin):
    await admin.create_topic(TOPIC, QUEUES)
    assert [broker.name for broker in await admin.cluster()] == ["broker-a", "broker-b"]
    route = await admin.route(TOPIC)
    assert route.brokers == ("broker-a", "broker-b")
    assert len(route.writable) == len(route.readable) == 2 * QUEUES

    # Sends that name no queue go to all queues in turn.
    receipts = [
        await admin.send(Message(topic=TOPIC, body=body)) for body in bodies(b"any", 4 * QUEUES)
    ]
    assert {receipt.queue for receipt in receipts} == set(route.writable)
    places = await write(admin, "broker-a", *bodies(b"a"))
    places |= await write(admin, "broker-b", *bodies(b"b"))
    assert await read(admin, places) == places
    return places


async def one_broker_dies_and_comes_back(cluster, session, admin, places):
    cluster.a.kill()

    async def only_b():
        return await brokers_of(session) == ("broker-b",)

    await eventually(only_b, SOON_S, "the dead broker is still in the route")
    assert [broker.name for broker in await admin.cluster()] == ["broker-b"]
    more = await write(admin, "broker-b", *bodies(b"b alone"))
    receipts = [await admin.send(Message(topic=TOPIC, body=b"any")) for _ in range(2 * QUEUES)]
    assert {receipt.queue.broker for receipt in receipts} == {"broker-b"}
    with pytest.raises(TxmqError):
        await admin.send(Message(topic=TOPIC, body=b"nobody"), Queue(TOPIC, "broker-a", 0))

    cluster.a.start()  # returns when it says that it is ready
    assert await brokers_of(session) == ("broker-a", "broker-b")
    more |= await write(admin, "broker-a", *bodies(b"a again"))
    assert await read(admin, places | more) == places | more
    return more


async def the_name_server_dies_and_comes_back(cluster, session, admin, places):
    await session.route(TOPIC)
    cluster.names.kill()

    # Clients that already know the route go on.
    for broker in ("broker-a", "broker-b"):
        places |= await write(admin, broker, *bodies(b"no names", QUEUES))
    assert await read(admin, places) == places
    async with Session(cluster.names.names) as stranger:
        with pytest.raises(TransportError):
            await stranger.route(TOPIC)

    cluster.names.start()

    async def both():
        return await brokers_of(session) == ("broker-a", "broker-b")

    took = await eventually(both, AGAIN_S, "the brokers did not register again")
    print(f"both brokers were known again after {took:.2f} s")
    async with Session(cluster.names.names) as stranger:
        known = Admin(stranger)
        assert [member.name for member in await known.cluster()] == ["broker-a", "broker-b"]
        assert await read(known, places) == places
