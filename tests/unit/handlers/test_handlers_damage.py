"""One damaged message hides nothing else: what a broker serves, refuses and says about it."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import pulled, pulling
from tests.unit.handlers.transaction_stage import (
    COMMIT,
    DECISIONS,
    DURABLE,
    GROUP,
    HALVES,
    ROLLBACK,
    checks_heard,
    end,
    in_lives,
    in_lives_with_client,
    prepare,
    quick,
    stay,
)
from txmq.protocol import record as records
from txmq.protocol.bodies import GroupConfig, OpenTransactions
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    DecideTransaction,
    DeleteGroup,
    ListTransactions,
    MessagePosition,
    MessageQuery,
    OffsetAnswer,
    OffsetByTime,
    PullAnswer,
    RecallMessage,
)
from txmq.protocol.operations import AuditPage, ListAudit, SkipDamaged
from txmq_broker.config import FilterSettings
from txmq_broker.store.log.segments import path_of

PULL = RequestCode.PULL_MESSAGE
FOUND, ERROR, NO_MATCH = 0, 1, 20
INVALID, NO_GROUP, ILLEGAL = 29, 26, 604
SKIP = RequestCode.SKIP_DAMAGED

FIELDS = {"size": 0, "magic": 4, "body checksum": 8, "queue": 15, "offset": 27, "position": 35,
          "flags": 36, "stored": 60, "body length": 87, "body": 88}  # fmt: skip


def place_of(life, topic, offset, queue=0):
    """The position of a message's record in the log, and its size."""
    found = life.broker.store.queue(topic, queue).read(offset, 1)[0]
    return found[0], found[1]


def flip(life, topic, offset, inside=88):
    """Flip one bit of a message on the disk, at an index into its record."""
    position, _ = place_of(life, topic, offset)
    life.disk.flip_bit(path_of(0), position + inside)
    return position


async def create_group(client, name="group"):
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await client.ok(code, body=GroupConfig(name).write())


def skipping(offset, through=None, *, group="group", topic="T", queue=0, **changed):
    header = SkipDamaged(
        group, topic, queue, offset, offset if through is None else through, "ann", "disk 3 is old"
    )
    for name, value in changed.items():
        setattr(header, name, value)
    return header


@pytest.mark.parametrize("inside", FIELDS.values(), ids=FIELDS.keys())
@run_by(in_lives, DURABLE)
async def test_a_pull_stops_before_a_damaged_message_and_the_next_pull_names_it(life, /, inside):
    client = await life.client()
    await client.fill("T", 20)
    position = flip(life, "T", 10, inside)

    before = await client.pull("T", 0)
    assert (before.code, before.next) == (FOUND, 10)
    assert before.bodies == [b"%d" % number for number in range(10)]
    at = await client.ask(PULL, pulling("T", 10))
    assert at.code == ERROR
    assert "message 10 of T/0 at broker-a is damaged" in at.remark
    assert f"at position {position}" in at.remark
    assert "txmq group skip group T --broker broker-a --queue 0 --offset 10 --reason" in at.remark
    assert at.read(PullAnswer).next_begin_offset == 11
    behind = await client.pull("T", 11)
    assert behind.bodies == [b"%d" % number for number in range(11, 20)]


@run_by(in_lives_with_client, DURABLE)
async def test_messages_around_the_damage_are_served_after_a_restart(life, client, /):
    await client.fill("T", 20)
    await life.restart()
    client = await life.client()
    flip(life, "T", 10)

    assert (await client.pull("T", 0)).next == 10
    await life.restart()
    client = await life.client()
    assert (await client.pull("T", 0)).next == 10
    assert (await client.ask(PULL, pulling("T", 10))).code == ERROR
    assert (await client.pull("T", 11)).next == 20


@run_by(in_lives_with_client, DURABLE)
async def test_an_unreadable_sector_hides_only_the_messages_in_it(life, client, /):
    for number in range(12):
        await client.send("T", b"%d" % number * 1000)
    position, _ = place_of(life, "T", 6)
    life.disk.make_unreadable(path_of(0), position)

    delivered, refused = [], []
    at = 0
    while at < 12:
        answer = await client.ask(PULL, pulling("T", at))
        if answer.code == FOUND:
            delivered += [record.queue_offset for record in pulled(answer).records]
        else:
            assert f"message {at} of T/0" in answer.remark
            refused.append(at)
        at = answer.read(PullAnswer).next_begin_offset
    assert 6 in refused
    assert len(refused) <= 5
    assert sorted(delivered + refused) == list(range(12))


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
@run_by(in_lives_with_client, replace(DURABLE, filter=FilterSettings(sql=True)))
async def test_a_filtered_pull_stops_at_a_damaged_message(life, client, /, kind):
    for number in range(9):
        await client.send("T", b"%d" % number, TAGS="A" if number % 2 else "B", n=str(number))
    flip(life, "T", 5)
    text = "A" if kind == "TAG" else "n >= 0"
    wanted = {"tags": text, "expression_type": kind}

    first = await client.pull("T", 0, **wanted)
    assert (first.code, first.next) == (FOUND, 5)
    assert first.bodies[-1] == (b"3" if kind == "TAG" else b"4")
    assert (await client.ask(PULL, pulling("T", 5, **wanted))).code == ERROR
    assert (await client.pull("T", 6, **wanted)).bodies[-1] == (b"7" if kind == "TAG" else b"8")
    if kind == "TAG":
        # The index says that the damaged message is for others.
        assert (await client.pull("T", 0, tags="B")).bodies == [b"0", b"2", b"4", b"6", b"8"]


@run_by(in_lives_with_client, DURABLE)
async def test_a_pull_without_matches_moves_on_to_the_damaged_message(life, client, /):
    for number in range(6):
        await client.send("T", b"%d" % number, TAGS="A" if number >= 3 else "B")
    flip(life, "T", 3)

    found = await client.pull("T", 0, tags="A")
    assert (found.code, found.next) == (NO_MATCH, 3)
    assert (await client.ask(PULL, pulling("T", 3, tags="A"))).code == ERROR


@run_by(in_lives_with_client, DURABLE)
async def test_damage_is_counted_and_reported_to_the_broker_set(life, client, /, caplog):
    await client.fill("T", 3)
    position = flip(life, "T", 1)
    found = []
    life.broker.store.damage.found = found.append

    for _ in range(5):
        assert (await client.ask(PULL, pulling("T", 1))).code == ERROR
    assert found == [position] * 5
    assert life.broker.store.damage.reads == 5
    assert len([line for line in caplog.messages if "the log is damaged at" in line]) == 1


# An operator has a group skip the damage


@run_by(in_lives_with_client, DURABLE)
async def test_a_group_skips_a_damaged_message_and_receives_all_others(life, client, /):
    await client.fill("T", 20)
    await create_group(client)
    flip(life, "T", 10)
    await client.commit("group", "T", 0, 10)

    await client.ok(SKIP, skipping(10))
    # A running consumer commits the offset of the damaged message again with each pull.
    passed = await client.pull("T", 10, commit=10)
    assert (passed.code, passed.next) == (NO_MATCH, 11)
    assert (await client.pull("T", 11)).next == 20
    # Another group still meets it.
    assert (await client.ask(PULL, pulling("T", 10, group="other"))).code == ERROR

    answer = await client.ok(RequestCode.LIST_AUDIT, ListAudit(action="SKIP_DAMAGED"))
    (entry,) = AuditPage.read(answer.body).entries
    assert entry.fields["operator"] == "ann"
    assert entry.fields["reason"] == "disk 3 is old"
    assert (entry.fields["topic"], entry.fields["offset"]) == ("T", "10")


@run_by(in_lives_with_client, DURABLE)
async def test_a_skip_survives_a_kill_and_ends_when_its_group_is_deleted(life, client, /):
    await client.fill("T", 6)
    # A start reads everything again that no index covers.
    while await life.broker._flusher._make_checkpoint():
        pass
    await create_group(client)
    flip(life, "T", 3)
    await client.ok(SKIP, skipping(3))
    await life.kill_and_start()

    client = await life.client()
    assert (await client.pull("T", 3)).next == 4
    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("group", True, True))
    assert (await client.ask(PULL, pulling("T", 3))).code == ERROR


@run_by(in_lives_with_client, DURABLE)
async def test_a_skipped_range_leaves_out_only_damaged_messages(life, client, /):
    await client.fill("T", 9)
    await create_group(client)
    flip(life, "T", 3)
    flip(life, "T", 5)
    await client.ok(SKIP, skipping(3, 6))

    delivered, at = [], 0
    while at < 9:
        found = await client.pull("T", at)
        delivered += found.bodies
        at = found.next
    assert delivered == [b"0", b"1", b"2", b"4", b"6", b"7", b"8"]


@run_by(in_lives_with_client, DURABLE)
async def test_a_skip_of_intact_or_missing_messages_is_refused_and_changes_nothing(life, client, /):
    await client.fill("T", 6)
    await create_group(client)
    flip(life, "T", 3)

    for wrong, code in (
        (skipping(2), ILLEGAL),
        (skipping(6), INVALID),
        (skipping(3, 6), INVALID),
        (skipping(3, 2), INVALID),
        (skipping(3, queue=9), INVALID),
        (skipping(3, operator=" "), INVALID),
        (skipping(3, reason=""), INVALID),
        (skipping(3, group="nobody"), NO_GROUP),
        (skipping(3, topic="no such"), 17),
    ):
        assert await client.code_of(SKIP, wrong) == code
    assert (await client.ask(PULL, pulling("T", 3))).code == ERROR


@run_by(in_lives_with_client, DURABLE)
async def test_a_damaged_retry_can_be_skipped_like_any_message(life, client, /):
    await create_group(client)
    topic = "%RETRY%group"
    for number in range(3):
        await client.send(topic, b"%d" % number)
    flip(life, topic, 1)

    assert (await client.pull(topic, 0)).bodies == [b"0"]
    refused = await client.ask(PULL, pulling(topic, 1))
    assert f"txmq group skip group {topic} " in refused.remark
    await client.ok(SKIP, skipping(1, topic=topic))
    assert (await client.pull(topic, 1)).next == 2
    assert (await client.pull(topic, 2)).bodies == [b"2"]


# Single messages


@pytest.mark.parametrize("inside", [0, 4, 15, 27, 35, 88, -3], ids=str)
@run_by(in_lives_with_client, DURABLE)
async def test_a_query_by_key_omits_a_damaged_message_and_reports_it(life, client, /, inside):
    for number in range(3):
        await client.send("T", b"%d" % number, KEYS=f"k only-{number}")
    position, size = place_of(life, "T", 1)
    flip(life, "T", 1, inside if inside >= 0 else size + inside)

    answer = await client.ok(RequestCode.QUERY_MESSAGE, MessageQuery("T", "k", 9, 0, 2**62))
    assert [record.body for record in records.unpack_all(answer.body)] == [b"2", b"0"]
    assert "1 message that may have the key cannot be read" in answer.remark
    assert f"position {position}" in answer.remark
    only = MessageQuery("T", "only-1", 9, 0, 2**62)
    refused = await client.ask(RequestCode.QUERY_MESSAGE, only)
    assert (refused.code, f"position {position}" in refused.remark) == (ERROR, True)


@run_by(in_lives_with_client, DURABLE)
async def test_a_view_by_id_refuses_only_the_damaged_message(life, client, /):
    await client.fill("T", 3)
    flip(life, "T", 1)
    view = RequestCode.VIEW_MESSAGE_BY_ID

    for offset, code in ((0, 0), (1, ERROR), (2, 0)):
        position, _ = place_of(life, "T", offset)
        answer = await client.ask(view, MessagePosition(position))
        assert answer.code == code
    assert life.broker.store.damage.reads == 1


@run_by(in_lives_with_client, DURABLE)
async def test_a_search_by_time_passes_an_unreadable_sector(life, client, /):
    for _ in range(12):
        await client.send("T", b"x" * 1000)
        await asyncio.sleep(1)
    position, _ = place_of(life, "T", 6)
    times = [life.broker.store.stored_ms(life.broker.store.queue("T", 0), n) for n in range(12)]
    life.disk.make_unreadable(path_of(0), position)

    search = OffsetByTime("T", 0, times[2], "lower")
    answer = await client.ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    assert answer.read(OffsetAnswer).offset == 2
    search = OffsetByTime("T", 0, times[11], "lower")
    answer = await client.ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    assert answer.read(OffsetAnswer).offset == 11


# Transactions


def damage_half(life, half, inside=88):
    life.disk.flip_bit(path_of(0), half.position + inside)


@run_by(in_lives, quick(DURABLE))
async def test_a_damaged_half_message_is_parked_and_the_checks_of_others_go_on(life, /, caplog):
    producer = await life.client()
    await producer.beat(producers=[GROUP])
    damaged = await prepare(producer, unique="U1")
    await prepare(producer, unique="U2")
    damage_half(life, damaged)

    await stay(producer, 2.5, GROUP)
    assert set(checks_heard(producer)) == {"U2"}
    assert life.broker.transactions.tally.parked == 0
    await stay(producer, 2.0, GROUP)
    assert "U2" in checks_heard(producer)
    listed = await producer.ok(RequestCode.LIST_TRANSACTIONS, ListTransactions(state="parked"))
    entries = OpenTransactions.read(listed.body).transactions
    assert damaged.offset_id in [entry.offset_msg_id for entry in entries]
    by_hand = DecideTransaction(damaged.offset_id, "rollback", "ann", "the disk lost it")
    await producer.ok(RequestCode.DECIDE_TRANSACTION, by_hand)
    assert await end(producer, damaged, ROLLBACK) == 0
    assert "with the damaged half message 0 of P is parked" in caplog.text


@pytest.mark.parametrize("inside", [15, 88], ids=["queue", "body"])
@run_by(in_lives, DURABLE)
async def test_a_broker_starts_with_a_damaged_open_half_message(life, /, inside):
    producer = await life.client()
    damaged = await prepare(producer, unique="U1")
    whole = await prepare(producer, unique="U2", body=b"whole")
    await life.stop()
    damage_half(life, damaged, inside)
    await life.start()

    producer = await life.client()
    assert await end(producer, whole, COMMIT) == 0
    assert (await producer.pull("T", 0)).bodies == [b"whole"]
    listed = await producer.ok(RequestCode.LIST_TRANSACTIONS, ListTransactions())
    (entry,) = OpenTransactions.read(listed.body).transactions
    assert entry.offset_msg_id == damaged.offset_id
    assert await end(producer, damaged, COMMIT) == (0 if inside == 88 else ERROR)


@run_by(in_lives, DURABLE)
async def test_the_commit_of_a_damaged_half_message_shows_a_damaged_message_to_consumers(life, /):
    producer = await life.client()
    damaged = await prepare(producer, unique="U1")
    whole = await prepare(producer, unique="U2", body=b"whole")
    damage_half(life, damaged)
    assert await end(producer, damaged, COMMIT) == 0
    assert await end(producer, whole, COMMIT) == 0

    refused = await producer.ask(PULL, pulling("T", 0))
    assert "message 0 of T/0" in refused.remark
    assert f"position {damaged.position}" in refused.remark
    assert (await producer.pull("T", 1)).bodies == [b"whole"]
    # The decision holds.
    assert await end(producer, damaged, COMMIT) == 0
    assert await end(producer, damaged, ROLLBACK) == 200


@run_by(in_lives, DURABLE)
async def test_a_damaged_decision_hides_only_its_own_message(life, /):
    producer = await life.client()
    halves = [await prepare(producer, unique=f"U{number}") for number in range(3)]
    for half in halves:
        assert await end(producer, half, COMMIT) == 0
    marker, _ = place_of(life, DECISIONS, 1)
    life.disk.flip_bit(path_of(0), marker + 9)

    assert (await producer.pull("T", 0)).next == 1
    refused = await producer.ask(PULL, pulling("T", 1))
    assert f"position {marker}" in refused.remark
    assert (await producer.pull("T", 2)).next == 3
    assert (await producer.pull(DECISIONS, 0)).next == 1
    assert (await producer.pull(DECISIONS, 2)).next == 3
    assert (await producer.pull(HALVES, 0)).next == 3


# Delayed messages


@run_by(in_lives_with_client, DURABLE)
async def test_a_damaged_delayed_message_is_logged_and_the_others_are_delivered(
    life, client, /, caplog
):
    for number in range(4):
        await client.send("T", b"%d" % number, DELAY="1", UNIQ_KEY=f"U{number}")
    line = life.broker.store.delays.line(0).queue
    position = line.read(1, 1)[0][0]
    life.disk.flip_bit(path_of(0), position + 88)

    await asyncio.sleep(5)
    client = await life.client()
    assert (await client.pull("T", 0)).bodies == [b"0", b"2", b"3"]
    assert life.broker.store.damage.reads == 1
    assert "a message that is due cannot be read, and is left out" in caplog.text


@run_by(in_lives_with_client, DURABLE)
async def test_a_damaged_delayed_message_does_not_prevent_recalls_of_others(life, client, /):
    handles = []
    for number in range(2):
        answer = await client.send(
            "T", b"%d" % number, TIMER_DELAY_SEC="600", UNIQ_KEY="same", KEYS=str(number)
        )
        handles.append(answer.field_map()["recallHandle"])
    queue = next(queue for queue in life.broker.store.queues.all_queues() if queue.next_offset == 2)
    life.disk.flip_bit(path_of(0), queue.read(0, 1)[0][0] + 88)

    await client.ok(RequestCode.RECALL_MESSAGE, RecallMessage("T", handles[0]))
