"""A real ``txmq serve`` restarts while clients keep sending through its built-in name server: no
client is told that its topic does not exist, and no acknowledged message is lost.
"""

import asyncio
import os

import pytest

from tests.servers.serving import BrokerProcess
from txmq import Client, Message, Producer
from txmq.client.values import SendStatus
from txmq.errors import ServiceUnavailable, TransportError
from txmq.message import Queue

RESTARTS = 10 if "TXMQ_SOAK" in os.environ else 4
QUEUES, SENDERS, TOPIC = 4, 4, "Restarted"
AWAY = TransportError, ServiceUnavailable
"""What a client may hear of a broker that stops, or is not there. Not that there is no topic."""


@pytest.fixture
def broker(tmp_path):
    running = BrokerProcess(tmp_path, flush="sync")
    running.start()
    yield running
    running.close()


class Load:
    """Clients that send, and what was acknowledged."""

    def __init__(self, names):
        self.names = names
        self.acknowledged = {}
        self.newcomers = 0
        self._count = 0
        self._more = asyncio.Event()

    def _message(self):
        self._count += 1
        return Message(topic=TOPIC, body=b"%d" % self._count)

    async def _send(self, producer):
        message = self._message()
        result = await producer.send(message)
        if result.status is SendStatus.OK:
            self.acknowledged[result.queue.number, result.offset] = message.body
            self._more.set()

    async def go_on(self):
        """Send forever with one producer that knows the topic."""
        async with Producer("steady", self.names) as producer:
            await asyncio.gather(*[self._repeat(producer) for _ in range(SENDERS)])

    async def _repeat(self, producer):
        while True:
            try:
                await self._send(producer)
            except AWAY:
                await asyncio.sleep(0.005)

    async def come(self):
        """Send messages one by one, each with a new client."""
        while True:
            try:
                async with Producer("newcomer", self.names) as producer:
                    await self._send(producer)
                    self.newcomers += 1
            except AWAY:
                await asyncio.sleep(0.005)

    async def acknowledges(self, count):
        """Wait for ``count`` more acknowledgements."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            self._more.clear()
            await self._more.wait()


@pytest.mark.fault("N5")
@pytest.mark.timeout(60 + 20 * RESTARTS)
def test_no_client_is_told_during_a_restart_that_its_topic_is_unknown(broker):
    """Kill -9 and SIGTERM in turn. While a broker stops and starts, its own name server gives no
    answer instead of "unknown topic".
    """

    async def scenario():
        async with Client(broker.names) as operator:
            await operator.admin.create_topic(TOPIC, QUEUES)
        load = Load(broker.names)
        sending = [asyncio.create_task(load.go_on()), asyncio.create_task(load.come())]
        try:
            for turn in range(RESTARTS):
                restarting = asyncio.create_task(load.acknowledges(200))
                done, _ = await asyncio.wait(
                    [restarting, *sending], return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                await asyncio.to_thread(broker.stop if turn % 2 else broker.kill)
                await asyncio.to_thread(broker.start)
            await load.acknowledges(200)
        finally:
            for task in sending:
                task.cancel()
        ends = await asyncio.gather(*sending, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}, ends
        assert load.newcomers
        return load.acknowledged

    async def stored():
        bodies = {}
        async with Client(broker.names) as operator:
            for number in range(QUEUES):
                queue, offset = Queue(TOPIC, "broker-a", number), 0
                while (batch := await operator.admin.pull(queue, offset)).found:
                    bodies |= {(number, message.offset): message.body for message in batch.messages}
                    offset = batch.next_offset
        return bodies

    acknowledged = asyncio.run(scenario())
    bodies = asyncio.run(stored())
    assert {place: bodies.get(place) for place in acknowledged} == acknowledged
    print(f"{RESTARTS} restarts, {len(acknowledged)} acknowledged, {len(bodies)} stored")
