"""A cluster read over the wire gives the same rows as the directories of its brokers."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from tests.reconcile.log_stage import ALWAYS, FLOW, Taken, order, rules_of
from tests.reconcile.whole_stage import PAYEE, PAYER, Stage
from txmq import (
    Client,
    ConsumerSettings,
    LocalTransactionState,
    Message,
    PushConsumer,
    StartFrom,
    TransactionListener,
    TransactionProducer,
)
from txmq.errors import ReconcileRefused
from txmq.reconcile.log import cluster_log
from txmq.reconcile.log.cluster_log import number_brokers
from txmq.reconcile.rules import DayWindow, Flow
from txmq.settings.units import Duration
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, CheckBackSettings
from txmq_broker.testing import settings_for_test

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)
SOON = CheckBackSettings(timeout=Duration(0.2), check_interval=Duration(0.1), check_max=1)
NEVER = CheckBackSettings(timeout=Duration(600), check_interval=Duration(600))
BITS = {"position": 48, "queue": 16}


class Payer(TransactionListener):
    """The tag says what becomes of a message."""

    async def execute_local_transaction(self, message, arg):
        return {"yes": COMMIT, "no": ROLLBACK}.get(message.tags, UNKNOWN)

    async def check_local_transaction(self, message):
        return UNKNOWN


class Cluster:
    """Two brokers, whose directories are `a` and `b`, and a client."""

    def __init__(self, directory, checks=NEVER):
        self.directory, self.checks = directory, checks
        self.stack, self.running = AsyncExitStack(), {}

    async def __aenter__(self):
        await self.start("a")
        self.names = self.running["a"].names
        await self.start("b", names=self.names)
        self.client = await self.stack.enter_async_context(Client(self.names))
        self.admin = self.client.admin
        await self.admin.create_topic("Transfers", 2)
        await self.admin.create_group("ccb")
        self.producer = await self.stack.enter_async_context(
            TransactionProducer("payers", self.client, Payer())
        )
        return self

    async def __aexit__(self, *ending):
        await self.stack.aclose()
        for broker in self.running.values():
            await broker.__aexit__(*ending)

    async def start(self, name, **settings):
        base = BrokerSettings(name=f"broker-{name}", transaction=self.checks)
        base = replace(settings_for_test(str(self.directory / name), base), **settings)
        self.running[name] = await Broker(base).__aenter__()

    async def stop(self, name):
        await self.running.pop(name).__aexit__(None, None, None)

    async def transfer(self, key, tags, **more):
        message = Message(topic="Transfers", body=order(key, **more), tags=tags, keys=(key,))
        return await self.producer.send_in_transaction(message)

    async def send(self, key, body=None, **more):
        body = order(key) if body is None else body
        await self.producer.send(Message(topic="Transfers", body=body, keys=(key,), **more))

    def rules(self, *flows, **log):
        rules = rules_of("", *flows)
        return replace(rules, log=replace(rules.log, directory="", **log))

    async def taken(self, *flows, **how):
        """What is read over the wire."""
        rules = self.rules(*flows, cluster=self.names)
        return await asyncio.to_thread(Taken, rules, **how)

    def taken_from_files(self, **how):
        """What is read from the directories; their offsets are saved when the brokers stop."""
        rules = self.rules(directories=tuple(str(self.directory / name) for name in "ab"))
        return Taken(rules, **how)


def on_cluster(checks=NEVER, kind=Cluster, **how):
    """Run a coroutine with a cluster, and give it to the test's second half, which it returns."""

    def decorate(scenario):
        def test(tmp_path, monkeypatch):
            async def play():
                async with kind(tmp_path, checks, **how) as cluster:
                    return cluster, await scenario(cluster, monkeypatch)

            cluster, verify = asyncio.run(play())
            if verify is not None:
                verify(cluster)

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return decorate


def rows(found, *without):
    """Rows without the numbers of their brokers, in any order."""
    return sorted(
        (
            {
                name: value % (1 << BITS[name]) if name in BITS else value
                for name, value in row.items()
                if name not in without
            }
            for row in found
        ),
        key=str,
    )


async def a_day(cluster):
    """Messages with every possible outcome."""
    for number in range(20):
        more = {"amount": 100 + number, "payer": PAYER, "payee": PAYEE}
        await cluster.transfer(f"{number}", ("yes", "no")[number % 2], **more)
    await cluster.transfer("open", "never")
    for number in range(8):
        await cluster.send(f"p{number}", tags="bad" if number == 5 else "")
    await cluster.send("unreadable", b"\xff{")
    await cluster.send("later", deliver_after=3600)
    settings = ConsumerSettings(start=StartFrom.FIRST, attempts_max=1, commit_interval=0.1)
    consumer, handled = PushConsumer("ccb", cluster.client, settings), []

    @consumer.on("Transfers")
    async def credit(message):
        handled.append(message)
        if message.tags == "bad":
            raise ValueError("no such account")

    async with consumer:
        while len(handled) < 19:
            await asyncio.sleep(0.01)


@on_cluster(SOON)
async def test_a_cluster_has_the_same_rows_over_the_wire_as_in_its_files(cluster, monkeypatch):
    monkeypatch.setattr(cluster_log, "RECORDS_A_FILE", 3)
    await a_day(cluster)
    while not await cluster.admin.transactions(state="parked"):
        await asyncio.sleep(0.01)
    forced = await cluster.transfer("forced", "never")
    why = {"operator": "ann", "reason": "the customer\ncalled"}
    await cluster.admin.decide_transaction(forced.xid, "rollback", **why)
    wire = await cluster.taken()

    def verify(cluster):
        files = cluster.taken_from_files()
        assert len(wire.messages) == 32
        assert {row["position"] >> 48 for row in wire.messages} == set(
            number_brokers(["broker-a", "broker-b"]).values()
        )
        assert rows(wire.messages) == rows(files.messages)
        assert rows(wire.failures) == rows(files.failures) != []
        ours = [row for row in files.offsets if row["topic"] == "Transfers"]
        assert rows(wire.offsets) == rows(ours) != []
        assert (wire.log.snapshot, wire.log.notes) == ("broker-a, broker-b", ())

    return verify


@on_cluster()
async def test_a_broker_without_decision_records_gives_the_same_states(cluster, monkeypatch):
    """Apache RocketMQ keeps a part of what our broker shows."""

    async def no(planner, queue):
        return False

    monkeypatch.setattr(cluster_log._Planner, "_is_txmq", no)
    await a_day(cluster)
    wire = await cluster.taken()

    def verify(cluster):
        files = cluster.taken_from_files()
        kept = [row for row in files.messages if row["key"] != "icbc/later"]
        unknown = ("decided_by", "reason", "decided_ms")
        assert rows(wire.messages, *unknown) == rows(kept, *unknown)
        assert {row["decided_by"] for row in wire.messages} == {None}
        assert rows(wire.failures) == rows(files.failures)
        assert len(wire.log.notes) == 2
        assert wire.log.notes[0].startswith("broker-a does not keep who decided")

    return verify


@on_cluster()
async def test_decisions_made_on_the_next_day_are_the_same_over_the_wire(cluster, monkeypatch):
    monkeypatch.setattr(cluster_log, "_MARGIN_MS", 0)
    clock = cluster.client.session.clock
    open_ = [await cluster.transfer(key, "never") for key in ("1", "2", "3")]
    await asyncio.sleep(0.01)
    midnight = clock.wall_ms()
    await asyncio.sleep(0.01)
    for outcome, decision in zip(open_, ("commit", "rollback"), strict=False):
        why = {"operator": "ann", "reason": "the books"}
        await cluster.admin.decide_transaction(outcome.xid, decision, **why)
    days = DayWindow(0, midnight), DayWindow(midnight, 1 << 60)
    wire = [await cluster.taken(window=day) for day in days]
    monkeypatch.setattr(cluster_log._Planner, "_is_txmq", lambda *_: asyncio.sleep(0, result=False))
    marks = await cluster.taken(window=days[1])

    def verify(cluster):
        files = [cluster.taken_from_files(window=day) for day in days]
        assert wire[1].states() == {"1": "committed", "2": "rolled_back"}
        assert marks.states() == wire[1].states()
        assert rows(wire[1].messages) == rows(files[1].messages)
        # On the first day the decisions are masked later; the rows are the same ones.
        places = [{row["key"]: row["position"] for row in taken.messages} for taken in wire]
        assert places[0].items() >= places[1].items()
        assert len(places[0]) == 3

    return verify


def restart_when_read(cluster, monkeypatch, name="b"):
    """Restart a broker when the reading of its records begins; the result has the restart."""
    address = cluster.running[name].address
    reader, loop, restarts = cluster_log._ClusterReader, asyncio.get_running_loop(), []
    real = reader.fetch

    async def restart():
        if not restarts:
            restarts.append(asyncio.ensure_future(start_again()))

    async def start_again():
        await cluster.stop(name)
        await asyncio.sleep(0.3)
        await cluster.start(name, names=cluster.names, listen=address)

    async def fetch(reading, path, wanted, limit):
        if wanted.queue.broker == f"broker-{name}":
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(restart(), loop))
        await real(reading, path, wanted, limit)

    monkeypatch.setattr(reader, "fetch", fetch)
    return restarts


@on_cluster()
async def test_a_broker_may_restart_while_it_is_read(cluster, monkeypatch):
    await a_day(cluster)
    restarts = restart_when_read(cluster, monkeypatch)
    wire = await cluster.taken()
    await restarts[0]

    def verify(cluster):
        assert rows(wire.messages) == rows(cluster.taken_from_files().messages)

    return verify


@on_cluster()
async def test_an_unknown_topic_or_group_of_the_cluster_is_refused(cluster, monkeypatch):
    typo = Flow(topic="Transfer", namespace="icbc", group="ccb")
    with pytest.raises(ReconcileRefused, match="no topic 'Transfer'; did you mean Transfers"):
        await cluster.taken(typo)
    stranger = Flow(topic="Transfers", namespace="icbc", group="zzz")
    with pytest.raises(ReconcileRefused, match="no group 'zzz'; list all of them with: txmq group"):
        await cluster.taken(stranger)


@on_cluster()
async def test_a_broker_that_has_deleted_records_of_the_day_is_refused(cluster, monkeypatch):
    await a_day(cluster)

    async def stats(admin, broker):
        return {"earliestMessageTimeStamp": "5000"}

    async def low(admin, queue):
        return 1

    monkeypatch.setattr(cluster_log.Admin, "broker_stats", stats)
    window = DayWindow(4000, ALWAYS.end_ms)
    assert (await cluster.taken(window=window)).messages  # Nothing was ever deleted.
    monkeypatch.setattr(cluster_log.Admin, "min_offset", low)
    with pytest.raises(ReconcileRefused, match="broker-a begins too late: its first record"):
        await cluster.taken(window=window)


def test_new_brokers_leave_the_numbers_of_existing_brokers():
    names = [f"broker-{number}" for number in range(200)]
    before, after = number_brokers(names[:100]), number_brokers(names)

    assert len(set(after.values())) == 200
    assert sum(before[name] != after[name] for name in before) <= 1


@pytest.mark.timeout(600)
def test_a_day_has_the_same_result_over_the_wire_as_from_files(tmp_path, spark):
    """Spark's workers read the ranges; the classes, sums and proofs are those of the files."""
    stage = Stage.set_up(tmp_path / "stage")

    def run(brokers, kind, **log):
        rules = brokers.rules(FLOW, **log)
        rules = replace(stage.rules, log=rules.log, directory=str(tmp_path / kind), recon=None)
        day = rules.day.of(brokers.client.session.clock.wall_ms())
        return stage.run(spark, day, rules=rules).result

    async def over_the_wire():
        async with Cluster(tmp_path) as cluster:
            await a_day(cluster)
            now_ms = cluster.client.session.clock.wall_ms()
            for number in range(0, 20, 2):
                stage.debit(f"{number}", 100 + number, now_ms)
                if number != 6:
                    stage.credit(f"{number}", 100 + number, now_ms)
            found = await asyncio.to_thread(run, cluster, "wire", cluster=cluster.names)
            return cluster, found

    cluster, wire = asyncio.run(over_the_wire())
    files = run(cluster, "files", directories=(str(tmp_path / "a"), str(tmp_path / "b")))

    assert sum(total.transfers for total in wire.totals) == 31
    assert {total.class_: total.transfers for total in wire.totals}["matched"] == 9
    assert wire.totals == files.totals
    assert wire.proofs == files.proofs
    assert wire.verdict == files.verdict
