"""Long requests are served in parts, between other tasks; a closed connection ends its own."""

import asyncio

import pytest

from tests.running import in_loop, run_by
from txmq.errors import InternalError, ServiceUnavailable
from txmq.protocol.command import Command
from txmq.remoting.dispatch import Dispatcher
from txmq_broker.services import slices as long_requests
from txmq_broker.services.slices import LongRequests

LONG, OTHER = 34, 35


class Peer:
    address = "203.0.113.9:4711"

    def __init__(self):
        self.is_open = True
        self.sent = []

    def send(self, frame):
        self.sent.append(frame)


class SlowClock:
    """Every reading takes a second, so that each part fills a turn."""

    def __init__(self):
        self._now = 0.0

    def monotonic(self):
        self._now += 1.0
        return self._now


class Stage:
    """A queue of long requests, and a log of everything that happens, in order."""

    def __init__(self, parts=3):
        self.notes = []
        self.long = LongRequests([LONG, OTHER], self.serve, SlowClock())
        self.dispatch = Dispatcher({LONG: self.postpone, OTHER: self.postpone})
        self.parts = parts

    def postpone(self, connection, request):
        raise self.long.postponed(request)

    def serve(self, connection, request):
        try:
            for part in range(self.parts):
                self.notes.append((request.opaque, part))
                yield
        except GeneratorExit:
            self.notes.append((request.opaque, "closed"))
            raise
        if request.opaque < 0:
            raise InternalError("refused")
        return b"%d" % request.opaque

    def receive(self, connection, opaque, body=b""):
        assert self.dispatch(connection, Command(LONG, opaque, body=body)) is None

    async def turns(self, count):
        for _ in range(count):
            self.notes.append("others")
            await asyncio.sleep(0)


@run_by(in_loop)
async def test_other_tasks_run_between_two_parts_of_a_long_request():
    stage, peer = Stage(), Peer()
    stage.receive(peer, 7)
    await stage.turns(6)
    assert stage.notes[:7] == ["others", (7, 0), "others", (7, 1), "others", (7, 2), "others"]
    assert peer.sent == [b"7"]
    assert not stage.long.has_one_of(peer)


@run_by(in_loop)
async def test_long_requests_are_served_in_the_order_they_came():
    stage, peers = Stage(), [Peer(), Peer()]
    for opaque in (1, -2, 3):
        stage.receive(peers[opaque % 2], opaque)
    await stage.turns(15)
    assert [note[0] for note in stage.notes if note != "others"] == [1] * 3 + [-2] * 3 + [3] * 3
    assert [len(peer.sent) for peer in peers] == [1, 2]
    assert b"refused" in peers[0].sent[0]


@run_by(in_loop)
async def test_a_long_request_of_a_closed_connection_is_abandoned():
    stage, peer, other = Stage(), Peer(), Peer()
    for connection, opaque in ((peer, 1), (peer, 2), (other, 3)):
        stage.receive(connection, opaque)
    await stage.turns(2)
    peer.is_open = False
    await stage.turns(8)
    served = [note for note in stage.notes if note != "others"]
    assert served == [(1, 0), (1, 1), (1, "closed"), (3, 0), (3, 1), (3, 2)]
    assert (peer.sent, other.sent) == ([], [b"3"])
    assert not stage.long.has_one_of(peer)


@run_by(in_loop)
async def test_waiting_long_requests_are_limited_in_bytes(monkeypatch):
    monkeypatch.setattr(long_requests, "LONG_REQUESTS_BYTES_MAX", 5_000)

    stage, peer = Stage(), Peer()
    stage.receive(peer, 1, bytes(3_000))
    with pytest.raises(ServiceUnavailable, match="wait their turn"):
        stage.long.postponed(Command(LONG, 2, body=bytes(1_000)))
    await stage.turns(6)
    stage.long.postponed(Command(LONG, 2, body=bytes(3_000)))
