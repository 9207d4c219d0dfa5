"""What is left in memory of worlds that are over: a process may run thousands of them."""

import asyncio
import gc
import weakref

import pytest

from txmq.testing import MachineCrashedError, World
from txmq.testing.loop import OBJECTS_LEFT_MAX

KEPT = 5
"""So many of the worlds below make up what may be left behind."""


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


async def serve(machine):
    await machine.network.listen(Echo, "0.0.0.0", 9)
    file = machine.disk.open("log", create=True)
    try:
        while True:
            file.write(file.size(), bytes(100))
            await machine.disk.sync_soon([file])
            await asyncio.sleep(1)
    finally:
        await asyncio.sleep(1)


async def uneventful(world):
    server = world.machine("server")
    server.run(serve(server))
    client = world.machine("client")
    await asyncio.sleep(5)
    await client.network.connect(Echo, "server", 9)


async def with_a_crash(world):
    await uneventful(world)
    machine = world.machine("server")
    running = machine.run(serve(machine))
    await asyncio.sleep(0)
    machine.crash()
    with pytest.raises(MachineCrashedError):
        await running
    machine.restart()
    machine.run(serve(machine))
    await asyncio.sleep(5)


def run(scenario, seed):
    world = World(seed)
    world.run(scenario(world))
    return weakref.ref(world)


@pytest.mark.parametrize("scenario", [uneventful, with_a_crash])
def test_nothing_refers_to_a_finished_world(scenario):
    world = run(scenario, 1)

    gc.collect()
    assert world() is None


@pytest.mark.parametrize("scenario", [uneventful, with_a_crash])
def test_finished_worlds_do_not_pile_up(scenario):
    async def heavy(world):
        await scenario(world)
        world.ballast = [[] for _ in range(OBJECTS_LEFT_MAX // KEPT)]

    gc.collect()
    worlds = []
    for seed in range(4 * KEPT):
        worlds.append(run(heavy, seed))
        alive = sum(world() is not None for world in worlds)
        assert alive <= KEPT + 1
