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
)
from tests.unit.transaction.spans_stage import NINE, Spans, below_now
from tests.waiting import run
from txmq.client.client import Client
from txmq.client.consume import PushConsumer
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.errors import DatabaseFailed, RollBack
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


@run_by(run)
async def test_the_confirmation_by_the_resource_belongs_to_the_ninth_span(spans, caplog):
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

    async with (
        embedded(CALM) as broker,
        Client(broker.names, spans.settings) as client,
        Confirming(GROUP, client, Awaited(spans)) as producer,
    ):
        await producer.send_in_transaction(message())
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
