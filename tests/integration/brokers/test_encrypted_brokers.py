"""`txmq serve --brokers 2` with TLS: clients, a death, and a drain that takes too long."""

import asyncio
import os
import signal

import pytest

from tests.integration.worker.worker_process import is_running, wait_for
from tests.servers.several_brokers import SeveralBrokers
from txmq import Client, ClientSettings, ClientTls, Message
from txmq.errors import ConnectionLost
from txmq.message import Queue

NAMES = ("broker-a", "broker-b")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, authority):
    certificate, key = authority.issue("brokers")
    tls = ("tls.mode=enforcing", f"tls.certificate={certificate}", f"tls.key={key}")
    running = SeveralBrokers(
        tmp_path_factory.mktemp("brokers"),
        settings=tls,
        options=("--drain-timeout", "0"),
    )
    running.start()
    yield running
    running.close()


@pytest.fixture
def settings(authority):
    return ClientSettings(tls=ClientTls(ca=authority.certificate))


def test_clients_reach_each_broker_only_with_tls_even_after_one_was_killed(brokers, settings):
    async def scenario():
        async with Client(brokers.names, settings) as client:
            await client.admin.create_topic("Orders", queues=1)

            async def send(broker):
                return await client.admin.send(
                    Message(topic="Orders", body=broker.encode()), Queue("Orders", broker, 0)
                )

            receipts = [await send(name) for name in NAMES]
            killed = brokers.pids()["broker-b"]
            os.kill(killed, signal.SIGKILL)
            await asyncio.to_thread(wait_for, lambda: not is_running(killed), "its death")
            await asyncio.to_thread(brokers.until_healthy, killed)
            receipts += [await send(name) for name in NAMES]
            pulled = await client.admin.pull(Queue("Orders", "broker-b", 0), 0)
        async with Client(brokers.names) as plain:
            with pytest.raises(ConnectionLost):
                await plain.admin.topics()
        return receipts, pulled

    receipts, pulled = asyncio.run(scenario())

    assert [receipt.offset for receipt in receipts] == [0, 0, 1, 1]
    assert [message.body for message in pulled.messages] == [b"broker-b"] * 2


def test_a_broker_that_does_not_drain_in_time_is_killed(brokers):
    stuck = brokers.pids()["broker-b"]
    os.kill(stuck, signal.SIGSTOP)

    brokers.process.terminate()

    assert brokers.process.wait(15) == 1, brokers.tail()
    assert "process 2 did not end in time, and is killed" in brokers.tail()
    assert "process 1 did not" not in brokers.tail()
    assert not is_running(stuck)
