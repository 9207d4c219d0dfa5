"""A store with its flusher, as a broker runs them, and peers that record their answers."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

from tests.unit.store.shelf import Shelf, Sizes
from txmq.errors import TxmqError
from txmq.protocol import command as commands
from txmq.protocol.command import Command, FrameReader
from txmq.remoting.connection import Connection
from txmq.testing import Loss, SeededEntropy, SimulatedClock
from txmq_broker.core.admission import Admission
from txmq_broker.services.flusher import Flusher


class PaperTransport(asyncio.Transport):
    """Passes written bytes to a callback."""

    def __init__(self, read):
        super().__init__({"peername": ("10.0.0.9", 40000)})
        self._read = read

    def write(self, data):
        self._read(data)

    def is_closing(self):
        return False

    def set_write_buffer_limits(self, high=None, low=None):
        pass


class Peer:
    """A connection's other end."""

    def __init__(self, press):
        self._press = press
        self._frames = FrameReader()
        self.writes = 0
        self.connection = Connection(press.clock)
        self.connection.connection_made(PaperTransport(self._read))

    def _read(self, data):
        self.writes += 1
        for frame in self._frames.feed(data):
            answer = commands.decode(frame)
            self._press.answered(answer.opaque, answer.code, answer.remark)


class Press:
    """Use it with ``async with``; the store is closed and the flusher stopped at the end."""

    def __init__(self, disk, sizes=None, kind=Shelf):
        self.clock = SimulatedClock(asyncio.get_running_loop())
        self.disk = disk
        self.shelf = kind(disk, sizes or Sizes())
        self.store = self.shelf.store
        self.admission = Admission()
        self.spans = []
        self.fatal = []
        self.flusher = Flusher(
            self.store,
            disk,
            self.clock,
            self.admission,
            self.shelf.sizes,
            self._published,
            self.fatal.append,
        )
        self.sent = {}
        self.acknowledged = []
        self.refused = []
        self.on_published = lambda span: None
        self._codes = {}
        self.peer = Peer(self)

    async def __aenter__(self):
        self.flusher.start()
        return self

    async def __aexit__(self, *problem):
        await self.flusher.stop()
        self.store.close()

    def send(self, body, topic="T", number=0, peer=None, **more):
        """Do what a handler does for one send."""
        at_ms = self.flusher.turn_ms()
        placed = self.shelf.put(body, topic, number, at_ms=at_ms, **more)
        request = Command(code=310, opaque=len(self.sent))
        self.sent[request.opaque] = placed
        peer = peer or self.peer
        self.flusher.answer(peer.connection, [request], [commands.answer(request)])
        return placed

    def ask(self, what):
        """Do what a handler does for any other request, whose answer acknowledges this."""
        request = Command(code=0, opaque=len(self.sent))
        self.sent[request.opaque] = what
        self.flusher.answer(self.peer.connection, [request], [commands.answer(request)])

    def send_oneway(self, body, topic="T", number=0):
        """The same for a peer that wants no answer."""
        return self.shelf.put(body, topic, number, at_ms=self.flusher.turn_ms())

    def answered(self, opaque, code, remark):
        assert opaque not in self._codes, f"{self.sent[opaque]} was answered twice"
        self._codes[opaque] = (code, remark)
        (self.refused if code else self.acknowledged).append(self.sent[opaque])

    @property
    def codes(self):
        return [code for code, _ in self._codes.values()]

    def bodies_acknowledged(self):
        return [placed.body for placed in self.acknowledged]

    def _published(self, span):
        self.spans.append(span)
        self.on_published(span)


async def turns(count=3):
    """Let the loop go round without any time passing."""
    for _ in range(count):
        await asyncio.sleep(0)


LOSSES = (Loss.EVERYTHING, Loss.PAGES, Loss.TAIL, Loss.NOTHING)


def power_lost(points, seed):
    """Each copy of a disk without what was not durable, and with another loss; and what was known.

    A point is the next operation on the disk, the copy from before it, and what was known then.
    """
    for number, (event, disk, *known) in enumerate(points):
        for loss in (Loss.EVERYTHING, LOSSES[1 + number % 3]):
            twin = disk.clone()
            twin.crash(SeededEntropy(f"{seed}-{number}"), loss)
            yield twin, f"seed {seed}, before {event}, {loss}", *known


@contextmanager
def noting(where):
    """Tell with a failure where it happened."""
    try:
        yield
    except (AssertionError, TxmqError) as problem:
        problem.add_note(where)
        raise
