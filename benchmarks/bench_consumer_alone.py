"""The client of bench_consumer, in a process of its own: its CPU and memory are what is measured.

bench_consumer_alone.py consume NAMES MESSAGES TIMES
bench_consumer_alone.py soak NAMES SECONDS
"""

import asyncio
import gc
import json
import re
import sys
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txmq.client.client import Client  # noqa: E402
from txmq.client.consume import PushConsumer  # noqa: E402
from txmq.client.settings import ConsumerSettings, StartFrom  # noqa: E402
from txmq.message import Message  # noqa: E402

TOPIC = "Consumed"
QUEUES = 4
BATCH = 256
BODY = b"x" * 1024
FROM_FIRST = ConsumerSettings(start=StartFrom.FIRST)
AT_ONCE = 64
WARM_UP = 0.2
"""The part of a soak after which its memory is first looked at."""


async def fill(client, count):
    """Store this many messages, and return how many they are."""
    await client.admin.create_topic(TOPIC, queues=QUEUES)
    queues = (await client.session.route(TOPIC)).writable
    whole = count // BATCH
    for number in range(whole):
        batch = [Message(topic=TOPIC, body=BODY, tags="A", keys=(f"key-{number}",))] * BATCH
        await client.admin.send_batch(batch, queues[number % QUEUES])
    return whole * BATCH


async def consume(names, count, times):
    """Consume all of it this many times, each time as another group."""
    async with Client(names) as client:
        count = await fill(client, count)
    return [await consumed(names, count, f"group-{number}") for number in range(times)]


async def consumed(names, count, group):
    consumer = PushConsumer(group, names, FROM_FIRST)
    done = asyncio.Event()
    left = count

    @consumer.on(TOPIC)
    async def nothing(message):
        nonlocal left
        left -= 1
        if not left:
            done.set()

    begun, before = time.perf_counter(), time.process_time()
    async with consumer:
        await done.wait()
        elapsed, used = time.perf_counter() - begun, time.process_time() - before
    return {"per_cpu_s": count / used, "per_s": count / elapsed}


async def soak(names, seconds):
    """Send and consume for so long."""
    async with Client(names) as client:
        await client.admin.create_topic(TOPIC, queues=QUEUES)
        consumer = PushConsumer("soak", client, FROM_FIRST)
        count = 0

        @consumer.on(TOPIC)
        async def nothing(message):
            nonlocal count
            count += 1

        async with consumer:
            begun = time.monotonic()
            senders = [asyncio.create_task(send(client, begun + seconds)) for _ in range(AT_ONCE)]
            await asyncio.sleep(seconds * WARM_UP)
            before = resident_mb()
            await asyncio.gather(*senders)
            after = resident_mb()
    return [{"messages": count, "resident_mb": after, "grown_mb": round(after - before, 2)}]


async def send(client, until):
    while time.monotonic() < until:
        await client.admin.send(Message(topic=TOPIC, body=BODY, tags="A"))


def resident_mb():
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return round(int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024, 2)


def main():
    what, names, *numbers = sys.argv[1:]
    work = {"consume": consume, "soak": soak}[what](names, *map(int, numbers))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(work)))


if __name__ == "__main__":
    main()
