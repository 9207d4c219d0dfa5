"""The nine steps of a transaction, as spans below the span of the transaction."""

import asyncio
import contextlib
import logging

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

import txmq.blocking
from tests.running import run_by
from tests.unit.transaction.producing_stage import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    message,
    refuse,
    staged,
)
from tests.unit.transaction.spans_stage import NINE, Spans, below_now
from tests.waiting import run
from txmq.client.client import Client
from txmq.client.consume import PushConsumer
from txmq.client.observe.hooks import SendHooks
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.errors import BrokerRefused, DatabaseFailed, RollBack, TransactionConflict, UsageError
from txmq.protocol import command, headers
from txmq.transaction import TransactionProducer
from txmq.transaction.story import note
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import embedded

LOGGER = "txmq.transaction.story"
CALM = BrokerSettings(store=StoreSettings(flush="async"))


@pytest.fixture
def spans():
    return Spans(TOPIC)


class Plain:
    """A listener that blocks."""

    def __init__(self, spans, says=COMMIT):
        self.spans, self.says = spans, says

    def execute_local_transaction(self, message, arg):
        below_now(self.spans)
        note(message.id, "branch %s is prepared", "icbc")
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says

    def check_local_transaction(self, message):
        return COMMIT


class Awaited(Plain):
    """A listener that does not block."""

    async def execute_local_transaction(self, message, arg):
        await asyncio.sleep(0)
        return super().execute_local_transaction(message, arg)


@contextlib.asynccontextmanager
async def opened(spans, listener):
    async with (
        embedded(CALM) as broker,
        Client(broker.names, spans.settings) as client,
        TransactionProducer(GROUP, client, listener) as producer,
    ):
        await client.admin.create_topic(TOPIC, queues=1)
        yield client, producer


def see_that_it_is_whole(spans, xid, *, parent=None):
    whole = spans.whole
    assert (whole.parent and whole.parent.span_id) == (parent and parent.context.span_id)
    steps = spans.below(whole)
    assert [step.name for step in steps] == NINE
    assert [step.attributes["txmq.transaction.step"] for step in steps] == list(range(1, 10))
    for previous, following in zip(steps, steps[1:], strict=False):
        assert previous.start_time <= previous.end_time <= following.start_time
    assert steps[-1].end_time <= whole.end_time
    assert whole.attributes["messaging.message.id"] == xid
    assert whole.attributes["messaging.rocketmq.client_group"] == GROUP
    by_name = {step.name: step for step in steps}
    assert spans.names(by_name["2 send"]) == [f"send {TOPIC}"]
    assert spans.names(by_name["5 run"]) == ["work"]
    return whole, by_name


@pytest.mark.parametrize("kind", [Plain, Awaited])
@pytest.mark.parametrize(
    ("says", "outcome", "is_acknowledged"),
    [(COMMIT, "COMMITTED", True), (ROLLBACK, "ROLLED_BACK", True), (UNKNOWN, "UNKNOWN", False)],
)
@run_by(run)
async def test_the_nine_steps_are_spans_of_one_transaction(
    spans, kind, says, outcome, is_acknowledged
):
    async with opened(spans, kind(spans, says)) as (_, producer):
        xid = (await producer.send_in_transaction(message())).xid
    whole, steps = see_that_it_is_whole(spans, xid)
    assert whole.attributes["txmq.transaction.state"] == outcome
    assert whole.attributes["txmq.transaction.is_acknowledged"] is is_acknowledged
    assert whole.status.status_code is StatusCode.UNSET
    said = steps["6 return"].attributes["txmq.transaction.text"]
    assert said == f"the local transaction returns {says.name}"
    ends = [] if says is UNKNOWN else [f"end {TOPIC}"]
    assert spans.names(steps["8 decide"]) == ends
    assert [event.name for event in steps["5 run"].events] == ["branch icbc is prepared"]


def test_log_lines_and_spans_tell_the_same_steps(spans, caplog):
    async def scenario():
        async with opened(spans, Awaited(spans)) as (_, producer):
            await producer.send_in_transaction(message())

    with caplog.at_level(logging.DEBUG, LOGGER):
        run(scenario)
    lines = [
        entry.args for entry in caplog.records if entry.name == LOGGER and len(entry.args) == 3
    ]
    told = [
        (entry.attributes["txmq.transaction.step"], entry.attributes["txmq.transaction.text"])
        for entry in spans.below(spans.whole)
    ]
    assert told == [(number, text) for _, number, text in lines]
    assert {xid for xid, _, _ in lines} == {spans.whole.attributes["messaging.message.id"]}


@run_by(run)
async def test_transaction_and_consumer_spans_join_the_trace_of_the_caller(spans):
    async with opened(spans, Plain(spans)) as (client, producer):
        consumer = PushConsumer("ccb", client, ConsumerSettings(start=StartFrom.FIRST))
        consumer.on(TOPIC)(lambda message: below_now(spans, "pay"))
        with spans.tracer.start_as_current_span("transfer"):
            xid = (await producer.send_in_transaction(message())).xid
            assert trace.get_current_span().name == "transfer"
        async with consumer, asyncio.timeout(10):
            while not spans(f"process {TOPIC}"):
                await asyncio.sleep(0.01)

    transfer = spans.one("transfer")
    see_that_it_is_whole(spans, xid, parent=transfer)
    handled = spans.one(f"process {TOPIC}")
    assert handled.parent.span_id == spans.one(f"send {TOPIC}").context.span_id
    assert spans.names(handled) == ["pay"]
    traces = {span.context.trace_id for span in spans.exporter.get_finished_spans()}
    assert traces == {transfer.context.trace_id}


@run_by(run)
async def test_a_blocking_producer_leaves_the_same_spans(spans):
    async with embedded(CALM) as broker:

        def here():
            with (
                txmq.blocking.Client(broker.names, spans.settings) as client,
                txmq.blocking.TransactionProducer(GROUP, client, Plain(spans)) as producer,
                spans.tracer.start_as_current_span("transfer"),
            ):
                return producer.send_in_transaction(message()).xid

        xid = await asyncio.to_thread(here)
    see_that_it_is_whole(spans, xid, parent=spans.one("transfer"))


@run_by(run)
async def test_concurrent_transactions_have_separate_spans(spans):
    async with opened(spans, Awaited(spans)) as (_, producer):
        sent = [producer.send_in_transaction(message()) for _ in range(5)]
        xids = {transaction.xid for transaction in await asyncio.gather(*sent)}
    wholes = spans(f"transaction {TOPIC}")
    assert {transaction.attributes["messaging.message.id"] for transaction in wholes} == xids
    assert [spans.names(transaction) for transaction in wholes] == [NINE] * 5


@pytest.mark.parametrize("kind", [Plain, Awaited])
@run_by(run)
async def test_an_exception_of_the_local_transaction_is_recorded_in_the_spans(spans, kind):
    listener = kind(spans, ValueError("no such account"))
    async with opened(spans, listener) as (_, producer):
        xid = (await producer.send_in_transaction(message())).xid
        whole, steps = see_that_it_is_whole(spans, xid)
        assert whole.attributes["txmq.transaction.state"] == "UNKNOWN"
        assert whole.attributes["error.type"] == "ValueError"
        assert whole.status.status_code is StatusCode.ERROR
        ends = [event.name for event in steps["5 run"].events]
        assert ends[-1] == "the local transaction ends with ValueError('no such account')"
        assert steps["5 run"].status.status_code is StatusCode.UNSET


@run_by(run)
async def test_a_deliberate_rollback_is_no_span_error(spans):
    async with opened(spans, Awaited(spans, RollBack("too little"))) as (_, producer):
        await producer.send_in_transaction(message())
    assert spans.whole.attributes["txmq.transaction.state"] == "ROLLED_BACK"
    assert spans.whole.status.status_code is StatusCode.UNSET


def watched(stage, spans):
    """Record spans in the simulated world, too."""
    stage.producer._hooks = SendHooks([spans.telemetry.of_producer(GROUP, "here")])


def test_a_refused_half_message_ends_the_transaction_span_with_an_error(spans):
    @staged()
    async def scenario(stage):
        watched(stage, spans)
        stage.told("half", refuse(1))
        with pytest.raises(BrokerRefused):
            await stage.producer.send_in_transaction(message())

    scenario()
    first, second = spans.below(spans.whole)
    assert [first.name, second.name] == ["1 open", "2 send"]
    assert first.status.status_code is StatusCode.UNSET
    for span in (second, spans.whole, spans.one(f"send {TOPIC}")):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == "InternalError"
    assert "txmq.transaction.state" not in spans.whole.attributes


def test_an_unsafe_half_message_is_rolled_back_without_a_local_transaction(spans):
    @staged(retry_not_safe=False)
    async def scenario(stage):
        watched(stage, spans)
        told = headers.SendAnswer("7F00000100002A9F0000000000000010", 0, 5)
        stage.told("half", lambda asked: command.answer(asked, 11, told))
        assert (await stage.producer.send_in_transaction(message())).problem is not None

    scenario()
    left_out = {"5 run", "6 return"}
    assert spans.names(spans.whole) == [step for step in NINE if step not in left_out]
    assert spans.whole.attributes["txmq.transaction.state"] == "ROLLED_BACK"


def test_a_conflict_marks_the_decide_span_as_an_error(spans):
    @staged()
    async def scenario(stage):
        watched(stage, spans)
        stage.told("end", refuse(201))
        with pytest.raises(TransactionConflict):
            await stage.producer.send_in_transaction(message())

    scenario()
    assert spans.names(spans.whole) == NINE[:8]
    assert spans.below(spans.whole)[-1].status.status_code is StatusCode.ERROR
    assert spans.whole.attributes["error.type"] == "TransactionConflict"


def test_cancelling_a_local_transaction_leaves_no_span_open(spans):
    @staged(bank={"says": lambda: asyncio.sleep(3600, COMMIT)})
    async def scenario(stage):
        watched(stage, spans)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await stage.producer.send_in_transaction(message())
        await asyncio.sleep(0)
        assert stage.ends == []
        assert len(spans(f"transaction {TOPIC}")) == 1

    scenario()
    assert spans.whole.attributes["txmq.transaction.state"] == "UNKNOWN"
    assert spans.names(spans.whole) == [*NINE[:5], *NINE[7:]]


def test_cancelling_during_the_end_request_still_closes_all_spans(spans):
    @staged()
    async def scenario(stage):
        watched(stage, spans)
        stage.told("end", lambda request: None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await stage.producer.send_in_transaction(message())
        await stage.until(lambda: spans(f"transaction {TOPIC}"))

    scenario()
    assert spans.names(spans.whole) == NINE
    assert spans.whole.attributes["txmq.transaction.is_acknowledged"] is False


def test_closing_the_producer_ends_the_span_of_an_undecided_transaction(spans):
    @staged()
    async def scenario(stage):
        watched(stage, spans)
        await stage.half()
        await stage.producer.__aexit__(None, None, None)

    scenario()
    assert spans.names(spans.whole) == NINE[:4]
    assert "txmq.transaction.state" not in spans.whole.attributes


def test_the_oldest_span_is_ended_when_too_many_are_open(spans, monkeypatch):
    monkeypatch.setattr("txmq.transaction.story.STORIES_MAX", 2)

    @staged()
    async def scenario(stage):
        watched(stage, spans)
        halves = [await stage.producer.prepare(message()) for _ in range(3)]
        assert spans.whole.attributes["messaging.message.id"] == halves[0].id
        await stage.producer.decide(halves[0], COMMIT)
        await stage.producer.decide(halves[2], COMMIT)

    scenario()
    assert [spans.names(span) for span in spans(f"transaction {TOPIC}")] == [
        NINE[:4], [*NINE[:4], *NINE[7:]], NINE[:4],
    ]  # fmt: skip


def test_preparing_the_same_id_again_ends_the_first_span(spans):
    @staged()
    async def scenario(stage):
        watched(stage, spans)
        again = message(properties={"UNIQ_KEY": "0A"})
        await stage.producer.prepare(again)
        await stage.producer.decide(await stage.producer.prepare(again), COMMIT)

    scenario()
    assert [spans.names(span) for span in spans(f"transaction {TOPIC}")] == [
        NINE[:4], [*NINE[:4], *NINE[7:]],
    ]  # fmt: skip


def test_no_story_is_kept_without_telemetry():
    @staged()
    async def scenario(stage):
        await stage.half()
        stories = stage.producer.stories
        assert stories.inside("one") is stories.inside("another")
        assert not stories._open

    scenario()


def test_the_confirmation_by_the_resource_belongs_to_the_ninth_span(spans, caplog):
    class Databases:
        identity = "fence-1"

        async def confirm(self, xid, state):
            await asyncio.sleep(0)
            note(xid, "branch %s is committed", "icbc")
            below_now(spans, "commit")
            raise DatabaseFailed("ccb is away")

        async def attend(self):
            """Nothing to recover."""

    class Confirming(TransactionProducer):
        def __init__(self, *given):
            super().__init__(*given)
            self._resource = Databases()

    async def scenario():
        async with (
            embedded(CALM) as broker,
            Client(broker.names, spans.settings) as client,
            Confirming(GROUP, client, Awaited(spans)) as producer,
        ):
            await producer.send_in_transaction(message())

    run(scenario)
    last = spans.below(spans.whole)[-1]
    assert [event.name for event in last.events] == ["branch icbc is committed"]
    assert spans.names(last) == ["commit"]
    assert spans.whole.attributes["txmq.transaction.state"] == "COMMITTED"
    assert last.status.status_code is spans.whole.status.status_code is StatusCode.ERROR


def test_a_note_on_another_transaction_is_logged_but_not_added_to_a_span(spans, caplog):
    class Confused(Awaited):
        async def execute_local_transaction(self, message, arg):
            note("another", "branch %s is prepared", "ccb")
            return COMMIT

    async def scenario():
        async with opened(spans, Confused(spans)) as (_, producer):
            await producer.send_in_transaction(message())

    with caplog.at_level(logging.DEBUG, LOGGER):
        run(scenario)
    assert "transaction another: branch ccb is prepared" in caplog.text
    assert not spans.one("5 run").events


@staged()
async def test_deciding_with_a_closed_producer_is_refused(stage):
    half = await stage.producer.prepare(message())
    await stage.producer.__aexit__(None, None, None)
    with pytest.raises(UsageError):
        await stage.producer.decide(half, COMMIT)
