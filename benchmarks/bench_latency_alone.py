"""The client of bench_latency: sends at a steady rate, and consumes what it sends.

bench_latency_alone.py NAMES SECONDS RATE
"""

import asyncio
import json
import struct
import sys
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txmq.client.client import Client  # noqa: E402
from txmq.client.consume import PushConsumer  # noqa: E402
from txmq.client.send.producer import Producer  # noqa: E402
from txmq.client.settings import ConsumerSettings, StartFrom  # noqa: E402
from txmq.message import Message  # noqa: E402

TOPIC = "Timed"
BODY_BYTES = 1024
STAMP = struct.Struct(">d")
STEP_S = 0.0005
SETTLING_S = 1.0
"""The first second of messages does not count: queues are assigned, and code is warm then."""


async def measure(names, seconds, rate):
    """Send for so long after the settling; returns the latencies of what was sent then."""
    taken = []
    async with Client(names) as client:
        await client.admin.create_topic(TOPIC, queues=4)
    consumer = PushConsumer("timed", names, ConsumerSettings(start=StartFrom.FIRST))
    producer = Producer("timing", names)

    @consumer.on(TOPIC)
    async def note(message):
        sent = STAMP.unpack_from(message.body)[0]
        if sent >= counted_from:
            taken.append(time.perf_counter() - sent)

    counted_from = time.perf_counter()
    async with consumer, producer:
        begun = time.perf_counter()
        counted_from = begun + SETTLING_S
        sending, sent = set(), 0
        while (now := time.perf_counter()) < counted_from + seconds:
            while sent < (now - begun) * rate:
                body = STAMP.pack(time.perf_counter()).ljust(BODY_BYTES, b"x")
                task = asyncio.create_task(producer.send(Message(topic=TOPIC, body=body)))
                sending.add(task)
                task.add_done_callback(sending.discard)
                sent += 1
            await asyncio.sleep(STEP_S)
        await asyncio.gather(*sending)
        async with asyncio.timeout(10):
            while len(taken) < rate * seconds * 0.99:
                await asyncio.sleep(STEP_S)
    return sorted(taken)


def main():
    names, seconds, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        taken = runner.run(measure(names, seconds, rate))
    parts = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    figures = {name: round(taken[int(len(taken) * part)] * 1e3, 3) for name, part in parts.items()}
    print(json.dumps({**figures, "max": round(taken[-1] * 1e3, 3), "messages": len(taken)}))


if __name__ == "__main__":
    main()
