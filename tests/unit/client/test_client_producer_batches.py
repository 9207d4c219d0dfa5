"""Messages that travel together: those of one call, and those that waited for each other."""

import asyncio

import pytest

from tests.unit.client.producer_stage import message, produced, refuse, silent
from txmq.client.send_request import STORED_BYTES, Envelope, bundled, packed_size, sealed, split
from txmq.errors import (
    BatchCutShort,
    BrokerBusy,
    ConnectionLost,
    Effect,
    LimitExceeded,
    LocalProtocolError,
    RequestTimeout,
    UsageError,
)
from txmq.limits import BATCH_MESSAGES_MAX, SPAN_BYTES_MAX
from txmq.message import Message, Queue
from txmq.protocol import command, headers, properties
from txmq.protocol.batch import unpack

QUEUE = Queue("T", "broker-a", 0)


def many(count, size=10):
    return [message(b"%04d" % n + bytes(size - 4)) for n in range(count)]


def counted(stage):
    """Note how many messages each request holds."""
    broker = stage.cluster.brokers[0]
    usual, counts = type(broker).on_send_message_v2, []

    def serve(request):
        counts.append(len(unpack(request.body)) if request.code == 320 else 0)
        return usual(broker, request)

    broker.on_send_message_v2 = broker.on_send_batch_message = serve
    return counts


# In one call


@produced()
async def test_each_message_of_a_batch_has_its_own_result(stage):
    results = await stage.producer.send_batch(many(5), QUEUE)

    got = (await stage.producer.client.admin.pull(QUEUE, 0)).messages
    assert [each.offset for each in results] == list(range(5))
    assert [(each.id, each.offset_id) for each in results] == [
        (each.id, each.offset_id) for each in got
    ]
    assert len(stage.sends) == 1


@pytest.mark.parametrize(("wait", "said"), [([False] * 3, "false"), ([False, True, False], None)])
def test_messages_that_share_a_request_wait_for_the_disk_where_one_does(wait, said):
    @produced(linger=0.01)
    async def scenario(stage):
        sent = [message(b"%d" % n, wait_stored=each) for n, each in enumerate(wait)]
        await asyncio.gather(*[stage.producer.send(each, QUEUE) for each in sent])
        assert properties.find(stage.fields[0].get("i", ""), "WAIT") == said

    scenario()


@produced(body_size_max=300)
async def test_a_batch_is_split_where_it_would_be_too_large(stage):
    counts = counted(stage)
    each = packed_size(sealed(message(bytes(10)), "0" * 32))

    results = await stage.producer.send_batch(many(11), QUEUE)

    most = 300 // each
    assert counts == [most, most, 11 - 2 * most]
    assert [each.offset for each in results] == list(range(11))
    assert stage.bodies()["a", 0] == [each.body for each in many(11)]


@produced(body_size_max=300)
async def test_one_message_too_large_and_nothing_is_sent(stage):
    with pytest.raises(LimitExceeded) as caught:
        await stage.producer.send_batch([*many(5), message(bytes(250))])

    assert caught.value.value == 300
    assert caught.value.offered > 300
    assert stage.cluster.asked == []


@produced(body_size_max=300, retries=0)
async def test_a_part_that_fails_tells_what_came_before(stage):
    counts = counted(stage)
    serve = stage.cluster.brokers[0].on_send_message_v2

    def once(request):
        return refuse(2)(request) if counts else serve(request)

    stage.always(0, once)

    with pytest.raises(BatchCutShort) as caught:
        await stage.producer.send_batch(many(11))

    problem = caught.value
    assert [each.offset for each in problem.results] == list(range(counts[0]))
    assert isinstance(problem.__cause__, BrokerBusy)
    assert problem.effect is Effect.MAYBE
    assert "of 11 messages" in str(problem)


@produced()
async def test_the_first_part_fails_as_a_message_would(stage):
    stage.always(0, refuse(2))

    with pytest.raises(BrokerBusy, match="3 attempts"):
        await stage.producer.send_batch(many(3))

    assert stage.sends == "aaa"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "a batch without a message cannot be sent"),
        ([message(), message(topic="U")], "a batch has one topic, not T, U"),
        ([message(topic="%RETRY%g")], "message 0 of the batch is for the retry topic %RETRY%g"),
        ([message(), message(delay_level=1)], "message 1 of the batch is delayed"),
        ([message(), message(), message(deliver_at_ms=1)], "message 2 of the batch is delayed"),
        ([message(deliver_after=1)], "message 0 of the batch is delayed"),
        ([message(properties={"DELAY": "1"})], "message 0 of the batch is delayed"),
        ([message(properties={"TIMER_DELAY_MS": "1"})], "message 0 of the batch is delayed"),
        ([message(properties={"TRAN_MSG": "true"})], "message 0 of the batch is half of a transa"),
        (
            [message(), message(wait_stored=False)],
            "message 1 of the batch has another wait_stored than the first",
        ),
        (message(), "a batch is a list of messages, not a Message; write send_batch([message])"),
        (map(str, ()), "a batch is a list of messages, not a map"),
        (None, "a batch is a list of messages, not a NoneType"),
        ([message(), b"text"], "a batch is a list of messages only"),
        ("text", "a batch is a list of messages only"),
    ],
)
@pytest.mark.parametrize("whose", ["producer", "admin"])
def test_some_messages_cannot_travel_together(messages, said, whose):
    @produced()
    async def scenario(stage):
        producer = stage.producer
        sender = producer if whose == "producer" else producer.client.admin
        before = len(stage.cluster.asked)
        with pytest.raises(LocalProtocolError) as refused:
            await sender.send_batch(messages)
        assert str(refused.value).startswith(said)
        assert len(stage.cluster.asked) == before

    scenario()


@produced()
async def test_a_broker_that_names_one_place_for_all_is_understood(stage):
    stage.always(
        0, lambda request: command.answer(request, 0, headers.SendAnswer("AB", 1, 5, "id"))
    )

    results = await stage.producer.send_batch(many(3))

    assert [(each.offset, each.offset_id) for each in results] == [(5, ""), (6, ""), (7, "")]
    assert {each.queue.number for each in results} == {1}


def test_the_size_of_a_part_is_what_will_be_written():
    envelopes = [
        Envelope("T", str(n), 0, 0, bytes(n + 1), "p\x01" + "ü" * n + "\x02") for n in range(50)
    ]

    assert sum(packed_size(each) for each in envelopes) == len(bundled(envelopes).body)
    parts = split(envelopes, 500)
    assert [each for part in parts for each in part] == envelopes
    sizes = [len(bundled(part).body) for part in parts]
    assert max(sizes) <= 500
    following = [packed_size(part[0]) for part in parts[1:]]
    assert all(a + b > 500 for a, b in zip(sizes, following, strict=False))


def test_what_fits_is_one_part():
    envelopes = [Envelope("T", str(n), 0, 0, b"x", "") for n in range(3)]
    size = sum(packed_size(each) for each in envelopes)

    assert [len(part) for part in split(envelopes, size)] == [3]
    assert [len(part) for part in split(envelopes, size - 1)] == [2, 1]
    assert [len(part) for part in split(envelopes, 1)] == [1, 1, 1]


def test_a_part_fits_what_a_broker_stores_at_once_and_counts():
    tiny = Envelope("T", "", 0, 0, b"x", "")

    parts = split([tiny] * (BATCH_MESSAGES_MAX + 5), 1 << 30)

    assert sum(len(part) for part in parts) == BATCH_MESSAGES_MAX + 5
    assert max(len(part) for part in parts) * (STORED_BYTES + 23) <= SPAN_BYTES_MAX


# Lingering


@produced(linger=0.01)
async def test_messages_of_one_moment_travel_together(stage):
    counts = counted(stage)

    results = await asyncio.gather(*[stage.producer.send(each) for each in many(20)])

    assert counts == [20]
    assert [each.offset for each in results] == list(range(20))
    assert len({each.id for each in results}) == 20


@produced(linger=0.01)
async def test_a_message_without_company_goes_as_a_single_one(stage):
    await stage.producer.send(message(b"x" * 5000))

    ((fields),) = stage.fields
    assert (fields["m"], fields["f"]) == ("false", "1")
    assert stage.world.now() > 0.01


@pytest.mark.parametrize(
    "later",
    [
        {"delay_level": 3},
        {"deliver_at_ms": 1_735_689_600_000},
        {"deliver_after": 60},
        {"properties": {"TRAN_MSG": "true"}},
    ],
)
def test_a_message_that_travels_alone_waits_for_nobody(later):
    @produced(linger=10.0)
    async def scenario(stage):
        counts = counted(stage)
        lingering = stage.producer.send_nowait(message(), QUEUE)
        await stage.producer.send(message(**later), QUEUE)

        assert counts == [0]
        assert not lingering.done()
        await lingering

    scenario()


@produced(linger=10.0, linger_messages=8)
async def test_so_many_messages_are_enough(stage):
    counts = counted(stage)

    await asyncio.gather(*[stage.producer.send(each) for each in many(16)])

    assert (counts, stage.world.now() < 1) == ([8, 8], True)


@produced(linger=10.0, linger_size=1000)
async def test_so_many_bytes_are_enough(stage):
    counts = counted(stage)
    answers = [stage.producer.send_nowait(each) for each in many(40, size=100)]
    await asyncio.sleep(1)

    assert counts == [6, 6, 6, 6, 6, 6]  # And the rest lingers.
    assert [each.done() for each in answers] == [True] * 36 + [False] * 4
    await stage.producer.__aexit__(None, None, None)
    assert all(each.result() for each in answers)


@produced(linger=10.0, linger_size=1000)
async def test_a_large_message_keeps_its_place_and_goes_alone(stage):
    counts = counted(stage)
    bodies = [b"1", b"2", b"x" * 2000, b"3"]

    answers = [stage.producer.send_nowait(message(each), QUEUE) for each in bodies]
    await asyncio.sleep(11)

    assert [each.result().offset for each in answers] == [0, 1, 2, 3]
    assert counts == [2, 0, 0]


@produced(brokers=2, linger=0.01, linger_messages=3)
async def test_what_goes_to_one_queue_stays_in_order_one_batch_at_a_time(stage):
    answers = [stage.producer.send_nowait(message(b"%02d" % n), QUEUE) for n in range(20)]
    answers += [stage.producer.send_nowait(message(b"by turn %d" % n)) for n in range(20)]
    results = await asyncio.gather(*answers)

    stored = [each for each in stage.bodies()["a", 0] if not each.startswith(b"by")]
    assert stored == [b"%02d" % n for n in range(20)]
    assert [each.queue for each in results[:20]] == [QUEUE] * 20
    assert len({each.queue for each in results[20:]}) > 1


@produced(linger=0.01)
async def test_keys_keep_their_order(stage):
    answers = [
        asyncio.create_task(stage.producer.send_ordered(message(b"%d" % n), n % 2))
        for n in range(10)
    ]
    await asyncio.gather(*answers)

    assert stage.bodies() == {
        ("a", 0): [b"0", b"2", b"4", b"6", b"8"],
        ("a", 1): [b"1", b"3", b"5", b"7", b"9"],
    }


@produced(linger=0.01, brokers=2, queues=1)
async def test_a_batch_is_tried_again_elsewhere(stage):
    stage.always(0, refuse(14))

    for _ in range(2):
        results = await asyncio.gather(*[stage.producer.send(each) for each in many(5)])
        assert {each.queue.broker for each in results} == {"broker-b"}


@produced(linger=0.01, timeout=1.0)
async def test_the_loss_of_a_batch_reaches_everybody_who_waits(stage):
    stage.always(0, silent)

    problems = await asyncio.gather(
        *[stage.producer.send(each) for each in many(5)], return_exceptions=True
    )

    assert {type(each) for each in problems} == {RequestTimeout}
    assert {each.effect for each in problems} == {Effect.MAYBE}
    assert len({id(each) for each in problems}) == 5


@produced(linger=0.01, linger_messages=2, timeout=1.0)
async def test_after_a_batch_is_lost_the_next_for_its_queue_goes(stage):
    stage.told(0, silent)

    answers = [stage.producer.send_nowait(each, QUEUE) for each in many(4)]
    results = await asyncio.gather(*answers, return_exceptions=True)

    assert [type(each) for each in results[:2]] == [RequestTimeout] * 2
    assert [each.offset for each in results[2:]] == [0, 1]


@produced(linger=0.01)
async def test_whoever_is_cancelled_while_waiting_is_not_sent(stage):
    tasks = [asyncio.create_task(stage.producer.send(each)) for each in many(3)]
    await asyncio.sleep(0.001)
    tasks[1].cancel()

    await asyncio.gather(*tasks, return_exceptions=True)

    assert [each[:4] for each in next(iter(stage.bodies().values()))] == [b"0000", b"0002"]


@produced(linger=0.01)
async def test_a_lane_where_everybody_went_away_is_forgotten(stage):
    tasks = [asyncio.create_task(stage.producer.send(each)) for each in many(3)]
    await asyncio.sleep(0.001)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.1)

    assert (stage.sends, len(stage.producer._sender.accumulator)) == ("", 0)


@produced(linger=0.01)
async def test_a_cancelled_waiter_takes_nothing_from_the_others(stage):
    await stage.producer.send(message())
    tasks = [asyncio.create_task(stage.producer.send(each)) for each in many(3)]
    await asyncio.sleep(0.0101)
    tasks[1].cancel()

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(results[1], asyncio.CancelledError)
    assert results[2].offset == results[0].offset + 2


@produced(linger=100.0)
async def test_leaving_sends_what_lingers(stage):
    answers = [stage.producer.send_nowait(each) for each in many(4)]

    await stage.producer.__aexit__(None, None, None)

    assert [each.result().offset for each in answers] == [0, 1, 2, 3]
    assert stage.world.now() < 1


@produced(linger=100.0, linger_messages=2, timeout=1.0)
async def test_leaving_in_vain_tells_everybody(stage):
    stage.always(0, silent)
    answers = [stage.producer.send_nowait(each, QUEUE) for each in many(6)]

    await stage.producer.__aexit__(None, None, None)

    problems = [each.exception() for each in answers]
    assert all(problems)
    assert {each.effect for each in problems[:2]} == {Effect.MAYBE}
    assert {(type(each), each.effect) for each in problems[2:]} <= {
        (UsageError, Effect.NONE), (RequestTimeout, Effect.MAYBE), (UsageError, Effect.MAYBE),
        (ConnectionLost, Effect.MAYBE),
    }  # fmt: skip


@produced(linger=0.01, in_flight_max=50)
async def test_what_lingers_counts_as_on_its_way(stage):
    answers = [stage.producer.send_nowait(each) for each in many(5)]
    assert stage.producer.bytes_in_flight == 50
    with pytest.raises(LimitExceeded):
        stage.producer.send_nowait(message(b"x"))

    waiting = asyncio.create_task(stage.producer.send(message(b"later")))
    await asyncio.gather(*answers, waiting)

    assert stage.producer.bytes_in_flight == 0


@produced(linger=0.01)
async def test_topics_do_not_travel_together(stage):
    stage.cluster.add_topic("U", 1)

    await asyncio.gather(
        *[stage.producer.send(Message(topic=each, body=b"x")) for each in "TUTUTU"]
    )

    assert len(stage.sends) == 2
