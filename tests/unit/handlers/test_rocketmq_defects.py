"""The defects of transactions in RocketMQ, one by one: none of them occurs here.

Everything runs in virtual time, most of it in a simulated world in which the broker can be stopped,
killed and started again.
"""

import asyncio

import pytest
from msgspec.structs import replace

from tests.faults.crash_points import watched
from tests.running import run_by
from tests.simulation.mix import SmallStore, kib
from tests.unit.handlers.handler_stage import SETTINGS, sending, text_of
from tests.unit.handlers.transaction_stage import (
    CHECK,
    COMMIT,
    DECISIONS,
    DURABLE,
    GROUP,
    HALVES,
    PARKED,
    ROLLBACK,
    UNKNOWN,
    checks_heard,
    client_in_lives,
    end,
    ending,
    in_lives,
    in_lives_with_client,
    prepare,
    preparing,
    producer,
    quick,
    stay,
)
from txmq.errors import TransportError
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.bodies import OpenTransactions
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    CheckState,
    EndTransaction,
    ListTransactions,
    NamedTransaction,
    ResumeCheck,
)
from txmq.protocol.span import FOLDER, SUFFIX, name_of
from txmq.testing import Loss
from txmq_broker.services import checker
from txmq_broker.store import half_store

HOUR = 3600.0
SMALL = SmallStore(flush="sync", segment_size=kib(2), checkpoint_every=kib(1))


async def opened(client, state=""):
    """The open transactions, as an operator sees them."""
    answer = await client.ok(RequestCode.LIST_TRANSACTIONS, ListTransactions(state=state))
    return {
        transaction.transaction_id: transaction
        for transaction in OpenTransactions.read(answer.body).transactions
    }


def decided(client, request):
    """Answer a check with COMMIT, one-way and on its own connection, as stock clients do."""
    asked = request.read(CheckState)
    header = EndTransaction(
        GROUP, asked.tran_state_table_offset, asked.commit_log_offset, COMMIT, True, asked.msg_id
    )
    client.asking(RequestCode.END_TRANSACTION, header, oneway=True)


def damage(life, half):
    """Flip a bit in the middle of a half message's body."""
    life.disk.flip_bit(f"{FOLDER}/{name_of(0)}{SUFFIX}", half.position + 300)


# Decisions


@pytest.mark.fault("M1")
@run_by(in_lives)
async def test_a_second_commit_stores_nothing_a_second_time(life, /):
    client, other = await life.client(), await life.client()
    await client.topic("T")
    half = await prepare(client)
    both = [ending(client, half, COMMIT), ending(other, half, COMMIT)]
    assert [answer.code for answer in await asyncio.gather(*both)] == [0, 0]
    assert await end(client, half, COMMIT) == 0
    assert await end(other, half, COMMIT, is_check=True) == 0

    assert (await client.pull("T")).bodies == [b"half"]
    assert await client.max_offset("T") == 1
    assert await client.max_offset(DECISIONS) == 1


@pytest.mark.fault("M2")
@pytest.mark.parametrize(
    ("checked", "late", "code", "bodies"),
    [(ROLLBACK, COMMIT, 201, []), (COMMIT, ROLLBACK, 200, [b"half"])],
)
@run_by(in_lives, quick())
async def test_a_late_end_does_not_undo_the_decision_of_a_check(
    life, /, checked, late, code, bodies
):
    client = await producer(life, topic="T")
    half = await prepare(client)
    await client.heard(CHECK)
    assert await end(client, half, checked, is_check=True) == 0

    assert await end(client, half, late) == code

    assert (await client.pull("T")).bodies == bodies
    assert await end(client, half, checked) == 0


@pytest.mark.fault("M7")
@pytest.mark.parametrize(
    ("decided", "checked", "code"), [(COMMIT, ROLLBACK, 200), (ROLLBACK, COMMIT, 201)]
)
@run_by(in_lives, quick())
async def test_a_check_that_is_answered_after_the_decision_changes_nothing(
    life, /, decided, checked, code
):
    client = await producer(life, topic="T")
    half = await prepare(client)
    await client.heard(CHECK)
    assert await end(client, half, decided) == 0

    assert await end(client, half, checked, is_check=True) == code
    assert await end(client, half, UNKNOWN, is_check=True) == 0

    assert len((await client.pull("T")).records) == (decided == COMMIT)
    await stay(client, 30, GROUP)
    assert checks_heard(client) == []


@pytest.mark.fault("M9")
@run_by(in_lives, quick())
async def test_two_producers_that_answer_one_check_differently_get_one_decision(life, /):
    one, two = await producer(life), await producer(life)
    await one.topic("T")
    half = await prepare(one)
    await one.heard(CHECK)
    await two.heard(CHECK)  # The first had not answered by the next check.
    both = [ending(two, half, ROLLBACK, is_check=True), ending(one, half, COMMIT)]

    codes = sorted([answer.code for answer in await asyncio.gather(*both)])

    bodies = (await one.pull("T")).bodies
    assert (codes, bodies) in [([0, 200], [b"half"]), ([0, 201], [])]
    assert life.broker.transactions.tally.conflicts == 1


@pytest.mark.fault("M3")
@run_by(in_lives_with_client, DURABLE, topic="T")
async def test_an_end_before_its_half_message_is_known_is_refused_and_works_later(life, client, /):
    await prepare(client, unique="earlier")
    life.disk.slow_sync(5.0)
    arriving = client.asking(RequestCode.SEND_MESSAGE, preparing(), body=b"half")
    await life.passes(1.0)
    halves = life.broker.store.halves
    (half,) = map(halves.pending.unpack, halves.opening.values())
    commit = EndTransaction(GROUP, half.offset, half.position, COMMIT, msg_id="U1")

    early = await client.ask(RequestCode.END_TRANSACTION, commit)

    assert early.code == 22
    assert "no message at offset" in early.remark
    assert (await arriving).code == 0
    assert await client.code_of(RequestCode.END_TRANSACTION, commit) == 0
    assert (await client.pull("T")).bodies == [b"half"]


# A lost END


@run_by(in_lives)
async def test_a_one_way_end_works_like_any_other(life, /):
    client = await producer(life, topic="T")
    half = await prepare(client)
    told = [ending(client, half, what, oneway=True) for what in (COMMIT, COMMIT, ROLLBACK)]
    await life.passes(0.5)
    assert not any(future.done() for future in told)
    assert (await client.pull("T")).bodies == [b"half"]
    assert await end(client, half, COMMIT) == 0


@pytest.mark.fault("N1")
@run_by(in_lives, quick())
async def test_a_check_replaces_a_one_way_end_that_was_lost(life, /):
    client = await producer(life, topic="T")
    half = await prepare(client)
    life.world.network.partition("client-1", "server")
    ending(client, half, COMMIT, oneway=True)
    client.connection.abort()
    await life.passes(5.0)
    life.world.network.heal()
    assert len(await opened(await life.client())) == 1

    again = await producer(life, client.name)
    await again.heard(CHECK)
    ending(again, half, COMMIT, is_check=True, oneway=True)
    await life.passes(0.5)

    assert await again.max_offset("T") == 1
    assert (await again.pull("T")).bodies == [b"half"]


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("is_killed", [True, False])
@run_by(in_lives_with_client, DURABLE, topic="T")
async def test_an_end_works_after_the_broker_restarted(life, client, /, is_killed, is_indexed):
    decided = await prepare(client, unique="C")
    undone = await prepare(client, unique="R")
    open_one, open_two = [await prepare(client, unique=unique) for unique in "AB"]
    assert await end(client, decided, COMMIT) == 0
    assert await end(client, undone, ROLLBACK) == 0
    await (life.kill() if is_killed else life.stop())
    if not is_indexed:
        for name in life.disk.names("index"):
            life.disk.remove(f"index/{name}")
    await life.start()
    client = await life.client()
    assert sorted(await opened(client)) == ["A", "B"]

    # Repeated and contradicted: the log knows the decision.
    assert [await end(client, decided, decision) for decision in (COMMIT, ROLLBACK)] == [0, 200]
    assert [await end(client, undone, decision) for decision in (ROLLBACK, COMMIT)] == [0, 201]
    assert [await end(client, open_one, decision) for decision in (COMMIT, ROLLBACK)] == [0, 200]
    assert [await end(client, open_two, decision) for decision in (ROLLBACK, COMMIT)] == [0, 201]

    found = (await client.pull("T")).records
    assert [record.property_map()["UNIQ_KEY"] for record in found] == ["C", "A"]
    assert [record.queue_offset for record in found] == [0, 1]


@run_by(in_lives_with_client, DURABLE, topic="T")
async def test_a_half_message_sent_again_after_decision_and_restart_is_the_same_transaction(
    life, client, /
):
    first = await prepare(client)
    assert await end(client, first, ROLLBACK) == 0
    await life.kill_and_start()
    client = await life.client()

    again = await prepare(client)

    assert (again.offset, again.position) == (first.offset, first.position)
    assert await end(client, again, COMMIT) == 201
    assert await opened(client) == {}


@run_by(in_lives)
async def test_an_end_for_a_reused_id_decides_only_the_transaction_it_names(life, /, monkeypatch):
    monkeypatch.setattr(half_store, "RECENT_TRANSACTIONS", 2)

    client = await life.client(topic="T")
    first = await prepare(client)
    assert await end(client, first, ROLLBACK) == 0
    for unique in "ABC":  # After these, only a search finds the first.
        assert await end(client, await prepare(client, unique=unique), ROLLBACK) == 0
    second = await prepare(client)
    assert second.offset > first.offset

    assert await end(client, first, COMMIT) == 201
    assert await end(client, first, ROLLBACK) == 0

    assert len(await opened(client)) == 1
    assert await end(client, second, COMMIT) == 0
    assert await end(client, first, COMMIT) == 201
    assert (await client.pull("T")).bodies == [b"half"]


@pytest.mark.fault("P9")
@pytest.mark.parametrize("loss", [None, Loss.PAGES], ids=["killed", "power lost"])
@pytest.mark.parametrize("step", ["stage the half message", "write the span"])
@run_by(in_lives, DURABLE)
async def test_a_half_message_lost_in_a_crash_can_be_sent_again_and_is_stored_once(
    life, /, step, loss
):
    armed = []

    def die(label):
        if armed and label == f"prepare: before {step}":
            server = armed.pop()
            server.kill() if loss is None else server.crash(loss)

    client = await life.client(topic="T")
    await prepare(client, unique="earlier")
    armed.append(life.server)
    with watched(die), pytest.raises(TransportError):
        await client.connection.ask(
            RequestCode.SEND_MESSAGE, preparing(), body=b"half", timeout_s=5.0
        )
    assert armed == []
    await life.gone()
    await life.start()
    client = await life.client()
    assert list(await opened(client)) == ["earlier"]

    first, again = await prepare(client), await prepare(client)

    assert (again.offset, again.position) == (first.offset, first.position)
    assert sorted(await opened(client)) == ["U1", "earlier"]
    assert await client.max_offset(HALVES) == 2
    assert await end(client, again, COMMIT) == 0
    assert (await client.pull("T")).bodies == [b"half"]


@pytest.mark.fault("P11", "M6")
@run_by(in_lives_with_client, DURABLE, topic="T")
async def test_a_half_message_sent_again_after_a_restart_is_the_same_transaction(life, client, /):
    open_one, decided = [await prepare(client, unique=unique) for unique in "AB"]
    assert await end(client, decided, ROLLBACK) == 0
    await life.kill_and_start()
    client = await life.client()
    again = [await prepare(client, unique=unique) for unique in "AB"]
    assert [half.offset for half in again] == [open_one.offset, decided.offset]
    assert [await end(client, half, COMMIT) for half in again] == [0, 201]
    assert (await client.pull("T")).bodies == [b"half"]


# Checks that are too many


@run_by(in_lives, quick())
async def test_decided_transactions_are_never_checked(life, /):
    client = await producer(life, topic="T")
    halves = await asyncio.gather(*[prepare(client, unique=f"U{number}") for number in range(200)])
    ends = await asyncio.gather(*[end(client, half, COMMIT) for half in halves])
    assert set(ends) == {0}

    await stay(client, 300, GROUP)

    assert checks_heard(client) == []
    assert life.broker.transactions.tally.checks_sent == 0


@run_by(in_lives, quick(check_max=100))
async def test_an_end_after_many_checks_stops_the_checks(life, /):
    client = await producer(life, topic="T")
    half = await prepare(client)
    for times in range(1, 6):
        request = await client.heard(CHECK)
        shown = request.read(CheckState)
        place = (shown.tran_state_table_offset, shown.commit_log_offset)
        assert place == (half.offset, half.position)
        told = records.unpack(request.body)[0].property_map()
        assert told["TRANSACTION_CHECK_TIMES"] == str(times)
        assert await end(client, half, UNKNOWN, is_check=True) == 0
    assert await client.max_offset(HALVES) == 1

    assert await end(client, half, COMMIT) == 0

    await stay(client, 60, GROUP)
    assert checks_heard(client) == []
    assert (await client.pull("T")).bodies == [b"half"]


@pytest.mark.fault("P13")
@run_by(in_lives, quick(DURABLE, check_max=1000))
async def test_a_commit_before_a_kill_is_neither_checked_nor_delivered_again(life, /):
    client = await producer(life, topic="T")
    halves = [await prepare(client, unique=f"U{number}") for number in range(20)]
    for half in halves[:10]:
        assert await end(client, half, COMMIT) == 0
    await life.kill_and_start()
    client = await producer(life)
    await stay(client, 60, GROUP)
    assert set(checks_heard(client)) == {f"U{number}" for number in range(10, 20)}
    assert (await client.pull("T")).bodies == [b"half"] * 10


@run_by(in_lives, quick(check_interval=60.0))
async def test_thousands_of_open_transactions_are_checked_within_seconds(life, /):
    client = await producer(life, topic="T")
    client.inbox.replies[CHECK] = lambda request: decided(client, request)
    count = 3000
    await asyncio.gather(*[prepare(client, unique=f"U{number}") for number in range(count)])
    await life.passes(5.0)
    assert life.broker.transactions.tally.checks_sent == count
    assert await client.max_offset("T") == count


@run_by(in_lives, quick(check_interval=10.0, check_max=1000))
async def test_reconnects_and_rechecks_do_not_shorten_the_check_interval(life, /):
    client = await producer(life, topic="T")
    await prepare(client)
    for _ in range(5):
        await client.heard(CHECK)
        client.close()
        await life.passes(0.3)
        client = await producer(life, client.name)
    for _ in range(5):
        await client.ok(RequestCode.RECHECK_TRANSACTION, NamedTransaction("U1"))
        await life.passes(0.2)
    checks_heard(client)

    await stay(client, 60, GROUP)

    assert 5 <= len(checks_heard(client)) <= 6


# Wasted attempts


@run_by(in_lives, quick())
async def test_the_check_immunity_time_costs_no_attempt(life, /):
    client = await producer(life, topic="T")
    await prepare(client, CHECK_IMMUNITY_TIME_IN_SECONDS="30")
    await stay(client, 29.9, GROUP)
    assert client.heard_nothing()
    assert (await opened(client))["U1"].checks == 0

    request = await client.heard(CHECK)
    assert records.unpack(request.body)[0].property_map()["TRANSACTION_CHECK_TIMES"] == "1"
    assert await opened(client, "parked") == {}


@pytest.mark.fault("N3")
@run_by(in_lives, quick())
async def test_an_hour_without_producers_spends_no_attempt_and_discards_nothing(life, /):
    client = await producer(life, topic="T")
    await prepare(client)
    client.close()
    await life.passes(HOUR)
    operator = await life.client()
    (transaction,) = (await opened(operator)).values()
    assert (transaction.state, transaction.checks) == ("prepared", 0)
    stranger = await producer(life, "stranger", "another group")
    await life.passes(5)
    assert stranger.heard_nothing()

    began = life.world.now()
    back = await producer(life)
    await back.heard(CHECK)
    assert life.world.now() - began < 0.1
    assert (await opened(operator))["U1"].checks == 0


@pytest.mark.fault("P14")
@run_by(in_lives, quick(check_interval=10.0))
async def test_a_check_lost_with_its_connection_is_repeated_and_costs_no_attempt(life, /):
    client, operator = await producer(life), await life.client()
    await client.topic("T")
    await prepare(client)
    for _ in range(5):
        await client.heard(CHECK)
        client.close()
        await life.passes(0.2)
        client = await producer(life)
    await client.heard(CHECK)
    assert (await opened(operator))["U1"].checks == 0
    assert life.broker.transactions.tally.checks_lost == 5


@run_by(in_lives, quick(check_interval=20.0))
async def test_a_producer_that_reads_too_slowly_is_not_checked_until_it_has_caught_up(life, /):
    slow, other = await producer(life, "slow"), await producer(life, "other")
    await slow.topic("T")
    half = await prepare(slow)
    (there,) = [
        member.connection
        for member in life.broker.clients.producers(GROUP)
        if member.client_id == "slow"
    ]
    there.pause_writing()
    await other.heard(CHECK)
    assert slow.heard_nothing()
    other.close()
    await life.passes(30)
    assert slow.heard_nothing()
    operator = await life.client()
    assert (await opened(operator))["U1"].checks == 0

    there.resume_writing()
    await stay(slow, 10, GROUP)

    assert checks_heard(slow)
    assert await end(slow, half, COMMIT, is_check=True) == 0


@pytest.mark.fault("N1")
@run_by(in_lives, quick())
async def test_checks_to_a_producer_cut_off_by_the_network_cost_no_attempt(life, /):
    client, operator = await producer(life), await life.client()
    await client.topic("T")
    await prepare(client)
    life.world.network.partition("client-1", "server")
    for _ in range(5):
        await stay(operator, 20)
    assert (await opened(operator))["U1"].checks == 0
    assert await opened(operator, "parked") == {}


# One exception stops all checks


@run_by(in_lives, quick(check_interval=10.0, check_max=100))
async def test_an_unreadable_half_message_does_not_stop_the_checks_of_others(life, /):
    client = await producer(life, topic="T")
    halves = [await prepare(client, unique=f"U{number}", body=bytes(1000)) for number in range(5)]
    damage(life, halves[1])

    await stay(client, 25, GROUP)

    heard = checks_heard(client)
    assert [heard.count(f"U{number}") for number in range(5)] == [3, 0, 3, 3, 3]
    # Operators still see the others, and that the damaged one exists.
    listed = await client.ok(RequestCode.LIST_TRANSACTIONS, ListTransactions())
    shown = OpenTransactions.read(listed.body).transactions
    assert [transaction.half_offset for transaction in shown] == [0, 1, 2, 3, 4]
    assert [transaction.transaction_id for transaction in shown] == ["U0", "", "U2", "U3", "U4"]
    assert await end(client, halves[1], ROLLBACK) == 0


# Whom to ask


@run_by(in_lives, quick())
async def test_the_producer_that_sent_a_half_message_is_checked_first(life, /):
    before, origin, after = [await producer(life) for _ in range(3)]
    await origin.topic("T")
    for number in range(10):
        await prepare(origin, unique=f"U{number}")
    await life.passes(1.5)
    assert len(checks_heard(origin)) == 10
    assert before.heard_nothing()
    assert after.heard_nothing()


@run_by(in_lives, quick())
async def test_another_producer_of_the_group_is_checked_when_the_sender_is_gone(life, /):
    origin, other = await producer(life), await producer(life)
    await origin.topic("T")
    half = await prepare(origin)
    origin.close()
    await other.heard(CHECK)
    assert await end(other, half, COMMIT, is_check=True) == 0
    assert (await other.pull("T")).bodies == [b"half"]


@run_by(in_lives, quick())
async def test_another_producer_of_the_group_is_checked_when_the_sender_is_silent(life, /):
    origin, other = await producer(life), await producer(life)
    await origin.topic("T")
    await prepare(origin)
    await origin.heard(CHECK)
    await life.passes(0.5)
    assert other.heard_nothing()
    await origin.beat(producers=[GROUP])
    await other.heard(CHECK)
    assert origin.heard_nothing()
    # It was connected and did not answer: that counts.
    assert (await opened(other))["U1"].checks == 1


@pytest.mark.fault("P14")
@run_by(in_lives, quick(DURABLE))
async def test_after_a_restart_any_producer_of_the_group_is_checked(life, /):
    client = await producer(life, topic="T")
    half = await prepare(client)
    await life.kill_and_start()
    other = await producer(life)
    request = await other.heard(CHECK)
    assert request.read(CheckState).commit_log_offset == half.position
    assert await end(other, half, COMMIT, is_check=True) == 0
    assert (await other.pull("T")).bodies == [b"half"]


@run_by(in_lives, quick(check_interval=5.0, check_max=1000))
async def test_a_silent_group_does_not_delay_the_checks_of_others(life, /, monkeypatch):
    monkeypatch.setattr(checker, "CHECKS_MAX", 8)
    monkeypatch.setattr(checker, "CHECKS_PER_PRODUCER_MAX", 4)

    silent = [await producer(life, None, "silent") for _ in range(3)]
    client = await producer(life, topic="T")
    for number in range(40):
        await prepare(silent[0], unique=f"S{number}", group="silent")
    await life.passes(2.0)
    await prepare(client)

    await asyncio.wait_for(client.inbox.get(), 25.0)


@run_by(in_lives, quick())
async def test_a_group_without_producers_does_not_delay_the_checks_of_others(life, /):
    client = await producer(life, topic="T")
    for number in range(300):
        await prepare(client, unique=f"S{number}", group="away")
    await prepare(client)
    await life.passes(2.0)
    assert checks_heard(client)[0] == "U1"


# What is sent


@run_by(in_lives, quick())
async def test_a_half_message_without_a_group_belongs_to_the_group_of_its_sender(life, /):
    client = await producer(life, None, "producers")
    await client.topic("T")
    header = preparing(group="producers")
    header.properties = text_of(TRAN_MSG="true", UNIQ_KEY="U1")
    await client.ok(RequestCode.SEND_MESSAGE, header, body=b"half")

    request = await client.heard(CHECK)

    shown, _ = records.unpack(request.body)
    assert properties.find(shown.properties, properties.PRODUCER_GROUP) == "producers"
    assert (await opened(client))["U1"].producer_group == "producers"


# Clocks


@pytest.mark.fault("T1")
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
@run_by(in_lives, quick(timeout=10.0, check_interval=10.0))
async def test_a_jump_of_the_wall_clock_does_not_change_the_times_of_checks(life, /, jump):
    client = await producer(life, topic="T")
    half = await prepare(client)
    await life.passes(5.0)
    life.clock.jump(jump)
    await life.passes(4.9)
    assert client.heard_nothing()
    await life.passes(0.2)
    assert checks_heard(client) == ["U1"]
    life.clock.jump(-2 * jump)
    await life.passes(9.8)
    assert client.heard_nothing()
    await life.passes(0.3)
    assert checks_heard(client) == ["U1"]
    assert await end(client, half, COMMIT) == 0
    assert (await client.pull("T")).bodies == [b"half"]


@pytest.mark.fault("T2")
@pytest.mark.parametrize("days", [1, -1])
@run_by(in_lives, quick())
async def test_a_producer_whose_clock_is_a_day_off_is_checked_in_time(life, /, days):
    client = await producer(life, topic="T")
    await prepare(client, born=life.clock.wall_ms() + days * 86_400_000)
    await life.passes(0.9)
    assert client.heard_nothing()
    await life.passes(0.2)
    assert checks_heard(client) == ["U1"]


# Room


@run_by(client_in_lives, quick(pending_max=2), topic="T")
async def test_with_too_many_open_transactions_half_messages_are_refused_but_not_ends(client, /):
    first, second = [await prepare(client, unique=unique) for unique in "AB"]
    refused = await client.ask(RequestCode.SEND_MESSAGE, preparing(unique="C"), body=b"half")
    assert refused.code == 2
    assert "pending_max" in refused.remark
    again = await prepare(client, unique="A")
    assert again.offset == first.offset
    await client.send("T", b"plain")

    assert await end(client, first, COMMIT) == 0
    assert await end(client, second, ROLLBACK) == 0

    await prepare(client, unique="C")
    assert (await client.pull("T")).bodies == [b"plain", b"half"]


@pytest.mark.fault("S8")
@run_by(in_lives, DURABLE)
async def test_a_filling_disk_refuses_half_messages_first_then_sends_but_never_ends(life, /):
    client = await life.client(topic="T")
    one, two, three = [await prepare(client, unique=unique) for unique in "ABC"]
    used = life.disk.space().used

    async def fills(part):
        life.disk.capacity = int(used / part)
        await life.passes(6.0)

    async def codes():
        header = preparing(unique="D")
        half = await client.code_of(RequestCode.SEND_MESSAGE, header, body=b"half")
        plain = await client.code_of(RequestCode.SEND_MESSAGE, sending("T"), body=b"plain")
        return half, plain

    await fills(0.89)
    assert await codes() == (14, 0)
    assert await end(client, one, COMMIT) == 0
    await fills(0.95)
    assert await codes() == (14, 14)
    assert await end(client, two, COMMIT) == 0
    assert await end(client, two, ROLLBACK) == 200
    assert await end(client, three, ROLLBACK) == 0
    life.disk.capacity = None
    await life.passes(6.0)
    assert await codes() == (0, 0)


@run_by(in_lives_with_client, DURABLE, topic="T")
async def test_ends_are_accepted_while_the_disk_is_too_slow_for_sends(life, client, /):
    one, two = [await prepare(client, unique=unique) for unique in "AB"]
    life.disk.slow_sync(4.0)
    deciding = ending(client, one, COMMIT)
    await life.passes(2.0)
    header = preparing(unique="C")
    assert await client.code_of(RequestCode.SEND_MESSAGE, header, body=b"half") == 2
    later = ending(client, two, ROLLBACK)
    assert await client.code_of(RequestCode.SEND_MESSAGE, sending("T"), body=b"plain") == 2
    assert [(await ending).code for ending in (deciding, later)] == [0, 0]
    assert (await client.pull("T")).bodies == [b"half"]


@pytest.mark.fault("M5")
@run_by(in_lives_with_client, replace(SETTINGS, store=SMALL), topic="T")
async def test_an_end_whose_half_message_was_deleted_is_refused_with_the_reason(life, client, /):
    old = await prepare(client)
    assert await end(client, old, COMMIT) == 0
    for number in range(20):
        await client.send("T", bytes(400))
        half = await prepare(client, unique=f"N{number}")
        assert await end(client, half, ROLLBACK) == 0
    store = life.broker.store
    assert len(store.checkpoints.completed_files()) > 2
    store.drop_first_file()
    for what in (COMMIT, ROLLBACK):
        refused = await client.ask(RequestCode.END_TRANSACTION, old.end(what))
        assert refused.code == 4
        assert "deleted" in refused.remark


# Parked


def by_its_id(half, _):
    return RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheck(half.offset_id)


def by_its_copy(_, copy):
    return RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheck(copy.offset_id)


def by_its_key(half, _):
    return RequestCode.RECHECK_TRANSACTION, NamedTransaction(half.unique)


@pytest.mark.parametrize("asks", [by_its_id, by_its_copy, by_its_key])
@pytest.mark.parametrize("is_restarted", [False, True])
@run_by(in_lives, quick(DURABLE))
async def test_a_parked_transaction_can_be_checked_again(life, /, asks, is_restarted):
    client = await producer(life, topic="T")
    half = await prepare(client)
    for _ in range(3):
        await client.heard(CHECK)
        assert await end(client, half, UNKNOWN, is_check=True) == 0
    await stay(client, 30, GROUP)
    assert client.heard_nothing()
    if is_restarted:
        await life.kill_and_start()
        client = await producer(life)
        await stay(client, 30, GROUP)
        assert client.heard_nothing()
    (copy,) = (await client.pull(PARKED)).records

    await client.ok(*asks(half, copy))

    for _ in range(3):
        await client.heard(CHECK)
        assert await end(client, half, UNKNOWN, is_check=True) == 0
    await stay(client, 10, GROUP)
    assert client.heard_nothing()
    assert (await opened(client))["U1"].state == "parked"
    assert await client.max_offset(PARKED) == 1
    await client.ok(*asks(half, copy))
    await client.heard(CHECK)
    assert await end(client, half, COMMIT, is_check=True) == 0
    assert (await client.pull("T")).bodies == [b"half"]
    assert await client.code_of(*asks(half, copy)) == 22


@pytest.mark.parametrize(("what", "bodies"), [(COMMIT, [b"half"]), (ROLLBACK, [])])
@run_by(in_lives, quick(check_interval=20.0))
async def test_a_late_end_decides_a_parked_transaction(life, /, what, bodies):
    client = await producer(life, topic="T")
    half = await prepare(client)
    await stay(client, 120, GROUP)
    assert (await opened(client))["U1"].state == "parked"
    assert len(checks_heard(client)) == 3
    assert await end(client, half, what) == 0
    assert (await client.pull("T")).bodies == bodies
    assert await opened(client) == {}


@run_by(in_lives, quick(check_interval=20.0))
async def test_a_transaction_whose_parking_failed_is_parked_later(life, /):
    client = await producer(life, topic="T")
    await prepare(client)
    life.disk.fail_writes()
    await stay(client, 100, GROUP)
    assert (await opened(client))["U1"].state == "prepared"
    life.disk.repair()
    await stay(client, 60, GROUP)
    assert (await opened(client))["U1"].state == "parked"
    assert await client.max_offset(PARKED) == 1


@run_by(in_lives, quick(DURABLE, check_max=100))
async def test_a_transaction_whose_decision_could_not_be_written_is_checked_again(life, /):
    client = await producer(life, topic="T")
    half = await prepare(client)
    life.disk.slow_sync(4.0)
    earlier = client.asking(RequestCode.SEND_MESSAGE, preparing(unique="U2"), body=b"half")
    await life.passes(0.5)
    deciding = ending(client, half, COMMIT)
    await life.passes(2.0)
    assert not deciding.done()
    life.disk.fail_writes()
    assert (await deciding).code == 14
    assert (await earlier).code == 0
    life.disk.repair()
    life.disk.slow_sync(0.0)

    await stay(client, 20, GROUP)

    assert "U1" in checks_heard(client)


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.PAGES, Loss.TAIL])
@run_by(in_lives, quick(DURABLE, check_interval=20.0))
async def test_a_parked_transaction_survives_a_power_cut(life, /, loss):
    client = await producer(life, topic="T")
    half = await prepare(client)
    await stay(client, 120, GROUP)
    assert (await opened(client))["U1"].state == "parked"
    await life.lose_power(loss)
    await life.start()
    client = await producer(life)
    assert (await opened(client, "parked")).keys() == {"U1"}
    assert await client.max_offset(PARKED) == 1
    assert await end(client, half, COMMIT) == 0
    assert (await client.pull("T")).bodies == [b"half"]
