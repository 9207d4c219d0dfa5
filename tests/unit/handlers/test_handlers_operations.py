"""7720 to 7723: what operators' pages ask about the audit, delayed messages and settings."""

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import in_world, with_client
from tests.unit.handlers.transaction_stage import DURABLE, in_lives_with_client
from txmq.protocol import java
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import RecallMessage
from txmq.protocol.operations import (
    AuditPage,
    DelayedPage,
    ListAudit,
    ListDelayed,
    RecallDelayed,
    SettingsView,
)
from txmq_broker.core import schedule

INVALID, ILLEGAL = 29, 200


async def delayed(client, **wanted):
    """All waiting messages, and how many requests that took."""
    found, after, asked = [], "", 0
    while asked == 0 or after:
        answer = await client.ok(RequestCode.LIST_DELAYED, ListDelayed(after=after, **wanted))
        page = DelayedPage.read(answer.body)
        found, after, asked = found + page.messages, page.next, asked + 1
    return found, page, asked


async def fill(client):
    """Two messages of level 5, one of level 3, and three with times of their own."""
    await client.topic("T")
    for level in ("5", "3", "5"):
        await client.send("T", DELAY=level, UNIQ_KEY=f"level-{level}", KEYS="k")
    for seconds in ("40", "2000", "7"):
        await client.send("T", b"later", TIMER_DELAY_SEC=seconds, UNIQ_KEY=f"in-{seconds}")


@pytest.mark.parametrize("count", [1, 2, 100])
@run_by(with_client)
async def test_delayed_messages_are_listed_in_the_order_of_their_times(client, /, count):
    await fill(client)
    found, page, _ = await delayed(client, count=count)

    ids = [entry.message_id for entry in found]
    assert ids == ["in-7", "level-3", "in-40", "level-5", "level-5", "in-2000"]
    assert [entry.level for entry in found] == [0, 3, 0, 5, 5, 0]
    assert {(entry.topic, entry.queue_id) for entry in found} == {("T", 0)}
    assert page.waiting == 6
    levels = {entry.level: (entry.delay_ms, entry.waiting) for entry in page.levels}
    assert (levels[5], levels[3], levels[1]) == ((60_000, 2), (10_000, 1), (1_000, 0))
    first = found[0]
    assert (first.due_ms - first.stored_ms) // 1000 == 7
    assert (first.size, found[1].keys) == (5, "k")


@run_by(in_world)
async def test_the_list_filters_by_level_and_time_even_with_a_small_scan_budget(
    stage, /, monkeypatch
):
    monkeypatch.setattr(schedule, "BUDGET", 1)
    client = await stage.client()
    await fill(client)
    found, _, asked = await delayed(client, level=5)
    assert [entry.level for entry in found] == [5, 5]
    assert asked > 2
    own, _, _ = await delayed(client, level=0)
    assert [entry.message_id for entry in own] == ["in-7", "in-40", "in-2000"]
    late, _, _ = await delayed(client, from_ms=stage.clock.wall_ms() + 100_000)
    assert [entry.message_id for entry in late] == ["in-2000"]
    for after in ("x", "1", "1:-3", "1:2:3", "9" * 30 + ":1"):
        code = await client.code_of(RequestCode.LIST_DELAYED, ListDelayed(after=after))
        assert code == INVALID


@run_by(in_lives_with_client, DURABLE)
async def test_due_and_recalled_messages_leave_the_list_also_after_a_restart(stage, client, /):
    await fill(client)
    await stage.passes(15)
    found, _, _ = await delayed(client)
    assert [entry.message_id for entry in found][0] == "in-40"

    by_hand = RecallDelayed("T", found[0].recall_handle, "ann", "the wrong amount")
    await client.ok(RequestCode.RECALL_DELAYED, by_hand)
    by_producer = RecallMessage("T", found[-1].recall_handle, "g", "broker-a")
    await client.ok(RequestCode.RECALL_MESSAGE, by_producer)
    left, _, _ = await delayed(client)
    assert [entry.message_id for entry in left] == ["level-5", "level-5"]

    await stage.kill_and_start()
    client = await stage.client()
    left, _, _ = await delayed(client)
    assert [entry.message_id for entry in left] == ["level-5", "level-5"]


@run_by(with_client)
async def test_a_recall_by_an_operator_is_audited_and_one_by_a_producer_is_not(client, /):
    await fill(client)
    found, _, _ = await delayed(client)
    handle = found[-1].recall_handle
    for operator, reason in (("", "why"), ("ann", " ")):
        wanted = RecallDelayed("T", handle, operator, reason)
        assert await client.code_of(RequestCode.RECALL_DELAYED, wanted) == INVALID
    await client.ok(RequestCode.RECALL_MESSAGE, RecallMessage("T", handle, "g", "broker-a"))
    wanted = RecallDelayed("T", found[0].recall_handle, "ann", "why")
    await client.ok(RequestCode.RECALL_DELAYED, wanted)

    answer = await client.ok(RequestCode.LIST_AUDIT, ListAudit(action="RECALL"))
    entries = AuditPage.read(answer.body).entries
    assert [(bool(entry.refused), entry.fields["reason"]) for entry in entries] == [
        (False, "why"), (True, " "), (True, "why"),
    ]  # fmt: skip
    assert entries[0].fields["operator"] == "ann"
    assert entries[0].peer.count(":") == 1


@run_by(with_client)
async def test_a_setting_is_shown_with_its_default_and_the_source_of_its_value(client, /):
    changes = java.dumps({"fileReservedTime": "73"})
    await client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=changes)
    answer = await client.ok(RequestCode.SHOW_SETTINGS)
    found = {entry.name: entry for entry in SettingsView.read(answer.body).settings}

    kept = found["fileReservedTime"]
    assert (kept.value, kept.default, kept.source, kept.can_change) == (
        "73", "72", "change", True,
    )  # fmt: skip
    assert kept.key == "retention.keep"
    flush = found["flushDiskType"]
    assert (flush.value, flush.default, flush.source) == ("ASYNC_FLUSH", "SYNC_FLUSH", "start")
    assert (found["deleteWhen"].source, found["brokerRole"].can_change) == ("default", False)
    assert (found["listenPort"].default, found["listenPort"].source) == (None, "start")
