"""Sends without waiting, limits on bytes in flight, and callers that are cancelled."""

import asyncio

import pytest

from tests.unit.client.producer_stage import message, produced, refuse, silent, stored_as
from txmq.client.routes import queue_of_key
from txmq.client.values import SendStatus
from txmq.errors import (
    BrokerBusy,
    ConnectFailed,
    ConnectionLost,
    Effect,
    LimitExceeded,
    NoPermission,
    RequestTimeout,
    TopicNotFound,
    UsageError,
)
from txmq.message import Queue
from txmq.protocol.java import string_hash

QUEUE = Queue("T", "broker-a", 0)

# Without waiting


@produced()
async def test_send_nowait_returns_before_the_broker_answers(stage):
    answers = [stage.producer.send_nowait(message(b"%d" % n), QUEUE) for n in range(20)]
    assert not any(sent.done() for sent in answers)

    results = await asyncio.gather(*answers)

    assert [sent.offset for sent in results] == list(range(20))
    assert stage.bodies() == {("a", 0): [b"%d" % n for n in range(20)]}
    assert len(stage.cluster.codes("GET_ROUTEINFO_BY_TOPIC")) == 1


@produced()
async def test_messages_sent_while_a_connection_opens_keep_their_order(stage):
    """A connection that has just opened must not let the last message overtake the others."""
    answers = [stage.producer.send_nowait(message(b"0"), QUEUE)]
    while stage.producer.client.session.pool.ready(stage.cluster.brokers[0].address) is None:
        answers.append(stage.producer.send_nowait(message(b"%d" % len(answers)), QUEUE))
        await asyncio.sleep(0.0001)
    answers.append(stage.producer.send_nowait(message(b"last"), QUEUE))

    await asyncio.gather(*answers)

    stored = stage.bodies()["a", 0]
    assert len(answers) > 3
    assert stored == [b"%d" % n for n in range(len(answers) - 1)] + [b"last"]


@pytest.mark.parametrize(
    "send",
    [lambda producer: producer.send_nowait(message()),
     lambda producer: producer.send_ordered(message(), 5)],
    ids=["without waiting", "in order"],
)  # fmt: skip
@produced(brokers=2)
async def test_a_send_without_waiting_or_in_order_is_tried_once(stage, send):
    stage.everywhere(refuse(2))

    with pytest.raises(BrokerBusy):
        await send(stage.producer)

    assert len(stage.sends) == 1
    assert "__SHARDINGKEY" not in stage.fields[0]["i"]


@produced(brokers=2, queues=1)
async def test_send_nowait_retries_a_lost_answer_at_the_same_broker(stage):
    def hang_up(request):
        stage.world.network.cut("server", "client")

    stage.told(0, hang_up, hang_up)
    stage.told(1, hang_up, hang_up)

    result = await stage.producer.send_nowait(message())

    assert stage.sends in ("aaa", "bbb")
    assert result.queue.broker == f"broker-{stage.sends[0]}"
    assert len({fields["i"] for fields in stage.fields}) == 1


@produced()
async def test_messages_for_a_queue_keep_their_order_while_its_broker_is_away(stage):
    await stage.producer.send(message(), Queue("T", "broker-a", 1))
    stage.stop(0)
    await asyncio.sleep(0.1)
    answers = [stage.producer.send_nowait(message(b"%d" % n), QUEUE) for n in range(9)]
    await asyncio.sleep(0.5)
    await stage.start(0)

    await asyncio.gather(*answers)

    assert stage.bodies()["a", 0] == [b"%d" % n for n in range(9)]


@produced(retries_nowait=1)
async def test_send_nowait_stops_after_the_configured_retries(stage):
    def hang_up(request):
        stage.world.network.cut("server", "client")

    stage.always(0, hang_up)

    with pytest.raises(ConnectionLost, match="2 attempts"):
        await stage.producer.send_nowait(message())

    assert stage.sends == "aa"


@produced(retry_not_safe=True, brokers=2)
async def test_send_nowait_does_not_retry_an_unsafely_stored_message(stage):
    stage.everywhere(stored_as(10))

    result = await stage.producer.send_nowait(message())

    assert (result.status, len(stage.sends)) == (SendStatus.FLUSH_DISK_TIMEOUT, 1)


@produced(timeout=1.5)
async def test_sends_that_time_out_together_each_get_an_error_of_their_own(stage):
    stage.always(0, silent)

    problems = await asyncio.gather(
        *[stage.producer.send_nowait(message()) for _ in range(5)], return_exceptions=True
    )

    assert {type(problem) for problem in problems} == {RequestTimeout}
    assert len({id(problem) for problem in problems}) == 5
    assert stage.world.now() == pytest.approx(1.5, abs=0.1)


@produced()
async def test_sends_that_wait_for_one_route_each_get_an_error_of_their_own(stage):
    answers = [stage.producer.send_nowait(message(topic="nowhere")) for _ in range(3)]

    problems = await asyncio.gather(*answers, return_exceptions=True)

    assert {type(problem) for problem in problems} == {TopicNotFound}
    assert len({id(problem) for problem in problems}) == 3


# One way


@produced()
async def test_a_one_way_send_is_stored_and_never_answered(stage):
    for n in range(3):
        assert await stage.producer.send_oneway(message(b"%d" % n), QUEUE) is None
    await asyncio.sleep(1)

    assert stage.bodies() == {("a", 0): [b"0", b"1", b"2"]}


@produced()
async def test_a_one_way_send_raises_when_it_cannot_connect(stage):
    await stage.producer.client.session.route("T")
    stage.stop(0)

    with pytest.raises(ConnectFailed) as caught:
        await stage.producer.send_oneway(message())

    assert caught.value.effect is Effect.NONE


@produced(timeout=0.5)
async def test_a_one_way_send_observes_the_timeout(stage):
    stage.world.network.partition("client", "server")

    with pytest.raises(RequestTimeout) as caught:
        await stage.producer.send_oneway(message())

    assert (caught.value.effect, stage.world.now()) == (Effect.NONE, pytest.approx(0.5))


@produced(timeout=60.0)
async def test_one_way_sends_wait_for_a_broker_that_does_not_read(stage):
    await stage.producer.send(message())
    stage.world.network.partition("client", "server")
    sent = 0

    async def sending():
        nonlocal sent
        for _ in range(12):
            await stage.producer.send_oneway(message(bytes(1 << 20) + b"%d" % sent, flag=1), QUEUE)
            sent += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(sending())
    await asyncio.sleep(5)
    before = sent
    stage.world.network.heal()
    await task

    assert before <= sent == 12


# In order


@produced(brokers=2, queues=3)
async def test_messages_with_one_key_go_to_one_queue(stage):
    queues = (await stage.producer.client.session.route("T")).writable
    results = [await stage.producer.send_ordered(message(), f"order-{n % 7}") for n in range(21)]

    for n, result in enumerate(results):
        assert result.queue == queues[abs(string_hash(f"order-{n % 7}")) % 6]
    (got,) = (
        await stage.producer.client.admin.pull(results[0].queue, results[0].offset, 1)
    ).messages
    assert got.properties["__SHARDINGKEY"] == "order-0"


@produced(queues=4)
async def test_a_function_may_select_the_queue(stage):
    def select(queues, sent, arg):
        assert sent.body == b"hello"
        return queues[arg % len(queues)]

    assert (await stage.producer.send_to(message(), select, 7)).queue.number == 3


@produced(queues=4)
async def test_a_function_that_selects_an_index_is_told_to_return_a_queue(stage):
    with pytest.raises(UsageError, match="the selector returned 3: return one of the queues"):
        await stage.producer.send_to(message(), lambda queues, sent, arg: 3, None)

    assert not stage.sends


@produced(topic="")
async def test_an_ordered_send_to_a_read_only_topic_is_refused(stage):
    stage.cluster.add_topic("T", perm=4)

    with pytest.raises(NoPermission):
        await stage.producer.send_ordered(message(), b"k")


@pytest.mark.parametrize(
    ("key", "number"),
    [(0, 0), (7, 2), (-1, 4), ("a", 97 % 5), ("polygenelubricants", 2**31 % 5), (b"123456789", 2)],
)
def test_keys_are_hashed_as_in_java(key, number):
    queues = [Queue("T", "b", n) for n in range(5)]

    assert queue_of_key(queues, key).number == number


# Bounds


@produced(in_flight_max=100)
async def test_sends_above_the_in_flight_limit_wait_in_line(stage):
    stage.always(0, silent)
    first = asyncio.create_task(stage.producer.send(message(bytes(80)), QUEUE))
    await asyncio.sleep(0)
    others = [
        asyncio.create_task(stage.producer.send(message(bytes(size)), QUEUE)) for size in (40, 10)
    ]
    await asyncio.sleep(0.5)

    assert stage.producer.bytes_in_flight == 80  # The small one would fit, but it came later.
    with pytest.raises(LimitExceeded) as caught:
        stage.producer.send_nowait(message(bytes(1)), QUEUE)
    assert caught.value.value == 100
    stage.told(0)
    with pytest.raises(RequestTimeout):
        await first
    await asyncio.gather(*others)


@produced(in_flight_max=100)
async def test_send_nowait_above_the_in_flight_limit_raises_with_both_sizes(stage):
    answer = stage.producer.send_nowait(message(bytes(90)))

    with pytest.raises(LimitExceeded) as caught:
        stage.producer.send_nowait(message(bytes(11)))

    assert (caught.value.value, caught.value.offered) == (100, 101)
    await answer


@produced(in_flight_max=10)
async def test_a_message_larger_than_the_in_flight_limit_is_sent_alone(stage):
    stage.always(0, silent)
    small = asyncio.create_task(stage.producer.send(message(bytes(1)), QUEUE))
    await asyncio.sleep(0)
    large = asyncio.create_task(stage.producer.send(message(bytes(11)), QUEUE))
    await asyncio.sleep(0.5)
    assert stage.producer.bytes_in_flight == 1

    stage.told(0)
    with pytest.raises(RequestTimeout):
        await small
    assert (await large).status is SendStatus.OK


@produced(in_flight_max=100, timeout=1.0)
async def test_a_send_waiting_in_line_fails_when_the_producer_closes(stage):
    await stage.producer.send(message())
    stage.always(0, silent)
    first = asyncio.create_task(stage.producer.send(message(bytes(100))))
    await asyncio.sleep(0)
    second = asyncio.create_task(stage.producer.send(message(bytes(100))))
    await asyncio.sleep(0)

    await stage.producer.__aexit__(None, None, None)

    problems = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(problems[1], UsageError)
    assert problems[1].effect is Effect.NONE


# Cancelled callers


@pytest.mark.parametrize("turns", range(60))
@produced(in_flight_max=100)
async def test_a_send_may_be_cancelled_at_any_moment(stage, turns):
    others = [stage.producer.send_nowait(message(bytes(60)))]
    task = asyncio.create_task(stage.producer.send(message(bytes(50))))
    for _ in range(turns):
        await asyncio.sleep(0.0002)
    task.cancel()
    await asyncio.gather(task, *others, return_exceptions=True)
    assert stage.producer.bytes_in_flight == 0
    stage.assert_nothing_is_left()
    await stage.producer.send(message())


@produced()
async def test_a_cancelled_future_does_not_affect_other_sends(stage):
    answers = [stage.producer.send_nowait(message()) for _ in range(3)]
    answers[1].cancel()

    await asyncio.gather(answers[0], answers[2])

    assert sum(len(stored) for stored in stage.bodies().values()) == 3


@produced(in_flight_max=10)
async def test_a_cancelled_send_in_line_lets_the_next_one_in(stage):
    stage.told(0, silent)
    first = asyncio.create_task(stage.producer.send(message(bytes(10)), QUEUE))
    await asyncio.sleep(0)
    second = asyncio.create_task(stage.producer.send(message(bytes(10))))
    third = asyncio.create_task(stage.producer.send(message(bytes(10))))
    await asyncio.sleep(1)

    second.cancel()
    first.cancel()

    assert (await third).offset == 0
    await asyncio.gather(first, second, return_exceptions=True)


@produced(in_flight_max=10)
async def test_a_send_cancelled_as_its_turn_comes_gives_its_room_back(stage):
    first = asyncio.create_task(stage.producer.send(message(bytes(10))))
    await asyncio.sleep(0)
    second = asyncio.create_task(stage.producer.send(message(bytes(10))))
    await asyncio.sleep(0)
    stage.producer._sender.pending.release(10)  # As an answer would, in the same turn.
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    stage.producer._sender.pending.take(10)

    await first
