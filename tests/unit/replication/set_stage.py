"""A leader and followers on simulated machines; the test says who leads, and in which epoch."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec.structs import force_setattr, replace

from tests.unit.handlers.handler_stage import STEADY, Client, Inbox
from tests.unit.replication.copy_stage import log_of
from txmq.errors import BrokerRefused
from txmq.remoting.pool import ConnectionPool
from txmq.testing import MachineCrashedError, World
from txmq_broker.access.account_copies import AccountsCopy
from txmq_broker.app import Broker
from txmq_broker.config import (
    BrokerSettings,
    CheckBackSettings,
    ReplicationSettings,
    RetentionSettings,
    StoreSettings,
)
from txmq_broker.processes.follower_server import FollowerServer
from txmq_broker.replication.follower import Follower
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.log.identity import known_log

PORT = 10911
SEGMENT_BYTES = 64 * 1024
"""Far below what a setting accepts, so that a few messages fill many files."""


def promote(disk, epoch):
    """Note that a directory leads from now on, as ``txmq cluster promote`` does."""
    keeper = Keeper(disk)
    state = keeper.copy_state()
    keeper.owner = f"{known_log(disk)[0] or 0:016x}"
    if state.is_copy:
        keeper.save_copy_state(replace(state, is_copy=False, epoch=epoch))


class SetMember:
    """A machine that runs a leader or a follower, or nothing."""

    def __init__(self, stage, name):
        self.stage = stage
        self.name = name
        self.machine = stage.world.machine(name)
        self.broker = self.follower = None
        self._over = asyncio.Event()
        self._running = None

    @property
    def address(self):
        return f"{self.machine.address}:{PORT}"

    @property
    def disk(self):
        return self.machine.disk

    def settings(self, role):
        store = StoreSettings(checkpoint_every=64 * 1024)
        force_setattr(store, "segment_size", SEGMENT_BYTES)
        return BrokerSettings(
            listen=self.address,
            names_listen=f"{self.machine.address}:9876",
            store=store,
            retention=RetentionSettings(keep=60.0, delete_at=""),
            transaction=CheckBackSettings(timeout=1.0, check_interval=1.0),
            replication=ReplicationSettings(role=role, member=self.name),
        )

    async def lead(self, epoch=0, role="leader", **copies):
        """Start a leader and let the others find it; a promoted copy leads in this epoch."""
        machine = self.machine
        promote(machine.disk, epoch)
        self.broker = Broker(
            replace(
                self.settings("leader"),
                replication=ReplicationSettings(role=role, **copies),
            ),
            clock=machine.clock,
            network=machine.network,
            disk=machine.disk,
            entropy=machine.entropy,
        )
        ready, self._over = asyncio.Event(), asyncio.Event()

        async def serve(broker, over):
            async with broker:
                ready.set()
                await over.wait()

        self._running = machine.run(serve(self.broker, self._over), name="leader")
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait((self._running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            self._running.result()
        self.stage.leader = self, self.broker.store.log.epoch

    def follow(self, accounts=None):
        """Start a follower."""
        machine = self.machine
        pool = ConnectionPool(machine.network, machine.clock)
        settings = replace(
            self.settings("leader"),
            replication=ReplicationSettings(role="follower", member=self.name),
            names="names:9876",
        )
        self.follower = Follower(
            settings,
            pool,
            machine.disk,
            machine.clock,
            machine.entropy,
            self.stage.find_leader,
            accounts,
        )
        self._running = machine.run(self.follower.run(), name="follower")

    def serve_reads(self, **copies):
        """Start a follower that consumers may read."""
        machine = self.machine
        server = FollowerServer(
            replace(
                self.settings("leader"),
                replication=ReplicationSettings(
                    role="follower", member=self.name, **({"reads": True} | copies)
                ),
                names="names:9876",
            ),
            self.stage.find_leader,
            AccountsCopy("", machine.clock),
            clock=machine.clock,
            network=machine.network,
            disk=machine.disk,
            entropy=machine.entropy,
        )
        self.follower = server.follower

        async def serve():
            try:
                await server.run()
            finally:
                await server.close(leaves=False)

        self._running = machine.run(serve(), name="follower")

    async def stop(self):
        """Stop the running leader or follower in order."""
        if self.follower is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        elif self.broker is not None:
            self._over.set()
            await self._running
        self.broker = self.follower = None

    async def kill(self):
        """Kill the running leader or follower as ``kill -9`` does."""
        self.machine.kill()
        with suppress(MachineCrashedError):
            await self._running
        self.broker = self.follower = None

    async def ended(self):
        """Wait until the follower has ended by itself; return its error."""
        async with asyncio.timeout(60):
            while not self._running.done():
                await asyncio.sleep(0.1)
        return self._running.exception()

    def log_files(self):
        return log_of(self.disk)

    @property
    def end(self):
        return self.broker.store.log.end

    async def client(self):
        inbox = Inbox()
        self.stage.clients += 1
        machine = self.stage.world.machine(f"client-{self.stage.clients}")
        pool = ConnectionPool(machine.network, machine.clock, inbox.serve)
        connection = await machine.run(pool.connection(self.address))
        return Client(connection, inbox, f"client-{self.stage.clients}")


class SetStage:
    """The members, and who leads them."""

    def __init__(self, world):
        self.world = world
        self.clients = 0
        self.leader = None
        self.first, self.second, self.third = (SetMember(self, f"m{n}") for n in (1, 2, 3))

    async def find_leader(self):
        if self.leader is None:
            raise BrokerRefused("nobody leads")
        member, epoch = self.leader
        return member.address, epoch

    async def caught_up(self, *members):
        """Wait until members have everything that the leader has, durably."""
        leader = self.leader[0]
        async with asyncio.timeout(60):
            while any(
                member.follower.status.durable < leader.end
                or leader.end == 0
                or member.follower.status.failure
                for member in members
            ):
                await asyncio.sleep(0.05)

    async def copied(self):
        """Let the first member lead and the second copy 1,000 bytes; return a client."""
        await self.first.lead()
        self.second.follow()
        client = await self.first.client()
        await client.topic("T", 4)
        await client.send("T", b"x" * 1000)
        await self.caught_up(self.second)
        return client

    async def stop(self):
        for member in (self.first, self.second, self.third):
            await member.stop()


def in_set(main, *, within=3600.0):
    """Run a coroutine function of a :class:`SetStage` in a simulated world."""
    world = World(1, scenario=main.__qualname__, conditions=STEADY)

    async def scenario():
        stage = SetStage(world)
        await main(stage)
        await stage.stop()

    world.run(scenario(), timeout=within)
