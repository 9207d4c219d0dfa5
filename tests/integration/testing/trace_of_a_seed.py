"""Prints the trace of a small busy world; a test runs it in separate processes."""

import asyncio

from txmq.testing import World


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Ask(asyncio.Protocol):
    def __init__(self):
        self.got = asyncio.Queue()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.got.put_nowait(data)

    def connection_lost(self, error):
        self.got.put_nowait(error or EOFError())


async def serve(machine):
    await machine.network.listen(Echo, "0.0.0.0", 9)
    file = machine.disk.open("log", create=True)
    while True:
        file.write(file.size(), machine.entropy.token(machine.entropy.below(9000)))
        await machine.disk.sync_soon([file])
        await asyncio.sleep(machine.entropy.fraction())


async def ask(machine):
    while True:
        try:
            protocol = await machine.network.connect(Ask, "server", 9)
            for _ in range(20):
                protocol.transport.write(machine.entropy.token(1 + machine.entropy.below(5000)))
                got = await protocol.got.get()
                if isinstance(got, Exception):
                    raise got
            protocol.transport.close()
            return
        except (OSError, EOFError):
            await asyncio.sleep(1)


async def scenario(world):
    server = world.machine("server")
    server.disk.slow_sync(0.001, 0.1)
    server.run(serve(server))
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            machine = world.machine(f"client-{number}")
            group.create_task(asyncio.wait([machine.run(ask(machine))]))
        for _ in range(5):
            await asyncio.sleep(world.entropy.fraction())
            server.crash()
            server.restart()
            server.run(serve(server))
            world.network.partition("server", f"client-{world.entropy.below(8)}")
            await asyncio.sleep(world.entropy.fraction())
            world.network.heal()
    for name in server.disk.names(""):
        world.trace.record(name, server.disk.durable(name).hex())


if __name__ == "__main__":
    world = World(11)
    world.run(scenario(world))
    print(world.trace.digest())
