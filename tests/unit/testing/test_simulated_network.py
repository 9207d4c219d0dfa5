"""The network: streams stay in order and complete under every kind of fault."""

import asyncio
import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.running import run_by
from tests.unit.testing.network_recorder import Recorder
from txmq.testing import Conditions, PowerCut, simulate

CLIENT, SERVER = "10.0.0.1", "10.0.0.2"
CALM = Conditions(latency_s=0.001, jitter_s=0.0, spike_chance=0.0)


async def connected(world, **options):
    """A client's end and a server's end of one connection."""
    served = []

    def accept():
        served.append(Recorder())
        vars(served[0]).update(options)
        return served[0]

    await world.network.host(SERVER, "server").listen(accept, SERVER, 9)
    client = await world.network.host(CLIENT, "client").connect(Recorder, SERVER, 9)
    while not served:
        await asyncio.sleep(0)
    return client, served[0]


def run(scenario, seed=1, **options):
    return simulate(scenario, seed, conditions=CALM, **options)


# --- streams ---


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=400), st.sampled_from([1, 1, 500]))),
    st.integers(0, 2**32),
)
def test_bytes_arrive_complete_and_in_order_both_ways(writes, seed):
    async def scenario(world):
        client, server = await connected(world)
        sent = {client: b"", server: b""}
        for from_client, data, times in writes:
            end = client if from_client else server
            end.transport.write(data * times)
            sent[end] += data * times
            if world.entropy.chance(0.3):
                await asyncio.sleep(world.entropy.fraction() / 100)
            if world.entropy.chance(0.1):
                world.network.partition("client", "server", one_way=world.entropy.chance(0.5))
                await asyncio.sleep(world.entropy.fraction())
                world.network.heal()
        await client.until(lambda me: len(me.received) >= len(sent[server]))
        await server.until(lambda me: len(me.received) >= len(sent[client]))
        assert bytes(client.received) == sent[server]
        assert bytes(server.received) == sent[client]

    simulate(scenario, seed)


def test_writes_are_split_and_joined_on_the_way():
    joined = split = 0
    for seed in range(30):

        async def scenario(world):
            client, server = await connected(world)
            for _ in range(50):
                client.transport.write(b"x" * 1000)
            await server.until(lambda me: len(me.received) == 50_000)
            return server.chunks

        chunks = simulate(scenario, seed)
        split += sum(size % 1000 != 0 for size in chunks)
        joined += sum(size > 1000 for size in chunks)
    assert split > 30
    assert joined > 30


@run_by(run)
async def test_a_connection_has_addresses(world, /):
    client, server = await connected(world)
    assert client.transport.get_extra_info("peername") == (SERVER, 9)
    assert server.transport.get_extra_info("sockname") == (SERVER, 9)
    own = client.transport.get_extra_info("sockname")
    assert own[0] == CLIENT
    assert server.transport.get_extra_info("peername") == own
    assert client.transport.get_extra_info("socket", "none") == "none"


@run_by(run)
async def test_asyncio_streams_work(world, /):
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def server():
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), answer)

    await world.network.host(SERVER).listen(server, SERVER, 9)
    reader = asyncio.StreamReader()
    protocol = await world.network.host(CLIENT).connect(
        lambda: asyncio.StreamReaderProtocol(reader), SERVER, 9
    )
    protocol._transport.write(b"hello\n")
    assert await reader.read() == b"HELLO\n"


def test_buffered_protocols_work():
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self):
            self.space = bytearray(100)
            self.received = b""

        def connection_made(self, transport):
            pass

        def get_buffer(self, hint):
            return self.space

        def buffer_updated(self, size):
            self.received += self.space[:size]

    async def scenario(world):
        protocol = Buffered()
        await world.network.host(SERVER).listen(lambda: protocol, SERVER, 9)
        client = await world.network.host(CLIENT).connect(Recorder, SERVER, 9)
        client.transport.writelines([b"a" * 1000, b"b" * 1000])
        await asyncio.sleep(1)
        assert protocol.received == b"a" * 1000 + b"b" * 1000

    run(scenario)


# --- ends ---


@run_by(run)
async def test_close_sends_buffered_bytes_first(world, /):
    client, server = await connected(world)
    client.transport.write(b"x" * 1_000_000)
    client.transport.close()
    assert client.transport.is_closing()
    client.transport.write(b"too late")
    assert await client.lost() is None
    assert await server.lost() is None
    assert bytes(server.received) == b"x" * 1_000_000
    assert ("eof",) in server.events


@run_by(run)
async def test_abort_resets_the_other_side(world, /):
    client, server = await connected(world)
    client.transport.abort()
    client.transport.abort()
    assert await client.lost() is None
    assert isinstance(await server.lost(), ConnectionResetError)


@run_by(run)
async def test_after_write_eof_a_side_can_still_read(world, /):
    client, server = await connected(world, keep_open=True)
    assert client.transport.can_write_eof()
    client.transport.write(b"question")
    client.transport.write_eof()
    with pytest.raises(RuntimeError):
        client.transport.write(b"more")
    await server.until(lambda me: ("eof",) in me.events)
    server.transport.write(b"answer")
    server.transport.close()
    await client.lost()
    assert client.received == b"answer"
    assert server.received == b"question"


@run_by(run)
async def test_writing_to_a_closed_end_is_answered_by_a_reset(world, /):
    client, server = await connected(world, keep_open=True)
    client.transport.close()
    await server.until(lambda me: ("eof",) in me.events)
    server.transport.write(b"are you there?")
    assert isinstance(await server.lost(), ConnectionResetError)


@run_by(run)
async def test_closing_with_unread_bytes_resets_the_other_side(world, /):
    client, server = await connected(world)
    client.transport.pause_reading()
    assert not client.transport.is_reading()
    server.transport.write(b"unread")
    await asyncio.sleep(1)
    client.transport.close()
    assert isinstance(await server.lost(), ConnectionResetError)


# --- flow control ---


@run_by(run)
async def test_a_paused_reader_makes_the_writer_pause(world, /):
    client, server = await connected(world)
    server.transport.pause_reading()
    for _ in range(20):
        client.transport.write(b"x" * 10_000)
    await asyncio.sleep(10)
    assert client.events == [("made",), ("pause",)]
    assert client.transport.get_write_buffer_size() == 200_000 - CALM.window
    assert not server.received

    server.transport.resume_reading()
    await server.until(lambda me: len(me.received) == 200_000)
    await asyncio.sleep(1)
    assert client.events == [("made",), ("pause",), ("resume",)]
    assert client.transport.get_write_buffer_size() == 0


@run_by(run)
async def test_writing_pauses_above_the_write_buffer_limit(world, /):
    client, server = await connected(world)
    transport = client.transport
    assert transport.get_write_buffer_limits() == (16384, 65536)
    transport.set_write_buffer_limits(low=100)
    assert transport.get_write_buffer_limits() == (100, 400)
    with pytest.raises(ValueError):
        transport.set_write_buffer_limits(high=1, low=2)
    server.transport.pause_reading()
    transport.write(b"x" * (CALM.window + 400))
    assert client.events == [("made",)]
    transport.write(b"x")
    assert client.events == [("made",), ("pause",)]


# --- connecting ---


@run_by(run)
async def test_connecting_where_nobody_listens_is_refused(world, /):
    host = world.network.host(CLIENT)
    world.network.host(SERVER)
    for address in (SERVER, "10.9.9.9"):
        with pytest.raises(ConnectionRefusedError):
            await host.connect(Recorder, address, 9)
    assert 0 < world.now() < 1


@run_by(run)
async def test_connecting_to_a_silent_host_times_out(world, /):
    await connected(world)
    world.network.partition("client", "server", one_way=True)
    with pytest.raises(TimeoutError) as caught:
        await world.network.host(CLIENT).connect(Recorder, "server", 9)
    assert isinstance(caught.value, OSError)
    assert world.now() == pytest.approx(CALM.connect_timeout_s, abs=0.1)


@run_by(run)
async def test_connecting_succeeds_when_the_network_heals_in_time(world, /):
    await connected(world)
    world.network.isolate("server")
    connecting = asyncio.create_task(world.network.host(CLIENT).connect(Recorder, SERVER, 9))
    await asyncio.sleep(5)
    world.network.heal("server")
    assert (await connecting).events == [("made",)]


@run_by(run)
async def test_a_listener_binds_refuses_taken_addresses_and_closes(world, /):
    host = world.network.host(SERVER, "server")
    door = await host.listen(Recorder, "0.0.0.0", 0)
    assert door.address[0] == "0.0.0.0"
    assert door.address[1] > 1024
    with pytest.raises(OSError) as taken:
        await host.listen(Recorder, SERVER, door.address[1])
    assert taken.value.errno == errno.EADDRINUSE
    with pytest.raises(OSError) as elsewhere:
        await host.listen(Recorder, CLIENT, 9)
    assert elsewhere.value.errno == errno.EADDRNOTAVAIL

    client = world.network.host(CLIENT)
    stays = await client.connect(Recorder, "server", door.address[1])
    await asyncio.sleep(1)
    door.close()
    door.close()
    with pytest.raises(ConnectionRefusedError):
        await client.connect(Recorder, "server", door.address[1])
    await asyncio.sleep(1)
    assert stays.events == [("made",)]
    await host.listen(Recorder, SERVER, door.address[1])


@run_by(run)
async def test_a_listener_closed_before_it_accepts_resets_the_connection(world, /):
    door = await world.network.host(SERVER).listen(Recorder, SERVER, 9)
    client = await world.network.host(CLIENT).connect(Recorder, SERVER, 9)
    door.close()
    assert isinstance(await client.lost(), ConnectionResetError)


@run_by(run)
async def test_loopback_addresses_are_reachable_only_from_the_host_itself(world, /):
    host = world.network.host(SERVER)
    await host.listen(Recorder, "127.0.0.1", 9)
    assert (await host.connect(Recorder, "localhost", 9)).events == [("made",)]
    with pytest.raises(ConnectionRefusedError):
        await world.network.host(CLIENT).connect(Recorder, SERVER, 9)


# --- what can go wrong ---


@run_by(run)
async def test_a_partition_holds_bytes_until_it_heals(world, /):
    client, server = await connected(world)
    world.network.partition("client", "server")
    client.transport.write(b"held")
    await asyncio.sleep(60)
    assert (server.received, client.events) == (b"", [("made",)])
    world.network.heal()
    await server.until(lambda me: me.received == b"held")
    assert world.now() > 60


def test_bytes_arrive_in_order_after_several_faults():
    async def scenario(world):
        client, server = await connected(world)
        for number in range(20):
            client.transport.write(bytes([number]) * 5000)
            world.network.partition("client", "server", one_way=number % 2 == 0)
            await asyncio.sleep(world.entropy.fraction() / 100)
            world.network.heal("client", "server")
        await server.until(lambda me: len(me.received) == 100_000)
        assert server.received == b"".join(bytes([number]) * 5000 for number in range(20))

    for seed in range(20):
        run(scenario, seed)


@run_by(run)
async def test_a_partition_also_holds_bytes_already_on_the_way(world, /):
    client, server = await connected(world)
    client.transport.write(b"held")
    world.network.partition("client", "server")
    await asyncio.sleep(1)
    assert server.received == b""


@run_by(run)
async def test_a_one_way_partition_lets_requests_through_and_loses_the_replies(world, /):
    client, server = await connected(world)
    world.network.partition("server", "client", one_way=True)
    client.transport.write(b"request")
    await server.until(lambda me: me.received == b"request")
    server.transport.write(b"reply")
    await asyncio.sleep(CALM.give_up_s / 2)
    assert client.received == b""
    assert isinstance(await server.lost(), TimeoutError)
    assert isinstance(await client.lost(), TimeoutError)


@run_by(run)
async def test_only_the_sending_side_gives_up_on_a_silent_peer(world, /):
    client, server = await connected(world)
    world.network.partition("client", "server")
    began = world.now()
    client.transport.write(b"anybody?")
    assert isinstance(await client.lost(), TimeoutError)
    assert world.now() == pytest.approx(began + CALM.give_up_s)
    world.network.heal()
    await asyncio.sleep(1000)
    assert server.events == [("made",)]  # half open while it sends nothing

    server.transport.write(b"still there?")
    assert isinstance(await server.lost(), ConnectionResetError)


@run_by(run)
async def test_healing_one_of_two_faults_does_not_restart_the_timeout(world, /):
    client, _ = await connected(world)
    began = world.now()
    client.transport.write(b"anybody?")
    world.network.crash("server")
    world.network.partition("client", "server")
    await asyncio.sleep(CALM.give_up_s / 2)
    world.network.heal()
    await client.lost()
    assert world.now() == pytest.approx(began + CALM.give_up_s)


@run_by(run)
async def test_a_partition_healed_in_time_keeps_the_connection(world, /):
    client, server = await connected(world)
    for _ in range(3):
        world.network.partition("client", "server")
        client.transport.write(b"x")
        await asyncio.sleep(CALM.give_up_s - 10)
        world.network.heal()
        await asyncio.sleep(20)
    assert server.received == b"xxx"
    assert client.events == server.events == [("made",)]


def test_a_partition_does_not_affect_other_connections():
    async def lone(world):
        client, server = await connected(world)
        client.transport.write(b"x" * 100_000)
        await server.until(lambda me: len(me.received) == 100_000)
        return world.now()

    async def beside_others(world):
        world.network.host("10.0.0.8")
        world.network.host("10.0.0.9")
        client, server = await connected(world)
        client.transport.write(b"x" * 100_000)
        disturbing = asyncio.create_task(disturb(world))
        await server.until(lambda me: len(me.received) == 100_000)
        disturbing.cancel()
        return world.now()

    async def disturb(world):
        while True:
            world.network.partition("10.0.0.8", "10.0.0.9")
            await asyncio.sleep(CALM.latency_s / 3)
            world.network.heal()

    assert run(lone) == run(beside_others)


@run_by(run)
async def test_a_cut_connection_is_reset_on_both_sides(world, /):
    client, server = await connected(world)
    client.transport.write(b"lost")
    world.network.cut("server", "client")
    assert isinstance(await client.lost(), ConnectionResetError)
    assert isinstance(await server.lost(), ConnectionResetError)
    await asyncio.sleep(1)
    assert server.received == b""


@run_by(run)
async def test_a_slow_link_delays_bytes(world, /):
    client, server = await connected(world)
    world.network.slow("client", "server", 2.0)
    began = world.now()
    client.transport.write(b"x")
    await server.until(lambda me: me.received)
    assert world.now() - began == pytest.approx(2.0, abs=0.01)


@run_by(run)
async def test_a_silent_crash_is_noticed_only_by_the_side_that_sends(world, /):
    client, server = await connected(world)
    world.network.crash("server")
    server.transport.write(b"from beyond")
    await asyncio.sleep(10)
    assert client.events == [("made",)]
    client.transport.write(b"anybody?")
    assert isinstance(await client.lost(), TimeoutError)
    assert server.events == [("made",)]
    with pytest.raises(TimeoutError):
        await world.network.host(CLIENT).connect(Recorder, SERVER, 9)


@run_by(run)
async def test_a_restarted_host_resets_old_connections(world, /):
    client, server = await connected(world)
    old = world.network.host(SERVER)
    world.network.crash("server")
    client.transport.write(b"anybody?")
    await asyncio.sleep(10)
    new = world.network.host(SERVER)
    assert isinstance(await client.lost(), ConnectionResetError)
    with pytest.raises(ConnectionRefusedError):
        await world.network.host(CLIENT).connect(Recorder, SERVER, 9)
    for use in (old.listen, old.connect):
        with pytest.raises(PowerCut):
            await use(Recorder, SERVER, 9)
    await new.listen(Recorder, SERVER, 9)


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_host_closes_its_connections(seed):
    async def scenario(world):
        client, _ = await connected(world)
        world.network.crash("server", silently=False)
        error = await client.lost()
        assert error is None or isinstance(error, ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await world.network.host(CLIENT).connect(Recorder, SERVER, 9)
        return type(error)

    run(scenario, seed)


@run_by(run)
async def test_closed_connections_are_forgotten(world, /):
    await connected(world)
    for _ in range(100):
        client = await world.network.host(CLIENT).connect(Recorder, SERVER, 9)
        client.transport.close()
        await client.lost()
    await asyncio.sleep(1)
    assert len(world.network._connections) == 1
