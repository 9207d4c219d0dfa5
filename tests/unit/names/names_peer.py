"""Helpers: a clock to set, a peer without a network, a world where waiting takes no time."""

from __future__ import annotations

import asyncio
import selectors

from txmq.protocol import command as commands
from txmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigs
from txmq.protocol.command import FrameReader
from txmq.protocol.headers import BrokerRegistration
from txmq.remoting.connection import Connection


class SetClock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def wall_ms(self):
        return 1_700_000_000_000 + int(self.now * 1000)


class PaperTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self):
        super().__init__({"peername": ("10.0.0.9", 40000)})
        self.written = bytearray()
        self.closed = False

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def set_write_buffer_limits(self, high=None, low=None):
        pass


class Peer:
    """One peer of a service: asks with real bytes and reads real bytes."""

    def __init__(self, service, clock=None):
        self.transport = PaperTransport()
        self.connection = Connection(clock or SetClock(), service)
        self.connection.connection_made(self.transport)
        self._reader = FrameReader()
        self._opaque = 0

    def send(self, code, header=None, *, body=b"", oneway=False, kind=0):
        self._opaque += 1
        frame = commands.encode(code, self._opaque, header, body=body, flag=2 * oneway, kind=kind)
        self.connection.data_received(frame)
        written = bytes(self.transport.written)
        self.transport.written.clear()
        return [commands.decode(part) for part in self._reader.feed(written)]

    def ask(self, code, header=None, **given):
        (answer,) = self.send(code, header, **given)
        assert answer.opaque == self._opaque
        assert answer.is_answer
        return answer


class MemoryDisk:
    """The part of a disk that a name server needs, with switches that make it fail or wait."""

    def __init__(self):
        self.files = {}
        self.writes = 0
        self.broken = False
        self.is_free = asyncio.Event()
        self.is_free.set()

    def open(self, path, *, create=False):
        if path not in self.files:
            raise FileNotFoundError(path)
        return MemoryFile(self.files[path])

    def replace(self, path, data, *, keep=None):
        if self.broken:
            raise OSError(28, "No space left on device")
        self.writes += 1
        if keep is not None:
            self.files[keep] = self.files[path]
        self.files[path] = data

    async def run_soon(self, work):
        await self.is_free.wait()
        work()


class MemoryFile:
    def __init__(self, data):
        self._data = data

    def read(self, position, size):
        return self._data[position : position + size]

    def size(self):
        return len(self._data)

    def close(self):
        pass


class _NoWait(selectors.SelectSelector):
    """Instead of waiting, moves the time on to when the wait would end."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for everybody"
            self.now += timeout
        return ready


class WorldLoop(asyncio.SelectorEventLoop):
    """A loop in which waiting takes no time."""

    def __init__(self):
        self._world = _NoWait()
        super().__init__(self._world)

    def time(self):
        return self._world.now


class LoopClock:
    def monotonic(self):
        return asyncio.get_running_loop().time()

    def wall_ms(self):
        return 1_700_000_000_000 + int(self.monotonic() * 1000)


class MemoryNetwork:
    """Streams between addresses of one process."""

    def __init__(self):
        self._doors = {}

    async def listen(self, factory, host, port):
        door = _Door(self._doors, (host, port), factory)
        self._doors[host, port] = door
        return door

    async def connect(self, factory, host, port):
        door = self._doors.get((host, port))
        if door is None:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = factory(), door.factory()
        near, far = _Pipe(("10.0.0.9", 40000)), _Pipe((host, port))
        near.joined(theirs, far)
        far.joined(ours, near)
        theirs.connection_made(near)
        ours.connection_made(far)
        return ours

    def is_loopback(self, host):
        return True


class _Door:
    def __init__(self, doors, address, factory):
        self._doors = doors
        self.address = address
        self.factory = factory

    def close(self):
        self._doors.pop(self.address, None)


class _Pipe(asyncio.Transport):
    """One end; what is written to it reaches the protocol at the other end, one turn later."""

    def __init__(self, peername):
        super().__init__({"peername": peername})
        self._gone = False

    def joined(self, protocol, other):
        self._protocol = protocol
        self._other = other

    def write(self, data):
        if not self._gone:
            asyncio.get_running_loop().call_soon(self._other.arrive, data)

    def arrive(self, data):
        if not self._gone:
            self._protocol.data_received(data)

    def close(self):
        if not self._gone:
            self._gone = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._protocol.connection_lost, None)
            loop.call_soon(self._other.close)

    abort = close

    def is_closing(self):
        return self._gone

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0


def in_world(main):
    """Run a coroutine function in a loop of its own where time costs nothing."""
    with asyncio.Runner(loop_factory=WorldLoop) as runner:
        return runner.run(main())


def registration(name="broker-a", number=0, address="10.0.0.1:10911", **given):
    """The registration of a broker."""
    return BrokerRegistration(
        broker_name=name,
        broker_addr=address,
        cluster_name=given.pop("cluster", "DefaultCluster"),
        ha_server_addr=given.pop("ha", address.replace("10911", "10912")),
        broker_id=number,
        **given,
    )


def offer(*topics, counter=1, **given):
    """The topics that a broker registers."""
    table = {name: TopicConfig(topic_name=name, **given) for name in topics}
    return TopicConfigs(
        data_version=DataVersion(timestamp=1, counter=counter), topic_config_table=table
    )
