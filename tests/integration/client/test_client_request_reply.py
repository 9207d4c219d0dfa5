"""Requests and replies over a real broker, and their parts without I/O."""

import asyncio
import contextlib
import zlib
from dataclasses import replace

import pytest

from tests.running import run_by
from tests.unit.client.producer_stage import produced, silent
from tests.waiting import run, until
from txmq.client.client import Client
from txmq.client.consume import PushConsumer
from txmq.client.send.producer import Producer
from txmq.client.send.request_reply import Reply, question, reply_to
from txmq.client.settings import ConsumerSettings, ProducerSettings, StartFrom
from txmq.errors import (
    ConfigError,
    ConnectFailed,
    Effect,
    InternalError,
    LimitExceeded,
    RequestTimeout,
    TopicNotFound,
    UsageError,
)
from txmq.message import LogPosition, Message, Queue, QueueOffset, ReceivedMessage
from txmq.protocol import command, headers, properties
from txmq.protocol.codes import RequestCode, SysFlag
from txmq_broker.testing import embedded

TOPIC = "Questions"
FROM_FIRST = ConsumerSettings(start=StartFrom.FIRST)
ASKED = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "host@1", "TTL": "3000", "CLUSTER": "east"}


def got(**properties):
    return ReceivedMessage(
        topic=TOPIC,
        body=b"?",
        properties=properties,
        queue=Queue(TOPIC, "broker-b", 3),
        offset=QueueOffset(0),
        position=LogPosition(0),
        id="0A",
        offset_id="0B",
        born_ms=0,
        stored_ms=0,
        attempts=0,
    )


@contextlib.asynccontextmanager
async def answering(handler, settings=None):
    """A broker, a producer that asks, and a consumer whose replies another producer sends."""
    async with embedded() as broker, Client(broker.names) as mine, Client(broker.names) as answerer:
        await mine.admin.create_topic(TOPIC, queues=2)
        consumer = PushConsumer("answerers", answerer, FROM_FIRST)
        async with Producer("repliers", answerer) as replier:

            @consumer.on(TOPIC)
            async def answer(message):
                await handler(message, replier)

            async with consumer, Producer("askers", mine, settings) as asker:
                yield broker, asker, replier


# Without I/O


def test_a_reply_carries_the_properties_of_its_request():
    reply = reply_to(got(**ASKED), b"42", tags="Yes", properties={"a": "b", "TTL": "wrong"})

    assert reply == Reply(
        topic="east_REPLY_TOPIC",
        body=b"42",
        tags="Yes",
        properties={
            "a": "b",
            "CORRELATION_ID": "c-1",
            "REPLY_TO_CLIENT": "host@1",
            "TTL": "3000",
            "MSG_TYPE": "reply",
        },
        asked_in=Queue(TOPIC, "broker-b", 3),
    )


@pytest.mark.parametrize("missing", sorted(ASKED))
def test_a_message_without_reply_properties_cannot_be_replied_to(missing):
    named = {name: value for name, value in ASKED.items() if name != missing}

    with pytest.raises(UsageError, match="0A"):
        reply_to(got(**named), b"42")


def test_a_request_carries_its_sender_and_timeout():
    asked = question(Message(topic=TOPIC, body=b"?", properties={"a": "b"}), "c-1", "host@1", 0.5)

    assert asked.properties == {
        "a": "b",
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": "host@1",
        "TTL": "500",
    }


# Over a broker


@run_by(run)
async def test_a_request_with_a_zero_timeout_is_refused():
    async with answering(None) as (_, asker, _):
        with pytest.raises(ConfigError, match="timeout cannot be 0; it takes a duration of at"):
            await asker.request(Message(topic=TOPIC, body=b"hello"), 0)


@run_by(run)
async def test_a_request_is_answered():
    async def handle(message, replier):
        assert message.properties["TTL"] == "5000"
        stored = await replier.send(reply_to(message, b"re: " + message.body, tags="Re"))
        assert stored.queue.broker == "broker-a"

    async with answering(handle) as (_, asker, _):
        reply = await asker.request(Message(topic=TOPIC, body=b"hello"), 5.0)
        assert (reply.body, reply.tags) == (b"re: hello", "Re")
        assert reply.topic.endswith("_REPLY_TOPIC")
        assert int(reply.properties["ARRIVE_TIME"]) >= int(reply.properties["PUSH_REPLY_TIME"])
        assert len(asker.client.replies) == 0


@run_by(run)
async def test_replies_find_their_requests_in_any_order():
    waiting = []

    async def handle(message, replier):
        waiting.append(message)
        if len(waiting) == 3:
            for item in reversed(waiting):
                await replier.send(reply_to(item, item.body * 2))

    async with answering(handle) as (_, asker, _):
        replies = await asyncio.gather(
            *[asker.request(Message(topic=TOPIC, body=item), 5.0) for item in (b"a", b"b", b"c")]
        )
        assert [item.body for item in replies] == [b"aa", b"bb", b"cc"]


@run_by(run)
async def test_a_long_reply_travels_compressed():
    handed_over = []

    async def handle(message, replier):
        hand_over = replier._requester._hand_over

        def note(reply, envelope):
            handed_over.append(envelope)
            return hand_over(reply, envelope)

        replier._requester._hand_over = note
        await replier.send(reply_to(message, message.body * 50))

    async with answering(handle) as (_, asker, _):
        asked = bytes(range(256)) * 40
        reply = await asker.request(Message(topic=TOPIC, body=asked), 5.0)
        assert reply.body == asked * 50

    (envelope,) = handed_over
    assert envelope.sys_flag & SysFlag.COMPRESSED
    assert zlib.decompress(envelope.body) == asked * 50


@run_by(run)
async def test_a_missing_reply_times_out_and_a_late_reply_is_ignored():
    late = []

    async def handle(message, replier):
        late.append(message)
        if message.body == b"second":
            await replier.send(reply_to(late[0], b"too late"))
            await replier.send(reply_to(message, b"in time"))

    async with answering(handle) as (_, asker, _):
        with pytest.raises(RequestTimeout, match="no reply") as caught:
            await asker.request(Message(topic=TOPIC, body=b"first"), 0.3)
        assert caught.value.effect is Effect.MAYBE
        assert len(asker.client.replies) == 0
        await until(lambda: late)
        reply = await asker.request(Message(topic=TOPIC, body=b"second"), 5.0)
        assert reply.body == b"in time"


@run_by(run)
async def test_a_handler_that_fails_sends_no_reply():
    failed = []

    async def handle(message, replier):
        failed.append(message)
        raise ValueError("no")

    async with answering(handle) as (_, asker, _):
        with pytest.raises(RequestTimeout):
            await asker.request(Message(topic=TOPIC, body=b"?"), 0.3)
        assert failed


@run_by(run)
async def test_a_request_can_be_cancelled():
    seen = []

    async def handle(message, replier):
        seen.append(message)

    async with answering(handle) as (_, asker, _):
        asking = asyncio.create_task(asker.request(Message(topic=TOPIC, body=b"?"), 5.0))
        await until(lambda: seen)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(asker.client.replies) == 0
        assert asker.bytes_in_flight == 0


@run_by(run)
async def test_closing_a_producer_fails_its_pending_requests():
    seen = []

    async def handle(message, replier):
        seen.append(message)

    async with answering(handle) as (broker, _, replier), Client(broker.names) as client:
        async with Producer("leavers", client) as asker:
            asking = asyncio.create_task(asker.request(Message(topic=TOPIC, body=b"?"), 60.0))
            await until(lambda: seen)
        with pytest.raises(UsageError, match="closed before the reply") as caught:
            await asking
        assert caught.value.effect is Effect.MAYBE
        with pytest.raises(UsageError, match="not open"):
            await asker.request(Message(topic=TOPIC, body=b"?"), 1.0)
        # The asker is gone, and the broker says so.
        with pytest.raises(InternalError, match="not found"):
            await replier.send(reply_to(seen[0], b"hello?"))


@run_by(run)
async def test_a_producer_sends_a_heartbeat_before_its_first_request():
    known = []

    async with embedded() as broker, Client(broker.names) as client:
        await client.admin.create_topic(TOPIC, queues=1)
        async with Producer("askers", client) as asker:
            beats = []
            beat_at = client.beat_at

            async def beat(address):
                beats.append(address)
                return await beat_at(address)

            client.beat_at = beat
            for _ in range(3):
                with pytest.raises(RequestTimeout):
                    await asker.request(Message(topic=TOPIC, body=b"?"), 0.05)
            known.append(beats)
            assert beats.count(broker.address) == 1
            (await client.session.connection(broker.address)).abort()
            with pytest.raises(RequestTimeout):
                await asker.request(Message(topic=TOPIC, body=b"?"), 0.3)
            assert beats.count(broker.address) >= 2


@run_by(run)
async def test_a_request_that_reaches_no_broker_has_no_effect():
    async with embedded() as broker, Producer("askers", broker.names) as asker:
        never = asyncio.get_running_loop().create_future()

        async def route(topic):
            await never

        asker.client.session.route_to_write = route
        with pytest.raises(RequestTimeout, match="no broker of .* could be reached") as caught:
            await asker.request(Message(topic=TOPIC, body=b"?"), 0.05)
        assert caught.value.effect is Effect.NONE


@run_by(run)
async def test_a_reply_can_only_be_sent_with_send():
    reply = reply_to(got(**ASKED), b"42")
    settings = ProducerSettings(retries=0, timeout=1.0)
    async with embedded() as broker, Producer("repliers", broker.names, settings) as replier:
        with pytest.raises(UsageError, match=r"Producer\.send"):
            replier.send_nowait(reply)
        with pytest.raises(UsageError, match=r"Producer\.send"):
            await replier.send_oneway(reply)
        with pytest.raises(UsageError, match=r"Producer\.send"):
            await replier.send_batch([reply])
        # This one fails because the topic of its request does not exist.
        with pytest.raises(TopicNotFound):
            await replier.send(reply)


@run_by(run)
async def test_a_reply_completes_a_request_whose_send_got_no_answer():
    async with embedded() as broker, Producer("askers", broker.names) as asker:
        client = asker.client

        async def send(message):
            client.replies.came(message.properties["CORRELATION_ID"], got(a="b"))
            raise RequestTimeout("no answer")

        reply = await asker._requester.ask(Message(topic=TOPIC, body=b"?"), 1.0, send)
        assert reply.properties["a"] == "b"

        async def fail(message):
            raise RequestTimeout("no answer")

        with pytest.raises(RequestTimeout, match="no answer"):
            await asker._requester.ask(Message(topic=TOPIC, body=b"?"), 1.0, fail)


@run_by(run)
async def test_the_number_of_awaited_replies_is_limited(monkeypatch):
    monkeypatch.setattr("txmq.client.send.request_reply.REPLIES_AWAITED_MAX", 1)
    async with answering(lambda message, replier: asyncio.sleep(0)) as (_, asker, _):
        first = asyncio.create_task(asker.request(Message(topic=TOPIC, body=b"?"), 5.0))
        await until(lambda: len(asker.client.replies))
        with pytest.raises(LimitExceeded, match="replies awaited"):
            await asker.request(Message(topic=TOPIC, body=b"?"), 5.0)
        first.cancel()
        await asyncio.wait([first])


@run_by(run)
async def test_a_reply_is_retried_after_a_failed_connection():
    tried = []

    async def handle(message, replier):
        hand_over = replier._requester._hand_over

        async def try_to(reply, envelope):
            tried.append(reply)
            if len(tried) < 3:
                raise ConnectFailed("not now")
            return await hand_over(reply, envelope)

        replier._requester._hand_over = try_to
        await replier.send(reply_to(message, b"at last"))

    async with answering(handle) as (_, asker, _):
        reply = await asker.request(Message(topic=TOPIC, body=b"?"), 5.0)
        assert reply.body == b"at last"
        assert len(tried) == 3


@produced(brokers=2, topic=TOPIC, queues=4)
async def test_a_reply_goes_to_the_broker_that_stored_the_request(stage):
    answer = headers.SendAnswer("0", 0, 0)
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    stage.cluster.replies[code] = lambda request: command.answer(request, 0, answer)

    result = await stage.producer.send(reply_to(got(**ASKED), b"42", tags="Yes"))

    assert result.queue == Queue("east_REPLY_TOPIC", "broker-b", 0)
    ((who, _, fields),) = [entry for entry in stage.cluster.asked if entry[1] == code]
    assert who == "broker-b"
    assert (fields["b"], fields["n"]) == ("east_REPLY_TOPIC", "broker-b")
    named = properties.parse(fields["i"])
    assert named.pop("UNIQ_KEY") == result.id
    copied = {name: value for name, value in ASKED.items() if name != "CLUSTER"}
    assert named == {**copied, "TAGS": "Yes", "MSG_TYPE": "reply"}


@produced(topic=TOPIC, queues=4)
async def test_a_reply_is_not_retried_after_the_request_timed_out(stage):
    stage.cluster.replies[RequestCode.SEND_REPLY_MESSAGE_V2] = silent
    request = replace(got(**ASKED), queue=Queue(TOPIC, "broker-a", 3))
    before = stage.world.now()

    with pytest.raises(RequestTimeout):
        await stage.producer.send(reply_to(request, b"42"))

    assert stage.world.now() - before == pytest.approx(3.0, abs=0.1)
