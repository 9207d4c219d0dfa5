from functools import partial

import pytest

from tests.unit.client.client_stage import staged
from tests.unit.client.fake_cluster import FakeBroker
from txmq.client import BrokerInfo
from txmq.client.admin.topics import SHOWN_S
from txmq.errors import (
    ConfigError,
    ConnectFailed,
    Effect,
    LimitExceeded,
    LocalProtocolError,
    NoPermission,
    RequestTimeout,
    TopicNotFound,
)
from txmq.message import Message, Queue
from txmq.protocol import command
from txmq.protocol.codes import Perm, RequestCode

CREATE = "UPDATE_AND_CREATE_TOPIC"


@staged(brokers=2)
async def test_a_topic_is_created_at_every_broker_and_can_be_used_at_once(stage):
    for broker in stage.cluster.brokers:
        broker.shown_after = 3

    route = await stage.admin.create_topic("T", 3)

    assert len(route.writable) == 6
    assert stage.cluster.codes(CREATE) == [("broker-a", CREATE), ("broker-b", CREATE)]
    await stage.admin.send(Message(topic="T", body=b"x"))


@staged(brokers=3)
async def test_a_topic_refused_by_one_broker_is_still_created_at_the_others(stage):
    stage.cluster.brokers[0].on_update_and_create_topic = lambda request: command.answer(
        request, 16, remark="not here"
    )

    with pytest.raises(NoPermission, match="not here") as caught:
        await stage.admin.create_topic("T")

    assert len(stage.cluster.codes(CREATE)) == 3
    (note,) = caught.value.__notes__
    assert note.startswith("the change is in force at broker-b, broker-c, but not at broker-a;")
    assert caught.value.effect is Effect.MAYBE


@staged(brokers=3, topic="T")
async def test_a_change_refused_by_one_broker_is_still_made_at_the_others(stage):
    changes = {
        "DELETE_TOPIC_IN_BROKER": lambda: stage.admin.delete_topic("T"),
        "INVOKE_BROKER_TO_RESET_OFFSET": lambda: stage.admin.reset_offset("g", "T", 0),
        "CLONE_GROUP_OFFSET": lambda: stage.admin.clone_offsets("g", "h", "T"),
    }
    for code, change in changes.items():
        for broker in stage.cluster.brokers:
            is_first = broker is stage.cluster.brokers[0]
            answer = {"remark": "not here"} if is_first else {"body": b'{"offsetTable":{}}'}
            setattr(
                broker,
                f"on_{code.lower()}",
                partial(command.answer, code=16 if is_first else 0, **answer),
            )

        with pytest.raises(NoPermission, match="not here") as caught:
            await change()

        assert [broker for broker, _ in stage.cluster.codes(code)] == [
            "broker-a", "broker-b", "broker-c",
        ]  # fmt: skip
        (note,) = caught.value.__notes__
        assert note.startswith("the change is in force at broker-b, broker-c, but not at broker-a;")
    # Clients still find the topic at the broker that keeps it.
    assert stage.cluster.codes("DELETE_TOPIC_IN_NAMESRV") == []


@staged(brokers=2)
async def test_a_topic_can_be_created_at_one_broker(stage):
    route = await stage.admin.create_topic("T", 2, "broker-b", order=True, perm=Perm.READ)

    assert route.brokers == ("broker-b",)
    ((_, _, fields),) = [request for request in stage.cluster.asked if request[1].name == CREATE]
    assert fields == {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2",
        "perm": "4", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "true",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("queues", "perm", "writable", "readable"),
    [(5, 6, 5, 5), (1, 6, 1, 1), (2, 4, 0, 2), (2, 2, 2, 0)],
)
@staged()
async def test_a_change_of_a_topic_is_awaited(stage, queues, perm, writable, readable):
    await stage.admin.create_topic("T", 2)
    stage.cluster.brokers[0].shown_after = 3

    route = await stage.admin.create_topic("T", queues, perm=perm)

    assert (len(route.writable), len(route.readable)) == (writable, readable)


@staged()
async def test_a_created_topic_that_no_name_server_shows_times_out(stage):
    stage.cluster.brokers[0].shown_after = 10_000
    before = stage.world.now()

    with pytest.raises(RequestTimeout, match="no name server shows it") as caught:
        await stage.admin.create_topic("T")

    assert SHOWN_S - 1 < stage.world.now() - before < SHOWN_S + 1
    assert caught.value.effect.value == "maybe"


@pytest.mark.parametrize(
    ("name", "problem"), [("a b", LocalProtocolError), ("t" * 128, LimitExceeded)]
)
@staged()
async def test_an_invalid_topic_name_is_refused_without_a_request(stage, name, problem):
    with pytest.raises(problem):
        await stage.admin.create_topic(name)
    assert stage.cluster.asked == []


@staged(brokers=2)
async def test_an_unknown_broker_or_cluster_is_refused_with_a_list_of_known_ones(stage):
    with pytest.raises(ConfigError, match="broker 'nobody' is unknown.*broker-a of c1, broker-b"):
        await stage.admin.create_topic("T", broker="nobody")
    with pytest.raises(ConfigError, match="cluster 'c9' is unknown"):
        await stage.admin.create_topic("T", cluster="c9")


@staged(brokers=2)
async def test_with_several_clusters_one_must_be_named(stage):
    stage.cluster.brokers[1].cluster_name = "c2"

    with pytest.raises(ConfigError, match="several clusters, name one: c1, c2"):
        await stage.admin.create_topic("T")

    assert (await stage.admin.create_topic("T", cluster="c2")).brokers == ("broker-b",)


@staged()
async def test_a_topic_cannot_be_created_in_a_cluster_without_brokers(stage):
    stage.cluster.brokers.clear()

    with pytest.raises(ConnectFailed, match="knows no broker yet"):
        await stage.admin.create_topic("T")


@staged()
async def test_a_topic_cannot_be_created_in_a_cluster_without_masters(stage):
    body = (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{1:"a:1"},"brokerName":"a","cluster":"c"}},'
        b'"clusterAddrTable":{"c":["a"]}}'
    )
    stage.cluster.replies[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda request: command.answer(
        request, body=body
    )

    with pytest.raises(ConnectFailed, match="no master is up among a"):
        await stage.admin.create_topic("T")


@staged()
async def test_a_refusal_to_create_a_topic_is_raised(stage):
    stage.cluster.replies[RequestCode.UPDATE_AND_CREATE_TOPIC] = lambda request: command.answer(
        request, 16, remark="not here"
    )

    with pytest.raises(NoPermission, match="not here"):
        await stage.admin.create_topic("T")


@staged(brokers=2, name_servers=2)
async def test_a_deleted_topic_is_gone_everywhere(stage):
    await stage.admin.create_topic("T")

    await stage.admin.delete_topic("T")

    assert await stage.admin.topics() == []
    assert stage.cluster.codes("DELETE_TOPIC_IN_BROKER", "DELETE_TOPIC_IN_NAMESRV") == [
        ("broker-a", "DELETE_TOPIC_IN_BROKER"),
        ("broker-b", "DELETE_TOPIC_IN_BROKER"),
        ("names", "DELETE_TOPIC_IN_NAMESRV"),
        ("names", "DELETE_TOPIC_IN_NAMESRV"),
    ]
    with pytest.raises(TopicNotFound):
        await stage.session.route("T")
    with pytest.raises(TopicNotFound):
        await stage.admin.send(Message(topic="T", body=b"x"))
    with pytest.raises(TopicNotFound):
        await stage.admin.delete_topic("T")


@staged()
async def test_topics_are_listed_by_name(stage):
    for name in ("b", "a", "TBW102"):
        stage.cluster.add_topic(name)

    assert await stage.admin.topics() == ["TBW102", "a", "b"]


@staged(brokers=2)
async def test_the_status_of_a_topic_has_the_offsets_of_its_queues(stage):
    queues = stage.cluster.add_topic("T", queues=1)
    await stage.admin.send(Message(topic="T", body=b"x"), queues[1])

    found = await stage.admin.topic_status("T")

    assert [(status.queue, status.min_offset, status.max_offset) for status in found] == [
        (queues[0], 0, 0),
        (queues[1], 0, 1),
    ]
    assert found[0].updated_ms == 5


@staged(brokers=2)
async def test_the_groups_of_a_topic_are_those_of_all_brokers(stage):
    a, b = stage.cluster.add_topic("T", queues=1)
    await stage.admin.commit_offset("g2", a, 1)
    await stage.admin.commit_offset("g1", b, 1)
    await stage.admin.commit_offset("g2", b, 1)

    assert await stage.admin.topic_groups("T") == ["g1", "g2"]


# The cluster


@staged(brokers=2)
async def test_brokers_are_listed_by_cluster_and_name(stage):
    stage.cluster.brokers[0].cluster_name = "z"

    found = await stage.admin.cluster()

    b, a = stage.cluster.brokers[1], stage.cluster.brokers[0]
    assert found == [
        BrokerInfo("broker-b", "c1", {0: b.address}),
        BrokerInfo("broker-a", "z", {0: a.address}),
    ]


@staged()
async def test_broker_stats_returns_the_runtime_info_of_a_broker(stage):
    assert await stage.admin.broker_stats("broker-a") == {"brokerVersionDesc": "broker-a"}
    with pytest.raises(ConfigError):
        await stage.admin.broker_stats("nobody")


@staged()
async def test_routes_with_unquoted_json_keys_are_read(stage):
    """A stock name server writes the ids of replicas without quotes."""
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:1",1:"10.0.0.1:2"},"brokerName":"a",'
        b'"cluster":"c"}],"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,'
        b'"readQueueNums":1,"topicSynFlag":0,"writeQueueNums":1}]}'
    )
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: command.answer(
        request, body=body
    )

    route = await stage.admin.route("T")

    assert route.writable == (Queue("T", "a", 0),)
    assert route.addresses["a"] == {0: "10.0.0.1:1", 1: "10.0.0.1:2"}


def test_each_handler_of_the_fake_broker_is_named_after_a_request_code():
    """A typo in a handler's name would leave a question unanswered."""
    names = [name for name in vars(FakeBroker) if name.startswith("on_")]

    assert all(name.removeprefix("on_").upper() in RequestCode.__members__ for name in names)
