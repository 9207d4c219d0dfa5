"""However a transaction ends, so do its spans."""

import asyncio

import pytest
from opentelemetry.trace import StatusCode

from tests.running import run_by
from tests.unit.transaction.producing_stage import COMMIT, GROUP, TOPIC, message, refuse, staged
from tests.unit.transaction.spans_stage import NINE, Spans
from txmq.client.observe.hooks import SendHooks
from txmq.errors import BrokerRefused, TransactionConflict
from txmq.protocol import command, headers


def watched(test, **how):
    """Run a test with a producer in the simulated world, and its spans."""
    spans = Spans(TOPIC)

    @staged(**how)
    async def scenario(stage):
        stage.producer._hooks = SendHooks([spans.telemetry.of_producer(GROUP, "here")])
        await test(stage, spans)

    scenario()


@run_by(watched)
async def test_a_refused_half_message_ends_the_transaction_span_with_an_error(stage, spans, /):
    stage.told("half", refuse(1))
    with pytest.raises(BrokerRefused):
        await stage.producer.send_in_transaction(message())
    first, second = spans.below(spans.whole)
    assert [first.name, second.name] == ["1 open", "2 send"]
    assert first.status.status_code is StatusCode.UNSET
    for span in (second, spans.whole, spans.one(f"send {TOPIC}")):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == "InternalError"
    assert "txmq.transaction.state" not in spans.whole.attributes


@run_by(watched, retry_not_safe=False)
async def test_an_unsafe_half_message_is_rolled_back_without_a_local_transaction(stage, spans, /):
    told = headers.SendAnswer("7F00000100002A9F0000000000000010", 0, 5)
    stage.told("half", lambda asked: command.answer(asked, 11, told))
    assert (await stage.producer.send_in_transaction(message())).problem is not None
    left_out = {"5 run", "6 return"}
    assert spans.names(spans.whole) == [step for step in NINE if step not in left_out]
    assert spans.whole.attributes["txmq.transaction.state"] == "ROLLED_BACK"


@run_by(watched)
async def test_a_conflict_marks_the_decide_span_as_an_error(stage, spans, /):
    stage.told("end", refuse(201))
    with pytest.raises(TransactionConflict):
        await stage.producer.send_in_transaction(message())
    assert spans.names(spans.whole) == NINE[:8]
    assert spans.below(spans.whole)[-1].status.status_code is StatusCode.ERROR
    assert spans.whole.attributes["error.type"] == "TransactionConflict"


@run_by(watched, bank={"says": lambda: asyncio.sleep(3600, COMMIT)})
async def test_cancelling_a_local_transaction_leaves_no_span_open(stage, spans, /):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await stage.producer.send_in_transaction(message())
    await asyncio.sleep(0)
    assert stage.ends == []
    assert len(spans(f"transaction {TOPIC}")) == 1
    assert spans.whole.attributes["txmq.transaction.state"] == "UNKNOWN"
    assert spans.names(spans.whole) == [*NINE[:5], *NINE[7:]]


@run_by(watched)
async def test_cancelling_during_the_end_request_still_closes_all_spans(stage, spans, /):
    stage.told("end", lambda request: None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await stage.producer.send_in_transaction(message())
    await stage.until(lambda: spans(f"transaction {TOPIC}"))
    assert spans.names(spans.whole) == NINE
    assert spans.whole.attributes["txmq.transaction.is_acknowledged"] is False


@run_by(watched)
async def test_closing_the_producer_ends_the_span_of_an_undecided_transaction(stage, spans, /):
    await stage.half()
    await stage.producer.__aexit__(None, None, None)
    assert spans.names(spans.whole) == NINE[:4]
    assert "txmq.transaction.state" not in spans.whole.attributes


@run_by(watched)
async def test_the_oldest_span_is_ended_when_too_many_are_open(stage, spans, /, monkeypatch):
    monkeypatch.setattr("txmq.transaction.story.STORIES_MAX", 2)
    halves = [await stage.producer.prepare(message()) for _ in range(3)]
    assert spans.whole.attributes["messaging.message.id"] == halves[0].id
    await stage.producer.decide(halves[0], COMMIT)
    await stage.producer.decide(halves[2], COMMIT)
    await stage.producer.__aexit__(None, None, None)
    assert [spans.names(span) for span in spans(f"transaction {TOPIC}")] == [
        NINE[:4], [*NINE[:4], *NINE[7:]], NINE[:4],
    ]  # fmt: skip


@run_by(watched)
async def test_preparing_the_same_id_again_ends_the_first_span(stage, spans, /):
    again = message(properties={"UNIQ_KEY": "0A"})
    await stage.producer.prepare(again)
    await stage.producer.decide(await stage.producer.prepare(again), COMMIT)
    assert [spans.names(span) for span in spans(f"transaction {TOPIC}")] == [
        NINE[:4], [*NINE[:4], *NINE[7:]],
    ]  # fmt: skip


@staged()
async def test_no_story_is_kept_without_telemetry(stage):
    await stage.half()
    stories = stage.producer.stories
    assert stories.inside("one") is stories.inside("another")
    assert not stories._open
