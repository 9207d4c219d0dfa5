"""The same without ``await``: functions and blocks run in the thread that calls them."""

import asyncio
import contextlib
import inspect
import signal
import threading

import pytest
from sqlalchemy import create_engine, text

from tests.integration.manager.manager_stage import (
    COMMITTED,
    GROUP,
    MESSAGE,
    NEVER,
    ROLLED_BACK,
    TOPIC,
    Order,
    Refusal,
    take_plainly,
)
from txmq import Message, SQLResource, blocking
from txmq.errors import ConfigError, RollBack, UsageError
from txmq.transaction import ManagerSettings

ORDER = Order("o-1", 30)


@pytest.fixture
def tm(blocked):
    """A manager that is open."""
    return blocked[0]


def visible(broker):
    with blocking.Client(broker.names) as client:
        bodies = [
            message.body
            for queue in client.admin.route(TOPIC).readable
            for message in client.admin.pull(queue, 0).messages
        ]
        assert client.admin.transactions() == []
    return sorted(bodies)


def test_a_decorated_function_is_called_without_its_session_argument(tm, bank, broker):
    where = []

    @tm.transactional(topic=TOPIC, keys=lambda order: order.id)
    def transfer_out(session, order):
        where.append(threading.current_thread())
        assert tm.current().session is session
        if order.amount == 99:
            raise Refusal("no")
        if order.amount == 98:
            raise RollBack("no")
        return take_plainly(session, order)

    outcome = transfer_out(ORDER)
    assert (outcome.state, outcome.result, outcome.is_acknowledged) == (COMMITTED, "o-1", True)
    with pytest.raises(Refusal, match="no"):
        transfer_out(Order("o-2", 99))
    assert transfer_out(order=Order("o-3", 98)).state is ROLLED_BACK
    assert where == [threading.current_thread()] * 3
    assert tm.current() is None
    assert (tm.tally.committed, tm.tally.rolled_back) == (1, 2)
    assert list(inspect.signature(transfer_out).parameters) == ["order"]
    assert bank.balance == 70
    assert visible(broker) == [b'{"id":"o-1","amount":30}']


def test_the_message_of_a_decorated_method_contains_neither_self_nor_the_session(tm, bank, broker):
    class Desk:
        def __init__(self, fee):
            self.fee = fee

        @tm.transactional(topic=TOPIC, keys=lambda order: order.id)
        def transfer_out(self, session, order):
            assert tm.current().session is session
            return take_plainly(session, Order(order.id, order.amount + self.fee))

    desk = Desk(5)
    assert desk.transfer_out(ORDER).result == "o-1"
    assert desk.transfer_out(order=Order("o-2", 10)).state is COMMITTED
    assert bank.balance == 100 - 35 - 15
    assert visible(broker) == [b'{"id":"o-1","amount":30}', b'{"id":"o-2","amount":10}']
    assert list(inspect.signature(desk.transfer_out).parameters) == ["order"]
    with pytest.raises(TypeError, match=r"Desk\.transfer_out is a method: call it on an object"):
        Desk.transfer_out()


def test_a_decorated_method_without_a_session_parameter_after_self_is_refused(tm):
    with pytest.raises(
        UsageError, match="alone takes no session: its argument after self must be one"
    ):

        class Desk:
            @tm.transactional(topic=TOPIC)
            def alone(self):
                """Takes no session."""


def test_a_message_made_from_a_result_is_sent_before_the_blocking_call_returns(tm, bank, broker):
    bank.order("CREATE TABLE bill (amount INTEGER PRIMARY KEY)")
    where = []

    @tm.transactional(topic=TOPIC, keys=lambda made: made["amount"], made_from="result")
    def charge(session, amount):
        where.append(threading.current_thread())
        session.execute(text("INSERT INTO bill VALUES (:amount)"), {"amount": amount})
        if amount == 99:
            raise Refusal("no")
        return {"amount": amount, "xid": tm.current().xid}

    outcome = charge(30)
    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, True)
    assert outcome.result == {"amount": 30, "xid": outcome.xid}
    with pytest.raises(Exception, match=r"(?i)unique"):
        charge(30)
    with pytest.raises(Refusal, match="no"):
        charge(amount=99)
    with pytest.raises(TypeError, match="amount"):
        charge()
    assert where == [threading.current_thread()] * 3
    assert tm.current() is None
    assert bank.order("SELECT amount FROM bill") == [(30,)]
    assert visible(broker) == [b'{"amount":30,"xid":"%s"}' % outcome.xid.encode()]


def test_ctrl_c_while_a_half_message_is_sent_rolls_back(tm, bank, broker):
    running = threading.get_ident()

    async def unanswered(*_):
        signal.pthread_kill(running, signal.SIGINT)
        await asyncio.Event().wait()

    tm._real._producer._sender.send_half = unanswered
    charge = tm.transactional(topic=TOPIC, made_from="result")(take_plainly)
    with pytest.raises(KeyboardInterrupt):
        charge(ORDER)
    assert tm.current() is None
    assert bank.balance == 100
    assert bank.fence == {}


def test_a_with_block_commits_and_rolls_back_as_a_transaction(tm, bank, broker):
    with tm.transaction(MESSAGE) as transaction:
        assert tm.current() is transaction
        take_plainly(transaction.session, ORDER)
    assert transaction.outcome.state is COMMITTED
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(Refusal),
        tm.transaction(NEVER) as refused,
    ):
        take_plainly(refused.session, ORDER)
        raise Refusal
    with tm.transaction(NEVER) as transaction:
        raise RollBack("no")
    assert transaction.outcome.state is ROLLED_BACK
    assert tm.current() is None
    assert bank.balance == 70
    assert visible(broker) == [b"block"]


def test_nested_transactions_are_refused(tm, bank):
    inner = tm.transactional(topic=TOPIC)(take_plainly)

    @tm.transactional(topic=TOPIC)
    def outer(session, order):
        take_plainly(session, order)
        inner(order)

    with pytest.raises(UsageError, match="cannot be nested"):
        outer(ORDER)
    with pytest.raises(UsageError, match="cannot be nested"), tm.transaction(MESSAGE):
        inner(ORDER)
    assert bank.balance == 100


def test_a_keyboard_interrupt_inside_a_block_leaves_the_decision_to_a_check(tm, bank, broker):
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(KeyboardInterrupt),
        tm.transaction(NEVER) as transaction,
    ):
        take_plainly(transaction.session, ORDER)
        raise KeyboardInterrupt
    assert tm.current() is None
    until = threading.Event()
    while not tm.tally.checks_rolled_back:
        until.wait(0.02)
    assert bank.fence == {transaction.xid: 2}
    assert bank.balance == 100


def test_an_async_resource_is_refused_by_the_blocking_manager(bank, broker):
    with pytest.raises(ConfigError, match="needs await"):
        blocking.TransactionManager(GROUP, broker.names, SQLResource(bank.awaited()))


def test_a_manager_works_on_a_shared_client(bank, broker):
    settings = ManagerSettings(local_attempts=1)
    engine = create_engine(bank.url)
    with (
        contextlib.closing(SQLResource(engine)) as resource,
        blocking.Client(broker.names) as client,
        blocking.TransactionManager(GROUP, client, resource, settings) as tm,
    ):
        assert tm.transactional(topic=TOPIC)(take_plainly)(ORDER).state is COMMITTED
    engine.dispose()


def test_ctrl_c_before_the_end_of_a_block_leaves_the_decision_to_a_check(
    tm, bank, broker, monkeypatch
):
    wait = tm._background.wait

    def interrupted(work, here=None):
        if work.__qualname__.endswith("TransactionManager.end"):
            work.close()
            raise KeyboardInterrupt
        return wait(work, here)

    monkeypatch.setattr(tm._background, "wait", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        tm.transaction(Message(topic=TOPIC, body=b"30")) as transaction,
    ):
        take_plainly(transaction.session, ORDER)
    with blocking.Client(broker.names) as client:
        while client.admin.transactions():
            pass  # The timeout of the test is the limit.
    assert visible(broker) == [b"30"]
    assert bank.balance == 70
