"""Drives txmq's own client, with the verbs, the JSON lines and the way to leave of cpp_client.py.

It runs in a process of its own, as the others do, and knows nothing of the tests. Two verbs are
its own: `send-batch` takes lists of messages, one list a line, and `send-nowait` waits for no
answer before the next message; with --linger-ms messages travel together by themselves.

Bodies are text, or bytes in hexadecimal digits (`body_hex`).
"""

import argparse
import asyncio
import hashlib
import json
import logging
import signal
import sys
import time
from contextlib import suppress

from txmq.client.client import Client
from txmq.client.consume import Later, PullConsumer, PushConsumer
from txmq.client.send.producer import Producer
from txmq.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, StartFrom
from txmq.errors import TxmqError
from txmq.message import Message

RETRY_PAUSE_S = 0.1
LINE_BYTES_MAX = 1 << 20

# Its own timers are made for production (up to 30 s); tests wait for what they bring about.
SHORT_TIMERS = {"heartbeat": 1.0, "route_refresh": 1.0}
SHORT_ROUNDS = {"rebalance_interval": 1.0, "commit_interval": 0.3}


def now_ms():
    return time.time_ns() / 1e6


def emit(event, **facts):
    print(json.dumps({"event": event, "at_ms": now_ms(), **facts}), flush=True)


def build(topic, line):
    return Message(
        topic=topic,
        body=bytes.fromhex(line["body_hex"]) if line.get("body_hex") else line["body"].encode(),
        tags=line.get("tags") or "",
        keys=tuple((line.get("keys") or "").split()),
        properties=line.get("properties") or {},
        delay_level=line.get("level") or 0,
        deliver_at_ms=line.get("deliver_at_ms"),
    )


async def attempt(producer, verb, topic, line):
    """Send one line; returns what is told of each message in it, or of none one way."""
    if verb == "send-batch":
        results = await producer.send_batch([build(topic, entry) for entry in line])
        return list(zip(line, results, strict=True))
    message = build(topic, line)
    if verb == "send-oneway":
        await producer.send_oneway(message)
        return [(line, None)]
    if verb == "send-orderly":
        return [(line, await producer.send_ordered(message, line["shard"]))]
    if verb == "send-nowait":
        return [(line, await producer.send_nowait(message))]
    return [(line, await producer.send(message))]


async def send_until_acknowledged(producer, verb, topic, line):
    """A broker that restarts refuses for a while; the message is offered until it is taken."""
    while True:
        offered_ms = now_ms()
        try:
            told = await attempt(producer, verb, topic, line)
        except TxmqError as problem:
            emit("refused", error=f"{type(problem).__name__}: {problem}")
            await asyncio.sleep(RETRY_PAUSE_S)
        else:
            for sent_line, result in told:
                emit("sent", keys=sent_line.get("keys"), offered_ms=offered_ms, **facts(result))
            return


def facts(result):
    if result is None:
        return {}
    return {
        "status": result.status.name,
        "msg_id": result.id,
        "offset_id": result.offset_id,
        "queue_id": result.queue.number,
        "queue_offset": result.offset,
    }


async def produce(options, client, lines):
    settings = ProducerSettings(linger=options.linger_ms / 1000)
    async with Producer(options.group, client, settings) as producer, asyncio.TaskGroup() as tasks:
        emit("ready")
        async for text in lines:
            sending = send_until_acknowledged(
                producer, options.verb, options.topic, json.loads(text)
            )
            if options.verb == "send-nowait":
                tasks.create_task(sending)
            else:
                await sending
            await asyncio.sleep(options.pace_ms / 1000)


def report(message, told):
    emit(
        "message",
        topic=message.topic,
        msg_id=message.id,
        offset_id=message.offset_id,
        keys=" ".join(message.keys),
        tags=message.tags,
        body_size=len(message.body),
        body_sha256=hashlib.sha256(message.body).hexdigest(),
        queue_id=message.queue.number,
        queue_offset=message.offset,
        position=message.position,
        reconsume_times=message.attempts,
        properties={name: message.properties.get(name) for name in told},
    )


async def consume(options, client, lines):
    settings = ConsumerSettings(
        # As stock clients begin in a queue that still has its first message.
        start=StartFrom.FIRST,
        is_broadcast=options.broadcasting,
        is_orderly=options.orderly,
        attempts_max=options.attempts_max,
        **SHORT_ROUNDS,
    )
    if options.polling:
        await poll(options, PullConsumer(options.group, client, settings), lines)
        return
    consumer = PushConsumer(options.group, client, settings)

    @consumer.on(options.topic, options.tags, sql=options.sql)
    async def handle(message):
        report(message, options.tell)
        await asyncio.sleep(options.work_ms / 1000)
        return Later() if message.attempts < options.fails else None

    async with consumer:
        emit("ready")
        async for _ in lines:
            pass


async def poll(options, consumer, lines):
    async def report_all():
        async for messages in consumer:
            for message in messages:
                report(message, options.tell)

    consumer.subscribe(options.topic, options.tags, sql=options.sql)
    async with asyncio.TaskGroup() as tasks, consumer:
        tasks.create_task(report_all())
        emit("ready")
        async for _ in lines:
            pass
        await consumer.commit()


class Lines:
    """What comes on stdin, line by line, until it is closed or SIGTERM arrives."""

    async def open(self):
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(LINE_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        self._pipe, _ = await loop.connect_read_pipe(lambda: protocol, sys.stdin)
        loop.add_signal_handler(signal.SIGTERM, self._end)

    def _end(self):
        self._pipe.close()
        with suppress(AssertionError):  # It had come to its end already.
            self._reader.feed_eof()

    def __aiter__(self):
        return self

    async def __anext__(self):
        line = await self._reader.readline()
        if not line:
            raise StopAsyncIteration
        return line


async def main():
    options = parse()
    logging.basicConfig(level=logging.INFO)  # To stderr, which is shown where a test fails.
    lines = Lines()
    await lines.open()
    settings = ClientSettings(host=options.host, **SHORT_TIMERS)
    async with Client(options.names, settings) as client:
        if options.verb == "consume":
            await consume(options, client, lines)
        else:
            await produce(options, client, lines)
    emit("stopped")


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = ["send", "send-oneway", "send-orderly", "send-batch", "send-nowait", "consume"]
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("--names", required=True, help="name server, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--pace-ms", type=int, default=0, help="pause between sends")
    parser.add_argument("--linger-ms", type=int, default=0, help="how long to wait for others")
    parser.add_argument("--tags", default="*", help="tag expression, for example 'A || B'")
    parser.add_argument("--sql", default="", help="a condition in place of tags")
    parser.add_argument("--tell", action="append", default=[], help="a property to tell")
    parser.add_argument("--host", default="", help="what the client's id begins with")
    parser.add_argument("--work-ms", type=int, default=0, help="how long handling takes")
    parser.add_argument("--fails", type=int, default=0, help="attempts at a message that fail")
    parser.add_argument("--attempts-max", type=int, help="then it is a dead letter")
    parser.add_argument("--broadcasting", action="store_true")
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--polling", action="store_true", help="consume by asking for messages")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
