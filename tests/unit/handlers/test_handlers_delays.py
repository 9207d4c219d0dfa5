"""Delayed messages: by level, by time, recalled, and over a restart."""

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    SETTINGS,
    arrival,
    in_world_with_client,
    pulled,
    pulling,
    sending,
    with_client,
)
from tests.unit.handlers.transaction_stage import DURABLE, in_lives, in_lives_with_client
from txmq.protocol import recall
from txmq.protocol import record as records
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    MessagePosition,
    MessageQuery,
    OffsetAnswer,
    QueueHeader,
    RecallAnswer,
    RecallMessage,
    SendAnswer,
    TopicHeader,
)
from txmq.protocol.record import position_in
from txmq.testing import Loss
from txmq_broker.config import DelaySettings

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVELS_S = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
"""The seeds' table."""


@pytest.mark.slow
@run_by(in_world_with_client, within=4 * 3600.0, topic="T")
async def test_a_message_of_each_delay_level_is_delivered_on_time(stage, client, /):
    waiting = []
    for level in range(1, len(LEVELS_S) + 1):
        body = f"later {level}".encode()
        sent_at = stage.clock.wall_ms()
        sent = await client.send("T", body, DELAY=str(level), TAGS="a", KEYS="k")
        held = await client.ask(RequestCode.PULL_MESSAGE, pulling(SCHEDULE, queue=level - 1))
        (stored,) = pulled(held).records
        assert sent.read(SendAnswer).queue_offset == stored.queue_offset == 0
        waiting.append((level, body, sent_at, stored))
    assert (await client.pull("T")).code == 19

    for place, (level, body, sent_at, stored) in enumerate(waiting):
        came = await arrival(client, "T", place)

        due_ms = LEVELS_S[place] * 1000
        assert 0 <= came.stored_ms - stored.stored_ms - due_ms < 100, level
        assert sent_at + due_ms <= stage.clock.wall_ms(), level
        assert came.body == body
        named = came.property_map()
        told = (named["REAL_TOPIC"], named["REAL_QID"], named["DELAY"])
        assert told == ("T", "0", str(level))
        assert (named["TAGS"], named["KEYS"]) == ("a", "k")
        assert (came.topic, came.queue_id, came.queue_offset) == ("T", 0, place)
        assert came.prepared_position == stored.position, level


@run_by(in_world_with_client, within=600.0, topic="T")
async def test_timed_messages_are_delivered_in_the_order_of_their_times(stage, client, /):
    now = stage.clock.wall_ms()
    wants = [now + 90_500, now + 1_234, now + 61_000, now + 1_999, now + 90_499, now + 3_000]
    for due in wants:
        await client.send("T", b"%d" % due, TIMER_DELIVER_MS=str(due))

    came = [await arrival(client, "T", offset) for offset in range(6)]

    assert [int(record.body) for record in came] == sorted(wants)
    assert all(0 <= record.stored_ms - int(record.body) < 100 for record in came)


@run_by(in_world_with_client, topic="T")
async def test_a_message_with_a_time_in_the_past_is_delivered_at_once(stage, client, /):
    await client.send("T", b"at once", TIMER_DELIVER_MS=str(stage.clock.wall_ms()))

    assert (await client.pull("T")).bodies == [b"at once"]


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ({"TIMER_DELAY_SEC": str(3 * 86400 + 5)}, "at most 259200 s"),
        ({"TIMER_DELIVER_MS": "tomorrow"}, "a whole number"),
        ({"DELAY": "x"}, "a whole number"),
        ({"DELAY": "9" * 20}, "a whole number"),
    ],
)
@run_by(in_world_with_client, topic="T")
async def test_an_invalid_or_too_long_delay_is_refused(stage, client, /, wish, complaint):
    answer = await client.ask(RequestCode.SEND_MESSAGE, sending("T", **wish), body=b"x")

    assert answer.code == 13
    assert complaint in answer.remark
    assert len(stage.broker.store.delays) == 0


@run_by(with_client, replace(SETTINGS, delay=DelaySettings(levels="1s 2s")), topic="T")
async def test_a_delay_level_above_the_highest_counts_as_the_highest(client, /):
    await client.send("T", DELAY="99")

    came = await arrival(client, "T")

    assert came.property_map()["DELAY"] == "2"
    assert (await client.pull(SCHEDULE, queue=1)).bodies == [b"body"]


@run_by(in_world_with_client, topic="T")
async def test_a_recalled_message_is_not_delivered(stage, client, /):
    sent = [
        (await client.send("T", b"%d" % n, TIMER_DELAY_SEC="30", UNIQ_KEY=f"u{n}")).read(SendAnswer)
        for n in range(3)
    ]
    assert recall.decode(sent[1].recall_handle).message_id == "u1"

    for _ in range(2):  # A producer that got no answer asks again.
        header = RecallMessage("T", sent[1].recall_handle)
        answer = await client.ok(RequestCode.RECALL_MESSAGE, header)
        assert answer.read(RecallAnswer).msg_id == "u1"

    assert [(await arrival(client, "T", n)).body for n in range(2)] == [b"0", b"2"]
    await stage.passes(5)
    assert (await client.pull("T", 2)).code == 19
    late = await client.ask(RequestCode.RECALL_MESSAGE, RecallMessage("T", sent[0].recall_handle))
    assert (late.code, "already" in late.remark) == (604, True)
    unknown = recall.encode(recall.decode(sent[0].recall_handle)._replace(message_id="u9"))
    assert await client.code_of(RequestCode.RECALL_MESSAGE, RecallMessage("T", unknown)) == 604


# Over restarts


async def send_later(client, name, **wish):
    """Send a delayed message, and return its recall handle."""
    sent = await client.send("T", name.encode(), UNIQ_KEY=name, **wish)
    return sent.read(SendAnswer).recall_handle


def lose_indexes(life):
    for name in life.disk.names("index"):
        life.disk.remove(f"index/{name}")


ENDS = pytest.mark.parametrize(
    "end", ["stopped", "killed", "lost its indexes", *Loss], ids=lambda each: str(each).lower()
)


async def go_down(life, end):
    if isinstance(end, Loss):
        await life.lose_power(end)
    elif end == "stopped":
        await life.stop()
    else:
        await life.kill()
    if end == "lost its indexes":
        lose_indexes(life)


@ENDS
@run_by(in_lives_with_client, DURABLE, topic="T")
async def test_delayed_messages_survive_a_restart_and_are_delivered_once(life, client, /, end):
    dues = {}
    for seconds in (3, 30, 40, 50, 60):
        dues[f"{seconds}"] = life.clock.wall_ms() + seconds * 1000
        await send_later(client, f"{seconds}", TIMER_DELIVER_MS=str(dues[f"{seconds}"]))
    dues["level"] = life.clock.wall_ms() + 30_000
    await send_later(client, "level", DELAY="4")
    for down_s in (2, 0, 35):
        await life.passes(5)
        await go_down(life, end)
        await life.passes(down_s)
        await life.start()
    await life.passes(30)

    client = await life.client()
    came = (await client.pull("T")).records
    assert sorted(record.body.decode() for record in came) == sorted(dues)
    for record in came:
        assert record.stored_ms >= dues[record.body.decode()]
    await life.passes(100)
    client = await life.client()
    assert (await client.pull("T", len(came))).code == 19


@ENDS
@run_by(in_lives, DURABLE)
async def test_recalls_survive_a_restart_and_waiting_messages_can_still_be_recalled(life, /, end):
    client = await life.client(topic="T")
    handles = [await send_later(client, f"u{n}", TIMER_DELAY_SEC="30") for n in range(4)]
    gone = await send_later(client, "gone", TIMER_DELAY_SEC="1")
    code = RequestCode.RECALL_MESSAGE
    await client.ok(code, RecallMessage("T", handles[0]))
    await life.passes(2)
    await go_down(life, end)
    await life.start()

    client = await life.client()
    await client.ok(code, RecallMessage("T", handles[1]))
    await client.ok(code, RecallMessage("T", handles[0]))
    assert await client.code_of(code, RecallMessage("T", gone)) == 604
    await go_down(life, end)
    await life.start()
    await life.passes(40)

    client = await life.client()
    assert (await client.pull("T")).bodies == [b"gone", b"u2", b"u3"]


@run_by(in_lives, replace(DURABLE, delay=DelaySettings(levels="10s 20s 30s")))
async def test_delay_levels_changed_at_a_restart_deliver_no_message_early(life, /):
    client = await life.client(topic="T")
    sent_ms = life.clock.wall_ms()
    for level in (1, 2, 3):
        await send_later(client, f"old {level}", DELAY=str(level))
    await life.stop()
    # Fewer levels, and different ones.
    life.settings = replace(life.settings, delay=DelaySettings(levels="20s 1s"))
    await life.start()
    client = await life.client()
    again_ms = life.clock.wall_ms()
    for level in (1, 2, 3):
        await send_later(client, f"new {level}", DELAY=str(level))
    await life.passes(30)

    client = await life.client()
    came = {record.body.decode(): record.stored_ms for record in (await client.pull("T")).records}
    waits = {"old 1": 10, "old 2": 20, "old 3": 30, "new 1": 20, "new 2": 1, "new 3": 1}
    assert sorted(came) == sorted(waits)
    for name, wait_s in waits.items():
        since_ms = sent_ms if name.startswith("old") else again_ms
        assert 0 <= came[name] - since_ms - wait_s * 1000 < 500


# Other behaviour


@run_by(with_client, topic="T")
async def test_tools_see_waiting_messages_in_the_schedule_topic(client, /):
    sent = (await client.send("T", b"later", DELAY="3", UNIQ_KEY="u", KEYS="k")).read(SendAnswer)

    offsets = await client.ok(RequestCode.GET_MAX_OFFSET, QueueHeader(SCHEDULE, 2))
    assert offsets.read(OffsetAnswer).offset == 1
    position = position_in(sent.msg_id)
    answer = await client.ok(RequestCode.VIEW_MESSAGE_BY_ID, MessagePosition(position))
    (waits,) = records.unpack_all(answer.body)
    assert (waits.topic, waits.queue_id, waits.body) == (SCHEDULE, 2, b"later")
    assert waits.property_map()["REAL_TOPIC"] == "T"
    assert await _found(client, SCHEDULE, "k") == [b"later"]
    assert await _found(client, "T", "k") == []

    await arrival(client, "T")
    assert await _found(client, "T", "k") == await _found(client, "T", "u") == [b"later"]


async def _found(client, topic, key):
    header = MessageQuery(topic, key, 32, 0, 2**62)
    answer = await client.ask(RequestCode.QUERY_MESSAGE, header)
    return [record.body for record in records.unpack_all(answer.body)] if answer.code == 0 else []


@run_by(with_client)
async def test_clients_cannot_send_to_or_delete_the_topics_of_waiting_messages(client, /):
    for topic in (SCHEDULE, "rmq_sys_wheel_timer"):
        header = sending(topic)
        assert await client.code_of(RequestCode.SEND_MESSAGE, header, body=b"x") == 16
        gone = TopicHeader(topic)
        assert await client.code_of(RequestCode.DELETE_TOPIC_IN_BROKER, gone) != 0


@run_by(in_lives_with_client, DURABLE)
async def test_a_recreated_topic_holds_delayed_messages_due_while_it_was_deleted(life, client, /):
    await client.topic("T", 2)
    await client.send("T", b"before", queue=1)
    handle = await send_later(client, "later", DELAY="1")
    await client.send("T", b"other queue", queue=1, DELAY="1")
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
    await life.passes(2)
    await life.kill_and_start()

    client = await life.client()
    await client.topic("T", 2)

    assert (await client.pull("T")).bodies == [b"later"]
    assert (await client.pull("T", 1, queue=1)).bodies == [b"other queue"]
    late = await client.code_of(RequestCode.RECALL_MESSAGE, RecallMessage("T", handle))
    assert late == 604


@run_by(with_client)
async def test_a_delayed_message_for_a_removed_queue_goes_to_the_first_queue(client, /):
    await client.topic("T", 4)
    await client.send("T", b"later", queue=3, DELAY="1")
    await client.topic("T", 2)

    came = await arrival(client, "T")

    assert (came.queue_id, came.body) == (0, b"later")


@run_by(with_client, topic="T")
async def test_a_held_pull_receives_a_due_message_that_matches_its_tags(client, /):
    await client.send("T", b"1", DELAY="1", TAGS="a")
    await client.send("T", b"2", DELAY="2", TAGS="b")

    header = pulling("T", hold_ms=20_000, tags="b")
    found = pulled(await client.ask(RequestCode.PULL_MESSAGE, header))
    while found.code != 0:
        header = pulling("T", found.next, hold_ms=20_000, tags="b")
        found = pulled(await client.ask(RequestCode.PULL_MESSAGE, header))

    assert found.bodies == [b"2"]


@pytest.mark.parametrize("handle", ["", "x", "djE=", None], ids=repr)
@run_by(with_client, topic="T")
async def test_an_invalid_recall_handle_is_refused(client, /, handle):
    header = RecallMessage("T", handle)

    assert await client.code_of(RequestCode.RECALL_MESSAGE, header) in (1, 604)


@run_by(in_world_with_client, topic="T")
async def test_a_recall_handle_is_valid_only_for_its_own_topic_and_broker(stage, client, /):
    await client.topic("U")
    handle = await send_later(client, "u", DELAY="3")
    foreign = recall.encode(recall.decode(handle)._replace(broker="elsewhere"))
    code = RequestCode.RECALL_MESSAGE

    assert await client.code_of(code, RecallMessage("U", handle)) == 604
    assert await client.code_of(code, RecallMessage("T", foreign)) == 604
    assert await client.code_of(code, RecallMessage("V", handle)) == 17
    assert await client.is_silent(code, RecallMessage("T", handle), oneway=True)

    await stage.passes(15)
    assert (await client.pull("T")).code == 19
