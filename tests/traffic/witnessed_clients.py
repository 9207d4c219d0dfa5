"""Clients of a broker set that write down what they did and saw, for the check of linearizability.

They are our own: a sender, a producer of transactions whose listener commits, rolls back and does
not know, a consumer, an operator, and observers that ask all members what they know, as
`txmq tx show` does. Nothing is sent twice, so each message has one offset at most.
"""

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import suppress

from tests.traffic.linearizability import (
    ABSENT,
    COMMITTED,
    OPEN,
    ROLLED_BACK,
    Append,
    End,
    Operation,
    Read,
    Show,
    Write,
)
from txmq import (
    LocalTransactionState,
    Message,
    Producer,
    ProducerSettings,
    TransactionProducer,
    TransactionSettings,
    TransactionState,
)
from txmq.client import Session
from txmq.client.client import Client
from txmq.client.consume import PushConsumer
from txmq.client.settings import ClientSettings, ConsumerSettings, StartFrom
from txmq.errors import BrokerRefused, NotFound, TransportError, TxmqError
from txmq.limits import RECALLED_TRANSACTIONS
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import DecideTransaction, NamedTransaction, OffsetAnswer, QueueHeader
from txmq.protocol.operations import TransactionHistory

QUEUES = 2
SENDERS = 3
PRODUCERS = 3
OBSERVERS = 2
LATEST = 10
SHORT_TIMERS = ClientSettings(heartbeat=1.0, route_refresh=1.0, answer_timeout=2.0)
ANSWER_S = 2.0
PAUSE_S = 0.02
PATIENCE_S = 40
STATES = {"prepared": OPEN, "parked": OPEN, "committed": COMMITTED, "rolled back": ROLLED_BACK}
ENDS = {TransactionState.COMMITTED: COMMITTED, TransactionState.ROLLED_BACK: ROLLED_BACK}


def outcome_of(text):
    """How a transaction ends, by its number."""
    return COMMITTED if number_of(text) % 2 == 0 else ROLLED_BACK


def is_unknown(text):
    """Whether the producer of a transaction says how it ends only when it is asked."""
    return number_of(text) % 3 == 2


def number_of(text):
    return int(text.rsplit(" ", 1)[1])


class Records:
    """The operations of all clients, by transaction and by queue."""

    def __init__(self):
        self.of = defaultdict(list)
        self.counts = Counter()
        self.lost = []
        """Sends without an answer: they may be in any queue."""
        self.commits = {}
        """When each commit began, and when it was known. Its answer does not name the queue."""

    def add(self, key, begun, who, action, *, ended=None):
        self.of[key].append(Operation(begun, ended, who, action))
        self.counts[type(action).__name__] += ended is not None

    def all(self):
        """All operations by key; those that may be in any queue are listed for each queue."""
        queues = [f"queue {number}" for number in range(QUEUES)]
        known = {key: list(operations) for key, operations in self.of.items()}
        for queue in queues:
            known.setdefault(queue, []).extend(self.lost)
        for text, (begun, ended) in self.commits.items():
            for queue in self._queues_with(text) or queues:
                known[queue].append(Operation(begun, ended, "commit", Append((text,))))
        return known

    def _queues_with(self, text):
        return [
            key
            for key, operations in self.of.items()
            if key.startswith("queue")
            for operation in operations
            if isinstance(operation.action, Read) and text in operation.action.messages
        ][:1]


class Listener:
    """Local transactions, and what their producer answers when it is asked."""

    def __init__(self, records):
        self.records = records
        self.xids = {}
        """The id of each transaction by its text, oldest first."""

    def execute_local_transaction(self, message, arg):
        text = message.body.decode()
        self.xids[text] = message.id
        if is_unknown(text):
            return LocalTransactionState.UNKNOWN
        return self._state(text)

    def check_local_transaction(self, message):
        text = message.body.decode()
        if text not in self.xids:  # The answer to the half message was lost.
            self.xids[text] = message.id
            self.records.add(message.id, 0.0, "producer", Write(OPEN))
        self.say(text, message.id, "check")
        return self._state(text)

    def say(self, text, xid, who):
        """Note that somebody is about to end a transaction."""
        now, outcome = time.monotonic(), outcome_of(text)
        self.records.add(xid, now, who, Write(outcome))
        if outcome == COMMITTED:
            self.records.commits.setdefault(text, (now, None))

    @staticmethod
    def _state(text):
        is_committed = outcome_of(text) == COMMITTED
        return LocalTransactionState.COMMIT if is_committed else LocalTransactionState.ROLLBACK


class WitnessedClients:
    """All clients of one topic, until they are stopped.

    Args:
        names: The name server.
        topic: A topic with :data:`QUEUES` queues.
        addresses: Those of all members, whether they lead or not.
    """

    def __init__(self, names, topic, addresses):
        self.names = names
        self.topic = topic
        self.addresses = addresses
        self.records = Records()
        self.listener = Listener(self.records)
        self.is_enough = False
        self._number = 0

    async def until_more(self, sends=50):
        """Return once some further sends are acknowledged."""
        wanted, end = self.records.counts["Append"] + sends, time.monotonic() + PATIENCE_S
        while self.records.counts["Append"] < wanted:
            assert time.monotonic() < end, f"nothing is acknowledged: {self.records.counts}"
            await asyncio.sleep(PAUSE_S)

    async def run(self, trouble):
        """Run all clients until something else ends, and every transaction is decided."""
        async with Client(self.names, SHORT_TIMERS) as client, asyncio.TaskGroup() as observers:
            watching = [observers.create_task(self._observe(n)) for n in range(OBSERVERS)]
            watching.append(observers.create_task(self._operate()))
            settings = ConsumerSettings(
                start=StartFrom.FIRST, rebalance_interval=1.0, commit_interval=0.3
            )
            consumer = PushConsumer(f"{self.topic}-readers", client, settings)
            consumer.on(self.topic)(self._handle)
            async with consumer, asyncio.TaskGroup() as senders:
                senders.create_task(self._send(client))
                senders.create_task(self._transact(client))
                await trouble()
                self.is_enough = True
            for task in watching:
                task.cancel()

    # Sends

    async def _send(self, client):
        settings = ProducerSettings(timeout=ANSWER_S, retries=0)
        producer = Producer(f"{self.topic}-plain", client, settings)
        async with producer, asyncio.TaskGroup() as lanes:
            for _ in range(SENDERS):
                lanes.create_task(self._lane(lambda: self._send_one(producer)))

    async def _lane(self, step):
        while not self.is_enough:
            await step()
            await asyncio.sleep(PAUSE_S)

    def _message(self, kind):
        self._number += 1
        text = f"{kind} {self._number}"
        return text, Message(topic=self.topic, body=text.encode())

    async def _send_one(self, producer):
        text, message = self._message("plain")
        begun, sent = time.monotonic(), None
        with suppress(TxmqError):
            sent = await producer.send(message)
        if sent is None:
            self.records.lost.append(Operation(begun, None, "sender", Append((text,))))
            self.records.counts["lost"] += 1
        else:
            append = Append((text,), sent.offset)
            key = f"queue {sent.queue.number}"
            self.records.add(key, begun, "sender", append, ended=time.monotonic())

    # Transactions

    async def _transact(self, client):
        settings = TransactionSettings(timeout=ANSWER_S, end_timeout=ANSWER_S, retries=0)
        async with TransactionProducer(
            f"{self.topic}-bank", client, self.listener, settings
        ) as producer:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(PRODUCERS):
                    lanes.create_task(self._lane(lambda: self._transact_one(producer)))
            await self._until_decided()

    async def _transact_one(self, producer):
        text, message = self._message("half")
        begun, outcome = time.monotonic(), None
        with suppress(TxmqError):
            outcome = await producer.send_in_transaction(message)
        now = time.monotonic()
        if outcome is None or not outcome.sent:
            return  # If it was stored nevertheless, a check reports it.
        xid = outcome.xid
        self.records.add(xid, begun, "producer", Write(OPEN), ended=now)
        if (state := ENDS.get(outcome.state)) is not None:
            ended = now if outcome.is_acknowledged else None
            self.records.add(xid, begun, "producer", Write(state), ended=ended)
            if state == COMMITTED:
                self.records.commits[text] = begun, ended

    async def _until_decided(self):
        """Wait for the checks of what nobody decided; the producer has to be there for them."""
        end = time.monotonic() + PATIENCE_S
        async with Session(self.names) as session:
            for xid in list(self.listener.xids.values()):
                while not await self._is_decided(session, xid):
                    assert time.monotonic() < end, f"transaction {xid} stays open"
                    await asyncio.sleep(0.1)

    async def _is_decided(self, session, xid):
        answers = [await self._show(session, address, xid) for address in self.addresses]
        return any(states is not None and OPEN not in states for states in answers)

    # Reads

    async def _handle(self, message):
        text, now, who = message.body.decode(), time.monotonic(), "consumer"
        read = Read(message.offset, (text,))
        self.records.add(f"queue {message.queue.number}", 0.0, who, read, ended=now)
        if text.startswith("half"):
            self.records.add(message.id, 0.0, who, Show((COMMITTED,)), ended=now)

    async def _observe(self, number):
        async with Session(self.names) as session, asyncio.TaskGroup() as asked:
            while True:
                xids = list(self.listener.xids.values())[-LATEST:]
                for place, address in enumerate(self.addresses):
                    if xids:
                        xid = xids[(number + place) % len(xids)]
                        asked.create_task(self._show(session, address, xid))
                    queue = (number + place) % QUEUES
                    asked.create_task(self._find_end(session, address, queue))
                number += 1
                await asyncio.sleep(2 * PAUSE_S)

    async def _show(self, session, address, xid):
        """The states that a transaction may have, as a member says; None if it does not answer."""
        begun, header = time.monotonic(), NamedTransaction(xid)
        code = RequestCode.SHOW_TRANSACTION_HISTORY
        try:
            answer = await session.request(address, code, header, timeout_s=ANSWER_S)
        except NotFound:
            known = list(self.listener.xids.values())
            # A member that has started again has forgotten the ids of what was decided long ago.
            is_recent = xid in known[-RECALLED_TRANSACTIONS // 2 :]
            states = (ABSENT,) if is_recent else (ABSENT, COMMITTED, ROLLED_BACK)
        except (TransportError, BrokerRefused):
            return None
        else:
            shown = TransactionHistory.read(answer.field_map()["history"].encode())
            states = (STATES[shown.transaction.state],)
        self.records.add(xid, begun, address, Show(states), ended=time.monotonic())
        return states

    async def _find_end(self, session, address, number):
        begun, header = time.monotonic(), QueueHeader(self.topic, number)
        with suppress(TransportError, BrokerRefused):
            code = RequestCode.GET_MAX_OFFSET
            answer = await session.request(address, code, header, timeout_s=ANSWER_S)
            end = End(answer.read(OffsetAnswer).offset)
            self.records.add(f"queue {number}", begun, address, end, ended=time.monotonic())

    # Decisions by hand

    async def _operate(self):
        """Now and then decide a transaction its producer did not know, as the producer would."""
        done = set()
        async with Session(self.names) as session:
            while True:
                await asyncio.sleep(10 * PAUSE_S)
                # A copy, because the producer's threads add to it.
                known = self.listener.xids.copy()
                waiting = [
                    (text, xid)
                    for text, xid in list(known.items())[-LATEST:]
                    if is_unknown(text) and xid not in done
                ]
                for text, xid in waiting[:1]:
                    done.add(xid)
                    for address in self.addresses:
                        await self._decide(session, address, text, xid)

    async def _decide(self, session, address, text, xid):
        says = "commit" if outcome_of(text) == COMMITTED else "rollback"
        begun, header = time.monotonic(), DecideTransaction(xid, says, "on call", "it waits")
        self.listener.say(text, xid, "operator")
        with suppress(TransportError, BrokerRefused):
            code = RequestCode.DECIDE_TRANSACTION
            await session.request(address, code, header, timeout_s=ANSWER_S)
            action = Write(outcome_of(text))
            self.records.add(xid, begun, "operator", action, ended=time.monotonic())
