"""The JSON bodies of requests and answers, each declared once with its wire names.

Reading tries strict JSON first and RocketMQ's dialect second. Writing is strict and without white
space, except that maps by queue have objects as keys, because Java requires it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Self, TypeVar, cast

import msgspec

from txmq.errors import RemoteProtocolError
from txmq.limits import FRAME_BYTES_MAX, HEARTBEAT_BYTES_MAX, LAX_BODY_BYTES_MAX, LOCK_BYTES_MAX
from txmq.protocol import fastjson
from txmq.protocol.headers import camel

__all__ = [
    "AllProducers",
    "AssignmentQuery",
    "Body",
    "BrokerMembers",
    "BrokerRoute",
    "ClientConnection",
    "ClusterView",
    "ConsumeStats",
    "ConsumeTimeSpan",
    "ConsumeTimeSpans",
    "ConsumedDirectly",
    "ConsumerConnections",
    "ConsumerIds",
    "ConsumerOffsets",
    "ConsumerRegistration",
    "ConsumerState",
    "CorrectionOffsets",
    "CounterView",
    "CounterWindow",
    "DataVersion",
    "GroupConfig",
    "GroupConfigList",
    "GroupConfigs",
    "GroupList",
    "Heartbeat",
    "HeldQueue",
    "LockRequest",
    "LockedQueues",
    "MessageQueue",
    "OffsetPair",
    "OpenTransactions",
    "ProducerConnections",
    "ProducerRegistration",
    "QueueEntries",
    "QueueEntry",
    "QueueRoute",
    "QueueStats",
    "RegisteredProducer",
    "RegistrationBody",
    "SubscriptionAnswer",
    "SubscriptionCheck",
    "SubscriptionData",
    "TextTable",
    "TopicConfig",
    "TopicConfigs",
    "TopicCounts",
    "TopicNames",
    "TopicRoute",
    "TransactionEntry",
    "TransactionMessages",
    "queue_map",
    "read_queue_map",
    "read_with_queue_map",
    "with_queue_map",
]

T = TypeVar("T")


class Body(msgspec.Struct, rename=camel, gc=False):
    """A body that is one JSON object. Bodies have no cycles, so the collector may ignore them."""

    _bytes_max: ClassVar[int] = FRAME_BYTES_MAX
    """Longer bodies are refused unread: while a server decodes a body, all other clients wait."""
    _decoders: ClassVar[dict[type[Body], msgspec.json.Decoder[Any]]] = {}

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            RemoteProtocolError: The body is too long, or not of this kind.
        """
        if len(data) > cls._bytes_max:
            raise RemoteProtocolError(f"{cls.__name__}: {len(data)} bytes exceed {cls._bytes_max}")
        decoder = Body._decoders.get(cls)
        if decoder is None:
            decoder = Body._decoders[cls] = msgspec.json.Decoder(cls, strict=False)
        try:
            return cast("Self", decoder.decode(data))
        except fastjson.NOT_STRICT:
            pass
        loose = _without_nulls(fastjson.loads(data, LAX_BODY_BYTES_MAX))
        try:
            return msgspec.convert(loose, cls, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"{cls.__name__}: {error}") from error

    def write(self) -> bytes:
        """Encode the body."""
        return msgspec.json.encode(self)


def _without_nulls(value: fastjson.Value) -> fastjson.Value:
    # Java omits null members, but sometimes writes them; both mean "not given".
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


class MessageQueue(msgspec.Struct, rename=camel, frozen=True, order=True):
    """The name of one queue in bodies and map keys."""

    broker_name: str
    queue_id: int
    topic: str


def queue_map(entries: Mapping[MessageQueue, object]) -> bytes:
    """A map by queue, as JSON text."""
    return fastjson.object_keyed(entries.items())


def with_queue_map(
    name: str, entries: Mapping[MessageQueue, object], others: Mapping[str, object] | None = None
) -> bytes:
    """A body with one member that is a map by queue."""
    return msgspec.json.encode({**(others or {}), name: msgspec.Raw(queue_map(entries))})


def read_queue_map(data: bytes, member: str, kind: type[T]) -> dict[MessageQueue, T]:
    """The map by queue in one member of a body.

    Raises:
        RemoteProtocolError: The member is missing or is not a map by queue.
    """
    return read_with_queue_map(data, member, kind)[0]


def read_with_queue_map(
    data: bytes, member: str, kind: type[T]
) -> tuple[dict[MessageQueue, T], dict[fastjson.Key, fastjson.Value]]:
    """The map by queue in one member of a body, and the whole body.

    Raises:
        RemoteProtocolError: The member is missing or is not a map by queue.
    """
    whole = fastjson.loads(data)
    inner = whole.get(member) if isinstance(whole, dict) else None
    if not isinstance(whole, dict) or not isinstance(inner, dict):
        raise RemoteProtocolError(f"a body has no map {member!r}")
    found: dict[MessageQueue, T] = {}
    try:
        for key, value in inner.items():
            named = dict(key) if isinstance(key, tuple) else fastjson.loads(key.encode())
            queue = msgspec.convert(named, MessageQueue, strict=False)
            found[queue] = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"{member}: {error}") from error
    return found, whole


# Clients and their groups


class SubscriptionData(Body):
    """A consumer group's subscription to one topic."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ProducerRegistration(Body):
    """One producer group of a client."""

    group_name: str


CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def _named(value: str | int, names: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value
    return names[value] if 0 <= value < len(names) else names[0]


class ConsumerRegistration(Body):
    """One consumer group of a client, with its subscriptions."""

    group_name: str
    consume_type: str | int = "CONSUME_PASSIVELY"
    message_model: str | int = "CLUSTERING"
    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        """Replace the C++ client's numbers by the names that other clients send."""
        self.consume_type = _named(self.consume_type, CONSUME_TYPES)
        self.message_model = _named(self.message_model, MESSAGE_MODELS)
        self.consume_from_where = _named(self.consume_from_where, CONSUME_FROM)


class Heartbeat(Body, rename={"client_id": "clientID"}):
    """34: a client's id and its groups."""

    _bytes_max: ClassVar[int] = HEARTBEAT_BYTES_MAX
    client_id: str
    producer_data_set: list[ProducerRegistration] = msgspec.field(
        default_factory=list, name="producerDataSet"
    )
    consumer_data_set: list[ConsumerRegistration] = msgspec.field(
        default_factory=list, name="consumerDataSet"
    )

    def parts(self, size: int) -> Iterator[Heartbeat]:
        """Split it into heartbeats of at most ``size`` groups."""
        for at in range(0, len(self.producer_data_set), size):
            yield Heartbeat(self.client_id, self.producer_data_set[at : at + size])
        for at in range(0, len(self.consumer_data_set), size):
            consumers = self.consumer_data_set[at : at + size]
            yield Heartbeat(self.client_id, consumer_data_set=consumers)


class SubscriptionCheck(Body):
    """46: a filter to validate."""

    _bytes_max: ClassVar[int] = HEARTBEAT_BYTES_MAX
    client_id: str
    group: str
    subscription_data: SubscriptionData


class AssignmentQuery(Body):
    """400: a consumer of RocketMQ 5 wants the broker to assign its queues."""

    consumer_group: str
    client_id: str


class ConsumerIds(Body):
    """The answer to 38: the client ids of a group's consumers."""

    consumer_id_list: list[str]


class TransactionEntry(Body):
    """A message of a transaction in the answers to 7701, 7702, 7711 and 7713."""

    transaction_id: str
    state: str
    producer_group: str
    topic: str
    queue_id: int
    half_offset: int
    commit_log_offset: int
    offset_msg_id: str
    keys: str
    stored_ms: int
    checks: int
    client_id: str
    is_being_decided: bool = False
    xid: str = ""
    """The id of the transaction: that of its first message. Older brokers leave it out."""


class OpenTransactions(Body):
    """The answer to 7701: a page of open transactions, and their total number."""

    transactions: list[TransactionEntry]
    open: int
    parked: int
    of_group: int = 0
    """The number of open transactions of the requested producer group."""


class TransactionMessages(Body):
    """The answer to 7713: the messages of a transaction that the broker knows."""

    messages: list[TransactionEntry]
    """``state`` may also be ``committed`` or ``rolled back``."""


class ClientConnection(Body):
    """One client in the answers to 203 and 204."""

    client_addr: str
    client_id: str
    language: str
    version: int


class ConsumerConnections(Body):
    """The answer to 203."""

    connection_set: list[ClientConnection]
    consume_from_where: str
    consume_type: str
    message_model: str
    subscription_table: dict[str, SubscriptionData]


class ProducerConnections(Body):
    """The answer to 204."""

    connection_set: list[ClientConnection]


class RegisteredProducer(Body, rename={"client_id": "clientId", "remote_ip": "remoteIP"}):
    """One producer in the answer to 328."""

    client_id: str
    remote_ip: str
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = msgspec.field(name="lastUpdateTimestamp", default=0)


class AllProducers(Body):
    """The answer to 328: all producers, by group."""

    data: dict[str, list[RegisteredProducer]]


class GroupList(Body):
    """The answer to 300: the groups that consume a topic."""

    group_list: list[str]


# Locks of orderly consumers


class LockRequest(Body):
    """41 and 42: queues that a consumer wants to lock or unlock."""

    _bytes_max: ClassVar[int] = LOCK_BYTES_MAX
    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []


class LockedQueues(Body, rename={"queues": "lockOKMQSet"}):
    """The answer to 41: the queues the consumer holds now."""

    queues: list[MessageQueue]


# Topics, groups, routes


class DataVersion(Body):
    """The version of a table."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0


class TopicConfig(Body):
    """A topic's settings at one broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False


class TopicConfigs(Body):
    """All topics of one broker."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}


class RegistrationBody(Body):
    """103: the topics that a broker registers."""

    topic_config_serialize_wrapper: TopicConfigs = msgspec.field(default_factory=TopicConfigs)
    filter_server_list: list[str] = []


class GroupConfig(Body):
    """A consumer group's settings at one broker."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


class GroupConfigs(Body):
    """The answer to 201: all groups of one broker."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, GroupConfig] = {}


class GroupConfigList(Body):
    """225: several groups at once."""

    group_config_list: list[GroupConfig]


class QueueRoute(Body):
    """One broker's queues of a topic."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerRoute(Body):
    """The addresses of one broker's replicas; 0 is the master."""

    broker_name: str
    broker_addrs: dict[int, str]
    cluster: str = ""


class TopicRoute(Body):
    """The answer to 105. It always has filter servers: old clients fail if they are missing."""

    queue_datas: list[QueueRoute]
    broker_datas: list[BrokerRoute]
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | msgspec.UnsetType = msgspec.UNSET


class ClusterView(Body):
    """The answer to 106: all brokers, by name and by cluster."""

    broker_addr_table: dict[str, BrokerRoute]
    cluster_addr_table: dict[str, list[str]]


class BrokerMembers(Body):
    """The answer to 901: the replicas of one broker."""

    broker_member_group: BrokerRoute


class TopicNames(Body, omit_defaults=True):
    """A list of topics."""

    topic_list: list[str]
    broker_addr: str | None = None


class TopicCounts(Body):
    """The answer to 7732 from a name server or a broker."""

    topics: int = 0
    """Topics of applications."""
    dead_letter_groups: int = 0
    """Groups that have a topic for dead letters."""
    dead_letters: int | None = None
    """Stored dead letters; only a broker counts them."""


class TextTable(Body):
    """Texts by name, for statistics and key-value configuration."""

    table: dict[str, str]


# Offsets and statistics


class OffsetPair(Body):
    """One queue of 208: its end and the group's offset."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int | msgspec.UnsetType = msgspec.UNSET
    """RocketMQ 5 needs it to show how much is pulled but not consumed yet."""


class QueueStats(Body):
    """One queue of 202."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int


class ConsumeStats(Body):
    """The numbers of 208, without its map by queue."""

    consume_tps: float


class ConsumeTimeSpan(Body):
    """One queue of 303."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class ConsumeTimeSpans(Body):
    """The answer to 303."""

    consume_time_span_set: list[ConsumeTimeSpan]


class QueueEntry(Body):
    """One entry of 321."""

    physic_offset: int
    physic_size: int
    tags_code: int


class QueueEntries(Body, omit_defaults=True):
    """The answer to 321: a queue's entries and a group's filter."""

    queue_data: list[QueueEntry]
    max_queue_index: int
    min_queue_index: int
    filter_data: str | None = None
    subscription_data: SubscriptionData | None = None


class SubscriptionAnswer(Body, omit_defaults=True):
    """The answer to 345."""

    group: str
    topic: str | None = None
    subscription_data: SubscriptionData | None = None


class CounterWindow(Body):
    """A counter over a window: the sum, the rate a second, and the mean value of one event."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class CounterView(Body):
    """The answer to 315."""

    stats_minute: CounterWindow
    stats_hour: CounterWindow
    stats_day: CounterWindow


class ConsumerOffsets(Body):
    """43: all groups' offsets, by ``topic@group`` and queue."""

    offset_table: dict[str, dict[int, int]] = {}
    skipped_damage: dict[str, dict[int, list[tuple[int, int]]]] | msgspec.UnsetType = msgspec.UNSET
    """Ranges of offsets in which groups skip damaged messages: the first and the last of each.
    Only txmq keeps them, in its files and copies."""


class ConsumerState(Body):
    """The answer to 307, without its map by queue."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []


class HeldQueue(Body):
    """One queue in the answer to 307, as its consumer sees it."""

    commit_offset: int
    cached_msg_min_offset: int
    cached_msg_max_offset: int
    cached_msg_count: int
    cached_msg_size_in_mi_b: int = msgspec.field(name="cachedMsgSizeInMiB")
    locked: bool = False
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class ConsumedDirectly(Body):
    """The answer to 309: the result of handling one message outside its queue."""

    order: bool
    auto_commit: bool
    consume_result: str
    remark: str = ""
    spent_time_mills: int = 0


class CorrectionOffsets(Body):
    """The answer to 308."""

    correction_offsets: dict[int, int]
