"""OpenTelemetry metrics of clients, read with the SDK's in-memory reader."""

import contextlib

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.running import run_by
from tests.waiting import run, until
from txmq.client.client import Client
from txmq.client.consume import Later, PullConsumer, PushConsumer
from txmq.client.observe.telemetry import Telemetry
from txmq.client.send.producer import Producer
from txmq.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, StartFrom
from txmq.errors import LocalProtocolError, RollBack
from txmq.message import Message
from txmq.transaction import LocalTransactionState, TransactionProducer
from txmq_broker.testing import embedded

TOPIC = "Orders"
FROM_FIRST = ConsumerSettings(start=StartFrom.FIRST)


class Figures:
    """The metrics by name and by some of their attributes."""

    def __init__(self):
        self.reader = InMemoryMetricReader()
        provider = MeterProvider([self.reader])
        self.settings = ClientSettings(telemetry=Telemetry(meter_provider=provider))

    def points(self, name):
        data = self.reader.get_metrics_data()
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return [
            point for metric in metrics if metric.name == name for point in metric.data.data_points
        ]

    def counts(self, name, *attributes):
        """The value of each point, or its number of measurements, by these attributes."""
        return {
            tuple(point.attributes.get(attribute) for attribute in attributes): getattr(
                point, "value", None
            )
            or point.count
            for point in self.points(name)
        }


def measured(test):
    """Run a test with a client whose broker has a topic, and with its metrics."""

    async def main():
        figures = Figures()
        async with embedded() as broker, Client(broker.names, figures.settings) as client:
            await client.admin.create_topic(TOPIC, queues=1)
            await test(client, figures)

    run(main)


def message(body=b"tea"):
    return Message(topic=TOPIC, body=body)


@run_by(measured)
async def test_metrics_of_sends_and_handlers_follow_the_semantic_conventions(client, figures, /):
    settings = ProducerSettings(is_traced=True)
    async with Producer("shop", client, settings) as producer:
        await producer.send(message(b"good"))
        await producer.send_batch([message(b"bad"), message(b"late")])
        with pytest.raises(LocalProtocolError):
            await producer.send(Message(topic="no/such", body=b"x"))
    consumer = PushConsumer("billing", client, FROM_FIRST)

    @consumer.on(TOPIC)
    async def handle(received):
        if received.body == b"bad":
            raise ValueError("it is broken")
        return Later() if received.body == b"late" else None

    handled = "messaging.process.duration"
    async with consumer:
        await until(lambda: len(figures.points(handled)) == 3)
    wanted = ("messaging.destination.name", "error.type")
    sent = {("Orders", None): 3, ("no/such", "LocalProtocolError"): 1}
    assert figures.counts("messaging.client.sent.messages", *wanted) == sent
    sends = {("Orders", None): 2, ("no/such", "LocalProtocolError"): 1}
    assert figures.counts("messaging.client.operation.duration", *wanted) == sends
    assert figures.counts("messaging.client.consumed.messages", *wanted) == {("Orders", None): 3}
    assert figures.counts(handled, "error.type", "txmq.verdict") == {
        (None, None): 1,
        ("ValueError", None): 1,
        (None, "later"): 1,
    }
    (point, *_) = figures.points(handled)
    assert point.explicit_bounds[0] == 0.005
    assert 0 < point.sum < 5
    assert point.attributes["messaging.system"] == "rocketmq"
    assert point.attributes["messaging.consumer.group.name"] == "billing"


@run_by(measured)
async def test_polled_messages_are_counted(client, figures, /):
    async with Producer("shop", client) as producer:
        await producer.send_batch([message(), message()])
    consumer = PullConsumer("pullers", client, FROM_FIRST)
    consumer.subscribe(TOPIC)
    async with consumer:
        assert len(await consumer.poll(10)) == 2
    counts = figures.counts("messaging.client.consumed.messages", "messaging.operation.name")
    assert counts == {("poll",): 2}


class Bank:
    async def execute_local_transaction(self, half, arg):
        if arg == "broken":
            raise ValueError("it is broken")
        if arg == "refused":
            raise RollBack("too little")
        return LocalTransactionState.COMMIT

    async def check_local_transaction(self, half):
        return LocalTransactionState.UNKNOWN


@run_by(measured)
async def test_transactions_are_measured_by_state(client, figures, /):
    async with TransactionProducer("icbc", client, Bank()) as bank:
        for arg in ("paid", "refused"):
            await bank.send_in_transaction(message(), arg)
        with contextlib.suppress(ValueError):
            await bank.send_in_transaction(message(), "broken")
        name = "txmq.client.transaction.duration"
        counts = figures.counts(name, "txmq.transaction.state")
        assert counts == {("COMMITTED",): 1, ("ROLLED_BACK",): 1, ("UNKNOWN",): 1}
        operation = ("messaging.operation.name", "txmq.transaction.state")
        ends = figures.counts("messaging.client.operation.duration", *operation)
        assert {key for key in ends if key[0] == "end"} == {
            ("end", "COMMIT_MESSAGE"),
            ("end", "ROLLBACK_MESSAGE"),
        }


@run_by(run)
async def test_sends_work_when_nobody_collects_the_metrics():
    async with embedded() as broker:
        settings = ClientSettings(telemetry=Telemetry())
        async with Client(broker.names, settings) as client:
            await client.admin.create_topic(TOPIC, queues=1)
            async with Producer("shop", client) as producer:
                assert (await producer.send(message())).id
