import asyncio

import pytest

from tests.running import run_by
from tests.unit.client.client_stage import staged
from tests.unit.client.producer_stage import refuse
from txmq import ConsumerSettings, PushConsumer, StartFrom
from txmq.client import Admin, Session
from txmq.client.admin.dead_letters import (
    RESENT_AT,
    RESENT_BY,
    RESENT_FROM,
    RESENT_REASON,
    copy_of,
)
from txmq.errors import (
    BrokerBusy,
    ConnectFailed,
    IllegalOperation,
    LimitExceeded,
    LocalProtocolError,
    NoPermission,
    NotFound,
    TopicNotFound,
    UsageError,
)
from txmq.message import Message, Queue
from txmq.protocol import command, headers
from txmq.protocol.codes import Perm, RequestCode
from txmq_broker.testing import embedded

DEAD, RETRY = "%DLQ%g", "%RETRY%g"
WHY = {"reason": "the account is open again", "operator": "ann"}


def letter(body=b"x", *, topic="Transfers", keys=(), dead=DEAD, **named):
    """A dead letter as a broker stores it."""
    named = {"RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": "0A" * 16} | named
    named = {name: value for name, value in named.items() if value}
    return Message(topic=dead, body=body, tags="pay", keys=keys, properties=named)


async def read(admin, **more):
    return [dead async for dead in admin.dead_letters("g", **more)]


def bodies(letters):
    return [dead.body for dead in letters]


def tell_time(stage, time_ms):
    """Make the fake broker answer the query for its earliest time."""
    stage.cluster.replies[RequestCode.GET_EARLIEST_MSG_STORETIME] = lambda request: command.answer(
        request, 0, headers.TimestampAnswer(time_ms)
    )


async def buried(stage, dead=None, *, retries=True):
    """A dead letter of the group ``g``, which has a retry topic unless it shall have none."""
    stage.cluster.add_topic(DEAD, queues=1)
    if retries:
        stage.cluster.add_topic(RETRY, queues=1)
    await stage.admin.send(dead or letter())
    return (await read(stage.admin))[-1]


def with_broker(test):
    """Run a test with the admin of a real broker whose ``g`` has a dead-letter and retry topic."""

    async def main():
        async with embedded() as broker, Session(broker.names) as session:
            admin = Admin(session)
            await admin.create_group("g")
            await admin.create_topic(DEAD, queues=1)
            await admin.create_topic(RETRY, queues=1)
            await test(admin)

    asyncio.run(main())


# Counting


@staged(brokers=2)
async def test_dead_letters_are_counted_by_group_and_broker(stage):
    a, b = stage.cluster.add_topic(DEAD, queues=1)
    stage.cluster.add_topic("%DLQ%h", queues=1)
    stage.cluster.add_topic("Transfers")
    tell_time(stage, 7)
    for queue in (a, a, b):
        await stage.admin.send(letter(), queue)

    groups = await stage.admin.dead_letter_groups()

    assert [(group.group, group.messages, group.by_broker) for group in groups] == [
        ("g", 3, {"broker-a": 2, "broker-b": 1}),
        ("h", 0, {"broker-a": 0, "broker-b": 0}),
    ]
    assert (groups[0].oldest_ms, groups[0].newest_ms, groups[0].closed_at) == (7, 5, ())
    assert (groups[1].oldest_ms, groups[1].newest_ms) == (None, None)


@staged()
async def test_an_unknown_time_of_the_oldest_dead_letter_is_none(stage):
    await buried(stage)
    tell_time(stage, -1)

    (group,) = await stage.admin.dead_letter_groups("g")

    assert (group.messages, group.oldest_ms) == (1, None)


@staged()
async def test_a_group_that_never_had_a_dead_letter_is_not_listed(stage):
    stage.cluster.add_topic(DEAD)

    assert await stage.admin.dead_letter_groups("h") == []
    with pytest.raises(LocalProtocolError):
        await stage.admin.dead_letter_groups("no name")


@run_by(with_broker)
async def test_a_real_broker_reports_the_age_of_dead_letters(admin, /):
    assert (await admin.dead_letter_groups("g"))[0].messages == 0
    await admin.send(letter(b"1"))
    await admin.send(letter(b"2"))
    first, second = await read(admin)

    (group,) = await admin.dead_letter_groups()

    assert (group.group, group.messages) == ("g", 2)
    assert (group.oldest_ms, group.newest_ms) == (first.stored_ms, second.stored_ms)


# Reading


@staged(brokers=2)
async def test_dead_letters_of_all_brokers_come_oldest_first(stage):
    a, b = stage.cluster.add_topic(DEAD, queues=1)
    for number, queue in enumerate((b, a, a, b, a)):
        await stage.admin.send(letter(b"%d" % number), queue)
        stage.world.machine("server").clock.jump(1)

    assert bodies(await read(stage.admin)) == [b"0", b"1", b"2", b"3", b"4"]
    assert bodies(await read(stage.admin, start=1, count=2)) == [b"1", b"2"]
    assert await read(stage.admin, count=0) == []


@staged()
async def test_dead_letters_are_fetched_in_pages(stage):
    (queue,) = stage.cluster.add_topic(DEAD, queues=1)
    for number in range(70):
        await stage.admin.send(letter(b"%d" % number), queue)

    assert len(await read(stage.admin, count=40)) == 40
    assert len(stage.cluster.codes("PULL_MESSAGE")) == 2
    assert len(await read(stage.admin)) == 70


@staged()
async def test_dead_letters_are_filtered_by_time_and_topic(stage):
    (queue,) = stage.cluster.add_topic(DEAD, queues=1)
    clock = stage.world.machine("server").clock
    times = []
    for number in range(4):
        clock.jump(10)
        times.append(clock.wall_ms())
        await stage.admin.send(letter(b"%d" % number, topic=f"T{number % 2}"), queue)
    stored = [dead.stored_ms for dead in await read(stage.admin)]

    assert times[0] <= stored[0]
    assert bodies(await read(stage.admin, begin_ms=stored[1])) == [b"1", b"2", b"3"]
    assert bodies(await read(stage.admin, end_ms=stored[1])) == [b"0", b"1"]
    assert bodies(await read(stage.admin, begin_ms=stored[1], end_ms=stored[2])) == [b"1", b"2"]
    assert bodies(await read(stage.admin, topic="T1")) == [b"1", b"3"]
    assert bodies(await read(stage.admin, topic="T1", start=1)) == [b"3"]


@staged()
async def test_dead_letters_that_arrive_during_a_read_are_left_for_the_next_read(stage):
    await buried(stage, letter(b"0"))
    read_bodies = []

    async for dead in stage.admin.dead_letters("g"):
        read_bodies.append(dead.body)
        await stage.admin.send(letter(b"again"))

    assert read_bodies == [b"0"]


@staged()
async def test_a_group_without_a_dead_letter_topic_has_no_dead_letters(stage):
    stage.cluster.add_topic("Transfers")

    assert await read(stage.admin) == []
    with pytest.raises(NotFound, match="no dead letters"):
        await stage.admin.dead_letter("g", "A1")


@staged()
async def test_unreadable_dead_letters_raise_an_error_with_the_permit_command(stage):
    stage.cluster.add_topic(DEAD, queues=1, perm=int(Perm.WRITE))
    tell_time(stage, 7)
    await stage.admin.send(letter())

    with pytest.raises(NoPermission) as refused:
        await read(stage.admin)

    assert f"txmq topic permit '{DEAD}' rw --broker broker-a" in str(refused.value)
    (group,) = await stage.admin.dead_letter_groups()
    assert (group.messages, group.closed_at) == (1, ("broker-a",))


@run_by(with_broker)
async def test_a_real_broker_shows_dead_letters_of_a_write_only_topic(admin, /):
    await admin.create_topic(DEAD, queues=1, perm=int(Perm.WRITE))
    await admin.send(letter())

    assert bodies(await read(admin)) == [b"x"]
    (group,) = await admin.dead_letter_groups()
    assert (group.messages, group.closed_at) == (1, ())


@run_by(with_broker)
async def test_a_dead_letter_is_found_by_each_of_its_ids(admin, /):
    await admin.create_topic("Transfers", queues=1)
    first = await admin.send(Message(topic="Transfers", body=b"x"))
    dead = await admin.send(letter(UNIQ_KEY=first.id, ORIGIN_MESSAGE_ID=first.offset_id))
    gone = await admin.send(letter(b"y"))

    for name in (first.id, dead.offset_id, first.offset_id):
        assert (await admin.dead_letter("g", name)).offset_id == dead.offset_id
    # Its first place no longer holds a message.
    assert (await admin.dead_letter("g", "0A" * 16)).offset_id == gone.offset_id
    for name in ("nobody", "0B" * 16, dead.offset_id[:-2] + "01"):
        with pytest.raises(NotFound, match="no dead letter"):
            await admin.dead_letter("g", name)


@run_by(with_broker)
async def test_the_id_of_a_message_that_died_twice_finds_the_newer_dead_letter(admin, /):
    await admin.send(letter(b"1", UNIQ_KEY="A1"))
    again = await admin.send(letter(b"2", UNIQ_KEY="A1"))

    assert (await admin.dead_letter("g", "A1")).offset_id == again.offset_id


@staged()
async def test_an_offset_id_of_a_foreign_address_is_never_looked_up_there(stage):
    stage.cluster.add_topic(DEAD, queues=1)

    with pytest.raises(NotFound):
        await stage.admin.dead_letter("g", "0A000001" + "00002710" + "0" * 16)

    assert stage.cluster.codes("VIEW_MESSAGE_BY_ID") == []


# Resending


@run_by(with_broker)
async def test_a_resent_copy_goes_only_to_its_group_and_carries_the_reason(admin, /):
    await admin.send(letter(b"pay", keys=("t-17", "u"), UNIQ_KEY="A1", colour="red"))
    (dead,) = await read(admin)

    result = await admin.resend_dead_letter("g", dead, **WHY)

    assert result.queue.topic == RETRY
    assert result.id == "A1"
    copy = await admin.view(result.offset_id)
    assert (copy.topic, copy.body, copy.tags, copy.id) == (RETRY, b"pay", "pay", "A1")
    assert (copy.attempts, copy.born_ms) == (0, dead.born_ms)
    assert (copy.key, copy.keys[-1]) == ("t-17", "u")
    named = copy.properties
    assert (named["RETRY_TOPIC"], named["colour"]) == ("Transfers", "red")
    assert named["ORIGIN_MESSAGE_ID"] == "0A" * 16
    assert (named[RESENT_BY], named[RESENT_REASON]) == ("ann", "the account is open again")
    assert named[RESENT_FROM] == dead.offset_id
    assert int(named[RESENT_AT]) >= dead.stored_ms
    assert len(await read(admin)) == 1


@run_by(with_broker)
async def test_a_dead_letter_is_resent_twice_only_with_force(admin, /):
    await admin.send(letter())
    (dead,) = await read(admin)
    assert await admin.resent_copy("g", dead) is None
    first = await admin.resend_dead_letter("g", dead, **WHY)

    with pytest.raises(UsageError, match="already, by ann: the account"):
        await admin.resend_dead_letter("g", dead, **WHY)
    second = await admin.resend_dead_letter("g", dead, force=True, **WHY)

    assert first.offset + 1 == second.offset
    assert (await admin.resent_copy("g", dead)).offset_id == first.offset_id


@run_by(with_broker)
async def test_a_resent_copy_that_died_again_is_a_new_dead_letter(admin, /):
    await admin.send(letter(keys=("k",)))
    (dead,) = await read(admin)
    result = await admin.resend_dead_letter("g", dead, **WHY)
    copy = await admin.view(result.offset_id)
    died = letter(keys=copy.keys, UNIQ_KEY=copy.id, **copy.properties)
    await admin.send(died)
    again = (await read(admin))[-1]

    assert await admin.resent_copy("g", again) is None
    result = await admin.resend_dead_letter("g", again, **WHY)

    assert (await admin.view(result.offset_id)).keys == ("k", f"resent-{again.offset_id}")


@run_by(with_broker)
async def test_a_consumer_receives_a_resent_copy_under_its_original_topic(admin, /):
    await admin.create_topic("Transfers", queues=1)
    consumer = PushConsumer(
        "g", ";".join(admin._session.names), ConsumerSettings(start=StartFrom.FIRST)
    )
    came = asyncio.get_running_loop().create_future()

    @consumer.on("Transfers", tags="pay")
    async def take(message):
        came.set_result(message)

    async with consumer, asyncio.timeout(30):
        await admin.send(letter(b"pay", keys=("t-17",), UNIQ_KEY="A1"))
        (dead,) = await read(admin)
        await admin.resend_dead_letter("g", dead, **WHY)
        got = await came

    assert (got.topic, got.id, got.key, got.body) == ("Transfers", "A1", "t-17", b"pay")


@staged()
async def test_a_resent_copy_drops_properties_of_earlier_deliveries(stage):
    worn = dict.fromkeys(
        ("DELAY", "REAL_TOPIC", "REAL_QID", "WAIT", "TRAN_MSG", "RECONSUME_TIME", "CLUSTER"), "1"
    )
    dead = await buried(stage, letter(**worn))
    assert worn.items() <= dead.properties.items()

    await stage.admin.resend_dead_letter("g", dead, **WHY)

    (stored,) = stage.cluster.brokers[0].queues[RETRY, 0]
    assert not worn.keys() & stored.property_map().keys()
    *_, fields = [
        fields for _, code, fields in stage.cluster.asked if code == RequestCode.SEND_MESSAGE_V2
    ]
    # Older RocketMQ fails if the last of these is missing.
    assert (fields["j"], fields["l"]) == ("0", "16")


@staged()
async def test_the_copy_of_a_dead_letter_without_keys_has_its_id_as_key(stage):
    dead = await buried(stage, letter(UNIQ_KEY="A1"))

    assert copy_of(dead, RETRY, "r", "o", 1).keys == ("A1", f"resent-{dead.offset_id}")
    assert dead.key == "A1"


@staged(brokers=2)
async def test_a_resent_copy_goes_to_the_broker_that_has_the_dead_letter(stage):
    _, b = stage.cluster.add_topic(DEAD, queues=1)
    stage.cluster.add_topic(RETRY, queues=1)
    await stage.admin.send(letter(), b)
    (dead,) = await read(stage.admin)

    assert (await stage.admin.resend_dead_letter("g", dead, **WHY)).queue == Queue(
        RETRY, "broker-b", 0
    )

    # It goes to another broker if that one does not know the group's retry topic.
    del stage.cluster.brokers[1].topics[RETRY]
    stage.session.forget(RETRY)
    result = await stage.admin.resend_dead_letter("g", dead, force=True, **WHY)
    assert result.queue.broker == "broker-a"


@staged()
async def test_a_resent_copy_that_lands_in_the_dead_letter_topic_raises_an_error(stage):
    dead = await buried(stage)
    broker = stage.cluster.brokers[0]

    def divert(request):
        head = request.read(headers.SendMessageV2)
        stored = broker.store(DEAD, 0, head, request.body, head.properties, head.flag)
        return command.answer(request, 0, headers.SendAnswer(stored.offset_id, 0, 1))

    stage.cluster.replies[RequestCode.SEND_MESSAGE_V2] = divert

    with pytest.raises(IllegalOperation, match="have queues locked"):
        await stage.admin.resend_dead_letter("g", dead, **WHY)
    assert await stage.admin.resent_copy("g", dead) is None


@staged()
async def test_a_resend_succeeds_although_messages_cannot_be_viewed(stage):
    dead = await buried(stage)
    stage.cluster.replies[RequestCode.VIEW_MESSAGE_BY_ID] = refuse(1)

    assert (await stage.admin.resend_dead_letter("g", dead, **WHY)).queue.topic == RETRY


@staged()
async def test_an_invalid_resend_is_refused_before_anything_is_sent(stage):
    stage.cluster.add_topic("%DLQ%h", queues=1)
    good = await buried(stage, retries=False)
    nameless = await buried(stage, letter(topic=""), retries=False)
    resend = stage.admin.resend_dead_letter

    with pytest.raises(TopicNotFound, match="start one of its consumers"):
        await resend("g", good, **WHY)
    stage.cluster.add_topic(RETRY, queues=1, perm=int(Perm.READ))
    with pytest.raises(NoPermission, match="may not be written"):
        await resend("g", good, **WHY)
    stage.cluster.add_topic(RETRY, queues=1)
    stage.session.forget(RETRY)
    with pytest.raises(UsageError, match="is not a dead letter of group h"):
        await resend("h", good, **WHY)
    with pytest.raises(UsageError, match="which topic it was for"):
        await resend("g", nameless, **WHY)
    for missing in ({"reason": " "}, {"operator": ""}):
        with pytest.raises(UsageError, match="say who"):
            await resend("g", good, **(WHY | missing))
    with pytest.raises(LocalProtocolError):
        await resend("g", good, reason="half \ud800", operator="ann")
    with pytest.raises(LimitExceeded):
        await resend("g", good, reason="x" * 40_000, operator="ann")

    assert RETRY not in [topic for topic, _ in stage.cluster.brokers[0].queues]


@staged()
async def test_a_resend_that_the_broker_refuses_raises_its_error(stage):
    dead = await buried(stage)
    stage.cluster.replies[RequestCode.SEND_MESSAGE_V2] = refuse(2)
    client = stage.world.machine("client")

    with pytest.raises(BrokerBusy):
        await stage.admin.resend_dead_letter("g", dead, **WHY)
    stage.cluster.listeners[0].close()
    with pytest.raises(ConnectFailed):
        async with Session(
            stage.cluster.names, client.network, client.clock, client.entropy
        ) as another:
            await Admin(another).resend_dead_letter("g", dead, force=True, **WHY)
