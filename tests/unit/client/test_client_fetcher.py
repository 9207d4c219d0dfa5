"""Pulls that make no progress, and what consumers do about them."""

import asyncio

from tests.unit.client.consumer_stage import GROUP, TOPIC, acting
from txmq.client.consume.fetcher import NOT_HELD_S
from txmq.protocol import bodies, command, headers
from txmq.protocol.codes import RequestCode
from txmq.protocol.record import pack
from txmq.remoting.listener import Listener

PULL = RequestCode.PULL_MESSAGE
FOUND, EMPTY, NONE_MATCHED, MOVED = 0, 19, 20, 21


def numbered(*span):
    return [b"%d" % number for number in range(*span)]


def pulls(stage):
    return [fields for fields in stage.asked(PULL) if fields["topic"] == TOPIC]


@acting()
async def test_a_queue_that_lost_its_end_is_not_committed_past_unhandled_messages(stage):
    go = asyncio.Event()

    async def wait(message):
        await go.wait()

    stage.put(*numbered(10))
    async with stage.reading(wait, concurrency=1):
        await stage.until(lambda: stage.seen)
        await asyncio.sleep(1)
        del stage.broker.queues[TOPIC, 0][6:]
        await asyncio.sleep(10)
        assert not stage.committed()
        go.set()
        await stage.until(lambda: set(stage.bodies()) >= set(numbered(6)))


@acting(empty_pull_s=NOT_HELD_S)
async def test_a_replica_that_is_behind_is_not_pulled_in_a_busy_loop(stage):
    def pull(request):
        offset = request.read(headers.PullMessage).queue_offset
        return command.answer(request, NONE_MATCHED, headers.PullAnswer(0, offset, 0, 0))

    stage.cluster.replies[PULL] = pull
    async with stage.reading():
        await asyncio.sleep(2)
        assert 20 < len(pulls(stage)) <= 41


@acting()
async def test_pulls_that_make_no_progress_are_ignored_and_repeated_slowly(stage):
    def pull(request):
        head = request.read(headers.PullMessage)
        found = b"".join(pack(record) for record in stage.broker.queues.get((head.topic, 0), []))
        bounds = headers.PullAnswer(0, head.queue_offset, 0, 1)
        return command.answer(request, FOUND, bounds, body=found)

    stage.put(b"0")
    stage.cluster.replies[PULL] = pull
    async with stage.reading() as consumer:
        await asyncio.sleep(60)
        assert not stage.seen
        assert len(pulls(stage)) < 40
        del stage.cluster.replies[PULL]
        await stage.until(lambda: stage.seen)
        assert consumer.queues


@acting()
async def test_an_offset_reset_moves_a_group_past_a_message_that_blocks_its_queue(stage):
    """As in RocketMQ 5: the answer to the next pull has the new offset, once."""
    moved = []

    def pull(request):
        if request.read(headers.PullMessage).topic == TOPIC and moved:
            stage.broker.offsets[GROUP, TOPIC, 0] = moved[0]
            bounds = headers.PullAnswer(0, moved.pop(), 0, 10)
            return command.answer(request, MOVED, bounds)
        return stage.broker.on_pull_message(request)

    async def fail(message):
        if message.body == b"0":
            raise ValueError

    stage.put(*numbered(10))
    stage.cluster.replies[PULL] = pull
    async with stage.reading(fail, is_orderly=True, rebalance_interval=1000.0):
        await stage.until(lambda: stage.seen)
        moved.append(8)
        await stage.until(lambda: stage.bodies()[-2:] == [b"8", b"9"])
    assert set(stage.bodies()) == {b"0", b"8", b"9"}
    assert stage.committed() == 10


@acting()
async def test_a_broker_that_moves_the_offset_at_each_pull_is_not_pulled_in_a_busy_loop(stage):
    def pull(request):
        offset = request.read(headers.PullMessage).queue_offset
        return command.answer(request, MOVED, headers.PullAnswer(0, 1 - offset, 0, 9))

    stage.cluster.replies[PULL] = pull
    async with stage.reading():
        await asyncio.sleep(10)
        assert 10 < len(pulls(stage)) <= 101


@acting()
async def test_pulls_return_to_the_master_when_a_replica_refuses(stage):
    def refuse(connection, request):
        return command.answer(request, 1 if request.code == PULL else 0)

    replica = Listener(stage.cluster.network, stage.cluster.clock, refuse, connections_max=10)
    await replica.open(stage.cluster.host, 0)
    addresses = {0: stage.broker.address, 1: "{}:{}".format(*replica.address)}

    def route(request):
        queues = [bodies.QueueRoute("broker-a", 1, 1, 6)]
        found = bodies.TopicRoute(queues, [bodies.BrokerRoute("broker-a", addresses, "c1")])
        return command.answer(request, body=found.write())

    def pull(request):
        head = request.read(headers.PullMessage)
        here = stage.broker.queues.get((head.topic, 0), [])[head.queue_offset :][:1]
        bounds = headers.PullAnswer(1, head.queue_offset + len(here), 0, 3)
        return command.answer(
            request, FOUND if here else EMPTY, bounds, body=b"".join(map(pack, here))
        )

    stage.cluster.replies |= {RequestCode.GET_ROUTEINFO_BY_TOPIC: route, PULL: pull}
    stage.put(*numbered(3))
    try:
        async with stage.reading():
            await stage.until(lambda: len(stage.seen) == 3)
    finally:
        replica.close()
