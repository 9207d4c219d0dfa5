"""34, 35, 38, 40, 46, 203, 204, 328: clients come, say who they are, and leave."""

import json

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    consumer,
    in_world,
    in_world_with_client,
    subscription,
    with_client,
    with_topics,
)
from txmq.protocol.bodies import (
    ConsumerConnections,
    ConsumerIds,
    ConsumerRegistration,
    GroupConfig,
    Heartbeat,
    LockedQueues,
    LockRequest,
    MessageQueue,
    ProducerConnections,
    TopicConfig,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import ClientGroups, GroupHeader, NamedGroup, TopicHeader

BEAT, LEAVE, IDS, CHANGED, CHECK, ASSIGN = 34, 35, 38, 40, 46, 400
CONSUMERS, PRODUCERS, ALL_PRODUCERS = 203, 204, 328
ERROR, NO_GROUP, OFFLINE = 1, 26, 206
JAVAS = (
    b'{"clientID":"10.0.0.5@1234#98765","consumerDataSet":[{"consumeFromWhere":'
    b'"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":'
    b'"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],'
    b'"expressionType":"TAG","subString":"TagA","subVersion":1700000000000,"tagsSet":["TagA"],'
    b'"topic":"T"}],"unitMode":false}],"producerDataSet":[{"groupName":"PG"}]}'
)


async def ids(client, group="group"):
    answer = await client.ask(IDS, GroupHeader(group))
    return ConsumerIds.read(answer.body).consumer_id_list if answer.code == 0 else -answer.code


# Heartbeats


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client)
async def test_a_heartbeat_is_answered_with_a_version_that_java_clients_accept(client, /, kind):
    answer = await client.ok(BEAT, body=JAVAS, kind=kind)

    assert answer.kind == kind
    assert answer.version >= 232
    assert "IS_SUPPORT_HEART_BEAT_V2" not in answer.field_map()
    assert await ids(client, "G") == ["10.0.0.5@1234#98765"]


@run_by(in_world_with_client)
async def test_a_heartbeat_creates_the_group_and_its_retry_topic(stage, client, /):
    await client.beat(consumer("g", "T"))

    answer = await client.ok(RequestCode.GET_TOPIC_CONFIG, TopicHeader("%RETRY%g"))
    assert TopicConfig.read(answer.body) == TopicConfig("%RETRY%g", 1, 1, 6)
    assert stage.broker.groups.find("g") == GroupConfig("g")


@pytest.mark.parametrize(("queues", "made"), [(3, 3), (0, 1)])
@run_by(in_world)
async def test_the_retry_topic_has_the_number_of_queues_set_for_the_group(stage, /, queues, made):
    client = await stage.client()
    config = GroupConfig("g", retry_queue_nums=queues)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.write())
    await client.beat(consumer("g"))

    assert len(stage.broker.topics.get("%RETRY%g").queues) == made


@run_by(with_client)
async def test_a_group_whose_name_is_too_long_for_a_retry_topic_joins_without_one(client, /):
    await client.beat(consumer("g" * 200))

    assert await ids(client, "g" * 200) == ["client-1"]


@run_by(with_client, with_topics(auto_create_groups=False))
async def test_with_auto_creation_off_a_heartbeat_of_an_unknown_group_is_refused(client, /):
    beat = Heartbeat("id", [], [consumer("g")])

    assert await client.code_of(BEAT, body=beat.write()) == NO_GROUP


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"\xff"])
@run_by(with_client)
async def test_a_malformed_heartbeat_is_an_error(client, /, body):
    assert await client.code_of(BEAT, body=body) == ERROR


# Members


@run_by(in_world)
async def test_a_client_with_two_connections_is_listed_once(stage, /):
    first, same, second = [await stage.client(name) for name in ("one", "one", None)]
    for client in (first, same, second):
        await client.beat(consumer("group", "T"))

    assert await ids(first) == ["one", "client-3"]


@pytest.mark.parametrize(("code", "answer"), [(IDS, ERROR), (CONSUMERS, OFFLINE)])
@run_by(with_client)
async def test_a_list_of_members_or_connections_of_an_empty_group_is_refused(
    client, /, code, answer
):
    assert await client.code_of(code, GroupHeader("group")) == answer


# Notifications of changes (40)


@run_by(in_world)
async def test_all_members_are_notified_of_a_new_member_including_itself(stage, /):
    old, new = await stage.clients(2)
    await old.beat(consumer("group", "T"))
    told = await old.heard(CHANGED)
    assert told.is_oneway
    assert told.read(GroupHeader).consumer_group == "group"
    await new.beat(consumer("group", "T"))

    await old.heard(CHANGED)
    await new.heard(CHANGED)


@run_by(with_client)
async def test_a_repeated_heartbeat_notifies_nobody(client, /):
    await client.beat(consumer("group", "T"))
    await client.heard(CHANGED)
    await client.beat(consumer("group", "T"))
    newer = subscription("T", "A", version=2)
    await client.beat(ConsumerRegistration("group", subscription_data_set=[newer]))
    await ids(client)

    assert client.heard_nothing()


@run_by(in_world)
async def test_a_change_of_subscribed_topics_notifies_the_group(stage, /):
    client, other = await stage.clients(2)
    for member in (client, other):
        await member.beat(consumer("group", "T"))
    await client.heard(CHANGED)
    await client.heard(CHANGED)
    await other.beat(consumer("group", "U"))

    await client.heard(CHANGED)


@pytest.mark.parametrize("is_lost", [False, True], ids=["unregistered", "connection lost"])
@run_by(in_world)
async def test_a_member_that_leaves_is_removed_and_the_group_is_notified(stage, /, is_lost):
    leaving, staying = await stage.clients(2)
    for member in (leaving, staying):
        await member.beat(consumer("group", "T"), producers=["p"])
    await staying.heard(CHANGED)
    if is_lost:
        leaving.close()
    else:
        await leaving.ok(LEAVE, ClientGroups(leaving.name, "p", "group"))

    await staying.heard(CHANGED)
    assert await ids(staying) == [staying.name]


@run_by(in_world)
async def test_a_client_without_heartbeats_for_two_minutes_is_disconnected(stage, /):
    silent, lively = await stage.clients(2)
    for member in (silent, lively):
        await member.beat(consumer("group", "T"), producers=["p"])
    for _ in range(14):
        await lively.beat(consumer("group", "T"), producers=["p"])
        await silent.max_offset("TBW102")
        await stage.passes(9.0)
        if not silent.connection.is_open:
            break

    assert not silent.connection.is_open
    assert 118 < stage.world.now() < 130
    assert await ids(lively) == [lively.name]


@run_by(with_client)
async def test_a_group_can_switch_off_notifications_of_member_changes(client, /):
    config = GroupConfig("group", notify_consumer_ids_changed_enable=False)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.write())
    await client.beat(consumer("group", "T"))
    await ids(client)

    assert client.heard_nothing()


@run_by(in_world)
async def test_a_member_change_is_not_notified_to_other_groups(stage, /):
    one, other = await stage.clients(2)
    await one.beat(consumer("one", "T"))
    await one.heard(CHANGED)
    await other.beat(consumer("other", "T"))
    await ids(one)

    assert one.heard_nothing()


# Goodbyes


@pytest.mark.parametrize(("producers", "consumers"), [(None, None), ("p", None), (None, "unknown")])
@run_by(in_world)
async def test_unregistering_from_a_group_one_is_not_in_changes_nothing(
    stage, /, producers, consumers
):
    client, other = await stage.clients(2)
    await other.beat(consumer("group", "T"))
    await client.ok(LEAVE, ClientGroups("x", producers, consumers))

    assert await ids(client) == [other.name]


@run_by(in_world)
async def test_unregistering_releases_the_queue_locks_of_the_client(stage, /):
    leaving, other = await stage.clients(2)
    queues = [MessageQueue("broker-a", 0, "T")]

    async def lock(client):
        body = LockRequest(client.name, "group", queues).write()
        return LockedQueues.read(
            (await client.ok(RequestCode.LOCK_BATCH_MQ, body=body)).body
        ).queues

    await leaving.beat(consumer("group", "T"))
    assert await lock(leaving) == queues
    await leaving.ok(LEAVE, ClientGroups(leaving.name, None, "group"))

    assert await lock(other) == queues


# What operators see


@run_by(with_client)
async def test_consumer_connections_are_shown_with_their_subscriptions(client, /):
    await client.beat(consumer("group", T="A"), version=317)
    answer = await client.ok(CONSUMERS, GroupHeader("group"))

    shown = ConsumerConnections.read(answer.body)
    host, port = client.connection._transport.get_extra_info("sockname")
    (connection,) = shown.connection_set
    assert (connection.client_addr, connection.client_id) == (f"{host}:{port}", client.name)
    assert (connection.language, connection.version) == ("JAVA", 317)
    assert shown.message_model == "CLUSTERING"
    assert shown.consume_type == "CONSUME_PASSIVELY"
    assert shown.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert shown.subscription_table["T"] == subscription("T", "A")


@run_by(with_client)
async def test_producer_connections_of_a_group_are_shown(client, /):
    await client.beat(producers=["p"])
    answer = await client.ok(PRODUCERS, NamedGroup("p"))
    (connection,) = ProducerConnections.read(answer.body).connection_set

    assert connection.client_id == client.name
    assert await client.code_of(PRODUCERS, NamedGroup("q")) == ERROR
    assert await client.code_of(PRODUCERS, NamedGroup()) == ERROR


@run_by(in_world_with_client)
async def test_producer_connections_of_all_groups_are_shown_at_once(stage, client, /):
    await client.beat(producers=["p", "q"])
    data = json.loads((await client.ok(ALL_PRODUCERS)).body)["data"]

    assert list(data) == ["p", "q"]
    (connection,) = data["p"]
    assert connection["clientId"] == client.name
    assert connection["remoteIP"].startswith("10.")
    assert abs(connection["lastUpdateTimestamp"] - stage.clock.wall_ms()) < 5_000


# Consumers of RocketMQ 5 that wait for queues from the broker


@run_by(with_client)
async def test_a_consumer_that_asks_the_broker_for_an_assignment_is_logged_once(client, /, caplog):
    for group in ("billing", "billing", "shipping"):
        wanted = {"clientId": "10.0.0.5@1234", "consumerGroup": group, "topic": "Orders"}
        for _ in range(20):
            answer = await client.ask(ASSIGN, body=json.dumps(wanted).encode())
            assert (answer.code, answer.remark) == (3, " request type 400 not supported")
    for body in (b"", b"{", b"x" * 100_000):
        assert await client.code_of(ASSIGN, body=body) == 3

    lines = [record.getMessage() for record in caplog.records]
    named = [line for line in lines if "set clientRebalance=true at the consumer" in line]
    assert [line.split(" asks")[0].split(" at ")[0] for line in named] == ["a consumer"] * 3
    assert "'10.0.0.5@1234' of group 'billing'" in named[0]
    assert "'10.0.0.5@1234' of group 'shipping'" in named[1]
    assert "of group" not in named[2]


@run_by(with_client)
async def test_clients_cannot_flood_the_log_with_ever_new_consumer_names(client, /, caplog):
    for number in range(1_200):
        wanted = {"clientId": f"client {number}", "consumerGroup": "G" * 5_000}
        assert await client.code_of(ASSIGN, body=json.dumps(wanted).encode()) == 3

    lines = [record.getMessage() for record in caplog.records if "400" in record.getMessage()]
    assert len(lines) == 1_000
    assert max(map(len, lines)) < 500
