"""What a producer does about answers, refusals, losses and time."""

import asyncio

import pytest

from tests.running import in_loop, run_by
from tests.unit.client.producer_stage import Stage, message, produced, refuse, silent, stored_as
from txmq.client.client import Client
from txmq.client.send.producer import Producer
from txmq.client.settings import ProducerSettings
from txmq.client.values import SendStatus
from txmq.errors import (
    BrokerBusy,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    Effect,
    FlushTimeout,
    IllegalOperation,
    LimitExceeded,
    LocalProtocolError,
    MessageIllegal,
    NoPermission,
    RemoteProtocolError,
    RequestTimeout,
    ServiceUnavailable,
    TopicNotFound,
    TxmqError,
    UnknownRefusal,
    UsageError,
)
from txmq.limits import MESSAGE_BODY_BYTES_MAX
from txmq.message import Queue
from txmq.protocol import command, headers, properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.recall import RecallHandle, decode, encode

ROUTE = "GET_ROUTEINFO_BY_TOPIC"


@produced()
async def test_a_send_returns_the_ids_and_the_offset_of_the_message(stage):
    result = await stage.producer.send(message(tags="A", keys=("k",), properties={"p": "q"}))

    batch = await stage.producer.client.admin.pull(result.queue, result.offset)
    (got,) = batch.messages
    assert result.status is SendStatus.OK
    assert (got.id, got.offset_id, got.offset) == (result.id, result.offset_id, result.offset)
    assert (got.tags, got.keys, got.properties) == ("A", ("k",), {"p": "q"})


@produced()
async def test_a_send_has_the_header_fields_of_stock_producers(stage):
    result = await stage.producer.send(message(), Queue("T", "broker-a", 1))

    ((fields),) = stage.fields
    fields.pop("g")
    assert fields == {
        "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "h": "0",
        "i": f"UNIQ_KEY\x01{result.id}\x02", "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip


@produced()
async def test_a_large_body_is_sent_compressed(stage):
    result = await stage.producer.send(message(b"x" * 5000))

    (got,) = (await stage.producer.client.admin.pull(result.queue, result.offset)).messages
    assert stage.fields[0]["f"] == "1"
    assert got.body == b"x" * 5000


@produced(brokers=2)
async def test_sends_rotate_through_the_queues(stage):
    results = [await stage.producer.send(message()) for _ in range(8)]

    assert len({result.queue for result in results[:4]}) == 4
    assert [result.queue for result in results[:4]] == [result.queue for result in results[4:]]


@produced(topic="")
async def test_a_first_message_creates_its_topic_with_the_configured_number_of_queues(stage):
    stage.cluster.add_topic("TBW102", queues=8, perm=7)

    result = await stage.producer.send(message())

    assert result.queue.topic == "T"
    assert stage.fields[0]["d"] == "4"


@produced(topic="")
async def test_an_unknown_topic_is_refused_at_once(stage):
    with pytest.raises(TopicNotFound):
        await stage.producer.send(message())

    assert stage.sends == ""


# Another attempt


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205])
@produced(brokers=2, queues=1)
async def test_a_refusal_specific_to_one_broker_is_retried_at_another(stage, code):
    stage.always(0, refuse(code))

    results = [await stage.producer.send(message()) for _ in range(2)]

    ids = [fields["i"] for fields in stage.fields]
    assert {result.queue.broker for result in results} == {"broker-b"}
    at = stage.sends.index("ab")
    assert ids[at] == ids[at + 1]


@pytest.mark.parametrize(("code", "leaf"), [(13, MessageIllegal), (999, UnknownRefusal)])
@produced(brokers=2)
async def test_a_refusal_that_every_broker_would_give_is_raised_at_once(stage, code, leaf):
    stage.everywhere(refuse(code))

    with pytest.raises(leaf, match="because"):
        await stage.producer.send(message())

    assert len(stage.sends) == 1


@produced(brokers=3, queues=1)
async def test_when_all_attempts_fail_the_last_error_reports_all_of_them(stage):
    stage.always(0, refuse(2))
    stage.always(1, refuse(1))
    stage.always(2, refuse(14))

    with pytest.raises(TxmqError, match="the last of 3 attempts") as caught:
        await stage.producer.send(message())

    problem, told = caught.value, []
    assert problem.effect is Effect.MAYBE  # Code 1 leaves it open.
    while problem is not None:
        told.append(type(problem))
        problem = problem.__cause__
    assert len(told) == 3
    assert all(left != right for left, right in zip(stage.sends, stage.sends[1:], strict=False))
    assert all(f"broker-{letter}: " in str(caught.value) for letter in stage.sends)


@produced(brokers=2, retries=1)
async def test_a_send_stops_after_the_configured_retries(stage):
    stage.everywhere(refuse(2))

    with pytest.raises(BrokerBusy) as caught:
        await stage.producer.send(message())

    assert sorted(stage.sends) == ["a", "b"]
    assert caught.value.effect is Effect.NONE


@produced()
async def test_a_send_is_retried_at_the_only_broker(stage):
    stage.told(0, refuse(2), refuse(2))

    assert (await stage.producer.send(message())).offset == 0
    assert stage.sends == "aaa"


@produced()
async def test_no_send_fails_while_a_broker_restarts_within_the_timeout(stage):
    async def later(number):
        await asyncio.sleep(number * 0.01)
        return await stage.producer.send(message(b"%d" % number))

    sends = [asyncio.create_task(later(number)) for number in range(300)]
    await asyncio.sleep(1)
    stage.stop(0)
    await asyncio.sleep(1.5)
    await stage.start(0)

    assert len(await asyncio.gather(*sends)) == 300
    assert len(set(sum(stage.bodies().values(), []))) == 300


@produced()
async def test_attempts_at_the_only_broker_back_off_with_jitter(stage):
    times = []

    def busy(request):
        times.append(stage.world.now())
        return refuse(2)(request)

    stage.always(0, busy)
    sends = []
    for _ in range(2):  # The second begins when the first has failed.
        with pytest.raises(BrokerBusy, match="broker-a: BrokerBusy 3 times"):
            await stage.producer.send(message())
        sends.append(times.copy())
        times.clear()

    gaps = [(second - first, third - second) for first, second, third in sends]
    assert all(0.15 <= first <= 0.26 and 0.3 <= second <= 0.51 for first, second in gaps)
    assert gaps[0] != pytest.approx(gaps[1], abs=0.001)


@produced(brokers=2, queues=1)
async def test_another_broker_is_tried_without_a_pause(stage):
    stage.always(0, refuse(2))
    began = stage.world.now()

    for _ in range(2):
        await stage.producer.send(message())

    assert "ab" in stage.sends
    assert stage.world.now() - began < 0.05


@produced(brokers=2)
async def test_a_send_to_a_chosen_queue_is_tried_once(stage):
    stage.always(0, refuse(2))

    with pytest.raises(BrokerBusy):
        await stage.producer.send(message(), Queue("T", "broker-a", 0))

    assert stage.sends == "a"


@pytest.mark.parametrize(
    "leave",
    [Stage.stop, lambda stage, at: stage.always(at, refuse(ServiceUnavailable.code))],
    ids=["is gone", "shuts down"],
)
@produced(brokers=2, queues=1)
async def test_sends_skip_a_broker_that_is_gone_or_shuts_down(stage, leave):
    await stage.producer.client.session.route("T")
    leave(stage, 0)

    results = [await stage.producer.send(message()) for _ in range(4)]

    assert {result.queue.broker for result in results} == {"broker-b"}


@produced(brokers=2, queues=1)
async def test_a_send_is_retried_at_another_broker_when_its_connection_breaks(stage):
    def hang_up(request):
        stage.world.network.cut("server", "client")

    stage.told(0, hang_up)
    stage.told(1, hang_up)

    await stage.producer.send(message())

    assert sorted(stage.sends[:2]) == ["a", "b"]
    assert len(stage.sends) == 3


@produced(brokers=1)
async def test_a_lost_attempt_leaves_the_effect_open_even_if_the_last_one_has_none(stage):
    def hang_up(request):
        stage.stop(0)
        stage.world.network.cut("server", "client")

    stage.always(0, hang_up)

    with pytest.raises(ConnectFailed) as caught:
        await stage.producer.send(message())

    assert caught.value.effect is Effect.MAYBE
    assert isinstance(caught.value.__cause__, ConnectionLost)
    assert stage.world.now() > 2.5  # A broker that restarts may return within the timeout.


@produced(brokers=2, timeout=2.0)
async def test_all_attempts_share_one_timeout(stage):
    stage.everywhere(silent)
    await stage.producer.client.session.route("T")
    began = stage.world.now()

    with pytest.raises(RequestTimeout) as caught:
        await stage.producer.send(message())

    assert stage.world.now() - began == pytest.approx(2.0, abs=0.01)
    assert (len(stage.sends), caught.value.effect) == (3, Effect.MAYBE)


@pytest.mark.fault("N5")
@produced(brokers=2)
async def test_a_send_to_a_deleted_topic_raises_topic_not_found(stage):
    """A cached route is dropped when its brokers no longer know the topic."""
    await stage.producer.send(message())
    for broker in stage.cluster.brokers:
        del broker.topics["T"]

    with pytest.raises(TopicNotFound, match="3 attempts"):
        await stage.producer.send(message())
    sent = len(stage.sends)
    with pytest.raises(TopicNotFound, match="No topic route info"):
        await stage.producer.send(message())
    assert len(stage.sends) == sent <= 4


@pytest.mark.fault("N5")
@produced(brokers=2)
async def test_sends_go_on_after_the_name_server_forgets_the_topic(stage):
    """Sends go on while brokers accept them."""
    for n in range(5):
        await stage.producer.send(message(b"%d" % n))
        stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: command.answer(
            request, 17, remark="No topic route info"
        )
        await asyncio.sleep(100)
    assert len(stage.sends) == 5


# Brokers that are silent


@produced(brokers=2, timeout=3.0)
async def test_a_silent_broker_costs_one_attempts_share_of_the_timeout(stage):
    """It accepts the message and never answers, as a stopped process does."""
    stage.always(0, silent)
    await stage.producer.client.session.route("T")
    began = stage.world.now()

    results = [await stage.producer.send(message(b"%d" % n)) for n in range(4)]

    assert {result.queue.broker for result in results} == {"broker-b"}
    silences = stage.sends.count("a")
    assert silences
    assert stage.world.now() - began == pytest.approx(1.0 * silences, abs=0.05)


@produced(brokers=2, timeout=3.0)
async def test_an_unreachable_broker_costs_one_attempts_share_of_the_timeout(stage):
    """A connect gets no answer."""
    lost = stage.cluster.brokers[0].address
    await stage.producer.client.session.route("T")
    usual = stage.producer.client.session.connection

    async def connection(address):
        if address == lost:
            await asyncio.sleep(3.0)
            raise ConnectFailed("no answer within 3 s")
        return await usual(address)

    stage.producer.client.session.connection = connection
    began = stage.world.now()

    results = await asyncio.gather(*[stage.producer.send(message(b"%d" % n)) for n in range(4)])

    assert {result.queue.broker for result in results} == {"broker-b"}
    assert stage.world.now() - began == pytest.approx(1.0, abs=0.05)
    await asyncio.sleep(3)
    assert sorted(sum(stage.bodies().values(), [])) == [b"0", b"1", b"2", b"3"]


@produced(brokers=2)
async def test_a_port_that_closes_connections_at_once_fails_the_attempt(stage):
    """Like a proxy without a server behind it; the other broker gets the message."""
    closing = stage.cluster.brokers[0].address
    usual = stage.producer.client.session.connection
    opened = []

    async def connection(address):
        found = await usual(address)
        if address == closing:
            opened.append(found)
            found.abort()
            await asyncio.sleep(0.001)
        return found

    stage.producer.client.session.connection = connection

    results = await asyncio.gather(*[stage.producer.send(message()) for _ in range(4)])

    assert {result.queue.broker for result in results} == {"broker-b"}
    assert 1 <= len(opened) <= 4


@produced(in_flight_max=5)
async def test_a_send_cancelled_while_the_producer_closes_releases_its_room_once(stage):
    stage.always(0, silent)
    first = asyncio.create_task(stage.producer.send(message(b"12345")))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(stage.producer.send(message(b"123456789")))
    await asyncio.sleep(0.1)

    closing = asyncio.create_task(stage.producer.__aexit__(None, None, None))
    await asyncio.sleep(0)
    second.cancel()

    with pytest.raises(asyncio.CancelledError):
        await second
    with pytest.raises(TxmqError):
        await first
    await closing


@produced(brokers=1, queues=4, timeout=3.0)
async def test_the_only_broker_has_the_whole_timeout_to_answer(stage):
    stage.always(0, silent)
    began = stage.world.now()

    with pytest.raises(RequestTimeout):
        await stage.producer.send(message())

    assert stage.world.now() - began == pytest.approx(3.0, abs=0.05)
    assert stage.sends == "a"


@produced(timeout=0.5)
async def test_connecting_to_a_broker_counts_towards_the_timeout(stage):
    stage.world.network.partition("client", "server")
    began = stage.world.now()

    with pytest.raises(RequestTimeout) as caught:
        await stage.producer.send(message())

    assert stage.world.now() - began == pytest.approx(0.5, abs=0.01)
    assert (stage.sends, caught.value.effect) == ("", Effect.NONE)
    stage.world.network.heal()
    await asyncio.sleep(5)  # The failed connect has a timeout of its own.
    await stage.producer.send(message())


@produced()
async def test_the_route_is_fetched_again_after_a_topic_not_found_refusal(stage):
    await stage.producer.send(message())
    stage.told(0, refuse(17))

    await stage.producer.send(message())

    assert len(stage.cluster.codes(ROUTE)) == 2


@produced()
async def test_a_send_succeeds_at_once_when_permission_to_write_returns(stage):
    producer = stage.producer
    await producer.send(message())
    stage.cluster.add_topic("T", perm=4)
    stage.told(0, refuse(16))
    with pytest.raises(NoPermission):
        await producer.send(message())
    await producer.client.session.route("T")  # A consumer's refresh caches the refusing route.

    stage.cluster.add_topic("T", perm=6)

    await producer.send(message())
    stage.cluster.add_topic("T", perm=4)
    await producer.client.session.fresh_route("T")
    stage.cluster.add_topic("T", perm=6)
    await producer.send_ordered(message(), "key")


@produced()
async def test_a_queue_of_a_new_broker_is_found(stage):
    await stage.producer.send(message())
    stage.cluster.brokers[0].name = "broker-z"

    result = await stage.producer.send(message(), Queue("T", "broker-z", 0))

    assert result.queue == Queue("T", "broker-z", 0)


@produced()
async def test_a_queue_of_an_unknown_broker_is_refused(stage):
    with pytest.raises(TopicNotFound):
        await stage.producer.send(message(), Queue("T", "broker-z", 0))

    assert len(stage.cluster.codes(ROUTE)) == 1


@pytest.mark.parametrize(
    ("answer", "leaf", "effect"),
    [
        (lambda request: command.answer(request, 0, {"msgId": "00"}), RemoteProtocolError, "maybe"),
        (refuse(10), FlushTimeout, "applied"),
    ],
    ids=["unreadable", "not flushed, and without an offset"],
)
@produced()
async def test_the_error_for_an_answer_without_an_offset_tells_its_effect(
    stage, answer, leaf, effect
):
    stage.always(0, answer)

    with pytest.raises(leaf) as caught:
        await stage.producer.send(message())

    assert caught.value.effect is Effect(effect)


# Stored, but not flushed or replicated


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
@produced(brokers=2)
async def test_a_message_stored_but_not_flushed_or_replicated_is_a_result(stage, code, status):
    stage.everywhere(stored_as(code))

    result = await stage.producer.send(message())

    assert (result.status, result.offset, len(stage.sends)) == (status, 7, 1)


@produced(brokers=2, queues=1, retry_not_safe=True)
async def test_retry_not_safe_sends_an_unsafely_stored_message_elsewhere(stage):
    stage.always(0, stored_as(11))

    results = [await stage.producer.send(message()) for _ in range(2)]

    assert [result.status for result in results] == [SendStatus.OK] * 2
    assert "ab" in stage.sends


@produced(brokers=2, queues=1, retry_not_safe=True, retries=1)
async def test_retry_not_safe_returns_the_earlier_result_when_the_retry_fails(stage):
    stage.always(0, stored_as(11))
    stage.always(1, refuse(2))

    results = [await stage.producer.send(message()) for _ in range(2)]

    assert sorted(stage.sends) == ["a", "a", "b", "b"]
    assert {result.status for result in results} == {SendStatus.SLAVE_NOT_AVAILABLE}


# Slow brokers


@produced(brokers=2, queues=1, avoid_slow_brokers=True)
async def test_a_broker_that_failed_is_avoided_for_a_while(stage):
    stage.told(0, refuse(2))
    for _ in range(6):
        await stage.producer.send(message())
    first = stage.sends

    await asyncio.sleep(601)
    for _ in range(4):
        await stage.producer.send(message())

    assert first.count("a") == 1
    assert stage.sends[len(first) :].count("a") == 2


@produced(brokers=2, queues=1, avoid_slow_brokers=True)
async def test_a_slow_broker_is_avoided_for_a_while(stage):
    await stage.producer.send(message())
    await stage.producer.send(message())
    before = len(stage.sends)
    stage.world.network.slow("client", "server", 0.4)
    slow = await stage.producer.send(message())
    stage.world.network.slow("client", "server", 0.0)

    results = [await stage.producer.send(message()) for _ in range(4)]

    assert {result.queue.broker for result in results}.isdisjoint({slow.queue.broker})
    assert len(stage.sends) == before + 5


# Invalid messages


@pytest.mark.parametrize(
    ("wrong", "leaf"),
    [
        ({"body": b""}, LocalProtocolError),
        ({"body": "text"}, LocalProtocolError),
        ({"topic": "no topic"}, LocalProtocolError),
        ({"topic": "t" * 128}, LimitExceeded),
        ({"flag": 1 << 31}, LocalProtocolError),
        ({"properties": {"p": "\ud800"}}, LocalProtocolError),
        ({"delay_level": 1, "deliver_after": 2}, LocalProtocolError),
        ({"deliver_at_ms": 1, "properties": {"DELAY": "1"}}, LocalProtocolError),
        ({"delay_level": -1}, LocalProtocolError),
    ],
)
@pytest.mark.parametrize("linger", [0.0, 0.01])
def test_an_invalid_message_is_refused_without_a_request(wrong, leaf, linger):
    @produced(linger=linger)
    async def scenario(stage):
        for send in (stage.producer.send, stage.producer.send_oneway):
            with pytest.raises(leaf):
                await send(message(**wrong))
        with pytest.raises(leaf):
            stage.producer.send_nowait(message(**wrong))
        assert stage.cluster.asked == []

    scenario()


@produced(body_size_max=100)
async def test_the_error_for_a_large_body_has_its_size_and_the_limit(stage):
    await stage.producer.send(message(b"x" * 100))

    with pytest.raises(LimitExceeded) as caught:
        await stage.producer.send(message(b"x" * 101))

    assert (caught.value.value, caught.value.offered) == (100, 101)


@produced(body_size_max=2 * MESSAGE_BODY_BYTES_MAX)
async def test_the_body_size_limit_can_be_raised(stage):
    result = await stage.producer.send(message(bytes(MESSAGE_BODY_BYTES_MAX + 1)))

    assert result.offset == 0


@produced()
async def test_sending_to_a_queue_of_another_topic_is_refused(stage):
    with pytest.raises(UsageError):
        await stage.producer.send(message(), Queue("U", "broker-a", 0))
    with pytest.raises(UsageError):
        stage.producer.send_nowait(message(), Queue("U", "broker-a", 0))


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"delay_level": 3}, "DELAY\x013\x02"),
        ({"deliver_at_ms": 1_700_000_000_000}, "TIMER_DELIVER_MS\x011700000000000\x02"),
        ({"deliver_after": 60}, "TIMER_DELAY_SEC\x0160\x02"),
        ({"deliver_after": 2.0}, "TIMER_DELAY_SEC\x012\x02"),
        ({"deliver_after": 1.5}, "TIMER_DELAY_MS\x011500\x02"),
    ],
)
@pytest.mark.parametrize("linger", [0.0, 5.0])
def test_a_delay_is_sent_to_the_broker_and_its_refusal_is_raised(wish, told, linger):
    @produced(retries=0, linger=linger)
    async def scenario(stage):
        stage.always(0, refuse(16))
        with pytest.raises(NoPermission, match="because"):
            await stage.producer.send(message(**wish))
        assert told in stage.fields[0]["i"]
        assert stage.fields[0]["m"] == "false"

    scenario()


# Opening and closing


@produced()
async def test_a_producer_sends_heartbeats_to_brokers(stage):
    await stage.producer.send(message())
    await asyncio.sleep(0.1)

    beats = [body for _, code, body in stage.cluster.asked if code == 34]
    assert len(beats) == 1
    assert stage.producer.client.producer("g") is stage.producer


@produced()
async def test_two_producers_share_a_client(stage):
    client = stage.producer.client
    async with Producer("other", client) as other:
        await other.send(message())
        await stage.producer.send(message())

    assert client.is_open
    assert len(client.session.pool.opened()) == 2  # One is the name server's.
    with pytest.raises(UsageError, match="already"):
        async with Producer("g", client):
            pass


@produced()
async def test_closing_waits_for_sends_in_flight(stage):
    answers = [stage.producer.send_nowait(message(b"%d" % n)) for n in range(3)]

    await stage.producer.__aexit__(None, None, None)

    assert [answer.result().status for answer in answers] == [SendStatus.OK] * 3
    with pytest.raises(UsageError):
        await stage.producer.send(message())


@produced(timeout=1.0)
async def test_closing_does_not_wait_forever_for_sends_in_flight(stage):
    await stage.producer.send(message())
    stage.always(0, silent)
    answer = stage.producer.send_nowait(message())
    began = stage.world.now()

    await stage.producer.__aexit__(None, None, None)

    assert stage.world.now() - began < 2.5
    assert answer.exception().effect is Effect.MAYBE


@produced(timeout=1.0)
async def test_a_cancelled_close_fails_the_sends_in_flight(stage):
    await stage.producer.send(message())
    stage.always(0, silent)
    answer = stage.producer.send_nowait(message())
    leaving = asyncio.create_task(stage.producer.__aexit__(None, None, None))
    await asyncio.sleep(0.1)

    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving

    assert isinstance(answer.exception(), UsageError)
    assert answer.exception().effect is Effect.MAYBE


@run_by(in_loop)
async def test_a_producer_that_is_not_open_refuses_sends():
    producer = Producer("g", "127.0.0.1:9876")
    for sending in (producer.send(message()), producer.send_oneway(message())):
        with pytest.raises(UsageError):
            await sending
    with pytest.raises(UsageError):
        producer.send_nowait(message())


@pytest.mark.parametrize(
    ("group", "names", "leaf"),
    [
        ("", "h:1", LocalProtocolError),
        ("g g", "h:1", LocalProtocolError),
        ("g" * 256, "h:1", LimitExceeded),
        ("g", "nowhere", ConfigError),
    ],
)
def test_an_invalid_group_or_name_server_is_refused_when_a_producer_is_created(group, names, leaf):
    with pytest.raises(leaf):
        Producer(group, names)


@run_by(in_loop)
async def test_a_producer_cannot_open_on_a_client_that_is_not_open():
    client = Client("127.0.0.1:9876")
    with pytest.raises(UsageError):
        async with Producer("g", client, ProducerSettings()):
            pass


# Common mistakes


@pytest.mark.parametrize("linger", [0.0, 0.01])
def test_sending_anything_but_a_message_is_refused(linger):
    @produced(linger=linger)
    async def scenario(stage):
        with pytest.raises(LocalProtocolError, match=r"not a list; write send_batch\(messages\)"):
            await stage.producer.send([message()])
        with pytest.raises(LocalProtocolError, match="a Message is sent, not a bytes"):
            stage.producer.send_nowait(b"text")
        with pytest.raises(LocalProtocolError, match="a Message is sent, not a str"):
            await stage.producer.send_oneway("text")

    scenario()


# Delayed messages


@produced(brokers=2)
async def test_a_delayed_message_is_recalled_by_its_handle(stage):
    asked = []

    def later(request):
        sent = request.read(headers.SendMessageV2)
        unique = properties.find(sent.properties, properties.UNIQUE_KEY)
        handle = encode(RecallHandle(sent.topic, sent.broker_name, 1_735_689_600_001, unique))
        told = headers.SendAnswer("00", sent.queue_id, 7, recall_handle=handle)
        return command.answer(request, 0, told)

    def serve(request):
        asked.append(request.read(headers.RecallMessage))
        told = decode(asked[-1].recall_handle)
        return command.answer(request, 0, headers.RecallAnswer(told.message_id))

    stage.everywhere(later)
    stage.cluster.replies[RequestCode.RECALL_MESSAGE] = serve
    results = [await stage.producer.send(message(deliver_after=60)) for _ in range(4)]

    for result in results:
        assert await stage.producer.recall("T", result.recall_handle) == result.id

    assert [recalled.producer_group for recalled in asked] == ["g"] * 4
    where = [who for who, _ in stage.cluster.codes("RECALL_MESSAGE")]
    assert where == [recalled.queue.broker for recalled in results]
    assert set(where) == {"broker-a", "broker-b"}


@produced()
async def test_a_message_without_a_delay_cannot_be_recalled(stage):
    result = await stage.producer.send(message())

    assert result.recall_handle is None
    with pytest.raises(IllegalOperation, match="only a delayed one has"):
        await stage.producer.recall("T", result.recall_handle)


@produced()
async def test_a_closed_producer_refuses_recalls(stage):
    await stage.producer.__aexit__(None, None, None)

    with pytest.raises(UsageError, match="not open"):
        await stage.producer.recall("T", "handle")
