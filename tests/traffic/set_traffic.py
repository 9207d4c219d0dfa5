"""Traffic at a broker set by our own client, and what has to be true of it afterwards.

Everything runs in a thread with a loop of its own, until it is stopped. A sender offers each
message until it is acknowledged. A message that was offered twice may be stored twice.
"""

import asyncio
import threading
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, suppress

from txmq import (
    LocalTransactionState,
    Message,
    Producer,
    ProducerSettings,
    TransactionProducer,
    TransactionSettings,
    TransactionState,
)
from txmq.client.client import Client
from txmq.client.consume import PushConsumer
from txmq.client.settings import ClientSettings, ConsumerSettings, StartFrom
from txmq.errors import TxmqError

QUEUES = 4
SHORT_TIMERS = ClientSettings(heartbeat=1.0, route_refresh=1.0)
PATIENCE_S = 40
PAUSE_S = 0.005


_ENDS = {TransactionState.COMMITTED: True, TransactionState.ROLLED_BACK: False}
"""A half message that is stored and on too few disks is rolled back by its producer."""


class EveryOther:
    """A local transaction that commits if its number is even, and says so when it is asked."""

    def execute_local_transaction(self, message, arg):
        return self._state(message)

    def check_local_transaction(self, message):
        return self._state(message)

    @classmethod
    def _state(cls, message):
        is_even = cls.is_even(message.body.decode())
        return LocalTransactionState.COMMIT if is_even else LocalTransactionState.ROLLBACK

    @staticmethod
    def is_even(text):
        return int(text.rsplit(" ", 1)[1]) % 2 == 0


class Traffic:
    """A sender, a producer of transactions, and a consumer, at one topic.

    Args:
        names: The name server.
        topic: The topic.
        has_transactions: Whether there is a producer of transactions.
        pause_s: The pause of the sender after each message.
        padding: How many bytes each message has in addition to its text.
        reads_late: Whether the consumer starts when the traffic stops. Until then no committed
            offset tells a member how long its log was.

    Attributes:
        acknowledged: The place of each acknowledged message by its text: queue and offset.
        halves: Whether each stored half message becomes visible, by its text.
        handled: The offset and text of each handled message, by queue, in the order of handling.
    """

    def __init__(
        self,
        names,
        topic,
        *,
        has_transactions=True,
        pause_s=PAUSE_S,
        padding=0,
        reads_late=False,
    ):
        self.names = names
        self.topic = topic
        self.has_transactions = has_transactions
        self.pause_s = pause_s
        self.padding = {"padding": "." * padding} if padding else {}
        self.reads_late = reads_late
        self.acknowledged = {}
        self.halves = {}
        self.handled = defaultdict(list)
        self.refusals = Counter()
        self._patient_until = 0.0
        self._leaving = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the clients did not start"
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._patient_until = time.monotonic() + PATIENCE_S
        self._leaving.set()
        self._thread.join(PATIENCE_S + 10)
        assert not self._thread.is_alive(), "the clients did not stop"

    def wait_for_more(self, count=20):
        """Return once ``count`` more messages are acknowledged."""
        wanted, end = len(self.acknowledged) + count, time.monotonic() + PATIENCE_S
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < end, f"nothing is acknowledged any more: {self.refusals}"
            threading.Event().wait(0.01)

    def wait_for_silence(self, within, lasting):
        """Return when nothing has been acknowledged for a time."""
        count, since, end = len(self.acknowledged), time.monotonic(), time.monotonic() + within
        while time.monotonic() < since + lasting:
            if len(self.acknowledged) != count:
                count, since = len(self.acknowledged), time.monotonic()
                assert since < end, "messages are still acknowledged"
            threading.Event().wait(0.01)

    def wait_for_refusal(self, name):
        """Return once a send has failed with this error: sends outlast a short refusal."""
        end = time.monotonic() + PATIENCE_S
        while not self.refusals[name]:
            assert time.monotonic() < end, f"nothing failed with {name}: {self.refusals}"
            threading.Event().wait(0.01)

    async def _run(self):
        async with Client(self.names, SHORT_TIMERS) as client:
            consumer = PushConsumer(
                f"{self.topic}-readers",
                client,
                ConsumerSettings(
                    start=StartFrom.FIRST, rebalance_interval=1.0, commit_interval=0.3
                ),
            )

            @consumer.on(self.topic)
            async def handle(message):
                self.handled[message.queue.number].append((message.offset, message.body.decode()))

            works = [self._send(client)]
            if self.has_transactions:
                works.append(self._transact(client))
            async with AsyncExitStack() as open_consumer:
                if self.reads_late:
                    works.append(self._enter_late(open_consumer, consumer))
                else:
                    await open_consumer.enter_async_context(consumer)
                self._ready.set()
                await asyncio.gather(*works)
                await self._until_handled(set(self.acknowledged))

    async def _enter_late(self, open_consumer, consumer):
        while not self._leaving.is_set():
            await asyncio.sleep(PAUSE_S)
        await open_consumer.enter_async_context(consumer)

    async def _send(self, client):
        number = 0
        async with Producer(f"{self.topic}-plain", client, ProducerSettings(timeout=2)) as sender:
            while not self._leaving.is_set():
                text = f"plain {number}"
                number += 1
                sent = await self._offered(sender, text)
                if sent is not None:
                    self.acknowledged[text] = sent.queue.number, sent.offset
                await asyncio.sleep(self.pause_s)

    async def _transact(self, client):
        number = 0
        settings = TransactionSettings(timeout=2)
        async with TransactionProducer(
            f"{self.topic}-bank", client, EveryOther(), settings
        ) as producer:
            while not self._leaving.is_set():
                text = f"half {number}"
                number += 1
                with suppress(TxmqError):
                    outcome = await producer.send_in_transaction(self._message(text))
                    is_even = EveryOther.is_even(text)
                    self.halves[text] = _ENDS.get(outcome.state, is_even)
                await asyncio.sleep(10 * self.pause_s)
            # If an END was lost, a check commits: it needs this producer, maybe twice.
            await self._until_handled({text for text, commits in self.halves.items() if commits})

    async def _offered(self, sender, text):
        while not self._leaving.is_set():
            try:
                return await sender.send(self._message(text))
            except TxmqError as error:
                self.refusals[type(error).__name__] += 1
                await asyncio.sleep(0.05)
        return None

    async def _until_handled(self, wanted):
        """Wait for these messages; :meth:`check` complains of those that do not come."""
        while time.monotonic() < self._patient_until:
            texts = {text for messages in self.handled.values() for _, text in messages}
            if wanted <= texts:
                return
            await asyncio.sleep(0.05)

    def _message(self, text):
        key = text.replace(" ", "-")
        return Message(
            topic=self.topic, body=text.encode(), keys=(key,), properties={**self.padding}
        )

    # Afterwards

    def check(self, leader):
        """What has to be true of the log of the last leader, and of what the consumer saw."""
        stored = {queue: self.all_of(leader, queue) for queue in range(QUEUES)}
        for text, (queue, offset) in self.acknowledged.items():
            assert stored[queue].get(offset) == text, f"{text} is not at {queue}/{offset}"
        texts = Counter(text for messages in stored.values() for text in messages.values())
        for text, is_committed in self.halves.items():
            assert texts[text] == int(is_committed), f"{text} is visible {texts[text]} times"
        for queue, messages in self.handled.items():
            highest = -1
            for offset, text in messages:
                assert stored[queue].get(offset) == text, f"{text} was at {queue}/{offset}"
                # A redelivery goes back to the last committed offset; what is new comes in order.
                assert offset <= highest + 1, f"{queue}/{highest + 1} was passed over"
                highest = max(highest, offset)
        seen = {text for messages in self.handled.values() for _, text in messages}
        assert set(self.acknowledged) <= seen, "the consumer missed some"

    def all_of(self, leader, queue):
        """The text of every message of a queue, by its offset."""
        texts, offset, end = {}, 0, leader.max_offset(self.topic, queue)
        while offset < end:
            records = leader.records(self.topic, queue, offset)
            texts |= {record.offset: record.body.decode() for record in records}
            offset = records[-1].offset + 1
        return texts


def traffic(members, **how):
    """Traffic at a topic of its own of a set whose members are all in sync."""
    topic = f"topic-{members.name}"
    members.wait_in_sync(len(members.members) - 1).create_topic(topic, QUEUES)
    return Traffic(members.names.names, topic, **how)
