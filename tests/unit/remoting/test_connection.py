"""One end of a stream: answers, deadlines, and what is left when it breaks."""

import asyncio
import struct

import pytest

from tests.unit.remoting.remoting_stage import Desk, Stage, echo, failure, in_world
from txmq.errors import BrokerBusy, ConnectionLost, LocalProtocolError, RequestTimeout
from txmq.limits import CONNECTION_BACKLOG_BYTES, HEADER_BYTES_USUAL, PUSH_BACKLOG_BYTES
from txmq.protocol import command as commands
from txmq.remoting.connection import Connection

CODE = 10


def asking(connection, body=b"", timeout_s=5.0):
    return asyncio.ensure_future(connection.ask(CODE, body=body, timeout_s=timeout_s))


# --- answers ---


@in_world
async def test_answers_in_any_order_reach_their_requests(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        waiting = [asking(client, b"%d" % n) for n in range(10)]
        await asyncio.sleep(1)
        assert len(desk.asked) == 10

        for index in (7, 0, 9, 3, 1, 8, 2, 6, 5, 4):
            desk.answer(index)

        assert [(await request).body for request in waiting] == [b"%d" % n for n in range(10)]
        assert len(client._exchange.waiting) == 0


@in_world
async def test_a_refusal_is_an_answer_to_ask_and_an_error_to_request(world):
    def busy(connection, request):
        return commands.answer(request, BrokerBusy.code, remark="try later")

    async with Stage(world, busy) as stage:
        client = await stage.connect()

        assert (await client.ask(CODE, timeout_s=5.0)).code == BrokerBusy.code
        with pytest.raises(BrokerBusy, match="try later"):
            await client.request(CODE, timeout_s=5.0)
        assert client.is_open


@in_world
async def test_only_a_server_that_closes_at_once_is_suspected_of_requiring_tls(world):
    async with Stage(world, lambda connection, request: None) as stage:
        refused, thawed, left = [await stage.connect() for _ in range(3)]
        asked = [asking(client, b"?", timeout_s=60.0) for client in (refused, thawed, left)]
        await asyncio.sleep(0.1)
        stage.ends[0].close()
        left.close()
        await asyncio.sleep(10)  # A frozen server continues, and closes silent connections.
        stage.ends[0].close()
        told = [str(error) for error in await asyncio.gather(*asked, return_exceptions=True)]

    assert told[0].endswith("perhaps it accepts only TLS (set TXMQ_TLS=on)")
    assert told[1].endswith("closed the connection")
    assert told[2].endswith("was closed here")


@in_world
async def test_a_request_without_a_service_is_answered_with_code_3(world):
    async with Stage(world) as stage:
        client = await stage.connect()

        assert (await client.ask(4711, timeout_s=5.0)).code == 3


@in_world
async def test_both_ends_can_send_requests_with_the_same_numbers_at_once(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect(echo)
        ours = asking(client, b"to the server")
        await asyncio.sleep(1)
        (end,) = stage.ends

        found = await end.ask(CODE, body=b"to the client", timeout_s=5.0)
        assert found.body == b"to the client"
        assert not ours.done()

        desk.answer(0)
        assert (await ours).body == b"to the server"


@in_world
async def test_one_way_requests_arrive_in_order_and_wait_for_no_answer(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        for n in range(5):
            client.oneway(CODE, body=b"%d" % n)
        await asyncio.sleep(1)

        assert [request.body for _, request in desk.asked] == [b"%d" % n for n in range(5)]
        assert all(request.is_oneway for _, request in desk.asked)
        assert len({request.opaque for _, request in desk.asked}) == 5
        assert len(client._exchange.waiting) == 0


@in_world
async def test_requests_that_arrive_together_are_answered_in_one_write(world):
    async with Stage(world, echo) as stage:
        peer = await stage.raw()
        await asyncio.sleep(1)
        (end,) = stage.ends
        writes = []
        write = end._transport.write
        end._transport.write = lambda data: writes.append(len(data)) or write(data)

        peer.write(b"".join(commands.encode(CODE, n, body=b"x") for n in range(20)))
        await asyncio.sleep(1)

        assert sorted(peer.answers()) == list(range(20))
        assert len(writes) == 1


@in_world
async def test_a_frame_that_arrives_byte_by_byte_is_answered(world):
    async with Stage(world, echo) as stage:
        peer = await stage.raw()
        for byte in commands.encode(CODE, 5, body=b"slowly"):
            peer.write(bytes([byte]))
            await asyncio.sleep(0.5)
        await asyncio.sleep(1)

        assert peer.answers()[5].body == b"slowly"
        assert stage.ends[0].partial_since is None


# --- deadlines ---


@in_world
async def test_every_request_has_a_deadline_of_its_own(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        began = world.now()
        limits = (7.0, 1.0, 4.0, 2.0)
        ended = {}

        async def ask(limit):
            with pytest.raises(RequestTimeout):
                await client.ask(CODE, timeout_s=limit)
            ended[limit] = world.now() - began

        await asyncio.gather(*[ask(limit) for limit in limits])

        assert ended == {limit: pytest.approx(limit, abs=1e-6) for limit in limits}
        assert list(ended) == sorted(limits)
        assert client.is_open


@in_world
async def test_a_later_request_with_a_shorter_deadline_times_out_first(world):
    async with Stage(world, Desk()) as stage:
        client = await stage.connect()
        long = asking(client, timeout_s=100.0)
        await asyncio.sleep(1)
        began = world.now()

        assert isinstance(await failure(asking(client, timeout_s=0.5)), RequestTimeout)

        assert world.now() - began == pytest.approx(0.5)
        assert not long.done()
        assert isinstance(await failure(long), RequestTimeout)


@in_world
async def test_a_late_answer_is_dropped_and_the_next_request_gets_its_own(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        assert isinstance(await failure(asking(client, b"late", 1.0)), RequestTimeout)
        second = asking(client, b"second")
        await asyncio.sleep(1)

        desk.answer(0)
        await asyncio.sleep(1)
        assert not second.done()
        desk.answer(1)

        assert (await second).body == b"second"


@in_world
async def test_an_unsolicited_answer_is_ignored(world):
    async with Stage(world, echo) as stage:
        peer = await stage.raw()
        request = commands.decode(_one(commands.encode(CODE, 99)))
        peer.write(commands.answer(request) + commands.encode(CODE, 1, body=b"still here"))
        await asyncio.sleep(1)

        assert list(peer.answers()) == [1]


# --- ends ---


@pytest.mark.fault("N6")
@in_world
async def test_a_lost_connection_fails_all_waiting_requests_at_once(world):
    async with Stage(world, Desk()) as stage:
        client = await stage.connect()
        waiting = [asking(client, timeout_s=1000.0) for _ in range(5)]
        await asyncio.sleep(1)
        began = world.now()

        world.network.cut("server", "client")
        found = await asyncio.gather(*waiting, return_exceptions=True)

        assert [type(error) for error in found] == [ConnectionLost] * 5
        assert world.now() - began < 0.01
        assert not client.is_open
        assert len(stage.lost) == 1
        assert len(client._exchange.waiting) == 0


@in_world
async def test_nothing_is_sent_on_a_closed_connection(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        client.close()
        client.close()

        with pytest.raises(ConnectionLost):
            await client.ask(CODE, timeout_s=5.0)
        with pytest.raises(ConnectionLost):
            client.oneway(CODE)
        await asyncio.sleep(1)
        client.send(b"into the void")
        client.abort()

        assert desk.asked == []
        assert stage.listener.connections == 0


@in_world
async def test_data_written_before_a_close_still_arrives(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        for _ in range(50):
            client.oneway(CODE, body=b"x" * 10_000)
        client.close()
        await asyncio.sleep(5)

        assert len(desk.asked) == 50


@in_world
async def test_cancelled_requests_leave_nothing_behind(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        waiting = [asking(client, b"%d" % n, 60.0) for n in range(20)]
        await asyncio.sleep(1)

        for request in waiting[::2]:
            request.cancel()
        await asyncio.gather(*waiting[::2], return_exceptions=True)
        assert len(client._exchange.waiting) == 10
        for index in range(20):
            desk.answer(index)

        kept = [(await request).body for request in waiting[1::2]]
        assert kept == [b"%d" % n for n in range(1, 20, 2)]
        assert len(client._exchange.waiting) == 0
        assert client.is_open
        await asyncio.sleep(61)  # the deadlines of the answered and the cancelled
        assert client._timer is None
        assert client._exchange._deadlines == []


@in_world
async def test_a_request_too_large_for_a_frame_is_refused_and_leaves_nothing_waiting(world):
    async with Stage(world, echo) as stage:
        client = await stage.connect()

        with pytest.raises(LocalProtocolError):
            await client.ask(CODE, body=bytes(17 * 1024 * 1024), timeout_s=5.0)

        assert len(client._exchange.waiting) == 0
        assert (await client.ask(CODE, body=b"smaller", timeout_s=5.0)).body == b"smaller"


# --- faults ---


@pytest.mark.fault("M14")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(struct.pack(">II", 14, 10) + b"not a head", id="no header"),
        pytest.param(struct.pack(">II", 6, 2) + b"[]", id="header of another shape"),
        pytest.param(struct.pack(">II", 14, 1 << 24 | 10) + b"not a head", id="binary header"),
    ],
)
def test_frames_before_an_unreadable_header_are_answered_and_those_behind_it_are_not(fault):
    @in_world
    async def scenario(world):
        served = []

        def service(connection, request):
            served.append(request.opaque)
            return echo(connection, request)

        async with Stage(world, service) as stage:
            peer, other = await stage.raw(), await stage.connect()
            before, behind = commands.encode(CODE, 1), commands.encode(CODE, 2)
            peer.write(before + fault + behind)
            await asyncio.sleep(1)

            assert list(peer.answers()) == [1]
            assert served == [1]
            assert peer.closed_at is not None
            assert (await other.ask(CODE, body=b"y", timeout_s=5.0)).body == b"y"
            assert stage.listener.connections == 1

    scenario()


@pytest.mark.fault("M14")
@pytest.mark.parametrize(
    "words",
    [(16 * 1024 * 1024 - 3, 10), (2**32 - 1, 10), (3, 0), (0, 0), (10, 7), (10, 2 << 24)],
)
def test_invalid_lengths_close_the_connection_at_once(words):
    @in_world
    async def scenario(world):
        async with Stage(world, echo) as stage:
            peer = await stage.raw()
            peer.write(struct.pack(">II", *words))
            await asyncio.sleep(1)

            assert peer.closed_at is not None
            assert stage.listener.connections == 0

    scenario()


# --- peers that do not read ---


@in_world
async def test_requests_of_a_slow_reader_are_not_read_until_it_has_caught_up(world):
    served = []

    def large(connection, request):
        served.append(request.opaque)
        return commands.answer(request, body=bytes(1024 * 1024))

    async with Stage(world, large) as stage:
        peer = await stage.raw()
        peer.transport.pause_reading()
        for n in range(40):
            peer.write(commands.encode(CODE, n, body=b"x" * 100))
            await asyncio.sleep(1)

        (end,) = stage.ends
        held = end._transport.get_write_buffer_size()
        assert CONNECTION_BACKLOG_BYTES < held < CONNECTION_BACKLOG_BYTES + 2 * 1024 * 1024
        assert len(served) < 8
        assert not end._transport.is_reading()

        peer.transport.resume_reading()
        await asyncio.sleep(60)
        assert served == list(range(40))
        assert sorted(peer.answers()) == list(range(40))
        assert end._transport.is_reading()


@pytest.mark.fault("N8")
@in_world
async def test_a_peer_that_leaves_too_much_unread_is_cut_off_and_the_others_are_served(world):
    async with Stage(world, echo) as stage:
        deaf, other = await stage.raw(), await stage.connect()
        deaf.transport.pause_reading()
        await asyncio.sleep(1)
        end = stage.ends[0]
        push = commands.encode(CODE, 1, body=bytes(1024 * 1024), flag=commands.ONEWAY)
        highest = pushed = 0
        while end.is_open and pushed < 100:
            end.send(push)
            pushed += 1
            highest = max(highest, end._transport.get_write_buffer_size())
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)

        assert PUSH_BACKLOG_BYTES // len(push) <= pushed < 20
        assert highest <= PUSH_BACKLOG_BYTES
        assert stage.lost == [end]
        assert stage.listener.figures()["unread_answers_cut"] == 1
        assert (await other.ask(CODE, body=b"y", timeout_s=5.0)).body == b"y"


@in_world
async def test_requests_to_a_peer_that_is_cut_off_fail_at_once(world):
    async with Stage(world, echo) as stage:
        deaf = await stage.raw()
        deaf.transport.pause_reading()
        await asyncio.sleep(1)
        (end,) = stage.ends
        asked = [asking(end, bytes(3 * 1024 * 1024), 1000.0) for _ in range(8)]
        began = world.now()

        found = await asyncio.gather(*asked, return_exceptions=True)

        assert {type(error) for error in found} == {ConnectionLost}
        assert world.now() - began < 1.0
        assert len(end._exchange.waiting) == 0


@in_world
async def test_one_read_full_of_large_requests_does_not_cut_off_a_peer_that_reads(world):
    """Sixty pulls in one read ask for more than a peer may leave unread, but it reads all."""
    served, highest = [], 0

    def large(connection, request):
        nonlocal highest
        served.append(request.opaque)
        highest = max(highest, connection._transport.get_write_buffer_size())
        return commands.answer(request, body=bytes(512 * 1024))

    async with Stage(world, large) as stage:
        peer = await stage.raw()
        peer.write(b"".join(commands.encode(CODE, n) for n in range(60)))
        await asyncio.sleep(60)

        assert served == list(range(60))
        assert sorted(peer.answers()) == list(range(60))
        assert highest < CONNECTION_BACKLOG_BYTES + 2 * 1024 * 1024
        (end,) = stage.ends
        assert end._transport.is_reading()


@in_world
async def test_an_unreadable_header_after_a_pause_closes_the_connection(world):
    def large(connection, request):
        return commands.answer(request, body=bytes(3 * 1024 * 1024))

    async with Stage(world, large) as stage:
        peer = await stage.raw()
        requests = b"".join(commands.encode(CODE, n) for n in range(10))
        peer.write(requests + struct.pack(">II", 6, 2) + b"[]" + commands.encode(CODE, 99))
        await asyncio.sleep(60)

        assert sorted(peer.answers()) == list(range(10))
        assert peer.closed_at is not None


# --- addresses ---


@in_world
async def test_each_end_knows_the_address_of_the_other(world):
    async with Stage(world) as stage:
        client = await stage.connect()
        await asyncio.sleep(1)
        (end,) = stage.ends

        assert client.address == "10.0.0.1:9000"
        assert end.address.startswith("10.0.0.2:")
        port = int(end.address.split(":")[1])
        assert end.born_host == bytes([10, 0, 0, 2]) + struct.pack(">i", port)


def _one(data):
    from txmq.protocol.command import FrameReader

    (part,) = FrameReader().feed(data)
    return part


def test_a_connection_that_was_never_made_is_not_open():
    class Still:
        def monotonic(self):
            return 0.0

    connection = Connection(Still())

    assert not connection.is_open
    connection.send(b"x")
    connection.close()


# --- full reads ---


class Turns:
    """A server that only notes which connection has to wait, and a transport that can pause."""

    def __init__(self, now=0.0):
        self.now = now
        self.is_busy = False
        self.waiting = []
        self.is_reading = True
        self.served = []

    def monotonic(self):
        return self.now

    def holds(self, connection, size, *, is_new):
        pass

    def owes(self, connection, size):
        pass

    def wait(self, connection, *, is_long):
        self.waiting.append((connection, "long") if is_long else connection)

    def serve(self, connection, request):
        self.now += 0.002
        self.served.append(request.opaque)

    def get_extra_info(self, name):
        return None

    def set_write_buffer_limits(self, high):
        pass

    def is_closing(self):
        return False

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True


def test_full_reads_one_after_another_share_one_turn():
    """The loop delivers up to 32 of them before it looks at other connections."""
    turns = Turns()
    connection = Connection(turns, turns.serve, server=turns)
    connection.connection_made(turns)
    for number in range(10):
        assert turns.is_reading
        connection.data_received(commands.encode(CODE, number, body=b"x" * 256_000))
        if turns.waiting:
            break
    assert turns.served == [0, 1, 2]
    assert not turns.is_reading

    turns.waiting.clear()
    connection.serve_rest()
    assert turns.is_reading
    connection.data_received(commands.encode(CODE, 3, body=b"x" * 256_000))
    assert not turns.waiting


def test_a_long_header_is_decoded_in_a_turn_of_its_own():
    """Otherwise headers of several strangers would share one turn with requests of clients."""
    turns = Turns()
    stranger, client = (Connection(turns, turns.serve, server=turns) for _ in range(2))
    for connection in (stranger, client):
        connection.connection_made(turns)

    stranger.data_received(commands.encode(CODE, 1, {"a": "x" * HEADER_BYTES_USUAL}))
    assert turns.waiting == [(stranger, "long")]
    assert not turns.is_reading
    client.data_received(commands.encode(CODE, 2))
    stranger.serve_rest()
    assert turns.is_reading
    stranger.data_received(commands.encode(CODE, 3))

    assert turns.served == [2, 1, 3]
    assert len(turns.waiting) == 1


def test_short_reads_have_a_turn_each():
    turns = Turns()
    connection = Connection(turns, turns.serve, server=turns)
    connection.connection_made(turns)
    for number in range(10):
        connection.data_received(commands.encode(CODE, number))
    assert len(turns.served) == 10
    assert not turns.waiting
