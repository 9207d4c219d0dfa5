"""Facts of txmq.protocol.bodies, with the texts that peers send and expect."""

import pytest

from txmq.errors import RemoteProtocolError
from txmq.protocol.bodies import (
    BrokerRoute,
    ClusterView,
    ConsumerConnections,
    ConsumerIds,
    ConsumerOffsets,
    ConsumerRegistration,
    DataVersion,
    GroupConfig,
    Heartbeat,
    LockedQueues,
    LockRequest,
    MessageQueue,
    OffsetPair,
    ProducerRegistration,
    QueueRoute,
    QueueStats,
    RegistrationBody,
    SubscriptionCheck,
    SubscriptionData,
    TopicConfig,
    TopicConfigs,
    TopicNames,
    TopicRoute,
    queue_map,
    read_queue_map,
    with_queue_map,
)

HEARTBEAT = b"""
{"clientID":"10.0.0.5@1234#98765","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",
"consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":"CLUSTERING",
"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG",
"subString":"TagA","subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],
"producerDataSet":[{"groupName":"PG"}],"heartbeatFingerprint":0,"withoutSub":false}
"""


def test_a_heartbeat_as_java_writes_it_is_read():
    """The last two members are of RocketMQ 5."""
    assert Heartbeat.read(HEARTBEAT) == Heartbeat(
        client_id="10.0.0.5@1234#98765",
        producer_data_set=[ProducerRegistration("PG")],
        consumer_data_set=[
            ConsumerRegistration(
                "G",
                subscription_data_set=[
                    SubscriptionData("T", "TagA", ["TagA"], [2598919], 1_700_000_000_000)
                ],
            )
        ],
    )


def test_a_heartbeat_is_written_with_empty_lists_instead_of_null():
    """A Java server treats null there as an error."""
    assert Heartbeat("c", consumer_data_set=[ConsumerRegistration("G")]).write() == (
        b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"G",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[],'
        b'"unitMode":false}]}'
    )


def test_null_members_of_a_heartbeat_take_their_defaults():
    found = Heartbeat.read(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeFromWhere":null,'
        b'"subscriptionDataSet":[{"topic":"T","tagsSet":null,"codeSet":null}]}],'
        b'"producerDataSet":null}'
    )

    assert found == Heartbeat("c", [], [ConsumerRegistration("G", subscription_data_set=[_T])])


_T = SubscriptionData("T")


def test_numbers_in_quotes_are_read():
    """Go writes the code set as texts."""
    assert SubscriptionData.read(
        b'{"topic":"T","codeSet":["-5"],"subVersion":"7"}'
    ) == SubscriptionData("T", code_set=[-5], sub_version=7)


ROUTE = TopicRoute(
    [QueueRoute("broker-a", 8, 8, 6)],
    [BrokerRoute("broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}, "DefaultCluster")],
)


@pytest.mark.parametrize("quote", [b'"', b"", b"'"])
def test_a_route_is_read_with_broker_numbers_quoted_or_bare(quote):
    addresses = b'{%b0%b:"10.0.0.1:10911",%b1%b:"10.0.0.2:10911"}' % ((quote,) * 4)
    text = (
        b'{"brokerDatas":[{"brokerAddrs":%b,"brokerName":"broker-a","cluster":"DefaultCluster"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
    )

    assert TopicRoute.read(text % addresses) == ROUTE


def test_a_route_is_written_without_white_space_and_with_quoted_broker_numbers():
    """Go cuts the addresses out of the text by commas and colons."""
    assert ROUTE.write() == (
        b'{"queueDatas":[{"brokerName":"broker-a","readQueueNums":8,"writeQueueNums":8,"perm":6,'
        b'"topicSysFlag":0}],"brokerDatas":[{"brokerName":"broker-a","brokerAddrs":'
        b'{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"cluster":"DefaultCluster"}],'
        b'"filterServerTable":{}}'
    )


def test_an_order_configuration_is_written_only_if_there_is_one():
    assert TopicRoute([], [], order_topic_conf="b:4").write() == (
        b'{"queueDatas":[],"brokerDatas":[],"filterServerTable":{},"orderTopicConf":"b:4"}'
    )
    assert (
        b"order"
        not in TopicRoute.read(b'{"queueDatas":[],"brokerDatas":[],"orderTopicConf":null}').write()
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (TopicNames(["a"]), b'{"topicList":["a"]}'),
        (TopicNames(["a"], "h:1"), b'{"topicList":["a"],"brokerAddr":"h:1"}'),
        (ConsumerIds(["a", "b"]), b'{"consumerIdList":["a","b"]}'),
    ],
)
def test_a_list_is_written_and_can_name_a_broker(body, text):
    assert body.write() == text


def test_a_cluster_view_is_read_in_the_json_dialect_of_java():
    text = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"h:1"},"brokerName":"broker-a",'
        b'"cluster":"C"}},"clusterAddrTable":{"C":["broker-a"]}}'
    )

    assert ClusterView.read(text) == ClusterView(
        {"broker-a": BrokerRoute("broker-a", {0: "h:1"}, "C")}, {"C": ["broker-a"]}
    )


def test_a_registration_is_read_with_and_without_members_of_rocketmq_5():
    old = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,'
        b'"timestamp":1700000000000},"topicConfigTable":{"T":{"order":false,"perm":6,'
        b'"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
        b'"writeQueueNums":8}}}}'
    )
    new = old.replace(b'"counter":3', b'"counter":3,"stateVersion":0').replace(
        b'"order":false', b'"order":false,"attributes":{"+a":"b"}'
    )
    expected = RegistrationBody(
        TopicConfigs(DataVersion(1_700_000_000_000, 3), {"T": TopicConfig("T", 8, 8)})
    )

    assert RegistrationBody.read(old) == expected
    assert RegistrationBody.read(new) == expected


def test_offsets_of_groups_are_read_with_bare_queue_numbers():
    assert ConsumerOffsets.read(b'{"offsetTable":{"T@G":{0:123,1:45}}}') == ConsumerOffsets(
        {"T@G": {0: 123, 1: 45}}
    )


def test_omitted_settings_of_a_group_have_the_stock_values():
    assert GroupConfig.read(b'{"groupName":"G"}').write() == (
        b'{"groupName":"G","consumeEnable":true,"consumeFromMinEnable":true,'
        b'"consumeBroadcastEnable":true,"retryQueueNums":1,"retryMaxTimes":16,"brokerId":0,'
        b'"whichBrokerWhenConsumeSlowly":1,"notifyConsumerIdsChangedEnable":true}'
    )


def test_requests_and_answers_for_locks_are_read_and_written():
    queue = MessageQueue("b", 0, "T")

    assert LockRequest.read(
        b'{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"b","queueId":0,'
        b'"topic":"T"}],"onlyThisBroker":false}'
    ) == LockRequest("c", "G", [queue])
    assert LockedQueues([queue]).write() == (
        b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}'
    )
    assert LockedQueues([]).write() == b'{"lockOKMQSet":[]}'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"[]", id="array"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{}", id="a-member-missing"),
        pytest.param(b'{"clientID":null}', id="a-member-null"),
        pytest.param(b'{"clientID":5}', id="a-member-of-another-kind"),
        pytest.param(b'{"clientID":"c","producerDataSet":{}}', id="object-for-array"),
        pytest.param(b'{"clientID":"c","producerDataSet":[null]}', id="null-in-array"),
        pytest.param(b'{"clientID":"\xff"}', id="not-utf-8"),
        pytest.param(b'{"clientID":"\\udc00"}', id="half-character"),
        pytest.param(b'{"clientID":"c","x":' + b"[" * 100_000, id="deep"),
        pytest.param(b'{"clientID":"c","x":' + b'{"a":' * 100_000, id="deep-objects"),
        pytest.param(b'{clientID:"c",{a:1}:2}', id="object-as-key"),
    ],
)
def test_a_malformed_body_is_refused(text):
    with pytest.raises(RemoteProtocolError):
        Heartbeat.read(text)


@pytest.mark.parametrize("kind", [Heartbeat, LockRequest, SubscriptionCheck])
def test_a_body_above_the_size_limit_is_refused_unread(kind):
    padding = b" " * 2 * 1024 * 1024
    text = b'{"clientID":"c","clientId":"c","consumerGroup":"G","group":"G",'
    text += b'"subscriptionData":{"topic":"T"}}'

    assert kind.read(text).client_id == "c"
    with pytest.raises(RemoteProtocolError, match=f"bytes exceed {kind._bytes_max}"):
        kind.read(text + padding)


# Maps by queue

QUEUES = {MessageQueue("b", 0, "T"): 12, MessageQueue("b", 1, "T"): 13}


def test_a_map_by_queue_is_written_with_objects_as_keys():
    assert queue_map(QUEUES) == (
        b'{{"brokerName":"b","queueId":0,"topic":"T"}:12,'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:13}'
    )


def test_a_map_by_queue_is_read_as_it_is_written():
    assert read_queue_map(b'{"offsetTable":' + queue_map(QUEUES) + b"}", "offsetTable", int) == (
        QUEUES
    )


def test_a_map_by_queue_can_be_one_member_of_a_body():
    text = with_queue_map("offsetTable", QUEUES, {"consumeTps": 1.5})

    assert text == b'{"consumeTps":1.5,"offsetTable":' + queue_map(QUEUES) + b"}"
    assert with_queue_map("offsetTable", {}) == b'{"offsetTable":{}}'


def test_a_map_by_queue_can_hold_bodies():
    text = (
        b'{"consumeTps":0.0,"offsetTable":{{"topic":"T","queueId":0,"brokerName":"b"}:'
        b'{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":7,"pullOffset":4}}}'
    )

    found = read_queue_map(text, "offsetTable", OffsetPair)

    assert found == {MessageQueue("b", 0, "T"): OffsetPair(5, 3, 7, 4)}


def test_a_map_by_queue_is_read_with_string_keys():
    """Strict JSON libraries write it this way."""
    text = b'{"m":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}":12}}'

    assert read_queue_map(text, "m", int) == {MessageQueue("b", 0, "T"): 12}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"m":[]}',
        b'{"m":null}',
        b'{"m":{"x":1}}',
        b'{"m":{"":1}}',
        b'{"m":{0:1}}',
        b'{"m":{{}:1}}',
        b'{"m":{{"brokerName":"b","queueId":0}:1}}',
        b'{"m":{{"brokerName":"b","queueId":"x","topic":"T"}:1}}',
        b'{"m":{{"brokerName":"b","queueId":0,"topic":["T"]}:1}}',
        b'{"m":{{"brokerName":"b","queueId":0,"topic":"T"}:"x"}}',
    ],
)
def test_a_malformed_map_by_queue_is_refused(text):
    with pytest.raises(RemoteProtocolError):
        read_queue_map(text, "m", int)


def test_statistics_of_a_topic_are_a_map_by_queue():
    text = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":9,"maxOffset":2,"minOffset":1}}}'
    )

    assert list(read_queue_map(text, "offsetTable", QueueStats).values()) == [QueueStats(1, 2, 9)]


def test_connections_of_a_group_are_read_and_written():
    text = (
        b'{"connectionSet":[{"clientAddr":"1.2.3.4:5","clientId":"c","language":"JAVA",'
        b'"version":409}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        b'"subscriptionTable":{"T":{"topic":"T"}}}'
    )

    found = ConsumerConnections.read(text)

    assert found.connection_set[0].client_addr == "1.2.3.4:5"
    assert found.subscription_table == {"T": _T}
    assert ConsumerConnections.read(found.write()) == found
