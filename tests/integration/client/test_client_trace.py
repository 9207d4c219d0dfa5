"""The message trace: its records byte for byte, how they are gathered, and who writes them."""

import asyncio
import contextlib

import pytest

from tests.running import run_by
from tests.waiting import run, until
from txmq.client.client import Client
from txmq.client.consume import Later, PushConsumer
from txmq.client.observe import message_trace as tracer
from txmq.client.observe import trace_records as trace
from txmq.client.observe.message_trace import Tracer, trace_group
from txmq.client.observe.trace_records import (
    DecisionRecord,
    HandlerEnd,
    HandlerOutcome,
    HandlerStart,
    MessageKind,
    SendRecord,
    TopicRecord,
)
from txmq.client.send.producer import Producer
from txmq.client.settings import ConsumerSettings, ProducerSettings, StartFrom
from txmq.errors import ConnectFailed, RemoteProtocolError, TxmqError
from txmq.message import Message
from txmq.runtime.clock import SystemClock
from txmq_broker.testing import embedded

TOPIC = "Orders"
TRACES = "RMQ_SYS_TRACE_TOPIC"
TRACED = ProducerSettings(is_traced=True)
CONSUMER_TRACED = ConsumerSettings(start=StartFrom.FIRST, is_traced=True)

SENT = SendRecord(
    at_ms=1700000000000, region="DefaultRegion", group="pg", topic="Orders",
    id="7F000001000118B4AAC2088F6E4D0000", tags="Paid", keys="o-1 o-2",
    store_host="127.0.0.1:10911", body_bytes=5, cost_ms=3,
    offset_id="7F00000100002A9F0000000000000000",
)  # fmt: skip
PUB = (
    b"Pub\x011700000000000\x01DefaultRegion\x01pg\x01Orders\x017F000001000118B4AAC2088F6E4D0000"
    b"\x01Paid\x01o-1 o-2\x01127.0.0.1:10911\x015\x013\x010\x017F00000100002A9F0000000000000000"
    b"\x01true\x02"
)
VECTORS = [
    (SENT, PUB),
    (
        SendRecord(
            at_ms=1, region="r", group="g", topic="t", id="i", kind=MessageKind.DELAYED,
            is_success=False,
        ),
        b"Pub\x011\x01r\x01g\x01t\x01i\x01null\x01null\x01null\x010\x010\x013\x01null\x01false\x02",
    ),
    (
        HandlerStart(at_ms=1, region="", group="cg", request_id="R", id="i", attempts=2, keys="k"),
        b"SubBefore\x011\x01null\x01cg\x01R\x01i\x012\x01k\x02",
    ),
    (
        HandlerEnd(
            request_id="R", id="i", cost_ms=12, is_success=False, keys="",
            outcome=HandlerOutcome.RAISED, at_ms=99, group="cg",
        ),
        b"SubAfter\x01R\x01i\x0112\x01false\x01null\x012\x0199\x01cg\x02",
    ),
    (
        DecisionRecord(
            at_ms=1, region="r", group="pg", topic="t", id="i", tags="a", keys="k l",
            store_host="h:1", transaction_id="x", state="ROLLBACK_MESSAGE", is_after_check=True,
        ),
        (
            b"EndTransaction\x011\x01r\x01pg\x01t\x01i\x01a\x01k l\x01h:1\x012\x01x"
            b"\x01ROLLBACK_MESSAGE\x01true\x02"
        ),
    ),
]  # fmt: skip


# Bytes


@pytest.mark.parametrize(("record", "line"), VECTORS)
def test_records_are_written_as_stock_clients_write_them(record, line):
    assert trace.encode([record]) == line
    assert trace.decode(line) == [record]


def test_records_are_concatenated_in_order():
    records = [record for record, _ in VECTORS]
    body = trace.encode(records)

    assert body == b"".join(line for _, line in VECTORS)
    assert trace.decode(body) == records


def test_records_of_other_releases_are_read():
    longer = PUB[:-1] + b"\x01192.168.1.9@77\x02"
    older = PUB.replace(b"\x017F00000100002A9F0000000000000000", b"")
    cloud = b"SubAfter\x01R\x01i\x0112\x01true\x01k\x010\x02"
    eldest = b"SubAfter\x01R\x01i\x0112\x01true\x01k\x02"
    unknown = b"Recall\x011\x01x\x02"

    assert trace.decode(longer) == [SENT]
    assert trace.decode(older)[0].offset_id == ""
    assert trace.decode(older)[0].is_success
    assert trace.decode(cloud) == trace.decode(eldest)
    assert trace.decode(eldest)[0].at_ms == 0
    assert trace.decode(unknown + PUB) == [SENT]
    assert trace.decode(b"") == []


@pytest.mark.parametrize("line", [b"Pub\x011\x02", PUB.replace(b"17000", b"x"), b"SubBefore\x02"])
def test_a_malformed_record_is_refused(line):
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        trace.decode(line)


# Packs


def begun(number, keys=""):
    return HandlerStart(at_ms=1, region="r", group="g", request_id="R", id=f"id{number}", keys=keys)


def test_a_trace_message_is_about_one_topic():
    packs = trace.packed(
        [
            TopicRecord("A", begun(1, "k")),
            TopicRecord("B", begun(2)),
            TopicRecord("A", begun(1, "k l")),
        ]
    )

    assert [(pack.keys, pack.count) for pack in packs] == [(("id1", "k", "l"), 2), (("id2",), 1)]
    assert packs[0].body == trace.encode([begun(1, "k"), begun(1, "k l")])


def test_a_trace_message_has_no_more_keys_than_can_be_searched():
    packs = trace.packed([TopicRecord("A", begun(n, f"k{n}")) for n in range(40)])

    assert [pack.count for pack in packs] == [32, 8]
    assert all(len(pack.keys) <= 64 for pack in packs)
    many = trace.packed([TopicRecord("A", begun(1, " ".join(f"k{n}" for n in range(100))))])
    assert len(many[0].keys) == 64
    assert many[0].keys[0] == "id1"
    long = trace.packed([TopicRecord("A", begun(1, "x" * 20_000))])
    assert long[0].keys == ("id1",)


def test_trace_messages_are_split_by_size_and_by_count():
    packs = trace.packed([TopicRecord("A", begun(1, "k" * 5000)) for _ in range(300)])

    assert sum(pack.count for pack in packs) == 300
    assert max(len(pack.body) for pack in packs) <= 100 * 1024
    small = trace.packed([TopicRecord("A", begun(1)) for _ in range(250)])
    assert [pack.count for pack in small] == [100, 100, 50]


def test_the_trace_group_of_a_long_group_name_is_cut_to_the_limit():
    assert trace_group("pg", "PRODUCE") == "_INNER_TRACE_PRODUCER-pg-PRODUCE"
    assert len(trace_group("p" * 255, "CONSUME")) == 255


# Gathering


class Taker:
    """Takes traces, blocks, or fails."""

    def __init__(self):
        self.sent = []
        self.problem = None
        self.gate = None
        self.is_open = False

    async def __aenter__(self):
        self.is_open = True

    async def __aexit__(self, *problem):
        self.is_open = False

    async def send(self, message):
        if self.gate is not None:
            await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        self.sent.append(message)

    @property
    def ids(self):
        return [record.id for message in self.sent for record in trace.decode(message.body)]


@contextlib.asynccontextmanager
async def gathering(**more):
    taker = Taker()
    gatherer = Tracer(taker, TRACES, SystemClock(), **more)
    await gatherer.open()
    yield gatherer, taker
    await gatherer.close()
    assert not taker.is_open


@run_by(run)
async def test_records_of_a_short_time_are_sent_together():
    async with gathering() as (gatherer, taker):
        for number in range(3):
            gatherer.note("A", begun(number))
        assert taker.sent == []
        await until(lambda: taker.sent)
        assert taker.ids == ["id0", "id1", "id2"]
        assert len(taker.sent) == 1
        assert taker.sent[0].keys == ("id0", "id1", "id2")


@run_by(run)
async def test_a_close_sends_waiting_records():
    async with gathering() as (gatherer, taker):
        gatherer.note("A", begun(1))
    assert taker.ids == ["id1"]
    assert gatherer.lost == 0


@run_by(run)
async def test_a_full_tracer_drops_the_oldest_records_and_counts_them(caplog):
    async with gathering(records_max=5) as (gatherer, taker):
        for number in range(9):
            gatherer.note("A", begun(number))

    assert taker.ids == ["id4", "id5", "id6", "id7", "id8"]
    assert gatherer.lost == 4
    assert [entry.message for entry in caplog.records] == [
        "4 trace records are lost: RMQ_SYS_TRACE_TOPIC does not take them"
    ]


@run_by(run)
async def test_a_failing_trace_topic_is_logged_once_and_again_at_the_close(caplog, monkeypatch):
    monkeypatch.setattr(tracer, "LINGER_S", 0.001)

    async with gathering() as (gatherer, taker):
        taker.problem = ConnectFailed("nobody there")
        for number in range(3):
            gatherer.note("A", begun(number))
            await until(lambda wanted=number + 1: gatherer.lost == wanted)

    assert gatherer.lost == 3
    assert [entry.message.split()[0] for entry in caplog.records] == ["1", "2"]


@run_by(run)
async def test_a_close_gives_up_on_a_slow_trace_topic(monkeypatch):
    monkeypatch.setattr(tracer, "FLUSH_S", 0.05)

    async with gathering() as (gatherer, taker):
        taker.gate = asyncio.Event()
        gatherer.note("A", begun(1))
    assert gatherer.lost == 1


# What leaves traces


def with_client(test):
    """Run a test with a client of a broker that has a topic of one queue."""

    async def main():
        async with embedded() as broker, Client(broker.names) as client:
            await client.admin.create_topic(TOPIC, queues=1)
            await test(client)

    run(main)


async def traces(client, wanted, topic=TRACES):
    """All records of the trace topic, once there are as many as wanted."""
    records = []
    async with asyncio.timeout(10):
        while len(records) < wanted:
            records = []
            with contextlib.suppress(TxmqError):
                for queue in (await client.admin.route(topic)).readable:
                    for message in (await client.admin.pull(queue, 0)).messages:
                        records += trace.decode(message.body)
            await asyncio.sleep(0.01)
    return records


@run_by(with_client)
async def test_a_message_can_be_followed_from_its_producer_to_its_handler(client, /):
    consumer = PushConsumer("cg", client, CONSUMER_TRACED)
    handled = []

    @consumer.on(TOPIC)
    async def handle(message):
        handled.append(message)
        if message.attempts == 0 and message.body == b"twice":
            return Later(level=1)
        if message.body == b"bad":
            raise ValueError("no")
        return None

    message = Message(topic=TOPIC, body=b"hello", tags="Paid", keys=("o-1", "o-2"))
    async with Producer("pg", client, TRACED) as producer:
        result = await producer.send(message)
        bad = await producer.send_nowait(Message(topic=TOPIC, body=b"bad"))
    async with consumer:
        await until(lambda: len(handled) == 2)

    records = await traces(client, 6)
    sent = [record for record in records if isinstance(record, SendRecord)]
    assert {record.id for record in sent} == {result.id, bad.id}
    first = next(record for record in sent if record.id == result.id)
    assert (first.group, first.topic, first.tags, first.keys) == (
        "pg", TOPIC, "Paid", "o-1 o-2",
    )  # fmt: skip
    (address,) = (await client.admin.route(TOPIC)).addresses["broker-a"].values()
    assert (first.region, first.store_host) == ("DefaultRegion", address)
    assert (first.body_bytes, first.offset_id) == (5, result.offset_id)
    assert first.is_success
    begun_ones = {record.id: record for record in records if isinstance(record, HandlerStart)}
    ended = {record.id: record for record in records if isinstance(record, HandlerEnd)}
    assert begun_ones[result.id].request_id == ended[result.id].request_id
    assert begun_ones[result.id].group == ended[result.id].group == "cg"
    assert ended[result.id].is_success
    assert ended[bad.id].outcome is HandlerOutcome.RAISED
    assert not ended[bad.id].is_success
    by_key = await client.admin.query(TRACES, "o-2")
    assert {record.id for pack in by_key for record in trace.decode(pack.body)} >= {result.id}


@run_by(with_client)
async def test_batches_and_failures_are_traced(client, /):
    async with Producer("pg", client, TRACED) as producer:
        batch = [Message(topic=TOPIC, body=b"%d" % n) for n in range(3)]
        results = await producer.send_batch(batch)
        with pytest.raises(TxmqError):
            await producer.send_batch([])
        with pytest.raises(TxmqError):
            await producer.send(Message(topic="no/topic", body=b"?"))
        await producer.send_oneway(Message(topic=TOPIC, body=b"?"))
    records = await traces(client, 4)
    stored = [entry for entry in records if entry.is_success]
    (failed,) = [entry for entry in records if not entry.is_success]
    assert {(entry.id, entry.offset_id) for entry in stored} == {
        (entry.id, entry.offset_id) for entry in results
    }
    assert len(stored) == 3
    assert (failed.topic, failed.store_host) == ("no/topic", "")


@run_by(with_client)
async def test_a_broker_can_turn_traces_off(client, /):
    async with Producer("pg", client, TRACED) as producer:
        post = producer._sender.pending
        heard = post.on_answer

        class Silent:
            def field_map(self):
                return {"TRACE_ON": "false", "MSG_REGION": "east"}

        post.on_answer = lambda name, answer: heard(name, Silent())
        await producer.send(Message(topic=TOPIC, body=b"unseen"))
        post.on_answer = heard
        seen = await producer.send(Message(topic=TOPIC, body=b"seen"))
    assert [record.id for record in await traces(client, 1)] == [seen.id]


@run_by(with_client)
async def test_sending_and_reading_traces_leaves_no_traces(client, /):
    consumer = PushConsumer("watchers", client, CONSUMER_TRACED)
    handled = []

    @consumer.on(TRACES)
    async def handle(message):
        handled.append(message)

    async with Producer("pg", client, TRACED) as producer:
        await producer.send(Message(topic=TOPIC, body=b"?"))
        await producer.send(Message(topic=TRACES, body=trace.encode([SENT])))
    await traces(client, 2)
    async with consumer:
        await until(lambda: len(handled) == 2)
    assert len(await traces(client, 2)) == 2


@run_by(with_client)
async def test_traces_go_to_the_configured_topic(client, /):
    settings = ProducerSettings(is_traced=True, trace_topic="MyTraces", linger=0.001)
    async with Producer("pg", client, settings) as producer:
        await asyncio.gather(
            *[producer.send(Message(topic=TOPIC, body=b"%d" % n)) for n in range(5)]
        )
    assert len(await traces(client, 5, "MyTraces")) == 5


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"properties": {"TRAN_MSG": "true"}}, MessageKind.HALF),
        ({"delay_level": 3}, MessageKind.DELAYED),
        ({"deliver_after": 3}, MessageKind.DELAYED),
        ({}, MessageKind.NORMAL),
    ],
)
def test_traces_tell_half_delayed_and_normal_messages_apart(more, kind):
    assert tracer._kind(Message(topic=TOPIC, body=b"?", **more)) is kind
