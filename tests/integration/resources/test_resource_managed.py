"""Managers over PostgreSQL through every kind of source, awaited and not."""

import asyncio
import contextlib
import functools
import threading

import pytest
from sqlalchemy import Engine

from tests.integration.resources.resource_stage import ON_POSTGRES, Bank, by_default, said
from tests.running import run_by
from txmq import Client, Message, TransactionManager, TransactionState, blocking
from txmq.databases.guarded_transaction import drive
from txmq.errors import NotFound, RollBack, TopicNotFound, TransactionOverdue, UsageError
from txmq.transaction import ManagerSettings
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import BrokerThread

TOPIC = "orders"
PATIENCE_S = 10
GROUP = "icbc"
# Django opens connections in its own way, and has tests of its own.
KINDS = [kind for kind in ON_POSTGRES if "django" not in kind]
BLOCKING = [kind for kind in KINDS if "async" not in kind]
CASES = [(kind, "txmq") for kind in KINDS] + [(kind, "txmq.blocking") for kind in BLOCKING]
INSERT = "INSERT INTO orders (xid, amount) VALUES ('{}', {}) RETURNING amount"
TAKE = "UPDATE orders SET amount = amount - 1 WHERE xid = '{}'"


class Refusal(Exception):
    """What a business function raises."""


@pytest.fixture(scope="module")
def broker():
    """A broker for all of them: each test looks at its own ids."""
    with BrokerThread(BrokerSettings(store=StoreSettings(flush="async"))) as running:
        yield running


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def play(request, postgres_bank, broker):
    """Has a scenario played on a service of each kind."""
    kind, face = request.param

    def run(scenario, **settings):
        async def story():
            there = Bank(kind, postgres_bank.url)
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(there.close)
                stage = await stack.enter_async_context(there.stage(kind, verified=False))
                chosen = ManagerSettings(**settings)
                faces = {"txmq": TransactionManager, "txmq.blocking": blocking.TransactionManager}
                tm = faces[face](GROUP, broker.names, stage.resource, chosen)
                service = Service(tm, stage.resource, postgres_bank, broker.names)
                await service.opened(stack)
                await scenario(service)
                async with asyncio.timeout(PATIENCE_S):
                    while held(stage.resource):  # A pool may still be opening some.
                        await asyncio.sleep(0.02)

        asyncio.run(story())

    return run


def held(resource):
    """How many connections of its source are in use."""
    adapter = resource._adapter
    if (engine := getattr(adapter, "_engine", None)) is not None:
        return (engine if isinstance(engine, Engine) else engine.sync_engine).pool.checkedout()
    pool = getattr(adapter._take, "__self__", None)
    if not hasattr(pool, "get_stats"):
        return 0  # Each connection was made for one transaction, and is closed.
    stats = pool.get_stats()
    return stats.get("requests_waiting", 0) + pool._nconns - len(pool._pool)


class Service:
    """A manager that is open, of either face."""

    def __init__(self, tm, resource, bank, names):
        self.tm = tm
        self.resource = resource
        self.bank = bank
        self.names = names
        self.is_blocking = resource.is_blocking
        self.is_awaited = isinstance(tm, TransactionManager)

    async def opened(self, stack):
        if self.is_awaited:
            await stack.enter_async_context(self.tm)
            return
        await asyncio.to_thread(self.tm.__enter__)
        stack.push_async_callback(asyncio.to_thread, self.tm.__exit__, None, None, None)

    def decorated(self, work, **parts):
        """What a test writes as a coroutine never waits when its session does not."""
        function = plain(work) if self.is_blocking else work
        return self.tm.transactional(**{"topic": TOPIC, **parts})(function)

    async def call(self, function, *args):
        if self.is_awaited:
            return await function(*args)
        return await asyncio.to_thread(function, *args)

    async def visible(self, xid):
        """The body of a transaction's message, or None if it is not visible."""
        async with Client(self.names) as client:
            assert xid not in [transaction.id for transaction in await client.admin.transactions()]
            with contextlib.suppress(NotFound, TopicNotFound):
                return (await client.admin.find(TOPIC, xid)).body
        return None


def plain(work):
    @functools.wraps(work)
    def function(session, *args):
        return drive(work(session, *args))

    return function


async def number(session, statement):
    """The number that a statement gives."""
    result = await said(session, statement)
    row = result.fetchone()
    return (await row if asyncio.iscoroutine(row) else row)[0]


async def order(session, name, amount):
    """The local transaction of most tests."""
    return await number(session, INSERT.format(name, amount))


@run_by("play")
async def test_a_decorated_function_commits_its_rows_and_its_message(service, /):
    tm = service.tm

    async def watched(session, name, amount):
        assert tm.current().session is session
        return await order(session, name, amount)

    outcome = await service.call(service.decorated(watched), "o-1", 7)
    assert (outcome.state, outcome.is_acknowledged) == (TransactionState.COMMITTED, True)
    assert outcome.result == 7
    assert tm.current() is None
    assert service.bank.orders == {"o-1"}
    assert service.bank.fence == {outcome.xid: 1}
    assert await service.visible(outcome.xid) == b'{"name":"o-1","amount":7}'


@run_by("play")
async def test_an_exception_rolls_back_the_decorated_function(service, /):
    async def refused(session, problem):
        await order(session, "o-1", 7)
        raise problem

    function = service.decorated(refused, body=lambda problem: b"never")
    no = RollBack("no")
    outcome = await service.call(function, no)
    assert (outcome.state, outcome.problem) == (TransactionState.ROLLED_BACK, no)
    with pytest.raises(Refusal) as raised:
        await service.call(function, Refusal("no"))
    assert raised.value.__notes__[0].endswith("is rolled back")
    with pytest.raises(Exception, match="violates check"):
        await service.call(service.decorated(order), "o-1", -1)
    assert service.tm.tally.rolled_back == 3
    assert service.bank.orders == set()
    assert service.bank.fence == {}
    assert await service.visible(outcome.xid) is None


def test_a_serialization_failure_is_retried_under_the_same_transaction_id(play, postgres_bank):
    postgres_bank.order("INSERT INTO orders VALUES ('a', 10)")
    seen = []

    async def scenario(service):
        async def contended(session, name):
            await number(session, "SELECT count(*) FROM orders")
            seen.append(service.tm.current().xid)
            if len(seen) == 1:
                postgres_bank.order(TAKE.format(name))
            await said(session, TAKE.format(name))

        outcome = await service.call(service.decorated(contended), "a")
        assert seen == [outcome.xid] * 2
        assert outcome.state is TransactionState.COMMITTED
        assert await service.visible(outcome.xid) == b'"a"'
        assert postgres_bank.order("SELECT amount FROM orders") == [(8,)]

    with by_default(postgres_bank, "default_transaction_isolation", "repeatable read"):
        play(scenario)


@pytest.mark.fault("D3")
def test_a_deadlock_is_retried_under_the_same_transaction_id(play, postgres_bank):
    postgres_bank.order("INSERT INTO orders VALUES ('a', 10), ('b', 10)")
    seen = []

    async def scenario(service):
        met = threading.Barrier(2) if service.is_blocking else asyncio.Barrier(2)

        async def both(session, first, second):
            seen.append(service.tm.current().xid)
            is_first_time = seen.count(seen[-1]) == 1
            await said(session, TAKE.format(first))
            if is_first_time:
                waited = met.wait()
                if not service.is_blocking:
                    await waited
            await said(session, TAKE.format(second))

        function = service.decorated(both)
        outcomes = await asyncio.gather(
            service.call(function, "a", "b"), service.call(function, "b", "a")
        )
        assert {outcome.state for outcome in outcomes} == {TransactionState.COMMITTED}
        assert sorted(map(seen.count, {outcome.xid for outcome in outcomes})) == [1, 2]
        assert set(postgres_bank.order("SELECT amount FROM orders")) == {(8,)}
        assert service.tm.tally.committed == 2

    with by_default(postgres_bank, "deadlock_timeout", "50ms"):
        play(scenario)


@run_by("play", local_timeout=0.2)
async def test_a_function_past_its_timeout_is_rolled_back(service, /):
    async def slow(session, name):
        await order(session, name, 7)
        if service.is_blocking:
            threading.Event().wait(0.3)
        else:
            await asyncio.Event().wait()

    with pytest.raises(TransactionOverdue):
        await service.call(service.decorated(slow), "o-1")
    assert service.tm.tally.rolled_back == 1
    assert service.bank.orders == set()


@run_by("play")
async def test_a_message_carries_the_number_generated_by_the_database(service, /, postgres_bank):
    postgres_bank.order("CREATE SEQUENCE IF NOT EXISTS numbers")
    postgres_bank.order("ALTER SEQUENCE numbers RESTART")

    async def numbered(session, name):
        return {"number": await number(session, INSERT.format(name, "nextval('numbers')"))}

    function = service.decorated(numbered, keys=lambda made: made["number"], made_from="result")
    outcome = await service.call(function, "o-1")
    assert outcome.state is TransactionState.COMMITTED
    assert await service.visible(outcome.xid) == b'{"number":1}'

    async def refused(session, name):
        await numbered(session, name)
        raise Refusal

    with pytest.raises(Refusal):
        await service.call(service.decorated(refused, made_from="result"), "o-2")
    assert service.bank.orders == {"o-1"}
    assert service.bank.fence == {outcome.xid: 1}


@run_by("play")
async def test_a_block_commits_and_rolls_back_as_a_transaction(service, /):
    message, tm = Message(topic=TOPIC, body=b"block"), service.tm
    if service.is_awaited and service.is_blocking:
        with pytest.raises(UsageError, match="stall the loop"):
            async with tm.transaction(message):
                pass
        return
    seen = []

    async def awaited(name, problem):
        async with tm.transaction(message) as transaction:
            seen.append(transaction)
            await order(transaction.session, name, 7)
            if problem:
                raise problem

    def blocked(name, problem):
        with tm.transaction(message) as transaction:
            seen.append(transaction)
            drive(order(transaction.session, name, 7))
            if problem:
                raise problem

    block = awaited if service.is_awaited else blocked
    await service.call(block, "o-1", None)
    await service.call(block, "o-2", RollBack("no"))
    with pytest.raises(Refusal):
        await service.call(block, "o-3", Refusal())
    states = [entered.outcome.state for entered in seen[:2]]
    assert states == [TransactionState.COMMITTED, TransactionState.ROLLED_BACK]
    assert service.bank.orders == {"o-1"}
    bodies = [await service.visible(entered.xid) for entered in seen]
    assert bodies == [b"block", None, None]


@run_by("play")
async def test_concurrent_transactions_share_a_pool(service, /):
    function = service.decorated(order)
    names = [f"o-{number}" for number in range(24)]
    outcomes = await asyncio.gather(*[service.call(function, name, 7) for name in names])
    assert {outcome.state for outcome in outcomes} == {TransactionState.COMMITTED}
    assert service.bank.orders == set(names)
    assert set(service.bank.fence) == {outcome.xid for outcome in outcomes}
