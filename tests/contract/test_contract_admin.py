"""Topics, groups, offsets and connections as tools see and change them."""

from msgspec.structs import replace

from tests.contract.contract_cluster import messages
from txmq.client.settings import StartFrom
from txmq.errors import ConsumerOffline, TopicNotFound


async def send(cluster, parts):
    async with cluster.producer() as producer:
        return [await producer.send(part) for part in parts]


async def test_topics_are_created_changed_listed_and_deleted(cluster):
    admin, topic = cluster.admin, await cluster.topic(queues=3)
    queues = await cluster.queues(topic)
    brokers = {entry.broker for entry in queues}
    assert topic in await admin.topics()
    assert len(queues) == 3 * len(brokers)
    assert [entry.queue for entry in await admin.topic_status(topic)] == queues

    route = await admin.create_topic(topic, 5, cluster=cluster.cluster)
    assert len(route.readable) == len(route.writable) == 5 * len(brokers)
    sent = 10 * len(brokers)
    await send(cluster, messages(topic, sent))

    async def counted():
        status = await admin.topic_status(topic)
        return sum(entry.max_offset for entry in status) == sent

    await cluster.until(counted, "the topic's status to show its messages")
    await admin.delete_topic(topic)
    await cluster.until_refused(TopicNotFound, lambda: admin.route(topic), "the topic to be gone")
    assert topic not in await admin.topics()


async def test_write_queues_can_be_reduced_without_read_queues(cluster):
    admin, topic = cluster.admin, await cluster.topic(queues=3)
    before = await admin.topic_config(topic)
    # RocketMQ 4.9.8 does not keep the flag for ordered topics, so it is not changed here.
    fewer = {broker: replace(config, write_queue_nums=1) for broker, config in before.items()}

    route = await admin.update_topic(topic, fewer)

    assert {
        (settings.read_queue_nums, settings.write_queue_nums) for settings in before.values()
    } == {(3, 3)}
    assert len(route.readable) == 3 * len(before)
    assert len(route.writable) == len(before)
    assert await admin.topic_config(topic) == fewer
    for broker in before:
        assert (await admin.topics_of_broker(broker))[topic] == fewer[broker]


async def test_groups_are_created_changed_listed_and_deleted(cluster):
    admin, group = cluster.admin, await cluster.group()
    assert (await admin.groups(cluster=cluster.cluster))[group].consume_enable

    await admin.create_group(group, retries=5, enabled=False, cluster=cluster.cluster)
    changed = (await admin.groups(cluster=cluster.cluster))[group]
    assert (changed.retry_max_times, changed.consume_enable) == (5, False)

    await admin.delete_group(group, cluster=cluster.cluster)
    assert group not in await admin.groups(cluster=cluster.cluster)


async def test_committed_offsets_progress_and_lag_can_be_read(cluster):
    queue, group = await cluster.queue(), await cluster.group()
    await send(cluster, messages(queue.topic, 10))

    async def dispatched():
        return await cluster.admin.max_offset(queue) == 10

    await cluster.until(dispatched, "the queue to show its messages")
    assert await cluster.admin.min_offset(queue) == 0
    await cluster.admin.commit_offset(group, queue, 5)
    assert await cluster.admin.committed_offset(group, queue) == 5
    progress = await cluster.admin.group_progress(group, queue.topic, cluster=cluster.cluster)
    assert [(line.queue, line.group_offset, line.lag) for line in progress] == [(queue, 5, 5)]
    assert group in await cluster.admin.topic_groups(queue.topic)
    behind = await cluster.admin.group_lag(group, queue.topic, cluster=cluster.cluster)
    assert behind.lag == 5
    assert 0 <= behind.oldest_ms < 600_000


async def test_group_members_are_listed_while_they_are_connected(cluster):
    admin, topic, group = cluster.admin, await cluster.topic(), await cluster.group()
    await cluster.until_refused(
        ConsumerOffline,
        lambda: admin.group_connections(group, cluster=cluster.cluster),
        "nobody to be connected",
    )
    async with cluster.listener(group, topic, "A || B") as listener:
        seen = await admin.group_connections(group, cluster=cluster.cluster)
        assert [member.id for member in seen.clients] == [listener.client.id]
        assert seen.subscriptions[topic] == "A || B"
        assert seen.message_model == "CLUSTERING"
        assert group in await admin.topic_groups(topic)
    await cluster.until_refused(
        ConsumerOffline,
        lambda: admin.group_connections(group, cluster=cluster.cluster),
        "the consumer to be gone",
    )


async def test_producers_are_listed_while_they_are_connected(cluster):
    topic = await cluster.topic()
    async with cluster.producer() as producer:
        await producer.send(messages(topic, 1)[0])

        async def seen():
            found = await cluster.admin.producer_connections(
                producer.group, cluster=cluster.cluster
            )
            return [connection.id for connection in found] == [cluster.client.id]

        await cluster.until(seen, "the producer to be seen")


async def test_a_group_reset_to_the_start_gets_all_messages_again(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    results = await send(cluster, messages(topic, 40))
    async with cluster.listener(group, topic, start=StartFrom.FIRST) as listener:
        await listener.until_given(results)
    await cluster.until_refused(
        ConsumerOffline,
        lambda: cluster.admin.group_connections(group, cluster=cluster.cluster),
        "the consumer to be gone",
    )

    plan = await cluster.admin.plan_reset(group, topic, 0)
    moved = await cluster.admin.reset_offset(group, topic, 0)

    assert {move.queue: move.after for move in plan} == moved
    assert sum((move.before or 0) - move.after for move in plan) == len(results)
    assert moved == dict.fromkeys(await cluster.queues(topic), 0)
    async with cluster.listener(group, topic, start=StartFrom.FIRST) as listener:
        await listener.until_given(results)


async def test_a_group_can_be_reset_while_it_consumes(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    results = await send(cluster, messages(topic, 40))
    async with cluster.listener(group, topic, start=StartFrom.FIRST) as listener:
        await listener.until_given(results)
        await cluster.until_committed(group, topic)
        listener.messages.clear()

        await cluster.admin.reset_offset(group, topic, 0)

        await listener.until_given(results)
