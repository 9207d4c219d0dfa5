"""25, 26: the broker's own settings."""

import json

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    SETTINGS,
    in_world,
    in_world_with_client,
    sending,
    with_client,
    with_topics,
)
from txmq.protocol import java
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import BrokerConfigAnswer
from txmq.settings.units import Duration, Size
from txmq_broker.config import ReplicationSettings, RetentionSettings, StoreSettings, TopicDefaults

CHANGE, SHOW = 25, 26
ERROR, NO_PERMISSION, NO_TOPIC, NO_GROUP = 1, 16, 17, 26


CHOSEN = replace(
    SETTINGS,
    name="b1",
    cluster="c1",
    store=StoreSettings(
        flush="sync", flush_interval=Duration(0.25), segment_size=Size(32 * 1024**2)
    ),
    topics=TopicDefaults(auto_create=False, queues=6, message_size_max=Size(1_000_000)),
    retention=RetentionSettings(
        keep=Duration(48 * 3600.0),
        delete_at="04;05",
        delete_above=0.7,
        force_above=0.8,
        refuse_above=0.88,
    ),
)


async def shown(client, **given):
    answer = await client.ok(SHOW, **given)
    return java.loads(answer.body)


async def change(client, **wanted):
    return await client.ask(CHANGE, body=java.dumps(wanted))


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(in_world, CHOSEN)
async def test_settings_are_shown_under_their_rocketmq_names(stage, /, kind):
    settings = await shown(await stage.client(), kind=kind)

    host, port = stage.broker.address.rsplit(":", 1)
    expected = {
        "brokerName": "b1",
        "brokerClusterName": "c1",
        "brokerId": "0",
        "brokerIP1": host,
        "listenPort": port,
        "namesrvAddr": stage.broker.names,
        "autoCreateTopicEnable": "false",
        "autoCreateSubscriptionGroup": "true",
        "defaultTopicQueueNums": "6",
        "maxMessageSize": "1000000",
        "flushDiskType": "SYNC_FLUSH",
        "flushIntervalCommitLog": "250",
        "mappedFileSizeCommitLog": str(32 * 1024**2),
        "storePathRootDir": stage.broker.settings.data,
        "fileReservedTime": "48",
        "deleteWhen": "04;05",
        "diskMaxUsedSpaceRatio": "70",
        "diskSpaceCleanForciblyRatio": "80",
        "diskSpaceWarningLevelRatio": "88",
        "enablePropertyFilter": "false",
    }
    assert settings.items() >= expected.items()


@pytest.mark.parametrize("reads", [True, False])
def test_all_settings_that_mqadmin_exports_are_present(reads):
    """``exportConfigs`` ends in a NullPointerException where one of these is missing."""

    async def main(client):
        settings = await shown(client)
        exported = {name: settings[name] for name in EXPORTED.split()}
        assert exported["filterServerNums"] == "0"
        assert exported["useTLS"] == "false"
        assert exported["slaveReadEnable"] == str(reads).lower()

    with_client(main, replace(SETTINGS, replication=ReplicationSettings(reads=reads)))


@run_by(with_client)
async def test_async_flush_is_shown_under_its_rocketmq_name(client, /):
    assert (await shown(client))["flushDiskType"] == "ASYNC_FLUSH"


EXPORTED = """
autoCreateSubscriptionGroup autoCreateTopicEnable brokerClusterName brokerId brokerName brokerRole
fileReservedTime filterServerNums flushDiskType maxMessageSize messageDelayLevel msgTraceTopicName
slaveReadEnable traceOn traceTopicEnable useTLS
"""


@run_by(with_client)
async def test_settings_are_shown_with_their_data_version(client, /):
    async def version():
        answer = await client.ok(SHOW)
        return json.loads(answer.read(BrokerConfigAnswer).version)

    before = await version()
    assert (await change(client, deleteWhen="05")).code == 0
    after = await version()

    assert (before["counter"], after["counter"]) == (0, 1)
    assert after["timestamp"] >= before["timestamp"]


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("deleteWhen", "03;22", lambda now: now.retention.delete_at == "03;22"),
        ("fileReservedTime", "24", lambda now: now.retention.keep == 24 * 3600),
        ("diskMaxUsedSpaceRatio", "60", lambda now: now.retention.delete_above == 0.6),
        ("diskSpaceCleanForciblyRatio", "80", lambda now: now.retention.force_above == 0.8),
        ("diskSpaceWarningLevelRatio", "95", lambda now: now.retention.refuse_above == 0.95),
        ("autoCreateTopicEnable", "false", lambda now: not now.topics.auto_create),
        ("autoCreateSubscriptionGroup", "FALSE", lambda now: not now.topics.auto_create_groups),
        ("enablePropertyFilter", "true", lambda now: now.filter.sql),
        ("transactionTimeOut", "6000", lambda now: now.transaction.timeout == 6.0),
        ("transactionCheckMax", "5", lambda now: now.transaction.check_max == 5),
        ("transactionCheckInterval", "30000", lambda now: now.transaction.check_interval == 30.0),
    ],
)
@run_by(in_world)
async def test_a_changeable_setting_takes_effect_while_the_broker_runs(stage, /, name, text, read):
    client = await stage.client()
    answer = await change(client, **{name: text})

    assert answer.code == 0, answer.remark
    assert read(stage.broker.settings)
    assert (await shown(client))[name] == text.lower()


@run_by(with_client)
async def test_dependent_settings_can_be_changed_by_one_request(client, /):
    higher = {
        "diskMaxUsedSpaceRatio": "92",
        "diskSpaceCleanForciblyRatio": "94",
        "diskSpaceWarningLevelRatio": "96",
    }
    assert (await change(client, **higher)).code == 0
    assert (await change(client, diskMaxUsedSpaceRatio="97")).code == ERROR
    assert (await shown(client)).items() >= higher.items()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deleteWhen", "25"), ("deleteWhen", "four"), ("fileReservedTime", "0"),
        ("fileReservedTime", "3d"), ("diskMaxUsedSpaceRatio", "150"), ("diskMaxUsedSpaceRatio", ""),
        ("autoCreateTopicEnable", "yes"), ("transactionTimeOut", "0"),
        ("transactionCheckInterval", "60s"), ("transactionCheckMax", "0"),
    ],
)  # fmt: skip
@run_by(in_world_with_client)
async def test_an_invalid_value_changes_no_setting(stage, client, /, name, text):
    before = stage.broker.settings
    answer = await change(client, **{name: text, "diskSpaceWarningLevelRatio": "95"})

    assert answer.code == ERROR
    assert stage.broker.settings == before


@pytest.mark.parametrize(
    "wanted",
    [
        {"flushDiskType": "ASYNC_FLUSH_OR_NOT"},
        {"brokerName": "other", "deleteWhen": "05"},
        {"brokerConfigPath": "elsewhere"},
        {"noSuchSetting": "1"},
    ],
)
@run_by(in_world)
async def test_a_change_of_a_fixed_setting_is_refused_with_the_changeable_ones(stage, /, wanted):
    client = await stage.client()
    before = stage.broker.settings
    answer = await change(client, **wanted)

    assert answer.code == NO_PERMISSION
    assert next(iter(wanted)) in answer.remark
    assert "deleteWhen" in answer.remark
    assert stage.broker.settings == before


@run_by(with_client)
async def test_sending_back_unchanged_settings_is_accepted(client, /):
    """Tools send all settings back, with one line changed."""
    everything = await shown(client)
    assert (await change(client, **everything)).code == 0
    everything["deleteWhen"] = "05"
    assert (await change(client, **everything)).code == 0
    assert (await shown(client))["deleteWhen"] == "05"


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", 0), (b"# nothing\n", 0), (b"\xff", ERROR), (b"a=\\u12", ERROR)],
    ids=["empty", "a comment", "no text", "half an escape"],
)
@run_by(with_client)
async def test_an_empty_change_is_accepted_and_a_malformed_one_an_error(client, /, body, code):
    assert await client.code_of(CHANGE, body=body) == code


@run_by(in_world_with_client, with_topics(auto_create=False))
async def test_a_change_of_topic_auto_creation_takes_effect_at_once(stage, client, /):
    assert await client.code_of(10, sending("T"), body=b"x") == NO_TOPIC
    assert (await change(client, autoCreateTopicEnable="true")).code == 0
    await client.send("T")
    assert stage.broker.topics.get("TBW102").config.perm == 7
    assert (await change(client, autoCreateTopicEnable="false")).code == 0
    assert await client.code_of(10, sending("U"), body=b"x") == NO_TOPIC


@run_by(in_world_with_client, with_topics(auto_create=False))
async def test_a_change_whose_effects_cannot_be_saved_is_refused(stage, client, /):
    stage.disk.fail_writes(1)
    assert (await change(client, autoCreateTopicEnable="true")).code != 0
    assert (await shown(client))["autoCreateTopicEnable"] == "false"
    assert not stage.broker.settings.topics.auto_create
    assert (await change(client, autoCreateTopicEnable="true")).code == 0


@run_by(with_client, topic="T")
async def test_a_change_of_group_auto_creation_takes_effect_at_once(client, /):
    assert (await change(client, autoCreateSubscriptionGroup="false")).code == 0
    assert (await client.pull("T")).code == NO_GROUP
    assert (await change(client, autoCreateSubscriptionGroup="true")).code == 0
    assert (await client.pull("T")).code == 19
