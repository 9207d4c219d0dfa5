"""Every broker may check the transactions of a group, so each must know its producers."""

import asyncio

from tests.unit.client.fake_cluster import FakeBroker
from tests.unit.transaction.producing_stage import COMMIT, GROUP, TOPIC, message, refuse, staged
from txmq.client.send.producer import Producer
from txmq.protocol.bodies import Heartbeat
from txmq.protocol.codes import RequestCode


def beaten(stage):
    return {who for who, _ in stage.cluster.codes("HEART_BEAT")}


@staged(brokers=3)
async def test_an_idle_producer_sends_heartbeats_to_every_broker(stage):
    assert beaten(stage) == {broker.name for broker in stage.cluster.brokers}
    await asyncio.sleep(0.1)
    stage.cluster.asked.clear()
    await asyncio.sleep(35)
    assert beaten(stage) == {broker.name for broker in stage.cluster.brokers}


@staged()
async def test_a_heartbeat_names_the_producer_group(stage):
    told = []
    stage.cluster.replies[RequestCode.HEART_BEAT] = lambda asked: told.append(asked.body)
    beating = asyncio.ensure_future(stage.producer.client.beat())
    await stage.until(lambda: told)
    beating.cancel()
    (group,) = Heartbeat.read(told[0]).producer_data_set
    assert group.group_name == GROUP


@staged()
async def test_a_broker_that_joins_later_gets_heartbeats_and_can_check(stage):
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
async def test_transactions_work_when_the_list_of_brokers_is_unavailable(stage):
    stage.cluster.replies[RequestCode.GET_BROKER_CLUSTER_INFO] = refuse(3)
    await stage.producer.__aexit__(None, None, None)
    stage.cluster.asked.clear()
    async with stage.producer:
        assert (await stage.producer.send_in_transaction(message())).is_acknowledged
        await stage.until(lambda: beaten(stage))


@staged()
async def test_plain_producers_do_not_request_the_list_of_brokers(stage):
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
