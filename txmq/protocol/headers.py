"""The fields of requests and answers, each declared once with its wire name.

Every value is text on the wire; the types here say how that text is read. A field without a default
must be there. Where the protocol spells one header in two ways (10 and 310), the long names are
declared and the letters are derived.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Self, cast

import msgspec

__all__ = [
    "BrokerConfigAnswer",
    "BrokerHeartbeat",
    "BrokerMembersQuery",
    "BrokerRegistration",
    "BrokerStatsQuery",
    "BrokerUnregistration",
    "CheckState",
    "ClientGroups",
    "CloneOffset",
    "ClusterHeader",
    "ConsumeDirectly",
    "ConsumeStatsQuery",
    "ConsumerStatusQuery",
    "CorrectionQuery",
    "DataVersionAnswer",
    "DecideTransaction",
    "DeleteGroup",
    "EndTransaction",
    "GroupHeader",
    "Header",
    "KeyValue",
    "ListTransactions",
    "MessagePosition",
    "MessageQuery",
    "NamedBroker",
    "NamedGroup",
    "NamedTransaction",
    "OffsetAnswer",
    "OffsetByTime",
    "OffsetCommit",
    "OffsetQuery",
    "PullAnswer",
    "PullMessage",
    "QueryAnswer",
    "QueueEntriesQuery",
    "QueueHeader",
    "RecallAnswer",
    "RecallMessage",
    "RegistrationAnswer",
    "ReplyPush",
    "ResetOffset",
    "ResumeCheck",
    "RouteQuery",
    "SendAnswer",
    "SendBack",
    "SendMessage",
    "SendMessageV2",
    "StatsQuery",
    "SubscriptionQuery",
    "TimestampAnswer",
    "TopicAndGroup",
    "TopicDeletion",
    "TopicHeader",
    "TopicSettings",
    "WritePermissionAnswer",
    "fields_of",
]

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


def camel(name: str) -> str:
    """``queue_id`` as ``queueId``."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


class Header(msgspec.Struct, rename=camel, gc=False):
    """The fields of one kind of request or answer."""

    decoders: ClassVar[dict[type[Header], msgspec.json.Decoder[Any]]] = {}
    _wire_names: ClassVar[dict[type[Header], tuple[tuple[str, str], ...]]] = {}

    @classmethod
    def json_decoder(cls) -> msgspec.json.Decoder[Self]:
        """The decoder of this shape, made when first needed and kept."""
        found = Header.decoders.get(cls)
        if found is None:
            found = Header.decoders[cls] = msgspec.json.Decoder(cls, strict=False)
        return found

    @classmethod
    def wire_names(cls) -> tuple[tuple[str, str], ...]:
        """Pairs of our name and the wire's name, in order of declaration."""
        found = Header._wire_names.get(cls)
        if found is None:
            pairs = zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
            found = Header._wire_names[cls] = tuple(pairs)
        return found


def fields_of(header: Header) -> dict[str, str]:
    """A header's fields as the texts that travel; those that are ``None`` do not."""
    fields: dict[str, str] = {}
    for ours, theirs in header.wire_names():
        value = getattr(header, ours)
        if value is None:
            continue
        if value is True or value is False:
            fields[theirs] = "true" if value else "false"
        else:
            fields[theirs] = str(value)
    return fields


class SendMessage(Header):
    """10: one message, or with ``batch`` several in one body."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


def _with_letters(base: type[Header], letters: str) -> type[Header]:
    fields = [
        (field.name, field.type)
        if field.default is msgspec.NODEFAULT
        else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(base)
    ]
    rename = dict(zip(base.__struct_fields__, letters, strict=True))
    made = msgspec.defstruct(
        base.__name__ + "V2", fields, bases=(base,), rename=rename, module=__name__, gc=False
    )
    return cast("type[Header]", made)


SendMessageV2: Final = cast("type[SendMessage]", _with_letters(SendMessage, "abcdefghijklmn"))
"""310 and 320: the same with a letter for each name."""


class SendAnswer(Header):
    """The answer to a send; Java dereferences it unseen, so it is never left out."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None


class RecallMessage(Header):
    """370: a message that waits for its time shall not come."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class RecallAnswer(Header):
    """Which message that was, by the id its producer gave it."""

    msg_id: str


class SendBack(Header):
    """36: a consumer could not handle a message and wants it again later."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    reason: str | None = None
    """Our own: what the consumer says about it; stock brokers pass over it."""


class EndTransaction(Header):
    """37: the decision about a half message."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None


class ListTransactions(Header):
    """7701: open transactions, oldest first, from a place in the half queue on."""

    state: str = ""
    producer_group: str = ""
    from_offset: Int64 = 0
    count: Int32 = 100


class NamedTransaction(Header):
    """7702, 7704: a transaction by its id, or by the id of its half message."""

    transaction_id: str


class DecideTransaction(Header):
    """7703: commit or roll back by hand."""

    transaction_id: str
    decision: str
    operator: str
    reason: str


class ResumeCheck(Header):
    """323: a half message, by the id of the place where it is stored."""

    msg_id: str | None = None
    topic: str | None = None


class CheckState(Header):
    """39: the broker asks what became of a half message."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class PullMessage(Header):
    """11 and 361: messages of one queue from an offset on."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int64 | None = None


class PullAnswer(Header):
    """Where to go on, and the queue's bounds; travels with every outcome of a pull."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


class QueueHeader(Header):
    """30, 31, 32: one queue."""

    topic: str
    queue_id: Int32


class OffsetByTime(Header):
    """29: the message stored nearest to a time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class OffsetQuery(Header):
    """14: how far a group has come."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class OffsetCommit(Header):
    """15: how far a group has come, from its own mouth."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class OffsetAnswer(Header):
    """An offset."""

    offset: int


class TimestampAnswer(Header):
    """A time in milliseconds."""

    timestamp: int


class MessageQuery(Header):
    """12: messages by key within a range of time."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryAnswer(Header):
    """How far the key index had come when it was asked."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class MessagePosition(Header):
    """33: one message by its place in the log."""

    offset: Int64
    topic: str | None = None


class ClientGroups(Header, rename={"client_id": "clientID"}):
    """35: a client leaves."""

    client_id: str
    producer_group: str | None = msgspec.field(default=None, name="producerGroup")
    consumer_group: str | None = msgspec.field(default=None, name="consumerGroup")


class GroupHeader(Header):
    """38, 40, 203, 208: one consumer group, and for 208 perhaps one topic."""

    consumer_group: str
    topic: str | None = None


class NamedGroup(Header):
    """204, 343, 352: a group under the names those requests give it."""

    producer_group: str | None = None
    group: str | None = None


class ConsumeStatsQuery(Header):
    """208: how far a group has come, in one topic, in several joined by ``;``, or in all it
    knows.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class BrokerStatsQuery(Header):
    """317: how far all groups have come, in ordered topics only or in all."""

    is_order: bool


class CorrectionQuery(Header):
    """308: the least offset of a topic's groups, some of which may be left out."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneOffset(Header):
    """314: one group shall start where another one is."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueueEntriesQuery(Header):
    """321: what a queue says of its messages."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class DeleteGroup(Header):
    """207: remove a consumer group, and its offsets where either release's flag says so."""

    group_name: str
    remove_offset: bool | None = None
    clean_offset: bool | None = None


class TopicAndGroup(Header):
    """303, 221: a topic as one group sees it."""

    topic: str
    group: str


class SubscriptionQuery(Header):
    """345: what a group wants of a topic."""

    group: str
    topic: str | None = None


class ConsumerStatusQuery(Header):
    """223: how far a group's clients say they are; the last field is a client's id."""

    topic: str
    group: str
    client_addr: str | None = None


class TopicHeader(Header):
    """One topic."""

    topic: str


class TopicSettings(Header):
    """17: make a topic or change it."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None


class ResetOffset(Header):
    """222, 220: take a group elsewhere in a topic; RocketMQ 5 can name a queue and an offset."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class ConsumeDirectly(Header):
    """307, 309: something one consumer shall do or tell."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    jstack_enable: bool | None = None


class ReplyPush(Header):
    """326: the broker hands a reply to the producer that waits for it."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None


class BrokerConfigAnswer(Header):
    """26: which state of the settings this is, a data version as JSON."""

    version: str


class StatsQuery(Header):
    """315: one counter."""

    stats_name: str
    stats_key: str


class RouteQuery(Header):
    """105: where a topic lives."""

    topic: str
    accept_standard_json_only: bool | None = None


class BrokerRegistration(Header):
    """103: a broker makes itself known."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int64 | None = None
    heartbeat_timeout_millis: Int64 | None = None


class RegistrationAnswer(Header):
    """For replicas: where their master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerUnregistration(Header):
    """104 and 322: one broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerHeartbeat(Header):
    """904: a broker lives, and has nothing new to tell."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64 | None = None


class BrokerMembersQuery(Header):
    """901: who shares a broker's name."""

    cluster_name: str
    broker_name: str


class NamedBroker(Header):
    """205 and 327: all replicas of one broker."""

    broker_name: str


class WritePermissionAnswer(Header):
    """205 and 327: in how many topics the permission was set; each has its own name for it."""

    wipe_topic_count: int | None = None
    add_topic_count: int | None = None


class TopicDeletion(Header):
    """216: a topic to forget, at one cluster or at all."""

    topic: str
    cluster_name: str | None = None


class ClusterHeader(Header):
    """224: one cluster."""

    cluster: str


class DataVersionAnswer(Header):
    """322: whether the caller's topics differ from those that are known."""

    changed: bool


class KeyValue(Header):
    """100, 101, 102, 219: an entry of a name server's key-value table, as much as is given."""

    namespace: str
    key: str | None = None
    value: str | None = None
