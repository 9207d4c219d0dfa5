"""The checkers of transactions find a broker that is broken on purpose, each by what it breaks.

Every one of these brokers is made from the real one by taking a single thought away.
"""

import pytest

from tests.simulation.broken import names, run_all, see_it_found
from tests.simulation.checkers import decisions, kept, undecided, visible
from tests.simulation.mix import Mix, TransactionMix, kib
from tests.simulation.runs import run_seed
from tests.soak import only_in_soak
from txmq.errors import TransactionGroupWrong
from txmq.protocol.span import DecisionKind, DecisionSource
from txmq.settings.units import Size
from txmq_broker.core.transactions import State, Transactions, TransactionStatus
from txmq_broker.handlers.transactions import TransactionHandlers
from txmq_broker.services.checker import Checker
from txmq_broker.services.flusher import Flusher
from txmq_broker.store.half_store import HalfStore
from txmq_broker.store.pending_transactions import PendingTransactions

LOUD = TransactionMix(
    timeout_s=0.5,
    interval_s=0.5,
    check_max=2,
    lanes=3,
    count=20,
    think_s=0.3,
    beat_s=0.2,
    unclear_chance=0.3,
    oneway_chance=0.2,
    twin_chance=0.3,
    again_chance=0.1,
    repeats=3,
    repeat_s=3.0,
    die_chance=0.01,
    lie_chance=0.2,
    mood_chance=0.4,
)
"""Much of everything that can happen to a transaction."""

MIX = Mix(
    segment=Size(1 << 25),
    producers=1,
    sends=10,
    chaos_s=12.0,
    pause_s=1.0,
    audit_chance=1.0,
    recovery_chance=0.0,
    faults=("power cut", "kill", "cut connections"),
    transactions=LOUD,
)

SMALL = MIX.but(segment=kib(32))
"""Where every commit writes its message a second time."""


def test_the_unbroken_broker_passes():
    for mix in (MIX, SMALL):
        run_all(run_seed, mix)


class Forgiving(dict):
    """Forgets also what it does not know."""

    def __delitem__(self, key):
        self.pop(key, None)


def with_dict(patch, name, kind):
    init = HalfStore.__init__

    def changed(self, *parts):
        init(self, *parts)
        setattr(self, name, kind())

    patch(HalfStore, "__init__", changed)


def a_contradiction_is_answered_as_if_it_were_none(patch):
    patch(Transactions, "_conflict", lambda self, found, event, source: None)


def a_second_decision_is_honoured(patch):
    with_dict(patch, "closing", Forgiving)
    closing = PendingTransactions.close_all

    def close_all(self, keys, owners):
        known = [at for at, key in enumerate(keys) if key in self]
        closing(self, [keys[at] for at in known], [owners[at] for at in known])

    patch(PendingTransactions, "close_all", close_all)

    def prepared(self, key, half):
        return TransactionStatus(key, State.PREPARED, half, half.group, half.offset)

    patch(Transactions, "_as_it_stands", prepared)
    patch(Transactions, "_decided", prepared)


def closing_is_forgotten(patch):
    patch(PendingTransactions, "close_all", lambda self, keys, owners: None)


def parking_is_forgotten(patch):
    patch(Transactions, "park", lambda self, key, now_ms: None)


def a_transaction_that_nobody_knows_is_rolled_back(patch):
    def park(self, key, now_ms):
        if key not in self.halves.closing:
            kind, source = DecisionKind.ROLLED_BACK, DecisionSource.BROKER
            self.halves.decide([(key, *self.halves.pending.read(key), kind, source, b"")], now_ms)

    patch(Transactions, "park", park)


def nobody_is_asked(patch):
    patch(Checker, "round", lambda self: len(self.checks.take_due(1e9, 500)))


def open_transactions_are_forgotten_at_a_restart(patch):
    patch(HalfStore, "recovered", lambda self, start, end: self._open.clear())


def parked_is_forgotten_at_a_restart(patch):
    recovered = HalfStore.recovered

    def forgetful(self, start, end):
        self._open = dict.fromkeys(self._open, False)
        recovered(self, start, end)

    patch(HalfStore, "recovered", forgetful)


def answers_do_not_wait_for_the_disk(patch):
    def answer(self, connection, requests, answers):
        connection.send(*answers)

    patch(Flusher, "answer", answer)


def the_group_is_not_looked_at(patch):
    find = Transactions.find

    def lenient(self, header):
        try:
            return find(self, header)
        except TransactionGroupWrong:
            header.producer_group = "bank-0"
            return find(self, header)

    patch(Transactions, "find", lenient)


def a_rollback_is_taken_for_a_commit(patch):
    stage = Transactions._stage
    committed = {DecisionKind.ROLLED_BACK: DecisionKind.COMMITTED}

    def deaf(self, decisions, now_ms):
        deaf_to = [
            (*decision[:3], committed.get(decision[3], decision[3]), *decision[4:])
            for decision in decisions
        ]
        stage(self, deaf_to, now_ms)

    patch(Transactions, "_stage", deaf)


def a_commit_is_not_shown(patch):
    patch(HalfStore, "_stage_copy", lambda *_, **_named: None)
    return SMALL


def a_copy_is_written_twice(patch):
    stage = HalfStore._stage_copy

    def twice(*given, **named):
        stage(*given, **named)
        stage(*given, **named)

    patch(HalfStore, "_stage_copy", twice)
    return SMALL


def the_parked_are_not_listed(patch):
    matching = TransactionHandlers._matching

    def without(self, header):
        return () if header.state == "parked" else matching(self, header)

    patch(TransactionHandlers, "_matching", without)


@pytest.mark.parametrize(
    ("breaks", "checkers"),
    [
        (a_contradiction_is_answered_as_if_it_were_none, (decisions,)),
        (a_second_decision_is_honoured, (decisions, visible)),
        (parking_is_forgotten, (undecided,)),
        (a_transaction_that_nobody_knows_is_rolled_back, (undecided,)),
        (nobody_is_asked, (undecided,)),
        (open_transactions_are_forgotten_at_a_restart, (kept, undecided)),
        (parked_is_forgotten_at_a_restart, (kept,)),
        (answers_do_not_wait_for_the_disk, (kept,)),
        (the_group_is_not_looked_at, (decisions,)),
        (a_rollback_is_taken_for_a_commit, (visible,)),
        (a_commit_is_not_shown, (visible, kept)),
        (a_copy_is_written_twice, (visible,)),
        (the_parked_are_not_listed, (undecided,)),
        *only_in_soak((closing_is_forgotten, (kept, undecided))),  # It takes the most seeds.
    ],
    ids=names,
)
def test_each_break_in_the_broker_is_found(breaks, checkers, monkeypatch):
    mix = breaks(monkeypatch.setattr) or MIX

    see_it_found(run_seed, mix, checkers)
