"""Producers of transactions and a real broker, in a simulated world where minutes take no time.

The broker's settings are those of the seeds: asked after 20 s, then every 10 s, 5 times at most.
"""

import asyncio
import inspect
from dataclasses import dataclass
from functools import partial

import pytest

from tests.unit.transaction.producing_stage import (
    COMMIT,
    GROUP,
    ROLLBACK,
    STEADY,
    TOPIC,
    UNKNOWN,
    Bank,
    message,
)
from txmq.client.client import Client
from txmq.errors import TopicNotFound, TransactionConflict, TransportError
from txmq.settings.units import Duration
from txmq.testing import World
from txmq.transaction import TransactionProducer, TransactionState
from txmq.transaction import TransactionSettings as Settings
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, CheckBackSettings

COMMITTED, ROLLED_BACK, NOT_KNOWN = TransactionState
SEEDS = CheckBackSettings(timeout=Duration(20), check_interval=Duration(10), check_max=5)


@dataclass
class Stage:
    world: World
    broker: Broker
    admin: object

    def producer(self, bank, machine="icbc", group=GROUP, **settings):
        on = self.world.machine(machine)
        ports = {"network": on.network, "clock": on.clock, "entropy": on.entropy}
        return TransactionProducer(group, self.broker.names, bank, Settings(**settings), **ports)

    async def visible(self):
        """The bodies of all messages that can be seen."""
        found = []
        try:
            queues = (await self.admin.route(TOPIC)).readable
        except TopicNotFound:
            return found
        for queue in queues:
            pulled = await self.admin.pull(queue, 0)
            found += [record.body for record in pulled.messages]
        return sorted(found)

    async def open(self):
        return [
            (transaction.id, transaction.state) for transaction in await self.admin.transactions()
        ]


def in_world(scenario):
    """Make a test of an async function of a :class:`Stage`."""

    def test():
        with World(1, conditions=STEADY) as world:
            world.run(on_stage(world), timeout=3600.0)

    async def on_stage(world):
        server, desk = world.machine("server"), world.machine("desk")
        settings = BrokerSettings(
            name="broker-a",
            listen=f"{server.address}:10911",
            names_listen=f"{server.address}:9876",
            transaction=SEEDS,
        )
        ports = {"clock": server.clock, "network": server.network, "entropy": server.entropy}
        async with (
            Broker(settings, disk=server.disk, **ports) as broker,
            Client(broker.names, None, desk.network, desk.clock, desk.entropy) as client,
        ):
            await scenario(Stage(world, broker, client.admin))

    test.__name__, test.__doc__ = scenario.__name__, inspect.getdoc(scenario)
    return test


class ICBC(Bank):
    """The seeds' listener: the tag says what becomes of a message, and a check commits."""

    async def execute_local_transaction(self, message, arg):
        self.executed.append((message, arg))
        return {"TAGA": COMMIT, "TAGB": ROLLBACK}.get(message.tags, UNKNOWN)


@in_world
async def test_stock_commit_rollback_and_unknown_transactions_end_as_expected(stage):
    bank = ICBC()
    async with stage.producer(bank) as producer:
        outcomes = [
            await producer.send_in_transaction(message(tags.encode(), tags=tags))
            for tags in ("TAGA", "TAGB", "TAGC")
        ]
        assert [transaction.state for transaction in outcomes] == [
            COMMITTED,
            ROLLED_BACK,
            NOT_KNOWN,
        ]
        assert [transaction.is_acknowledged for transaction in outcomes] == [True, True, False]
        assert await stage.visible() == [b"TAGA"]
        assert await stage.open() == [(outcomes[2].xid, "prepared")]
        await asyncio.sleep(21)

        assert await stage.visible() == [b"TAGA", b"TAGC"]
        assert [transaction.id for transaction in bank.checked] == [outcomes[2].xid]
        assert await stage.open() == []
        await asyncio.sleep(120)
    assert len(bank.checked) == 1
    found = await stage.admin.find(TOPIC, outcomes[0].xid)
    assert (found.id, found.queue) == (outcomes[0].message_id, outcomes[0].queue)


@in_world
async def test_a_message_can_set_the_delay_of_its_first_check(stage):
    bank = Bank(says=UNKNOWN)
    async with stage.producer(bank) as producer:
        late = message(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
        await producer.send_in_transaction(late)
        await asyncio.sleep(55)
        assert bank.checked == []
        await asyncio.sleep(10)
        assert len(bank.checked) == 1


@in_world
async def test_repeated_ends_change_nothing_and_a_contradicting_one_is_refused(stage):
    async with stage.producer(Bank()) as producer:
        half = await producer.prepare(message(b"once"))
        outcomes = [await producer.decide(half, COMMIT) for _ in range(3)]
        assert all(outcome.is_acknowledged for outcome in outcomes)
        with pytest.raises(
            TransactionConflict, match="was committed before the producer sent ROLLBACK"
        ):
            await producer.decide(half, ROLLBACK)
        assert await stage.visible() == [b"once"]

        other = await producer.prepare(message(b"never"))
        assert (await producer.decide(other, ROLLBACK)).is_acknowledged
        with pytest.raises(
            TransactionConflict, match="was rolled back before the producer sent COMMIT"
        ):
            await producer.decide(other, COMMIT)
        assert await stage.visible() == [b"once"]


@pytest.mark.fault("P7", "N2")
@in_world
async def test_a_lost_answer_to_a_commit_leaves_one_message(stage):
    bank = Bank()

    async def cut_soon():
        # After the request has arrived, before its answer has: both take a millisecond or less.
        stage.world.network.partition("server", "icbc", one_way=True)
        return COMMIT

    bank.says = cut_soon
    async with stage.producer(bank, repeats_end=True) as producer:
        outcome = await producer.send_in_transaction(message(b"once"))
        assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
        stage.world.network.heal()
        await asyncio.sleep(60)
        assert await stage.visible() == [b"once"]
        assert bank.checked == []


@in_world
async def test_a_lost_commit_is_recovered_by_a_check(stage):
    bank = Bank()

    async def cut():
        stage.world.network.partition("icbc", "server")
        return COMMIT

    bank.says = cut
    async with stage.producer(bank) as producer:
        outcome = await producer.send_in_transaction(message(b"late"))
        assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
        assert await stage.visible() == []
        stage.world.network.cut("icbc", "server")  # Data in flight is lost.
        stage.world.network.heal()
        await asyncio.sleep(60)
        assert await stage.visible() == [b"late"]
        assert [half.id for half in bank.checked] == [outcome.xid]


@pytest.mark.fault("P2", "N2")
@in_world
async def test_a_half_whose_answer_is_lost_is_rolled_back_by_a_check(stage):
    bank = Bank(says_of_checks=ROLLBACK)
    async with stage.producer(bank) as producer:
        await stage.admin.create_topic(TOPIC, queues=2)
        await producer.send(message(b"first"))  # The route is known, and the connection open.
        stage.world.network.partition("server", "icbc", one_way=True)
        with pytest.raises(TransportError) as lost:
            await producer.send_in_transaction(message(b"doubtful"))
        stage.world.network.heal()
        assert bank.executed == []
        ((xid, _),) = await stage.open()
        assert xid in lost.value.__notes__[0]
        await asyncio.sleep(60)
        assert [half.id for half in bank.checked] == [xid]
        assert await stage.open() == []
        assert await stage.visible() == [b"first"]


@pytest.mark.fault("P6")
@in_world
async def test_another_member_of_the_group_answers_checks_for_a_process_that_died(stage):
    """The local transaction has committed, and the process ends before its END."""
    dying, heir = Bank(says=lambda: asyncio.sleep(3600, COMMIT)), Bank()
    machine = stage.world.machine("icbc")

    async def transfer():
        async with stage.producer(dying) as producer:
            await producer.send_in_transaction(message(b"inherited"))

    machine.run(transfer())
    while not dying.executed:
        await asyncio.sleep(0.01)
    machine.crash()
    async with stage.producer(heir, "icbc-2"):
        await asyncio.sleep(90)
        assert [half.body for half in heir.checked] == [b"inherited"]
        assert dying.checked == []
    assert await stage.visible() == [b"inherited"]


@in_world
async def test_a_process_that_restarts_answers_its_own_checks(stage):
    bank = Bank(says=lambda: asyncio.sleep(3600, COMMIT))
    machine = stage.world.machine("icbc")

    async def transfer():
        async with stage.producer(bank) as producer:
            await producer.send_in_transaction(message(b"late"))

    machine.run(transfer())
    while not bank.executed:
        await asyncio.sleep(0.01)
    machine.crash()
    await asyncio.sleep(600)
    assert [state for _, state in await stage.open()] == ["prepared"]
    machine.restart()
    async with stage.producer(bank):
        await asyncio.sleep(30)
    assert await stage.visible() == [b"late"]


@pytest.mark.fault("M8")
@in_world
async def test_a_transaction_whose_handler_hangs_is_parked_and_blocks_no_others(stage):
    bank = Bank(says=UNKNOWN)

    async def check():
        if bank.checked[-1].body == b"hangs":
            await asyncio.sleep(3600)
        return COMMIT

    bank.says_of_checks = check
    async with stage.producer(bank, check_workers=1, check_timeout=5.0) as producer:
        hanging = await producer.send_in_transaction(message(b"hangs"))
        await producer.send_in_transaction(message(b"works"))
        await asyncio.sleep(120)
        assert await stage.visible() == [b"works"]
        assert await stage.open() == [(hanging.xid, "parked")]
        assert producer.tally.checks_hung == 5
        # An operator can still have it checked.
        await stage.admin.recheck_transaction(hanging.xid)
        bank.says_of_checks = ROLLBACK
        await asyncio.sleep(30)
        assert await stage.open() == []
        assert await stage.visible() == [b"works"]


@pytest.mark.fault("M9")
@in_world
async def test_of_two_contradicting_answers_the_first_counts(stage):
    """Two members of a group have different knowledge, and the one that is asked first is slow."""
    one = Bank(says_of_checks=lambda: asyncio.sleep(15.0, COMMIT))
    other = Bank(says_of_checks=ROLLBACK)
    async with (
        stage.producer(one, check_timeout=60.0) as first,
        stage.producer(other, "icbc-2") as second,
    ):
        half = await first.prepare(message(b"odd"))
        await asyncio.sleep(33)
        assert (len(one.checked), len(other.checked)) == (1, 1)
        assert await stage.open() == []
        assert stage.broker.transactions.tally.conflicts == 0
        await asyncio.sleep(60)
        assert stage.broker.transactions.tally.conflicts == 1
        assert (first.tally.conflicts, second.tally.conflicts) == (1, 0)
        with pytest.raises(TransactionConflict, match="was rolled back"):
            await first.decide(half, COMMIT)
    assert await stage.visible() == []


@in_world
async def test_concurrent_transactions_are_each_delivered_once(stage):
    async def local():
        await asyncio.sleep(0.01)
        return COMMIT

    async with stage.producer(Bank(says=local)) as producer:
        transact = partial(producer.send_in_transaction)
        outcomes = await asyncio.gather(*[transact(message(b"%03d" % n)) for n in range(100)])
        assert {outcome.state for outcome in outcomes} == {COMMITTED}
        assert len({outcome.half_offset for outcome in outcomes}) == 100
        assert producer.tally.committed == 100
    assert await stage.visible() == [b"%03d" % n for n in range(100)]
