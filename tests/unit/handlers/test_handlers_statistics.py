"""28, 315, 306, 316, 329: counters, and the requests for them."""

import errno

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import SETTINGS, in_world, in_world_with_client, with_client
from txmq.limits import SPAN_BYTES_MAX
from txmq.protocol.bodies import CounterView, TextTable
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import StatsQuery, TopicHeader
from txmq.settings.units import Duration, Size
from txmq_broker.config import RetentionSettings, StoreSettings
from txmq_broker.handlers.statistics import _readable

RUNTIME, COUNTER = 28, 315
CLEAN_QUEUES, CLEAN_TOPICS, CLEAN_LOG = 306, 316, 329
DELETE_TOPIC = 215
ERROR = 1

TEXT = """
brokerVersionDesc brokerVersion putTps getTransferedTps getTransferredTps sendThreadPoolQueueSize
sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize pullThreadPoolQueueHeadWaitTimeMills
pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio msgPutTotalYesterdayMorning
msgPutTotalTodayMorning msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning
msgGetTotalTodayNow bootTimestamp runtime dispatchBehindBytes startAcceptSendRequestTimeStamp
getMissTps getFoundTps getTotalTps commitLogMinOffset commitLogMaxOffset consumeQueueDiskRatio
queryThreadPoolQueueSize queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills
sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity remainHowManyDataToFlush dispatchMaxBuffer
getMessageEntireTimeMax putMessageEntireTimeMax putMessageTimesTotal putMessageAverageSize
putMessageSizeTotal putMessageDistributeTime remainTransientStoreBufferNumbs commitLogDirCapacity
"""

READ_BY_TOOLS = TEXT.split()


async def runtime(client, **given):
    return TextTable.read((await client.ok(RUNTIME, **given)).body).table


async def counter(client, name, key):
    answer = await client.ask(COUNTER, StatsQuery(name, key))
    return CounterView.read(answer.body) if answer.code == 0 else -answer.code


# 28


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(in_world)
async def test_the_runtime_table_has_every_number_that_tools_read(stage, /, kind):
    table = await runtime(await stage.client(), kind=kind)

    assert table.keys() >= set(READ_BY_TOOLS)
    for name in READ_BY_TOOLS:
        if name.endswith("Tps"):
            assert len([float(rate) for rate in table[name].split()]) == 3
        elif name not in ("brokerVersionDesc", "runtime", *UNITS):
            float(table[name])


SYNC = replace(SETTINGS, store=StoreSettings(flush="sync"))
UNITS = ("remainHowManyDataToFlush", "putMessageDistributeTime", "commitLogDirCapacity")


@run_by(in_world)
async def test_values_with_units_can_be_parsed_as_monitoring_tools_do(stage, /):
    table = await runtime(await stage.client())

    words = table["commitLogDirCapacity"].split(" ")
    assert (words[0], words[4]) == ("Total", "Free")
    assert float(words[2]) > 0
    assert words[7].endswith("B.")
    amount, unit = table["remainHowManyDataToFlush"].split(" ")
    assert float(amount) == 0
    assert unit == "B"
    assert all(":" in part for part in table["putMessageDistributeTime"].split())


@run_by(in_world_with_client)
async def test_the_runtime_table_shows_the_figures_of_this_broker(stage, client, /):
    assert (await runtime(client))["earliestMessageTimeStamp"] == "-1"
    await client.fill("T", 3)
    (first, *_) = (await client.pull("T")).records
    await client.pull("T", 3)
    stage.clock.jump(90_061)
    table = await runtime(client)

    assert table["brokerVersion"] == "409"
    assert table["brokerVersionDesc"] == "V4_9_8"
    assert table["txmqVersion"].count(".") == 2
    assert table["earliestMessageTimeStamp"] == str(first.stored_ms)
    assert table["bootTimestamp"] == str(stage.broker.started_ms)
    assert table["runtime"].startswith("[ 1 days, 1 hours, 1 minutes, ")
    assert table["msgPutTotalTodayNow"] == table["putMessageTimesTotal"] == "3"
    assert table["putMessageSizeTotal"] == "3"
    assert table["putMessageAverageSize"] == "1.0"
    assert table["msgGetTotalTodayNow"] == "3"
    assert table["commitLogMaxOffset"] == str(stage.broker.store.log.end)
    assert 0 < float(table["commitLogDiskRatio"]) < 1


@run_by(in_world, SYNC)
async def test_rates_cover_ten_seconds_one_minute_and_ten_minutes(stage, /):
    await stage.passes(700)
    client = await stage.client()
    await client.fill("T", 60)
    await client.pull("T")
    await stage.passes(25)
    table = await runtime(client)

    ten, minute, long = (float(rate) for rate in table["putTps"].split())
    assert ten == 0
    assert 0.9 <= minute <= 1.2
    assert 0.09 <= long <= 0.11
    assert float(table["getTransferedTps"].split()[1]) == pytest.approx(minute * 32 / 60, abs=0.01)
    assert float(table["getFoundTps"].split()[1]) > 0
    assert table["getTotalTps"] == table["getFoundTps"]


@run_by(in_world_with_client)
async def test_daily_totals_move_on_at_midnight(stage, client, /):
    await client.fill("T", 3)
    stage.clock.jump(24 * 3600)
    await stage.passes(11)
    await client.fill("T", 4)
    await client.pull("T")
    stage.clock.jump(24 * 3600)
    await stage.passes(11)
    await client.fill("T", 5)
    table = await runtime(client)

    assert table["msgPutTotalYesterdayMorning"] == "3"
    assert table["msgPutTotalTodayMorning"] == "7"
    assert table["msgPutTotalTodayNow"] == "12"
    assert table["msgGetTotalYesterdayMorning"] == "0"
    assert table["msgGetTotalTodayMorning"] == "7"


@run_by(in_world_with_client)
async def test_a_disk_that_does_not_report_its_space_hides_no_other_figures(stage, client, /):
    def broken():
        raise OSError(errno.EIO, "no")

    stage.broker.disk.space, whole = broken, stage.broker.disk.space
    table = await runtime(client)
    stage.broker.disk.space = whole

    assert table["commitLogDiskRatio"] == "-1"
    assert table["commitLogDirCapacity"] == "Total : 0 B, Free : 0 B."


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1024**2, "1.0 MiB"),
        (5 * 1024**3, "5.0 GiB"), (1024**4, "1.0 TiB"), (3 * 1024**6, "3.0 EiB"),
        (1024**7, "1024.0 EiB"),
    ],
)  # fmt: skip
def test_sizes_are_formatted_as_in_java(size, text):
    assert _readable(size) == text


# 315


@run_by(with_client)
async def test_messages_sent_to_a_topic_are_counted_at_once(client, /):
    await client.fill("T", 3)
    shown = await counter(client, "TOPIC_PUT_NUMS", "T")

    for window in (shown.stats_minute, shown.stats_hour, shown.stats_day):
        assert window.sum == 3
        assert window.tps > 0


@run_by(with_client)
async def test_a_size_counter_shows_the_mean_size(client, /):
    await client.send("T", b"x" * 10)
    await client.send("T", b"x" * 20)
    shown = await counter(client, "TOPIC_PUT_SIZE", "T")

    assert (shown.stats_minute.sum, shown.stats_minute.avgpt) == (30, 15.0)


@run_by(with_client)
async def test_messages_are_counted_for_the_group_and_for_the_broker_by_its_clusters_name(
    client, /
):
    await client.fill("T", 3)
    found = await client.pull("T", group="g")

    assert (await counter(client, "GROUP_GET_NUMS", "T@g")).stats_minute.sum == 3
    size = (await counter(client, "GROUP_GET_SIZE", "T@g")).stats_minute.sum
    assert size == len(found.answer.body)
    assert (await counter(client, "BROKER_PUT_NUMS", "DefaultCluster")).stats_day.sum == 3
    assert (await counter(client, "BROKER_GET_NUMS", "DefaultCluster")).stats_day.sum == 3


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "T"),
        ("NO_SUCH", "T"),
        ("BROKER_PUT_NUMS", "other"),
        ("GROUP_GET_NUMS", ""),
    ],
)
@run_by(with_client, topic="T")
async def test_asking_for_an_unknown_counter_is_an_error(client, /, name, key):
    assert await counter(client, name, key) == -ERROR


@run_by(with_client)
async def test_the_brokers_total_does_not_fall_when_a_topic_goes(client, /):
    await client.fill("T", 3)
    assert (await counter(client, "TOPIC_PUT_NUMS", "T")).stats_day.sum == 3
    await client.ok(DELETE_TOPIC, TopicHeader("T"))
    await client.fill("U", 2)

    assert await counter(client, "TOPIC_PUT_NUMS", "T") == -ERROR
    assert (await counter(client, "BROKER_PUT_NUMS", "DefaultCluster")).stats_day.sum == 5


@run_by(in_world_with_client, SYNC, within=10000.0)
async def test_counts_drop_out_of_windows_they_are_older_than(stage, client, /):
    await client.fill("T", 5)
    sums = []
    for pause in (30, 600, 2 * 3600):
        await stage.passes(pause)
        shown = await counter(await stage.client(), "TOPIC_PUT_NUMS", "T")
        windows = (shown.stats_minute, shown.stats_hour, shown.stats_day)
        sums.append([window.sum for window in windows])

    assert sums == [[5, 5, 5], [0, 5, 5], [0, 0, 5]]


# 306, 316, 329


@run_by(in_world)
async def test_a_request_to_clean_queues_is_answered(stage, /):
    await (await stage.client()).ok(CLEAN_QUEUES)


@run_by(in_world_with_client, topic="T")
async def test_cleaning_topics_removes_offsets_of_deleted_topics(stage, client, /):
    await client.commit("g", "T", 0, 1)
    await client.commit("g", "gone", 0, 1)
    await client.ok(CLEAN_TOPICS)

    assert stage.broker.offsets.topics() == ["T"]


SEGMENT = 2 * SPAN_BYTES_MAX
OLD = replace(
    SETTINGS,
    store=StoreSettings(flush="sync", segment_size=Size(SEGMENT)),
    retention=RetentionSettings(keep=Duration(3600.0), delete_at=""),
)


@pytest.mark.slow
@run_by(in_world_with_client, OLD, within=10000.0, topic="T")
async def test_a_request_to_clean_the_log_deletes_old_files_at_any_hour(stage, client, /):
    for number in range(6):
        await client.send("T", b"%d" % number + b"x" * (4 * 1024**2 - 100))
    await stage.passes(60)
    await client.ok(CLEAN_LOG)
    assert stage.broker.store.log.start == 0
    await stage.passes(3600)
    assert stage.broker.store.log.start == 0
    client = await stage.client()
    await client.ok(CLEAN_LOG)

    assert stage.broker.store.log.start > 0
    first = await client.pull("T", 0)
    assert first.code == 21
    assert (await client.pull("T", first.next)).bodies[0][:1] == b"%d" % first.next
