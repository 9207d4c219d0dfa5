"""A broker and clients of the handlers' stage, on the sockets of this machine."""

import asyncio

from msgspec.structs import replace

from tests.unit.handlers.handler_stage import SETTINGS, Stage
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.network import SystemNetwork
from txmq.testing import MemoryDisk
from txmq_broker.app import Broker


def on_sockets(main, data=None, settings=SETTINGS):
    """Run a coroutine function of a :class:`Stage` against a broker on this machine's loopback.

    The broker has free ports, and keeps its data in a directory where one is given, else in memory.
    """

    async def run():
        problems = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        await serve(main, data, settings)
        for _ in range(3):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left
        assert not problems

    asyncio.run(run())


async def serve(main, data, settings):
    clock, network = SystemClock(), SystemNetwork()
    pools = []

    async def connect(service, number, address):
        pools.append(ConnectionPool(network, clock, service))
        return await pools[-1].connection(broker.address)

    disk = MemoryDisk() if data is None else LocalDisk(data)
    free = {"listen": "127.0.0.1:0", "names_listen": "127.0.0.1:0"}
    broker = Broker(replace(settings, **free), clock=clock, disk=disk)
    try:
        async with broker:
            await main(Stage(broker, clock, connect, world=None))
    finally:
        for pool in pools:
            await pool.close()
