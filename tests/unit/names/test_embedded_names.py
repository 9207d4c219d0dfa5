"""The name server inside a broker: it answers only while its broker can be found through it."""

import asyncio

import pytest

from tests.running import run_by
from tests.simulation.mix import SmallStore
from txmq.client import Admin, Session
from txmq.errors import TransportError
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import RouteQuery
from txmq.remoting.pool import ConnectionPool
from txmq.testing import Conditions, simulate
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings

PLACE = "10.0.0.1"
NAMES = f"{PLACE}:9876"
SLOW = Conditions(latency_s=0.01)
"""So that a start and a stop take a while."""


@pytest.mark.fault("N5")
@run_by(simulate, 1, conditions=SLOW)
async def test_an_embedded_name_server_never_reports_topics_of_its_broker_as_unknown(world, /):
    """Neither at a start nor during a stop, while the broker drains."""
    server, desk = world.machine("server", PLACE), world.machine("desk")
    settings = BrokerSettings(
        listen=f"{PLACE}:10911", names_listen=NAMES, store=SmallStore(flush="async")
    )
    ports = {"clock": server.clock, "network": server.network, "entropy": server.entropy}
    answers, query = [], RouteQuery("T", accept_standard_json_only=True)

    async def knock():
        pool = ConnectionPool(desk.network, desk.clock)
        while True:
            try:
                door = await pool.connection(NAMES)
                found = await door.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, query, timeout_s=1.0)
            except TransportError:
                await asyncio.sleep(0.001)
            else:
                answers.append(found.code)

    async with Broker(settings, disk=server.disk, **ports) as broker:
        async with Session(broker.names, desk.network, desk.clock, desk.entropy) as session:
            await Admin(session).create_topic("T", 1)
        knocking = [asyncio.create_task(knock()) for _ in range(20)]
        await asyncio.sleep(1)
    for _ in range(5):
        before = len(answers)
        async with Broker(settings, disk=server.disk, **ports):
            await asyncio.sleep(1)
        assert len(answers) > before
    for task in knocking:
        task.cancel()
    assert set(answers) == {0}
