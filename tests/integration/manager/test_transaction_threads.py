"""Plain listeners: the threads they run in, and listeners that hang; and the blocking API."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from tests.running import run_by
from tests.servers.serving import environment
from tests.unit.transaction.producing_stage import COMMIT, GROUP, ROLLBACK, TOPIC, UNKNOWN, message
from tests.waiting import run, until
from txmq import blocking
from txmq.errors import OutcomeUnknown, RollBack
from txmq.settings.units import Duration
from txmq.transaction import TransactionProducer, TransactionState
from txmq.transaction import TransactionSettings as Settings
from txmq.transaction.listener import CallerThread
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import BrokerThread, embedded

COMMITTED, ROLLED_BACK, NOT_KNOWN = TransactionState
HURRIED = BrokerSettings(
    store=StoreSettings(flush="async"),
    transaction=CheckBackSettings(timeout=Duration(0.2), check_interval=Duration(0.2)),
)
REQUEST = ContextVar("REQUEST", default="none")


class Bank:
    """A plain listener."""

    def __init__(self, says=COMMIT, of_checks=COMMIT):
        self.says, self.of_checks = says, of_checks
        self.executed, self.checked = [], []

    def execute_local_transaction(self, message, arg):
        self.executed.append((message.id, arg, threading.current_thread().name, REQUEST.get()))
        return self.says(message) if callable(self.says) else self.says

    def check_local_transaction(self, message):
        self.checked.append((message.id, threading.current_thread().name))
        return self.of_checks(message) if callable(self.of_checks) else self.of_checks


def fail(problem):
    def says(message):
        raise problem

    return says


@pytest.mark.parametrize(
    ("says", "state"),
    [
        (COMMIT, COMMITTED),
        (fail(RollBack()), ROLLED_BACK),
        (fail(ValueError("x")), NOT_KNOWN),
        (fail(StopIteration()), NOT_KNOWN),
        (fail(SystemExit(1)), NOT_KNOWN),
        (lambda message: asyncio.sleep(0, ROLLBACK), ROLLED_BACK),
    ],
)
@run_by(run)
async def test_a_plain_local_transaction_runs_in_a_thread(says, state):
    bank = Bank(says)
    async with embedded() as broker, TransactionProducer(GROUP, broker.names, bank) as producer:
        REQUEST.set("r-1")
        outcome = await producer.send_in_transaction(message(), 42)
        assert outcome.state is state
        assert bank.executed == [(outcome.xid, 42, f"txmq-{GROUP}-local-1", "r-1")]


@run_by(run)
async def test_a_plain_check_runs_in_a_thread_of_its_own():
    bank = Bank(UNKNOWN)
    async with (
        embedded(HURRIED) as broker,
        TransactionProducer(GROUP, broker.names, bank) as producer,
    ):
        outcome = await producer.send_in_transaction(message())
        await until(lambda: producer.tally.checks_committed)
        assert bank.checked == [(outcome.xid, f"txmq-{GROUP}-check-1")]


@run_by(run)
async def test_a_check_that_hangs_blocks_no_other_check():
    gate = threading.Event()
    hanging = []

    def check(message):
        if message.id == hanging[0]:
            gate.wait(15)
        return COMMIT

    bank = Bank(UNKNOWN, check)
    settings = Settings(check_workers=1, check_timeout=0.1)
    async with (
        embedded(HURRIED) as broker,
        TransactionProducer(GROUP, broker.names, bank, settings) as producer,
    ):
        hanging.append((await producer.send_in_transaction(message(b"hangs"))).xid)
        await until(lambda: producer.tally.checks_hung)
        for number in range(3):
            await producer.send_in_transaction(message(b"%d" % number))
        await until(lambda: producer.tally.checks_committed == 3)
        await until(lambda: producer.tally.checks_unknown >= 2)
        assert sum(xid == hanging[0] for xid, _ in bank.checked) == 1
        gate.set()  # Its late answer still counts.
        await until(lambda: producer.tally.checks_committed == 4)
        admin = producer.client.admin
        assert await admin.transactions() == []


@run_by(run)
async def test_a_plain_local_transaction_finishes_after_its_caller_is_cancelled():
    gate, begun = threading.Event(), threading.Event()

    def says(message):
        begun.set()
        gate.wait(15)
        return COMMIT

    async with (
        embedded() as broker,
        TransactionProducer(GROUP, broker.names, Bank(says)) as producer,
    ):
        sending = asyncio.ensure_future(producer.send_in_transaction(message()))
        await until(begun.is_set)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert len(await producer.client.admin.transactions()) == 1
        asyncio.get_running_loop().call_later(0.05, gate.set)
        await producer.__aexit__(None, None, None)  # Which waits for it.
        assert producer.tally.committed == 1


@run_by(run)
async def test_closing_the_producer_waits_for_a_thread_only_until_its_timeout():
    gate, begun = threading.Event(), threading.Event()

    def says(message):
        begun.set()
        gate.wait(15)
        return COMMIT

    settings = Settings(stop_timeout=0.05)
    async with (
        embedded() as broker,
        TransactionProducer(GROUP, broker.names, Bank(says), settings) as producer,
    ):
        sending = asyncio.ensure_future(producer.send_in_transaction(message()))
        await until(begun.is_set)
        await producer.__aexit__(None, None, None)
        outcome = await sending
        assert outcome.state is NOT_KNOWN
        assert isinstance(outcome.problem, OutcomeUnknown)
    gate.set()


# Without await


@pytest.fixture
def broker():
    with BrokerThread(HURRIED) as running:
        yield running


def test_a_blocking_producer_runs_the_local_transaction_in_the_callers_thread(broker):
    bank = Bank(lambda message: {b"A": COMMIT, b"B": ROLLBACK}.get(message.body, UNKNOWN))
    with blocking.TransactionProducer(GROUP, broker.names, bank) as producer:
        REQUEST.set("r-2")
        outcomes = [
            producer.send_in_transaction(message(body), body) for body in (b"A", b"B", b"C")
        ]
        assert [outcome.state for outcome in outcomes] == [COMMITTED, ROLLED_BACK, NOT_KNOWN]
        here = threading.current_thread().name
        assert [executed[1:] for executed in bank.executed] == [
            (body, here, "r-2") for body in (b"A", b"B", b"C")
        ]
        with blocking.Client(broker.names) as client:
            while client.admin.transactions():
                pass
        assert [checked for checked, _ in bank.checked] == [outcomes[2].xid]
        assert bank.checked[0][1].startswith(f"txmq-{GROUP}-check")
        assert producer.send(message()).id


def test_many_threads_share_one_blocking_producer(broker):
    bank = Bank()
    with (
        blocking.Client(broker.names) as client,
        blocking.TransactionProducer(GROUP, client, bank, Settings(timeout=5)) as producer,
        ThreadPoolExecutor(8) as pool,
    ):
        client.admin.create_topic(TOPIC, queues=2)
        sent = list(pool.map(lambda n: producer.send_in_transaction(message(), n), range(40)))
        assert {transaction.state for transaction in sent} == {COMMITTED}
        assert len({transaction[2] for transaction in bank.executed}) > 1


def test_an_async_listener_runs_in_the_loop(broker):
    class Async(Bank):
        async def execute_local_transaction(self, message, arg):
            return super().execute_local_transaction(message, arg)

    bank = Async()
    with blocking.TransactionProducer(GROUP, broker.names, bank) as producer:
        assert producer.send_in_transaction(message()).state is COMMITTED
    assert bank.executed[0][2] == "txmq-loop"


def test_a_blocking_producer_offers_prepare_and_decide(broker):
    with blocking.TransactionProducer(GROUP, broker.names, Bank()) as producer:
        half = producer.prepare(message())
        assert producer.decide(half, ROLLBACK).state is ROLLED_BACK


def test_ctrl_c_in_a_local_transaction_is_raised_to_the_caller(broker, caplog):
    bank = Bank(fail(KeyboardInterrupt()))
    with blocking.TransactionProducer(GROUP, broker.names, bank) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.send_in_transaction(message())
        bank.says = COMMIT
        assert producer.send_in_transaction(message()).is_acknowledged
    gc.collect()


def test_ctrl_c_interrupts_a_waiting_blocking_producer(broker):
    async def slow(message, arg):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(3600)

    bank = Bank()
    bank.execute_local_transaction = slow
    producer = blocking.TransactionProducer(GROUP, broker.names, bank)
    with producer, pytest.raises(KeyboardInterrupt):
        producer.send_in_transaction(message())


def test_ctrl_c_before_the_local_transaction_runs_leaves_the_decision_to_a_check(broker):
    class Interrupted(CallerThread):
        def serve(self):
            while not self._jobs:
                self._sleep()
            raise KeyboardInterrupt

    bank, here = Bank(), Interrupted()
    with blocking.TransactionProducer(GROUP, broker.names, bank) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer._background.wait(producer._real.transact(message(), None, here), here)
        while not producer._real.tally.checks_committed:
            producer._background.wait(asyncio.sleep(0.01))
    assert bank.executed == []


PROGRAM = """
import sys, threading
from txmq import LocalTransactionState, Message, TransactionSettings, blocking

class Bank:
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.UNKNOWN
    def check_local_transaction(self, message):
        asked.set()
        threading.Event().wait()

asked = threading.Event()
settings = TransactionSettings(check_timeout=0.1, stop_timeout=0.2)
with blocking.TransactionProducer("tpg", sys.argv[1], Bank(), settings) as producer:
    producer.send_in_transaction(Message(topic="T", body=b"x"))
    asked.wait(10)
print("over")
"""


def test_a_program_ends_although_a_check_hangs(broker):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.names],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(),
        check=False,
    )
    assert (done.stdout, done.returncode) == ("over\n", 0), done.stderr
