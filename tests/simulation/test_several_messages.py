"""Transactions with several messages at two brokers, under kills and power cuts: all messages of
one become visible, or none does, as its database says. Some of them ask for a delay.
"""

import asyncio
from contextlib import suppress
from functools import partial
from itertools import count as numbers

import pytest

from tests.simulation.history import History
from tests.simulation.mix import Mix, TransactionMix
from tests.simulation.node import BrokerNode, NamesNode
from tests.soak import count
from txmq import Client, ManagerSettings, Message, TransactionManager
from txmq.errors import RollBack, RolledBackByCheck, TopicNotFound, TxmqError
from txmq.message import ReceivedMessage
from txmq.testing import Loss, MachineCrashedError, World
from txmq.transaction import LocalTransactionState
from txmq_broker.core.schedule import Schedule
from txmq_broker.core.transactions import Transactions

SEEDS = count(6, 500)
BROKEN_SEEDS = 10
TOPICS = ("Transfer", "Audit")
MIX = Mix(transactions=TransactionMix(timeout_s=0.5, interval_s=0.5, check_max=15))
UNCHECKED = MIX.but(transactions=TransactionMix(timeout_s=3600.0, interval_s=3600.0, check_max=15))
CHAOS_S = 12.0
CALM_S = 30.0
COMMIT, ROLLBACK, _ = LocalTransactionState


class Fence:
    """The rows of a database that survives every crash, and the resource of those who use it."""

    is_blocking = False
    identity = "database"
    has_second_phase = False

    def __init__(self, chance):
        self.rows = {}
        self._chance = chance

    async def pause(self):
        await asyncio.sleep(0.2 * self._chance.fraction())

    async def verify(self):
        await self.pause()

    def local(self, xid, _group, _born_ms):
        return LocalWork(self, xid)

    async def check(self, xid, _group, _born_ms, **_):
        await self.pause()
        return self.rows.setdefault(xid, ROLLBACK)

    def may_retry(self, _problem):
        return False

    async def attend(self):
        await asyncio.Event().wait()


class LocalWork:
    """A local transaction: its row is inserted with its commit."""

    def __init__(self, fence, xid):
        self._fence, self._xid = fence, xid
        self.state = ROLLBACK

    async def __aenter__(self):
        await self._fence.pause()

    async def __aexit__(self, kind, problem, trace):
        await self._fence.pause()
        if kind is None:
            if self._fence.rows.setdefault(self._xid, COMMIT) is ROLLBACK:
                raise RolledBackByCheck(self._xid)
            self.state = COMMIT

    async def aflush(self):
        await self._fence.pause()


class Stage:
    """Two brokers and a producer that die, and what consumers could see."""

    def __init__(self, world, mix, *, has_trouble):
        self.mix = mix
        self.has_trouble = has_trouble
        self.world, self.chance = world, world.entropy.fork("stage")
        self.names = NamesNode(world, "names")
        self.brokers = [
            BrokerNode(world, name, self._settings(name), History(world.trace))
            for name in ("broker-a", "broker-b")
        ]
        self.bank = world.machine("bank")
        self.fence = Fence(world.entropy.fork("fence"))
        self.numbers = numbers()
        self.is_calm = False
        self.outcomes = {}

    def _settings(self, name):
        return lambda machine: self.mix.settings(name, machine.address, self.names.address)

    async def live(self):
        for node in (self.names, *self.brokers):
            node.start()
        outside = self.world.machine("outside")
        async with Client(
            self.names.address, network=outside.network, clock=outside.clock,
            entropy=outside.entropy,
        ) as client:  # fmt: skip
            await self._create_topics(client)
            producing = asyncio.create_task(self._produce())
            await self._trouble()
            self.is_calm = True
            await producing
            await asyncio.sleep(CALM_S)
            left = await patiently(client.admin.transactions)
            assert not left, "transactions are left open"
            seen = await patiently(lambda: self._seen(client))
        for node in (*self.brokers, self.names):
            await node.stop()
        self._judge(seen)

    async def _create_topics(self, client):
        for topic in TOPICS:
            for broker in self.brokers:
                create = partial(client.admin.create_topic, topic, queues=2, broker=broker.name)
                await patiently(create)

    async def _produce(self):
        while not self.is_calm:
            with suppress(MachineCrashedError):
                await self.bank.run(self._transfer())
        # One that stays: it answers what the dead ones left.
        await self.bank.run(self._transfer(CALM_S))

    async def _transfer(self, stays_s=0.0):
        settings = ManagerSettings(timeout=2.0, end_timeout=1.0, stop_timeout=1.0)
        async with TransactionManager(
            "icbc", self.names.address, self.fence, settings, network=self.bank.network,
            clock=self.bank.clock, entropy=self.bank.entropy,
        ) as tm:  # fmt: skip
            while not self.is_calm:
                await asyncio.gather(*(self._transact(tm) for _ in range(3)))
            await asyncio.sleep(stays_s)

    async def _transact(self, tm):
        number, chance = next(self.numbers), self.chance
        messages = [self._message(number, place) for place in range(1 + chance.below(4))]
        early = 1 + chance.below(len(messages))
        with suppress(TxmqError, RollBack):
            async with tm.transaction(*messages[:early]) as transaction:
                self.outcomes[transaction.xid] = (number, len(messages))
                await self.fence.pause()
                for message in messages[early:]:
                    transaction.add(message)
                if chance.chance(0.2):
                    raise RollBack("too little money")
        await self.fence.pause()

    def _message(self, number, place):
        topic = TOPICS[self.chance.below(len(TOPICS))]
        after_s = 1 + self.chance.below(5) if self.chance.chance(0.3) else None
        return Message(topic=topic, body=b"%d %d" % (number, place), deliver_after=after_s)

    async def _trouble(self):
        chance, until = self.chance, self.world.now() + CHAOS_S
        while self.world.now() < until:
            await asyncio.sleep(chance.fraction())
            if not self.has_trouble:
                continue
            node = self.brokers[chance.below(2)]
            match chance.below(3):
                case 0:
                    self.bank.kill()
                    continue
                case 1:
                    await node.kill()
                case 2:
                    await node.crash(Loss.ANY)
            await asyncio.sleep(chance.fraction())
            node.start()

    async def _seen(self, client):
        """How often each message can be consumed."""
        found = {}
        for topic in TOPICS:
            with suppress(TopicNotFound):
                for queue in (await client.admin.route(topic)).readable:
                    offset = 0
                    while (pulled := await client.admin.pull(queue, offset)).messages:
                        for message in pulled.messages:
                            found.setdefault(message.xid, []).append(message.body)
                        offset = pulled.next_offset
        return found

    def _judge(self, seen):
        for xid, bodies in seen.items():
            assert len(set(bodies)) == len(bodies), "a message is visible twice"
            assert self.fence.rows.get(xid) is COMMIT, "a message without its database transaction"
        for xid, (number, expected) in self.outcomes.items():
            if self.fence.rows.get(xid) is COMMIT:
                wanted = [b"%d %d" % (number, place) for place in range(expected)]
                assert sorted(seen.get(xid, [])) == wanted, "messages of a transaction are missing"


async def patiently(ask):
    """Ask until there is an answer: a connection may lead to an earlier life of a broker."""
    async with asyncio.timeout(60):
        while True:
            with suppress(TxmqError):
                return await ask()
            await asyncio.sleep(0.1)


def run(seed, *, mix=MIX, has_trouble=True):
    with World(seed) as world:
        stage = Stage(world, mix, has_trouble=has_trouble)
        world.run(stage.live())
    return stage


@pytest.mark.fault("M1", "S4")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_messages_of_a_transaction_are_visible_or_none_is(seed):
    stage = run(seed)

    assert COMMIT in stage.fence.rows.values()
    assert sum(expected > 1 for _, expected in stage.outcomes.values()) > 10


def test_a_seed_has_transactions_that_only_a_check_decided():
    assert set(run(0).fence.rows.values()) == {COMMIT, ROLLBACK}


def _checked_alone(self):
    """A check of a message asks for a transaction of its own."""
    return self.id


def _decides_the_first(self, header):
    """A broker forgets the other half messages, and says that it decided them."""
    return [self.find(header), self.find(header)]


def is_found(complaint):
    for seed in range(BROKEN_SEEDS):
        try:
            run(seed)
        except AssertionError as error:
            if complaint in str(error):
                return True
            raise
    return False


def test_checks_that_name_each_message_alone_are_found(monkeypatch):
    monkeypatch.setattr(ReceivedMessage, "xid", property(_checked_alone))

    assert is_found("without its database transaction") or is_found("are missing")


def test_a_commit_that_forgets_a_message_that_asks_for_a_delay_is_found(monkeypatch):
    monkeypatch.setattr(Schedule, "put_committed", lambda *_: True)

    with pytest.raises(AssertionError, match="are missing"):
        run(0, mix=UNCHECKED, has_trouble=False)


def test_a_decision_that_covers_only_the_first_message_leaves_the_others_open(monkeypatch):
    run(0, mix=UNCHECKED, has_trouble=False)

    monkeypatch.setattr(Transactions, "find_all", _decides_the_first)
    with pytest.raises(AssertionError, match="transactions are left open"):
        run(0, mix=UNCHECKED, has_trouble=False)
