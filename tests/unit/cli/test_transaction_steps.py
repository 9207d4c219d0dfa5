"""The nine steps of a transaction, from its broker's report and its traces."""

from dataclasses import replace

import pytest

from txmq.client.observe.trace_records import (
    DecisionRecord,
    HandlerEnd,
    HandlerOutcome,
    HandlerStart,
    MessageKind,
    SendRecord,
)
from txmq.client.values import (
    CheckReport,
    OpenTransaction,
    RecheckReport,
    TransactionDecision,
    TransactionReport,
)
from txmq.message import LogPosition, Queue, QueueOffset, ReceivedMessage
from txmq.ops.transactions import DONE, IMPLIED, NEXT, OPEN, UNKNOWN, steps_of

AT = 1_700_000_000_000
QUEUE = Queue("Transfers", "broker-a", 1)
MESSAGE = ReceivedMessage(
    topic="Transfers", body=b"6000", queue=QUEUE, offset=QueueOffset(0), position=LogPosition(9),
    id="X1", offset_id="P1", born_ms=AT, stored_ms=AT + 1, attempts=0,
)  # fmt: skip
TRACES = [
    SendRecord(
        at_ms=AT, region="", group="icbc", topic="Transfers", id="X1", cost_ms=3,
        kind=MessageKind.HALF,
    ),
    DecisionRecord(at_ms=AT + 5, region="", group="icbc", topic="Transfers", id="X1"),
    HandlerStart(at_ms=AT + 9, region="", group="ccb", request_id="R1", id="X1"),
    HandlerEnd(
        request_id="R1", id="X1", cost_ms=4, is_success=False, outcome=HandlerOutcome.RAISED,
        at_ms=AT + 13, group="ccb",
    ),
    HandlerStart(at_ms=AT + 900, region="", group="ccb", request_id="R2", id="X1", attempts=1),
]  # fmt: skip


def decision(kind, source, reason="", at_ms=AT + 6):
    return TransactionDecision(kind, source, at_ms, reason, "")


def report(*decisions, state="prepared", checks=(), next_check_ms=0, **more):
    transaction = OpenTransaction(
        id="X1", state=state, group="icbc", queue=QUEUE, half_offset=0, offset_id="P1",
        keys=("t-1",), stored_ms=AT + 1, checks=len(checks), origin="icbc-1",
        is_being_decided=False, xid="X1",
    )  # fmt: skip
    given = {"waits_for_producer": False, "producers": 1} | more
    return TransactionReport(
        transaction, AT, "10.0.0.5:4000", decisions, tuple(checks), 15, next_check_ms, **given
    )


def statuses(steps):
    return [step.status for step in steps if step.number]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (report(), [DONE] * 3 + [UNKNOWN] * 4 + [NEXT, OPEN]),
        (report(decision("committed", "producer")), [DONE] * 3 + [IMPLIED] * 4 + [DONE] * 2),
        (report(decision("committed", "operator")), [DONE] * 3 + [UNKNOWN] * 4 + [DONE] * 2),
    ],
)
def test_each_step_is_listed_once_in_order_with_its_status(found, wanted):
    steps = steps_of(found, MESSAGE, [])
    assert [step.number for step in steps if step.number] == list(range(1, 10))
    assert statuses(steps) == wanted


def test_consumers_see_a_delayed_message_after_its_delay():
    later = replace(MESSAGE, properties={"TIMER_DELAY_SEC": "60"})
    for message, is_delayed in ((MESSAGE, False), (later, True)):
        *_, last = steps_of(report(decision("committed", "producer")), message, [])
        assert last.text.endswith("see the message after its delay") is is_delayed


def test_traces_add_producer_times_and_each_consumer_attempt():
    steps = steps_of(report(decision("committed", "producer")), MESSAGE, TRACES)
    by_number = {step.number: step for step in steps if step.number}
    assert by_number[4].at_ms == AT + 3
    assert (by_number[7].at_ms, by_number[7].status) == (AT + 5, DONE)
    first, second = steps[-2:]
    assert "attempt 1 of group ccb" in first.text
    assert (first.mood, "raised after 4 ms" in first.more) == ("bad", True)
    assert (second.mood, "no trace says that it has ended" in second.more) == ("wait", True)


def test_checks_name_the_asked_producer_and_the_time_of_the_next_check():
    checks = [
        CheckReport(AT + 60_000, "icbc-1", "h:1", "unknown", AT + 60_012),
        CheckReport(AT + 120_000, "icbc-2", "h:2", "lost", AT + 120_001),
    ]
    steps = steps_of(report(checks=checks, next_check_ms=AT + 180_000), MESSAGE, [])
    asked = [step for step in steps if not step.number]
    assert "check 1: the broker asks icbc-1" in asked[0].text
    assert "no decision yet, 12 ms later" in asked[0].more
    assert "its connection closed" in asked[1].more
    (coming,) = [step for step in steps if step.status == NEXT]
    assert coming.text.endswith("2023-11-14 22:16:20.000Z")


def test_a_requested_check_names_the_operator_account_and_reason():
    check = CheckReport(AT + 60_000, "icbc-1", "h:1", "unknown", AT + 60_012)
    rechecks = (
        RecheckReport(AT + 70_000, "Ann", "ops", "h:9", "the bank is back"),
        RecheckReport(AT + 50_000, "", "", "h:8", ""),
    )
    steps = steps_of(report(checks=[check], rechecks=rechecks), MESSAGE, [])

    first, _, last = [step for step in steps if not step.number]
    assert first.text == "an operator has the broker ask the producers again"
    assert first.more == "at h:8"
    assert last.text == "Ann has the broker ask the producers again"
    assert (last.actor, last.more) == ("operator", "account ops at h:9; reason: the bank is back")


def test_a_manual_decision_names_the_operator_and_the_reason():
    parked = decision("parked", "broker", at_ms=AT + 2)
    by_hand = decision("rolled_back", "operator", "ops: never paid: T-1")
    steps = steps_of(report(parked, by_hand, state="rolled back"), MESSAGE, [])
    (decided,) = [step for step in steps if step.actor == "operator"]
    assert decided.text == "ops decides by hand: ROLLBACK"
    assert decided.more == "reason: never paid: T-1"
    assert any("parks the transaction" in step.text for step in steps)


def test_without_a_producer_the_next_step_waits_for_its_group():
    steps = steps_of(report(waits_for_producer=True, producers=0), MESSAGE, [])
    (coming,) = [step for step in steps if step.status == NEXT]
    assert "as soon as a producer of group icbc is connected" in coming.text
