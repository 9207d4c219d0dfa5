"""The simulated network against the machine's own: a protocol must see the same events."""

import asyncio

import pytest

from tests.unit.testing.network_recorder import Recorder
from txmq.runtime.network import SystemNetwork
from txmq.testing import simulate


def on_the_real_one(scenario):
    async def main():
        async with asyncio.timeout(20):
            return await scenario(SystemNetwork())

    return asyncio.run(main())


def on_ours(scenario):
    return simulate(lambda world: scenario(world.machine("m").network), 1)


async def connected(network, **options):
    served = []

    def accept():
        served.append(Recorder())
        vars(served[0]).update(options)
        return served[0]

    door = await network.listen(accept, "127.0.0.1", 0)
    client = await network.connect(Recorder, *door.address)
    client.transport.write(b"hello")
    while not served:
        await asyncio.sleep(0)
    await served[0].until(lambda me: me.received == b"hello")
    door.close()
    return client, served[0]


async def close(network):
    client, server = await connected(network)
    client.transport.write(b"x" * 300_000)
    client.transport.close()
    closing = client.transport.is_closing()
    await client.lost()
    await server.lost()
    return closing, client.events[-1], server.events, len(server.received)


async def stop_writing(network):
    client, server = await connected(network, keep_open=True)
    client.transport.write_eof()
    await server.until(lambda me: ("eof",) in me.events)
    server.transport.write(b"answer")
    server.transport.close()
    await client.lost()
    await server.lost()
    return client.events, server.events, client.received


async def abort(network):
    client, server = await connected(network)
    client.transport.pause_reading()
    server.transport.write(b"unread")
    client.transport.abort()
    await client.lost()
    await server.lost()
    # The system chooses whether this is a reset or an end.
    return client.events, server.events[-1][0]


async def slow_reader(network):
    client, server = await connected(network)
    client.transport.set_write_buffer_limits(high=1000)
    limits = client.transport.get_write_buffer_limits()
    server.transport.pause_reading()
    size = 32 * 1024 * 1024
    client.transport.write(bytes(size))
    paused = list(client.events)
    reading = server.transport.is_reading()
    server.transport.resume_reading()
    await server.until(lambda me: len(me.received) == size + 5)
    await client.until(lambda me: ("resume",) in me.events)
    client.transport.close()
    await server.lost()
    return limits, paused, reading, client.events, server.events


async def nobody_there(network):
    door = await network.listen(Recorder, "127.0.0.1", 0)
    door.close()
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await network.connect(Recorder, *door.address)
    again = await network.listen(Recorder, *door.address)
    with pytest.raises(OSError, match=r"[Aa]ddress (already )?in use"):
        await network.listen(Recorder, *door.address)
    again.close()


async def wrong_use(network):
    client, server = await connected(network)
    with pytest.raises(TypeError):
        client.transport.write("text")
    with pytest.raises(ValueError):
        client.transport.set_write_buffer_limits(high=1, low=2)
    client.transport.write(b"")
    client.transport.close()
    client.transport.close()
    client.transport.write(b"too late")
    client.transport.abort()
    await server.lost()
    await client.lost()
    return client.events, bytes(server.received)


@pytest.mark.parametrize(
    "scenario", [close, stop_writing, abort, slow_reader, nobody_there, wrong_use]
)
def test_a_protocol_sees_the_same_events_on_the_simulated_and_the_real_network(scenario):
    assert on_ours(scenario) == on_the_real_one(scenario)
