"""The memory of finished worlds is freed: a process may run thousands of them."""

import asyncio
import gc
import tracemalloc
import weakref

import pytest

from txmq.testing import MachineCrashedError, World
from txmq.testing.world import OBJECTS_LEFT_MAX

KEPT = 5
"""So many of the failed worlds below make up what may be left behind."""


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


class Ledger:
    """Something of a user's, with a cycle and many bytes."""

    def __init__(self):
        self.pages = bytes(1_000_000)
        self.itself = self


async def of_many_bytes(world):
    machine = world.machine("server")
    file = machine.disk.open("log", create=True)
    file.write(0, bytes(1_000_000))
    await machine.disk.sync_soon([file])
    machine.disk.on_write = lambda event: world.trace.record(event.kind)
    machine.run(serve(machine))
    Ledger()
    await asyncio.sleep(1)


async def failing(world):
    await of_many_bytes(world)
    raise KeyError("on purpose")


def run(scenario, seed):
    world = World(seed)
    if scenario is failing:
        with pytest.raises(KeyError):
            world.run(scenario(world))
    else:
        world.run(scenario(world))
    return weakref.ref(world)


@pytest.fixture
def nobody_collects():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("scenario", [uneventful, with_a_crash, of_many_bytes, failing])
def test_a_finished_world_is_freed_once_unreferenced(scenario):
    assert run(scenario, 1)() is None


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("scenario", [with_a_crash, of_many_bytes, failing])
def test_many_worlds_take_no_more_memory_than_one(scenario):
    run(scenario, 0)
    tracemalloc.start()
    try:
        for seed in range(12):
            run(scenario, seed)
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1_000_000
    assert most < 8_000_000


def test_a_finished_world_still_shows_its_disk_and_time():
    world = World(1)
    world.run(of_many_bytes(world))

    assert world.machine("server").disk.durable("log")[:1_000_000] == bytes(1_000_000)
    assert world.now() == pytest.approx(1, abs=0.1)
    assert "after 1.0" in world.reproduction()


@pytest.mark.usefixtures("nobody_collects")
def test_reference_cycles_of_failed_worlds_do_not_pile_up():
    async def heavy(world):
        ledger = Ledger()
        ledger.ballast = [[] for _ in range(OBJECTS_LEFT_MAX // KEPT)]
        ledgers.append(weakref.ref(ledger))
        raise KeyError("on purpose")

    ledgers = []
    for seed in range(2 * KEPT + 2):
        world = World(seed)
        with pytest.raises(KeyError):
            world.run(heavy(world))
        alive = sum(ledger() is not None for ledger in ledgers)
        assert alive <= KEPT + 1
