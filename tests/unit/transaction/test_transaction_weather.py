"""Transfers during faults: each booked transfer is delivered once, and nothing else is.

Two services of one group share a database, which survives all crashes; a real broker flushes before
it answers. The network is cut and partitioned, the broker loses power, and the services die at
any moment.
"""

import asyncio
import itertools
from collections import Counter
from contextlib import suppress

import pytest

from tests.soak import some_of
from tests.unit.transaction.producing_stage import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    message,
)
from txmq.client.client import Client
from txmq.errors import BrokerRefused, RollBack, TransportError, TxmqError
from txmq.settings.units import Duration
from txmq.testing import simulate
from txmq.transaction import TransactionProducer, TransactionState
from txmq.transaction import TransactionSettings as Settings
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, CheckBackSettings

STORM_S = 60.0
LANES = 4


class Bank:
    """A listener on a database with a row for each transaction; the first writer wins."""

    def __init__(self, world, rows):
        self.draw, self.rows = world.entropy, rows

    async def execute_local_transaction(self, message, arg):
        await asyncio.sleep(self.draw.fraction() * 8 if self.draw.below(10) == 0 else 0.05)
        trouble = self.draw.below(12)
        if trouble == 0:
            raise OSError("the database did not begin")
        if trouble == 1:
            self.rows.setdefault(message.id, False)
            raise RollBack("too little money")
        if not self.rows.setdefault(message.id, True):
            raise RollBack("somebody has answered for it")
        if trouble == 2:
            raise OSError("the database did not say whether it has committed")
        await asyncio.sleep(self.draw.fraction() * 0.01)
        return UNKNOWN if trouble == 3 else COMMIT

    async def check_local_transaction(self, message):
        await asyncio.sleep(self.draw.fraction() * 0.2)
        if self.draw.below(5) == 0:
            raise OSError("the database is away")
        if self.draw.below(20) == 0:
            await asyncio.sleep(3600)
        return COMMIT if self.rows.setdefault(message.id, False) else ROLLBACK


class Service:
    """A process that transfers money again and again, and is restarted when it dies."""

    def __init__(self, world, name, names, rows, settings):
        self.world, self.name, self.names, self.rows = world, name, names, rows
        self.settings = settings
        self.outcomes, self.tallies, self.is_enough = [], [], False

    def start(self):
        on = self.world.machine(self.name)
        on.run(self._work(on), name=self.name)

    async def _work(self, on):
        ports = {"network": on.network, "clock": on.clock, "entropy": on.entropy}
        bank = Bank(self.world, self.rows)
        async with TransactionProducer(GROUP, self.names, bank, self.settings, **ports) as producer:
            self.tallies.append(producer.tally)
            await asyncio.gather(*[self._lane(producer) for _ in range(LANES)])
            await asyncio.Event().wait()  # It answers checks until it is killed.

    async def _lane(self, producer):
        while not self.is_enough:
            with suppress(TransportError, BrokerRefused):  # And nothing else.
                self.outcomes.append(await producer.send_in_transaction(message(b"x")))
            await asyncio.sleep(self.world.entropy.fraction() * 0.5)


class House:
    """The broker's machine."""

    def __init__(self, world):
        self.world, self.on = world, world.machine("server")
        at = self.on.address
        self.names = f"{at}:9876"
        self.settings = BrokerSettings(
            name="broker-a",
            listen=f"{at}:10911",
            names_listen=self.names,
            transaction=CheckBackSettings(
                timeout=Duration(3), check_interval=Duration(5), check_max=1000
            ),
        )

    def start(self):
        self.on.run(self._serve(), name="broker")

    async def _serve(self):
        on = self.on
        ports = {"clock": on.clock, "network": on.network, "entropy": on.entropy}
        async with Broker(self.settings, disk=on.disk, **ports):
            await asyncio.Event().wait()


async def storm(world, house, services):
    draw = world.entropy
    until = world.now() + STORM_S
    while world.now() < until:
        await asyncio.sleep(draw.fraction() * 3)
        who = services[draw.below(len(services))]
        match draw.below(5):
            case 0 | 1:
                world.network.cut("server", who.name)
            case 2:
                world.network.partition("server", who.name, one_way=draw.below(2) == 0)
                await asyncio.sleep(draw.fraction() * 5)
                world.network.heal()
            case 3:
                world.machine(who.name).crash()
                await asyncio.sleep(draw.fraction() * 5)
                world.machine(who.name).restart()
                who.start()
            case 4:
                house.on.crash()
                await asyncio.sleep(draw.fraction() * 2)
                house.on.restart()
                house.start()
    world.network.heal()


async def seen(admin):
    found = Counter()
    for queue in (await admin.route(TOPIC)).readable:
        offset, end = 0, await admin.max_offset(queue)
        while offset < end:
            pulled = await admin.pull(queue, offset)
            found.update(record.id for record in pulled.messages)
            offset = pulled.next_offset
    return found


async def settled(admin):
    """Wait until every transaction is decided."""
    async with asyncio.timeout(900):
        while True:
            try:
                if not await admin.transactions():
                    return
            except TxmqError:
                pass  # Its connection may be one that the storm has broken.
            await asyncio.sleep(5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "repeats_end"),
    some_of(itertools.product(range(3), [False, True]), [(0, False), (1, True)]),
)
def test_booked_transfers_are_delivered_once_and_nothing_else_in_a_storm(seed, repeats_end):
    totals = Counter()

    async def scenario(world):
        house, rows = House(world), {}
        house.start()
        settings = Settings(repeats_end=repeats_end, check_timeout=2.0, check_workers=2)
        services = [
            Service(world, service, house.names, rows, settings) for service in ("one", "two")
        ]
        for service in services:
            service.start()
        await asyncio.sleep(1)
        await storm(world, house, services)
        for service in services:
            service.is_enough = True
        desk = world.machine("desk")
        async with Client(house.names, None, desk.network, desk.clock, desk.entropy) as client:
            await asyncio.sleep(30)
            await settled(client.admin)
            found = await seen(client.admin)

        booked = {xid for xid, is_booked in rows.items() if is_booked}
        assert set(found) == booked
        assert set(found.values()) <= {1}
        for outcome in [entry for service in services for entry in service.outcomes]:
            if outcome.state is TransactionState.COMMITTED:
                assert outcome.xid in booked
            elif outcome.state is TransactionState.ROLLED_BACK:
                assert outcome.xid not in booked
            totals[outcome.state] += 1
            totals["not acknowledged"] += not outcome.is_acknowledged
        for tally in [entry for service in services for entry in service.tallies]:
            assert tally.conflicts == 0
            totals["checks"] += tally.checks

    simulate(scenario, seed)
    assert len(totals) == 5, totals
    assert min(totals.values()) > 0, totals
