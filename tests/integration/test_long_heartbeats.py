"""Long heartbeats at a real broker do not block other clients, and half of one leaves nothing."""

import asyncio
import json

import pytest

from tests.running import run_by
from txmq.limits import GROUPS_PER_CLIENT_MAX
from txmq.protocol.headers import ClientGroups, GroupHeader
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq_broker.handlers import clients as handlers
from txmq_broker.services import slices as long_requests
from txmq_broker.testing import embedded

BEAT, LEAVE, IDS = 34, 35, 38
PATIENCE_S = 20
COUNT = GROUPS_PER_CLIENT_MAX


def beat(count=COUNT):
    names = [f"a-long-name-of-a-producer-group-{number}" for number in range(count)]
    body = {"clientID": "c", "producerDataSet": [{"groupName": name} for name in names]}
    return json.dumps(body).encode()


@pytest.fixture
def serve(monkeypatch):
    """Run a test with a broker that records each group in a turn of its own."""
    monkeypatch.setattr(long_requests, "TURN_S", -1.0)
    monkeypatch.setattr(handlers, "GROUPS_TOGETHER", 1)

    def run(main):
        async def serving():
            async with embedded() as broker:
                pools = [ConnectionPool(SystemNetwork(), SystemClock()) for _ in range(2)]
                connections = [await pool.connection(broker.address) for pool in pools]
                async with asyncio.timeout(PATIENCE_S):
                    await main(broker, *connections)
                for pool in pools:
                    await pool.close()

        asyncio.run(serving())

    return run


async def ask_until(other, condition):
    """Ask over another connection until something holds."""
    while not condition():
        await other.ask(IDS, GroupHeader("unknown"), timeout_s=PATIENCE_S)


@run_by("serve")
async def test_other_connections_are_served_during_a_long_heartbeat(broker, client, other, /):
    beating = asyncio.ensure_future(client.ask(BEAT, body=beat(), timeout_s=PATIENCE_S))
    seen = set()
    await ask_until(other, lambda: seen.add(broker.clients.members) or beating.done())

    assert (await beating).code == 0
    assert broker.clients.members == COUNT
    assert len(seen) > 10


@run_by("serve")
async def test_a_connection_closed_during_a_long_heartbeat_leaves_nothing(broker, client, other, /):
    beating = asyncio.ensure_future(client.ask(BEAT, body=beat(), timeout_s=PATIENCE_S))
    beating.add_done_callback(lambda done: done.exception())
    await ask_until(other, lambda: broker.clients.members)
    assert broker.clients.members < COUNT
    client.abort()
    await ask_until(other, lambda: not broker.clients.members)

    # The next heartbeat is handled after the rest of the first.
    assert (await other.ask(BEAT, body=beat(500), timeout_s=PATIENCE_S)).code == 0
    assert broker.clients.members == len(broker.clients.producer_groups) == 500


@run_by("serve")
async def test_a_request_after_a_long_heartbeat_takes_effect_after_it(broker, client, other, /):
    name = "a-long-name-of-a-producer-group-999"
    leaving = ClientGroups("c", name)
    answers = await asyncio.gather(
        client.ask(BEAT, body=beat(), timeout_s=PATIENCE_S),
        client.ask(LEAVE, leaving, timeout_s=PATIENCE_S),
    )

    assert [answer.code for answer in answers] == [0, 0]
    assert broker.clients.members == COUNT - 1
    assert name not in broker.clients.producer_groups


@run_by("serve")
async def test_a_long_heartbeat_with_a_bad_name_is_refused_whole(broker, client, other, /):
    body = beat().replace(b"group-999", b"group-\\u0007")
    answer = await client.ask(BEAT, body=body, timeout_s=PATIENCE_S)

    assert answer.code == 1
    assert "not printable" in answer.remark
    assert broker.clients.members == 0


@run_by("serve")
async def test_a_long_heartbeat_beyond_the_limit_is_refused_and_counted(
    broker, client, other, /, monkeypatch
):
    monkeypatch.setattr(long_requests, "LONG_REQUESTS_BYTES_MAX", 60_000)

    answers = await asyncio.gather(
        client.ask(BEAT, body=beat(), timeout_s=PATIENCE_S),
        other.ask(BEAT, body=beat(), timeout_s=PATIENCE_S),
    )

    assert [answer.code for answer in answers] == [0, 14]
    assert broker.clients.members == COUNT
    assert broker.clients.refused == 1
