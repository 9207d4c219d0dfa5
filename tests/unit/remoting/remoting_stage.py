"""The listener of a server, and raw or full clients, on two machines of a simulated world."""

import asyncio
from functools import wraps

from txmq.protocol import command as commands
from txmq.protocol.command import FrameReader
from txmq.remoting.connection import Connection, no_service
from txmq.remoting.listener import Listener
from txmq.testing import simulate

PORT = 9000
SERVER = "10.0.0.1"
ADDRESS = f"{SERVER}:{PORT}"


def in_world(scenario):
    """Run a test that is a coroutine of a world, the same way every time."""

    @wraps(scenario)
    def test():
        simulate(scenario, 1, timeout=3600.0)

    del test.__wrapped__  # the world is no fixture
    return test


def echo(connection, request):
    """Answer with the body of the request, unless it is one-way."""
    return None if request.is_oneway else commands.answer(request, body=request.body)


class Desk:
    """A service that answers on command, in any order."""

    def __init__(self):
        self.asked = []

    def __call__(self, connection, request):
        self.asked.append((connection, request))

    def answer(self, index, code=0, *, remark=None):
        connection, request = self.asked[index]
        connection.send(commands.answer(request, code, body=request.body, remark=remark))


class Raw(asyncio.Protocol):
    """A peer that writes arbitrary bytes and notes what comes back."""

    def __init__(self):
        self.transport = None
        self.received = bytearray()
        self.closed_at = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data

    def connection_lost(self, exc):
        self.closed_at = asyncio.get_running_loop().time()

    def write(self, data):
        self.transport.write(data)

    def answers(self):
        """The complete answers, by number."""
        parts = FrameReader().feed(bytes(self.received))
        return {answer.opaque: answer for answer in map(commands.decode, parts)}


class Stage:
    """A listener on one machine; clients come from another."""

    def __init__(self, world, service=no_service, connections_max=100, tls=None):
        self.world = world
        self.server = world.machine("server", SERVER)
        self.client = world.machine("client", "10.0.0.2")
        self.lost = []
        self.listener = Listener(
            self.server.network,
            self.server.clock,
            service,
            connections_max=connections_max,
            on_lost=self.lost.append,
            tls=tls,
        )

    async def __aenter__(self):
        await self.listener.open(SERVER, PORT)
        return self

    async def __aexit__(self, *problem):
        self.listener.close()

    async def connect(self, service=no_service):
        """One full connection of a client."""
        return await self.client.network.connect(
            lambda: Connection(self.client.clock, service), SERVER, PORT
        )

    async def raw(self):
        """One connection that writes raw bytes."""
        return await self.client.network.connect(Raw, SERVER, PORT)

    @property
    def ends(self):
        """The server's ends of the open connections, in the order they came."""
        return list(self.listener._connections)


async def failure(awaitable):
    """What an awaitable fails with."""
    (found,) = await asyncio.gather(awaitable, return_exceptions=True)
    assert isinstance(found, BaseException), f"it did not fail: {found!r}"
    return found
