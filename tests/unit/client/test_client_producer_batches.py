"""Batches: the messages of one call, and messages gathered by lingering."""

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
    assert [stored.offset for stored in results] == list(range(5))
    assert [(stored.id, stored.offset_id) for stored in results] == [
        (stored.id, stored.offset_id) for stored in got
    ]
    assert len(stage.sends) == 1


@pytest.mark.parametrize(("wait", "said"), [([False] * 3, "false"), ([False, True, False], None)])
@produced(linger=0.01)
async def test_a_lingering_batch_waits_for_the_disk_if_one_of_its_messages_does(stage, wait, said):
    sent = [message(b"%d" % n, wait_stored=is_waiting) for n, is_waiting in enumerate(wait)]
    await asyncio.gather(*[stage.producer.send(one_message, QUEUE) for one_message in sent])
    assert properties.find(stage.fields[0].get("i", ""), "WAIT") == said


@produced(body_size_max=300)
async def test_a_batch_that_is_too_large_is_split(stage):
    counts = counted(stage)
    each = packed_size(sealed(message(bytes(10)), "0" * 32))

    results = await stage.producer.send_batch(many(11), QUEUE)

    most = 300 // each
    assert counts == [most, most, 11 - 2 * most]
    assert [result.offset for result in results] == list(range(11))
    assert stage.bodies()["a", 0] == [one_message.body for one_message in many(11)]


@produced(body_size_max=300)
async def test_a_batch_with_one_message_too_large_is_not_sent(stage):
    with pytest.raises(LimitExceeded) as caught:
        await stage.producer.send_batch([*many(5), message(bytes(250))])

    assert caught.value.value == 300
    assert caught.value.offered > 300
    assert stage.cluster.asked == []


@produced(body_size_max=300, retries=0)
async def test_a_failed_part_of_a_batch_reports_the_results_before_it(stage):
    counts = counted(stage)
    serve = stage.cluster.brokers[0].on_send_message_v2

    def once(request):
        return refuse(2)(request) if counts else serve(request)

    stage.always(0, once)

    with pytest.raises(BatchCutShort) as caught:
        await stage.producer.send_batch(many(11))

    problem = caught.value
    assert [result.offset for result in problem.results] == list(range(counts[0]))
    assert isinstance(problem.__cause__, BrokerBusy)
    assert problem.effect is Effect.MAYBE
    assert "of 11 messages" in str(problem)


@produced()
async def test_a_batch_whose_first_part_fails_raises_the_error_of_a_single_send(stage):
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
@produced()
async def test_an_invalid_batch_is_refused_with_its_reason(stage, messages, said, whose):
    producer = stage.producer
    sender = producer if whose == "producer" else producer.client.admin
    before = len(stage.cluster.asked)
    with pytest.raises(LocalProtocolError) as refused:
        await sender.send_batch(messages)
    assert str(refused.value).startswith(said)
    assert len(stage.cluster.asked) == before


@produced()
async def test_a_broker_may_answer_a_batch_with_its_first_offset_alone(stage):
    stage.always(
        0, lambda request: command.answer(request, 0, headers.SendAnswer("AB", 1, 5, "id"))
    )

    results = await stage.producer.send_batch(many(3))

    assert [(result.offset, result.offset_id) for result in results] == [(5, ""), (6, ""), (7, "")]
    assert {result.queue.number for result in results} == {1}


def test_parts_of_a_batch_are_split_by_their_packed_size():
    envelopes = [
        Envelope("T", str(n), 0, 0, bytes(n + 1), "p\x01" + "ü" * n + "\x02") for n in range(50)
    ]

    assert sum(packed_size(envelope) for envelope in envelopes) == len(bundled(envelopes).body)
    parts = split(envelopes, 500)
    assert [envelope for part in parts for envelope in part] == envelopes
    sizes = [len(bundled(part).body) for part in parts]
    assert max(sizes) <= 500
    following = [packed_size(part[0]) for part in parts[1:]]
    assert all(a + b > 500 for a, b in zip(sizes, following, strict=False))


def test_envelopes_that_fit_the_limit_are_one_part():
    envelopes = [Envelope("T", str(n), 0, 0, b"x", "") for n in range(3)]
    size = sum(packed_size(envelope) for envelope in envelopes)

    assert [len(part) for part in split(envelopes, size)] == [3]
    assert [len(part) for part in split(envelopes, size - 1)] == [2, 1]
    assert [len(part) for part in split(envelopes, 1)] == [1, 1, 1]


def test_a_part_stays_within_what_a_broker_stores_at_once():
    tiny = Envelope("T", "", 0, 0, b"x", "")

    parts = split([tiny] * (BATCH_MESSAGES_MAX + 5), 1 << 30)

    assert sum(len(part) for part in parts) == BATCH_MESSAGES_MAX + 5
    assert max(len(part) for part in parts) * (STORED_BYTES + 23) <= SPAN_BYTES_MAX


# Lingering


@produced(linger=0.01)
async def test_lingering_messages_are_sent_in_one_batch(stage):
    counts = counted(stage)

    results = await asyncio.gather(*[stage.producer.send(sent) for sent in many(20)])

    assert counts == [20]
    assert [sent.offset for sent in results] == list(range(20))
    assert len({sent.id for sent in results}) == 20


@produced(linger=0.01)
async def test_a_single_lingering_message_is_not_sent_as_a_batch(stage):
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
@produced(linger=10.0)
async def test_a_message_that_cannot_be_batched_does_not_linger(stage, later):
    counts = counted(stage)
    lingering = stage.producer.send_nowait(message(), QUEUE)
    await stage.producer.send(message(**later), QUEUE)

    assert counts == [0]
    assert not lingering.done()
    await lingering


@produced(linger=10.0, linger_messages=8)
async def test_linger_messages_sends_a_full_batch_at_once(stage):
    counts = counted(stage)

    await asyncio.gather(*[stage.producer.send(sent) for sent in many(16)])

    assert (counts, stage.world.now() < 1) == ([8, 8], True)


@produced(linger=10.0, linger_size=1000)
async def test_linger_size_sends_a_full_batch_at_once(stage):
    counts = counted(stage)
    answers = [stage.producer.send_nowait(sent) for sent in many(40, size=100)]
    await asyncio.sleep(1)

    assert counts == [6, 6, 6, 6, 6, 6]  # And the rest lingers.
    assert [sent.done() for sent in answers] == [True] * 36 + [False] * 4
    await stage.producer.__aexit__(None, None, None)
    assert all(sent.result() for sent in answers)


@produced(linger=10.0, linger_size=1000)
async def test_a_message_larger_than_linger_size_is_sent_alone_and_in_order(stage):
    counts = counted(stage)
    bodies = [b"1", b"2", b"x" * 2000, b"3"]

    answers = [stage.producer.send_nowait(message(sent), QUEUE) for sent in bodies]
    await asyncio.sleep(11)

    assert [sent.result().offset for sent in answers] == [0, 1, 2, 3]
    assert counts == [2, 0, 0]


@produced(brokers=2, linger=0.01, linger_messages=3)
async def test_batches_for_one_queue_are_sent_in_order_one_at_a_time(stage):
    answers = [stage.producer.send_nowait(message(b"%02d" % n), QUEUE) for n in range(20)]
    answers += [stage.producer.send_nowait(message(b"by turn %d" % n)) for n in range(20)]
    results = await asyncio.gather(*answers)

    stored = [sent for sent in stage.bodies()["a", 0] if not sent.startswith(b"by")]
    assert stored == [b"%02d" % n for n in range(20)]
    assert [sent.queue for sent in results[:20]] == [QUEUE] * 20
    assert len({sent.queue for sent in results[20:]}) > 1


@produced(linger=0.01)
async def test_lingering_messages_with_one_key_keep_their_order(stage):
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
async def test_a_refused_batch_is_retried_at_another_broker(stage):
    stage.always(0, refuse(14))

    for _ in range(2):
        results = await asyncio.gather(*[stage.producer.send(sent) for sent in many(5)])
        assert {sent.queue.broker for sent in results} == {"broker-b"}


@produced(linger=0.01, timeout=1.0)
async def test_a_lost_batch_fails_each_of_its_sends_with_an_error_of_its_own(stage):
    stage.always(0, silent)

    problems = await asyncio.gather(
        *[stage.producer.send(one_message) for one_message in many(5)], return_exceptions=True
    )

    assert {type(problem) for problem in problems} == {RequestTimeout}
    assert {problem.effect for problem in problems} == {Effect.MAYBE}
    assert len({id(problem) for problem in problems}) == 5


@produced(linger=0.01, linger_messages=2, timeout=1.0)
async def test_a_lost_batch_does_not_block_the_next_one_for_its_queue(stage):
    stage.told(0, silent)

    answers = [stage.producer.send_nowait(sent, QUEUE) for sent in many(4)]
    results = await asyncio.gather(*answers, return_exceptions=True)

    assert [type(sent) for sent in results[:2]] == [RequestTimeout] * 2
    assert [sent.offset for sent in results[2:]] == [0, 1]


@produced(linger=0.01)
async def test_a_message_cancelled_while_it_lingers_is_not_sent(stage):
    tasks = [asyncio.create_task(stage.producer.send(sent)) for sent in many(3)]
    await asyncio.sleep(0.001)
    tasks[1].cancel()

    await asyncio.gather(*tasks, return_exceptions=True)

    assert [sent[:4] for sent in next(iter(stage.bodies().values()))] == [b"0000", b"0002"]


@produced(linger=0.01)
async def test_a_lingering_batch_whose_sends_are_all_cancelled_is_dropped(stage):
    tasks = [asyncio.create_task(stage.producer.send(one_message)) for one_message in many(3)]
    await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.1)

    assert (stage.sends, len(stage.producer._sender.accumulator)) == ("", 0)


@produced(linger=0.01)
async def test_cancelling_one_send_of_a_batch_in_flight_does_not_affect_the_others(stage):
    await stage.producer.send(message())
    tasks = [asyncio.create_task(stage.producer.send(sent)) for sent in many(3)]
    await asyncio.sleep(0.0101)
    tasks[1].cancel()

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(results[1], asyncio.CancelledError)
    assert results[2].offset == results[0].offset + 2


@produced(linger=100.0)
async def test_closing_sends_lingering_messages(stage):
    answers = [stage.producer.send_nowait(sent) for sent in many(4)]

    await stage.producer.__aexit__(None, None, None)

    assert [sent.result().offset for sent in answers] == [0, 1, 2, 3]
    assert stage.world.now() < 1


@produced(linger=100.0, linger_messages=2, timeout=1.0)
async def test_closing_fails_all_lingering_sends_when_the_broker_is_silent(stage):
    stage.always(0, silent)
    answers = [stage.producer.send_nowait(one_message, QUEUE) for one_message in many(6)]

    await stage.producer.__aexit__(None, None, None)

    problems = [answer.exception() for answer in answers]
    assert all(problems)
    assert {problem.effect for problem in problems[:2]} == {Effect.MAYBE}
    assert {(type(problem), problem.effect) for problem in problems[2:]} <= {
        (UsageError, Effect.NONE), (RequestTimeout, Effect.MAYBE), (UsageError, Effect.MAYBE),
        (ConnectionLost, Effect.MAYBE),
    }  # fmt: skip


@produced(linger=0.01, in_flight_max=50)
async def test_lingering_messages_count_as_in_flight(stage):
    answers = [stage.producer.send_nowait(sent) for sent in many(5)]
    assert stage.producer.bytes_in_flight == 50
    with pytest.raises(LimitExceeded):
        stage.producer.send_nowait(message(b"x"))

    waiting = asyncio.create_task(stage.producer.send(message(b"later")))
    await asyncio.gather(*answers, waiting)

    assert stage.producer.bytes_in_flight == 0


@produced(linger=0.01)
async def test_messages_of_different_topics_are_sent_in_separate_batches(stage):
    stage.cluster.add_topic("U", 1)

    await asyncio.gather(
        *[stage.producer.send(Message(topic=topic, body=b"x")) for topic in "TUTUTU"]
    )

    assert len(stage.sends) == 2
