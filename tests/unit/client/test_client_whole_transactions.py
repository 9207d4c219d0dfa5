"""All messages of a transaction, asked of brokers that have others, copies, none or no answer."""

import pytest
from msgspec.structs import replace

from tests.unit.client.client_stage import staged
from txmq.errors import Effect, TransportError
from txmq.protocol import bodies, command

NOT_FOUND = 22
ENTRY = bodies.TransactionEntry("X", "prepared", "g", "T", 0, 0, 0, "", "", 1, 0, "", xid="X")
OTHER = replace(ENTRY, transaction_id="X.1")


def lists(broker, *entries):
    body = bodies.TransactionMessages(list(entries)).write()
    broker.on_list_transaction_messages = lambda request: command.answer(request, body=body)


def holds(brokers, holder, entry=ENTRY):
    shown = {"transaction": entry.write().decode()}
    for broker in brokers:
        broker.on_show_transaction = lambda request: command.answer(request, NOT_FOUND)
        broker.on_decide_transaction = command.answer
    holder.on_show_transaction = lambda request: command.answer(request, 0, shown)


async def listed(stage, entry=ENTRY):
    """The whole of the transaction that broker-b shows in its list."""
    page = bodies.OpenTransactions([entry], 1, 0, 0).write()
    stage.cluster.replies[7701] = lambda request: command.answer(request, body=page)
    (message,) = await stage.admin.transactions(broker="broker-b")
    return await stage.admin.transaction_messages(message)


def places(whole):
    return [(message.id, message.queue.broker, message.state) for message in whole.messages]


@staged(brokers=4)
async def test_messages_of_all_brokers_are_listed_without_copies_and_with_who_is_silent(stage):
    first, second, third, silent = stage.cluster.brokers
    lists(first, ENTRY, replace(OTHER, transaction_id="X.10"))
    lists(second, ENTRY, replace(OTHER, transaction_id="X.2", state="committed"))
    lists(third, OTHER)
    silent.on_list_transaction_messages = lambda request: None

    whole = await listed(stage)

    assert places(whole) == [
        ("X", "broker-b", "prepared"),
        ("X.1", "broker-c", "prepared"),
        ("X.2", "broker-b", "committed"),
        ("X.10", "broker-a", "prepared"),
    ]
    assert [message.id for message in whole.open] == ["X", "X.1", "X.10"]
    assert list(whole.silent) == ["broker-d"]


@staged(brokers=2)
async def test_a_message_of_an_older_broker_is_a_transaction_of_its_own(stage):
    whole = await listed(stage, replace(OTHER, xid=""))

    assert (places(whole), whole.silent) == ([("X.1", "broker-b", "prepared")], {})
    assert whole.messages[0].xid == "X.1"


@pytest.mark.parametrize("given", [None, "broker-a"])
@staged(brokers=4)
async def test_a_decision_reaches_each_broker_with_another_message_but_no_copy(stage, /, given):
    first, second, copying, silent = stage.cluster.brokers
    holds(stage.cluster.brokers, first)
    lists(first, ENTRY)
    lists(second, OTHER, replace(OTHER, transaction_id="X.2"))
    lists(copying, ENTRY)
    silent.on_list_transaction_messages = lambda request: None

    with pytest.raises(
        TransportError, match="holds at broker-a and broker-b;.*not decided: broker-d"
    ) as it:
        await stage.admin.decide_transaction(
            "X", "commit", operator="ann", reason="audit", broker=given
        )

    assert it.value.effect is Effect.APPLIED
    decided = [
        (broker, fields["transactionId"])
        for broker, code, fields in stage.cluster.asked
        if code.name == "DECIDE_TRANSACTION"
    ]
    assert decided == [("broker-a", "X"), ("broker-b", "X.1")]
