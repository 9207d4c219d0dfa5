"""The connections of a server: idle timeout, limit of their number, and the end of listening."""

import asyncio
import errno

import pytest

from tests.unit.remoting.remoting_stage import ADDRESS, PORT, SERVER, Stage, echo, failure, in_world
from txmq.errors import ConnectFailed
from txmq.protocol import command as commands
from txmq.remoting.listener import IDLE_S, SWEEP_S
from txmq.remoting.pool import ConnectionPool

CODE = 10


async def answered(connection):
    return (await connection.ask(CODE, body=b"y", timeout_s=5.0)).body == b"y"


@pytest.mark.fault("N6")
@in_world
async def test_a_silent_connection_is_closed_and_a_busy_one_is_not(world):
    async with Stage(world, echo) as stage:
        silent, busy = await stage.raw(), await stage.connect()
        began = world.now()
        while world.now() - began < 3 * IDLE_S:
            assert await answered(busy)
            await asyncio.sleep(IDLE_S / 2)

        assert IDLE_S <= silent.closed_at - began <= IDLE_S + SWEEP_S + 1
        assert busy.is_open
        assert stage.listener.connections == 1
        assert len(stage.lost) == 1


@pytest.mark.fault("N6")
@in_world
async def test_a_frame_that_trickles_in_is_cut_off_after_the_idle_time(world):
    frame = commands.encode(CODE, 1, body=b"x" * 1000)
    async with Stage(world, echo) as stage:
        loris, steady = await stage.raw(), await stage.raw()
        began = world.now()
        for at in range(300):
            loris.write(frame[at : at + 1])
            # As often, but in complete frames, like any other peer.
            steady.write(commands.encode(CODE, at))
            await asyncio.sleep(1)

        assert IDLE_S <= loris.closed_at - began <= IDLE_S + SWEEP_S + 1
        assert loris.received == b""
        assert steady.closed_at is None
        assert len(steady.answers()) == 300


@pytest.mark.fault("N6")
@in_world
async def test_a_peer_that_breaks_off_in_the_middle_of_a_frame_leaves_nothing_behind(world):
    frame = commands.encode(CODE, 1, body=b"x" * 1000)
    async with Stage(world, echo) as stage:
        broken, other = await stage.raw(), await stage.connect()
        broken.write(commands.encode(CODE, 7) + frame[:500])
        await asyncio.sleep(1)
        assert list(broken.answers()) == [7]

        broken.transport.abort()
        await asyncio.sleep(1)

        assert stage.listener.connections == 1
        assert len(stage.lost) == 1
        assert await answered(other)


@in_world
async def test_a_peer_that_always_has_an_incomplete_frame_is_not_cut_off_as_slow(world):
    """Every piece ends one frame and begins the next."""
    async with Stage(world, echo) as stage:
        peer = await stage.raw()
        frames = [commands.encode(CODE, n, body=b"x" * 100) for n in range(200)]
        peer.write(frames[0][:20])
        for before, after in zip(frames, frames[1:], strict=False):
            await asyncio.sleep(2)
            peer.write(before[20:] + after[:20])
        await asyncio.sleep(1)

        assert peer.closed_at is None
        assert len(peer.answers()) == 199


@pytest.mark.fault("N7")
@in_world
async def test_one_connection_too_many_is_refused_and_the_others_are_served(world):
    async with Stage(world, echo, connections_max=3) as stage:
        inside = [await stage.connect() for _ in range(3)]
        outside = [await stage.raw() for _ in range(5)]
        await asyncio.sleep(1)

        assert all(peer.closed_at is not None for peer in outside)
        assert all([await answered(peer) for peer in inside])
        assert stage.listener.connections == 3
        assert stage.lost == []

        inside[0].close()
        await asyncio.sleep(1)
        assert await answered(await stage.connect())


@in_world
async def test_a_refused_connection_is_closed_at_once(world):
    async with Stage(world, echo, connections_max=1) as stage:
        await stage.connect()
        await asyncio.sleep(1)
        late = await stage.connect()
        began = world.now()

        problem = await failure(late.ask(CODE, timeout_s=60.0))

        assert type(problem).__name__ == "ConnectionLost"
        assert world.now() - began < 1.0


@in_world
async def test_stop_listening_refuses_new_connections_and_keeps_open_ones(world):
    async with Stage(world, echo) as stage:
        inside = await stage.connect()
        assert await answered(inside)

        stage.listener.stop_listening()
        stage.listener.stop_listening()

        pool = ConnectionPool(stage.client.network, stage.client.clock)
        with pytest.raises(ConnectFailed):
            await pool.connection(ADDRESS)
        assert await answered(inside)
        assert stage.listener.connections == 1


@in_world
async def test_silent_connections_are_closed_after_stop_listening(world):
    async with Stage(world, echo) as stage:
        silent = await stage.raw()
        await asyncio.sleep(1)
        stage.listener.stop_listening()
        await asyncio.sleep(IDLE_S + 2 * SWEEP_S)

        assert silent.closed_at is not None


@in_world
async def test_closing_a_listener_sends_posted_frames_and_closes_all_connections(world):
    async with Stage(world, lambda *_: None) as stage:
        peers = [await stage.raw() for _ in range(3)]
        await asyncio.sleep(1)
        for end in stage.ends:
            goodbye = commands.encode(CODE, 7, body=b"goodbye", flag=commands.ONEWAY)
            end.post(7, None, 0.0, goodbye)

        stage.listener.close()
        await asyncio.sleep(1)

        assert [peer.answers()[7].body for peer in peers] == [b"goodbye"] * 3
        assert all(peer.closed_at is not None for peer in peers)
        assert stage.listener.connections == 0
        assert len(stage.lost) == 3


@in_world
async def test_listening_twice_at_one_address_is_refused(world):
    async with Stage(world) as stage:
        assert stage.listener.address == (SERVER, PORT)
        second = Stage(world)

        with pytest.raises(OSError) as caught:
            await second.listener.open(SERVER, PORT)

        assert caught.value.errno == errno.EADDRINUSE
