"""Half messages as a producer has them, and a broker that goes down and comes back."""

import asyncio
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from tests.unit.handlers.handler_stage import (
    SETTINGS,
    STEADY,
    Stage,
    in_world_with_client,
    sending,
    with_client,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import EndTransaction
from txmq.protocol.record import position_in
from txmq.remoting.pool import ConnectionPool
from txmq.testing import MachineCrashedError, World
from txmq_broker.app import Broker
from txmq_broker.config import CheckBackSettings, StoreSettings

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
PREPARED = 4
GROUP = "P"
CHECK = RequestCode.CHECK_TRANSACTION_STATE
HALVES, DECISIONS, PARKED = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)
DURABLE = replace(SETTINGS, store=StoreSettings(flush="sync"))


def quick(settings=SETTINGS, **given):
    """Settings with short check intervals."""
    wanted = {"timeout": 1.0, "check_interval": 1.0, "check_max": 3} | given
    return replace(settings, transaction=CheckBackSettings(**wanted))


async def producer(life, name=None, *groups, topic=None):
    """A client that has registered its producer groups, and has created this topic."""
    client = await life.client(name, topic=topic)
    await client.beat(producers=groups or [GROUP])
    return client


class Half:
    """A half message as its producer knows it."""

    def __init__(self, answer, unique, group=GROUP):
        fields = answer.field_map()
        self.offset = int(fields["queueOffset"])
        self.queue = int(fields["queueId"])
        self.position = position_in(fields["msgId"])
        self.offset_id = fields["msgId"]
        self.unique = unique
        self.group = group

    def end(self, what, *, is_check=False, **changed):
        header = EndTransaction(
            self.group, self.offset, self.position, what, is_check, self.unique, self.unique
        )
        for name, value in changed.items():
            setattr(header, name, value)
        return header


def preparing(topic="T", unique="U1", *, queue=0, group=GROUP, **props):
    """The header of a half message."""
    wanted = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": unique} | props
    header = sending(topic, queue=queue, **wanted)
    header.producer_group, header.sys_flag = group, PREPARED
    return header


async def prepare(client, topic="T", unique="U1", body=b"half", *, queue=0, group=GROUP, **props):
    header = preparing(topic, unique, queue=queue, group=group, **props)
    answer = await client.ok(RequestCode.SEND_MESSAGE, header, body=body)
    return Half(answer, unique, group)


async def end(client, half, what, **given):
    return (await client.ask(RequestCode.END_TRANSACTION, half.end(what, **given))).code


def ending(client, half, what, *, oneway=False, **given):
    """The same, but return a future of the answer."""
    return client.asking(RequestCode.END_TRANSACTION, half.end(what, **given), oneway=oneway)


async def stay(client, seconds, *groups):
    """Let virtual time pass while a client sends heartbeats."""
    left = seconds
    while left > 0:
        step = min(left, 20.0)
        await asyncio.sleep(step)
        await client.beat(producers=groups)
        left -= step


def checks_heard(client):
    """Take all checks that a client was sent, by the transaction's id."""
    found = []
    while not client.inbox.empty():
        request = client.inbox.get_nowait()
        assert request.code == CHECK
        found.append(request.field_map()["transactionId"])
    return found


class Life(Stage):
    """A broker on a simulated machine, from one start to the next."""

    def __init__(self, world, settings):
        self.server = server = world.machine("server")
        at = {"listen": f"{server.address}:10911", "names_listen": f"{server.address}:9876"}
        self.settings = replace(settings, **at)
        self.clock = server.clock
        self.world = world
        self._clients = 0
        self._serving = None

    @property
    def disk(self):
        return self.server.disk

    async def start(self):
        server = self.server
        self.broker = Broker(
            self.settings,
            clock=server.clock,
            network=server.network,
            disk=server.disk,
            entropy=server.entropy,
        )
        ready, self._over = asyncio.Event(), asyncio.Event()

        async def serve(broker, over):
            async with broker:
                ready.set()
                await over.wait()

        self._serving = server.run(serve(self.broker, self._over))
        await ready.wait()

    async def stop(self):
        """Let it drain."""
        self._over.set()
        await self._serving

    async def restart(self):
        """Let it drain, and start it again."""
        await self.stop()
        await self.start()

    async def kill(self):
        self.server.kill()
        await self.gone()

    async def kill_and_start(self):
        await self.kill()
        await self.start()

    async def lose_power(self, loss):
        self.server.crash(loss)
        await self.gone()

    async def gone(self):
        """Wait for the end of a broker that was killed, and bring its machine back."""
        with suppress(MachineCrashedError):
            await self._serving
        if not self.server.is_up:
            self.server.restart()

    async def _connect(self, service, number, address):
        machine = self.world.machine(f"client-{number}", address)
        pool = ConnectionPool(machine.network, machine.clock, service)
        return await machine.run(pool.connection(self.broker.address))


def in_lives(main, settings=SETTINGS, *, within=7200.0):
    """Run a coroutine function of a :class:`Life` in a simulated world."""
    world = World(1, scenario=main.__qualname__, conditions=STEADY)

    async def scenario():
        life = Life(world, settings)
        await life.start()
        await main(life)
        await life.stop()

    world.run(scenario(), timeout=within)


client_in_lives = partial(with_client, run=in_lives)
in_lives_with_client = partial(in_world_with_client, run=in_lives)
