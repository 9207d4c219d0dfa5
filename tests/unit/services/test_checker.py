"""Which member the checker asks in a group with very many members."""

from types import SimpleNamespace

import pytest

from tests.unit.store.shelf import Shelf
from txmq.protocol.bodies import Heartbeat, ProducerRegistration
from txmq.protocol.span import DecisionKind
from txmq.runtime.clock import SystemClock
from txmq_broker.config import CheckBackSettings, DelaySettings, TopicDefaults
from txmq_broker.core.clients import Clients
from txmq_broker.core.schedule import Schedule
from txmq_broker.core.topics import Topics
from txmq_broker.core.transactions import Transactions
from txmq_broker.services.checker import Checker
from txmq_broker.store.pending_transactions import Half, PendingTransactions, transaction_key

GROUP = "tpg"
COUNT = 2000


class Member:
    """A connection that counts how often it is looked at."""

    def __init__(self, looks):
        self.looks, self.is_backed_up = looks, False

    @property
    def is_open(self):
        self.looks.append(self)
        return True


@pytest.fixture
def crowd():
    """A checker, its members, and the looks at them."""
    clients, looks = Clients(), []
    members = [Member(looks) for _ in range(COUNT)]
    for number, member in enumerate(members):
        beat = Heartbeat(f"client-{number}", [ProducerRegistration(GROUP)], [])
        clients.beat(member, beat, "PYTHON", 1, 0.0)
    transactions = SimpleNamespace(halves=SimpleNamespace(pending=PendingTransactions()))
    return Checker(transactions, clients, None, None), members, looks


def half(offset, origin, checks=0):
    return Half(offset, 0, 0, 0, 0, None, GROUP, origin, False, (), checks=checks)


@pytest.mark.parametrize("origin", ["client-1999", "gone"])
def test_the_checker_looks_at_few_members_to_choose_one(crowd, origin):
    checker, members, looks = crowd
    first = checker._choose(half(3, origin), None)
    second = checker._choose(half(3, origin), first.connection)

    assert first.connection is members[1999 if origin == "client-1999" else 3]
    assert second.connection is not first.connection
    assert looks == [first.connection, first.connection, second.connection]


def test_checks_go_to_all_members_in_turn_and_again_to_the_only_one_left(crowd):
    checker, members, _ = crowd
    turns = [checker._choose(half(7, "client-5", checks), None) for checks in range(COUNT)]
    assert {member.connection for member in turns} == set(members)
    for member in members[1:]:
        member.is_backed_up = True
    assert checker._choose(half(7, "client-5"), members[0]).connection is members[0]
    members[0].is_backed_up = True
    assert checker._choose(half(7, "client-5"), None) is None


def test_a_transaction_decided_before_its_last_check_counts_is_not_parked():
    """With async flush, the time stamp of a parking may first end a turn with the decision."""
    shelf = Shelf()
    shelf.prepare(b"half", unique="U1")
    shelf.flush()
    key = transaction_key("U1")

    def decision_ms():
        shelf.flush()
        return shelf.next_ms()

    topics = Topics(shelf.store, TopicDefaults())
    transactions = Transactions(
        shelf.store.halves,
        topics,
        CheckBackSettings(check_max=1),
        Schedule(shelf.store, topics, DelaySettings()),
        SystemClock(),
    )
    checker = Checker(transactions, Clients(), SystemClock(), decision_ms)
    checker.checks.ask(key, object(), 0.0)
    shelf.decide("U1", DecisionKind.COMMITTED)

    checker.note_unknown(key)

    assert shelf.store.halves.pending.find(key) is None
    assert transactions.tally.parked == 0
    assert list(shelf.bodies().values()) == [b"half"]
    shelf.close()
