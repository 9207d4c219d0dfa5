"""Create, list, watch and delete consumer groups, and reach their connected members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from txmq.client import values
from txmq.client.admin.cluster import queue_of
from txmq.client.admin.topics import TopicCalls
from txmq.client.names import check_name
from txmq.client.values import (
    ConsumerReport,
    GroupConnections,
    HandledMessage,
    HeldQueueReport,
    QueueProgress,
    TopicTraffic,
)
from txmq.errors import ConsumerOffline, InternalError, RemoteProtocolError
from txmq.limits import GROUP_CHARS_MAX
from txmq.message import QueueOffset, ReceivedMessage
from txmq.protocol import bodies, fastjson
from txmq.protocol.bodies import (
    ConsumedDirectly,
    ConsumerConnections,
    ConsumerState,
    ConsumeTimeSpan,
    ConsumeTimeSpans,
    CounterView,
    CounterWindow,
    GroupConfig,
    GroupConfigs,
    HeldQueue,
    MessageQueue,
    OffsetPair,
    ProducerConnections,
    read_queue_map,
    read_with_queue_map,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    ConsumeDirectly,
    DeleteGroup,
    GroupHeader,
    NamedGroup,
    StatsQuery,
    TopicAndGroup,
)
from txmq.protocol.record import split_offset_id

__all__ = ["GroupCalls"]

CALL_S: Final = 15.0
"""A broker waits 10 s for the consumer to answer."""

_LIST_GROUPS: Final = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
_CONSUMED: Final = frozenset(("CR_SUCCESS", "CR_COMMIT"))
_PARTS: Final = ("properties", "subscriptionSet")
_NOTHING: Final = CounterView(CounterWindow(), CounterWindow(), CounterWindow())


class GroupCalls(TopicCalls):
    """Requests about consumer groups, and about connected clients."""

    async def create_group(
        self,
        name: str,
        *,
        retries: int | None = None,
        enabled: bool | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a consumer group, or change the given settings of an existing one.

        Args:
            name: The group.
            retries: Retries before a message becomes a dead letter; 16 for a new group.
            enabled: Whether the group may consume; true for a new group.
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
        answer = await self._session.request(address, _LIST_GROUPS)
        return GroupConfigs.read(answer.body).subscription_group_table

    async def delete_group(
        self, name: str, *, offsets: bool = True, cluster: str | None = None
    ) -> None:
        """Delete a consumer group, and by default its offsets.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError, BrokerRefused: As for :meth:`create_group`.
        """
        # The flag has two names: the older for RocketMQ 4, the newer for RocketMQ 5.
        header = DeleteGroup(name, remove_offset=offsets, clean_offset=offsets)
        masters = await self._masters(cluster=cluster)
        await self._send_each(masters, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def groups(self, *, cluster: str | None = None) -> dict[str, GroupConfig]:
        """All consumer groups by name, with their settings at the first broker that has them.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found: dict[str, GroupConfig] = {}
        for _, answer in await self._ask_masters(cluster, _LIST_GROUPS):
            found = GroupConfigs.read(answer.body).subscription_group_table | found
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
        header = GroupHeader(name, topic)
        for _, answer in await self._ask_masters(cluster, RequestCode.GET_CONSUME_STATS, header):
            table = read_queue_map(answer.body, "offsetTable", OffsetPair)
            found += [
                QueueProgress(
                    queue_of(wire_queue),
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
        code, header = RequestCode.GET_CONSUME_STATS, GroupHeader(name, topic)
        for address, answer in await self._ask_masters(cluster, code, header):
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
            _total_retries(retries),
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
        code, header = RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(name)
        answers = await self._ask_masters(cluster, code, header, unless=ConsumerOffline)
        found = [ConsumerConnections.read(answer.body) for _, answer in answers]
        if not found:
            raise ConsumerOffline(f"no consumer of group {name} is connected")
        subscriptions = {
            topic: subscription.sub_string
            for known in found
            for topic, subscription in known.subscription_table.items()
        }
        return GroupConnections(
            _clients(connection for known in found for connection in known.connection_set),
            dict(sorted(subscriptions.items())),
            found[0].message_model,
            found[0].consume_type,
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
        code, header = RequestCode.GET_PRODUCER_CONNECTION_LIST, NamedGroup(name)
        # RocketMQ has no better code for "no producer is connected".
        answers = await self._ask_masters(cluster, code, header, unless=InternalError)
        return _clients(
            connection
            for _, answer in answers
            for connection in ProducerConnections.read(answer.body).connection_set
        )

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
        for _, answer in await self._ask_masters(cluster, RequestCode.GET_ALL_PRODUCER_INFO):
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

    async def consumer_report(
        self, group: str, client: str, *, cluster: str | None = None
    ) -> ConsumerReport:
        """The subscriptions and queues that a connected consumer reports.

        Args:
            group: The group.
            client: The id of the client.
            cluster: The cluster, if there are several.

        Raises:
            ConsumerOffline: No broker has a connection of this client.
            ConsumeTimeout: The client does not answer the broker.
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError: A broker does not answer.
            BrokerRefused: The broker refuses for another reason.
            RemoteProtocolError: The report cannot be read.
        """
        for address in (await self._masters(cluster=cluster)).values():
            if client in await self._consumers_at(address, group):
                break
        else:
            raise ConsumerOffline(f"no consumer {client} of group {group} is connected")
        header = ConsumeDirectly(group, client, jstack_enable=False)
        answer = await self._session.request(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_s=CALL_S
        )
        held, whole = read_with_queue_map(answer.body, "mqTable", HeldQueue)
        try:
            known = {name: whole[name] for name in _PARTS if whole.get(name)}
            state = msgspec.convert(known, ConsumerState, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"the report of consumer {client}: {error}") from error
        started = state.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
        return ConsumerReport(
            client=client,
            is_orderly=state.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true",
            started_ms=int(started) if started.isdecimal() else None,
            subscriptions={found.topic: found.sub_string for found in state.subscription_set},
            queues=tuple(
                HeldQueueReport(
                    queue_of(queue),
                    QueueOffset(entry.commit_offset),
                    entry.cached_msg_count,
                )
                for queue, entry in sorted(held.items())
            ),
        )

    async def consume_directly(
        self, group: str, message: ReceivedMessage, client: str | None = None
    ) -> HandledMessage:
        """Make one connected consumer handle a stored message now, whatever its offsets.

        The group's offsets do not change, and a failure does not cause another delivery.

        Args:
            group: The group.
            message: The message.
            client: The id of the client; by default, one of the connected clients.

        Raises:
            ConsumerOffline: No such consumer is connected to the broker that has the message.
            ConsumeTimeout: The consumer did not answer in time; it may still handle the message.
            TransportError: The broker does not answer; the consumer may have handled the message.
            BrokerRefused: The broker refuses for another reason.
        """
        address, _ = split_offset_id(message.offset_id)
        online = await self._consumers_at(address, group)
        if not online or (client is not None and client not in online):
            wanted = f"no consumer {client}" if client is not None else "no consumer"
            raise ConsumerOffline(f"{wanted} of group {group} is connected to the broker {address}")
        chosen = client if client is not None else online[0]
        header = ConsumeDirectly(group, chosen, message.offset_id)
        answer = await self._session.request(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_s=CALL_S
        )
        done = ConsumedDirectly.read(answer.body)
        return HandledMessage(
            client=chosen,
            is_consumed=done.consume_result in _CONSUMED,
            result=done.consume_result,
            remark=done.remark,
            spent_ms=done.spent_time_mills,
        )

    async def _consumers_at(self, address: str, group: str) -> list[str]:
        """The ids of a group's consumers that are connected to one broker."""
        try:
            answer = await self._session.request(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(group)
            )
        except ConsumerOffline:
            return []
        found = ConsumerConnections.read(answer.body).connection_set
        return sorted({connection.client_id for connection in found})

    async def traffic(self, topic: str) -> list[TopicTraffic]:
        """The rates at which a topic receives messages and its groups fetch them.

        Returns:
            One row for each group; a row without a group if no group consumes the topic.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        route = await self._session.fresh_route(topic)
        addresses = [route.master(broker) for broker in route.brokers]
        stored = [await self._counter(at, "TOPIC_PUT_NUMS", topic) for at in addresses]
        clusters = await self.clusters_of(topic)
        rows: list[TopicTraffic] = []
        for group in await self.topic_groups(topic) or [""]:
            fetched = [
                await self._counter(at, "GROUP_GET_NUMS", f"{topic}@{group}")
                for at in addresses
                if group
            ]
            lags = [
                await self.group_lag(group, topic, cluster=cluster) for cluster in clusters if group
            ]
            rows.append(
                TopicTraffic(
                    topic=topic,
                    group=group,
                    lag=sum(found.lag for found in lags),
                    retries=_total_retries([found.retries for found in lags]),
                    in_per_second=sum(found.stats_minute.tps for found in stored),
                    out_per_second=sum(found.stats_minute.tps for found in fetched),
                    in_of_day=sum(map(_of_day, stored)),
                    out_of_day=sum(map(_of_day, fetched)),
                )
            )
        return rows

    async def _counter(self, address: str, name: str, key: str) -> CounterView:
        try:
            answer = await self._session.request(
                address, RequestCode.VIEW_BROKER_STATS_DATA, StatsQuery(name, key)
            )
        except InternalError:
            return _NOTHING  # A broker creates a counter when it counts the first event.
        return CounterView.read(answer.body)


def _retries_in(stats: Mapping[fastjson.Key, fastjson.Value]) -> values.WaitingRetries | None:
    """The messages that wait for a retry at one broker; ``None`` if it does not count them."""
    if "retriesWaiting" not in stats:
        return None
    try:
        return values.WaitingRetries(
            msgspec.convert(stats["retriesWaiting"], dict[int, int], strict=False),
            msgspec.convert(stats.get("retriesMax"), int | None, strict=False),
        )
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"retriesWaiting: {error}") from error


def _total_retries(
    counted: Sequence[values.WaitingRetries | None],
) -> values.WaitingRetries | None:
    """The waiting messages of several brokers; ``None`` if one of them does not count them."""
    total: Counter[int] = Counter()
    lasts: list[int] = []
    for retries in counted:
        if retries is None:
            return None
        total.update(retries.by_number)
        lasts += [] if retries.last is None else [retries.last]
    return values.WaitingRetries(dict(sorted(total.items())), max(lasts, default=None))


def _unread_age(span: ConsumeTimeSpan) -> int:
    # If the next message has been deleted, RocketMQ measures from time -1; use the oldest message
    # that still exists instead.
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


def _of_day(found: CounterView) -> int:
    # A broker that started today has filled only its shorter windows so far.
    return max(found.stats_day.sum, found.stats_hour.sum, found.stats_minute.sum)
