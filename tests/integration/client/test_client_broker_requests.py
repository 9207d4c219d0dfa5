"""Requests of brokers to a client, made by an operator through a real broker."""

import contextlib

import pytest

from tests.running import in_loop, run_by
from tests.waiting import until
from txmq.client.client import Client
from txmq.client.consume import Later, PushConsumer
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.errors import InternalError, RequestNotSupported
from txmq.message import Message, Queue
from txmq.protocol import fastjson
from txmq.protocol.bodies import ConsumedDirectly, ProducerRegistration, read_queue_map
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import ConsumeDirectly, ConsumerStatusQuery
from txmq_broker.testing import embedded

GROUP, TOPIC = "readers", "Served"
FROM_FIRST = ConsumerSettings(start=StartFrom.FIRST)


@contextlib.asynccontextmanager
async def reading(handler, settings=FROM_FIRST, messages=3):
    """The only consumer of a topic of one queue, and an operator."""
    async with embedded() as broker, Client(broker.names) as mine, Client(broker.names) as operator:
        await operator.admin.create_topic(TOPIC, queues=1)
        for number in range(messages):
            await operator.admin.send(Message(topic=TOPIC, body=b"%d" % number))
        consumer = PushConsumer(GROUP, mine, settings)
        consumer.on(TOPIC)(handler)
        async with consumer:
            yield broker, consumer, operator


def ask(broker, operator, code, header, **more):
    return operator.session.request(broker.address, code, header, **more)


@run_by(in_loop)
async def test_an_offset_reset_delivers_the_messages_again():
    bodies = []
    async with reading(lambda message: bodies.append(message.body)) as (_, consumer, operator):
        await until(lambda: len(bodies) == 3)
        await consumer.commit()
        await operator.admin.reset_offset(GROUP, TOPIC, 0)
        await until(lambda: len(bodies) == 6)
        # Threads handle the messages of one queue concurrently, in any order.
        assert sorted(bodies[:3]) == sorted(bodies[3:]) == [b"0", b"1", b"2"]


@run_by(in_loop)
async def test_a_consumer_reports_its_offsets():
    bodies = []
    async with reading(lambda m: bodies.append(m.body)) as (broker, consumer, operator):
        queue = Queue(TOPIC, "broker-a", 0)
        await until(lambda: consumer.positions().get(queue) == 3)
        header = ConsumerStatusQuery(TOPIC, GROUP)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answer = await ask(broker, operator, code, header)
        whole = fastjson.loads(answer.body)
        assert list(whole["consumerTable"]) == [consumer.client.id]
        assert list(whole["consumerTable"][consumer.client.id].values()) == [3]


@run_by(in_loop)
async def test_a_consumer_reports_its_running_info():
    async with reading(lambda message: None) as (broker, consumer, operator):
        queue = Queue(TOPIC, "broker-a", 0)
        await until(lambda: consumer.positions().get(queue) == 3)
        header = ConsumeDirectly(GROUP, consumer.client.id)
        answer = await ask(broker, operator, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        shown = fastjson.loads(answer.body)
        assert shown["properties"]["PROP_CONSUMEORDERLY"] == "false"
        topics = {entry["topic"] for entry in shown["subscriptionSet"]}
        assert topics == {TOPIC, f"%RETRY%{GROUP}"}
        held = read_queue_map(answer.body, "mqTable", dict)
        mine = next(entry for q, entry in held.items() if q.topic == TOPIC)
        assert mine["commitOffset"] == 3
        assert mine["cachedMsgCount"] == 0


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (None, "CR_SUCCESS"),
        (True, "CR_SUCCESS"),
        (Later(), "CR_LATER"),
        (ValueError("no"), "CR_THROW_EXCEPTION"),
    ],
)
@run_by(in_loop)
async def test_an_operator_has_a_consumer_handle_one_message(verdict, result):
    by_hand = []

    async def handle(message):
        if len(by_hand) or message.offset < 3:
            return None
        by_hand.append(message)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async with reading(handle) as (broker, consumer, operator):
        consumer.pause()
        sent = await operator.admin.send(Message(topic=TOPIC, body=b"by hand"))
        header = ConsumeDirectly(GROUP, consumer.client.id, sent.offset_id)
        answer = await ask(broker, operator, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        told = ConsumedDirectly.read(answer.body)
        assert told.consume_result == result
        assert not told.order
        assert ("ValueError: no" in told.remark) is isinstance(verdict, Exception)


class Mute:
    """A member that can do nothing."""

    group = "mute"

    def registration(self):
        return ProducerRegistration(self.group)

    def rebalance_soon(self):
        pass


@run_by(in_loop)
async def test_running_info_of_a_group_without_a_consumer_is_refused():
    async with embedded() as broker, Client(broker.names) as client:
        await client.join(Mute())
        client.consumer = lambda group: Mute() if group == "mute" else None
        connection = await client.session.connection(broker.address)
        served = connection._service.__self__
        from txmq.protocol.command import Command

        def asked(group):
            request = Command(
                code=RequestCode.GET_CONSUMER_RUNNING_INFO,
                fields={"consumerGroup": group, "clientId": client.id},
            )
            return served.handlers[request.code](connection, request)

        with pytest.raises(InternalError, match="not exist in this client"):
            asked("strangers")
        with pytest.raises(RequestNotSupported, match="handles no messages"):
            asked("mute")
