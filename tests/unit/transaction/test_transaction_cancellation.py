"""Producers of transactions that are cancelled wherever they wait leave nothing behind."""

import asyncio

import pytest

from tests.faults.cancelling import cancelled_everywhere
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.transaction.producing_stage import (
    COMMIT,
    GROUP,
    TOPIC,
    UNKNOWN,
    Bank,
    Stage,
    message,
    silent,
    staged,
)
from txmq.client.client import Client
from txmq.errors import OutcomeUnknown, UsageError
from txmq.protocol import command
from txmq.transaction import TransactionProducer, TransactionSettings, TransactionState


async def local():
    await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    return COMMIT


def on_stage(scene):
    async def scenario(world, attempt):
        server, machine = world.machine("server"), world.machine("one")
        async with FakeCluster(server.network, server.clock, host=server.address) as cluster:
            cluster.add_topic(TOPIC, 2)
            network = attempt.watch(machine.network)
            client = Client(cluster.names, None, network, machine.clock, machine.entropy)
            await scene(Stage(world, cluster, None, Bank(local, local)), client, attempt)

    return scenario


@pytest.mark.fault("N12")
@pytest.mark.parametrize("again_after", [None, 1, 3])
def test_a_transaction_producer_cancelled_anywhere_leaves_nothing_behind(again_after):
    async def scene(stage, client, attempt):
        async def use():
            settings = TransactionSettings(check_timeout=0.015)
            stage.producer = TransactionProducer(GROUP, client, stage.bank, settings)
            async with client, stage.producer as producer:
                await producer.send_in_transaction(message())
                stage.ask(await stage.half())
                await stage.until(lambda: len(stage.ends) == 2)

        await attempt.run(use(), within_s=4.0)
        assert client.producer(GROUP) is None
        assert not client.is_open

    assert cancelled_everywhere(on_stage(scene), again_after=again_after) > 10


@pytest.mark.fault("N12")
def test_a_decision_is_sent_even_if_its_caller_is_cancelled():
    async def scene(stage, client, attempt):
        async with client, TransactionProducer(GROUP, client, stage.bank) as producer:
            said = []

            async def decided():
                said.append(await local())
                return said[-1]

            stage.bank.says = decided
            await attempt.run(producer.send_in_transaction(message()), within_s=4.0)
            assert stage.said == said

    stays = ["heartbeats", "route refresh"]
    assert cancelled_everywhere(on_stage(scene), stays=stays) >= 5


@staged(bank={"says": lambda: asyncio.sleep(3600, COMMIT)})
async def test_cancelling_a_local_transaction_sends_no_decision(stage):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await stage.producer.send_in_transaction(message())

    assert len(stage.bank.executed) == 1
    assert stage.ends == []


@staged(bank={"says_of_checks": UNKNOWN})
async def test_a_producer_that_is_closed_twice_leaves_its_group_once(stage):
    await stage.half()
    for _ in range(2):
        await stage.producer.__aexit__(None, None, None)

    assert len(stage.cluster.codes("UNREGISTER_CLIENT")) == 1
    with pytest.raises(UsageError):
        await stage.half()


def test_a_conflict_after_the_caller_was_cancelled_is_counted_and_logged(caplog):
    @staged()
    async def scenario(stage):
        def later(request):
            asyncio.get_running_loop().call_later(1, answer, request)

        def answer(request):
            connection = stage.broker.connection
            connection.send(command.answer(request, 201, remark="because"))

        stage.told("end", later)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await stage.producer.send_in_transaction(message())
        await stage.until(lambda: stage.producer.tally.conflicts)

    scenario()
    assert "was rolled back before the producer sent COMMIT" in caplog.text


@staged(stop_timeout=2.0, end_timeout=60.0)
async def test_closing_returns_an_unacknowledged_outcome_for_an_unanswered_end(stage):
    stage.told("end", silent)
    sending = asyncio.create_task(stage.producer.send_in_transaction(message()))
    await stage.until(lambda: stage.ends)
    await stage.producer.__aexit__(None, None, None)

    outcome = await sending

    assert outcome.state is TransactionState.COMMITTED
    assert not outcome.is_acknowledged
    assert "closed before" in str(outcome.problem)


@pytest.mark.parametrize("reply", [0, 204])
def test_a_cancelled_transaction_counts_as_undecided_until_the_broker_answers(reply):
    @staged()
    async def scenario(stage):
        stage.told("end", lambda request: answer_after(1.0, stage, request, reply))
        context = stage.producer._context
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await stage.producer.send_in_transaction(message())
        assert list(context.undecided.values()) == [1]

        await stage.until(context.idle.is_set)

        assert context.undecided == {}
        assert stage.producer.tally.committed == 1

    scenario()


def answer_after(delay_s, stage, request, code):
    def answer():
        stage.broker.connection.send(command.answer(request, code, remark="because"))

    asyncio.get_running_loop().call_later(delay_s, answer)


@staged()
async def test_a_caller_is_released_if_the_last_steps_are_cancelled_before_they_start(stage):
    context = stage.producer._context
    start = context.tasks.start

    def cancelled(steps, name):
        task = start(steps, name)
        task.cancel()
        return task

    context.tasks.start = cancelled
    with pytest.raises(OutcomeUnknown, match="closed before"):
        await stage.producer.send_in_transaction(message())
    assert context.idle.is_set()
    assert context.undecided == {}
