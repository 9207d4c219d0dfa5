"""37, 39, 323 and txmq's own requests: the life of half messages."""

import asyncio

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import in_world, in_world_with_client, sending, with_client
from tests.unit.handlers.transaction_stage import (
    COMMIT,
    DURABLE,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    checks_heard,
    client_in_lives,
    end,
    ending,
    in_lives,
    prepare,
    preparing,
    producer,
    quick,
)
from txmq.protocol import record as records
from txmq.protocol.bodies import OpenTransactions, TransactionEntry
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    CheckState,
    DecideTransaction,
    EndTransaction,
    ListTransactions,
    MessagePosition,
    NamedTransaction,
)
from txmq.protocol.operations import RecheckedTransactions, RecheckTransactions
from txmq_broker.access.audit import read_audit
from txmq_broker.handlers import transactions as handlers_transactions
from txmq_broker.services import flusher


@run_by(with_client)
async def test_a_half_message_is_invisible_until_it_is_committed(client, /):
    await client.topic("T", 4)
    half = await prepare(client, queue=2, TAGS="red", KEYS="k1")
    assert (half.queue, half.offset) == (2, 0)
    assert (await client.pull("T", queue=2)).records == []

    assert await end(client, half, COMMIT) == 0

    (found,) = (await client.pull("T", queue=2)).records
    assert (found.body, found.queue_offset, found.sys_flag & 0xC) == (b"half", 0, 8)
    told = found.property_map()
    assert (told["REAL_TOPIC"], told["REAL_QID"]) == ("T", "2")
    assert (told["TRAN_MSG"], told["PGROUP"], told["UNIQ_KEY"]) == ("true", GROUP, "U1")
    assert found.prepared_position == half.position
    shown = await client.ok(RequestCode.VIEW_MESSAGE_BY_ID, MessagePosition(found.position))
    assert records.unpack(shown.body)[0] == found


@run_by(with_client, topic="T")
async def test_a_rolled_back_half_message_is_never_delivered(client, /):
    half = await prepare(client)

    assert await end(client, half, ROLLBACK) == 0

    await client.send("T", b"next")
    assert (await client.pull("T")).bodies == [b"next"]


@pytest.mark.fault("M1")
@run_by(with_client, topic="T")
async def test_a_repeated_commit_succeeds_and_delivers_one_message(client, /):
    half = await prepare(client)
    at_once = [client.asking(37, half.end(COMMIT)) for _ in range(5)]
    assert {answer.code for answer in await asyncio.gather(*at_once)} == {0}
    assert await end(client, half, COMMIT) == 0
    assert (await client.pull("T")).bodies == [b"half"]


@pytest.mark.fault("M2")
@pytest.mark.parametrize(
    ("first", "second", "code"), [(COMMIT, ROLLBACK, 200), (ROLLBACK, COMMIT, 201)]
)
@run_by(in_world_with_client, topic="T")
async def test_a_contradicting_second_decision_is_refused(stage, client, /, first, second, code):
    half = await prepare(client)
    both = [client.asking(37, half.end(what)) for what in (first, second)]
    assert [answer.code for answer in await asyncio.gather(*both)] == [0, code]
    assert await end(client, half, second) == code
    assert len((await client.pull("T")).records) == (first == COMMIT)
    assert stage.broker.transactions.tally.conflicts == 2


@pytest.mark.fault("M4")
@run_by(with_client, topic="T")
async def test_each_wrong_field_of_an_end_has_its_own_error_code(client, /):
    half = await prepare(client)
    assert await end(client, half, COMMIT, producer_group="other") == 203
    assert await end(client, half, COMMIT, commit_log_offset=half.position + 1) == 604
    assert await end(client, half, COMMIT, tran_state_table_offset=7) == 22
    assert await end(client, half, 5) == 29
    assert await end(client, half, COMMIT, msg_id=None, transaction_id=None) == 0


@pytest.mark.fault("M6")
@run_by(with_client, topic="T")
async def test_a_half_message_sent_again_is_the_same_transaction(client, /):
    first = await prepare(client)
    second = await prepare(client)
    assert (second.offset, second.position) == (first.offset, first.position)
    assert await end(client, first, COMMIT) == 0
    third = await prepare(client)
    assert (third.offset, third.position) == (first.offset, first.position)
    assert await end(client, third, COMMIT) == 0
    assert (await client.pull("T")).bodies == [b"half"]


@run_by(in_world, quick())
async def test_a_producer_that_sends_no_end_is_checked(stage, /):
    client = await producer(stage, topic="T")
    half = await prepare(client)
    await stage.passes(0.9)
    assert client.heard_nothing()

    request = await client.heard(RequestCode.CHECK_TRANSACTION_STATE)

    asked = request.read(CheckState)
    assert (asked.tran_state_table_offset, asked.commit_log_offset) == (0, half.position)
    assert (asked.msg_id, asked.transaction_id) == ("U1", "U1")
    shown, _ = records.unpack(request.body)
    assert (shown.topic, shown.body, shown.queue_id) == ("T", b"half", 0)
    assert shown.property_map()["PGROUP"] == GROUP
    assert await end(client, half, COMMIT, is_check=True) == 0
    await stage.passes(5)
    assert client.heard_nothing()
    assert (await client.pull("T")).bodies == [b"half"]


@run_by(in_world, quick())
async def test_a_transaction_parked_after_unknown_answers_can_be_decided_by_hand(stage, /, caplog):
    client = await producer(stage, topic="T")
    half = await prepare(client)
    for _ in range(3):
        await client.heard(RequestCode.CHECK_TRANSACTION_STATE)
        assert await end(client, half, UNKNOWN, is_check=True) == 0
    await stage.passes(5)
    assert client.heard_nothing()
    (parked,) = (await client.pull("TRANS_CHECK_MAX_TIME_TOPIC")).records
    assert parked.body == b"half"
    assert "check it again with: txmq tx recheck" in caplog.text  # Deciding by hand comes last.
    listed = await client.ok(RequestCode.LIST_TRANSACTIONS, ListTransactions(state="parked"))
    (entry,) = OpenTransactions.read(listed.body).transactions
    assert (entry.transaction_id, entry.state, entry.checks) == ("U1", "parked", 3)

    by_hand = DecideTransaction("U1", "commit", "ops", "the ledger has it")
    await client.ok(RequestCode.DECIDE_TRANSACTION, by_hand)

    assert (await client.pull("T")).bodies == [b"half"]
    assert await end(client, half, ROLLBACK) == 200
    last = (await client.pull("RMQ_SYS_TRANS_OP_HALF_TOPIC")).records[-1]
    assert last.property_map()["TXMQ_REASON"] == "ops: the ledger has it"
    assert last.body == b"0"
    (shown,) = (await client.pull("RMQ_SYS_TRANS_HALF_TOPIC")).records
    assert shown.topic == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert shown.property_map()["REAL_TOPIC"] == "T"


@run_by(in_world, quick(check_max=9))
async def test_after_an_unknown_answer_the_other_producers_are_checked_in_turn(stage, /):
    origin, second, third = [await stage.client(name) for name in ("a", "b", "c")]
    await origin.topic("T")
    members = {"origin": origin, "second": second, "third": third}
    for member in members.values():
        await member.beat(producers=[GROUP])
    halves = [await prepare(origin, unique=f"U{number}") for number in (1, 2)]
    asked = {half.unique: [] for half in halves}
    for _ in range(4):
        await stage.passes(1.1)
        for name, client in members.items():
            for unique in checks_heard(client):
                asked[unique].append(name)
                half = next(half for half in halves if half.unique == unique)
                assert await end(client, half, UNKNOWN, is_check=True) == 0

    for turns in asked.values():
        assert [turns[0], turns[3]] == ["origin", "origin"]
        assert sorted(turns[1:3]) == ["second", "third"]
    # The next checks do not all go to the same producer.
    assert asked["U1"] != asked["U2"]


@run_by(in_world, quick(check_max=9))
async def test_after_no_answer_another_producer_of_the_group_is_checked(stage, /):
    origin, other = await stage.client("a"), await stage.client("b")
    await origin.topic("T")
    for member in (origin, other):
        await member.beat(producers=[GROUP])
    await prepare(origin)
    await stage.passes(1.1)
    assert checks_heard(origin) == ["U1"]
    await origin.beat(producers=[GROUP])
    await stage.passes(1.1)
    assert checks_heard(other) == ["U1"]
    await stage.passes(1.1)
    # That one did not answer, so no attempt was spent, and it is not asked twice in a row.
    assert (checks_heard(origin), checks_heard(other)) == (["U1"], [])


@run_by(client_in_lives, DURABLE, topic="T")
async def test_a_half_message_with_the_id_of_another_message_is_refused(client, /):
    await client.topic("S")
    first = client.asking(RequestCode.SEND_MESSAGE, preparing("T"), body=b"half")
    second = client.asking(RequestCode.SEND_MESSAGE, preparing("S"), body=b"half")
    assert [(await future).code for future in (first, second)] == [0, 13]
    for topic, body in (("S", b"half"), ("T", b"other")):
        code = await client.code_of(RequestCode.SEND_MESSAGE, preparing(topic), body=body)
        assert code == 13
    half = await prepare(client)
    assert await end(client, half, COMMIT) == 0
    code = await client.code_of(RequestCode.SEND_MESSAGE, preparing(), body=b"other")
    assert code == 13
    assert (await client.pull("T")).bodies == [b"half"]
    assert (await client.pull("S")).bodies == []


@pytest.mark.fault("M6")
@run_by(in_lives, DURABLE)
async def test_a_half_message_sent_again_before_the_sync_waits_for_the_first(life, /):
    client, other = await life.client(topic="T"), await life.client()
    await prepare(client, unique="earlier")
    life.disk.slow_sync(3.0)
    first = client.asking(RequestCode.SEND_MESSAGE, preparing(), body=b"half")
    await life.passes(0.5)
    again = other.asking(RequestCode.SEND_MESSAGE, preparing(), body=b"half")
    await life.passes(0.5)
    assert not first.done()
    assert not again.done()
    places = [(await future).field_map() for future in (first, again)]
    assert places[0]["msgId"] == places[1]["msgId"]
    assert (await listed(other)).open == 2


# Requests of operators


async def listed(client, **given):
    answer = await client.ok(RequestCode.LIST_TRANSACTIONS, ListTransactions(**given))
    return OpenTransactions.read(answer.body)


@run_by(in_lives, quick(timeout=1.0))
async def test_open_transactions_are_listed_in_pages_and_filtered_by_state_and_group(life, /):
    client = await life.client()
    await client.topic("T", 4)
    await client.beat(producers=["busy"])
    for number in range(5):
        await prepare(client, unique=f"A{number}", group="away", queue=2, KEYS=f"k{number}")
    parked = [await prepare(client, unique=f"B{number}", group="busy") for number in range(2)]
    for _ in range(3):
        for _ in parked:
            await client.heard(RequestCode.CHECK_TRANSACTION_STATE)
        for half in parked:
            assert await end(client, half, UNKNOWN, is_check=True) == 0
    await life.passes(0.5)

    async def ids(**given):
        return [
            transaction.transaction_id
            for transaction in (await listed(client, **given)).transactions
        ]

    everything = await listed(client)
    assert (everything.open, everything.parked) == (7, 2)
    assert await ids() == ["A0", "A1", "A2", "A3", "A4", "B0", "B1"]
    assert await ids(state="parked") == ["B0", "B1"]
    assert await ids(state="prepared") == ["A0", "A1", "A2", "A3", "A4"]
    assert await ids(producer_group="busy") == ["B0", "B1"]
    assert await ids(producer_group="nobody") == []
    assert [
        (await listed(client, producer_group=group)).of_group for group in ("busy", "away", "")
    ] == [2, 5, 0]
    assert await ids(state="parked", producer_group="away") == []
    first = await listed(client, count=3)
    assert [transaction.transaction_id for transaction in first.transactions] == ["A0", "A1", "A2"]
    onwards = first.transactions[-1].half_offset + 1
    assert await ids(count=3, from_offset=onwards) == ["A3", "A4", "B0"]
    assert await ids(from_offset=7) == []
    assert len(await ids(count=0)) == 1
    second = first.transactions[1]
    place = (second.topic, second.queue_id)
    assert (second.producer_group, *place, second.keys) == ("away", "T", 2, "k1")
    assert (second.state, second.checks, second.is_being_decided) == ("prepared", 0, False)
    assert second.stored_ms <= life.clock.wall_ms()
    code = await client.code_of(RequestCode.LIST_TRANSACTIONS, ListTransactions(state="done"))
    assert code == 29


@run_by(in_lives, quick(check_max=1))
async def test_paging_through_parked_transactions_misses_none_parked_out_of_order(life, /):
    client = await producer(life, topic="T")
    late = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "5"}
    halves = [await prepare(client, unique="LATE", **late), await prepare(client, unique="SOON")]
    for half in reversed(halves):
        request = await client.heard(RequestCode.CHECK_TRANSACTION_STATE)
        assert request.field_map()["transactionId"] == half.unique
        assert await end(client, half, UNKNOWN, is_check=True) == 0
    while (await listed(client)).parked < 2:
        await life.passes(0.1)

    first = await listed(client, state="parked", count=1)
    (earliest,) = first.transactions
    rest = await listed(client, state="parked", from_offset=earliest.half_offset + 1)

    shown = [transaction.transaction_id for transaction in first.transactions + rest.transactions]
    assert shown == ["LATE", "SOON"]


@run_by(in_lives, quick(timeout=60.0))
async def test_a_bulk_recheck_takes_few_requests_and_few_audit_entries(life, /, monkeypatch):
    monkeypatch.setattr(handlers_transactions, "_RECHECKED_MAX", 2)

    client = await life.client(topic="T")
    await client.beat(producers=["busy", "idle"])
    for number in range(5):
        await prepare(client, unique=f"A{number}", group="busy")
    await prepare(client, unique="B", group="idle")

    async def recheck(**given):
        header = RecheckTransactions(**given)
        answer = await client.ok(RequestCode.RECHECK_TRANSACTIONS, header)
        return answer.read(RecheckedTransactions)

    pages = [await recheck(producer_group="busy")]
    while pages[-1].next_offset >= 0:
        start = pages[-1].next_offset
        pages.append(await recheck(producer_group="busy", from_offset=start))

    assert [page.rechecked for page in pages] == [2, 2, 1]
    asked = [await client.heard(RequestCode.CHECK_TRANSACTION_STATE) for _ in range(5)]
    assert [it.field_map()["transactionId"] for it in asked] == [f"A{n}" for n in range(5)]
    assert await recheck(state="parked") == RecheckedTransactions(0, -1)
    code = RequestCode.RECHECK_TRANSACTIONS
    assert await client.code_of(code, RecheckTransactions(state="lost")) == 29
    entries = list(read_audit(life.disk, pytest.fail))
    assert [entry.fields.get("rechecked") for entry in entries[-5:]] == [*"2210", None]
    assert entries[-5].fields["producerGroup"] == "busy"


@run_by(in_lives)
async def test_a_transaction_is_shown_with_its_half_message_as_it_was_sent(life, /):
    client = await life.client("origin")
    await client.topic("T", 4)
    await client.beat(producers=[GROUP])
    half = await prepare(client, queue=3, TAGS="red")
    for name in ("U1", half.offset_id):
        shown = await client.ok(RequestCode.SHOW_TRANSACTION, NamedTransaction(name))
        told = TransactionEntry.read(shown.field_map()["transaction"].encode())
        assert (told.transaction_id, told.half_offset, told.client_id) == ("U1", 0, "origin")
        assert (told.commit_log_offset, told.offset_msg_id) == (half.position, half.offset_id)
        record, _ = records.unpack(shown.body)
        assert (record.topic, record.queue_id, record.body) == ("T", 3, b"half")
        assert record.sys_flag & 0xC == 0
    assert await end(client, half, COMMIT) == 0
    for name in ("U1", half.offset_id, "U2", "no id"):
        header = NamedTransaction(name)
        assert await client.code_of(RequestCode.SHOW_TRANSACTION, header) == 22


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"decision": "maybe"}, 29),
        ({"operator": " "}, 29),
        ({"reason": ""}, 29),
        ({"reason": "x" * 1024}, 29),
        ({"reason": "no \x01 property"}, 29),
        ({"operator": "nor \x02 two"}, 29),
        ({"transaction_id": "U2"}, 22),
    ],
)
@run_by(with_client, topic="T")
async def test_a_decision_by_hand_without_operator_reason_or_decision_is_refused(
    client, /, wrong, code
):
    await prepare(client)
    header = DecideTransaction("U1", "commit", "ops", "the ledger has it")
    for name, value in wrong.items():
        setattr(header, name, value)
    assert await client.code_of(RequestCode.DECIDE_TRANSACTION, header) == code
    assert (await client.pull("T")).bodies == []
    assert (await listed(client)).open == 1


@pytest.mark.parametrize(("decision", "late", "code"), [("commit", 12, 200), ("rollback", 8, 201)])
@run_by(in_lives, DURABLE)
async def test_a_decision_by_hand_is_final_and_survives_a_kill(life, /, decision, late, code):
    client = await life.client(topic="T")
    half = await prepare(client)
    header = DecideTransaction(half.offset_id, decision, "ops", "x" * 1019)
    await client.ok(RequestCode.DECIDE_TRANSACTION, header)

    assert await end(client, half, late) == code
    assert await client.code_of(RequestCode.DECIDE_TRANSACTION, header) == 22

    await life.kill_and_start()
    client = await life.client()
    assert await end(client, half, late) == code
    assert len((await client.pull("T")).records) == (decision == "commit")
    last = (await client.pull("RMQ_SYS_TRANS_OP_HALF_TOPIC")).records[-1]
    assert last.property_map()["TXMQ_REASON"] == "ops: " + "x" * 1019
    assert last.property_map()["TXMQ_SOURCE"] == "OPERATOR"


@run_by(client_in_lives, DURABLE, topic="T")
async def test_two_operators_that_decide_at_once_get_one_decision(client, /):
    await prepare(client)
    both = [
        client.asking(RequestCode.DECIDE_TRANSACTION, DecideTransaction("U1", what, who, "why"))
        for who, what in (("one", "commit"), ("two", "rollback"))
    ]
    first, second = [answer.code for answer in await asyncio.gather(*both)]
    assert first == 0
    assert second in (22, 200)
    assert (await client.pull("T")).bodies == [b"half"]


# Answers wait for the disk


@run_by(in_lives, DURABLE)
async def test_no_end_is_answered_before_the_decision_is_durable(life, /):
    client, other = await life.client(topic="T"), await life.client()
    half = await prepare(client)
    life.disk.slow_sync(3.0)
    first = ending(client, half, COMMIT)
    await life.passes(1.0)
    asked = [(client, COMMIT), (other, ROLLBACK), (other, COMMIT)]
    later = [ending(who, half, what) for who, what in asked]
    await life.passes(1.0)
    assert not any(asked.done() for asked in [first, *later])
    assert (await other.pull("T")).bodies == []

    codes = [answer.code for answer in await asyncio.gather(first, *later)]

    assert codes == [0, 0, 200, 0]
    assert (await other.pull("T")).bodies == [b"half"]
    # From now on no answer waits.
    began = life.world.now()
    assert [await end(other, half, decision) for decision in (COMMIT, ROLLBACK)] == [0, 200]
    assert life.world.now() - began < 1.0


@run_by(in_lives, DURABLE)
async def test_no_operator_is_answered_before_the_decision_is_durable(life, /):
    """A power cut, or the next leader, may still take it back."""
    client, other = await life.client(topic="T"), await life.client()
    half = await prepare(client)
    life.disk.slow_sync(3.0)
    first = ending(client, half, COMMIT)
    await life.passes(1.0)
    by_hand = [
        other.asking(RequestCode.DECIDE_TRANSACTION, DecideTransaction("U1", what, "ops", "why"))
        for what in ("rollback", "commit")
    ]
    await life.passes(1.0)
    assert not any(answer.done() for answer in [first, *by_hand])
    named = NamedTransaction("U1")
    shown = await client.ok(RequestCode.SHOW_TRANSACTION, named)
    entry = TransactionEntry.read(shown.field_map()["transaction"].encode())
    assert (entry.state, entry.is_being_decided) == ("prepared", True)
    await client.ok(RequestCode.RECHECK_TRANSACTION, named)

    codes = [answer.code for answer in await asyncio.gather(first, *by_hand)]

    assert codes == [0, 200, 0]
    assert (await other.pull("T")).bodies == [b"half"]
    assert await client.code_of(RequestCode.SHOW_TRANSACTION, named) == 22


@run_by(in_lives, DURABLE)
async def test_a_failed_write_of_a_decision_refuses_all_ends_that_waited_for_it(life, /):
    client, other = await life.client(topic="T"), await life.client()
    half = await prepare(client)
    life.disk.slow_sync(3.0)
    earlier = client.asking(RequestCode.SEND_MESSAGE, preparing(unique="U2"), body=b"half")
    await life.passes(1.0)
    ends = [(client, COMMIT), (client, COMMIT), (other, ROLLBACK)]
    asked = [ending(who, half, what) for who, what in ends]
    await life.passes(1.0)
    assert not any(answer.done() for answer in asked)
    life.disk.fail_writes()

    codes = [answer.code for answer in await asyncio.gather(*asked)]

    assert (codes, (await earlier).code) == ([14, 14, 14], 0)
    life.disk.repair()
    assert len((await listed(other)).transactions) == 2
    assert await end(other, half, ROLLBACK) == 0
    assert await end(client, half, COMMIT) == 201
    assert (await other.pull("T")).bodies == []


@run_by(in_lives)
async def test_a_repeated_end_does_not_succeed_by_a_decision_whose_write_failed(
    life, /, monkeypatch
):
    # The second END begins its own turn, and so starts the write of the first.
    monkeypatch.setattr(flusher, "SPAN_BYTES_MAX", 16)

    client = await life.client(topic="T")
    half = await prepare(client)
    life.disk.fail_writes(1)

    codes = [ending(client, half, COMMIT) for _ in range(2)]

    assert [answer.code for answer in await asyncio.gather(*codes)] == [14, 0]
    assert (await client.pull("T")).bodies == [b"half"]
    assert await client.max_offset("RMQ_SYS_TRANS_OP_HALF_TOPIC") == 1


@run_by(in_world, quick())
async def test_the_immunity_time_of_a_decided_transaction_is_forgotten(stage, /):
    client = await producer(stage, topic="T")
    kept = await prepare(client, unique="kept", CHECK_IMMUNITY_TIME_IN_SECONDS="150")
    for number in range(50):
        half = await prepare(
            client, unique=f"U{number}", CHECK_IMMUNITY_TIME_IN_SECONDS=str(10**6 + number)
        )
        assert await end(client, half, ROLLBACK) == 0
    await stage.passes(100)
    assert client.heard_nothing()
    checker = stage.broker._checker
    assert len(checker._immune_until) == 1
    assert sum(len(bucket.keys) for bucket in checker.checks._buckets.values()) == 1

    other = await stage.client()
    await other.beat(producers=[GROUP])
    await stage.passes(51)

    request = await other.heard(RequestCode.CHECK_TRANSACTION_STATE)
    assert request.read(CheckState).commit_log_offset == kept.position


@run_by(in_world_with_client, quick(), topic="T")
async def test_a_group_without_producers_is_forgotten_with_its_last_transaction(stage, client, /):
    halves = [await prepare(client, unique=f"U{number}", group=f"G{number}") for number in range(9)]
    await stage.passes(3)
    assert len(stage.broker._checker.checks.stranded) == 9

    for half in halves:
        assert await end(client, half, ROLLBACK) == 0

    assert stage.broker._checker.checks.stranded == {}


@run_by(with_client, topic="T")
async def test_an_id_used_for_another_topic_is_refused_also_after_the_decision(client, /):
    await client.topic("T2")
    assert await end(client, await prepare(client), ROLLBACK) == 0
    header = sending("T2", TRAN_MSG="true", PGROUP=GROUP, UNIQ_KEY="U1")
    header.sys_flag = 4

    assert await client.code_of(RequestCode.SEND_MESSAGE, header, body=b"half") == 13


@run_by(with_client)
async def test_an_end_for_an_empty_half_queue_is_refused_with_the_reason(client, /):
    asked = [client.asking(37, EndTransaction("P", 0, 0, COMMIT, False, "U")) for _ in range(2)]
    for answer in await asyncio.gather(*asked):
        assert answer.remark == "the half queue has no message at offset 0"
