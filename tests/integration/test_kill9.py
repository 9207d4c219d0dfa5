"""Real processes, real kill -9, under load: every acknowledged message is there, at its
acknowledged place.
"""

import asyncio
import os
import random
from collections.abc import Iterator

import pytest

from tests.servers.serving import BrokerProcess
from txmq import Message
from txmq.client import Admin, Session
from txmq.errors import TxmqError
from txmq.message import Queue

KILLS = int(os.environ.get("TXMQ_KILLS", "300" if "TXMQ_SOAK" in os.environ else "12"))
QUEUES = 4
SENDERS = 32
TOPIC = "Kill9"

Acknowledged = dict[tuple[int, int], bytes]


@pytest.fixture
def broker(tmp_path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path, flush="sync")
    running.start()
    yield running
    running.close()


async def load(
    names: str, acknowledged: Acknowledged, enough: int, is_dying: asyncio.Event
) -> None:
    """Send until the broker dies, noting what it acknowledged."""
    async with Session(names, answer_s=5.0) as session:
        admin = Admin(session)
        before = len(acknowledged)
        alive = True

        async def send(number: int) -> None:
            nonlocal alive
            count = 0
            while alive:
                body = b"%d-%d-%d" % (before, number, count) + b"." * (number * 37)
                count += 1
                queue = Queue(TOPIC, "broker-a", count % QUEUES)
                try:
                    receipt = await admin.send(Message(topic=TOPIC, body=body), queue)
                except TxmqError:
                    alive = False
                    return
                place = (receipt.queue.number, receipt.offset)
                assert place not in acknowledged, f"{place} was given twice"
                acknowledged[place] = body
                if len(acknowledged) - before >= enough:
                    is_dying.set()

        await asyncio.gather(*[send(number) for number in range(SENDERS)])
    assert is_dying.is_set(), "the broker stopped answering before it was killed"


async def stored(names: str, start: dict[int, int]) -> Acknowledged:
    """Everything the broker gives from some offsets on."""
    bodies: Acknowledged = {}
    async with Session(names) as session:
        admin = Admin(session)
        for number in range(QUEUES):
            queue, offset = Queue(TOPIC, "broker-a", number), start.get(number, 0)
            while (batch := await admin.pull(queue, offset)).found:
                for message in batch.messages:
                    assert message.offset == offset, "an offset is missing within a queue"
                    bodies[number, message.offset] = message.body
                    offset += 1
    return bodies


async def load_and_kill(broker: BrokerProcess, acknowledged: Acknowledged, chance: random.Random):
    """Kill at a random moment: after a number of acknowledgements and some more loop turns."""
    is_dying = asyncio.Event()
    enough, turns = chance.randrange(1, 600), chance.randrange(200)

    async def kill() -> None:
        await is_dying.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        broker.kill()

    await asyncio.gather(load(broker.names, acknowledged, enough, is_dying), kill())


async def make_topic(names: str) -> None:
    async with Session(names) as session:
        await Admin(session).create_topic(TOPIC, QUEUES)


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * KILLS)
def test_every_acknowledged_message_survives_kill_9_at_its_offset(broker):
    seed = int(os.environ.get("TXMQ_SEED", random.SystemRandom().randrange(2**32)))
    print(f"TXMQ_SEED={seed}")
    chance = random.Random(seed)
    acknowledged: Acknowledged = {}
    asyncio.run(make_topic(broker.names))

    for _ in range(KILLS):
        checked = {
            number: 1 + max((o for q, o in acknowledged if q == number), default=-1)
            for number in range(QUEUES)
        }
        asyncio.run(load_and_kill(broker, acknowledged, chance))
        broker.start()
        kept = asyncio.run(stored(broker.names, checked))
        fresh = {k: body for k, body in acknowledged.items() if k[1] >= checked[k[0]]}
        assert {place: kept.get(place) for place in fresh} == fresh

    everything = asyncio.run(stored(broker.names, {}))
    assert {place: everything.get(place) for place in acknowledged} == acknowledged
    print(f"{KILLS} kills, {len(acknowledged)} acknowledged, {len(everything)} stored")
