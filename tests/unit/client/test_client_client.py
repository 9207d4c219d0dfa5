"""A client sends heartbeats to brokers, and its consumers share the queues of their group."""

import asyncio

import pytest

from tests.unit.client.consumer_stage import GROUP, TOPIC, acting
from txmq.errors import UsageError
from txmq.message import Queue
from txmq.protocol import bodies, command
from txmq.protocol.codes import RequestCode

BEAT, MEMBERS = RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP


def beats(stage):
    return stage.cluster.codes("HEART_BEAT")


# Heartbeats


@acting(brokers=2)
async def test_a_member_sends_heartbeats_to_all_brokers_at_start_and_every_30_seconds(stage):
    async with stage.reading():
        both = [("broker-a", "HEART_BEAT"), ("broker-b", "HEART_BEAT")]
        assert sorted(beats(stage)) == both
        await asyncio.sleep(29)
        assert len(beats(stage)) == 2
        await asyncio.sleep(2)
        assert sorted(beats(stage)[2:]) == both
        await asyncio.sleep(30)
        assert len(beats(stage)) == 6


@acting()
async def test_a_heartbeat_carries_the_subscriptions_of_a_member(stage):
    told = []

    def note(request):
        told.append(bodies.Heartbeat.read(request.body))
        return stage.broker.on_heart_beat(request)

    stage.cluster.replies[BEAT] = note
    async with stage.client() as client, stage.reader(client, tags="A || B"):
        pass
    (consumer,) = told[0].consumer_data_set
    assert told[0].client_id == client.id == "here@one"
    assert (consumer.group_name, consumer.message_model) == (GROUP, "CLUSTERING")
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    wanted = {
        subscription.topic: subscription.sub_string
        for subscription in consumer.subscription_data_set
    }
    assert wanted == {TOPIC: "A || B", f"%RETRY%{GROUP}": "*"}


@acting()
async def test_a_new_connection_begins_with_a_heartbeat(stage):
    async with stage.client() as client, stage.reader(client):
        await asyncio.sleep(1)
        assert len(beats(stage)) == 1
        stage.world.network.cut("one", "server")
        await stage.until(lambda: len(beats(stage)) == 2, within_s=2.0)
        await stage.until(lambda: stage.broker.member_ids(GROUP) == [client.id])


@acting()
async def test_a_connection_opened_while_a_heartbeat_hangs_begins_with_another(stage):
    async with stage.client() as client, stage.reader(client):
        await asyncio.sleep(1)
        stage.cluster.replies[BEAT] = lambda request: None
        hanging = asyncio.create_task(client.beat())
        await asyncio.sleep(1)
        del stage.cluster.replies[BEAT]
        stage.world.network.cut("one", "server")
        await hanging
        await stage.until(lambda: stage.broker.member_ids(GROUP) == [client.id], within_s=2.0)


@acting(brokers=2)
async def test_a_member_that_stops_unregisters_at_every_broker(stage):
    async with stage.client() as client:
        async with stage.reader(client):
            pass
        assert sorted(stage.cluster.codes("UNREGISTER_CLIENT")) == [
            ("broker-a", "UNREGISTER_CLIENT"),
            ("broker-b", "UNREGISTER_CLIENT"),
        ]
        (head, _) = stage.asked(RequestCode.UNREGISTER_CLIENT)
        assert (head["clientID"], head["consumerGroup"]) == (client.id, GROUP)
        await asyncio.sleep(120)
        assert len(beats(stage)) == 2  # No member is left to send heartbeats for.


@acting()
async def test_a_silent_broker_delays_joining_and_leaving_only_briefly(stage):
    stage.cluster.replies[BEAT] = stage.cluster.replies[RequestCode.UNREGISTER_CLIENT] = (
        lambda request: None
    )
    async with stage.client() as client:
        before = stage.world.now()
        async with stage.reader(client):
            joined = stage.world.now()
        left = stage.world.now()
    assert joined - before == pytest.approx(3, abs=0.1)
    assert left - joined < 10


@acting()
async def test_a_second_member_of_a_group_in_one_client_is_refused(stage):
    async with stage.client() as client, stage.reader(client):
        with pytest.raises(UsageError, match="has a member of group readers already"):
            await stage.reader(client).__aenter__()
        # The first member is not disturbed.
        stage.put(b"0")
        await stage.until(lambda: stage.seen)
        assert client.consumer(GROUP) is not None


@acting()
async def test_a_closed_client_accepts_no_consumers(stage):
    with pytest.raises(UsageError):
        await stage.reader(stage.client()).__aenter__()


# Who has which queues


@acting(queues=4)
async def test_members_share_queues_and_take_over_those_of_a_member_that_leaves(stage):
    async with stage.client("one") as one, stage.reader(one) as first:
        await stage.until(lambda: len(first.queues) == 5)
        async with stage.client("two") as two, stage.reader(two) as second:
            stage.broker.notify(GROUP)
            await stage.until(lambda: len(second.queues) == 2, within_s=1.0)
            await stage.until(lambda: len(first.queues) == 3, within_s=1.0)
            assert not set(first.queues) & set(second.queues)
        stage.broker.notify(GROUP)
        await stage.until(lambda: len(first.queues) == 5, within_s=1.0)


@acting(queues=4)
async def test_members_rebalance_every_20_seconds_without_a_notification(stage):
    async with stage.client("one") as one, stage.reader(one) as first:
        await stage.until(lambda: len(first.queues) == 5)
        async with stage.client("two") as two, stage.reader(two) as second:
            await stage.until(lambda: len(second.queues) == 2, within_s=1.0)
            await asyncio.sleep(15)
            assert len(first.queues) == 5
            await stage.until(lambda: len(first.queues) == 3, within_s=6.0)


@pytest.mark.parametrize("answer", ["refused", "empty", "silent"])
@acting(queues=2)
async def test_a_member_keeps_its_queues_when_no_broker_lists_the_group(stage, answer):
    def reply(request):
        if answer == "refused":
            return command.answer(request, 1, remark="no consumer for this group")
        if answer == "empty":
            return command.answer(request, body=bodies.ConsumerIds([]).write())
        return None

    async with stage.client() as client, stage.reader(client) as consumer:
        await stage.until(lambda: len(consumer.queues) == 3)
        stage.cluster.replies[MEMBERS] = reply
        client.rebalance_soon(GROUP)
        await asyncio.sleep(60)
        assert len(consumer.queues) == 3
        stage.put(b"0")
        await stage.until(lambda: stage.seen)


@acting(queues=2)
async def test_a_member_missing_from_the_list_sends_another_heartbeat(stage):
    async with stage.client() as client, stage.reader(client) as consumer:
        await stage.until(lambda: len(consumer.queues) == 3)
        stage.broker.members[GROUP] = {next(iter(stage.broker.members[GROUP])): "somebody"}
        client.rebalance_soon()
        await asyncio.sleep(1)
        assert len(consumer.queues) == 3
        assert len(beats(stage)) == 2


@acting(brokers=2)
async def test_another_broker_is_asked_when_one_does_not_list_the_members(stage):
    stage.broker.on_get_consumer_list_by_group = lambda request: command.answer(request, 1)
    async with stage.reading() as consumer:
        await stage.until(lambda: len(consumer.queues) == 4)


@acting(queues=1)
async def test_new_queues_of_a_topic_are_consumed(stage):
    async with stage.reading() as consumer:
        await stage.until(lambda: len(consumer.queues) == 2)
        stage.cluster.add_topic(TOPIC, 3)
        stage.put(b"0", number=2)
        await stage.until(lambda: stage.seen, within_s=31.0)
        assert Queue(TOPIC, "broker-a", 2) in consumer.queues


@acting(queues=1)
async def test_a_topic_created_after_the_consumer_starts_is_consumed(stage):
    config = stage.broker.topics.pop(TOPIC)
    async with stage.reading() as consumer:
        await asyncio.sleep(60)
        assert not [queue for queue in consumer.queues if queue.topic == TOPIC]
        stage.broker.topics[TOPIC] = config
        stage.put(b"0")
        await stage.until(lambda: stage.seen, within_s=5.0)


@acting(brokers=2, queues=2)
async def test_a_dead_broker_does_not_delay_queues_of_other_brokers(stage):
    def silent(request):
        return None

    stage.broker.on_query_consumer_offset = silent
    stage.put(b"0", broker=stage.cluster.brokers[1])
    async with stage.reading():
        await stage.until(lambda: stage.seen, within_s=1.0)


@acting()
async def test_offsets_that_fail_to_save_are_saved_at_the_next_interval(stage):
    save = RequestCode.UPDATE_CONSUMER_OFFSET
    async with stage.reading():
        await asyncio.sleep(1)
        stage.cluster.replies[save] = lambda request: command.answer(request, 1)
        stage.put(b"0", b"1")
        await asyncio.sleep(6)
        assert len(stage.asked(save)) > 1
        del stage.cluster.replies[save]
        await stage.until(lambda: stage.committed() == 2, within_s=6.0)
        count = len(stage.asked(save))
        await asyncio.sleep(20)
        assert len(stage.asked(save)) == count  # An unchanged offset is not saved again.


@acting(queues=4)
async def test_a_member_that_is_listed_twice_has_one_share(stage):
    body = bodies.ConsumerIds(["here@one", "here@one"]).write()
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    stage.cluster.replies[code] = lambda request: command.answer(request, body=body)
    async with stage.reading() as consumer:
        await stage.until(lambda: len(consumer.queues) == 5)


@acting()
async def test_a_connection_that_never_answers_is_replaced(stage):
    """As after a cut that neither end has noticed."""
    async with stage.client() as client, stage.reader(client) as consumer:
        await stage.until(lambda: Queue(TOPIC, "broker-a", 0) in consumer.queues)
        connection = client.session.pool.ready(stage.broker.address)
        connection.data_received = lambda data: None
        await stage.until(lambda: not connection.is_open, within_s=40.0)
        stage.put(b"0")
        await stage.until(lambda: stage.seen)
