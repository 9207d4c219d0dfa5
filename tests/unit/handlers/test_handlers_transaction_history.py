"""7711: what a broker knows about one transaction, from its half message to its decision."""

from tests.running import run_by
from tests.unit.handlers.transaction_stage import (
    COMMIT,
    DURABLE,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    client_in_lives,
    end,
    in_lives,
    in_lives_with_client,
    prepare,
    producer,
    quick,
)
from txmq.limits import CHECKED_TRANSACTIONS_KEPT, CHECKS_KEPT, RECHECKS_KEPT
from txmq.protocol import record as records
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import fields_of
from txmq.protocol.headers import DecideTransaction, NamedTransaction, ResumeCheck
from txmq.protocol.operations import RecheckTransaction, RecheckTransactions, TransactionHistory
from txmq_broker.core.check_history import CheckHistory, RecheckNote

SHOW = RequestCode.SHOW_TRANSACTION_HISTORY


async def history_of(client, name):
    answer = await client.ok(SHOW, NamedTransaction(name))
    assert records.unpack(answer.body)[0].body == b"half"
    return TransactionHistory.read(answer.field_map()["history"].encode())


async def refused(client, name):
    return await client.code_of(SHOW, NamedTransaction(name))


@run_by(in_lives, quick())
async def test_an_open_transaction_shows_its_checks_and_the_time_of_the_next_one(life, /):
    client = await life.client("origin")
    await client.topic("T")
    await prepare(client, CHECK_IMMUNITY_TIME_IN_SECONDS="5")
    stored = (await history_of(client, "U1")).transaction.stored_ms
    shown = await history_of(client, "U1")
    assert (shown.transaction.state, shown.checks, shown.decisions) == ("prepared", [], [])
    assert abs(shown.next_check_ms - stored - 5000) <= 100
    await life.passes(6)
    assert (await history_of(client, "U1")).waits_for_producer

    await client.beat(producers=[GROUP])
    await client.heard(RequestCode.CHECK_TRANSACTION_STATE)
    shown = await history_of(client, "U1")
    (check,) = shown.checks
    assert (check.client_id, check.answer, shown.producers) == ("origin", "", 1)
    assert not shown.waits_for_producer
    assert 0 < shown.next_check_ms - check.asked_ms <= 1100


@run_by(client_in_lives, quick(), topic="T")
async def test_a_decided_transaction_is_found_by_id_and_by_either_position(client, /):
    await client.beat(producers=[GROUP])
    half = await prepare(client)
    await client.heard(RequestCode.CHECK_TRANSACTION_STATE)
    assert await end(client, half, UNKNOWN, is_check=True) == 0
    await client.heard(RequestCode.CHECK_TRANSACTION_STATE)
    assert await end(client, half, COMMIT, is_check=True) == 0

    shown = await history_of(client, "U1")
    (decision,) = shown.decisions
    assert (decision.kind, decision.source) == ("committed", "check")
    assert [check.answer for check in shown.checks] == ["unknown", "decided"]
    assert (shown.transaction.state, shown.next_check_ms) == ("committed", 0)
    (visible,) = (await client.pull("T")).records
    assert decision.offset_msg_id == visible.offset_id
    for name in (half.offset_id, visible.offset_id):
        assert (await history_of(client, name)).decisions == shown.decisions
    assert await refused(client, "U2") == 22
    assert await refused(client, half.offset_id[:-16] + f"{visible.position + 1:016X}") == 22


@run_by(in_lives, quick(check_max=1))
async def test_the_history_of_a_parked_transaction_names_who_decided_it(life, /):
    client = await producer(life, topic="T")
    await prepare(client)
    while (await history_of(client, "U1")).transaction.state != "parked":
        await life.passes(0.5)
    shown = await history_of(client, "U1")
    assert [(item.kind, item.source) for item in shown.decisions] == [("parked", "broker")]
    assert (shown.next_check_ms, shown.checks[-1].answer) == (0, "silent")

    by_hand = DecideTransaction("U1", "rollback", "ops", "never paid: T-4711")
    await client.ok(RequestCode.DECIDE_TRANSACTION, by_hand)
    parked, decision = (await history_of(client, "U1")).decisions
    assert (parked.kind, decision.kind) == ("parked", "rolled_back")
    assert (decision.source, decision.reason) == ("operator", "ops: never paid: T-4711")


@run_by(client_in_lives, quick(), topic="T")
async def test_rechecks_are_shown_with_operator_and_reason_also_after_the_decision(client, /):
    await client.beat(producers=[GROUP])
    half = await prepare(client)
    await prepare(client, unique="U2")
    single = RecheckTransaction("U1", "ops", "the bank is back")
    await client.ok(RequestCode.RECHECK_TRANSACTION, single)
    bulk = RecheckTransactions(from_offset=0, operator="Ann", reason="all of them")
    signed = fields_of(bulk) | {"AccessKey": "night-shift"}
    await client.ok(RequestCode.RECHECK_TRANSACTIONS, signed)
    named = ResumeCheck(half.offset_id)
    await client.ok(RequestCode.RESUME_CHECK_HALF_MESSAGE, named)
    long = RecheckTransaction("U1", "ops", "é" * 128)
    assert await client.code_of(RequestCode.RECHECK_TRANSACTION, long) == 29
    assert await end(client, half, COMMIT) == 0

    rechecks = (await history_of(client, "U1")).rechecks
    assert [(item.operator, item.account, item.reason) for item in rechecks] == [
        ("ops", "", "the bank is back"),
        ("Ann", "night-shift", "all of them"),
        ("", "", ""),
    ]
    assert len({item.address for item in rechecks} - {""}) == 1
    assert [item.operator for item in (await history_of(client, "U2")).rechecks] == ["Ann"]


@run_by(in_lives, quick())
async def test_a_decided_transaction_names_its_producer_while_it_is_connected(life, /):
    other = await producer(life, "p-2")
    origin = await producer(life, "p-1", topic="T")
    half = await prepare(origin)
    assert await end(origin, half, COMMIT) == 0

    assert (await history_of(other, "U1")).transaction.client_id == "p-1"
    origin.close()
    await life.passes(1)
    assert (await history_of(other, "U1")).transaction.client_id == ""


@run_by(in_lives_with_client, DURABLE, topic="T")
async def test_a_restart_keeps_the_decision_and_forgets_the_checks(life, client, /):
    half = await prepare(client)
    assert await end(client, half, ROLLBACK) == 0
    await life.restart()
    client = await life.client()
    for name in ("U1", half.offset_id):
        shown = await history_of(client, name)
        assert [item.kind for item in shown.decisions] == ["rolled_back"]
        assert shown.checks == []


def test_the_history_of_checks_has_a_bounded_size():
    history = CheckHistory()
    for key in range(CHECKED_TRANSACTIONS_KEPT + 10):
        for at_ms in range(CHECKS_KEPT + 1 if key % 100 == 0 else 1):
            history.note_asked(key, at_ms, "c", "a")
            history.note_recheck(key, RecheckNote(at_ms, "ops", "", "a", ""))
    assert len(history) == CHECKED_TRANSACTIONS_KEPT
    assert history.checks_of(0) == ()
    assert [note.asked_ms for note in history.checks_of(100)] == list(range(1, CHECKS_KEPT + 1))
    assert history.rechecks_of(0) == ()
    assert len(history.rechecks_of(100)) == RECHECKS_KEPT
