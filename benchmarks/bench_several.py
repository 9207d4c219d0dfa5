"""What a transaction with several messages costs: its time alone, and how many are done a second.

One `txmq serve --brokers 2` serves all rows. Messages go to one of its brokers, or to both in
turn. The local transaction does nothing, so what remains is half messages and ENDs, all durable.
"""

import asyncio
import itertools
import os
import random
import statistics
import sys
import time
from collections import Counter
from unittest.mock import patch

import bench_process
import uvloop
from bench_brokers import Brokers
from bench_sends import BODY_BYTES, spread

sys.path.insert(0, str(bench_process.CHECKOUT))

from txmq import (  # noqa: E402
    Client,
    LocalTransactionState,
    Message,
    TransactionProducer,
    TransactionState,
)
from txmq.protocol.codes import RequestCode  # noqa: E402
from txmq.protocol.command import FrameReader, decode  # noqa: E402
from txmq.remoting.connection import Connection  # noqa: E402

BROKERS = {"one_broker": ("broker-a",), "two_brokers": ("broker-a", "broker-b")}
ROWS = [(where, messages) for where in BROKERS for messages in (1, 2, 8)]
COMPARED_WITH = ("one_broker", 1)
BODY = b"x" * BODY_BYTES
AT_ONCE = 16
COUNTED = 100
ALONE, RATE = "alone_ms", "transactions_per_s"


class Commits:
    """A listener whose local transactions have nothing to do."""

    async def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT

    async def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN


class Transactions:
    """The transactions of a row."""

    def __init__(self, producer, topics, messages):
        self.producer = producer
        self.topics = itertools.cycle(topics)
        self.messages = messages

    async def run(self):
        messages = [Message(topic=next(self.topics), body=BODY) for _ in range(self.messages)]
        outcome = await self.producer.send_in_transaction(messages)
        assert outcome.state is TransactionState.COMMITTED, outcome
        assert outcome.is_acknowledged, outcome

    async def timed(self, at_once, seconds):
        """The median of the seconds that one took, and how many were done a second."""
        took = []
        begun = time.perf_counter()

        async def work():
            now = time.perf_counter()
            while now < begun + seconds:
                before = now
                await self.run()
                now = time.perf_counter()
                took.append(now - before)

        await asyncio.gather(*[work() for _ in range(at_once)])
        return statistics.median(took), len(took) / (time.perf_counter() - begun)


def several(bench, plan):
    """The requests, time and rate of each row, and their ratios to one message at one broker."""
    with Brokers(bench, 2, "sync") as servers:
        return {"at_once": AT_ONCE, **uvloop.run(_compared(servers.names, plan))}


async def _compared(names, plan):
    addresses = {}
    async with Client(names) as client:
        for broker in BROKERS["two_brokers"]:
            route = await client.admin.create_topic(_topic(broker), broker=broker)
            addresses[broker] = route.masters[broker]
    async with TransactionProducer("bench-several", names, Commits()) as producer:
        work = {
            (where, messages): Transactions(producer, map(_topic, BROKERS[where]), messages)
            for where, messages in ROWS
        }
        sent = {row: await _requests(work[row]) for row in ROWS}  # This warms all up.
        # Many short turns: what disturbs the machine disturbs all rows of a turn.
        turns = [await _turn(work, plan.turn_s / 2) for _ in range(max(2, plan.turns // 2))]
    found = {where: {} for where in BROKERS}
    for where, messages in ROWS:
        requests = {broker: sent[where, messages][addresses[broker]] for broker in BROKERS[where]}
        found[where][str(messages)] = {"requests": requests, **_row(turns, (where, messages))}
    return {"turns": len(turns), **found}


def _topic(broker):
    return f"several-at-{broker}"


async def _requests(transactions):
    """How many half messages and ENDs of a transaction each address is sent."""
    sent = Counter()
    post = Connection.post

    def counting(connection, opaque, waiter, deadline, *pieces, is_urgent=False):
        for frame in FrameReader().feed(b"".join(pieces)):
            sent[connection.address, decode(frame).code] += 1
        post(connection, opaque, waiter, deadline, *pieces, is_urgent=is_urgent)

    with patch.object(Connection, "post", counting):
        for _ in range(COUNTED):
            await transactions.run()
    return {
        address: {
            "halves": sent[address, RequestCode.SEND_MESSAGE_V2] / COUNTED,
            "ends": sent[address, RequestCode.END_TRANSACTION] / COUNTED,
        }
        for address, _ in sent
    }


async def _turn(work, seconds):
    turn = {}
    # Each row comes first and last as often as the others.
    for row in random.sample(ROWS, len(ROWS)):
        os.sync()  # What one has left to be written is not for the next to wait for.
        alone_s, _ = await work[row].timed(1, seconds / 3)
        _, per_s = await work[row].timed(AT_ONCE, seconds)
        turn[row] = {ALONE: alone_s * 1e3, RATE: per_s}
    return turn


def _row(turns, row):
    figures = {name: spread([turn[row][name] for turn in turns]) for name in (ALONE, RATE)}
    ratios = {
        f"{name}_over_one_message": spread(
            [turn[row][name] / turn[COMPARED_WITH][name] for turn in turns]
        )
        for name in (ALONE, RATE)
    }
    return figures | ratios
