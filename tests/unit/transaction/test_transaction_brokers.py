"""Every broker may ask about a group's transactions, so every one must know who answers."""

import asyncio

from tests.unit.client.fake_cluster import FakeBroker
from tests.unit.transaction.producing_stage import COMMIT, GROUP, TOPIC, message, refuse, staged
from txmq.client.send.producer import Producer
from txmq.protocol.bodies import Heartbeat
from txmq.protocol.codes import RequestCode


def beaten(stage):
    return {who for who, _ in stage.cluster.codes("HEART_BEAT")}


@staged(brokers=3)
async def test_one_that_sends_nothing_is_known_everywhere(stage):
    assert beaten(stage) == {each.name for each in stage.cluster.brokers}
    await asyncio.sleep(0.1)
    stage.cluster.asked.clear()
    await asyncio.sleep(35)
    assert beaten(stage) == {each.name for each in stage.cluster.brokers}


@staged()
async def test_it_says_that_it_produces(stage):
    told = []
    stage.cluster.replies[RequestCode.HEART_BEAT] = lambda asked: told.append(asked.body)
    beating = asyncio.ensure_future(stage.producer.client.beat())
    await stage.until(lambda: told)
    beating.cancel()
    (group,) = Heartbeat.read(told[0]).producer_data_set
    assert group.group_name == GROUP


@staged()
async def test_a_broker_that_comes_later_hears_of_it(stage):
    cluster = stage.cluster
    late = FakeBroker(cluster, "broker-z")
    late.address = await cluster._open(late.serve, cluster.listeners)
    cluster.brokers.append(late)
    await asyncio.sleep(31)
    assert "broker-z" in beaten(stage)
    late.store(TOPIC, 0, late_header(), b"x", f"UNIQ_KEY\x01late\x02PGROUP\x01{GROUP}\x02", 0)
    stage.ask("late", broker=1)
    await stage.until(lambda: stage.ends)
    assert stage.said == [COMMIT]


class late_header:
    born_timestamp = 0


@staged()
async def test_where_nobody_tells_of_brokers_it_works_as_any_producer(stage):
    stage.cluster.replies[RequestCode.GET_BROKER_CLUSTER_INFO] = refuse(3)
    await stage.producer.__aexit__(None, None, None)
    stage.cluster.asked.clear()
    async with stage.producer:
        assert (await stage.producer.send_in_transaction(message())).is_acknowledged
        await stage.until(lambda: beaten(stage))


@staged()
async def test_other_producers_do_not_ask_for_them(stage):
    client = stage.producer.client
    stage.cluster.asked.clear()
    async with Producer("plain", client) as plain:
        await plain.send(message())
    assert stage.cluster.codes("GET_BROKER_CLUSTER_INFO") == []


@staged()
async def test_the_first_message_of_a_new_topic_is_ended_without_a_route(stage):
    stage.broker.topics["TBW102"] = stage.broker.topics.pop(TOPIC)
    outcome = None

    async def names_are_gone():
        stage.cluster.name_listeners[0].close()
        return COMMIT

    stage.bank.says = names_are_gone
    outcome = await stage.producer.send_in_transaction(message())
    assert outcome.is_acknowledged
