"""Each figure of a scrape, compared with what the test did."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.integration.test_limits import SHARED
from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    SETTINGS,
    batch_of,
    batching,
    consumer,
    in_world,
    sending,
)
from tests.unit.handlers.transaction_stage import (
    COMMIT,
    GROUP,
    ROLLBACK,
    checks_heard,
    end,
    prepare,
    preparing,
    quick,
    stay,
)
from tests.unit.monitoring.scraping import Scrape, of_broker, scraped
from tests.unit.replication.set_stage import in_set
from txmq.metrics.table import MetricKind
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendBack, camel
from txmq.protocol.record import position_in
from txmq_broker.config import RetentionSettings, StoreSettings
from txmq_broker.monitoring import samples as sampling
from txmq_broker.monitoring.metric_table import METRICS, PREFIX, Origin
from txmq_broker.monitoring.pages import MonitoringPages
from txmq_broker.monitoring.samples import LIMITS
from txmq_broker.monitoring.subject import LoneProcess

SYNC = replace(SETTINGS, store=StoreSettings(flush="sync"))


@run_by(in_world)
async def test_every_metric_of_the_table_is_scraped_and_no_other(stage, /):
    client = await stage.client()
    await client.topic("T")
    await client.topic("%DLQ%group")
    await client.send("T")
    await client.pull("T")
    await client.commit("group", "T", 0, 1)
    scrape = await scraped(stage.broker)
    ours = {name for name in scrape.families if name.startswith(PREFIX)}

    # A copied log and a lease are the subject of other tests.
    absent = {"lease_age_seconds"} | {
        name
        for name, row in METRICS.items()
        if row.origin in {Origin.FOLLOWER, Origin.SUPERVISOR} or name.startswith("follower_")
    }
    expected = {PREFIX + name.removesuffix("_total") for name in METRICS.keys() - absent}
    assert ours == expected
    for name in METRICS.keys() - absent:
        family = scrape.families[PREFIX + name.removesuffix("_total")]
        row = METRICS[name]
        assert (family.type, family.documentation) == (row.kind, row.meaning)
        if row.kind is not MetricKind.HISTOGRAM:
            assert {tuple(sorted(sample.labels)) for sample in family.samples} == {
                tuple(sorted(row.labels))
            }
    assert scrape("process_resident_memory_bytes") is None
    assert scrape.families["process_resident_memory_bytes"].samples[0].value > 1e6


def test_no_two_metrics_differ_only_by_the_suffix_total():
    families = [name.removesuffix("_total") for name in METRICS]

    assert sorted(set(families)) == sorted(families)


def test_names_follow_the_conventions_of_prometheus():
    units = ("seconds", "bytes", "ratio", "messages", "position")
    for name, row in METRICS.items():
        assert name.endswith("_total") == (row.kind is MetricKind.COUNTER)
        assert (row.kind is MetricKind.HISTOGRAM) <= name.endswith("_seconds")
        assert row.meaning.endswith(".")
        if any(unit in row.meaning.lower() for unit in ("seconds since", "unix time")):
            assert name.endswith(units)


@run_by(in_world)
async def test_messages_and_bytes_are_counted_by_topic_and_group(stage, /):
    client = await stage.client()
    await client.topic("T", 2)
    await client.topic("Other")
    await client.send("T", b"12345")
    await client.send("T", b"678", queue=1)
    await client.ok(
        RequestCode.SEND_BATCH_MESSAGE, batching("Other"), body=batch_of(b"a", b"b", b"c")
    )
    first = await client.pull("T", group="g")
    await client.pull("T", queue=1, group="g")
    await client.pull("Other", group="h", count=2)
    await client.commit("g", "T", 0, 1)
    await client.commit("h", "Other", 0, 2)
    scrape = await scraped(stage.broker)

    size = stage.broker.topics.by_name["Other"].put_bytes
    assert scrape("messages_received_total") == 5
    assert scrape("received_bytes_total") == 8 + size
    assert scrape.labelled("topic_messages_received_total", "topic") == {"T": 2, "Other": 3}
    assert scrape.labelled("topic_received_bytes_total", "topic") == {"T": 8, "Other": size}
    assert scrape.labelled("topic_messages_stored", "topic") == {"T": 2, "Other": 3}
    assert scrape("messages_delivered_total") == 4
    assert scrape("group_messages_delivered_total", group="g", topic="T") == 2
    assert scrape("group_messages_delivered_total", group="h", topic="Other") == 2
    delivered = scrape.labelled("group_delivered_bytes_total", "group")
    assert delivered["g"] > len(first.answer.body)
    assert scrape("delivered_bytes_total") == sum(delivered.values())
    assert scrape("group_lag_messages", group="g", topic="T") == 1
    assert scrape("group_lag_messages", group="h", topic="Other") == 1
    assert scrape("pull_duration_seconds_count") == 3


@run_by(in_world)
async def test_the_oldest_unread_message_of_a_group_ages_and_its_retries_are_counted(stage, /):
    client = await stage.client()
    await client.topic("T", 2)
    await client.send("T")
    await client.commit("g", "T", 0, 1)
    await stage.passes(60)
    ages = "group_oldest_unread_age_seconds"
    scrape = await scraped(stage.broker)
    assert scrape(ages, group="g", topic="T") == 0
    answer = await client.send("T", queue=1)
    position = position_in(answer.field_map()["msgId"])
    for seconds in (30, 20):
        await stage.passes(seconds)
        await client.send("T")
    scrape = await scraped(stage.broker)
    assert 50 <= scrape(ages, group="g", topic="T") < 51
    assert scrape("group_retries_waiting", group="g") == 0

    await client.commit("g", "T", 1, 1)
    await client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(position, "g", 3, "", "T"))
    scrape = await scraped(stage.broker)
    assert 20 <= scrape(ages, group="g", topic="T") < 21
    assert scrape("group_retries_waiting", group="g") == 1


@run_by(in_world)
async def test_a_group_has_no_lag_in_a_topic_it_unsubscribed_from(stage, /):
    client = await stage.client()
    await client.topic("T")
    await client.topic("U")
    await client.send("T")
    await client.beat(consumer("g", "U"))
    await client.commit("g", "T", 0, 0)
    await client.commit("g", "U", 0, 0)
    scrape = await scraped(stage.broker)

    assert scrape.labelled("group_lag_messages", "topic") == {"U": 0}


@run_by(in_world)
async def test_delayed_messages_and_dead_letters_are_counted(stage, /):
    client = await stage.client()
    await client.topic("T")
    await client.topic("%DLQ%g")
    await client.send("T", DELAY="1")
    await client.send("T", DELAY="2")
    await client.send("%DLQ%g")
    before = await scraped(stage.broker)
    await stage.passes(2)
    after = await scraped(stage.broker)

    assert (before("messages_delayed"), after("messages_delayed")) == (2, 1)
    assert before("dead_letters", group="g") == 1
    assert after("messages_received_total") == 2


@run_by(in_world, SYNC)
async def test_send_and_sync_durations_include_the_time_of_the_disk(stage, /):
    client = await stage.client()
    await client.topic("T")
    stage.disk.slow_sync(0.2)
    for _ in range(3):
        await client.send("T")
    scrape = await scraped(stage.broker)

    sends, send_s = scrape.histogram("send_duration_seconds")
    syncs, sync_s = scrape.histogram("sync_duration_seconds")
    assert (sends, syncs) == (3, 3)
    assert sync_s == pytest.approx(3 * 0.2, rel=0.01)
    assert send_s == pytest.approx(3 * 0.2, rel=0.01)
    assert scrape("send_duration_seconds_bucket", le="0.1") == 0
    assert scrape("send_duration_seconds_bucket", le="0.25") == 3


@run_by(in_world, quick(check_max=2))
async def test_transactions_are_counted_by_outcome_and_the_oldest_age_is_shown(stage, /):
    client = await stage.client()
    await client.topic("T")
    await client.beat(producers=[GROUP])
    assert (await scraped(stage.broker))("oldest_transaction_age_seconds") == 0
    halves = [await prepare(client, unique=f"U{number}") for number in range(4)]
    assert await end(client, halves[1], COMMIT) == 0
    assert await end(client, halves[2], ROLLBACK) == 0
    assert await end(client, halves[2], ROLLBACK) == 0
    assert await end(client, halves[1], ROLLBACK) != 0
    await stage.passes(0.5)
    scrape = await scraped(stage.broker)

    assert scrape("transactions_prepared_total") == 4
    assert scrape("transactions_open") == 2
    assert scrape.labelled("transactions_decided_total", "outcome") == {
        "committed": 1,
        "rolled_back": 1,
    }
    assert scrape("transactions_repeated_total") == 1
    assert scrape("transaction_conflicts_total") == 1
    assert 0.5 <= scrape("oldest_transaction_age_seconds") < 0.7
    assert scrape("transactions_parked") == scrape("transaction_parkings_total") == 0
    assert scrape.labelled("topic_messages_received_total", "topic") == {"T": 1}

    await stay(client, 100, GROUP)
    asked = len(checks_heard(client))
    parked = await scraped(stage.broker)
    assert parked("transactions_parked") == parked("transaction_parkings_total") == 2
    assert parked("transaction_checks_sent_total") == asked > 0
    undecided = parked.labelled("transaction_checks_undecided_total", "reason")
    assert sum(undecided.values()) == undecided["unanswered"] > 0
    assert parked("oldest_transaction_age_seconds") == 0
    await prepare(client, unique="U9")
    await stage.passes(0.2)
    again = await scraped(stage.broker)
    assert 0.2 <= again("oldest_transaction_age_seconds") < 0.4


@run_by(in_world)
async def test_the_sizes_of_the_log_and_the_disk_are_scraped(stage, /):
    client = await stage.client()
    empty = await scraped(stage.broker)
    assert empty("oldest_message_timestamp_seconds") is None
    assert empty("log_bytes") == empty("unsynced_bytes") == 0
    await client.topic("T")
    await client.send("T", b"x" * 1000)
    scrape = await scraped(stage.broker)
    record = (await client.pull("T")).records[0]
    space = stage.disk.space()

    assert scrape("log_bytes") == scrape("log_end_position") > 1000
    assert scrape("oldest_message_timestamp_seconds") == record.stored_ms / 1000
    assert scrape("disk_bytes") == space.total
    assert scrape("disk_used_bytes") == pytest.approx(space.used, rel=0.01)
    assert scrape("disk_refusal_ratio") == 0.9
    assert scrape("start_time_seconds") == stage.broker.started_ms / 1000


@run_by(in_world)
async def test_refusals_are_counted_by_reason(stage, /):
    client = await stage.client()
    await client.topic("T")
    await client.beat(consumer("g", "T"))
    stage.broker.admission.set_cause("disk", "the disk is full")
    for _ in range(3):
        await client.ask(RequestCode.SEND_MESSAGE, sending("T"), body=b"x")
    stage.broker.admission.clear_cause("disk")
    stage.broker.admission.set_cause("disk", "the rest is for decisions", halves_only=True)
    await client.ask(RequestCode.SEND_MESSAGE, preparing(), body=b"x")
    scrape = await scraped(stage.broker)

    refusals = scrape.labelled("refusals_total", "reason")
    assert {reason: count for reason, count in refusals.items() if count} == {
        "sends": 3,
        "halves": 1,
    }
    assert refusals.keys() >= {"access", "busy", "connections", "transactions", "pulls_not_held"}
    assert scrape("ready") == 1
    assert scrape("connections") == scrape("limit_used", limit="connections") == 1
    assert scrape("limit", limit="connections") == stage.broker.settings.connections_max
    assert scrape("limit_used", limit="subscriptions") == 1
    assert scrape("limit_used", limit="topics") == len(stage.broker.topics)


def test_each_limit_shared_by_clients_is_scraped_with_its_current_use():
    of_brokers = {shared.kept for shared in SHARED.values() if "broker" in shared.servers} - {""}

    assert {camel(name) for name in LIMITS} | {"connectionsOpen", "transactionsOpen"} == of_brokers


@run_by(in_world)
async def test_the_number_of_series_is_limited_and_omitted_ones_are_counted(stage, /, monkeypatch):
    monkeypatch.setattr(sampling, "METRIC_SERIES_MAX", 2)

    client = await stage.client()
    for name in ("A", "B", "C", "D", "%DLQ%g"):
        await client.topic(name)
        await client.send(name)
        await client.pull(name, group="g")
        await client.commit("g", name, 0, 1)
    scrape = await scraped(stage.broker)

    assert scrape.labelled("topic_messages_received_total", "topic") == {"A": 1, "B": 1}
    assert scrape.labelled("group_lag_messages", "topic") == {"A": 0, "B": 0}
    assert scrape.labelled("group_messages_delivered_total", "topic") == {"A": 1, "B": 1}
    assert scrape.labelled("series_left_out", "of") == {
        "topics": 2,
        "groups": 3,
        "dead_letters": 0,
    }
    assert scrape("messages_received_total") == 5


@run_by(in_world)
async def test_special_characters_in_a_name_are_escaped_in_labels(stage, /):
    client = await stage.client()
    await client.topic("T")
    name = 'a"b\\c\n{}'
    stage.broker.offsets._offsets[name, "T"] = {0: 0}
    scrape = await scraped(stage.broker)

    assert scrape.labelled("group_lag_messages", "group") == {name: 0}


@run_by(in_world)
async def test_concurrent_scrapes_share_one_page(stage, /):
    pages = of_broker(stage.broker)
    first, second = await asyncio.gather(pages.metrics(), pages.metrics())
    third = await pages.metrics()

    assert first.text is second.text
    assert third.text is not first.text


@run_by(in_world)
async def test_a_cancelled_scrape_does_not_end_a_concurrent_one(stage, /):
    pages = of_broker(stage.broker)
    leaving = asyncio.create_task(pages.metrics())
    staying = asyncio.create_task(pages.metrics())
    await asyncio.sleep(0)
    leaving.cancel()

    assert Scrape((await staying).text)("ready") == 1


# Copies


@run_by(in_set)
async def test_leader_and_follower_show_the_position_of_the_copy(stage, /):
    await stage.copied()
    scrape = await scraped(stage.first.broker)
    end = stage.first.end

    assert scrape.labelled("role", "role") == {"leader": 1, "follower": 0, "waiting": 0}
    assert scrape("followers") == 1
    assert scrape("copies_in_sync") == 2
    assert scrape("copies_required") == 1
    assert scrape("bytes_not_copied") == scrape("answers_waiting_for_followers") == 0
    for metric, value in (("in_sync", 1), ("bytes_behind", 0), ("seconds_behind", 0)):
        assert scrape.labelled(f"follower_{metric}", "member") == {"m2": value}
    assert scrape("epoch") == stage.first.broker.store.log.epoch

    process = LoneProcess(follower=stage.second.follower)
    pages = MonitoringPages(stage.second.settings("leader"), process)
    copied = Scrape((await pages.metrics()).text)
    assert copied.labelled("role", "role") == {"leader": 0, "follower": 1, "waiting": 0}
    assert (copied("following"), copied("ready")) == (1, 0)
    assert copied("copy_end_position") == end
    assert copied("copy_bytes_behind") == copied("copy_bytes_not_shown") == 0

    await stage.first.kill()
    await asyncio.sleep(20)
    alone = Scrape((await pages.metrics()).text)
    assert alone("following") == 0


@run_by(in_set)
async def test_a_missing_follower_is_shown_with_the_bytes_it_is_behind(stage, /):
    await stage.first.lead()
    stage.second.follow()
    client = await stage.first.client()
    await client.topic("T")
    await client.send("T")
    await stage.caught_up(stage.second)
    await stage.second.kill()
    await client.send("T", b"x" * 5000)
    scrape = await scraped(stage.first.broker)

    assert scrape("bytes_not_copied") > 5000
    assert scrape("follower_bytes_behind", member="m2") == scrape("bytes_not_copied")
    assert scrape("follower_seconds_behind", member="m2") is not None


def test_the_disk_refusal_ratio_is_the_configured_one():
    settings = replace(
        SETTINGS,
        retention=RetentionSettings(
            delete_above=0.1, force_above=0.1, refuse_above=0.2, refuse_halves_above=0.1
        ),
    )

    async def main(stage):
        assert (await scraped(stage.broker))("disk_refusal_ratio") == 0.2

    in_world(main, settings)
