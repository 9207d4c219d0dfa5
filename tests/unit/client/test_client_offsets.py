import pytest

from tests.unit.client.client_stage import QUEUE, staged
from txmq.client.admin.offsets import TO_THE_END
from txmq.errors import TopicNotFound
from txmq.message import Message, Queue
from txmq.protocol.bodies import ConsumerConnections


async def fill(stage, queue, count):
    """Messages one second apart; returns the time at which the first was stored."""
    clock = stage.world.machine("server").clock
    first = None
    for _ in range(count):
        clock.jump(1)
        receipt = await stage.admin.send(Message(topic=queue.topic, body=b"x"), queue)
        stored = (await stage.admin.pull(queue, receipt.offset, 1)).messages[0].stored_ms
        first = first or stored
    return first


@staged(topic="T")
async def test_a_queue_has_a_min_and_a_max_offset(stage):
    assert await stage.admin.max_offset(QUEUE) == 0

    await fill(stage, QUEUE, 3)

    assert (await stage.admin.min_offset(QUEUE), await stage.admin.max_offset(QUEUE)) == (0, 3)


@staged(topic="T")
async def test_an_offset_is_found_by_time(stage):
    first_ms = await fill(stage, QUEUE, 3)

    assert await stage.admin.offset_by_time(QUEUE, first_ms) == 0
    assert await stage.admin.offset_by_time(QUEUE, first_ms + 1500) == 2
    assert await stage.admin.offset_by_time(QUEUE, first_ms + 9000) == 3


@staged()
async def test_a_group_that_never_committed_has_no_offset(stage):
    (queue, other) = stage.cluster.add_topic("T")
    assert await stage.admin.committed_offset("g", queue) is None

    await stage.admin.commit_offset("g", queue, 5)

    assert await stage.admin.committed_offset("g", queue) == 5
    assert await stage.admin.committed_offset("g", other) is None
    assert await stage.admin.committed_offset("h", queue) is None


@staged()
async def test_offsets_of_unknown_queues_are_refused(stage):
    with pytest.raises(TopicNotFound):
        await stage.admin.max_offset(Queue("T", "broker-a", 0))


@staged()
async def test_resetting_a_group_without_consumers_writes_its_offsets(stage):
    (queue, other) = stage.cluster.add_topic("T")
    first_ms = await fill(stage, queue, 3)
    await stage.admin.commit_offset("g", queue, 3)

    moved = await stage.admin.reset_offset("g", "T", first_ms + 500)

    assert moved == {queue: 1, other: 0}
    assert await stage.admin.committed_offset("g", queue) == 1


@pytest.mark.parametrize(
    ("committed", "force", "target"), [(None, True, 3), (1, False, 1)], ids=["forced", "not forced"]
)
@staged()
async def test_only_a_forced_reset_to_the_end_skips_messages(stage, committed, force, target):
    (queue, other) = stage.cluster.add_topic("T")
    await fill(stage, queue, 3)
    if committed is not None:
        await stage.admin.commit_offset("g", queue, committed)

    moved = await stage.admin.reset_offset("g", "T", TO_THE_END, force=force)

    assert moved == {queue: target, other: 0}


@staged(brokers=2)
async def test_brokers_reset_the_offsets_of_their_connected_consumers(stage):
    queues = stage.cluster.add_topic("T", queues=1)
    for queue in queues:
        await fill(stage, queue, 2)
    connections = ConsumerConnections([], "", "", "", {})
    stage.cluster.brokers[0].consumers["g"] = connections

    moved = await stage.admin.reset_offset("g", "T", TO_THE_END)

    assert moved == {queues[0]: 0, queues[1]: 2}
    assert stage.cluster.brokers[0].offsets == {}
    assert stage.cluster.codes("UPDATE_CONSUMER_OFFSET") == [("broker-b", "UPDATE_CONSUMER_OFFSET")]
