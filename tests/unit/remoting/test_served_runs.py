"""Requests of one code that a service handles at once, and how an unusual one is handled."""

import struct

import pytest

from txmq.errors import NotFound
from txmq.protocol import command as commands
from txmq.protocol.command import FrameReader
from txmq.protocol.headers import EndTransaction
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, RunHandler
from txmq_broker.replication.held_leadership import LeaderGate

END, OTHER = 37, 28


class Peer:
    """A clock, a transport and a handler: what is served together, and what is written."""

    def __init__(self, *, usual=lambda number: True):
        self.is_usual = usual
        self.served = []
        self.written = bytearray()
        self.is_broken = False

    def monotonic(self):
        return 0.0

    def get_extra_info(self, name):
        return None

    def set_write_buffer_limits(self, high):
        pass

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return self.is_broken

    def write(self, data):
        self.written += data

    def close(self):
        self.is_broken = True

    abort = close

    def one(self, connection, request):
        self.served.append(request.opaque)
        if request.opaque % 10 == 5:
            raise NotFound("it is unknown")
        return commands.answer(request)

    def run(self, connection, requests):
        if self.is_usual is None:
            raise ZeroDivisionError("by zero")
        count = 0
        while count < len(requests) and self.is_usual(requests[count].opaque):
            count += 1
        if count:
            self.served.append([request.opaque for request in requests[:count]])
        return count

    def table(self):
        return {END: RunHandler(self.one, self.run), OTHER: self.one}

    def answers(self):
        """The numbers and codes of all answers."""
        parts = FrameReader().feed(bytes(self.written))
        found = [commands.decode(part) for part in parts]
        return [(answer.opaque, answer.code) for answer in found]

    def connect(self, service):
        connection = Connection(self, service)
        connection.connection_made(self)
        return connection


def end(number):
    return commands.encode(END, number, EndTransaction("P", number, 0, 8, False, "U"))


def test_requests_of_one_code_are_served_in_runs_up_to_a_limit():
    peer = Peer()
    connection = peer.connect(Dispatcher(peer.table()))

    other = commands.encode(OTHER, 7)
    connection.data_received(b"".join([end(1), end(2), other, end(8), *map(end, range(100, 170))]))

    assert peer.served == [[1, 2], 7, [8, *range(100, 163)], [*range(163, 170)]]
    assert peer.answers() == [(7, 0)]


def test_an_unusual_request_is_served_alone_in_order_with_its_own_error():
    peer = Peer(usual=lambda number: number not in (3, 5))
    connection = peer.connect(Dispatcher(peer.table()))

    connection.data_received(b"".join(map(end, range(1, 8))))

    assert peer.served == [[1, 2], 3, [4], 5, [6, 7]]
    assert peer.answers() == [(3, 0), (5, NotFound.code)]


def test_a_run_that_fails_is_served_one_by_one():
    peer = Peer(usual=None)
    connection = peer.connect(Dispatcher(peer.table()))

    connection.data_received(end(1) + end(5) + end(2))

    assert peer.served == [1, 5, 2]
    assert peer.answers() == [(1, 0), (5, NotFound.code), (2, 0)]


@pytest.mark.fault("M14")
def test_requests_before_an_unreadable_one_of_their_run_are_served():
    peer = Peer()
    connection = peer.connect(Dispatcher(peer.table()))
    header = b'{"code":37,"extFields":nonsense}'
    broken = struct.pack(">II", 4 + len(header), len(header)) + header

    connection.data_received(end(1) + end(2) + broken + end(3))

    assert peer.served == [[1, 2]]
    assert peer.is_broken


def test_with_an_authorizer_each_request_is_checked_and_served_alone():
    peer, looked_at = Peer(), []
    look = Dispatcher(peer.table(), lambda connection, request: looked_at.append(request.opaque))
    connection = peer.connect(look)

    connection.data_received(end(1) + end(2))

    assert peer.served == looked_at == [1, 2]


class _Leadership:
    is_leading = True

    def is_certain(self):
        return self.is_leading


def test_a_closed_leader_gate_stops_runs():
    peer, leadership = Peer(), _Leadership()
    gate = LeaderGate(leadership)
    connection = peer.connect(gate.before(Dispatcher(peer.table())))

    gate.is_open = True
    connection.data_received(end(1) + end(2))
    leadership.is_leading = False
    connection.data_received(end(3) + end(4))

    assert peer.served == [[1, 2]]
    assert peer.is_broken
