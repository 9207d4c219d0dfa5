"""Checks of consumers before they consume: whether brokers understand their conditions, and whether
the other members of the group have the same subscriptions.
"""

import asyncio
import logging

import pytest

from tests.unit.client.consumer_stage import GROUP, acting
from tests.unit.client.consumer_stage import TOPIC as FAKE_TOPIC
from tests.unit.client.pull_stage import SOON, TOPIC, polled, staged, until
from txmq.client.consume import PushConsumer
from txmq.errors import ConnectFailed, FilterUnsupported, RequestNotSupported, SubscriptionInvalid
from txmq.message import Message
from txmq.protocol import bodies, command
from txmq.protocol.bodies import ClientConnection, ConsumerConnections
from txmq.protocol.codes import RequestCode
from txmq_broker.config import FilterSettings

CHECK = RequestCode.CHECK_CLIENT_CONFIG


def allow(stage):
    stage.broker.filters.settings = FilterSettings(sql=True)


def push(stage, name="reader", *, topic=TOPIC, **wanted):
    """A push consumer that notes the bodies it gets."""
    consumer = PushConsumer(GROUP, stage.client(name), SOON)
    seen = []

    @consumer.on(topic, **wanted)
    async def read(message):
        seen.append(message.body)

    return consumer, seen


async def send(stage, *numbers):
    for number in numbers:
        await stage.admin.send(
            Message(topic=TOPIC, body=b"%d" % number, properties={"age": str(number)})
        )


# Conditions


@staged
async def test_a_push_consumer_gets_only_messages_that_match_its_sql_condition(stage):
    allow(stage)
    await stage.topic(queues=2)
    await send(stage, *range(10))
    consumer, seen = push(stage, sql="age between 0 and 6")

    async with consumer.client, consumer:
        await until(lambda: len(seen) == 7)
        await send(stage, 5, 9, 6)
        await until(lambda: len(seen) == 9)

    assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4", b"5", b"5", b"6", b"6"]


@staged
async def test_a_pull_consumer_gets_only_messages_that_match_its_sql_condition(stage):
    allow(stage)
    queues = await stage.topic()
    await send(stage, *range(10))
    consumer = stage.consumer()
    consumer.subscribe(TOPIC, sql="age > 7")

    async with consumer:
        assert [message.body for message in await polled(consumer, 2)] == [b"8", b"9"]
    chooser = stage.consumer(group="choosers")
    await chooser.assign(queues, sql="age < 2")
    async with chooser:
        assert [message.body for message in await polled(chooser, 2)] == [b"0", b"1"]
        with pytest.raises(SubscriptionInvalid):
            await chooser.assign(queues, sql="age <")
        assert chooser.queues == queues


@staged
async def test_a_condition_with_a_syntax_error_fails_at_start_and_names_the_position(stage):
    allow(stage)
    await stage.topic()
    consumer, _ = push(stage, sql="age between 0 and")

    async with consumer.client:
        with pytest.raises(SubscriptionInvalid, match="expected a property") as refused:
            await consumer.__aenter__()

    assert refused.value.position == 18
    assert stage.broker.clients.consumer_group(GROUP) is None
    puller = stage.consumer()
    puller.subscribe(TOPIC, sql="age = ")
    with pytest.raises(SubscriptionInvalid):
        await puller.__aenter__()


@staged
async def test_a_broker_without_sql_filters_is_named_in_the_error_with_the_remedy(stage):
    await stage.topic()
    consumer, _ = push(stage, sql="age > 5")

    async with consumer.client:
        with pytest.raises(FilterUnsupported, match="enablePropertyFilter") as refused:
            await consumer.__aenter__()
    assert str(refused.value).startswith("broker-a: ")
    assert not refused.value.retryable


def answering(code):
    return lambda request: command.answer(request, code, remark="so it is")


@acting(brokers=2, queues=1)
async def test_every_broker_of_the_topic_checks_the_condition(stage):
    stage.cluster.replies[CHECK] = answering(0)
    async with stage.client() as client:
        consumer = PushConsumer(GROUP, client)
        consumer.on(FAKE_TOPIC, sql="age > 5")(print)
        async with consumer:
            asked = [name for name, code, _ in stage.cluster.asked if code == CHECK]
            assert sorted(asked) == ["broker-a", "broker-b"]


@acting()
async def test_tags_are_not_checked_by_brokers(stage):
    async with stage.reading(tags="A || B") as consumer:
        await stage.until(lambda: consumer.queues)
    assert stage.asked(CHECK) == []


@pytest.mark.parametrize(
    ("code", "error"), [(1, FilterUnsupported), (23, SubscriptionInvalid), (3, RequestNotSupported)]
)
@acting()
async def test_refusals_of_stock_brokers_have_text_but_no_position(stage, code, error):
    stage.cluster.replies[CHECK] = answering(code)
    async with stage.client() as client:
        consumer = PushConsumer(GROUP, client)
        consumer.on(FAKE_TOPIC, sql="age >")(print)
        with pytest.raises(error, match="so it is") as refused:
            await consumer.__aenter__()
        assert getattr(refused.value, "position", None) is None


@acting()
async def test_a_consumer_starts_when_a_broker_cannot_check_its_condition(stage, caplog):
    async with stage.client() as client:
        request = client.session.request

        async def cut(address, code, *args, **more):
            if code == CHECK:
                raise ConnectFailed("nobody there")
            return await request(address, code, *args, **more)

        client.session.request = cut
        consumer = PushConsumer(GROUP, client)
        consumer.on(FAKE_TOPIC, sql="age > 5")(print)
        async with consumer:
            assert "could not check the condition: nobody there" in caplog.text


@staged
async def test_a_topic_created_after_the_consumer_starts_is_filtered_by_its_condition(stage):
    allow(stage)
    consumer, seen = push(stage, sql="age > 5")

    async with consumer.client, consumer:
        await stage.topic()
        await send(stage, 5, 6)
        await until(lambda: seen == [b"6"], within_s=120.0)


# Members with different subscriptions


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


@staged
async def test_members_with_different_subscriptions_are_each_warned_once(stage, caplog):
    allow(stage)
    await stage.topic()
    first, _ = push(stage, "first", tags="B || A")
    second, _ = push(stage, "second", sql="age > 5")
    async with first.client, second.client, first:
        await until(lambda: first.queues)
        assert warnings(caplog) == []
        async with second:
            await asyncio.sleep(100)

    begin = "members of group readers want different messages, so that each misses a part"
    assert warnings(caplog) == [
        f"{begin} (T: SQL92 age > 5 here, A || B there)",
        f"{begin} (T: A || B here, SQL92 age > 5 there)",
    ]


@staged
async def test_equal_subscriptions_in_different_spelling_cause_no_warning(stage, caplog):
    await stage.topic()
    first, _ = push(stage, "first", tags="B||A")
    second, _ = push(stage, "second", tags=" A || B ")
    third = stage.subscribed(name="third", tags="A || B || A")
    async with first.client, second.client, first, second, third:
        await asyncio.sleep(100)

    assert warnings(caplog) == []


@staged
async def test_members_that_subscribe_to_different_topics_cause_a_warning(stage, caplog):
    await stage.topic()
    await stage.topic(name="U")
    first, _ = push(stage, "first")
    second = stage.consumer(name="second")
    second.subscribe("U")
    async with first.client, first, second:
        await asyncio.sleep(1)

    assert "(T: nothing here, * there; U: * here, nothing there)" in warnings(caplog)[0]


@pytest.mark.parametrize(
    ("table", "is_warned"),
    [
        ({"T": ("*", ""), "%RETRY%readers": ("*", "TAG")}, False),
        ({"T": ("A || *", "TAG")}, False),
        ({"T": ("A", None)}, True),
        ({"T": ("a > 5", "SQL92")}, True),
        ({}, True),
    ],
)
@acting()
async def test_subscriptions_reported_by_a_stock_broker_are_compared(
    stage, table, is_warned, caplog
):
    told = {
        topic: bodies.SubscriptionData(topic, text, [], [], 1, kind or "TAG")
        for topic, (text, kind) in table.items()
    }
    stage.broker.consumers[GROUP] = ConsumerConnections(
        [ClientConnection("10.0.0.1:1", "other", "JAVA", 409)],
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_PASSIVELY", "CLUSTERING", told,
    )  # fmt: skip
    async with stage.reading():
        pass

    assert bool(warnings(caplog)) is is_warned


@acting()
async def test_a_broker_that_reports_no_subscriptions_causes_no_warning(stage, caplog):
    stage.cluster.replies[RequestCode.GET_CONSUMER_CONNECTION_LIST] = answering(0)
    async with stage.reading() as consumer:
        await stage.until(lambda: consumer.queues)

    assert warnings(caplog) == []
