import asyncio

import pytest

from tests.unit.client.client_stage import staged
from txmq.client import WaitingRetries
from txmq.errors import ConsumerOffline, LimitExceeded, LocalProtocolError, RemoteProtocolError
from txmq.message import Message
from txmq.protocol import command
from txmq.protocol.bodies import (
    ClientConnection,
    ConsumerConnections,
    ConsumeTimeSpan,
    ConsumeTimeSpans,
    MessageQueue,
    ProducerConnections,
    SubscriptionData,
)
from txmq.protocol.codes import RequestCode

DELETE = "DELETE_SUBSCRIPTIONGROUP"


@staged(brokers=2)
async def test_a_group_is_created_at_every_broker_and_listed_once(stage):
    await stage.admin.create_group("g", retries=3, enabled=False)
    await stage.admin.create_group("b", broker="broker-b")

    found = await stage.admin.groups()

    assert list(found) == ["b", "g"]
    assert (found["g"].retry_max_times, found["g"].consume_enable) == (3, False)
    assert set(stage.cluster.brokers[0].groups) == {"g"}


@staged(brokers=2)
async def test_a_changed_group_keeps_omitted_settings(stage):
    await stage.admin.create_group("g", retries=3, broker="broker-a")

    await stage.admin.create_group("g", enabled=False)
    await stage.admin.create_group("g", retries=None)

    a, b = [broker.groups["g"] for broker in stage.cluster.brokers]
    assert (a.retry_max_times, a.consume_enable) == (3, False)
    assert (b.retry_max_times, b.consume_enable) == (16, False)


@staged()
async def test_an_invalid_group_name_is_refused(stage):
    with pytest.raises(LocalProtocolError):
        await stage.admin.create_group("a b")
    with pytest.raises(LimitExceeded):
        await stage.admin.create_group("g" * 256)


@pytest.mark.parametrize("offsets", [True, False])
@staged(brokers=2)
async def test_deleting_a_group_deletes_its_offsets_unless_asked_not_to(stage, offsets):
    await stage.admin.create_group("g")

    await stage.admin.delete_group("g", offsets=offsets)

    assert await stage.admin.groups() == {}
    (fields, _) = [request[2] for request in stage.cluster.asked if request[1].name == DELETE]
    text = str(offsets).lower()
    assert fields == {"groupName": "g", "removeOffset": text, "cleanOffset": text}


@staged(brokers=2)
async def test_the_progress_of_a_group_covers_all_its_queues(stage):
    a, b = stage.cluster.add_topic("T", queues=1)
    (u, *_) = stage.cluster.add_topic("U", queues=1)
    for _ in range(3):
        await stage.admin.send(Message(topic="T", body=b"x"), b)
    for queue, offset in ((a, 0), (b, 1), (u, 4)):
        await stage.admin.commit_offset("g", queue, offset)

    found = await stage.admin.group_progress("g")

    assert [
        (progress.queue, progress.broker_offset, progress.group_offset, progress.lag)
        for progress in found
    ] == [(a, 0, 0, 0), (b, 3, 1, 2), (u, 0, 4, 0)]
    assert [progress.queue for progress in await stage.admin.group_progress("g", "U")] == [u]
    assert await stage.admin.group_progress("h") == []


@staged(brokers=2)
async def test_the_lag_of_a_group_is_measured_from_its_oldest_unread_message(stage):
    a, b = stage.cluster.add_topic("T", queues=1)
    # The group read one message of each queue long ago, and no others came until now.
    for queue in (a, b):
        await stage.admin.send(Message(topic="T", body=b"read"), queue)
        await stage.admin.commit_offset("g", queue, 1)
    await asyncio.sleep(600)
    assert (await stage.admin.group_lag("g")).oldest_ms is None
    await stage.admin.send(Message(topic="T", body=b"unread"), a)
    await asyncio.sleep(30)
    await stage.admin.send(Message(topic="T", body=b"unread"), b)
    await asyncio.sleep(20)

    found = await stage.admin.group_lag("g")

    assert found.lag == 2
    assert 50_000 <= found.oldest_ms < 51_000


@staged()
async def test_a_lag_that_a_broker_measures_from_1970_is_corrected(stage):
    # RocketMQ's broker, when retention has deleted the next message of a group.
    (queue,) = stage.cluster.add_topic("T", queues=1)
    await stage.admin.send(Message(topic="T", body=b"x"), queue)
    await stage.admin.commit_offset("g", queue, 0)
    first_ms, now_ms = 1_700_000_000_000, 1_700_000_090_000
    place = MessageQueue(queue.broker, queue.number, "T")
    span = ConsumeTimeSpan(place, first_ms, first_ms, -1, now_ms - -1)
    body = ConsumeTimeSpans([span]).write()
    stage.cluster.replies[RequestCode.QUERY_CONSUME_TIME_SPAN] = lambda request: command.answer(
        request, body=body
    )

    assert (await stage.admin.group_lag("g")).oldest_ms == 90_000


@staged(brokers=2)
async def test_waiting_retries_of_all_brokers_add_up_or_are_unknown(stage):
    stage.cluster.add_topic("T", queues=1)
    assert (await stage.admin.group_lag("g")).retries is None
    bodies = [
        b'{"retriesWaiting":{"1":2,"3":1},"retriesMax":16,"offsetTable":{}}',
        b'{"retriesWaiting":{"1":1},"retriesMax":5,"offsetTable":{}}',
    ]
    stage.cluster.replies[RequestCode.GET_CONSUME_STATS] = lambda request: command.answer(
        request, body=bodies.pop()
    )

    found = await stage.admin.group_lag("g")

    assert found.retries == WaitingRetries({1: 3, 3: 1}, 16)
    assert (found.lag, found.unconsumed) == (0, 4)
    broken = b'{"retriesWaiting":{"1":"x"},"offsetTable":{}}'
    bodies += [broken, broken]
    with pytest.raises(RemoteProtocolError):
        await stage.admin.group_lag("g")


@staged(brokers=2)
async def test_a_client_connected_to_every_broker_is_listed_once(stage):
    for n, broker in enumerate(stage.cluster.brokers):
        clients = [
            ClientConnection(f"10.0.0.2:{n}", "c1", "JAVA", 409),
            ClientConnection(f"10.0.0.3:{n}", f"only-{broker.name}", "GO", 317),
        ]
        broker.consumers["g"] = ConsumerConnections(
            clients, "X", "CONSUME_PASSIVELY", "CLUSTERING", {"T": SubscriptionData("T", "A || B")}
        )

    found = await stage.admin.group_connections("g")

    assert [client.id for client in found.clients] == ["c1", "only-broker-a", "only-broker-b"]
    assert found.clients[0].language == "JAVA"
    assert found.subscriptions == {"T": "A || B"}
    assert (found.message_model, found.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")


@staged(brokers=2)
async def test_a_group_connected_to_only_one_broker_is_listed(stage):
    stage.cluster.brokers[1].consumers["g"] = ConsumerConnections([], "", "", "CLUSTERING", {})

    assert (await stage.admin.group_connections("g")).message_model == "CLUSTERING"


@staged()
async def test_connections_of_a_group_without_consumers_raise_consumer_offline(stage):
    with pytest.raises(ConsumerOffline, match="group g"):
        await stage.admin.group_connections("g")


@staged(brokers=2)
async def test_producers_are_listed_and_their_absence_is_no_error(stage):
    """RocketMQ answers "system error" if no producer is connected."""
    assert await stage.admin.producer_connections("p") == ()

    both = ProducerConnections([ClientConnection("10.0.0.2:5", "c1", "JAVA", 409)])
    stage.cluster.replies[RequestCode.GET_PRODUCER_CONNECTION_LIST] = lambda request: (
        command.answer(request, body=both.write())
    )

    assert [connection.id for connection in await stage.admin.producer_connections("p")] == ["c1"]
