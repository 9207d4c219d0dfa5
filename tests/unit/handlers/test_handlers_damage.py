"""One damaged message hides nothing else: what a broker serves, refuses and says about it."""

import pytest
from msgspec.structs import replace

from tests.unit.handlers.handler_stage import pulled, pulling
from tests.unit.handlers.transaction_stage import (
    DURABLE,
    in_lives,
)
from txmq.protocol.bodies import GroupConfig
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    DeleteGroup,
    PullAnswer,
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
    """Turn over one bit of a message on the disk, at an index of its record."""
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
def test_a_pull_serves_what_precedes_a_damaged_message_and_the_next_one_names_it(inside):
    async def main(life):
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
        assert (
            "txmq group skip group T --broker broker-a --queue 0 --offset 10 --reason" in at.remark
        )
        assert at.read(PullAnswer).next_begin_offset == 11
        behind = await client.pull("T", 11)
        assert behind.bodies == [b"%d" % number for number in range(11, 20)]

    in_lives(main, DURABLE)


def test_damage_is_served_around_after_a_restart_too():
    async def main(life):
        client = await life.client()
        await client.fill("T", 20)
        await life.stop()
        await life.start()
        client = await life.client()
        flip(life, "T", 10)

        assert (await client.pull("T", 0)).next == 10
        await life.stop()
        await life.start()
        client = await life.client()
        assert (await client.pull("T", 0)).next == 10
        assert (await client.ask(PULL, pulling("T", 10))).code == ERROR
        assert (await client.pull("T", 11)).next == 20

    in_lives(main, DURABLE)


def test_an_unreadable_sector_hides_only_the_messages_in_it():
    async def main(life):
        client = await life.client()
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

    in_lives(main, DURABLE)


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_a_filter_stops_at_damage_as_well(kind):
    settings = replace(DURABLE, filter=FilterSettings(sql=True))

    async def main(life):
        client = await life.client()
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

    in_lives(main, settings)


def test_nothing_wanted_before_the_damage_still_leads_to_it():
    async def main(life):
        client = await life.client()
        for number in range(6):
            await client.send("T", b"%d" % number, TAGS="A" if number >= 3 else "B")
        flip(life, "T", 3)

        found = await client.pull("T", 0, tags="A")
        assert (found.code, found.next) == (NO_MATCH, 3)
        assert (await client.ask(PULL, pulling("T", 3, tags="A"))).code == ERROR

    in_lives(main, DURABLE)


def test_damage_is_counted_and_reported_to_the_broker_set(caplog):
    async def main(life):
        client = await life.client()
        await client.fill("T", 3)
        position = flip(life, "T", 1)
        found = []
        life.broker.store.damage.found = found.append

        for _ in range(5):
            assert (await client.ask(PULL, pulling("T", 1))).code == ERROR
        assert found == [position] * 5
        assert life.broker.store.damage.reads == 5

    in_lives(main, DURABLE)
    assert len([line for line in caplog.messages if "the log is damaged at" in line]) == 1


# An operator has a group skip the damage


def test_a_group_skips_a_damaged_message_and_receives_all_others():
    async def main(life):
        client = await life.client()
        await client.fill("T", 20)
        await create_group(client)
        flip(life, "T", 10)
        await client.commit("group", "T", 0, 10)

        await client.ok(SKIP, skipping(10))
        # A consumer that runs commits the offset of the damaged message again with each pull.
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

    in_lives(main, DURABLE)


def test_a_skip_survives_a_kill_and_ends_with_its_group():
    async def main(life):
        client = await life.client()
        await client.fill("T", 6)
        # A start reads again what no index covers.
        while await life.broker._flusher._make_checkpoint():
            pass
        await create_group(client)
        flip(life, "T", 3)
        await client.ok(SKIP, skipping(3))
        await life.kill()
        await life.start()

        client = await life.client()
        assert (await client.pull("T", 3)).next == 4
        await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("group", True, True))
        assert (await client.ask(PULL, pulling("T", 3))).code == ERROR

    in_lives(main, DURABLE)


def test_a_skipped_range_leaves_out_only_what_is_damaged():
    async def main(life):
        client = await life.client()
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

    in_lives(main, DURABLE)


def test_a_skip_of_what_is_whole_or_nowhere_is_refused_and_changes_nothing():
    async def main(life):
        client = await life.client()
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

    in_lives(main, DURABLE)


def test_a_retry_that_is_damaged_is_skipped_like_any_message():
    async def main(life):
        client = await life.client()
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

    in_lives(main, DURABLE)
