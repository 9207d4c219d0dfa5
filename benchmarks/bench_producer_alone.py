"""Sends with our own producer for a while, as many in flight as asked for; says how many arrived.

single: as many coroutines as are in flight each await one `send` after the other, which is the
common way. linger: `send_nowait` is used, and each answer lets the next message go, so the
program's own part is as small in this row as its messages are many. send_batch: a few coroutines
each await one list of messages after the other. send_batch_32: the lists are short, and each
message has a tag and a key.
"""

import asyncio
import json
import sys
import time

import uvloop

from txmq.client.send.producer import Producer
from txmq.client.settings import ProducerSettings
from txmq.message import Message

LINGER_S = 0.002
LIST_MESSAGES = 256
SHORT_LIST_MESSAGES = 32


class Count:
    """Messages answered within the time that counts."""

    def __init__(self, warm_up_s, seconds):
        self.begin = time.perf_counter() + warm_up_s
        self.end = self.begin + seconds
        self.messages = 0

    def goes_on(self, messages=1):
        now = time.perf_counter()
        if self.begin <= now < self.end:
            self.messages += messages
        return now < self.end


async def awaiting(producer, message, in_flight, count):
    async def work():
        while True:
            await producer.send(message)
            if not count.goes_on():
                return

    await asyncio.gather(*[work() for _ in range(in_flight)])


async def following(producer, message, in_flight, count):
    ended = asyncio.get_running_loop().create_future()

    def answered(future):
        future.result()
        if count.goes_on():
            send()
        elif not ended.done():
            ended.set_result(None)

    def send():
        producer.send_nowait(message).add_done_callback(answered)

    for _ in range(in_flight):
        send()
    await ended


async def listing(producer, messages, in_flight, count):
    async def work():
        while True:
            await producer.send_batch(messages)
            if not count.goes_on(len(messages)):
                return

    await asyncio.gather(*[work() for _ in range(in_flight // len(messages))])


async def long_lists(producer, message, in_flight, count):
    await listing(producer, [message] * LIST_MESSAGES, in_flight, count)


async def short_lists(producer, message, in_flight, count):
    messages = [
        Message(topic=message.topic, body=message.body, tags="TagA", keys=(f"order-{number:06}",))
        for number in range(SHORT_LIST_MESSAGES)
    ]
    await listing(producer, messages, in_flight, count)


DRIVES = {
    "single": awaiting,
    "linger": following,
    "send_batch": long_lists,
    "send_batch_32": short_lists,
}


async def main():
    row, names, topic, in_flight, body_bytes, warm_up_s, seconds = sys.argv[1:]
    settings = ProducerSettings(linger=LINGER_S) if row == "linger" else ProducerSettings()
    message = Message(topic=topic, body=b"x" * int(body_bytes))
    drive = DRIVES[row]
    async with Producer("bench-txmq", names, settings) as producer:
        await producer.send(message)
        count = Count(float(warm_up_s), float(seconds))
        cpu = time.process_time()
        begun = time.perf_counter()
        await drive(producer, message, int(in_flight), count)
        share = (time.process_time() - cpu) / (time.perf_counter() - begun)
    figures = {"messages": count.messages, "elapsed_s": float(seconds), "busy": round(share, 3)}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
