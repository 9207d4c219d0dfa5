"""The same without ``await``: functions and blocks run in the thread that calls them."""

import contextlib
import inspect
import threading

import pytest
from sqlalchemy import create_engine

from broker.testing import BrokerThread
from tests.unit.transaction.manager_stage import (
    COMMITTED,
    GROUP,
    NOT_KNOWN,
    ROLLED_BACK,
    SOON,
    TOPIC,
    Order,
    take_plainly,
)
from txmq import Message, SQLResource, blocking
from txmq.errors import ConfigError, RollBack, UsageError
from txmq.transaction import ManagerSettings

ORDER = Order("o-1", 30)


class Refusal(Exception):
    """What a business function raises."""


@pytest.fixture
def broker():
    """A broker that asks soon."""
    with BrokerThread(SOON) as running:
        yield running


@pytest.fixture
def tm(bank, broker):
    """A manager that is open."""
    engine = create_engine(bank.url)
    with (
        contextlib.closing(SQLResource(engine)) as resource,
        blocking.TransactionManager(GROUP, broker.names, resource) as found,
    ):
        yield found
    engine.dispose()


def visible(broker):
    with blocking.Client(broker.names) as client:
        found = [
            each.body
            for queue in client.admin.route(TOPIC).readable
            for each in client.admin.pull(queue, 0).messages
        ]
        assert client.admin.transactions() == []
    return sorted(found)


def test_a_function_is_called_as_it_looks(tm, bank, broker):
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


def test_a_block_of_code_is_a_transaction(tm, bank, broker):
    with tm.transaction(Message(topic=TOPIC, body=b"block")) as transaction:
        assert tm.current() is transaction
        take_plainly(transaction.session, ORDER)
    assert transaction.outcome.state is COMMITTED
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(Refusal),
        tm.transaction(Message(topic=TOPIC, body=b"never")) as refused,
    ):
        take_plainly(refused.session, ORDER)
        raise Refusal
    with tm.transaction(Message(topic=TOPIC, body=b"never")) as transaction:
        raise RollBack("no")
    assert transaction.outcome.state is ROLLED_BACK
    assert tm.current() is None
    assert bank.balance == 70
    assert visible(broker) == [b"block"]


def test_transactions_are_not_nested(tm, bank):
    inner = tm.transactional(topic=TOPIC)(take_plainly)

    @tm.transactional(topic=TOPIC)
    def outer(session, order):
        take_plainly(session, order)
        inner(order)

    with pytest.raises(UsageError, match="not nested"):
        outer(ORDER)
    message = Message(topic=TOPIC, body=b"block")
    with pytest.raises(UsageError, match="not nested"), tm.transaction(message):
        inner(ORDER)
    assert bank.balance == 100


def test_what_ends_more_than_the_block_leaves_the_word_to_a_check(tm, bank, broker):
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(KeyboardInterrupt),
        tm.transaction(Message(topic=TOPIC, body=b"never")) as transaction,
    ):
        take_plainly(transaction.session, ORDER)
        raise KeyboardInterrupt
    assert tm.current() is None
    until = threading.Event()
    while not tm.tally.checks_rolled_back:
        until.wait(0.02)
    assert bank.fence == {transaction.xid: 2}
    assert bank.balance == 100


def test_a_function_that_commits_by_itself_is_found_out(tm, bank):
    @tm.transactional(topic=TOPIC)
    def hasty(session, order):
        take_plainly(session, order)
        session.commit()

    assert hasty(ORDER).state is NOT_KNOWN
    until = threading.Event()
    while not tm.tally.checks_committed:
        until.wait(0.02)
    assert bank.balance == 70


def test_a_resource_of_asyncio_is_refused(bank, broker):
    with pytest.raises(ConfigError, match="needs await"):
        blocking.TransactionManager(GROUP, broker.names, SQLResource(bank.awaited()))


def test_a_client_can_be_shared(bank, broker):
    settings = ManagerSettings(local_attempts=1)
    engine = create_engine(bank.url)
    with (
        contextlib.closing(SQLResource(engine)) as resource,
        blocking.Client(broker.names) as client,
        blocking.TransactionManager(GROUP, client, resource, settings) as tm,
    ):
        assert tm.transactional(topic=TOPIC)(take_plainly)(ORDER).state is COMMITTED
    engine.dispose()
