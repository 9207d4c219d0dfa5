"""202, 208, 300, 303, 308, 314, 317, 321, 343, 345: the progress of groups, as Java reads it."""

import json
import re

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    consumer,
    in_world,
    in_world_with_client,
    queue,
    subscription,
    with_client,
)
from txmq.protocol import fastjson
from txmq.protocol.bodies import (
    ConsumerRegistration,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupConfig,
    GroupList,
    OffsetPair,
    QueueEntries,
    QueueStats,
    SubscriptionAnswer,
    TopicNames,
    read_queue_map,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import (
    BrokerStatsQuery,
    CloneOffset,
    ConsumeStatsQuery,
    CorrectionQuery,
    NamedGroup,
    QueueEntriesQuery,
    SubscriptionQuery,
    TopicAndGroup,
    TopicHeader,
)
from txmq.protocol.java import string_hash

OF_TOPIC, OF_GROUP, OF_ALL, WHO, TOPICS, SUBSCRIPTION = 202, 208, 317, 300, 343, 345
SPANS, CORRECTIONS, ENTRIES, CLONE = 303, 308, 321, 314
ERROR, NO_TOPIC = 1, 17


async def pairs(client, group, topic=None, topics=None, **given):
    answer = await client.ok(OF_GROUP, ConsumeStatsQuery(group, topic, topics), **given)
    return read_queue_map(answer.body, "offsetTable", OffsetPair)


# 202


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client)
async def test_the_statistics_of_a_topic_use_queue_objects_as_json_keys(client, /, kind):
    await client.topic("T", 2)
    await client.fill("T", 3)
    last = (await client.pull("T")).records[-1].stored_ms
    body = (await client.ok(OF_TOPIC, TopicHeader("T"), kind=kind)).body

    assert body == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
        b'{"minOffset":0,"maxOffset":3,"lastUpdateTimestamp":%d},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:'
        b'{"minOffset":0,"maxOffset":0,"lastUpdateTimestamp":0}}}' % last
    )
    found = read_queue_map(body, "offsetTable", QueueStats)
    assert found[queue("T", 0)] == QueueStats(0, 3, last)


@run_by(in_world)
async def test_the_statistics_of_an_unknown_topic_are_refused(stage, /):
    assert await (await stage.client()).code_of(OF_TOPIC, TopicHeader("T")) == NO_TOPIC


# 208


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client, topic="T")
async def test_the_progress_of_a_group_uses_queue_objects_as_json_keys(client, /, kind):
    await client.fill("T", 3)
    stored = [record.stored_ms for record in (await client.pull("T")).records]
    await client.commit("g", "T", 0, 2)
    answer = await client.ok(OF_GROUP, ConsumeStatsQuery("g"), kind=kind)

    assert answer.body == (
        b'{"consumeTps":0.0,"retriesWaiting":{},"retriesMax":16,'
        b'"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
        b'{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":%d,"pullOffset":2}}}' % stored[1]
    )


@run_by(with_client)
async def test_progress_covers_all_topics_of_a_group_or_only_the_named_ones(client, /):
    await client.send("%RETRY%g")
    for name in ("T", "U"):
        await client.topic(name, 2)
        await client.commit("g", name, 0, 1)
    await client.commit("g", "%RETRY%g", 0, 1)

    async def topics(*named):
        return {message_queue.topic for message_queue in await pairs(client, "g", *named)}

    assert await topics() == {"T", "U", "%RETRY%g"}
    assert set(await pairs(client, "g", "U")) == {queue("U", 0), queue("U", 1)}
    assert await topics("T", "U;%RETRY%g;none") == {"U", "%RETRY%g"}
    assert await pairs(client, "g", "none") == {}
    assert await pairs(client, "nobody") == {}


@run_by(in_world)
async def test_progress_of_an_online_group_omits_topics_it_no_longer_subscribes_to(stage, /):
    client = await stage.client()
    for name in ("T", "U"):
        await client.topic(name)
        await client.commit("g", name, 0, 1)
    await client.beat(consumer("g", "T"))
    assert {message_queue.topic for message_queue in await pairs(client, "g")} == {"T"}
    client.close()
    other = await stage.client()
    await other.ok(RequestCode.GET_ALL_TOPIC_CONFIG)

    assert {message_queue.topic for message_queue in await pairs(other, "g")} == {"T", "U"}


@run_by(in_world_with_client)
async def test_the_consume_rate_of_a_group_covers_the_last_minute(stage, client, /):
    await client.fill("T", 30)
    await stage.passes(120)
    await client.pull("T", group="g", commit=0)
    await stage.passes(30)
    answer = await client.ok(OF_GROUP, ConsumeStatsQuery("g"))
    rate = fastjson.loads(answer.body)["consumeTps"]
    assert 30 / 70 <= rate <= 30 / 20
    await stage.passes(120)
    answer = await client.ok(OF_GROUP, ConsumeStatsQuery("g"))
    assert fastjson.loads(answer.body)["consumeTps"] == 0


# 317


@run_by(in_world_with_client, topic="T")
async def test_the_progress_of_all_groups_is_shown_by_topic_with_the_total_lag(stage, client, /):
    await client.topic("O", order=True)
    await client.fill("T", 5)
    await client.fill("O", 3)
    await client.ok(200, body=GroupConfig("g").write())
    await client.commit("g", "T", 0, 1)
    await client.commit("g", "O", 0, 3)

    async def shown(ordered):
        body = (await client.ok(OF_ALL, BrokerStatsQuery(ordered))).body
        assert b"}:{" in body
        value = fastjson.loads(body)
        assert value["brokerAddr"] == stage.broker.address
        (stats,) = [entry["g"] for entry in value["consumeStatsList"] if "g" in entry]
        topics = [dict(key)["topic"] for entry in stats for key in entry["offsetTable"]]
        assert all("consumeTps" in entry for entry in stats)
        return topics, value["totalDiff"]

    assert await shown(ordered=False) == (["T", "O"], 4)
    assert await shown(ordered=True) == (["O"], 0)


# 300, 343, 345


@run_by(with_client, topic="T")
async def test_the_consumers_of_a_topic_are_the_groups_online_or_with_offsets(client, /):
    await client.beat(consumer("online", "T"), consumer("other", "U"))
    await client.commit("been", "T", 0, 1)
    await client.commit("online", "T", 0, 1)

    answer = await client.ok(WHO, TopicHeader("T"))
    assert GroupList.read(answer.body).group_list == ["been", "online"]
    answer = await client.ok(WHO, TopicHeader("nobody's"))
    assert answer.body == b'{"groupList":[]}'


@run_by(in_world_with_client)
async def test_the_topics_of_a_group_are_those_with_committed_offsets(stage, client, /):
    await client.fill("U", 1)
    await client.fill("T", 1)
    await client.commit("g", "U", 0, 1)
    await client.commit("g", "T", 0, 1)

    answer = await client.ok(TOPICS, NamedGroup(group="g"))
    assert TopicNames.read(answer.body) == TopicNames(["T", "U"], stage.broker.address)
    assert await client.code_of(TOPICS, NamedGroup()) == ERROR


@run_by(with_client)
async def test_the_subscription_of_a_group_to_a_topic_is_answered(client, /):
    await client.beat(consumer("g", T="A"))

    async def wanted(topic):
        answer = await client.ok(SUBSCRIPTION, SubscriptionQuery("g", topic))
        return SubscriptionAnswer.read(answer.body)

    assert await wanted("T") == SubscriptionAnswer("g", "T", subscription("T", "A"))
    assert await wanted("U") == SubscriptionAnswer("g", "U")
    assert await wanted(None) == SubscriptionAnswer("g")


# 303


@run_by(in_world_with_client)
async def test_the_delay_of_a_group_is_the_age_of_its_next_message(stage, client, /):
    await client.topic("T", 2)
    for _ in range(3):
        await client.send("T")
        await stage.passes(10)
    times = [record.stored_ms for record in (await client.pull("T")).records]
    await client.commit("g", "T", 0, 1)
    answer = await client.ok(SPANS, TopicAndGroup("T", "g"))

    first, second = ConsumeTimeSpans.read(answer.body).consume_time_span_set
    assert first.message_queue == queue("T", 0)
    assert (first.min_time_stamp, first.max_time_stamp) == (times[0], times[2])
    assert first.consume_time_stamp == times[0]
    assert 20_000 <= first.delay_time < 21_000
    assert (second.min_time_stamp, second.delay_time) == (-1, 0)
    assert await client.code_of(SPANS, TopicAndGroup("U", "g")) == NO_TOPIC


# 308


@run_by(with_client, topic="T")
async def test_offset_corrections_follow_the_slowest_group(client, /):
    await client.fill("T", 10)
    for group, offset in (("a", 5), ("b", 3), ("c", 8)):
        await client.commit(group, "T", 0, offset)

    async def least(compared, without=None):
        header = CorrectionQuery(compared, "T", without)
        answer = await client.ok(CORRECTIONS, header)
        return CorrectionOffsets.read(answer.body).correction_offsets

    assert await least("a") == {0: 3}
    assert await least("c", "b,a") == {0: 8}
    assert await least("b", "b") == {0: 2**63 - 1}


# 314


@pytest.mark.parametrize(
    ("topic", "moved"), [(None, {"T": 5, "U": 6}), ("", {"T": 5, "U": 6}), ("U", {"U": 6})]
)
@run_by(in_world)
async def test_cloning_offsets_moves_a_group_to_the_offsets_of_another(stage, /, topic, moved):
    client = await stage.client()
    for name, offset in (("T", 5), ("U", 6)):
        await client.topic(name)
        await client.fill(name, 6)
        await client.commit("from", name, 0, offset)
    await client.commit("from", "gone", 0, 7)
    await client.ok(CLONE, CloneOffset("from", "to", topic))

    offsets = stage.broker.offsets
    assert {cloned: offsets.get("to", cloned, 0) for cloned in offsets.topics_of("to")} == moved
    await client.ok(CLONE, CloneOffset("nobody", "to", topic))


@pytest.mark.parametrize(("offline", "moved"), [(False, []), (True, ["T"])])
@run_by(in_world_with_client, topic="T")
async def test_offsets_of_topics_an_online_group_left_are_cloned_only_on_request(
    stage, client, /, offline, moved
):
    await client.commit("from", "T", 0, 5)
    await client.beat(consumer("from", "U"))
    await client.ok(CLONE, CloneOffset("from", "to", None, offline))

    assert stage.broker.offsets.topics_of("to") == moved


# 321


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client, topic="T")
async def test_the_entries_of_a_queue_are_shown(client, /, kind):
    for tag in ("A", "B", "C"):
        await client.send("T", b"x", TAGS=tag)
    records = (await client.pull("T")).records
    header = QueueEntriesQuery("T", 0, 1, 5)
    answer = await client.ok(ENTRIES, header, kind=kind)

    shown = QueueEntries.read(answer.body)
    assert (shown.min_queue_index, shown.max_queue_index) == (0, 3)
    places = [(entry.physic_offset, entry.tags_code) for entry in shown.queue_data]
    assert places == [
        (record.position, string_hash(tag)) for record, tag in zip(records[1:], "BC", strict=True)
    ]
    assert "filterData" not in json.loads(answer.body)
    assert answer.remark is None


@pytest.mark.parametrize(("index", "count"), [(3, 5), (99, 5), (-1, 5), (0, 0), (0, -3)])
@run_by(with_client)
async def test_a_query_of_entries_outside_the_queue_returns_its_bounds(client, /, index, count):
    await client.fill("T", 3)
    answer = await client.ok(ENTRIES, QueueEntriesQuery("T", 0, index, count))

    assert QueueEntries.read(answer.body) == QueueEntries([], 3, 0)
    assert json.loads(answer.body)["queueData"] == []
    assert re.match(rf"Index {index} of 0@T", answer.remark)


@run_by(with_client)
async def test_the_entries_of_a_queue_are_shown_with_the_subscription_of_a_group(client, /):
    await client.send("T")

    async def shown(group):
        answer = await client.ok(ENTRIES, QueueEntriesQuery("T", 0, 0, 1, group))
        return QueueEntries.read(answer.body)

    assert (await shown("g")).filter_data == "g@T is not online!"
    await client.beat(consumer("g", T="B || A"))
    assert (await shown("g")).filter_data == "A || B"
    assert (await shown("g")).subscription_data == subscription("T", "B || A")
    all_of_it = ConsumerRegistration("g", subscription_data_set=[subscription("T", version=2)])
    await client.beat(all_of_it)
    assert (await shown("g")).filter_data == "everything"


@pytest.mark.parametrize(("topic", "number"), [("U", 0), ("T", 1), ("T", -1)])
@run_by(with_client, topic="T")
async def test_a_query_of_the_entries_of_a_missing_queue_is_an_error(client, /, topic, number):
    assert await client.code_of(ENTRIES, QueueEntriesQuery(topic, number, 0, 1)) == ERROR


@run_by(in_world_with_client, topic="T")
async def test_entries_before_and_after_a_checkpoint_are_shown_together(stage, client, /):
    await client.fill("T", 2)
    await stage.broker._flusher.drain()
    await client.fill("T", 2)
    answer = await client.ok(ENTRIES, QueueEntriesQuery("T", 0, 0, 10))

    assert len(QueueEntries.read(answer.body).queue_data) == 4
