"""``start()`` and ``stop()`` of everything that ``async with`` opens."""

import asyncio

import pytest
from sqlalchemy import create_engine

from tests.running import in_loop, run_by
from txmq import (
    Client,
    LocalTransactionState,
    Message,
    Outbox,
    Producer,
    PullConsumer,
    PushConsumer,
    Relay,
    ScheduledPull,
    SQLResource,
    TransactionManager,
    TransactionProducer,
)
from txmq.errors import UsageError
from txmq.transaction.resources.schema import create_fence
from txmq_broker.testing import embedded

TOPIC = "Orders"
MESSAGE = Message(topic=TOPIC, body=b"x")


class Listener:
    async def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT

    async def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Each test has its own database file."""
    monkeypatch.chdir(tmp_path)


def engine():
    return create_engine("sqlite:///bank.db")


def client(names):
    made = Client(names)
    return made, made.admin.topics


def producer(names):
    made = Producer("p", names)
    return made, lambda: made.send(MESSAGE)


def transactions(names):
    made = TransactionProducer("tp", names, Listener())
    return made, lambda: made.send_in_transaction(MESSAGE)


def manager(names):
    bank = engine()
    create_fence(bank, "txmq_fence", None)
    made = TransactionManager("tm", names, SQLResource(bank))
    return made, made.transactional(topic=TOPIC, body=lambda: b"x")(lambda session: None)


def push(names):
    made = PushConsumer("push", names)
    made.on(TOPIC)(lambda message: None)
    return made, made.commit


def pull(names):
    made = PullConsumer("pull", names)
    made.subscribe(TOPIC)
    return made, lambda: made.poll(0.001)


@pytest.mark.parametrize("make", [client, producer, transactions, manager, push, pull])
@run_by(in_loop)
async def test_producers_and_consumers_work_from_start_until_stop(make):
    async with embedded() as broker:
        async with Client(broker.names) as operator:
            await operator.admin.create_topic(TOPIC, queues=1)
        made, use = await asyncio.to_thread(make, broker.names)
        await made.stop()
        for _ in range(2):
            with pytest.raises(UsageError, match=r"not (open|running); use it with 'async with'"):
                await use()
            await made.start()
            with pytest.raises(UsageError, match="already"):
                await made.start()
            await use()
            await made.stop()
            await made.stop()


@run_by(in_loop)
async def test_a_schedule_and_a_relay_are_started_and_stopped():
    async with embedded() as broker:
        schedule = ScheduledPull("scheduled", broker.names)
        schedule.on(TOPIC)(Listener().check_local_transaction)
        outbox, bank = Outbox(), engine()
        outbox.metadata.create_all(bank)
        relay = Relay(bank, broker.names, outbox=outbox)
        for made in (schedule, relay):
            await made.stop()
            with pytest.raises(UsageError, match="await its start"):
                await made.wait()
            await made.start()
            waiting = asyncio.create_task(made.wait())
            await made.stop()
            await made.stop()
            await waiting


@run_by(in_loop)
async def test_stopping_in_the_middle_of_an_iteration_ends_it():
    async with embedded() as broker, Producer("p", broker.names) as producer:
        await producer.send(MESSAGE)
        made, _ = pull(broker.names)
        await made.start()
        await producer.send(MESSAGE)
        turns = 0
        async for messages in made:
            turns += 1
            assert messages
            await made.stop()
        assert turns == 1
