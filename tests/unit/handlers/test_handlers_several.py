"""ENDs and operators that decide several half messages of one transaction."""

from itertools import pairwise

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import in_world_with_client, with_client
from tests.unit.handlers.transaction_stage import (
    COMMIT,
    DURABLE,
    ROLLBACK,
    end,
    in_lives,
    prepare,
)
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol.bodies import OpenTransactions, TransactionMessages
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    DecideTransaction,
    ListTransactions,
    NamedTransaction,
    OtherHalf,
)
from txmq.protocol.span import ends_in
from txmq.testing import Loss


async def prepared(client, count=3, topics=("T", "S")):
    """The half messages of transaction X, in these topics in turn."""
    halves = [await prepare(client, topics[0], "X", b"0")]
    for number in range(1, count):
        topic = topics[number % len(topics)]
        halves.append(await prepare(client, topic, f"X.{number}", b"%d" % number, TXMQ_XID="X"))
    return halves


def others(halves):
    return OtherHalf.write(OtherHalf(half.offset, half.position, half.unique) for half in halves)


async def end_all(client, halves, what):
    header = halves[0].end(what, others=others(halves[1:]))
    return await client.ask(RequestCode.END_TRANSACTION, header)


async def seen(client, *topics):
    return [body for topic in topics for body in (await client.pull(topic)).bodies]


def by_hand(name, decision):
    return DecideTransaction(name, decision, "ann", "audit")


@pytest.mark.parametrize(("what", "bodies"), [(COMMIT, [b"0", b"2", b"1"]), (ROLLBACK, [])])
@run_by(with_client, topic="T")
async def test_an_end_decides_all_half_messages_that_it_names(client, /, what, bodies):
    await client.topic("S")
    halves = await prepared(client)

    answer = await end_all(client, halves, what)

    assert (answer.code, answer.field_map()["decided"]) == (0, "3")
    assert await seen(client, "T", "S") == bodies
    assert (await end_all(client, halves, what)).code == 0
    assert await seen(client, "T", "S") == bodies


@run_by(in_world_with_client, topic="T")
async def test_of_half_messages_too_large_for_a_span_only_the_first_is_decided(stage, client, /):
    halves = [
        await prepare(client, "T", unique, b"x" * 3_000_000, TXMQ_XID="X")
        for unique in ("X", "X.1", "X.2")
    ]

    answer = await end_all(client, halves, COMMIT)

    assert (answer.code, "decided" in answer.field_map()) == (0, False)
    assert len(stage.broker.transactions.halves.pending) == 2
    for half in halves[1:]:
        assert await end(client, half, COMMIT) == 0
    assert stage.broker.transactions.tally.committed == 3


@run_by(in_world_with_client, topic="T")
async def test_a_conflict_in_one_half_message_leaves_the_others_open(stage, client, /):
    await client.topic("S")
    halves = await prepared(client)
    assert await end(client, halves[1], ROLLBACK) == 0

    assert (await end_all(client, halves, COMMIT)).code == 201

    assert await seen(client, "T", "S") == []
    assert len(stage.broker.transactions.halves.pending) == 2
    assert stage.broker.transactions.tally.conflicts == 1


@run_by(with_client, topic="T")
async def test_an_end_with_a_wrong_other_half_decides_nothing(client, /):
    await client.topic("S")
    halves = await prepared(client)
    foreign = await prepare(client, unique="Y", group="other")
    for wrong, code in (
        (others([foreign]), 203),
        ("[[1,2", 1),
        (others(halves[1:] * 32), 29),
        (OtherHalf.write([OtherHalf(halves[1].offset, halves[1].position + 1, "X.1")]), 604),
    ):
        answer = await client.ask(RequestCode.END_TRANSACTION, halves[0].end(COMMIT, others=wrong))
        assert answer.code == code, answer.remark
    assert await seen(client, "T", "S") == []


@pytest.mark.parametrize("name", ["X", "X.2"])
@run_by(in_world_with_client, topic="T")
async def test_an_operator_decides_the_whole_transaction(stage, client, /, name):
    await client.topic("S")
    await prepared(client)

    assert (await client.ask(RequestCode.DECIDE_TRANSACTION, by_hand(name, "commit"))).code == 0

    assert await seen(client, "T", "S") == [b"0", b"2", b"1"]
    assert stage.broker.transactions.tally.forced == 3


@run_by(in_world_with_client, topic="T")
async def test_an_operator_decides_large_delayed_messages_in_spans_that_followers_can_take(
    stage, client, /
):
    for number in range(5):
        unique = f"X.{number}" if number else "X"
        body = b"x" * 4_000_000
        await prepare(client, "T", unique, body, TXMQ_XID="X", TIMER_DELAY_SEC="60")
    segments = stage.broker.store.log.segments
    begin = segments.end

    await client.ok(RequestCode.DECIDE_TRANSACTION, by_hand("X", "commit"))

    assert stage.broker.transactions.tally.forced == len(stage.broker.store.delays) == 5
    ends = [begin, *ends_in(segments.read(begin, segments.end - begin), begin)]
    sizes = [end - start for start, end in pairwise(ends)]
    assert len(sizes) == 5
    assert max(sizes) < FRAME_BYTES_MAX // 2


@run_by(with_client, topic="T")
async def test_an_operator_names_a_transaction_whose_first_message_is_elsewhere(client, /):
    await prepare(client, "T", "X.1", b"1", TXMQ_XID="X")
    await prepare(client, "T", "X.2", b"2")  # It does not name X.

    assert (await client.ask(RequestCode.DECIDE_TRANSACTION, by_hand("X", "commit"))).code == 0

    assert await seen(client, "T") == [b"1"]


@run_by(with_client, topic="T")
async def test_a_message_that_names_a_foreign_transaction_is_decided_alone(client, /):
    await prepare(client, "T", "X", b"0")
    await prepare(client, "T", "Y", b"1", TXMQ_XID="X")

    assert (await client.ask(RequestCode.DECIDE_TRANSACTION, by_hand("Y", "commit"))).code == 0

    assert await seen(client, "T") == [b"1"]


async def known(client, xid):
    answer = await client.ok(RequestCode.LIST_TRANSACTION_MESSAGES, NamedTransaction(xid))
    rows = TransactionMessages.read(answer.body).messages
    return [(row.transaction_id, row.topic, row.state) for row in rows]


@run_by(in_lives)
async def test_a_broker_lists_its_messages_of_a_transaction_open_and_decided(life, /):
    client = await life.client(topic="T")
    await client.topic("S")
    _, second, third = await prepared(client)
    await prepare(client, "T", "X.3", b"3")  # It does not name X.
    assert await end(client, second, COMMIT) == await end(client, third, ROLLBACK) == 0

    expected = [("X", "T", "prepared"), ("X.1", "S", "committed"), ("X.2", "T", "rolled back")]
    assert await known(client, "X") == expected
    await life.restart()
    assert await known(await life.client(), "X") == expected


@run_by(with_client, topic="T")
async def test_a_broker_lists_messages_of_a_transaction_whose_first_message_is_elsewhere(client, /):
    await prepare(client, "T", "X.2", TXMQ_XID="X")

    assert await known(client, "X") == [("X.2", "T", "prepared")]
    assert await known(client, "X.2") == await known(client, "Y") == []


@run_by(with_client, topic="T")
async def test_open_messages_name_the_transaction_that_they_are_part_of(client, /):
    await prepared(client, 2, topics=("T",))
    await prepare(client, "T", "Y", TXMQ_XID="X")

    listed = await client.ok(RequestCode.LIST_TRANSACTIONS, ListTransactions())
    rows = OpenTransactions.read(listed.body).transactions
    assert [(row.transaction_id, row.xid) for row in rows] == [("X", "X"), ("X.1", "X"), ("Y", "Y")]


@pytest.mark.fault("S4")
@pytest.mark.parametrize("is_late", [False, True])
@run_by(in_lives, DURABLE)
async def test_a_power_cut_leaves_all_half_messages_decided_or_none(life, /, is_late):
    client = await life.client(topic="T")
    halves = await prepared(client, topics=("T",))
    life.disk.slow_sync(3.0)
    ending = client.asking(
        RequestCode.END_TRANSACTION, halves[0].end(COMMIT, others=others(halves[1:]))
    )
    await life.passes(4.0 if is_late else 1.0)
    assert ending.done() is is_late
    await life.lose_power(Loss.EVERYTHING)
    await life.start()

    client = await life.client()
    assert await seen(client, "T") == ([b"0", b"1", b"2"] if is_late else [])
    assert len(life.broker.transactions.halves.pending) == (0 if is_late else 3)
