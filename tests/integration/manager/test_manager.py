"""Decorated functions and blocks of code: the database and the topic always agree."""

import asyncio
import threading

import pytest

from tests.integration.manager.manager_stage import (
    COMMITTED,
    GROUP,
    MESSAGE,
    NEVER,
    NOT_KNOWN,
    PATIENT,
    ROLLED_BACK,
    TOPIC,
    Order,
    Refusal,
    cancelled,
    coloured,
    said,
    take,
    take_plainly,
    until,
)
from tests.running import run_by
from txmq import Message, TransactionProducer
from txmq.errors import (
    FenceMissing,
    LocalProtocolError,
    RollBack,
    RolledBackByCheck,
    TransactionOverdue,
    UsageError,
)
from txmq.transaction.state import LocalTransactionState

BODY = b'{"id":"o-1","amount":30}'


def transfer(manager, function=take, **more):
    return manager.transactional(topic=TOPIC, keys=lambda order: order.id, **more)(function)


@run_by("on_stage")
async def test_a_decorated_function_commits_its_rows_and_its_message(stage, /):
    async with stage.manager() as tm:
        outcome = await transfer(tm, tags="CCB")(Order("o-1", 30))
        assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, True)
        assert (outcome.result, outcome.problem) == ("o-1", None)
        assert tm.tally.committed == 1
    assert stage.bank.balance == 70
    assert stage.bank.fence == {outcome.xid: 1}
    assert await stage.visible() == [BODY]
    found = await stage.client.admin.find(TOPIC, outcome.message_id)
    assert (found.keys, found.tags) == (("o-1",), "CCB")


@run_by("on_stage")
async def test_a_method_can_make_its_message_from_arguments_or_from_its_result(stage, /):
    class Desk:
        async def transfer_out(self, session, order):
            self.last = order.id
            return await take(session, order)

    async with stage.manager() as tm:
        Desk.send = transfer(tm, Desk.transfer_out)
        Desk.late = tm.transactional(topic=TOPIC, made_from="result")(Desk.transfer_out)
        desk = Desk()
        assert (await desk.send(Order("o-1", 30))).result == "o-1"
        assert (await desk.late(Order("o-2", 10))).state is COMMITTED
        assert desk.last == "o-2"
    assert stage.bank.balance == 60
    assert await stage.visible() == [b'"o-2"', BODY]


@run_by("on_stage")
async def test_a_plain_function_runs_in_a_thread(stage, /):
    where = []

    def function(session, order):
        where.append(threading.current_thread())
        return take_plainly(session, order)

    async with stage.manager(stage.resource(is_blocking=True)) as tm:
        outcome = await transfer(tm, function)(Order("o-1", 30))
    assert (outcome.state, outcome.result) == (COMMITTED, "o-1")
    assert where[0] is not threading.current_thread()
    assert stage.bank.balance == 70
    assert await stage.visible() == [BODY]


@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize("problem", [Refusal("no"), RollBack("no")], ids=lambda error: repr(error))
@run_by("on_stage")
async def test_an_exception_rolls_back_the_database_and_the_half_message(
    stage, /, problem, is_blocking
):
    async def refused(session, order):
        await take(session, order)
        raise problem

    async with stage.manager(stage.resource(is_blocking=is_blocking)) as tm:
        function = transfer(tm, coloured(refused, is_blocking))
        if isinstance(problem, RollBack):
            outcome = await function(Order("o-1", 30))
            assert (outcome.state, outcome.problem) == (ROLLED_BACK, problem)
        else:
            with pytest.raises(Refusal, match="no") as raised:
                await function(Order("o-1", 30))
            assert raised.value.__notes__[0].endswith("is rolled back")
        assert tm.tally.rolled_back == 1
    assert stage.bank.balance == 100
    assert stage.bank.fence == {}
    assert await stage.visible() == await stage.open() == []


@run_by("on_stage")
async def test_a_commit_refused_by_the_database_is_raised(stage, /):
    async with stage.manager() as tm:
        with pytest.raises(Exception, match=r"(?i)check"):
            await transfer(tm)(Order("o-1", 130))
        assert tm.tally.rolled_back == 1
    assert await stage.visible() == await stage.open() == []


@pytest.mark.fault("P5")
@pytest.mark.parametrize("is_committed", [False, True])
@run_by("on_stage")
async def test_a_lost_commit_reply_is_unknown_until_a_check_decides(stage, /, is_committed):
    resource = stage.resource(is_blocking=True)
    dialect = resource.engine.dialect
    commit, lost = dialect.do_commit, []

    def do_commit(connection):
        if lost:
            return commit(connection)
        lost.append(True)
        if is_committed:
            commit(connection)
        raise dialect.dbapi.OperationalError("the server closed the connection")

    async with stage.manager(resource) as tm:
        dialect.do_commit = do_commit
        outcome = await transfer(tm, take_plainly)(Order("o-1", 30))
        assert (outcome.state, outcome.is_acknowledged) == (NOT_KNOWN, False)
        assert "did not say" in str(outcome.problem)
        await stage.until_settled()
    assert stage.bank.balance == (70 if is_committed else 100)
    assert await stage.visible() == ([BODY] if is_committed else [])


@run_by("on_stage")
async def test_a_commit_inside_the_function_is_unknown_until_a_check_commits(stage, /):
    async def hasty(session, order):
        await take(session, order)
        await session.commit()

    async def hasty_and_sorry(session, order):
        await hasty(session, order)
        raise Refusal

    async with stage.manager() as tm:
        for function in (hasty, hasty_and_sorry):
            outcome = await transfer(tm, function)(Order("o-1", 30))
            assert outcome.state is NOT_KNOWN
        assert isinstance(outcome.problem, Refusal)
        await stage.until_settled()
    assert stage.bank.balance == 40
    assert await stage.visible() == [BODY, BODY]


@pytest.mark.fault("D3")
@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize("bank", ["postgres"], indirect=True)  # SQLite has a single writer.
@run_by("on_stage")
async def test_a_serialization_failure_is_retried_under_the_same_transaction_id(
    stage, /, is_blocking
):
    tries = []

    async def contended(session, order):
        await said(session, "SELECT balance FROM account")
        tries.append(tm.current().xid)
        if len(tries) == 1:
            stage.bank.order("UPDATE account SET balance = balance - 1")
        await take(session, order)

    resource = stage.resource(is_blocking=is_blocking)
    engine = resource.engine if is_blocking else resource.engine.sync_engine
    engine.update_execution_options(isolation_level="REPEATABLE READ")
    async with stage.manager(resource) as tm:
        outcome = await transfer(tm, coloured(contended, is_blocking))(Order("o-1", 30))
    assert tries == [outcome.xid] * 2
    assert outcome.state is COMMITTED
    assert stage.bank.balance == 69
    assert await stage.visible() == [BODY]


@run_by("on_stage")
async def test_nested_transactions_are_refused(stage, /):
    async with stage.manager() as tm:
        inner = transfer(tm)

        async def outer(session, order):
            await take(session, order)
            await inner(order)

        with pytest.raises(UsageError, match="cannot be nested.*add further messages"):
            await transfer(tm, outer)(Order("o-1", 30))
        assert tm.tally.rolled_back == 1
        assert tm.current() is None
    assert stage.bank.balance == 100
    assert await stage.visible() == await stage.open() == []


@run_by("on_stage")
async def test_current_returns_the_transaction_of_the_calling_task(stage, /):
    seen = []

    async with stage.manager() as tm:

        async def aside():
            await over.wait()
            return tm.current()

        async def function(session, order):
            found = tm.current()
            seen.append((found.xid, found.session is session, asyncio.ensure_future(aside())))
            await asyncio.sleep(0)
            assert tm.current() is found

        over = asyncio.Event()
        outcomes = await asyncio.gather(*[transfer(tm, function)(Order("o", n)) for n in (1, 2)])
        assert {xid for xid, _, _ in seen} == {outcome.xid for outcome in outcomes}
        assert all(is_its for _, is_its, _ in seen)
        over.set()
        assert [await task for _, _, task in seen] == [None, None]


@run_by("on_stage")
async def test_an_async_with_block_commits_and_rolls_back_as_a_transaction(stage, /):
    async with stage.manager() as tm:
        async with tm.transaction(MESSAGE) as transaction:
            assert tm.current() is transaction
            assert await stage.open() == [transaction.xid]
            await take(transaction.session, Order("o", 30))
        assert tm.current() is None
        assert transaction.outcome.state is COMMITTED
        assert transaction.outcome.xid == transaction.xid

        with pytest.raises(Refusal):  # noqa: PT012 - the block is what is tested
            async with tm.transaction(NEVER) as transaction:
                await take(transaction.session, Order("o", 30))
                raise Refusal
        async with tm.transaction(NEVER) as transaction:
            raise RollBack("no")
        assert transaction.outcome.state is ROLLED_BACK
    assert stage.bank.balance == 70
    assert await stage.visible() == [b"block"]
    assert await stage.open() == []


@run_by("on_stage", PATIENT)
async def test_cancelling_a_transaction_rolls_it_back_without_a_check(stage, /):
    async def endless(session, order):
        await take(session, order)
        begun.set()
        await asyncio.Event().wait()

    async def block(tm):
        async with tm.transaction(MESSAGE) as transaction:
            await endless(transaction.session, Order("o", 30))

    async with stage.manager() as tm:
        for work in (transfer(tm, endless)(Order("o", 30)), block(tm)):
            begun = asyncio.Event()
            running = asyncio.ensure_future(work)
            await begun.wait()
            await cancelled(running)
    assert tm.tally.rolled_back == 2
    assert tm.tally.checks == 0
    assert stage.bank.balance == 100
    assert await stage.visible() == await stage.open() == []


@run_by("on_stage")
async def test_a_plain_function_finishes_after_its_caller_is_cancelled(stage, /):
    begun, may_end = threading.Event(), threading.Event()

    def slow(session, order):
        take_plainly(session, order)
        begun.set()
        may_end.wait(20)

    async with stage.manager(stage.resource(is_blocking=True)) as tm:
        running = asyncio.ensure_future(transfer(tm, slow)(Order("o-1", 30)))
        await asyncio.to_thread(begun.wait, 20)
        await cancelled(running)
        may_end.set()
    assert tm.tally.committed == 1
    assert stage.bank.balance == 70
    assert await stage.visible() == [BODY]


@run_by("on_stage")
async def test_a_transaction_past_its_timeout_is_rolled_back(stage, /):
    async def endless(session, order):
        await take(session, order)
        await asyncio.Event().wait()

    def slow(session, order):
        take_plainly(session, order)
        threading.Event().wait(0.2)

    async with stage.manager(local_timeout=0.1) as tm:
        with pytest.raises(TransactionOverdue):
            await transfer(tm, endless)(Order("o", 30))
        with pytest.raises(TransactionOverdue):
            async with tm.transaction(MESSAGE) as transaction:
                await endless(transaction.session, Order("o", 30))
        assert tm.tally.rolled_back == 2
    plain = stage.resource(is_blocking=True)
    async with stage.manager(plain, local_timeout=0.1) as tm:
        with pytest.raises(TransactionOverdue):
            await transfer(tm, slow)(Order("o", 30))
    assert stage.bank.balance == 100
    assert await stage.visible() == await stage.open() == []


@pytest.mark.fault("P8")
@run_by("on_stage")
async def test_a_transaction_paused_before_its_fence_cannot_commit_after_a_check(stage, /):
    """It is paused until another process of the group has answered a check."""
    resource, elsewhere, asked = stage.resource(), stage.resource(), []
    await elsewhere.verify()
    local = resource.local

    class Sleeper:
        def __init__(self, *given):
            self._given, self._real = given, local(*given)

        def __getattr__(self, name):
            return getattr(self._real, name)

        async def __aenter__(self):
            answer = await elsewhere.check(*self._given, identity=resource.identity)
            asked.append((self._given[0], answer))
            return await self._real.__aenter__()

        async def __aexit__(self, *problem):
            await self._real.__aexit__(*problem)

    async with stage.manager(resource) as tm:
        resource.local = Sleeper
        with pytest.raises(RolledBackByCheck):
            await transfer(tm)(Order("o-1", 30))
        assert tm.tally.rolled_back == 1
    ((xid, answer),) = asked
    assert answer is LocalTransactionState.ROLLBACK
    assert stage.bank.balance == 100
    assert stage.bank.fence == {xid: 2}
    assert await stage.visible() == await stage.open() == []


@pytest.mark.fault("P5", "P6")
@run_by("on_stage")
async def test_another_group_member_answers_the_checks_of_a_member_that_is_gone(stage, /):
    """The process ends before its END: once after its local transaction, once before it."""
    resource = stage.resource()
    async with stage.manager(resource) as tm:
        begun = [await tm.begin([Message(topic=TOPIC, body=b"%d" % n)]) for n in (1, 2)]
        async with begun[0].local as session:
            await take(session, Order("o-1", 30))
        for block in begun:
            await tm.leave(block)
        await tm._producer.__aexit__(None, None, None)
        assert sorted(await stage.open()) == sorted(block.transaction.xid for block in begun)
        async with stage.manager():
            await stage.until_settled()
        assert await stage.visible() == [b"1"]
        assert stage.bank.fence == {begun[0].transaction.xid: 1, begun[1].transaction.xid: 2}


@run_by("on_stage")
async def test_a_half_message_of_a_foreign_producer_is_answered_unknown(stage, /):
    class Other:
        def execute_local_transaction(self, message, arg):
            return LocalTransactionState.UNKNOWN

        def check_local_transaction(self, message):
            return LocalTransactionState.COMMIT

    async with stage.manager() as tm:
        async with TransactionProducer(GROUP, stage.names, Other()) as producer:
            half = await producer.prepare(Message(topic=TOPIC, body=b"other"))
        await until(lambda: tm.tally.checks_unknown)
        assert await stage.open() == [half.id]
    assert stage.bank.fence == {}


@pytest.mark.fault("D4")
@run_by("on_stage")
async def test_a_database_without_a_fence_is_refused_at_start(stage, /):
    stage.bank.order("DROP TABLE txmq_fence")
    tm = stage.manager()
    with pytest.raises(FenceMissing):
        await tm.__aenter__()
    with pytest.raises(UsageError, match="not open|verify"):
        await transfer(tm)(Order("o-1", 30))


@run_by("on_stage")
async def test_decorating_a_function_that_does_not_match_its_resource_is_refused(stage, /):
    waits, blocks = stage.manager(), stage.manager(stage.resource(is_blocking=True))
    with pytest.raises(UsageError, match="needs an async function; .*take_plainly is not async"):
        transfer(waits, take_plainly)
    with pytest.raises(UsageError, match="needs a plain function; .*take is async"):
        transfer(blocks, take)
    async with blocks:
        with pytest.raises(UsageError, match="stall the loop"):
            async with blocks.transaction(MESSAGE):
                pass


@run_by("on_stage")
async def test_a_message_with_an_id_of_its_own_is_refused(stage, /):
    async with stage.manager() as tm:
        own = Message(topic=TOPIC, body=b"", properties={"UNIQ_KEY": "mine"})
        with pytest.raises(LocalProtocolError, match="assigns its messages. ids"):
            async with tm.transaction(own):
                pass
    assert await stage.open() == []
