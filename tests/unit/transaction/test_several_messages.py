"""Several messages of one transaction, at brokers that decide each alone, like RocketMQ's."""

import pytest

from tests.unit.transaction.producing_stage import (
    COMMIT,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    fields_of,
    message,
    refuse,
    silent,
    staged,
)
from txmq.errors import BrokerRefused, LocalProtocolError, RequestTimeout, TransactionConflict
from txmq.message import Message
from txmq.protocol import command, headers
from txmq.transaction import TransactionState

SYSTEM_ERROR, SHOULD_ROLL_BACK, SLAVE_NOT_AVAILABLE = 1, 201, 11
THREE = [message(b"1"), message(b"2"), message(b"3")]


@staged(brokers=2)
async def test_all_messages_are_stored_before_the_listener_runs_and_decided_alike(stage):
    outcome = await stage.producer.send_in_transaction(THREE, "order")

    ((half, arg),) = stage.bank.executed
    assert arg == "order"
    assert [one.body for one in (half, *half.others)] == [b"1", b"2", b"3"]
    assert [one.id for one in (half, *half.others)] == [
        outcome.xid, f"{outcome.xid}.1", f"{outcome.xid}.2"
    ]  # fmt: skip
    assert {one.xid for one in (half, *half.others)} == {outcome.xid}
    assert [result.id for result in outcome.sent] == [half.id, *(one.id for one in half.others)]
    assert outcome.state is TransactionState.COMMITTED
    assert outcome.is_acknowledged
    # One END each, because these brokers do not answer that they decided more than one.
    assert sorted(end["msgId"] for end in stage.ends) == sorted(one.id for one in outcome.sent)
    assert set(stage.said) == {COMMIT}


@staged(brokers=2)
async def test_a_broker_of_txmq_decides_all_its_half_messages_by_one_end(stage):
    for broker in (0, 1):
        stage.told("end", lambda asked: command.answer(asked, 0, {"decided": "2"}), broker=broker)
    outcome = await stage.producer.send_in_transaction([*THREE, message(b"4")])

    assert outcome.is_acknowledged
    named = [
        {end["msgId"], *(other.id for other in headers.OtherHalf.read(end["others"]))}
        for end in stage.ends
    ]
    by_broker = {sent.queue.broker: set() for sent in outcome.sent}
    for sent in outcome.sent:
        by_broker[sent.queue.broker].add(sent.id)
    assert sorted(map(sorted, named)) == sorted(map(sorted, by_broker.values()))
    assert len(named) == 2


@staged()
async def test_only_messages_after_the_first_name_their_transaction(stage):
    outcome = await stage.producer.send_in_transaction(THREE)

    named = [fields_of(half).get("TXMQ_XID") for half in stage.halves]
    assert named == [None, outcome.xid, outcome.xid]


@staged()
async def test_a_forwarded_message_names_its_own_transaction(stage):
    forwarded = message(properties={"TXMQ_XID": "another"})
    outcome = await stage.producer.send_in_transaction(forwarded)

    assert fields_of(stage.halves[0])["TXMQ_XID"] == outcome.xid
    assert stage.bank.executed[0][0].xid == outcome.xid


@staged()
async def test_a_listener_that_rolls_back_rolls_back_all(stage):
    stage.bank.says = ROLLBACK
    outcome = await stage.producer.send_in_transaction(THREE)

    assert outcome.state is TransactionState.ROLLED_BACK
    assert stage.said == [ROLLBACK] * 3


@staged()
async def test_if_one_half_message_is_refused_nothing_runs_and_the_others_are_rolled_back(stage):
    usual = type(stage.broker).on_send_message_v2
    stage.told("half", lambda asked: usual(stage.broker, asked), refuse(SYSTEM_ERROR))
    with pytest.raises(BrokerRefused) as refused:
        await stage.producer.send_in_transaction(THREE)

    assert "nothing is committed" in str(refused.value.__notes__)
    assert stage.bank.executed == []
    await stage.until(lambda: stage.said == [ROLLBACK] * 2)


@staged(retry_not_safe=True)
async def test_a_half_message_that_is_not_stored_safely_rolls_back_all(stage):
    def unsafe(request):
        stored = headers.SendAnswer("7F00000100002A9F0000000000000010", 0, 5)
        return command.answer(request, SLAVE_NOT_AVAILABLE, stored)

    usual = type(stage.broker).on_send_message_v2
    stage.told("half", *[lambda asked: usual(stage.broker, asked)] * 2, unsafe)
    outcome = await stage.producer.send_in_transaction(THREE)

    assert stage.bank.executed == []
    assert outcome.state is TransactionState.ROLLED_BACK
    assert "not safely" in str(outcome.problem)
    assert stage.said == [ROLLBACK] * 3


@staged(end_timeout=1.0)
async def test_an_end_without_answer_leaves_the_outcome_unacknowledged(stage):
    usual = type(stage.broker).on_end_transaction
    stage.told("end", *[lambda asked: usual(stage.broker, asked)] * 2, silent)
    outcome = await stage.producer.send_in_transaction(THREE)

    assert outcome.state is TransactionState.COMMITTED
    assert not outcome.is_acknowledged
    assert isinstance(outcome.problem, RequestTimeout)


@staged(brokers=2)
async def test_a_conflict_in_one_is_a_conflict_of_the_whole(stage):
    stage.told("end", refuse(SHOULD_ROLL_BACK), broker=1)
    with pytest.raises(TransactionConflict):
        await stage.producer.send_in_transaction(THREE)


@staged()
async def test_a_check_of_any_of_them_names_the_transaction(stage):
    stage.bank.says = UNKNOWN
    outcome = await stage.producer.send_in_transaction(THREE)
    for result in outcome.sent:
        stage.ask(result.id)
    await stage.until(lambda: len(stage.ends) == 3)

    assert {checked.xid for checked in stage.bank.checked} == {outcome.xid}
    assert sorted(end["msgId"] for end in stage.ends) == sorted(one.id for one in outcome.sent)


@staged()
async def test_only_the_first_message_may_have_a_key_of_its_own(stage):
    keyed = Message(topic=TOPIC, body=b"paid", properties={"UNIQ_KEY": "order-7"})
    with pytest.raises(LocalProtocolError, match="only the first message"):
        await stage.producer.send_in_transaction([message(), keyed])

    outcome = await stage.producer.send_in_transaction([keyed, message()])
    assert [result.id for result in outcome.sent] == ["order-7", "order-7.1"]
