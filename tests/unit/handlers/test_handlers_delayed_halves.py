"""Messages of transactions that ask for a delay: it begins with the commit."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    arrival,
    in_world,
    in_world_with_client,
    with_client,
)
from tests.unit.handlers.test_handlers_several import by_hand, end_all
from tests.unit.handlers.transaction_stage import (
    COMMIT,
    DURABLE,
    ROLLBACK,
    UNKNOWN,
    end,
    in_lives,
    in_lives_with_client,
    prepare,
    preparing,
    producer,
    quick,
)
from txmq.protocol import recall
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import NamedTransaction, RecallMessage
from txmq.protocol.operations import TransactionHistory
from txmq.protocol.recall import RecallHandle
from txmq.protocol.record import offset_id
from txmq.testing import Loss
from txmq_broker.config import DelaySettings

AFTER_10_S = [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "10"}, {"TIMER_DELAY_MS": "10000"}]
LATER = AFTER_10_S[1]


async def is_empty(client):
    return (await client.pull("T")).bodies == []


@pytest.mark.parametrize("wish", AFTER_10_S)
@run_by(in_world_with_client, topic="T")
async def test_the_delay_begins_with_the_commit(stage, client, /, wish):
    half = await prepare(client, body=b"later", TAGS="a", **wish)
    await asyncio.sleep(7)
    assert await is_empty(client)
    committed_ms = stage.clock.wall_ms()

    assert await end(client, half, COMMIT) == 0

    assert await is_empty(client)
    came = await arrival(client, "T")
    assert 10_000 <= stage.clock.wall_ms() - committed_ms < 10_200
    named = came.property_map()
    assert (came.body, named["UNIQ_KEY"], named["TAGS"]) == (b"later", "U1", "a")


@pytest.mark.parametrize("waits_s", [3, 30])
@run_by(in_world_with_client, topic="T")
async def test_a_time_of_delivery_holds_unless_the_commit_is_later(stage, client, /, waits_s):
    due_ms = stage.clock.wall_ms() + 20_000
    half = await prepare(client, TIMER_DELIVER_MS=str(due_ms))
    await asyncio.sleep(waits_s)
    expected_ms = max(due_ms, stage.clock.wall_ms())

    assert await end(client, half, COMMIT) == 0

    assert 0 <= (await arrival(client, "T")).stored_ms - expected_ms < 200
    assert stage.broker.transactions.tally.committed == 1
    assert stage.broker.topics.by_name["T"].put_count == 1


@run_by(in_world_with_client, topic="T")
async def test_a_rolled_back_message_never_waits(stage, client, /):
    half = await prepare(client, **LATER)

    assert await end(client, half, ROLLBACK) == 0

    assert len(stage.broker.store.delays) == 0
    await asyncio.sleep(20)
    assert await is_empty(client)


@run_by(in_world_with_client, topic="T")
async def test_a_repeated_end_does_not_deliver_it_twice(stage, client, /):
    half = await prepare(client, **LATER)
    for wait_s in (0, 1, 30):
        await asyncio.sleep(wait_s)
        assert await end(client, half, COMMIT) == 0

    assert (await client.pull("T")).bodies == [b"half"]
    assert stage.broker.transactions.tally.repeated == 2


@run_by(with_client, topic="T")
async def test_a_committed_message_can_be_recalled_until_it_is_due(client, /):
    half = await prepare(client, **LATER)
    await end(client, half, COMMIT)
    handle = recall.encode(RecallHandle("T", "broker-a", 0, "U1"))

    await client.ok(RequestCode.RECALL_MESSAGE, RecallMessage("T", handle))

    await asyncio.sleep(20)
    assert await is_empty(client)


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [({"TIMER_DELAY_SEC": "259205"}, "at most 259200 s"), ({"DELAY": "x"}, "a whole number")],
)
@run_by(in_world_with_client, topic="T")
async def test_an_invalid_or_too_long_delay_is_refused(stage, client, /, wish, complaint):
    answer = await client.ask(RequestCode.SEND_MESSAGE, preparing(**wish), body=b"half")

    assert (answer.code, complaint in answer.remark) == (13, True)
    assert len(stage.broker.transactions.halves.pending) == 0


@run_by(in_world_with_client, topic="T")
async def test_a_shorter_limit_of_delays_does_not_stop_a_commit(stage, client, /):
    half = await prepare(client, TIMER_DELAY_SEC="3600")
    stage.broker.schedule.adopt(DelaySettings(longest=60.0))

    assert await end(client, half, COMMIT) == 0

    assert len(stage.broker.store.delays) == 1


@run_by(in_world_with_client, topic="T")
async def test_its_history_is_found_from_the_delivered_message(stage, client, /):
    half = await prepare(client, **LATER)
    await end(client, half, COMMIT)
    came = await arrival(client, "T")
    place = offset_id(came.store_host, came.position)
    stage.broker.store.halves.recent.clear()

    answer = await client.ok(RequestCode.SHOW_TRANSACTION_HISTORY, NamedTransaction(place))

    history = TransactionHistory.read(answer.field_map()["history"].encode())
    assert (history.transaction.transaction_id, history.transaction.state) == ("U1", "committed")


@run_by(in_world, quick())
async def test_an_operator_commits_a_parked_one(stage, /):
    client = await producer(stage, topic="T")
    half = await prepare(client, **LATER)
    for _ in range(3):
        await client.heard(RequestCode.CHECK_TRANSACTION_STATE)
        await end(client, half, UNKNOWN, is_check=True)
    await stage.passes(5)
    assert stage.broker.transactions.halves.pending.parked == 1

    await client.ok(RequestCode.DECIDE_TRANSACTION, by_hand("U1", "commit"))

    assert await is_empty(client)
    assert (await arrival(client, "T")).body == b"half"


@pytest.mark.fault("S4")
@pytest.mark.parametrize("is_late", [False, True])
@run_by(in_lives, DURABLE)
async def test_a_power_cut_leaves_a_delayed_and_a_plain_one_both_committed_or_both_open(
    life, /, is_late
):
    client = await life.client(topic="T")
    halves = [
        await prepare(client, "T", "X", b"now"),
        await prepare(client, "T", "X.1", b"later", TXMQ_XID="X", **LATER),
    ]
    life.disk.slow_sync(3.0)
    ending = asyncio.ensure_future(end_all(client, halves, COMMIT))
    await life.passes(4.0 if is_late else 1.0)
    assert ending.done() is is_late
    ending.cancel()
    await life.lose_power(Loss.EVERYTHING)
    await life.start()

    client = await life.client()
    open_now = len(life.broker.transactions.halves.pending)
    assert (open_now, len(life.broker.store.delays)) == ((0, 1) if is_late else (2, 0))
    if is_late:
        assert [(await arrival(client, "T", offset)).body for offset in (0, 1)] == [
            b"now",
            b"later",
        ]


@pytest.mark.parametrize("how", ["restart", "kill_and_start"])
@pytest.mark.parametrize("is_committed", [False, True])
@run_by(in_lives_with_client, replace(DURABLE), topic="T")
async def test_it_survives_a_restart_before_and_after_its_commit(
    life, client, /, is_committed, how
):
    half = await prepare(client, **LATER)
    if is_committed:
        await end(client, half, COMMIT)

    await getattr(life, how)()

    client = await life.client()
    if not is_committed:
        assert await end(client, half, COMMIT) == 0
    assert await is_empty(client)
    assert (await arrival(client, "T")).body == b"half"
    await asyncio.sleep(20)
    assert len((await client.pull("T")).bodies) == 1
