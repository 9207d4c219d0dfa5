"""SIGTERM under load: the broker finishes what it accepted, exits with 0, and loses nothing."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tests.servers.serving import BrokerProcess
from txmq import Message
from txmq.client import Admin, Session
from txmq.errors import TxmqError
from txmq.message import Queue

DRAINS = 3
EXIT_S = 15
QUEUES = 4
SENDERS = 32
TOPIC = "Drain"

Acknowledged = dict[tuple[int, int], bytes]


@pytest.fixture
def broker(tmp_path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path, flush="sync")
    running.start()
    yield running
    running.close()


async def load_until_it_stops(broker: BrokerProcess, acknowledged: Acknowledged, turn: int) -> int:
    """Send from many tasks, stop the broker in the middle, and return its exit code."""
    is_busy = asyncio.Event()
    is_over = False

    async def send(admin: Admin, number: int) -> None:
        count = 0
        while not is_over:
            body = b"%d-%d-%d" % (turn, number, count) + b"." * (number * 37)
            queue = Queue(TOPIC, "broker-a", count % QUEUES)
            count += 1
            try:
                receipt = await admin.send(Message(topic=TOPIC, body=body), queue)
            except TxmqError:
                await asyncio.sleep(0)  # refused or gone: try again until the process has ended
                continue
            place = (receipt.queue.number, receipt.offset)
            assert place not in acknowledged, f"{place} was given twice"
            acknowledged[place] = body
            if count > 20:
                is_busy.set()

    async def stop() -> int:
        nonlocal is_over
        await is_busy.wait()
        try:
            broker.process.send_signal(signal.SIGTERM)
            return await asyncio.to_thread(broker.process.wait, EXIT_S)
        finally:
            is_over = True

    async with Session(broker.names, answer_s=5.0) as session:
        admin = Admin(session)
        code, *_ = await asyncio.gather(stop(), *[send(admin, n) for n in range(SENDERS)])
    return code


async def stored(names: str) -> Acknowledged:
    bodies: Acknowledged = {}
    async with Session(names) as session:
        admin = Admin(session)
        for number in range(QUEUES):
            queue, offset = Queue(TOPIC, "broker-a", number), 0
            while (batch := await admin.pull(queue, offset)).found:
                for message in batch.messages:
                    assert message.offset == offset, "an offset is missing within a queue"
                    bodies[number, offset] = message.body
                    offset += 1
    return bodies


async def make_topic(names: str) -> None:
    async with Session(names) as session:
        await Admin(session).create_topic(TOPIC, QUEUES)


@pytest.mark.fault("N10")
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_broker_stopped_under_load_keeps_every_acknowledged_message(broker):
    acknowledged: Acknowledged = {}
    asyncio.run(make_topic(broker.names))

    for turn in range(DRAINS):
        before = len(acknowledged)
        code = asyncio.run(load_until_it_stops(broker, acknowledged, turn))
        assert code == 0, broker.tail()
        assert len(acknowledged) > before + SENDERS
        broker.start()

    kept = asyncio.run(stored(broker.names))
    assert {place: kept.get(place) for place in acknowledged} == acknowledged
    log = broker.log.read_text(errors="replace")
    assert "Traceback" not in log, log
    assert "they were cut" not in log, "a broker that drained left something unfinished"
