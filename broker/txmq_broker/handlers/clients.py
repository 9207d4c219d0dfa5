"""34, 35, 38, 46, 203, 204, 328, 400: clients register, leave, and are listed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from txmq.errors import (
    ConnectionLost,
    ConsumerOffline,
    InternalError,
    RemoteProtocolError,
    RequestNotSupported,
    ServiceUnavailable,
)
from txmq.limits import (
    GROUPS_TOGETHER,
    HEARTBEAT_AT_ONCE_BYTES,
    HEARTBEAT_BYTES_MAX,
    REPEATED_LINES_MAX,
    TOPIC_CHARS_MAX,
)
from txmq.protocol.bodies import (
    AllProducers,
    AssignmentQuery,
    ClientConnection,
    ConsumerConnections,
    ConsumerIds,
    Heartbeat,
    ProducerConnections,
    RegisteredProducer,
    SubscriptionCheck,
    TopicConfig,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import ClientGroups, GroupHeader, NamedGroup
from txmq.protocol.topics import RETRY
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler, Postponed
from txmq_broker.core.clients import (
    Member,
    check_client_id,
    check_consumer_group,
    check_producer_group,
)
from txmq_broker.core.topics import config_for_group
from txmq_broker.parts import ReadParts
from txmq_broker.services.slices import LongRequests, Steps, whole

__all__ = ["ClientHandlers"]

log = logging.getLogger(__name__)

_NAME_CHARS: Final = 100
"""How many characters of a client's text a log line shows."""


class ClientHandlers:
    """Keeps the registry of clients and notifies consumers when their group changes."""

    def __init__(self, parts: ReadParts) -> None:
        self._clients = parts.clients
        self._producers_seen = parts.producers_seen
        self._groups = parts.groups
        self._topics = parts.topics
        self._filters = parts.filters
        self._locks = parts.locks
        self._clock = parts.clock
        self._create_topics = parts.create_topics
        self._asked_for_queues: set[str] = set()
        """The consumers already logged for waiting until the broker assigns queues to them."""
        codes = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT
        self._long = LongRequests(codes, self._serve_long, parts.clock)

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.HEART_BEAT: self.beat,
            RequestCode.UNREGISTER_CLIENT: self.leave,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_filter,
            RequestCode.QUERY_ASSIGNMENT: self.refuse_assignment,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    def beat(self, connection: Connection, request: Command) -> bytes:
        """34: a client's heartbeat with its groups."""
        if len(request.body) > HEARTBEAT_BYTES_MAX:
            self._clients.refused += 1
            # Refused unread: reading 16 MiB takes a third of a second.
            raise InternalError(
                f"a heartbeat has at most {HEARTBEAT_BYTES_MAX} bytes, not {len(request.body)}; "
                "nothing of it was recorded; use fewer groups and subscriptions, or several clients"
            )
        if len(request.body) > HEARTBEAT_AT_ONCE_BYTES or self._long.has_one_of(connection):
            raise self._postponed(request)
        return whole(self._beat(connection, request))

    def _postponed(self, request: Command) -> Postponed:
        try:
            return self._long.postponed(request)
        except ServiceUnavailable:
            self._clients.refused += 1
            raise

    def _beat(self, connection: Connection, request: Command) -> Steps:
        beat = Heartbeat.read(request.body)
        yield
        check_client_id(beat.client_id)
        self._clients.check(connection, beat)
        for producer in beat.producer_data_set:
            check_producer_group(producer.group_name)
        yield
        yield from self._make_groups([consumer.group_name for consumer in beat.consumer_data_set])
        now = self._clock.monotonic()
        for part in beat.parts(GROUPS_TOGETHER):
            yield
            changed = self._clients.beat(
                connection, part, request.client_language, request.version, now
            )
            self.notify(changed)
            self._producers_seen([producer.group_name for producer in part.producer_data_set])
        return answer(request)

    def _make_groups(self, names: list[str]) -> Iterator[None]:
        """Create the new groups with their retry topics; if a name is refused, none is created."""
        for name in names:
            check_consumer_group(name)
        now_ms = self._clock.wall_ms()
        fresh: list[TopicConfig] = []
        for at, name in enumerate(names, 1):
            retry, count = RETRY + name, self._groups.get(name, now_ms).retry_queue_nums
            if len(retry) <= TOPIC_CHARS_MAX and retry not in self._topics.by_name:
                fresh.append(config_for_group(retry, max(1, count)))
            if at % GROUPS_TOGETHER == 0:
                yield
        self._create_topics(fresh)

    def _serve_long(self, connection: Connection, request: Command) -> Steps:
        if request.code == RequestCode.UNREGISTER_CLIENT:
            return self._leave(connection, request)
        return (yield from self._beat(connection, request))

    def leave(self, connection: Connection, request: Command) -> bytes:
        """35: a client leaves its groups."""
        if self._long.has_one_of(connection):
            raise self._postponed(request)  # An earlier heartbeat is served first.
        return self._leave(connection, request)

    def _leave(self, connection: Connection, request: Command) -> bytes:
        header = request.read(ClientGroups)
        if self._clients.leave(connection, header.producer_group, header.consumer_group):
            assert header.consumer_group is not None
            # The C++ client does not unlock all of its queues before it leaves.
            self._locks.release(header.consumer_group, header.client_id)
            self.notify([header.consumer_group])
        return answer(request)

    def lost(self, connection: Connection) -> None:
        """Remove the clients of a closed connection."""
        self.notify(self._clients.drop(connection))

    def drop_silent(self) -> None:
        """Close the connections of clients whose heartbeats have stopped."""
        for connection in self._clients.silent_connections(self._clock.monotonic()):
            self.notify(self._clients.drop(connection))
            connection.close()

    def notify(self, groups: Iterable[str]) -> None:
        """40: notify all consumers of these groups, so that they rebalance the queues."""
        for name in groups:
            group = self._clients.consumer_group(name)
            config = self._groups.find(name)
            if group is None or (config and not config.notify_consumer_ids_changed_enable):
                continue
            for connection in list(group.members):
                try:
                    connection.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader(name))
                except ConnectionLost:
                    continue  # The lost connection is handled elsewhere.

    def consumer_ids(self, _: Connection, request: Command) -> bytes:
        """38: the client ids of a group's consumers."""
        name = request.read(GroupHeader).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise InternalError(f"no consumer for this group, {name}")
        return answer(request, body=ConsumerIds(group.client_ids()).write())

    def check_filter(self, _: Connection, request: Command) -> bytes:
        """46: validate a filter."""
        self._filters.of(SubscriptionCheck.read(request.body).subscription_data)
        return answer(request)

    def refuse_assignment(self, connection: Connection, request: Command) -> bytes:
        """400: refuse with code 3, as RocketMQ 4.9 does; each client that asks is logged once.

        Raises:
            RequestNotSupported: Always.
        """
        self._note_assignment(connection, request)
        raise RequestNotSupported(f" request type {request.code} not supported")

    def _note_assignment(self, connection: Connection, request: Command) -> None:
        who = f"a consumer at {connection.host}"
        if len(request.body) <= HEARTBEAT_AT_ONCE_BYTES:
            with suppress(RemoteProtocolError):
                wanted = AssignmentQuery.read(request.body)
                names = wanted.client_id[:_NAME_CHARS], wanted.consumer_group[:_NAME_CHARS]
                who = f"{who}, {names[0]!r} of group {names[1]!r},"
        if who in self._asked_for_queues or len(self._asked_for_queues) >= REPEATED_LINES_MAX:
            return
        self._asked_for_queues.add(who)
        log.warning(
            "%s asks the broker to assign its queues (request 400), as only RocketMQ 5 does; it "
            "may never receive a message: set clientRebalance=true at the consumer, in Java with "
            "setClientRebalance(true), and start it again",
            who,
        )

    def consumers(self, _: Connection, request: Command) -> bytes:
        """203: a group's consumers and their subscriptions."""
        name = request.read(GroupHeader).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise ConsumerOffline(f"the consumer group [{name}] not online")
        body = ConsumerConnections(
            [_shown(member) for member in group.members.values()],
            group.consume_from_where,
            group.consume_type,
            group.message_model,
            group.subscriptions,
        )
        return answer(request, body=body.write())

    def producers(self, _: Connection, request: Command) -> bytes:
        """204: a group's producers."""
        name = request.read(NamedGroup).producer_group or ""
        found = self._clients.producers(name)
        if not found:
            raise InternalError(f"the producer group[{name}] not exist")
        return answer(
            request, body=ProducerConnections([_shown(member) for member in found]).write()
        )

    def all_producers(self, _: Connection, request: Command) -> bytes:
        """328: all producers by group."""
        age = self._clock.wall_ms() - int(self._clock.monotonic() * 1000)
        data = {
            group: [
                RegisteredProducer(
                    member.client_id,
                    member.connection.address,
                    member.language,
                    member.version,
                    age + int(member.seen_at * 1000),
                )
                for member in members.values()
            ]
            for group, members in self._clients.producer_groups.items()
        }
        return answer(request, body=AllProducers(data).write())


def _shown(member: Member[Connection]) -> ClientConnection:
    return ClientConnection(
        member.connection.address, member.client_id, member.language, member.version
    )
