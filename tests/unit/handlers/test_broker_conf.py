"""A broker that was started with lines of RocketMQ's broker.conf does what they say."""

import tempfile
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    batch_of,
    batching,
    in_world,
    in_world_with_client,
    pulled,
    pulling,
    sending,
    with_client,
)
from tests.unit.handlers.transaction_stage import in_lives, preparing
from txmq.errors import ConfigError
from txmq.protocol import java
from txmq.protocol.codes import RequestCode
from txmq.settings.loading import load
from txmq.testing import Loss
from txmq.testing.machine import EPOCH_MS
from txmq_broker.config import BrokerSettings
from txmq_broker.core.rocketmq_settings import NAMES

SEND, SEND_BATCH, PULL = 10, 320, RequestCode.PULL_MESSAGE
SHOW, CHANGE = 26, 25
OK, ILLEGAL, NO_TOPIC, NO_GROUP, AT_END, BUSY = 0, 13, 17, 26, 19, 2
NO_PERMISSION = 16


def conf(*lines):
    """Settings from lines of a broker.conf."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broker.conf"
        path.write_text("\n".join(("flushDiskType=ASYNC_FLUSH", *lines)) + "\n")
        return load(BrokerSettings, file=path, aliases=NAMES)


@run_by(with_client, conf("maxMessageSize=1000"), topic="T")
async def test_max_message_size_limits_single_messages_and_batches(client, /):
    assert await client.code_of(SEND, sending("T"), body=b"x" * 1001) == ILLEGAL
    assert await client.code_of(SEND, sending("T"), body=b"x" * 1000) == OK
    for sizes, code in (((600, 600), ILLEGAL), ((300, 300), OK)):
        body = batch_of(*(b"x" * size for size in sizes))
        assert await client.code_of(SEND_BATCH, batching("T"), body=body) == code


@pytest.mark.parametrize(("asked", "made"), [(4, 3), (2, 2)])
@run_by(in_world_with_client, conf("defaultTopicQueueNums=3"))
async def test_default_topic_queue_nums_limits_the_queues_of_a_topic_created_by_a_send(
    stage, client, /, asked, made
):
    await client.ok(SEND, sending("T", queues=asked), body=b"x")
    assert stage.broker.topics.get("T").config.write_queue_nums == made


@run_by(in_lives, conf("defaultTopicQueueNums=16"))
async def test_a_changed_default_number_of_queues_takes_effect_at_the_next_start(life, /):
    await life.stop()
    life.settings = replace(life.settings, topics=conf("defaultTopicQueueNums=3").topics)
    await life.start()
    client = await life.client()
    await client.ok(SEND, sending("T", queues=16), body=b"x")
    assert life.broker.topics.get("T").config.write_queue_nums == 3


@run_by(with_client, conf("autoCreateTopicEnable=false", "autoCreateSubscriptionGroup=false"))
async def test_with_auto_creation_off_unknown_topics_and_groups_are_refused(client, /):
    assert await client.code_of(SEND, sending("T"), body=b"x") == NO_TOPIC
    await client.topic("T")
    assert await client.code_of(SEND, sending("T"), body=b"x") == OK
    assert (await client.pull("T", group="g")).code == NO_GROUP


EPOCH = datetime.fromtimestamp(EPOCH_MS / 1000)
HOURLY = ("fileReservedTime=1", f"deleteWhen={(EPOCH.hour + 2) % 24:02}")


@pytest.mark.slow
@run_by(in_world, conf(*HOURLY, "mapedFileSizeCommitLog=16777216"), within=4 * 3600.0)
async def test_old_files_are_deleted_only_in_the_hour_named_by_delete_when(stage, /):
    to_the_hour = 3600 - EPOCH.minute * 60 - EPOCH.second
    client = await stage.client(topic="T")
    for _ in range(6):
        await client.send("T", b"x" * 4 * 1024 * 1024)
    full = stage.disk.names("log")
    assert len(full) == 2
    await stage.passes(to_the_hour + 3600 - 60)
    assert stage.disk.names("log") == full, "more than an hour old, but not in this hour"
    await stage.passes(120)
    assert stage.disk.names("log") == full[1:]


@run_by(in_world, conf("messageDelayLevel = 2s 3m 1d"))
async def test_message_delay_level_sets_the_delay_of_each_level(stage, /):
    delays_ms = stage.broker.settings.delay.levels_ms()
    assert delays_ms == (2_000, 180_000, 86_400_000)
    client = await stage.client(topic="T")
    for level in ("1", "2"):
        began = stage.world.now()
        offset = int(level) - 1
        await client.send("T", level.encode(), DELAY=level)
        while not (found := pulled(await client.ask(PULL, held("T", offset)))).records:
            pass
        took = stage.world.now() - began
        assert found.bodies == [level.encode()]
        assert took == pytest.approx(delays_ms[offset] / 1000, abs=0.5)


def held(topic, offset):
    return pulling(topic, offset, hold_ms=20_000)


@pytest.mark.parametrize(("flush", "is_left"), [("SYNC_FLUSH", True), ("ASYNC_FLUSH", False)])
def test_a_confirmed_message_survives_a_power_cut_only_with_sync_flush(flush, is_left):
    async def main(life):
        client = await life.client(topic="T")
        await client.send("T", b"promised")
        await life.lose_power(Loss.EVERYTHING)
        await life.start()
        client = await life.client()
        assert bool((await client.pull("T")).records) is is_left

    in_lives(main, conf(f"flushDiskType={flush}", "flushIntervalCommitLog=60000"))


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (("longPollingEnable=false",), 1.0),
        (("longPollingEnable=false", "shortPollingTimeMills=200"), 0.2),
        (("longPollingEnable=false", "short_polling=0s"), 0.0),
        (("longPollingEnable=true", "shortPollingTimeMills=200"), 20.0),
        ((), 20.0),
    ],
)
def test_a_pull_of_an_empty_queue_is_held_as_the_polling_settings_say(lines, seconds):
    async def main(stage):
        client = await stage.client(topic="T")
        began = stage.world.now()
        assert pulled(await client.ask(PULL, held("T", 0))).code == AT_END
        assert stage.world.now() - began == pytest.approx(seconds, abs=0.05)

    in_world(main, conf(*lines))


@run_by(in_world_with_client, conf(), topic="T")
async def test_long_polling_can_be_switched_off_while_the_broker_runs(stage, client, /):
    await client.ok(CHANGE, body=java.dumps({"longPollingEnable": False}))
    began = stage.world.now()
    assert pulled(await client.ask(PULL, held("T", 0))).code == AT_END
    assert stage.world.now() - began == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("value", "code"), [("true", OK), ("false", NO_TOPIC)])
def test_trace_topic_enable_creates_the_trace_topic(value, code):
    async def main(stage):
        client = await stage.client()
        assert await client.code_of(SEND, sending("RMQ_SYS_TRACE_TOPIC"), body=b"x") == code

    in_world(main, conf(f"traceTopicEnable={value}", "autoCreateTopicEnable=false"))


@run_by(with_client, conf("rejectTransactionMessage=true"), topic="T")
async def test_reject_transaction_message_refuses_half_messages(client, /):
    assert await client.code_of(SEND, preparing("T"), body=b"x") == BUSY
    assert await client.code_of(SEND, sending("T"), body=b"x") == OK


def test_transaction_settings_are_read_in_the_units_of_rocketmq_tutorials():
    settings = conf(
        "transactionTimeout=20", "transactionCheckMax=5", "transactionCheckInterval=10"
    ).transaction

    assert (settings.timeout, settings.check_max, settings.check_interval) == (20.0, 5, 10.0)


EXPORTED = conf(
    "brokerName=b",
    "brokerClusterName=c",
    "brokerRole=SYNC_MASTER",
    "storePathRootDir=/var/lib/txmq",
    "mappedFileSizeCommitLog=33554432",
    "fileReservedTime=48",
    "deleteWhen=04;16",
    "diskMaxUsedSpaceRatio=70",
    "maxMessageSize=1000000",
    "defaultTopicQueueNums=5",
    "autoCreateTopicEnable=false",
    "traceTopicEnable=false",
    "longPollingEnable=false",
    "transactionTimeOut=6000",
    "transactionCheckInterval=30000",
    "enablePropertyFilter=true",
    "messageDelayLevel=1s 1d",
    "timerMaxDelaySec=3600",
)


@run_by(in_world, EXPORTED)
async def test_exported_settings_start_a_broker_with_the_same_settings(stage, /):
    """Tools save what request 26 answers as the next broker.conf."""
    shown = java.loads((await (await stage.client()).ok(SHOW)).body)
    again = conf(*(f"{name}={value}" for name, value in shown.items()))
    assert again.listen == f"0.0.0.0:{shown['listenPort']}"
    here = {"listen": EXPORTED.listen, "names": EXPORTED.names, "advertise": ""}
    assert replace(again, **here) == EXPORTED


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("sendMessageThreadPoolNums", "16", "has no meaning here: one event loop"),
        ("aclEnable", "true", "aclEnable cannot be changed while this broker runs"),
        ("listenPort", "10922", "listenPort cannot be changed while this broker runs"),
        ("noSuchSetting", "1", "'noSuchSetting' is unknown"),
    ],
)
@run_by(in_world_with_client, conf())
async def test_a_setting_that_cannot_change_at_run_time_is_refused_with_the_reason(
    stage, client, /, name, value, says
):
    answer = await client.ask(CHANGE, body=java.dumps({name: value, "deleteWhen": "05"}))
    assert answer.code == NO_PERMISSION
    assert says in answer.remark
    assert stage.broker.settings.retention.delete_at == "04"


@run_by(with_client, conf())
async def test_an_invalid_value_is_refused_with_the_values_that_are_accepted(client, /):
    answer = await client.ask(CHANGE, body=b"fileReservedTime=3d\n")
    assert "fileReservedTime cannot be '3d'; it takes a whole number of hours" in answer.remark


def test_accounts_are_read_from_the_file_named_by_acl():
    assert conf("acl=accounts.yml", "aclEnable=true").acl == "accounts.yml"
    with pytest.raises(ConfigError, match="acl is set twice"):
        conf("acl=accounts.yml", "aclEnable=false")
    with pytest.raises(ConfigError, match="true only if acl names the file of accounts"):
        conf("aclEnable=true")
