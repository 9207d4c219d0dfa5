"""The listener form of the bank transfer: what checks find when a program is dead, late or fast."""

import asyncio
import contextlib
import sys
from collections import Counter
from dataclasses import fields

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bank_transfer import accounts
from examples.bank_transfer.booking import debit, settle
from examples.bank_transfer.books import Account, Entry, State, Transfer
from examples.bank_transfer.ccb import open_ccb
from examples.bank_transfer.databases import Opening, async_engine, create_books, open_accounts
from examples.bank_transfer.icbc import ICBC
from examples.bank_transfer.listener import GROUP, ICBCTransactionListener, message_of
from examples.bank_transfer.orders import TRANSFERS, Advice, Order, Outcome
from examples.bank_transfer.steps import Steps
from examples.bank_transfer.ways import Way
from tests.servers.serving import CHECKOUT, environment
from txmq import (
    Client,
    HalfMessage,
    LocalTransactionState,
    Message,
    Queue,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from txmq.settings.units import Duration
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import embedded

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
KINDS = pytest.mark.parametrize("kind", ["sqlite", "postgres"])
PATIENCE_S = 30
OPENING = 30_000_00
AMOUNT = 10_000_00
SOON = BrokerSettings(
    store=StoreSettings(flush="async"),
    transaction=CheckBackSettings(timeout=Duration(0.3), check_interval=Duration(0.2)),
)
DYING = """
import os, signal
from examples.bank_transfer import listener

class Dying(listener.ICBCTransactionListener):
    async def execute_local_transaction(self, message, arg):
        await super().execute_local_transaction(message, arg)
        os.kill(os.getpid(), signal.SIGKILL)

listener.ICBCTransactionListener = Dying
listener.main()
"""


class Bank:
    """A bank's database, as an outside observer sees it."""

    def __init__(self, url, number, balance):
        self.url = url
        create_books(url)
        open_accounts(url, [Opening(number, "holder", balance)], 0)
        self.number = number

    @contextlib.asynccontextmanager
    async def engine(self, size=4):
        made = async_engine(self.url, size)
        try:
            yield made
        finally:
            await made.dispose()

    async def states(self):
        """The states of all transfers."""
        async with self.engine() as engine, AsyncSession(engine) as session:
            return sorted(map(State, await session.scalars(select(Transfer.state))))

    async def balance(self):
        """The balance of the account, after checking that the journal agrees."""
        async with self.engine() as engine, AsyncSession(engine) as session:
            account = await session.get(Account, self.number)
            wanted = select(func.sum(Entry.amount)).where(Entry.account == self.number)
            assert (await session.scalar(wanted) or 0) == account.balance
            return account.balance


@pytest.fixture
def bank_for(request, tmp_path):
    with contextlib.ExitStack() as stack:

        def make(kind, number, balance=OPENING):
            if kind == "sqlite":
                return Bank(f"sqlite:///{tmp_path}/{number}.db", number, balance)
            url = stack.enter_context(request.getfixturevalue("postgres").database())
            return Bank(url.render_as_string(hide_password=False), number, balance)

        yield make


@pytest.fixture
def icbc(kind, bank_for):
    return bank_for(kind, "ICBC-A")


@pytest.fixture
def ccb(kind, bank_for):
    return bank_for(kind, "CCB-B", 0)


def order_of(transfer="t-1"):
    return Order(transfer, "ICBC-A", "CCB-B", AMOUNT)


def message_fields(order, tag):
    made = message_of(order, tag)
    return {field.name: getattr(made, field.name) for field in fields(Message)}


def half(xid, order, tag="TAGA"):
    sent = SendResult(SendStatus.OK, Queue(TRANSFERS, "broker-a", 0), 0, xid, "")
    return HalfMessage(**message_fields(order, tag), id=xid, sent=sent)


def asked(xid, order, tag="TAGA"):
    place = {"queue": Queue(TRANSFERS, "broker-a", 0), "offset": 0, "position": 0, "offset_id": ""}
    times = {"born_ms": 0, "stored_ms": 0, "attempts": 0}
    return ReceivedMessage(**message_fields(order, tag), **place, **times, id=xid)


async def becomes(look, wanted):
    async with asyncio.timeout(PATIENCE_S):
        while await look() != wanted:
            await asyncio.sleep(0.02)


# What a check finds


@KINDS
@pytest.mark.parametrize("ending", ["commits", "rolls back"])
def test_a_check_waits_for_an_uncommitted_debit(ending, icbc):
    async def scenario():
        async with icbc.engine() as ours, icbc.engine() as theirs:
            asks = asyncio.Event()

            @event.listens_for(theirs.sync_engine, "before_cursor_execute")
            def inserts(connection, cursor, statement, *more):
                if statement.startswith("INSERT"):
                    asks.set()

            checking = ICBCTransactionListener(theirs)
            async with AsyncSession(ours) as session:
                made = {"way": Way.HALF, "xid": "x-1", "state": State.SENT}
                await debit(session, order_of(), 0, **made)
                check = asyncio.ensure_future(
                    checking.check_local_transaction(asked("x-1", order_of()))
                )
                await asyncio.wait_for(asks.wait(), PATIENCE_S)
                assert not check.done()
                await (session.commit() if ending == "commits" else session.rollback())
            return await check

    assert asyncio.run(scenario()) is (COMMIT if ending == "commits" else ROLLBACK)
    (state,) = asyncio.run(icbc.states())
    assert state is (State.SENT if ending == "commits" else State.REFUSED)
    assert asyncio.run(icbc.balance()) == OPENING - (AMOUNT if ending == "commits" else 0)


@KINDS
def test_two_messages_for_one_transfer_debit_it_once(icbc):
    async def scenario():
        async with icbc.engine() as engine:
            bank = ICBCTransactionListener(engine)
            first = await bank.execute_local_transaction(half("x-1", order_of()), order_of())
            second = await bank.execute_local_transaction(half("x-2", order_of()), order_of())
            checks = [
                await bank.check_local_transaction(asked(xid, order_of())) for xid in ("x-2", "x-1")
            ]
            return first, second, checks

    assert asyncio.run(scenario()) == (COMMIT, ROLLBACK, [ROLLBACK, COMMIT])
    assert asyncio.run(icbc.balance()) == OPENING - AMOUNT


@KINDS
def test_a_check_before_the_debit_refuses_every_message_of_the_transfer(icbc):
    async def scenario():
        async with icbc.engine() as engine, icbc.engine() as others:
            banks = [ICBCTransactionListener(database) for database in (engine, others)]
            checks = await asyncio.gather(
                *(bank.check_local_transaction(asked("x-2", order_of())) for bank in banks)
            )
            late = await banks[0].execute_local_transaction(half("x-1", order_of()), order_of())
            return [*checks, late, await banks[0].check_local_transaction(asked("x-1", order_of()))]

    assert asyncio.run(scenario()) == [ROLLBACK] * 4
    assert asyncio.run(icbc.states()) == [State.REFUSED]
    assert asyncio.run(icbc.balance()) == OPENING


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_check_commits_a_transfer_that_is_already_settled(outcome, icbc):
    async def scenario():
        async with icbc.engine() as engine:
            bank = ICBCTransactionListener(engine)
            await bank.execute_local_transaction(half("x-1", order_of()), order_of())
            async with AsyncSession(engine) as session, session.begin():
                await settle(session, Advice("t-1", outcome), 0)
            return await bank.check_local_transaction(asked("x-1", order_of()))

    assert asyncio.run(scenario()) is COMMIT


@KINDS
def test_two_programs_debiting_in_one_database_lose_no_debit(icbc):
    async def scenario():
        async with icbc.engine() as ours, icbc.engine() as theirs:
            banks = [ICBCTransactionListener(engine) for engine in (ours, theirs)] * 15
            orders = [Order(f"t-{at}", "ICBC-A", "CCB-B", 1) for at in range(len(banks))]
            decisions = await asyncio.gather(
                *(
                    bank.execute_local_transaction(half(f"x-{order.id}", order), order)
                    for bank, order in zip(banks, orders, strict=True)
                )
            )
            return Counter(decisions)

    assert asyncio.run(scenario()) == {COMMIT: 30}
    assert asyncio.run(icbc.balance()) == OPENING - 30


@pytest.mark.parametrize("kind", ["sqlite"])
def test_only_missing_accounts_are_opened(icbc):
    wanted = [accounts.opening(account, "CNY") for account in ("ICBC-A=5", "ICBC-B=20,000.00")]

    assert [account.number for account in accounts.open_missing(icbc.url, wanted)] == ["ICBC-B"]
    assert accounts.open_missing(icbc.url, wanted) == []
    assert asyncio.run(icbc.balance()) == OPENING


# With a broker, and processes


@KINDS
def test_a_check_that_overtakes_a_slow_debit_wins(icbc):
    async def scenario():
        async with (
            embedded(SOON) as broker,
            icbc.engine(1) as slow,
            icbc.engine() as others,
            TransactionProducer(GROUP, broker.names, ICBCTransactionListener(slow)) as late,
            TransactionProducer(GROUP, broker.names, ICBCTransactionListener(others)) as member,
        ):
            async with slow.connect():  # The only connection: the debit waits, and holds no lock.
                message = message_of(order_of(), "TAGA")
                sending = asyncio.ensure_future(late.send_in_transaction(message, order_of()))
                await becomes(icbc.states, [State.REFUSED])
                assert not sending.done()
            outcome = await sending
            assert (outcome.state, outcome.is_acknowledged) == (TransactionState.ROLLED_BACK, True)
            status = await late.client.admin.topic_status(TRANSFERS)
            assert sum(queue.max_offset for queue in status) == 0
            assert member.tally.checks >= 1
            assert (late.tally.conflicts, member.tally.conflicts) == (0, 0)

    asyncio.run(scenario())
    assert asyncio.run(icbc.balance()) == OPENING


class Run:
    """The listener's program, as its reader starts it."""

    def __init__(self, bank, broker, *more, program=("-m", "examples.bank_transfer.listener")):
        where = ("--database", bank.url, "--names", broker.names, "--wait", str(PATIENCE_S))
        self._command = (sys.executable, *program, *where, *more)

    async def ended(self):
        """Its exit code, and the lines of both its outputs."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            cwd=CHECKOUT,
        )
        outputs = await process.communicate()
        return process.returncode, *(output.decode().splitlines() for output in outputs)


@contextlib.asynccontextmanager
async def banks_open(icbc, ccb):
    """Both banks running, and a broker that checks soon."""
    async with contextlib.AsyncExitStack() as opening:
        enter = opening.enter_async_context
        broker = await enter(embedded(SOON))
        client, ccb_client = await enter(Client(broker.names)), await enter(Client(broker.names))
        for topic in ("advices", TRANSFERS):
            await client.admin.create_topic(topic)
        steps = opening.enter_context(Steps(is_on=False))
        await enter(ICBC(await enter(icbc.engine()), client, steps=steps))
        await enter(open_ccb(await enter(ccb.engine()), ccb_client))
        yield broker, client


def numbers_in(lines, xid):
    return [int(line.split(" step ")[1].split(":")[0]) for line in lines if f"{xid}, step" in line]


@KINDS
def test_the_listener_follows_the_tutorial_and_answers_for_a_killed_run(icbc, ccb):
    async def killed(broker):
        """Run a program that dies between its commit and its END; return the id of its message."""
        run = Run(icbc, broker, "--tags", "TAGA", program=("-c", DYING))
        code, (line,), log = await run.ended()
        assert code == -9, log
        assert (await icbc.states(), await ccb.states()) == ([State.SENT], [])
        return line.split()[-1]

    async def scenario():
        async with banks_open(icbc, ccb) as (broker, client):
            xid = await killed(broker)
            code, lines, log = await Run(icbc, broker, "--steps").ended()
            assert code == 0, (lines, log)
            results = [line.partition(", xid=") for line in lines if line.startswith("result of")]
            assert [told for told, _, _ in results] == [
                "result of TAGA: COMMITTED, acknowledged",
                "result of TAGB: ROLLED_BACK, acknowledged",
                "result of TAGC: UNKNOWN, to be asked about",
            ]
            assert all(numbers_in(log, xid) == list(range(1, 10)) for _, _, xid in results)
            checked = {line for line in lines if line.startswith("checked: ")}
            assert checked == {f"checked: TAGA {xid}", f"checked: TAGC {results[-1][-1]}"}
            status = await client.admin.topic_status(TRANSFERS)
            assert sum(queue.max_offset for queue in status) == 3
            await becomes(ccb.states, [State.CREDITED] * 3)
            await becomes(icbc.states, [State.REFUSED, *[State.SETTLED] * 3])

    asyncio.run(scenario())
    assert asyncio.run(icbc.balance()) == OPENING - 3 * AMOUNT
    assert asyncio.run(ccb.balance()) == 3 * AMOUNT


@pytest.mark.parametrize("kind", ["sqlite"])
def test_the_listener_fails_when_no_check_comes_in_time(icbc):
    async def scenario():
        async with embedded() as broker:
            return await Run(icbc, broker, "--tags", "TAGC", "--wait", "1").ended()

    code, lines, log = asyncio.run(scenario())
    assert code == 1
    assert lines[-1] == "waiting to be asked about TAGC"
    assert log[-1].startswith("some transfers were not decided within 1 s")
