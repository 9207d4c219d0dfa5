"""OpenTelemetry: the spans of messages, and the links between senders and handlers."""

import asyncio
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.running import run_by
from tests.waiting import run, until
from txmq.client.client import Client
from txmq.client.consume import Later, PushConsumer
from txmq.client.observe import telemetry as module
from txmq.client.observe.telemetry import Telemetry
from txmq.client.send.producer import Producer
from txmq.client.send.request_reply import reply_to
from txmq.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, StartFrom
from txmq.errors import ConfigError, LocalProtocolError
from txmq.message import Message
from txmq_broker.testing import embedded

TOPIC = "Orders"
FROM_FIRST = ConsumerSettings(start=StartFrom.FIRST)


class Spans:
    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.telemetry = Telemetry(self.provider)

    def __call__(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def measured(test):
    """Run a test with a client whose broker has a topic, and with its spans."""

    async def main():
        spans = Spans()
        settings = ClientSettings(telemetry=spans.telemetry)
        async with embedded() as broker, Client(broker.names, settings) as client:
            await client.admin.create_topic(TOPIC, queues=1)
            await test(client, spans)

    run(main)


@run_by(measured)
async def test_a_handler_continues_the_trace_of_the_producers_caller(client, spans, /):
    consumer = PushConsumer("cg", client, FROM_FIRST)
    inside = []

    @consumer.on(TOPIC)
    async def handle(message):
        inside.append(trace.get_current_span().get_span_context())
        assert message.properties["traceparent"].startswith("00-")

    message = Message(topic=TOPIC, body=b"hello", tags="Paid", keys=("o-1",))
    async with Producer("pg", client) as producer:
        with spans.tracer.start_as_current_span("checkout"):
            result = await producer.send(message)
    async with consumer:
        await until(lambda: spans(f"process {TOPIC}"))

    (checkout,), (sent,), (handled,) = (
        spans("checkout"), spans(f"send {TOPIC}"), spans(f"process {TOPIC}"),
    )  # fmt: skip
    assert (sent.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.parent.span_id == checkout.context.span_id
    assert handled.parent.span_id == sent.context.span_id
    assert inside == [handled.context]
    assert dict(sent.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.client_group": "pg",
        "messaging.client.id": client.id,
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": "0",
        "messaging.message.id": result.id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "Paid",
        "messaging.rocketmq.message.keys": ("o-1",),
    }
    about = dict(handled.attributes)
    assert about["messaging.consumer.group.name"] == "cg"
    assert about["messaging.operation.type"] == "process"
    assert about["messaging.rocketmq.consumption_model"] == "clustering"
    assert about["messaging.message.id"] == result.id
    assert "traceparent" not in message.properties


@run_by(measured)
async def test_a_handler_in_a_thread_sees_its_span(client, spans, /):
    inside = []
    consumer = PushConsumer("cg", client, FROM_FIRST)

    @consumer.on(TOPIC)
    def handle(message):
        inside.append(trace.get_current_span().get_span_context().span_id)
        with spans.tracer.start_as_current_span("work"):
            pass

    async with Producer("pg", client) as producer:
        await producer.send(Message(topic=TOPIC, body=b"?"))
    async with consumer:
        await until(lambda: spans(f"process {TOPIC}"))
    (handled,), (work,) = spans(f"process {TOPIC}"), spans("work")
    assert inside == [handled.context.span_id]
    assert work.parent.span_id == handled.context.span_id


@run_by(measured)
async def test_failures_are_recorded_in_spans(client, spans, /):
    handled = []
    consumer = PushConsumer("cg", client, FROM_FIRST)

    @consumer.on(TOPIC)
    async def handle(message):
        handled.append(message)
        if message.body == b"bad":
            raise ValueError("no")
        return Later()

    async with Producer("pg", client) as producer:
        await producer.send_nowait(Message(topic=TOPIC, body=b"bad"))
        await producer.send_oneway(Message(topic=TOPIC, body=b"later"))
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(LocalProtocolError):
                await send(Message(topic="no/topic", body=b"?"))
        with pytest.raises(LocalProtocolError):
            producer.send_nowait(Message(topic="no/topic", body=b"?"))
    async with consumer:
        await until(lambda: len(spans(f"process {TOPIC}")) == 2)

    assert len(spans(f"send {TOPIC}")) == 2
    refused = spans("send no/topic")
    assert [span.status.status_code for span in refused] == [StatusCode.ERROR] * 3
    assert refused[0].attributes["error.type"] == "LocalProtocolError"
    by_verdict = {span.attributes.get("txmq.verdict"): span for span in spans(f"process {TOPIC}")}
    failed = by_verdict[None]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "ValueError"
    assert failed.events[0].name == "exception"
    assert by_verdict["later"].status.status_code is StatusCode.UNSET


@run_by(measured)
async def test_a_batch_span_links_to_the_spans_that_sent_its_messages(client, spans, /):
    settings = ConsumerSettings(start=StartFrom.FIRST, batch_max=8)
    consumer = PushConsumer("cg", client, settings)

    @consumer.on_batch(TOPIC)
    async def handle(messages):
        return None

    async with Producer("pg", client) as producer:
        with pytest.raises(LocalProtocolError):
            await producer.send_batch([])
        await producer.send_batch([Message(topic=TOPIC, body=b"%d" % n) for n in range(3)])
    async with consumer:
        await until(lambda: spans(f"process {TOPIC}"))
    (sent,) = spans(f"send {TOPIC}")
    (handled,) = spans(f"process {TOPIC}")
    assert sent.attributes["messaging.batch.message_count"] == 3
    assert handled.attributes["messaging.batch.message_count"] == 3
    assert handled.parent is None
    assert [link.context.span_id for link in handled.links] == [sent.context.span_id] * 3


@run_by(measured)
async def test_a_message_without_trace_context_starts_its_own_trace(client, spans, /):
    consumer = PushConsumer("cg", client, FROM_FIRST)

    @consumer.on(TOPIC)
    async def handle(message):
        return None

    await client.admin.send(Message(topic=TOPIC, body=b"?"))
    with spans.tracer.start_as_current_span("startup"):
        async with consumer:
            await until(lambda: spans(f"process {TOPIC}"))
    (handled,) = spans(f"process {TOPIC}")
    assert handled.parent is None
    assert not handled.links


@run_by(measured)
async def test_sending_message_traces_creates_no_spans(client, spans, /):
    settings = ProducerSettings(is_traced=True)
    async with Producer("pg", client, settings) as producer:
        await producer.send(Message(topic=TOPIC, body=b"?"))
    assert len(spans.exporter.get_finished_spans()) == 1


@run_by(measured)
async def test_a_cancelled_handler_is_not_recorded_as_failed(client, spans, /):
    working = asyncio.Event()
    settings = ConsumerSettings(start=StartFrom.FIRST, stop_timeout=0.0)
    consumer = PushConsumer("cg", client, settings)

    @consumer.on(TOPIC)
    async def handle(message):
        working.set()
        await asyncio.Event().wait()

    async with Producer("pg", client) as producer:
        await producer.send(Message(topic=TOPIC, body=b"?"))
    async with consumer:
        await working.wait()
    (handled,) = spans(f"process {TOPIC}")
    assert handled.attributes["error.type"] == "CancelledError"
    assert handled.status.status_code is StatusCode.UNSET


@run_by(measured)
async def test_the_span_of_a_reply_is_a_child_of_its_handler(client, spans, /):
    async with Producer("pg", client) as producer:
        consumer = PushConsumer("cg", client, FROM_FIRST)

        @consumer.on(TOPIC)
        async def handle(message):
            await producer.send(reply_to(message, b"yes"))

        async with consumer:
            reply = await producer.request(Message(topic=TOPIC, body=b"?"), 5.0)
            await until(lambda: spans(f"process {TOPIC}"))
        (asked,), (handled,) = spans(f"send {TOPIC}"), spans(f"process {TOPIC}")
        (replied,) = spans(f"send {reply.topic}")
        assert handled.parent.span_id == asked.context.span_id
        assert replied.parent.span_id == handled.context.span_id
        assert f"{replied.context.span_id:016x}" in reply.properties["traceparent"]


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "normal"),
        ({"delay_level": 3}, "delay"),
        ({"deliver_at_ms": 5}, "delay"),
        ({"properties": {"__SHARDINGKEY": "k"}}, "fifo"),
        ({"properties": {"TRAN_MSG": "true"}}, "transaction"),
    ],
)
def test_message_types_follow_the_semantic_conventions(more, kind):
    about = module._described([Message(topic=TOPIC, body=b"?", **more)])

    assert about["messaging.rocketmq.message.type"] == kind
    assert about.get("messaging.rocketmq.message.delay_time_level") == more.get("delay_level")
    assert about.get("messaging.rocketmq.message.delivery_timestamp") == more.get("deliver_at_ms")


def test_telemetry_needs_the_opentelemetry_package(monkeypatch):
    assert isinstance(Telemetry.if_installed(), Telemetry)
    for name in [loaded for loaded in sys.modules if loaded.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})

    assert Telemetry.if_installed() is None
    with pytest.raises(ConfigError, match=r"pip install 'txmq\[telemetry\]'"):
        Telemetry()


def test_importing_txmq_does_not_import_opentelemetry():
    code = (
        "import sys, txmq; txmq.Producer, txmq.PushConsumer; "
        "print([each for each in sys.modules if 'opentelemetry' in each])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
