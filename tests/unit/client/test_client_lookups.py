import pytest

from tests.unit.client.client_stage import QUEUE, staged
from txmq.errors import InternalError, LocalProtocolError, NotFound, TopicNotFound
from txmq.message import Message
from txmq.protocol.record import host_bytes, offset_id


def message(*keys, body=b"x", **more):
    return Message(topic="T", body=body, keys=keys, **more)


@staged(brokers=2)
async def test_a_message_is_viewed_at_the_broker_that_stores_it(stage):
    queues = stage.cluster.add_topic("T")
    for queue in queues:
        receipt = await stage.admin.send(message(body=str(queue).encode()), queue)

        got = await stage.admin.view(receipt.offset_id)

        assert (got.queue, got.id, got.body) == (queue, receipt.id, str(queue).encode())


@staged(topic="T")
async def test_a_message_at_a_broker_unknown_to_the_name_server_has_no_broker_name(stage):
    receipt = await stage.admin.send(message(), QUEUE)
    stage.cluster.brokers.clear()

    assert (await stage.admin.view(receipt.offset_id)).queue.broker == ""


@pytest.mark.parametrize("text", ["", "xyz", "00", "0" * 33])
@staged()
async def test_a_malformed_offset_id_is_refused_without_a_request(stage, text):
    with pytest.raises(LocalProtocolError):
        await stage.admin.view(text)
    assert stage.cluster.asked == []


@staged()
async def test_viewing_an_offset_without_a_message_is_refused(stage):
    host, port = stage.cluster.brokers[0].address.rsplit(":", 1)

    with pytest.raises(InternalError):
        await stage.admin.view(offset_id(host_bytes(host, int(port)), 12345))


@staged(brokers=2)
async def test_a_key_finds_messages_of_all_brokers_oldest_first(stage):
    a, b = stage.cluster.add_topic("T", queues=1)
    clock = stage.world.machine("server").clock
    sent = []
    for queue in (b, a, b):
        sent.append((await stage.admin.send(message("k1", "k2"), queue)).id)
        clock.jump(1)
    await stage.admin.send(message("k3"), a)

    found = await stage.admin.query("T", "k2")

    assert [hit.id for hit in found] == sent
    assert {hit.queue.broker for hit in found} == {"broker-a", "broker-b"}


@staged(brokers=2, topic="T")
async def test_an_unused_key_finds_nothing_even_if_another_shares_its_hash(stage):
    assert await stage.admin.query("T", "kith") == []
    await stage.admin.send(message("kin"))

    assert await stage.admin.query("T", "kith") == []


@staged(topic="T")
async def test_a_query_passes_its_bounds_to_the_broker(stage):
    await stage.admin.query("T", "k", count=3, begin_ms=5, end_ms=6)

    fields = stage.cluster.asked[-1][2]
    assert fields == {
        "topic": "T", "key": "k", "maxNum": "3", "beginTimestamp": "5", "endTimestamp": "6"
    }  # fmt: skip


@staged(brokers=2)
async def test_a_message_is_found_by_the_id_its_producer_gave_it(stage):
    queues = stage.cluster.add_topic("T")
    receipts = [await stage.admin.send(message(), queue) for queue in queues]

    found = [await stage.admin.find("T", sent.id) for sent in receipts]

    assert [sent.queue for sent in found] == queues


@staged(brokers=2)
async def test_of_a_message_sent_twice_the_earlier_one_is_found(stage):
    a, b = stage.cluster.add_topic("T", queues=1)
    again = message(properties={"UNIQ_KEY": "SAME"})
    await stage.admin.send(again, b)
    stage.world.machine("server").clock.jump(5)
    await stage.admin.send(again, a)

    assert (await stage.admin.find("T", "SAME")).queue == b


@staged(topic="T")
async def test_an_unknown_message_id_is_not_found(stage):
    receipt = await stage.admin.send(message())

    with pytest.raises(NotFound):
        await stage.admin.find("T", receipt.id[:-1] + "x")
    with pytest.raises(TopicNotFound):
        await stage.admin.find("U", receipt.id)
