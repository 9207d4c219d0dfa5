"""The requests of a name server, its options, and the registrations of brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final

import msgspec

from txmq.errors import InternalError, NoPermission, NotFound, RemoteProtocolError
from txmq.protocol import java
from txmq.protocol.bodies import (
    BrokerMembers,
    DataVersion,
    RegistrationBody,
    TextTable,
    TopicConfig,
    TopicConfigs,
    TopicCounts,
    TopicRoute,
)
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.command import Command, answer
from txmq.protocol.compression import decompress
from txmq.protocol.headers import (
    BrokerHeartbeat,
    BrokerMembersQuery,
    BrokerRegistration,
    BrokerUnregistration,
    ClusterHeader,
    DataVersionAnswer,
    KeyValue,
    NamedBroker,
    RouteQuery,
    TopicDeletion,
    TopicHeader,
    WritePermissionAnswer,
    camel,
)
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.clock import Clock
from txmq_broker.core.topics import TopicCensus
from txmq_broker.names.key_values import ORDER_TOPICS, KeyValues, KeyValueWriter
from txmq_broker.names.routes import RouteRegistry
from txmq_broker.services.slices import LongAnswers, Steps

__all__ = ["NameHandlers", "NameOptions", "OptionTable", "read_registration"]

_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2


class NameHandlers:
    """The handlers of a name server, over its tables."""

    def __init__(
        self,
        routes: RouteRegistry,
        values: KeyValues,
        writer: KeyValueWriter,
        options: OptionTable,
        clock: Clock,
        connections: Callable[[], dict[str, int]],
    ) -> None:
        self._routes = routes
        self._values = values
        self._writer = writer
        self._options = options
        self._clock = clock
        self._connections = connections
        self._census = TopicCensus(lambda: routes.changes, routes.names, routes.topics_of_brokers)

    def table(self) -> dict[int, Handler]:
        """The handlers by request code."""
        code, routes, long = RequestCode, self._routes, LongAnswers(self._clock)
        count = code.COUNT_TOPICS
        wipe, allow = code.WIPE_WRITE_PERM_OF_BROKER, code.ADD_WRITE_PERM_OF_BROKER
        return {
            code.PUT_KV_CONFIG: self._put_value,
            code.GET_KV_CONFIG: self._get_value,
            code.DELETE_KV_CONFIG: self._delete_value,
            code.GET_KVLIST_BY_NAMESPACE: self._list_values,
            code.REGISTER_BROKER: self._register,
            code.UNREGISTER_BROKER: self._unregister,
            code.BROKER_HEARTBEAT: self._refresh,
            code.QUERY_DATA_VERSION: self._compare_version,
            code.GET_ROUTEINFO_BY_TOPIC: self._route,
            code.GET_BROKER_CLUSTER_INFO: self._clusters,
            code.GET_BROKER_MEMBER_GROUP: self._members,
            wipe: long.handler(wipe, self._forbid_writing, routes.__len__),
            allow: long.handler(allow, self._allow_writing, routes.__len__),
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            count: long.handler(count, self._count, routes.__len__),
            code.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            code.GET_UNIT_TOPIC_LIST: self._unit_topics,
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_subscribed_topics,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._only_subscribed_topics,
            code.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            code.REGISTER_TOPIC_IN_NAMESRV: self._add_topic,
            code.UPDATE_NAMESRV_CONFIG: self._update_options,
            code.GET_NAMESRV_CONFIG: self._show_options,
            code.GET_BROKER_RUNTIME_INFO: self._show_figures,
        }

    # Brokers

    def _register(self, connection: Connection, request: Command) -> bytes:
        """103: register a broker and its topics."""
        who = request.read(BrokerRegistration)
        offer = read_registration(who, request.body)
        found = self._routes.register(who, offer, connection, self._clock.monotonic())
        body = b""
        if self._options.current.return_order_topic_config_to_broker:
            orders = self._values.space(ORDER_TOPICS)
            body = TextTable(table=orders).write() if orders else b""
        return answer(request, header=found, body=body)

    def _unregister(self, _: Connection, request: Command) -> bytes:
        """104: unregister a broker."""
        who = request.read(BrokerUnregistration)
        self._routes.unregister(who.broker_name, who.broker_addr, who.proof)
        return answer(request)

    def _refresh(self, _: Connection, request: Command) -> bytes:
        """904: note that a broker is alive."""
        who = request.read(BrokerHeartbeat)
        self._routes.refresh(who.broker_name, who.broker_addr, self._clock.monotonic())
        return answer(request)

    def _compare_version(self, _: Connection, request: Command) -> bytes:
        """322: compare a broker's topics with the registered ones."""
        who = request.read(BrokerUnregistration)
        offered = DataVersion.read(request.body)
        known = self._routes.version(who.broker_name, who.broker_addr)
        if known == offered:
            # The broker will not register now, so this request counts as its heartbeat.
            self._routes.refresh(who.broker_name, who.broker_addr, self._clock.monotonic())
        body = known.write() if known is not None else b""
        return answer(request, header=DataVersionAnswer(changed=known != offered), body=body)

    # Routes

    def _route(self, _: Connection, request: Command) -> bytes:
        """105: the route of a topic."""
        topic = request.read(RouteQuery).topic
        found = self._routes.route(topic)
        order = self._values.get(ORDER_TOPICS, topic)
        if order is not None and self._options.current.order_message_enable:
            found = msgspec.structs.replace(found, order_topic_conf=order)
        # With quoted keys and no blanks, because the Go client splits this text at commas.
        return answer(request, body=found.write())

    def _clusters(self, _: Connection, request: Command) -> bytes:
        """106: all brokers by cluster."""
        return answer(request, body=self._routes.clusters().write())

    def _members(self, _: Connection, request: Command) -> bytes:
        """901: the replicas of one broker."""
        asked = request.read(BrokerMembersQuery)
        found = self._routes.members(asked.cluster_name, asked.broker_name)
        return answer(request, body=BrokerMembers(broker_member_group=found).write())

    def _forbid_writing(self, request: Command) -> Steps:
        """205: forbid writes to a broker's topics."""
        count = yield from self._routes.forbid_writing(request.read(NamedBroker).broker_name)
        return answer(request, header=WritePermissionAnswer(wipe_topic_count=count))

    def _allow_writing(self, request: Command) -> Steps:
        """327: allow writes to a broker's topics again."""
        count = yield from self._routes.allow_writing(request.read(NamedBroker).broker_name)
        return answer(request, header=WritePermissionAnswer(add_topic_count=count))

    # Topics

    def _topics(self, _: Connection, request: Command) -> bytes:
        """206: all topics."""
        if not self._options.current.enable_all_topic_list:
            raise InternalError("disable")
        return answer(request, body=self._routes.topics().write())

    def _count(self, request: Command) -> Steps:
        """7732: the number of topics."""
        census = self._census
        yield from census.count()
        return answer(request, body=TopicCounts(census.topics, len(census.dead)).write())

    def _topics_of_cluster(self, _: Connection, request: Command) -> bytes:
        """224: the topics of one cluster."""
        cluster = request.read(ClusterHeader).cluster
        return answer(request, body=self._routes.topics_of_cluster(cluster).write())

    def _system_topics(self, _: Connection, request: Command) -> bytes:
        """304: the brokers' system topics."""
        return answer(request, body=self._routes.system_topics().write())

    def _unit_topics(self, _: Connection, request: Command) -> bytes:
        """311: topics marked as a unit's."""
        found = self._routes.topics_by_flag(lambda flag: bool(flag & _UNIT))
        return answer(request, body=found.write())

    def _unit_subscribed_topics(self, _: Connection, request: Command) -> bytes:
        """312: topics that units subscribe to."""
        found = self._routes.topics_by_flag(lambda flag: bool(flag & _UNIT_SUBSCRIPTION))
        return answer(request, body=found.write())

    def _only_subscribed_topics(self, _: Connection, request: Command) -> bytes:
        """313: topics that units subscribe to but that belong to no unit."""
        both = _UNIT | _UNIT_SUBSCRIPTION
        found = self._routes.topics_by_flag(lambda flag: flag & both == _UNIT_SUBSCRIPTION)
        return answer(request, body=found.write())

    def _delete_topic(self, _: Connection, request: Command) -> bytes:
        """216: delete a topic's route."""
        asked = request.read(TopicDeletion)
        self._routes.delete_topic(asked.topic, asked.cluster_name or None)
        return answer(request)

    def _add_topic(self, _: Connection, request: Command) -> bytes:
        """217: add a topic's route from a tool."""
        topic = request.read(TopicHeader).topic
        self._routes.add_topic(topic, TopicRoute.read(request.body).queue_datas)
        return answer(request)

    # Key-value texts and options

    def _put_value(self, _: Connection, request: Command) -> bytes:
        """100: store a value."""
        namespace, key, value = _entry(request)
        if value is None:
            raise RemoteProtocolError("KeyValue: value is missing")
        return self._writer.serve(request, partial(self._values.put, namespace, key, value))

    def _get_value(self, _: Connection, request: Command) -> bytes:
        """101: return a value."""
        namespace, key, _value = _entry(request)
        found = self._values.get(namespace, key)
        if found is None:
            raise NotFound(f"No config item, Namespace: {namespace} Key: {key}")
        return answer(request, header={"value": found})

    def _delete_value(self, _: Connection, request: Command) -> bytes:
        """102: delete a value."""
        namespace, key, _value = _entry(request)
        return self._writer.serve(request, partial(self._values.delete, namespace, key))

    def _list_values(self, _: Connection, request: Command) -> bytes:
        """219: return a namespace."""
        namespace = request.read(KeyValue).namespace
        found = self._values.space(namespace)
        if not found:
            raise NotFound(f"No config item, Namespace: {namespace}")
        return answer(request, body=TextTable(table=found).write())

    def _update_options(self, _: Connection, request: Command) -> bytes:
        """318: change options."""
        if request.body:
            self._options.update(request.body)
        return answer(request)

    def _show_options(self, _: Connection, request: Command) -> bytes:
        """319: return the options."""
        return answer(request, body=self._options.text())

    def _show_figures(self, _: Connection, request: Command) -> bytes:
        """28: return what peers make this server keep; RocketMQ's name server has no figures."""
        found = self._routes.figures() | self._values.figures() | self._connections()
        table = {camel(name): str(value) for name, value in sorted(found.items())}
        return answer(request, body=TextTable(table).write())


def _entry(request: Command) -> tuple[str, str, str | None]:
    asked = request.read(KeyValue)
    if asked.key is None:
        raise RemoteProtocolError("KeyValue: key is missing")
    return asked.namespace, asked.key, asked.value


_POSITIVE: Final = 0x7FFFFFFF
_PARTS: Final = 5


def read_registration(header: BrokerRegistration, body: bytes) -> TopicConfigs:
    """The topics a broker registers.

    Raises:
        InternalError: The checksum differs; RocketMQ answers with the same code.
        RemoteProtocolError: The body does not match the header.
    """
    if header.body_crc32 and header.body_crc32 != crc32(body) & _POSITIVE:
        raise InternalError("crc32 not match")
    if not body:
        return TopicConfigs()
    if not header.compressed:
        return RegistrationBody.read(body).topic_config_serialize_wrapper
    # The rest after the topics (filter servers, mappings of static topics) is not needed.
    pieces = _Pieces(decompress(int(SysFlag.COMPRESSED), body))
    version = DataVersion.read(pieces.chunk())
    topics = [_topic(pieces.text()) for _ in range(pieces.number())]
    return TopicConfigs(
        data_version=version, topic_config_table={topic.topic_name: topic for topic in topics}
    )


class _Pieces:
    """A reader of length-prefixed parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        found = int.from_bytes(self._take(4), "big", signed=True)
        if found < 0:
            raise RemoteProtocolError("registration: a negative length")
        return found

    def chunk(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        try:
            return self.chunk().decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"registration: not UTF-8: {error.reason}") from error

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise RemoteProtocolError("registration: the body ends too early")
        found = self._data[self._at : end]
        self._at = end
        return found


def _topic(text: str) -> TopicConfig:
    # 5.x adds a sixth part, attributes as JSON, which may contain blanks.
    parts = text.split(" ", _PARTS)
    if len(parts) < _PARTS:
        raise RemoteProtocolError(f"registration: {text!r} does not describe a topic")
    name, reads, writes, perm, filter_type = parts[:_PARTS]
    try:
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(reads),
            write_queue_nums=int(writes),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    except ValueError as error:
        raise RemoteProtocolError(f"registration: {text!r} does not describe a topic") from error


_FORBIDDEN: Final = frozenset(
    {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)
"""Options that clients may not change, because they name files to read and write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOptions:
    """The options and their defaults."""

    order_message_enable: bool = False
    """True if a route includes its topic's entry in the namespace of ordered topics."""

    return_order_topic_config_to_broker: bool = True
    """True if the answer to a registration includes that namespace."""

    enable_all_topic_list: bool = True
    """True if clients may list the names of all topics."""


_NAMES: Final = {camel(option.name): option.name for option in fields(NameOptions)}
_TRUTHS: Final = {"true": True, "false": False}


class OptionTable:
    """The current options, and read-only facts that are shown with them."""

    def __init__(self, save: Callable[[bytes], None], data: bytes | None = None) -> None:
        """Start from the defaults, overridden by the saved options.

        Raises:
            InternalError: A saved value is invalid.
            RemoteProtocolError: The saved data is not a properties text.
        """
        self._save = save
        self.current = NameOptions()
        self.facts: dict[str, object] = {}
        if data is not None:
            self.current = replace(self.current, **_read(java.loads(data)))

    def text(self) -> bytes:
        """Options and facts as a properties text."""
        return java.dumps({**self._named(), **self.facts})

    def update(self, text: bytes) -> None:
        """Change options: all of them, or none after an error.

        Raises:
            NoPermission: Clients may not change one of them.
            InternalError: One of them is unknown, or its value is invalid.
            RemoteProtocolError: It is not a properties text.
        """
        wanted = java.loads(text)
        for name in wanted:
            if name in _FORBIDDEN or name in self.facts:
                raise NoPermission(f"Can not update config in black list: {name}")
        changed = replace(self.current, **_read(wanted))
        self._save(java.dumps(self._named(changed)))
        self.current = changed

    def _named(self, options: NameOptions | None = None) -> dict[str, object]:
        shown = options or self.current
        return {theirs: getattr(shown, ours) for theirs, ours in _NAMES.items()}


def _read(wanted: Mapping[str, str]) -> dict[str, bool]:
    values: dict[str, bool] = {}
    for name, value in wanted.items():
        if name not in _NAMES:
            # RocketMQ ignores an unknown option, and the client believes that it was changed.
            raise InternalError(f"this name server has no option {name}")
        truth = _TRUTHS.get(value.strip().lower())
        if truth is None:
            raise InternalError(f"{name} must be true or false, not {value}")
        values[_NAMES[name]] = truth
    return values
