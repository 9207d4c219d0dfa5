"""A producer of transactions and a broker that does what it is told: halves, decisions, errors."""

import asyncio
import dataclasses

import pytest

from tests.unit.transaction.producing_stage import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    Bank,
    fields_of,
    message,
    refuse,
    silent,
    staged,
)
from txmq.client.send.request_reply import Reply
from txmq.client.settings import ProducerSettings
from txmq.client.values import SendStatus
from txmq.errors import (
    BrokerRefused,
    ConfigError,
    ConnectionLost,
    Effect,
    InternalError,
    LimitExceeded,
    LocalProtocolError,
    MessageIllegal,
    RequestNotSupported,
    RequestTimeout,
    RollBack,
    ServiceUnavailable,
    TransactionConflict,
    TransactionGroupWrong,
    UsageError,
)
from txmq.message import Message, Queue
from txmq.protocol import command, headers, recall
from txmq.protocol.codes import SysFlag
from txmq.transaction import (
    HalfMessage,
    TransactionProducer,
    TransactionSettings,
    TransactionState,
)

COMMITTED, ROLLED_BACK, NOT_KNOWN = TransactionState


# What is sent


@staged()
async def test_a_half_message_is_sent_before_its_decision(stage):
    sent = message(tags="TAGA", keys=("o-1",), properties={"shop": "7"})
    outcome = await stage.producer.send_in_transaction(sent, {"amount": 10_000})

    (half,), (end,) = stage.halves, stage.ends
    named = fields_of(half)
    assert named["TRAN_MSG"] == "true"
    assert named["PGROUP"] == GROUP
    assert (named["TAGS"], named["KEYS"], named["shop"]) == ("TAGA", "o-1", "7")
    assert int(half["f"]) == SysFlag.PREPARED
    assert outcome.state is COMMITTED
    assert outcome.is_acknowledged
    assert outcome.xid == outcome.message_id == named["UNIQ_KEY"]
    assert outcome.queue == Queue(TOPIC, stage.broker.name, int(half["e"]))
    assert outcome.half_offset == outcome.half.offset == 0
    assert outcome.problem is None
    assert end == {
        "producerGroup": GROUP,
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": outcome.xid,
        "transactionId": outcome.xid,
        "topic": TOPIC,
    }


@staged()
async def test_the_local_transaction_gets_the_half_message_and_the_argument(stage):
    arg = object()
    outcome = await stage.producer.send_in_transaction(message(b"1", keys=("o-1",)), arg)

    ((half, given),) = stage.bank.executed
    assert given is arg
    assert isinstance(half, HalfMessage)
    assert (half.id, half.key, half.body, half.topic) == (outcome.xid, "o-1", b"1", TOPIC)
    assert half.sent == outcome.half
    await stage.producer.send_in_transaction(message(b"2"))
    assert stage.bank.executed[1][0].key == stage.bank.executed[1][0].id


@staged()
async def test_a_compressed_message_is_sent_as_a_half_message(stage):
    await stage.producer.send_in_transaction(message(b"x" * 9000))

    assert int(stage.halves[0]["f"]) & SysFlag.PREPARED
    assert int(stage.halves[0]["f"]) & SysFlag.COMPRESSED


@staged()
async def test_a_message_that_has_an_id_keeps_it(stage):
    outcome = await stage.producer.send_in_transaction(message(properties={"UNIQ_KEY": "mine"}))

    assert outcome.xid == "mine"


@pytest.mark.parametrize(
    ("delay", "wish"),
    [
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"deliver_after": "90s"}, {"TIMER_DELAY_SEC": "90"}),
        ({"deliver_after": 0.25}, {"TIMER_DELAY_MS": "250"}),
        ({"deliver_at_ms": 1}, {"TIMER_DELIVER_MS": "1"}),
        ({"properties": {"DELAY": "1"}}, {"DELAY": "1"}),
    ],
)
def test_a_delayed_message_is_sent_by_a_request_that_only_txmq_brokers_know(delay, wish):
    @staged()
    async def scenario(stage):
        stage.broker.on_send_delayed_half = stage.broker.on_send_message_v2

        outcome = await stage.producer.send_in_transaction(message(**delay))

        assert stage.halves == []
        (sent,) = [fields for _, code, fields in stage.cluster.asked if code == 7712]
        assert fields_of(sent).items() >= {**wish, "TRAN_MSG": "true"}.items()
        handle = recall.decode(outcome.sent[0].recall_handle)
        assert handle == (TOPIC, stage.broker.name, delay.get("deliver_at_ms", 0), outcome.xid)

    scenario()


@staged()
async def test_another_broker_refuses_a_delayed_message_before_it_stores_anything(stage):
    with pytest.raises(RequestNotSupported, match="only a txmq broker can delay"):
        await stage.producer.send_in_transaction(message(delay_level=3))

    assert (stage.halves, stage.ends, stage.bank.executed) == ([], [], [])
    assert not any(stage.broker.queues.values())


@staged()
async def test_a_delay_in_two_ways_is_refused_before_anything_is_sent(stage):
    with pytest.raises(LocalProtocolError, match="delayed in one way"):
        await stage.producer.send_in_transaction(message(delay_level=3, deliver_after=1))

    assert stage.cluster.codes("SEND_DELAYED_HALF", "SEND_MESSAGE_V2") == []


@staged()
async def test_a_half_message_keeps_every_field_of_its_message(stage):
    sent = message(tags="A", keys=("k1", "k2"), properties={"p": "q"}, flag=7)
    await stage.producer.send_in_transaction(sent)

    [(half, _)] = stage.bank.executed
    delays = {"delay_level", "deliver_at_ms", "deliver_after"}  # A half message cannot be delayed.
    for part in {field.name for field in dataclasses.fields(Message)} - delays - {"properties"}:
        assert getattr(half, part) == getattr(sent, part)
    assert half.properties.items() > sent.properties.items()


@staged()
async def test_a_reply_in_a_transaction_is_refused(stage):
    queue = Queue(TOPIC, "broker-a", 0)
    reply = Reply(topic=TOPIC, body=b"yes", asked_in=queue)
    with pytest.raises(UsageError, match="a reply goes to the one who asked"):
        await stage.producer.send_in_transaction(reply)
    assert stage.halves == []


@staged()
async def test_an_invalid_message_runs_no_local_transaction(stage):
    with pytest.raises(LocalProtocolError, match="sends Messages, not a str"):
        await stage.producer.send_in_transaction("hello")
    with pytest.raises(LocalProtocolError, match="needs a message"):
        await stage.producer.send_in_transaction([])
    with pytest.raises(LimitExceeded, match="a transaction's messages is at most 64, not 65"):
        await stage.producer.send_in_transaction([message()] * 65)
    with pytest.raises(LimitExceeded):
        await stage.producer.send_in_transaction(message(b"x" * 5_000_000))
    assert stage.bank.executed == []


@staged()
async def test_a_transaction_producer_can_send_ordinary_messages(stage):
    result = await stage.producer.send(message())

    assert result.status is SendStatus.OK
    assert "TRAN_MSG" not in fields_of(stage.halves[0])
    batch = await stage.producer.send_batch([message(), message()])
    assert len(batch) == 2
    half = message(properties={"TRAN_MSG": "true"})
    with pytest.raises(LocalProtocolError, match="half of a transaction"):
        await stage.producer.send_batch([half, half])


# What the local transaction says


@staged(bank={"says": ROLLBACK})
async def test_a_rollback_is_sent_to_the_broker(stage):
    outcome = await stage.producer.send_in_transaction(message())

    assert (outcome.state, outcome.is_acknowledged) == (ROLLED_BACK, True)
    assert stage.said == [ROLLBACK]


@staged(bank={"says": UNKNOWN})
async def test_an_unknown_state_sends_no_end_and_is_left_to_the_check(stage):
    outcome = await stage.producer.send_in_transaction(message())

    assert (outcome.state, outcome.is_acknowledged) == (NOT_KNOWN, False)
    assert stage.ends == []


@staged(bank={"says": RuntimeError("the database is gone")})
async def test_an_exception_sends_no_end_and_is_in_the_outcome(stage):
    outcome = await stage.producer.send_in_transaction(message())

    assert outcome.state is NOT_KNOWN
    assert str(outcome.problem) == "the database is gone"
    assert stage.ends == []


@staged(bank={"says": RollBack("no money")})
async def test_raising_rollback_rolls_the_transaction_back(stage):
    outcome = await stage.producer.send_in_transaction(message())

    assert (outcome.state, str(outcome.problem)) == (ROLLED_BACK, "no money")
    assert stage.said == [ROLLBACK]


@pytest.mark.parametrize("nonsense", [None, True, 8, "COMMIT", COMMITTED])
def test_an_invalid_return_value_counts_as_unknown(nonsense):
    @staged(bank={"says": nonsense})
    async def scenario(stage):
        outcome = await stage.producer.send_in_transaction(message())

        assert outcome.state is NOT_KNOWN
        assert "returns a LocalTransactionState" in str(outcome.problem)
        assert stage.ends == []

    scenario()


@staged(bank={"says": asyncio.CancelledError()})
async def test_a_cancelled_error_inside_the_local_transaction_counts_as_unknown(stage):
    outcome = await stage.producer.send_in_transaction(message())

    assert outcome.state is NOT_KNOWN


# When the half message fails


@staged(brokers=2)
async def test_a_half_message_that_was_not_stored_is_retried_elsewhere(stage):
    for broker in (0, 1):
        stage.told("half", refuse(14), broker=broker)

    outcome = await stage.producer.send_in_transaction(message())

    assert outcome.state is COMMITTED
    assert len(stage.halves) == 3
    assert len({fields_of(half)["UNIQ_KEY"] for half in stage.halves}) == 1


@pytest.mark.fault("P9")
@staged()
async def test_a_half_message_whose_answer_is_lost_is_not_repeated_and_nothing_runs(stage):
    stage.told("half", stage.lose)
    with pytest.raises(ConnectionLost) as lost:
        await stage.producer.send_in_transaction(message())

    assert lost.value.effect is Effect.MAYBE
    (note,) = lost.value.__notes__
    assert fields_of(stage.halves[0])["UNIQ_KEY"] in note
    assert len(stage.halves) == 1
    assert stage.bank.executed == []
    assert stage.ends == []


@staged(timeout=1.0)
async def test_a_half_message_without_an_answer_may_be_stored(stage):
    stage.told("half", silent)
    with pytest.raises(RequestTimeout) as late:
        await stage.producer.send_in_transaction(message())
    assert late.value.effect is Effect.MAYBE
    assert len(stage.halves) == 1


@pytest.mark.parametrize(
    ("code", "error", "tries"),
    [(13, MessageIllegal, 1), (1, InternalError, 1), (14, ServiceUnavailable, 3)],
)
def test_a_refused_half_message_runs_no_local_transaction(code, error, tries):
    @staged()
    async def scenario(stage):
        stage.told("half", *[refuse(code)] * 3)
        with pytest.raises(error):
            await stage.producer.send_in_transaction(message())
        assert len(stage.halves) == tries
        assert stage.bank.executed == []

    scenario()


@staged(retry_not_safe=True)
async def test_an_unsafely_stored_half_message_is_rolled_back(stage):
    def unsafe(request):
        number = request.read(headers.SendMessageV2).queue_id
        told = headers.SendAnswer("7F00000100002A9F0000000000000010", number, 5)
        return command.answer(request, 11, told)

    stage.told("half", unsafe)
    outcome = await stage.producer.send_in_transaction(message())

    assert outcome.state is ROLLED_BACK
    assert outcome.half.status is SendStatus.SLAVE_NOT_AVAILABLE
    assert "not safely" in str(outcome.problem)
    assert stage.bank.executed == []
    (end,) = stage.ends
    assert (end["commitLogOffset"], end["tranStateTableOffset"]) == ("16", "5")


@staged()
async def test_an_answer_without_a_valid_offset_id_leaves_the_half_message_in_doubt(stage):
    stage.told("half", lambda asked: command.answer(asked, 0, headers.SendAnswer("?", 0, 0)))
    with pytest.raises(Exception, match=r"offset id|id") as told:
        await stage.producer.send_in_transaction(message())
    assert told.value.effect is Effect.MAYBE
    assert stage.bank.executed == []


# When the END fails


@staged()
async def test_an_end_whose_answer_is_lost_is_not_repeated(stage):
    stage.told("end", stage.lose)
    outcome = await stage.producer.send_in_transaction(message())

    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
    assert isinstance(outcome.problem, ConnectionLost)
    assert stage.said == [COMMIT]
    assert stage.producer.tally.unacknowledged == 1


def test_an_unacknowledged_commit_is_logged(caplog):
    @staged()
    async def scenario(stage):
        stage.told("end", stage.lose)
        await stage.producer.send_in_transaction(message())

    scenario()
    assert "is committed, but its broker has not confirmed it" in caplog.text


@staged(awaits_end=False)
async def test_an_end_that_is_not_awaited_is_still_sent(stage):
    stage.told("end", silent)
    async with asyncio.timeout(1.0):  # An END is given up after three seconds.
        outcome = await stage.producer.send_in_transaction(message())

    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
    assert outcome.problem is None
    await stage.until(lambda: stage.producer.tally.unacknowledged)
    assert stage.said == [COMMIT]
    assert stage.producer.tally.committed == 1


@staged(awaits_end=False, bank={"says": UNKNOWN})
async def test_an_unknown_state_sends_no_end_when_ends_are_not_awaited(stage):
    outcome = await stage.producer.send_in_transaction(message())

    assert outcome.state is TransactionState.UNKNOWN
    assert stage.said == []


@staged(awaits_end=False)
async def test_closing_waits_for_an_end_that_is_not_awaited(stage):
    half = await stage.producer.prepare(message())
    assert not (await stage.producer.decide(half, ROLLBACK)).is_acknowledged
    await stage.producer.__aexit__(None, None, None)

    assert stage.said == [ROLLBACK]
    assert stage.producer.tally.rolled_back == 1


def test_a_conflict_of_an_end_that_is_not_awaited_is_counted_and_logged(caplog):
    @staged(awaits_end=False)
    async def scenario(stage):
        stage.told("end", refuse(201))
        await stage.producer.send_in_transaction(message())
        await stage.until(lambda: stage.producer.tally.conflicts)

    scenario()
    assert "TransactionConflict" in caplog.text


@staged(repeats_end=True)
async def test_repeats_end_repeats_an_end_until_it_is_acknowledged(stage):
    stage.told("end", stage.lose, stage.lose)
    outcome = await stage.producer.send_in_transaction(message())

    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, True)
    assert stage.said == [COMMIT] * 3


@staged(end_timeout=2.0)
async def test_an_unanswered_end_is_given_up_after_end_timeout(stage):
    stage.told("end", silent)
    began = stage.world.now()
    outcome = await stage.producer.send_in_transaction(message())

    assert stage.world.now() - began == pytest.approx(2.0, abs=0.1)
    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
    assert isinstance(outcome.problem, RequestTimeout)


@staged()
async def test_an_end_refused_as_unavailable_is_repeated(stage):
    stage.told("end", refuse(14), refuse(14))
    outcome = await stage.producer.send_in_transaction(message())

    assert outcome.is_acknowledged
    assert stage.said == [COMMIT] * 3


@staged()
async def test_an_end_refused_again_and_again_is_left_to_the_check(stage):
    stage.told("end", *[refuse(14)] * 100)
    outcome = await stage.producer.send_in_transaction(message())

    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
    assert isinstance(outcome.problem, ServiceUnavailable)
    assert 3 < len(stage.ends) < 20


@staged()
async def test_a_permanent_refusal_of_an_end_is_not_retried(stage):
    stage.told("end", refuse(203))
    outcome = await stage.producer.send_in_transaction(message())

    assert isinstance(outcome.problem, TransactionGroupWrong)
    assert (outcome.is_acknowledged, len(stage.ends)) == (False, 1)


@staged()
async def test_an_end_is_sent_when_its_broker_is_back_after_a_moment(stage):
    listener = stage.cluster.listeners[0]
    host, port = listener.address

    async def outage():
        stage.broker.connection.abort()
        listener.close()
        await asyncio.sleep(0.1)  # The loss takes a moment to be noticed.
        return COMMIT

    async def back():
        await asyncio.sleep(1.0)
        await listener.open(host, port)

    stage.bank.says = outage
    coming = asyncio.ensure_future(back())
    outcome = await stage.producer.send_in_transaction(message())
    await coming

    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, True)
    assert stage.said == [COMMIT]


@staged(end_timeout=0.5)
async def test_an_end_for_a_broker_that_stays_away_is_left_to_the_check(stage):
    async def outage():
        stage.broker.connection.abort()
        stage.cluster.listeners[0].close()
        await asyncio.sleep(0.1)
        return COMMIT

    stage.bank.says = outage
    outcome = await stage.producer.send_in_transaction(message())

    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
    assert outcome.problem.effect is Effect.NONE


@staged(end_timeout=0.5)
async def test_an_end_waits_no_longer_than_end_timeout_for_a_connection(stage):
    async def partition():
        stage.broker.connection.abort()
        await asyncio.sleep(0.1)  # The loss takes a moment to be noticed.
        stage.world.network.isolate("server")
        return COMMIT

    stage.bank.says = partition
    began = stage.world.now()
    outcome = await stage.producer.send_in_transaction(message())

    assert stage.world.now() - began == pytest.approx(0.6, abs=0.1)
    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
    assert outcome.problem.effect is Effect.NONE


@pytest.mark.parametrize(("says", "code"), [(COMMIT, 201), (ROLLBACK, 200)])
def test_a_conflict_raises_transaction_conflict_and_is_counted(says, code):
    @staged(bank={"says": says})
    async def scenario(stage):
        stage.told("end", refuse(code))
        with pytest.raises(TransactionConflict) as told:
            await stage.producer.send_in_transaction(message())

        conflict = told.value
        assert (conflict.said, conflict.effect) == (says.name, Effect.APPLIED)
        assert conflict.xid == fields_of(stage.halves[0])["UNIQ_KEY"]
        assert isinstance(conflict.__cause__, BrokerRefused)
        assert stage.producer.tally.conflicts == 1
        assert len(stage.ends) == 1

    scenario()


@pytest.mark.parametrize(("says", "code"), [(COMMIT, 200), (ROLLBACK, 201)])
def test_an_end_that_repeats_an_earlier_decision_is_acknowledged(says, code):
    @staged(bank={"says": says})
    async def scenario(stage):
        stage.told("end", refuse(code))
        outcome = await stage.producer.send_in_transaction(message())
        assert (outcome.is_acknowledged, outcome.problem) == (True, None)

    scenario()


# In parts


@staged()
async def test_prepare_and_decide_do_what_send_in_transaction_does(stage):
    half = await stage.producer.prepare(message())
    outcome = await stage.producer.decide(half, ROLLBACK, RuntimeError("why"))

    assert (outcome.state, outcome.xid, str(outcome.problem)) == (ROLLED_BACK, half.id, "why")
    assert stage.bank.executed == []
    assert stage.said == [ROLLBACK]


# Opening and closing


@staged(bank={"says": UNKNOWN})
async def test_the_tally_counts_outcomes(stage):
    for state in (COMMIT, COMMIT, ROLLBACK, UNKNOWN):
        stage.bank.says = state
        await stage.producer.send_in_transaction(message())

    tally = stage.producer.tally
    assert (tally.committed, tally.rolled_back, tally.unknown) == (2, 1, 1)
    assert (tally.unacknowledged, tally.conflicts) == (0, 0)


@staged()
async def test_closing_waits_for_a_local_transaction_and_its_end(stage):
    stage.bank.says = lambda: asyncio.sleep(5.0, COMMIT)
    running = asyncio.ensure_future(stage.producer.send_in_transaction(message()))
    await stage.until(lambda: stage.bank.executed)
    await stage.producer.__aexit__(None, None, None)

    assert stage.said == [COMMIT]
    assert (await running).is_acknowledged
    with pytest.raises(UsageError, match="not open"):
        await stage.producer.send_in_transaction(message())
    with pytest.raises(UsageError, match="not open"):
        await stage.producer.decide(None, COMMIT)


@staged(stop_timeout=2.0)
async def test_closing_waits_no_longer_than_stop_timeout(stage):
    stage.bank.says = lambda: asyncio.sleep(60.0, COMMIT)
    running = asyncio.ensure_future(stage.producer.send_in_transaction(message()))
    await stage.until(lambda: stage.bank.executed)
    began = stage.world.now()
    await stage.producer.__aexit__(None, None, None)

    assert stage.world.now() - began < 4.0
    outcome = await running
    assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
    assert isinstance(outcome.problem, UsageError)
    assert stage.ends == []


@staged()
async def test_a_closing_producer_refuses_new_transactions(stage):
    stage.bank.says = lambda: asyncio.sleep(1.0, COMMIT)
    running = asyncio.ensure_future(stage.producer.send_in_transaction(message()))
    await stage.until(lambda: stage.bank.executed)
    closing = asyncio.ensure_future(stage.producer.__aexit__(None, None, None))
    await asyncio.sleep(0.5)
    with pytest.raises(UsageError, match="is closing"):
        await stage.producer.send_in_transaction(message())
    await asyncio.gather(running, closing)


@staged()
async def test_deciding_with_a_closed_producer_is_refused(stage):
    half = await stage.producer.prepare(message())
    await stage.producer.__aexit__(None, None, None)
    with pytest.raises(UsageError):
        await stage.producer.decide(half, COMMIT)


@staged()
async def test_a_closed_producer_can_be_opened_again_but_not_twice_at_once(stage):
    with pytest.raises(UsageError, match="open already"):
        await stage.producer.__aenter__()
    await stage.producer.__aexit__(None, None, None)
    async with stage.producer:
        assert (await stage.producer.send_in_transaction(message())).is_acknowledged


def test_an_invalid_listener_or_setting_is_refused_when_created():
    with pytest.raises(UsageError, match="execute_local_transaction"):
        TransactionProducer("g", "127.0.0.1:1", object())
    with pytest.raises(UsageError, match="has none to call"):
        TransactionProducer("g", "127.0.0.1:1", Bank)

    class Short(Bank):
        def check_local_transaction(self):
            return COMMIT

    with pytest.raises(UsageError, match="check_local_transaction is called with 1"):
        TransactionProducer("g", "127.0.0.1:1", Short())
    with pytest.raises(ConfigError, match="TransactionSettings"):
        TransactionProducer("g", "127.0.0.1:1", Bank(), ProducerSettings())
    for wrong in ({"check_workers": 0}, {"timeout": 0}, {"check_queue": -1}, {"stop_timeout": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TransactionSettings(**wrong)
