"""The nine steps of a manager as spans; spans of the function lie below the local one."""

import asyncio
import contextlib

import pytest
from opentelemetry.trace import StatusCode

import txmq.blocking
from tests.integration.manager.manager_stage import (
    GROUP,
    MESSAGE,
    TOPIC,
    Order,
    cancelled,
    coloured,
    take,
    take_plainly,
)
from tests.running import run_by
from tests.unit.transaction.spans_stage import NINE, Spans, below_now
from txmq import Client, TransactionManager

ORDER = Order("o-1", 30)
TOO_MUCH = Order("o-2", 3000)


@pytest.fixture
def spans():
    return Spans(TOPIC)


@contextlib.asynccontextmanager
async def managed(stage, spans, *, is_blocking=False):
    async with (
        Client(stage.names, spans.settings) as client,
        TransactionManager(GROUP, client, stage.resource(is_blocking=is_blocking)) as tm,
    ):
        yield tm


def decorated(tm, spans, *, is_blocking=False, **how):
    """A transfer that leaves a span of its own."""

    async def transfer(session, order):
        below_now(spans)
        return await take(session, order)

    return tm.transactional(topic=TOPIC, **how)(coloured(transfer, is_blocking))


def see_that_it_is_whole(spans, xid):
    assert spans.whole.attributes["messaging.message.id"] == xid
    assert spans.names(spans.whole) == NINE
    assert spans.names(spans.one("5 run")) == ["work"]
    assert spans.whole.attributes["txmq.transaction.state"] == "COMMITTED"


@pytest.mark.parametrize("is_blocking", [False, True])
@run_by("on_stage")
async def test_a_decorated_function_runs_within_the_fifth_span(stage, /, spans, is_blocking):
    async with managed(stage, spans, is_blocking=is_blocking) as tm:
        outcome = await decorated(tm, spans, is_blocking=is_blocking)(ORDER)
    see_that_it_is_whole(spans, outcome.xid)


@pytest.mark.parametrize("is_blocking", [False, True])
@run_by("on_stage")
async def test_an_exception_is_an_event_of_the_fifth_span_and_no_span_error(
    stage, /, spans, is_blocking
):
    async with managed(stage, spans, is_blocking=is_blocking) as tm:
        with pytest.raises(Exception, match="(?i)check"):
            await decorated(tm, spans, is_blocking=is_blocking)(TOO_MUCH)
    assert spans.names(spans.whole) == NINE
    (told,) = spans.one("5 run").events
    assert told.name.startswith("the local transaction ends with IntegrityError(")
    assert spans.whole.attributes["txmq.transaction.state"] == "ROLLED_BACK"
    assert spans.whole.status.status_code is StatusCode.UNSET


@run_by("on_stage")
async def test_an_async_block_runs_within_the_fifth_span(stage, /):
    spans = Spans(TOPIC)
    async with managed(stage, spans) as tm:
        with spans.tracer.start_as_current_span("transfer"):
            async with tm.transaction(MESSAGE) as transaction:
                await take(transaction.session, ORDER)
                below_now(spans)
            below_now(spans, "afterwards")
    see_that_it_is_whole(spans, transaction.xid)
    assert spans.names(spans.one("transfer")) == [f"transaction {TOPIC}", "afterwards"]


@run_by("on_stage")
async def test_a_blocking_block_runs_within_the_fifth_span(stage, /):
    spans = Spans(TOPIC)
    resource = stage.resource(is_blocking=True)

    def here():
        with (
            txmq.blocking.Client(stage.names, spans.settings) as client,
            txmq.blocking.TransactionManager(GROUP, client, resource) as tm,
            spans.tracer.start_as_current_span("transfer"),
        ):
            with tm.transaction(MESSAGE) as transaction:
                take_plainly(transaction.session, ORDER)
                below_now(spans)
            below_now(spans, "afterwards")
            return transaction.xid

    see_that_it_is_whole(spans, await asyncio.to_thread(here))
    assert spans.names(spans.one("transfer")) == [f"transaction {TOPIC}", "afterwards"]


@run_by("on_stage")
async def test_a_cancelled_function_is_recorded_as_rolled_back(stage, /):
    spans = Spans(TOPIC)
    async with managed(stage, spans) as tm:
        begun = asyncio.Event()

        @tm.transactional(topic=TOPIC)
        async def transfer(session, order):
            begun.set()
            await asyncio.Event().wait()

        running = asyncio.ensure_future(transfer(ORDER))
        await begun.wait()
        await cancelled(running)
    assert spans.names(spans.whole) == [*NINE[:5], *NINE[7:]]
    assert spans.whole.attributes["txmq.transaction.state"] == "ROLLED_BACK"


@run_by("on_stage")
async def test_an_abandoned_block_ends_its_span_without_a_state(stage, /):
    spans = Spans(TOPIC)
    async with managed(stage, spans) as tm:
        block = tm.transaction(MESSAGE)
        await block.__aenter__()
        await block.gen.aclose()
        assert "txmq.transaction.state" not in spans.whole.attributes
        await stage.until_settled()
    assert await stage.visible() == []


@pytest.mark.parametrize("is_blocking", [False, True])
@run_by("on_stage")
async def test_a_message_made_from_the_result_is_sent_within_the_fifth_span(
    stage, /, spans, is_blocking
):
    how = {"is_blocking": is_blocking, "made_from": "result"}
    async with managed(stage, spans, is_blocking=is_blocking) as tm:
        await decorated(tm, spans, **how)(ORDER)
    first, local, *others = spans.below(spans.whole)
    assert [first.name, local.name] == ["1 open", "5 run"]
    assert [span.name for span in others] == ["6 return", "7 receive", "8 decide", "9 confirm"]
    assert spans.names(local) == ["work", "2 send", "3 store", "4 report"]
    assert spans.names(spans.one("2 send")) == [f"send {TOPIC}"]
