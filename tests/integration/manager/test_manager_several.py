"""Several messages of one transaction: all become visible, or none does."""

import asyncio

import pytest
from sqlalchemy import text

from tests.integration.manager.manager_stage import (
    COMMITTED,
    MESSAGE,
    PATIENT,
    ROLLED_BACK,
    TOPIC,
    Order,
    Refusal,
    coloured,
    take,
)
from tests.integration.manager.test_manager_blocking import visible
from tests.integration.manager.test_manager_result import FAIL_FIRST
from tests.running import run_by
from txmq import Message, MessageTemplate, Producer
from txmq.errors import ConfigError, LimitExceeded, RollBack, UsageError

ORDER = Order("o-1", 30)
ADDED = Message(topic=TOPIC, body=b"added")
TWO = (
    MessageTemplate(topic=TOPIC, body=lambda order: b"first"),
    MessageTemplate(topic=TOPIC, body=lambda order: order.id.encode()),
)
OF_RESULT = MessageTemplate(topic=TOPIC, body=lambda made: made.encode(), made_from="result")


@pytest.mark.parametrize("is_blocking", [False, True])
@run_by("on_stage")
async def test_messages_from_arguments_result_and_the_function_are_committed(stage, /, is_blocking):
    async def taken(session, order):
        await take(session, order)
        tm.add(ADDED)
        return "result"

    async with stage.manager(stage.resource(is_blocking=is_blocking)) as tm:
        outcome = await tm.transactional(*TWO, OF_RESULT)(coloured(taken, is_blocking))(ORDER)

    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, True)
    numbered = [outcome.xid, *(f"{outcome.xid}.{number}" for number in (1, 2, 3))]
    assert [sent.id for sent in outcome.sent] == numbered
    assert await stage.visible() == [b"added", b"first", b"o-1", b"result"]
    assert stage.bank.fence == {outcome.xid: 1}
    assert stage.bank.balance == 70
    for message_id in numbered:
        found = await stage.client.admin.find(TOPIC, message_id)
        assert found.xid == outcome.xid


@pytest.mark.parametrize("problem", [Refusal("no"), RollBack("no")], ids=lambda error: repr(error))
@run_by("on_stage")
async def test_an_exception_after_adding_messages_leaves_nothing(stage, /, problem):
    async def refused(session, order):
        await take(session, order)
        tm.add(ADDED)
        raise problem

    async with stage.manager() as tm:
        function = tm.transactional(*TWO)(refused)
        if isinstance(problem, RollBack):
            assert (await function(ORDER)).state is ROLLED_BACK
        else:
            with pytest.raises(Refusal):
                await function(ORDER)
    assert (stage.bank.balance, stage.bank.fence) == (100, {})
    assert await stage.visible() == await stage.open() == []


@run_by("on_stage")
async def test_a_block_adds_messages(stage, /):
    async with stage.manager() as tm:
        async with tm.transaction(MESSAGE, ADDED) as transaction:
            await take(transaction.session, ORDER)
            transaction.add(ADDED)
            assert len(transaction.halves) == 2
        assert len(transaction.outcome.sent) == 3
    assert await stage.visible() == [b"added", b"added", b"block"]
    assert stage.bank.balance == 70


def test_a_blocking_block_and_function_add_messages(blocked, broker, bank):
    tm, _ = blocked

    @tm.transactional(*TWO)
    def taken(session, order):
        session.execute(text("UPDATE account SET balance = balance - 30"))
        tm.add(ADDED)

    assert len(taken(ORDER).sent) == 3
    with tm.transaction(MESSAGE) as transaction:
        transaction.session.execute(text("UPDATE account SET balance = balance - 30"))
        transaction.add(ADDED)
    assert len(transaction.outcome.sent) == 2
    assert visible(broker) == [b"added", b"added", b"block", b"first", b"o-1"]
    assert bank.balance == 40


@pytest.mark.parametrize("bank", ["postgres"], indirect=True)
@run_by("on_stage")
async def test_an_attempt_after_a_failed_commit_has_messages_of_its_own(stage, /):
    """The first attempt stored its messages, and its commit failed: they are rolled back."""
    stage.bank.order("CREATE TABLE bill (amount INTEGER)")
    for statement in FAIL_FIRST.strip().split(";\n", 1):
        stage.bank.order(statement)
    attempts = []

    async def charged(session, order):
        await session.execute(text("INSERT INTO bill VALUES (30)"))
        attempts.append(tm.current().xid)
        tm.add(Message(topic=TOPIC, body=b"attempt %d" % len(attempts)))

    async with stage.manager() as tm:
        outcome = await tm.transactional(*TWO)(charged)(ORDER)

    assert len(set(attempts)) == 2
    assert outcome.xid == attempts[1]
    assert stage.bank.fence == {outcome.xid: 1}
    assert await stage.visible() == [b"attempt 2", b"first", b"o-1"]
    assert await stage.open() == []


@run_by("on_stage")
async def test_a_lost_decision_is_made_up_for_by_checks_of_each_message(stage, /):
    async with stage.manager() as tm:
        block = await tm.begin([MESSAGE, ADDED, ADDED])
        async with block.local as session:
            await take(session, ORDER)
        await tm.leave(block)
        await stage.until_settled()
        assert tm.tally.checks_committed == 3
    assert await stage.visible() == [b"added", b"added", b"block"]
    assert stage.bank.fence == {block.transaction.xid: 1}


@pytest.mark.parametrize(("decision", "seen"), [("commit", [b"added", b"block"]), ("rollback", [])])
def test_an_operator_decides_all_messages_whichever_is_named(on_stage, decision, seen):
    async def story(stage):
        async with stage.manager() as tm:
            block = await tm.begin([MESSAGE, ADDED])
            await tm.leave(block)
        admin = stage.client.admin
        named = block.transaction.sent[1].id
        await admin.decide_transaction(named, decision, operator="ann", reason="audit")
        assert await stage.open() == []
        assert await stage.visible() == seen

    on_stage(story, PATIENT)


@run_by("on_stage")
async def test_no_message_is_added_where_no_transaction_runs(stage, /):
    async with stage.manager() as tm:
        with pytest.raises(UsageError, match="no transaction of icbc runs here"):
            tm.add(ADDED)
        async with tm.transaction(MESSAGE) as transaction:
            pass
        with pytest.raises(UsageError, match="is settled, and takes no more messages"):
            transaction.add(ADDED)


@run_by("on_stage")
async def test_too_many_or_too_late_messages_roll_back(stage, /):
    async def greedy(session, order):
        await take(session, order)
        for _ in range(64):
            tm.add(ADDED)

    async with stage.manager() as tm:
        with pytest.raises(LimitExceeded, match="at most 64, not 65"):
            await tm.transactional(*TWO[:1])(greedy)(ORDER)
    async with stage.manager(local_timeout=301.0) as tm:
        with pytest.raises(ConfigError, match="within 300 s"):
            async with tm.transaction(MESSAGE) as transaction:
                transaction.add(ADDED)
    assert stage.bank.balance == 100
    assert await stage.visible() == await stage.open() == []


@run_by("on_stage")
async def test_concurrent_transactions_keep_their_messages_apart(stage, /):
    async def taken(session, order):
        await asyncio.sleep(0)
        tm.add(Message(topic=TOPIC, body=order.id.encode()))

    async with stage.manager() as tm:
        function = tm.transactional(TWO[1])(taken)
        orders = [Order(f"o-{number}", 1) for number in range(8)]
        outcomes = await asyncio.gather(*map(function, orders))
    assert {len(outcome.sent) for outcome in outcomes} == {2}
    assert await stage.visible() == sorted(2 * [order.id.encode() for order in orders])


@pytest.mark.parametrize("is_blocking", [False, True])
@run_by("on_stage")
async def test_a_delayed_message_comes_after_the_commit_or_is_recalled(stage, /, is_blocking):
    async with stage.manager(stage.resource(is_blocking=is_blocking)) as tm:
        take_later = tm.transactional(topic=TOPIC, deliver_after=lambda order: order.amount)(
            coloured(take, is_blocking)
        )
        soon, late = [await take_later(Order(name, wait)) for name, wait in (("s", 1), ("l", 90))]
        async with Producer("pg", stage.client) as producer:
            await producer.recall(TOPIC, late.sent[0].recall_handle)

    assert (soon.state, late.state, stage.bank.balance) == (COMMITTED, COMMITTED, 9)
    async with asyncio.timeout(20):
        while not await stage.visible():
            await asyncio.sleep(0.05)
    (only,) = await stage.visible()
    assert b'"s"' in only
