"""Create, list, watch and delete consumer groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from txmq.client import values
from txmq.client.admin.cluster import ClusterCalls
from txmq.client.names import check_name
from txmq.client.values import GroupConnections, QueueProgress
from txmq.errors import ConsumerOffline, InternalError, RemoteProtocolError
from txmq.limits import GROUP_CHARS_MAX
from txmq.message import Queue, QueueOffset
from txmq.protocol import bodies, fastjson
from txmq.protocol.bodies import (
    ConsumerConnections,
    ConsumeTimeSpan,
    ConsumeTimeSpans,
    GroupConfig,
    GroupConfigs,
    MessageQueue,
    OffsetPair,
    ProducerConnections,
    read_queue_map,
    read_with_queue_map,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import DeleteGroup, GroupHeader, NamedGroup, TopicAndGroup

__all__ = ["GroupCalls", "total_retries"]


class GroupCalls(ClusterCalls):
    """Requests about groups."""

    async def create_group(
        self,
        name: str,
        *,
        retries: int | None = None,
        enabled: bool | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a consumer group, or change the settings that are given.

        Args:
            name: The group.
            retries: Retries before a message becomes a dead letter; 16 for a new group.
            enabled: Whether the group may consume; a new group may.
            broker: The broker to create it on; by default, all of the cluster.
            cluster: The cluster, if there are several.

        Raises:
            LocalProtocolError: The group name is invalid.
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            TransportError: A broker did not answer; it may have created the group.
            BrokerRefused: A broker refuses. All others were asked as well: if some created the
                group, a note of the error names them, and its effect is MAYBE.
        """
        check_name("group", name, GROUP_CHARS_MAX)
        given = {"consume_enable": enabled, "retry_max_times": retries}
        changes = {field: value for field, value in given.items() if value is not None}

        async def put(_: str, address: str) -> None:
            known = (await self._groups_at(address)).get(name) or GroupConfig(name)
            body = msgspec.structs.replace(known, **changes).write()
            await self._session.request(
                address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body
            )

        await self._change_each(await self._masters(broker=broker, cluster=cluster), put)

    async def _groups_at(self, address: str) -> dict[str, GroupConfig]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        answer = await self._session.request(address, code)
        return GroupConfigs.read(answer.body).subscription_group_table

    async def delete_group(
        self, name: str, *, offsets: bool = True, cluster: str | None = None
    ) -> None:
        """Remove a consumer group, and by default its offsets.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError, BrokerRefused: As for :meth:`create_group`.
        """
        # The flag has two names: the older for RocketMQ 4, the newer for RocketMQ 5.
        header = DeleteGroup(name, remove_offset=offsets, clean_offset=offsets)
        await self._change_each(
            await self._masters(cluster=cluster),
            lambda _, address: self._session.request(
                address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header
            ),
        )

    async def groups(self, *, cluster: str | None = None) -> dict[str, GroupConfig]:
        """All consumer groups by name, with their settings at the first broker that has them.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found: dict[str, GroupConfig] = {}
        for address in (await self._masters(cluster=cluster)).values():
            for name, config in (await self._groups_at(address)).items():
                found.setdefault(name, config)
        return dict(sorted(found.items()))

    async def group_progress(
        self, name: str, topic: str | None = None, *, cluster: str | None = None
    ) -> list[QueueProgress]:
        """A group's progress in every queue for which it has an offset.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found: list[QueueProgress] = []
        for address in (await self._masters(cluster=cluster)).values():
            answer = await self._session.request(
                address, RequestCode.GET_CONSUME_STATS, GroupHeader(name, topic)
            )
            table = read_queue_map(answer.body, "offsetTable", OffsetPair)
            found += [
                QueueProgress(
                    Queue(wire_queue.topic, wire_queue.broker_name, wire_queue.queue_id),
                    QueueOffset(pair.broker_offset),
                    QueueOffset(pair.consumer_offset),
                    pair.last_timestamp,
                )
                for wire_queue, pair in table.items()
            ]
        return sorted(found, key=lambda progress: progress.queue)

    async def group_lag(
        self, name: str, topic: str | None = None, *, cluster: str | None = None
    ) -> values.GroupLag:
        """How far a group is behind, and how fast it consumes.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        lag, rate = 0, 0.0
        topics: set[str] = set()
        ages: list[int] = []
        retries: list[values.WaitingRetries | None] = []
        for address in (await self._masters(cluster=cluster)).values():
            answer = await self._session.request(
                address, RequestCode.GET_CONSUME_STATS, GroupHeader(name, topic)
            )
            table, stats = read_with_queue_map(answer.body, "offsetTable", OffsetPair)
            speed = stats.get("consumeTps")
            rate += float(speed) if isinstance(speed, int | float) else 0.0
            retries.append(_retries_in(stats))
            topics |= {queue.topic for queue in table}
            behind = {
                queue: pair.broker_offset - pair.consumer_offset
                for queue, pair in table.items()
                if pair.broker_offset > pair.consumer_offset
            }
            lag += sum(behind.values())
            for late in sorted({queue.topic for queue in behind}):
                ages += await self._unread_ages(address, name, late, behind)
        return values.GroupLag(
            name,
            tuple(sorted(topics)),
            lag,
            rate,
            max(ages, default=None),
            total_retries(retries),
        )

    async def _unread_ages(
        self, address: str, name: str, topic: str, behind: Container[MessageQueue]
    ) -> list[int]:
        """The ages of a group's next messages, in the queues of a topic where it is behind."""
        answer = await self._session.request(
            address, RequestCode.QUERY_CONSUME_TIME_SPAN, TopicAndGroup(topic, name)
        )
        spans = ConsumeTimeSpans.read(answer.body).consume_time_span_set
        return [_unread_age(span) for span in spans if span.message_queue in behind]

    async def group_connections(self, name: str, *, cluster: str | None = None) -> GroupConnections:
        """The consumers of a group that are connected to any broker.

        Raises:
            ConsumerOffline: The group has no connected consumer.
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses for another reason.
        """
        answers: list[ConsumerConnections] = []
        for address in (await self._masters(cluster=cluster)).values():
            try:
                answer = await self._session.request(
                    address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(name)
                )
            except ConsumerOffline:
                continue
            answers.append(ConsumerConnections.read(answer.body))
        if not answers:
            raise ConsumerOffline(f"no consumer of group {name} is connected")
        subscriptions = {
            topic: subscription.sub_string
            for answer in answers
            for topic, subscription in answer.subscription_table.items()
        }
        return GroupConnections(
            _clients(connection for answer in answers for connection in answer.connection_set),
            dict(sorted(subscriptions.items())),
            answers[0].message_model,
            answers[0].consume_type,
        )

    async def producer_connections(
        self, name: str, *, cluster: str | None = None
    ) -> tuple[values.ConnectedClient, ...]:
        """The producers of a group that are connected to any broker.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found: list[bodies.ClientConnection] = []
        for address in (await self._masters(cluster=cluster)).values():
            try:
                answer = await self._session.request(
                    address, RequestCode.GET_PRODUCER_CONNECTION_LIST, NamedGroup(name)
                )
            except InternalError:
                # RocketMQ has no better code for "no producer is connected".
                continue
            found += ProducerConnections.read(answer.body).connection_set
        return _clients(found)

    async def producers(
        self, *, cluster: str | None = None
    ) -> dict[str, tuple[values.ConnectedClient, ...]]:
        """The producers that are connected to any broker, by group.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            RequestNotSupported: A broker is older than RocketMQ 4.9.4.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found: dict[str, dict[str, values.ConnectedClient]] = {}
        for address in (await self._masters(cluster=cluster)).values():
            answer = await self._session.request(address, RequestCode.GET_ALL_PRODUCER_INFO)
            for group, producers in bodies.AllProducers.read(answer.body).data.items():
                for producer in producers:
                    seen = values.ConnectedClient(
                        producer.client_id,
                        producer.remote_ip,
                        producer.language,
                        producer.version,
                        producer.last_update_timestamp,
                    )
                    # A client has one connection to each broker; count it once.
                    found.setdefault(group, {}).setdefault(seen.id, seen)
        return {
            group: tuple(found[group][name] for name in sorted(found[group]))
            for group in sorted(found)
        }


def _retries_in(stats: Mapping[fastjson.Key, fastjson.Value]) -> values.WaitingRetries | None:
    """What a broker says of messages that wait for a retry."""
    if "retriesWaiting" not in stats:
        return None
    try:
        return values.WaitingRetries(
            msgspec.convert(stats["retriesWaiting"], dict[int, int], strict=False),
            msgspec.convert(stats.get("retriesMax"), int | None, strict=False),
        )
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"retriesWaiting: {error}") from error


def total_retries(
    counted: Sequence[values.WaitingRetries | None],
) -> values.WaitingRetries | None:
    """The waiting messages of several brokers; ``None`` if one does not say it."""
    total: Counter[int] = Counter()
    lasts: list[int] = []
    for retries in counted:
        if retries is None:
            return None
        total.update(retries.by_number)
        lasts += [] if retries.last is None else [retries.last]
    return values.WaitingRetries(dict(sorted(total.items())), max(lasts, default=None))


def _unread_age(span: ConsumeTimeSpan) -> int:
    # If the next message was deleted, RocketMQ measures from time -1; the first kept one is next.
    since_epoch_ms = span.delay_time - 1
    if 0 < span.min_time_stamp <= since_epoch_ms:
        return since_epoch_ms - span.min_time_stamp
    return span.delay_time


def _clients(found: Iterable[bodies.ClientConnection]) -> tuple[values.ConnectedClient, ...]:
    # A client has one connection to each broker; count it once.
    by_id: dict[str, values.ConnectedClient] = {}
    for connection in found:
        seen = values.ConnectedClient(
            connection.client_id, connection.client_addr, connection.language, connection.version
        )
        by_id.setdefault(connection.client_id, seen)
    return tuple(by_id[name] for name in sorted(by_id))
