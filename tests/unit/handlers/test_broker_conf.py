"""A broker that was started with lines of RocketMQ's broker.conf does what they say."""

from datetime import datetime

import pytest
from msgspec.structs import replace

from tests.unit.handlers.handler_stage import batch_of, batching, in_world, pulled, pulling, sending
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


@pytest.fixture
def conf(tmp_path):
    """Settings from lines of a broker.conf."""

    def read(*lines):
        path = tmp_path / "broker.conf"
        path.write_text("\n".join(("flushDiskType=ASYNC_FLUSH", *lines)) + "\n")
        return load(BrokerSettings, file=path, aliases=NAMES)

    return read


def test_max_message_size_limits_single_messages_and_batches(conf):
    async def main(stage):
        client = await stage.client()
        await client.topic("T")
        assert await client.code_of(SEND, sending("T"), body=b"x" * 1001) == ILLEGAL
        assert await client.code_of(SEND, sending("T"), body=b"x" * 1000) == OK
        for sizes, code in (((600, 600), ILLEGAL), ((300, 300), OK)):
            body = batch_of(*(b"x" * size for size in sizes))
            assert await client.code_of(SEND_BATCH, batching("T"), body=body) == code

    in_world(main, conf("maxMessageSize=1000"))


@pytest.mark.parametrize(("asked", "made"), [(4, 3), (2, 2)])
def test_default_topic_queue_nums_limits_the_queues_of_a_topic_created_by_a_send(conf, asked, made):
    async def main(stage):
        client = await stage.client()
        await client.ok(SEND, sending("T", queues=asked), body=b"x")
        assert stage.broker.topics.get("T").config.write_queue_nums == made

    in_world(main, conf("defaultTopicQueueNums=3"))


def test_a_changed_default_number_of_queues_takes_effect_at_the_next_start(conf):
    async def main(life):
        await life.stop()
        life.settings = replace(life.settings, topics=conf("defaultTopicQueueNums=3").topics)
        await life.start()
        client = await life.client()
        await client.ok(SEND, sending("T", queues=16), body=b"x")
        assert life.broker.topics.get("T").config.write_queue_nums == 3

    in_lives(main, conf("defaultTopicQueueNums=16"))


def test_with_auto_creation_off_unknown_topics_and_groups_are_refused(conf):
    async def main(stage):
        client = await stage.client()
        assert await client.code_of(SEND, sending("T"), body=b"x") == NO_TOPIC
        await client.topic("T")
        assert await client.code_of(SEND, sending("T"), body=b"x") == OK
        assert (await client.pull("T", group="g")).code == NO_GROUP

    in_world(main, conf("autoCreateTopicEnable=false", "autoCreateSubscriptionGroup=false"))


def test_old_files_are_deleted_only_in_the_hour_named_by_delete_when(conf):
    now = datetime.fromtimestamp(EPOCH_MS / 1000)
    to_the_hour = 3600 - now.minute * 60 - now.second

    async def main(stage):
        client = await stage.client()
        await client.topic("T")
        for _ in range(6):
            await client.send("T", b"x" * 4 * 1024 * 1024)
        full = stage.disk.names("log")
        assert len(full) == 2
        await stage.passes(to_the_hour + 3600 - 60)
        assert stage.disk.names("log") == full, "more than an hour old, but not in this hour"
        await stage.passes(120)
        assert stage.disk.names("log") == full[1:]

    lines = ("fileReservedTime=1", f"deleteWhen={(now.hour + 2) % 24:02}")
    in_world(main, conf(*lines, "mapedFileSizeCommitLog=16777216"), within=4 * 3600.0)


def test_message_delay_level_sets_the_delay_of_each_level(conf):
    settings = conf("messageDelayLevel = 2s 3m 1d")
    assert settings.delay.levels_ms() == (2_000, 180_000, 86_400_000)

    async def main(stage):
        client = await stage.client()
        await client.topic("T")
        for level in ("1", "2"):
            began = stage.world.now()
            offset = int(level) - 1
            await client.send("T", level.encode(), DELAY=level)
            while not (found := pulled(await client.ask(PULL, held("T", offset)))).records:
                pass
            took = stage.world.now() - began
            assert found.bodies == [level.encode()]
            assert took == pytest.approx(settings.delay.levels_ms()[offset] / 1000, abs=0.5)

    in_world(main, settings)


def held(topic, offset):
    return pulling(topic, offset, hold_ms=20_000)


@pytest.mark.parametrize(("flush", "is_left"), [("SYNC_FLUSH", True), ("ASYNC_FLUSH", False)])
def test_a_confirmed_message_survives_a_power_cut_only_with_sync_flush(conf, flush, is_left):
    async def main(life):
        client = await life.client()
        await client.topic("T")
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
def test_a_pull_of_an_empty_queue_is_held_as_the_polling_settings_say(conf, lines, seconds):
    async def main(stage):
        client = await stage.client()
        await client.topic("T")
        began = stage.world.now()
        assert pulled(await client.ask(PULL, held("T", 0))).code == AT_END
        assert stage.world.now() - began == pytest.approx(seconds, abs=0.05)

    in_world(main, conf(*lines))


def test_long_polling_can_be_switched_off_while_the_broker_runs(conf):
    async def main(stage):
        client = await stage.client()
        await client.topic("T")
        body = java.dumps({"longPollingEnable": False})
        await client.ok(CHANGE, body=body)
        began = stage.world.now()
        assert pulled(await client.ask(PULL, held("T", 0))).code == AT_END
        assert stage.world.now() - began == pytest.approx(1.0, abs=0.05)

    in_world(main, conf())


@pytest.mark.parametrize(("value", "code"), [("true", OK), ("false", NO_TOPIC)])
def test_trace_topic_enable_creates_the_trace_topic(conf, value, code):
    async def main(stage):
        client = await stage.client()
        assert await client.code_of(SEND, sending("RMQ_SYS_TRACE_TOPIC"), body=b"x") == code

    in_world(main, conf(f"traceTopicEnable={value}", "autoCreateTopicEnable=false"))


def test_reject_transaction_message_refuses_half_messages(conf):
    async def main(stage):
        client = await stage.client()
        await client.topic("T")
        assert await client.code_of(SEND, preparing("T"), body=b"x") == BUSY
        assert await client.code_of(SEND, sending("T"), body=b"x") == OK

    in_world(main, conf("rejectTransactionMessage=true"))


def test_transaction_settings_are_read_in_the_units_of_rocketmq_tutorials(conf):
    settings = conf(
        "transactionTimeout=20", "transactionCheckMax=5", "transactionCheckInterval=10"
    ).transaction

    assert (settings.timeout, settings.check_max, settings.check_interval) == (20.0, 5, 10.0)


def test_exported_settings_start_a_broker_with_the_same_settings(conf):
    """Tools save what request 26 answers as the next broker.conf."""
    settings = conf(
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

    async def main(stage):
        shown = java.loads((await (await stage.client()).ok(SHOW)).body)
        again = conf(*(f"{name}={value}" for name, value in shown.items()))
        assert again.listen == f"0.0.0.0:{shown['listenPort']}"
        assert (
            replace(again, listen=settings.listen, names=settings.names, advertise="") == settings
        )

    in_world(main, settings=settings)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("sendMessageThreadPoolNums", "16", "has no meaning here: one event loop"),
        ("aclEnable", "true", "aclEnable cannot be changed while this broker runs"),
        ("listenPort", "10922", "listenPort cannot be changed while this broker runs"),
        ("noSuchSetting", "1", "'noSuchSetting' is unknown"),
    ],
)
def test_a_setting_that_cannot_change_at_run_time_is_refused_with_the_reason(
    conf, name, value, says
):
    async def main(stage):
        client = await stage.client()
        body = java.dumps({name: value, "deleteWhen": "05"})
        answer = await client.ask(CHANGE, body=body)
        assert answer.code == NO_PERMISSION
        assert says in answer.remark
        assert stage.broker.settings.retention.delete_at == "04"

    in_world(main, conf())


def test_an_invalid_value_is_refused_with_the_values_that_are_accepted(conf):
    async def main(stage):
        client = await stage.client()
        answer = await client.ask(CHANGE, body=b"fileReservedTime=3d\n")
        assert "fileReservedTime cannot be '3d'; it takes a whole number of hours" in answer.remark

    in_world(main, conf())


def test_accounts_are_read_from_the_file_named_by_acl(conf, tmp_path):
    assert conf("acl=accounts.yml", "aclEnable=true").acl == "accounts.yml"
    with pytest.raises(ConfigError, match="acl is set twice"):
        conf("acl=accounts.yml", "aclEnable=false")
    with pytest.raises(ConfigError, match="true only if acl names the file of accounts"):
        conf("aclEnable=true")
