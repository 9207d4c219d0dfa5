"""Messages made from what functions return: sent before the commit, never without it."""

import asyncio
import logging
import threading

import pytest
from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.integration.manager.manager_stage import (
    COMMITTED,
    NOT_KNOWN,
    ROLLED_BACK,
    TOPIC,
    Refusal,
    cancelled,
    coloured,
    until,
)
from tests.running import run_by
from txmq import TransactionState
from txmq.errors import (
    ConfigError,
    LimitExceeded,
    LocalProtocolError,
    OutcomeUnknown,
    RequestTimeout,
    RollBack,
    TransactionOverdue,
    UsageError,
)

PATIENCE_S = 20


FAIL_FIRST = """
CREATE SEQUENCE tries;
CREATE FUNCTION fail_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') = 1 THEN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON bill DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fail_first()
"""


class Base(DeclarativeBase):
    """The tables of these tests."""


class Bill(Base):
    """What is numbered by the database."""

    __tablename__ = "bill"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


@pytest.fixture(autouse=True)
def table(bank):
    Base.metadata.create_all(bank.engine)


def bills(bank):
    return [amount for (amount,) in bank.order("SELECT amount FROM bill ORDER BY id")]


async def charge(session, amount):
    """The local transaction of most tests; nothing is written before it is flushed."""
    return charge_plainly(session, amount)


def charge_plainly(session, amount):
    """The same without asyncio."""
    bill = Bill(amount=amount)
    session.add(bill)
    return bill


def decorated(tm, function=charge, **more):
    parts = {
        "topic": TOPIC,
        "keys": lambda bill: bill.id,
        "body": lambda bill: {"number": bill.id},
        "made_from": "result",
    }
    return tm.transactional(**{**parts, **more})(function)


def before_commits(resource, look):
    """Await ``look`` with each local transaction that is about to be committed."""
    local = resource.local

    class Watched:
        def __init__(self, *given):
            self.xid, self._real = given[0], local(*given)

        def __getattr__(self, name):
            return getattr(self._real, name)

        async def __aenter__(self):
            return await self._real.__aenter__()

        async def __aexit__(self, kind, problem, trace):
            try:
                if problem is None:
                    await look(self)
            except BaseException as raised:
                kind, problem, trace = type(raised), raised, raised.__traceback__
                raise
            finally:
                await self._real.__aexit__(kind, problem, trace)

    resource.local = Watched


async def nothing_remains(stage):
    assert bills(stage.bank) == []
    assert stage.bank.fence == {}
    assert await stage.visible() == await stage.open() == []


@pytest.mark.parametrize("is_blocking", [False, True])
@run_by("on_stage")
async def test_a_message_carries_the_key_generated_by_the_database(stage, /, is_blocking):
    async with stage.manager(stage.resource(is_blocking=is_blocking)) as tm:
        function = decorated(tm, coloured(charge, is_blocking))
        outcome = await function(30)
        assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, True)
        assert (outcome.result.id, outcome.result.amount) == (1, 30)
        assert tm.tally.committed == 1
    assert bills(stage.bank) == [30]
    assert stage.bank.fence == {outcome.xid: 1}
    assert await stage.visible() == [b'{"number":1}']
    found = await stage.client.admin.find(TOPIC, outcome.message_id)
    assert found.keys == ("1",)
    assert outcome.half.id == outcome.xid


@run_by("on_stage")
async def test_the_result_is_the_default_body_of_the_message(stage, /):
    async def numbered(session, amount):
        bill = await charge(session, amount)
        await session.flush()
        return {"number": bill.id, "amount": amount}

    async with stage.manager() as tm:
        function = tm.transactional(topic=TOPIC, made_from="result")(numbered)
        assert (await function(amount=7)).result == {"number": 1, "amount": 7}
        with pytest.raises(TypeError, match="amount"):
            await function()
    assert await stage.visible() == [b'{"number":1,"amount":7}']


@run_by("on_stage")
async def test_the_half_message_is_stored_before_the_commit_and_checks_wait(stage, /):
    resource, seen = stage.resource(), []

    async def look(local):
        seen.append((await stage.open(), local.state.name, bills(stage.bank)))
        await until(lambda: tm.tally.checks_unknown)

    before_commits(resource, look)
    async with stage.manager(resource) as tm:
        outcome = await decorated(tm)(30)
        assert tm.tally.checks == tm.tally.checks_unknown
    assert seen == [([outcome.xid], "ROLLBACK", [])]
    assert outcome.state is COMMITTED
    assert bills(stage.bank) == [30]


@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize("problem", [Refusal("no"), RollBack("no")], ids=lambda error: repr(error))
@run_by("on_stage")
async def test_an_exception_rolls_back_and_no_message_is_sent(stage, /, problem, is_blocking):
    async def refused(session, amount):
        await charge(session, amount)
        raise problem

    async with stage.manager(stage.resource(is_blocking=is_blocking)) as tm:
        function = decorated(tm, coloured(refused, is_blocking))
        if isinstance(problem, RollBack):
            outcome = await function(30)
            assert (outcome.state, outcome.problem) == (ROLLED_BACK, problem)
            assert outcome.message_id == outcome.xid
            with pytest.raises(UsageError, match="before it had a message"):
                print(outcome.queue)
        else:
            with pytest.raises(Refusal, match="no") as raised:
                await function(30)
            assert raised.value.__notes__[0].endswith("is rolled back")
        assert (tm.tally.rolled_back, tm.tally.unacknowledged) == (1, 0)
    await nothing_remains(stage)


@run_by("on_stage")
async def test_a_result_that_makes_no_valid_message_rolls_back(stage, /):
    async def silent(session, amount):
        await charge(session, amount)

    async with stage.manager() as tm:
        with pytest.raises(LocalProtocolError, match="silent returned nothing.*`body=`"):
            await decorated(tm, silent, keys=(), body=None)(30)
        with pytest.raises(LocalProtocolError, match="that makes it from the result"):
            await decorated(tm, body=None)(30)
        with pytest.raises(LocalProtocolError, match="not a string"):
            await decorated(tm, topic=lambda bill: bill.id)(30)
        with pytest.raises(LocalProtocolError):
            await decorated(tm, topic="not a topic!")(30)
        with pytest.raises(LimitExceeded):
            await decorated(tm, body=lambda bill: bytes(5_000_000))(30)
        with pytest.raises(LocalProtocolError, match="remove the unique key"):
            await decorated(tm, properties={"UNIQ_KEY": "mine"})(30)
        with pytest.raises(AttributeError, match="number"):
            await decorated(tm, keys=lambda bill: bill.number)(30)
    await nothing_remains(stage)


@pytest.mark.parametrize("is_blocking", [False, True])
@run_by("on_stage")
async def test_an_unanswered_half_message_rolls_back_and_so_does_its_check(stage, /, is_blocking):
    async with stage.manager(stage.resource(is_blocking=is_blocking)) as tm:
        sending = tm._producer._sender
        send_half = sending.send_half

        async def unanswered(*half):
            await send_half(*half)
            raise RequestTimeout("no answer came")

        sending.send_half = unanswered
        with pytest.raises(RequestTimeout) as raised:
            await decorated(tm, coloured(charge, is_blocking))(30)
        assert "half message" in raised.value.__notes__[0]
        assert len(await stage.open()) == 1
        await stage.until_settled()
        assert tm.tally.checks_rolled_back == 1
    assert bills(stage.bank) == []
    assert list(stage.bank.fence.values()) == [2]
    assert await stage.visible() == []


@pytest.mark.parametrize("is_blocking", [False, True])
@run_by("on_stage")
async def test_a_half_message_past_the_timeout_rolls_the_transaction_back(stage, /, is_blocking):
    resource = stage.resource(is_blocking=is_blocking)
    async with stage.manager(resource, local_timeout=0.3) as tm:

        async def unanswered(*_):
            await asyncio.Event().wait()

        tm._producer._sender.send_half = unanswered
        with pytest.raises(TransactionOverdue):
            await decorated(tm, coloured(charge, is_blocking))(30)
    await nothing_remains(stage)


@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize("bank", ["postgres"], indirect=True)  # SQLite has a single writer.
@run_by("on_stage")
async def test_a_serialization_failure_at_the_commit_is_retried_under_a_new_id(
    stage, /, is_blocking
):
    stage.bank.order(FAIL_FIRST)
    seen = []

    async def watched(session, amount):
        seen.append(tm.current().xid)
        return await charge(session, amount)

    async with stage.manager(stage.resource(is_blocking=is_blocking)) as tm:
        outcome = await decorated(tm, coloured(watched, is_blocking))(30)
        assert (tm.tally.committed, tm.tally.rolled_back) == (1, 1)
    assert len(set(seen)) == 2
    assert outcome.xid == seen[1]
    assert outcome.result.id == 2
    assert bills(stage.bank) == [30]
    assert stage.bank.fence == {outcome.xid: 1}
    assert await stage.visible() == [b'{"number":2}']
    assert await stage.open() == []


@run_by("on_stage")
async def test_a_commit_inside_the_function_leaves_the_outcome_unknown(stage, /):
    async def hasty(session, amount):
        bill = await charge(session, amount)
        await session.commit()
        return bill

    async def hasty_and_sorry(session, amount):
        await hasty(session, amount)
        raise Refusal

    async with stage.manager() as tm:
        assert (await decorated(tm, hasty)(30)).state is NOT_KNOWN
        await stage.until_settled()
        with pytest.raises(
            OutcomeUnknown, match="ended by its function, before it had a message"
        ) as raised:
            await decorated(tm, hasty_and_sorry)(40)
        assert isinstance(raised.value.__cause__, Refusal)
    assert bills(stage.bank) == [30, 40]
    assert await stage.visible() == [b'{"number":1}']


@run_by("on_stage")
async def test_cancelling_before_or_after_the_half_message_rolls_back(stage, /):
    resource, begun = stage.resource(), asyncio.Event()

    async def endless(*given):
        begun.set()
        await asyncio.Event().wait()

    async with stage.manager(resource) as tm:
        for is_sent in (False, True):
            begun.clear()
            if is_sent:
                before_commits(resource, endless)
            running = asyncio.ensure_future(decorated(tm, charge if is_sent else endless)(30))
            await begun.wait()
            assert len(await stage.open()) == is_sent
            await cancelled(running)
        assert tm._producer.stories._open == {}
    # The second cancel did not hit the function: only the resource knows the outcome.
    assert (tm.tally.rolled_back, tm.tally.checks) == (1, 0)
    await nothing_remains(stage)


@pytest.mark.parametrize("is_closed", [False, True])
@run_by("on_stage")
async def test_a_plain_function_finishes_after_a_cancel_or_a_close(stage, /, is_closed):
    begun, may_end = threading.Event(), threading.Event()

    def slow(session, amount):
        begun.set()
        may_end.wait(PATIENCE_S)
        return charge_plainly(session, amount)

    async with stage.manager(stage.resource(is_blocking=True)) as tm:
        running = asyncio.ensure_future(decorated(tm, slow)(30))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        if is_closed:
            asyncio.get_running_loop().call_later(0.1, may_end.set)
        else:
            await cancelled(running)
            may_end.set()
    if is_closed:
        assert (await running).state is COMMITTED
    assert tm.tally.committed == 1
    assert bills(stage.bank) == [30]
    assert await stage.visible() == [b'{"number":1}']
    assert await stage.open() == []


@run_by("on_stage")
async def test_a_function_that_outlives_its_manager_commits_nothing(stage, /):
    begun, may_end, threads = threading.Event(), threading.Event(), []

    def slow(session, amount):
        threads.append(threading.current_thread())
        begun.set()
        may_end.wait(PATIENCE_S)
        return charge_plainly(session, amount)

    async with stage.manager(stage.resource(is_blocking=True), stop_timeout=0.0) as tm:
        running = asyncio.ensure_future(decorated(tm, slow)(30))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
    with pytest.raises(OutcomeUnknown):
        await running
    may_end.set()
    # After the rollback it reads the fence, so its engine must live until then.
    (thread,) = threads
    await asyncio.to_thread(thread.join, PATIENCE_S)
    assert not thread.is_alive()
    await nothing_remains(stage)


@run_by("on_stage")
async def test_the_current_transaction_has_no_message_until_the_function_returns(stage, /):
    seen = []

    async def curious(session, amount):
        found = tm.current()
        assert found.session is session
        with pytest.raises(UsageError, match="no message yet"):
            print(found.message)
        seen.append(found)
        return await charge(session, amount)

    async def outer(session, amount):
        await decorated(tm)(amount)

    async with stage.manager() as tm:
        outcome = await decorated(tm, curious)(30)
        assert (seen[0].xid, seen[0].group) == (outcome.xid, tm.group)
        assert seen[0].message.id == outcome.xid
        with pytest.raises(UsageError, match="cannot be nested"):
            await decorated(tm, outer)(30)
        assert tm.current() is None
    assert bills(stage.bank) == [30]


@run_by("on_stage")
async def test_impossible_options_are_refused_at_decoration(stage, /):
    tm = stage.manager()
    with pytest.raises(UsageError, match="the keys of the message is made from the result alone"):
        decorated(tm, keys=lambda session, amount: amount)
    with pytest.raises(UsageError, match="'arguments' or from the 'result', not 'nothing'"):
        tm.transactional(topic=TOPIC, made_from="nothing")(charge)
    with pytest.raises(ConfigError, match="within 300 s"):
        decorated(stage.manager(local_timeout=301.0))


@pytest.mark.parametrize("is_refused", [False, True])
@run_by("on_stage")
async def test_the_steps_are_logged_in_the_order_they_are_taken(stage, /, caplog, is_refused):
    async def refused(session, amount):
        raise RollBack("no")

    async with stage.manager() as tm:
        with caplog.at_level(logging.DEBUG, "txmq.transaction.story"):
            outcome = await decorated(tm, refused if is_refused else charge)(30)
    assert outcome.state is (TransactionState.ROLLED_BACK if is_refused else COMMITTED)
    told = [entry.args for entry in caplog.records if entry.name == "txmq.transaction.story"]
    steps = [entry[1] for entry in told if isinstance(entry[1], int)]
    assert steps == ([1, 5, 6, 7] if is_refused else [1, 5, 2, 3, 4, 6, 7, 8, 9])
    assert len({entry[0] for entry in told}) == 1


@run_by("on_stage")
async def test_a_violated_constraint_raises_before_anything_is_sent(stage, /):
    async def twice(session, amount):
        session.add(Bill(id=7, amount=amount))
        await session.execute(text("INSERT INTO bill (id, amount) VALUES (7, 1)"))

    async with stage.manager() as tm:
        tm._producer.check_half = None  # Nobody gets that far.
        with pytest.raises(Exception, match=r"(?i)unique"):
            await decorated(tm, twice)(30)
    await nothing_remains(stage)
