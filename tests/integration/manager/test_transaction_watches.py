"""What traces and spans show of transactions."""

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from tests.running import run_by
from tests.unit.transaction.producing_stage import COMMIT, GROUP, ROLLBACK, TOPIC, UNKNOWN, message
from tests.unit.transaction.spans_stage import Spans
from tests.waiting import run, until
from txmq.client.client import Client
from txmq.client.observe.trace_records import DecisionRecord, MessageKind, SendRecord, decode
from txmq.settings.units import Duration
from txmq.transaction import TransactionProducer
from txmq.transaction import TransactionSettings as Settings
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import embedded

HURRIED = BrokerSettings(
    store=StoreSettings(flush="async"),
    transaction=CheckBackSettings(timeout=Duration(0.2), check_interval=Duration(0.2)),
)


class Bank:
    def __init__(self, says):
        self.says = says
        self.inside, self.executing = [], []

    async def execute_local_transaction(self, message, arg):
        self.executing.append(trace.get_current_span().get_span_context().span_id)
        return self.says

    def check_local_transaction(self, message):
        self.inside.append(trace.get_current_span().get_span_context().span_id)
        return COMMIT


async def records(client, xid):
    found = []
    for trace_message in await client.admin.query("RMQ_SYS_TRACE_TOPIC", xid):
        found += [record for record in decode(trace_message.body) if record.id == xid]
    return sorted(found, key=lambda record: (record.at_ms, isinstance(record, DecisionRecord)))


@run_by(run)
async def test_a_half_message_and_each_decision_leave_a_trace_record():
    async with embedded(HURRIED) as broker, Client(broker.names) as client:
        bank, xids = Bank(COMMIT), []
        settings = Settings(is_traced=True)
        async with TransactionProducer(GROUP, client, bank, settings) as producer:
            for bank.says in (COMMIT, ROLLBACK, UNKNOWN):
                sent = message(tags="Paid", keys=("o-1",))
                xids.append((await producer.send_in_transaction(sent)).xid)
            await until(lambda: producer.tally.checks_committed)
        told = []
        for xid in xids:
            sent, decided = await records(client, xid)
            assert isinstance(sent, SendRecord)
            assert sent.kind is MessageKind.HALF
            assert isinstance(decided, DecisionRecord)
            assert (decided.group, decided.topic, decided.tags) == (GROUP, TOPIC, "Paid")
            assert (decided.keys, decided.transaction_id) == ("o-1", xid)
            assert decided.store_host == sent.store_host
            told.append((decided.state, decided.is_after_check))
        assert told == [
            ("COMMIT_MESSAGE", False), ("ROLLBACK_MESSAGE", False), ("COMMIT_MESSAGE", True),
        ]  # fmt: skip


@run_by(run)
async def test_check_and_end_spans_belong_to_the_trace_of_the_transfer():
    spans = Spans(TOPIC)
    async with (
        embedded(HURRIED) as broker,
        Client(broker.names, spans.settings) as client,
        TransactionProducer(GROUP, client, bank := Bank(COMMIT)) as producer,
    ):
        with spans.tracer.start_as_current_span("transfer"):
            first = await producer.send_in_transaction(message())
            bank.says = UNKNOWN
            second = await producer.send_in_transaction(message())
        await until(lambda: len(spans(f"end {TOPIC}")) == 2)

    transfer = spans.one("transfer")
    sent, sent_too = spans(f"send {TOPIC}")
    checked = spans.one(f"check {TOPIC}")
    assert bank.executing == [span.context.span_id for span in spans("5 run")]
    ended, ended_late = spans(f"end {TOPIC}")
    assert sent.attributes["messaging.rocketmq.message.type"] == "transaction"
    assert [sent.parent.span_id, sent_too.parent.span_id] == [
        span.context.span_id for span in spans("2 send")
    ]
    assert ended.parent.span_id == spans("8 decide")[0].context.span_id
    assert {span.context.trace_id for span in (sent, sent_too, checked, ended, ended_late)} == {
        transfer.context.trace_id
    }
    assert checked.parent.span_id == sent_too.context.span_id
    assert ended_late.parent.span_id == sent_too.context.span_id
    assert bank.inside == [checked.context.span_id]
    assert (checked.kind, ended.kind) == (SpanKind.CONSUMER, SpanKind.CLIENT)
    about = dict(ended.attributes)
    assert about["messaging.operation.type"] == "settle"
    assert about["messaging.message.id"] == first.xid
    assert about["txmq.transaction.state"] == "COMMIT_MESSAGE"
    assert about["txmq.transaction.reply"] == "taken"
    assert about["txmq.transaction.is_after_check"] is False
    assert ended_late.attributes["txmq.transaction.is_after_check"] is True
    assert ended_late.attributes["messaging.message.id"] == second.xid
    assert checked.attributes["txmq.transaction.state"] == "COMMIT"
    assert checked.attributes["messaging.operation.name"] == "check"
