import asyncio

import pytest

from tests.unit.client.client_stage import QUEUE, staged
from txmq.client import PullOutcome
from txmq.client.admin.messages import HOLD_GRACE_S
from txmq.errors import (
    BrokerBusy,
    ConnectFailed,
    Effect,
    FlushTimeout,
    IllegalOperation,
    LimitExceeded,
    LocalProtocolError,
    NoPermission,
    RemoteProtocolError,
    RequestNotSupported,
    RequestTimeout,
    TopicNotFound,
    UsageError,
)
from txmq.message import Message, Queue
from txmq.protocol import command
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.headers import PullAnswer, RecallAnswer, SendAnswer
from txmq.protocol.recall import RecallHandle, encode

ROUTE = "GET_ROUTEINFO_BY_TOPIC"
SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE


def message(body=b"hello", **more):
    return Message(topic="T", body=body, **more)


def refuse(code):
    return lambda request: command.answer(request, code, remark="because")


@staged(topic="T")
async def test_a_sent_message_can_be_pulled(stage):
    sent = message(tags="A", keys=("k1", "k2"), properties={"p": "q"}, flag=5)

    receipt = await stage.admin.send(sent)
    batch = await stage.admin.pull(receipt.queue, receipt.offset)

    (got,) = batch.messages
    assert (got.body, got.tags, got.keys) == (b"hello", "A", ("k1", "k2"))
    assert (got.properties, got.flag) == ({"p": "q"}, 5)
    assert (got.queue, got.offset) == (receipt.queue, receipt.offset)
    assert (got.id, got.offset_id) == (receipt.id, receipt.offset_id)
    assert (batch.outcome, batch.found, batch.next_offset) == (PullOutcome.FOUND, True, 1)


@staged(topic="T")
async def test_a_send_has_the_header_fields_of_stock_producers(stage):
    receipt = await stage.admin.send(message(), QUEUE)

    ((_, _, fields),) = [request for request in stage.cluster.asked if request[1] == SEND]
    born = int(fields.pop("g"))
    assert abs(born - stage.world.machine("client").clock.wall_ms()) < 1000
    assert fields == {
        "a": "CLIENT_INNER_PRODUCER", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "h": "0", "i": f"UNIQ_KEY\x01{receipt.id}\x02", "j": "0", "k": "false", "m": "false",
        "n": "broker-a",
    }  # fmt: skip


@staged(brokers=2)
async def test_sends_rotate_through_the_queues(stage):
    queues = stage.cluster.add_topic("T", queues=2)

    receipts = [await stage.admin.send(message()) for _ in range(8)]

    assert sorted(receipt.queue for receipt in receipts[:4]) == queues
    assert [receipt.queue for receipt in receipts[4:]] == [
        receipt.queue for receipt in receipts[:4]
    ]


@staged(brokers=2)
async def test_sends_to_a_chosen_queue_stay_there(stage):
    queue = stage.cluster.add_topic("T")[3]

    receipts = [await stage.admin.send(message(), queue) for _ in range(3)]

    assert [(receipt.queue, receipt.offset) for receipt in receipts] == [
        (queue, n) for n in range(3)
    ]


@staged()
async def test_sending_to_a_queue_of_another_topic_is_refused(stage):
    with pytest.raises(UsageError):
        await stage.admin.send(message(), Queue("U", "broker-a", 0))


@staged(topic="T")
async def test_the_queue_of_a_result_is_the_one_that_the_broker_reports(stage):
    """A topic that is created by its first message may have fewer queues than were asked for."""
    answer = {"msgId": "00", "queueId": "0", "queueOffset": "9"}
    stage.cluster.replies[SEND] = lambda request: command.answer(request, 0, answer)

    receipt = await stage.admin.send(message(), Queue("T", "broker-a", 1))

    assert receipt.queue == Queue("T", "broker-a", 0)


@staged()
async def test_a_first_message_creates_its_topic_if_the_template_topic_allows_it(stage):
    stage.cluster.add_topic("TBW102", queues=8, perm=7)

    receipt = await stage.admin.send(message())

    assert receipt.queue.topic == "T"
    assert (await stage.admin.pull(receipt.queue, 0)).messages[0].id == receipt.id


@staged()
async def test_an_unknown_topic_is_refused_without_a_template_topic(stage):
    with pytest.raises(TopicNotFound):
        await stage.admin.send(message())


@staged()
async def test_a_send_to_a_read_only_topic_is_refused(stage):
    stage.cluster.add_topic("T", perm=4)

    with pytest.raises(NoPermission):
        await stage.admin.send(message())


@pytest.mark.parametrize(
    ("code", "leaf", "effect"), [(2, BrokerBusy, Effect.NONE), (10, FlushTimeout, Effect.APPLIED)]
)
@staged(topic="T")
async def test_a_refusal_says_whether_the_message_is_stored(stage, code, leaf, effect):
    stage.cluster.replies[SEND] = refuse(code)
    with pytest.raises(leaf, match="because") as caught:
        await stage.admin.send(message())
    assert caught.value.effect is effect


@staged(topic="T")
async def test_a_send_without_an_answer_is_not_repeated(stage):
    stage.cluster.replies[SEND] = lambda request: None

    with pytest.raises(RequestTimeout):
        await stage.admin.send(message())

    assert len(stage.cluster.codes("SEND_MESSAGE_V2")) == 1


@staged(topic="T")
async def test_the_route_is_fetched_again_after_a_topic_not_found_refusal(stage):
    await stage.admin.send(message(), QUEUE)
    stage.cluster.replies[SEND] = refuse(17)
    with pytest.raises(TopicNotFound):
        await stage.admin.send(message(), QUEUE)
    del stage.cluster.replies[SEND]

    await stage.admin.send(message(), QUEUE)

    assert len(stage.cluster.codes(ROUTE)) == 2


@staged(topic="T")
async def test_the_route_is_fetched_again_after_a_failed_connection(stage):
    await stage.session.route("T")
    stage.cluster.listeners[0].close()

    for _ in range(2):
        with pytest.raises(ConnectFailed) as caught:
            await stage.admin.send(message(), QUEUE)
        assert caught.value.effect is Effect.NONE

    assert len(stage.cluster.codes(ROUTE)) == 2


# Batches


@staged(topic="T")
async def test_a_batch_is_stored_together(stage):
    await stage.admin.send(message(), QUEUE)
    large = b"x" * 9000

    results = await stage.admin.send_batch([message(b"1"), message(large, tags="B")], QUEUE)

    batch = await stage.admin.pull(QUEUE, results[0].offset)
    assert [(stored.queue, stored.offset) for stored in results] == [(QUEUE, 1), (QUEUE, 2)]
    assert [stored.body for stored in batch.messages] == [b"1", large]
    assert [stored.id for stored in batch.messages] == [stored.id for stored in results]
    assert [stored.offset_id for stored in batch.messages] == [
        stored.offset_id for stored in results
    ]
    assert batch.messages[1].tags == "B"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [message(), Message(topic="U", body=b"x")],
        [Message(topic="%RETRY%g", body=b"x")],
        [message(), message(properties={"DELAY": "3"})],
    ],
)
@staged()
async def test_an_invalid_batch_is_refused_without_a_request(stage, messages):
    with pytest.raises(LocalProtocolError):
        await stage.admin.send_batch(messages)
    assert stage.cluster.asked == []


@staged()
async def test_a_batch_larger_than_the_largest_message_is_refused(stage):
    with pytest.raises(LimitExceeded):
        await stage.admin.send_batch([message(b"x" * (1 << 20))] * 4)


# Pulls


@staged(topic="T")
async def test_a_pull_returns_no_more_than_the_requested_count(stage):
    for n in range(5):
        await stage.admin.send(message(b"%d" % n), QUEUE)

    batch = await stage.admin.pull(QUEUE, 1, 3)

    assert [pulled.body for pulled in batch.messages] == [b"1", b"2", b"3"]
    assert (batch.next_offset, batch.min_offset, batch.max_offset) == (4, 0, 5)


@staged(topic="T")
async def test_a_pull_without_messages_returns_the_next_offset(stage):
    empty = await stage.admin.pull(QUEUE, 0)
    moved = await stage.admin.pull(QUEUE, 50)

    assert (empty.outcome, empty.found, empty.messages) == (PullOutcome.EMPTY, False, ())
    assert (moved.outcome, moved.next_offset) == (PullOutcome.MOVED, 0)


@staged(topic="T")
async def test_a_pull_where_no_message_matched_continues_behind_them(stage):
    bounds = PullAnswer(0, 7, 0, 9)
    stage.cluster.replies[PULL] = lambda request: command.answer(request, 20, bounds)

    batch = await stage.admin.pull(QUEUE, 3)

    assert (batch.outcome, batch.next_offset) == (PullOutcome.NONE_MATCHED, 7)


@staged(topic="T")
async def test_tags_are_compared_by_text_where_the_broker_compared_hashes(stage):
    for tag in ("Aa", "BB", "C"):  # The first two have one hash in Java.
        await stage.admin.send(message(tags=tag), QUEUE)

    batch = await stage.admin.pull(QUEUE, 0, tags="Aa || C")

    assert [pulled.tags for pulled in batch.messages] == ["Aa", "C"]
    assert batch.next_offset == 3


@staged(topic="T")
async def test_a_pull_needs_no_heartbeat_and_commits_nothing(stage):
    await stage.admin.pull(QUEUE, 4, 5, "g", hold=1.5, tags="A")

    ((_, _, fields),) = [request for request in stage.cluster.asked if request[1] == PULL]
    assert int(fields.pop("sysFlag")) == PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
    assert fields == {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "4",
        "maxMsgNums": "5", "commitOffset": "0", "suspendTimeoutMillis": "1500",
        "subVersion": "0", "subscription": "A", "expressionType": "TAG",
    }  # fmt: skip


@staged(topic="T")
async def test_a_pull_without_a_hold_does_not_ask_for_one(stage):
    await stage.admin.pull(QUEUE, 0)

    ((_, _, fields),) = [request for request in stage.cluster.asked if request[1] == PULL]
    assert int(fields["sysFlag"]) == PullFlag.SUBSCRIPTION


@staged(topic="T")
async def test_a_held_pull_times_out_after_its_hold_and_a_grace_period(stage):
    stage.cluster.replies[PULL] = lambda request: None
    before = stage.world.now()

    with pytest.raises(RequestTimeout):
        await stage.admin.pull(QUEUE, 0, hold="20s")

    assert stage.world.now() - before == pytest.approx(20 + HOLD_GRACE_S, abs=0.1)


@staged(topic="T")
async def test_a_held_pull_does_not_delay_other_requests(stage):
    stage.cluster.replies[PULL] = lambda request: None
    held = asyncio.create_task(stage.admin.pull(QUEUE, 0, hold="20s"))
    await asyncio.sleep(1)

    receipt = await stage.admin.send(message(), QUEUE)

    assert receipt.offset == 0
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)


@staged(topic="T")
async def test_a_refused_pull_is_an_error(stage):
    stage.cluster.replies[PULL] = refuse(16)

    with pytest.raises(NoPermission, match="because"):
        await stage.admin.pull(QUEUE, 0)


@staged(topic="T")
async def test_a_malformed_record_in_a_pull_is_a_remote_protocol_error(stage):
    bounds = PullAnswer(0, 1, 0, 1)
    stage.cluster.replies[PULL] = lambda request: command.answer(request, 0, bounds, body=b"junk")

    with pytest.raises(RemoteProtocolError):
        await stage.admin.pull(QUEUE, 0)


@staged(topic="T")
async def test_a_pull_of_an_unknown_queue_is_refused(stage):
    with pytest.raises(TopicNotFound):
        await stage.admin.pull(Queue("T", "broker-z", 0), 0)


# Recalling


RECALL = RequestCode.RECALL_MESSAGE


def handle(topic="T", broker="broker-b"):
    return encode(RecallHandle(topic, broker, 1_735_689_600_001, "AC11"))


@staged(brokers=2, topic="T")
async def test_a_message_is_recalled_at_the_broker_that_holds_it(stage):
    stage.cluster.replies[RECALL] = lambda request: command.answer(request, 0, RecallAnswer("AC11"))

    assert await stage.admin.recall("T", handle(), group="g") == "AC11"

    ((who, _, fields),) = [asked for asked in stage.cluster.asked if asked[1] == RECALL]
    assert who == "broker-b"
    assert fields == {
        "topic": "T",
        "recallHandle": handle(),
        "producerGroup": "g",
        "bname": "broker-b",
    }


@staged()
async def test_a_message_of_a_topic_without_a_route_can_be_recalled(stage):
    stage.cluster.add_topic("TBW102")
    stage.cluster.replies[RECALL] = lambda request: command.answer(request, 0, RecallAnswer("AC11"))

    assert await stage.admin.recall("T", handle(broker="broker-a")) == "AC11"


@staged(topic="T")
async def test_the_result_of_a_delayed_send_has_a_recall_handle(stage):
    assert (await stage.admin.send(message())).recall_handle is None
    told = SendAnswer("00", 0, 7, recall_handle=handle())
    stage.cluster.replies[SEND] = lambda request: command.answer(request, 0, told)

    result = await stage.admin.send(message(deliver_after=60))

    assert result.recall_handle == handle()


@staged(topic="T")
async def test_an_invalid_recall_handle_is_refused_without_a_request(stage):
    with pytest.raises(IllegalOperation, match="'nonsense' is not a recall handle"):
        await stage.admin.recall("T", "nonsense")
    with pytest.raises(IllegalOperation, match="is of a message for U, not T"):
        await stage.admin.recall("T", handle("U"))
    assert stage.cluster.asked == []


@staged(topic="T")
async def test_a_failed_recall_raises_the_error_that_fits_its_cause(stage):
    here = handle(broker="broker-a")
    with pytest.raises(TopicNotFound, match="broker-b"):
        await stage.admin.recall("T", handle())
    with pytest.raises(RequestNotSupported):
        await stage.admin.recall("T", here)
    stage.cluster.replies[RECALL] = refuse(604)
    with pytest.raises(IllegalOperation, match="because"):
        await stage.admin.recall("T", here)
    stage.cluster.replies[RECALL] = lambda request: None
    with pytest.raises(RequestTimeout) as late:
        await stage.admin.recall("T", here)
    assert late.value.effect is Effect.MAYBE
