"""The fields of requests and answers, each declared once with its wire name.

Every value is text on the wire; the types here say how to decode it. A field without a default is
required. For a header with two spellings (10 and 310), the long names are declared and the
letters derived.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, cast

import msgspec

from txmq.errors import RemoteProtocolError

__all__ = [
    "DECIDED",
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
    "SignedSend",
    "StatsQuery",
    "SubscriptionQuery",
    "TimestampAnswer",
    "TopicAndGroup",
    "TopicDeletion",
    "TopicHeader",
    "TopicSettings",
    "WritePermissionAnswer",
]

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


def camel(name: str) -> str:
    """Convert ``queue_id`` to ``queueId``."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


class Header(msgspec.Struct, rename=camel, gc=False):
    """The fields of one kind of request or answer."""


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
""":class:`SendMessage` for 310 and 320, whose fields have one-letter names."""


class SignedSend(SendMessageV2, forbid_unknown_fields=True, kw_only=True):  # type: ignore[call-arg, misc, valid-type]
    """310 with the fields of a signature and no unknown ones, so that the signed text can be
    rebuilt.
    """

    access_key: str = msgspec.field(name="AccessKey")
    signature: bytes = msgspec.field(name="Signature")
    """Its 20 bytes, which are Base64 on the wire."""

    def content(self) -> bytes | None:
        """All values but the signature, ordered by their fields' wire names.

        ``None`` if a number is so unusual that no text is prepared for it.
        """
        texts = _TEXTS
        try:
            return "".join(
                (
                    self.access_key,
                    self.producer_group,
                    self.topic,
                    self.default_topic,
                    texts[self.default_topic_queue_nums],
                    texts[self.queue_id],
                    texts[self.sys_flag],
                    f"{self.born_timestamp}",
                    texts[self.flag],
                    self.properties or "",
                    texts[self.reconsume_times],
                    _TRUTHS[self.unit_mode],
                    texts[self.max_reconsume_times],
                    _TRUTHS[self.batch],
                    self.broker_name or "",
                )
            ).encode()
        except KeyError:
            return None


_TEXTS: Final[dict[int | None, str]] = {None: "", **{n: str(n) for n in range(-1, 1024)}}
"""Prepared texts of the usual numbers in a send, including all its flags. Formatting them each time
took half of :meth:`SignedSend.content`."""
_TRUTHS: Final = {None: "", False: "false", True: "true"}


class SendAnswer(Header):
    """The answer to a send. It is always present, because Java reads it without a check."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None


class RecallMessage(Header):
    """370: recall a delayed message."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class RecallAnswer(Header):
    """The answer to 370: the id that its producer gave the recalled message."""

    msg_id: str


class SendBack(Header):
    """36: a consumer failed to handle a message and wants it again later."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    reason: str | None = None
    """The consumer's reason. A field of txmq; stock brokers ignore it."""


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
    others: str | None = None
    """Other half messages of the transaction at this broker, to decide together with this one, as
    :class:`OtherHalf` writes them. A field of txmq; stock brokers ignore it, and their answer has
    no field ``decided``, the number of half messages that the END was about."""


DECIDED: Final = "decided"
"""The field of the answer to an END with others."""


class OtherHalf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A half message that an END is about, besides the one in its other fields."""

    offset: int
    """Its offset in the half queue."""
    position: int
    """Its position in the broker's log."""
    id: str

    @staticmethod
    def write(others: Iterable[OtherHalf]) -> str:
        """Write half messages for :attr:`EndTransaction.others`."""
        return msgspec.json.encode(list(others)).decode()

    @staticmethod
    def read(text: str) -> list[OtherHalf]:
        """Read what :meth:`write` wrote.

        Raises:
            RemoteProtocolError: It is something else.
        """
        try:
            return msgspec.json.decode(text, type=list[OtherHalf])
        except msgspec.DecodeError as error:
            raise RemoteProtocolError(f"the field others of an END: {error}") from error


class ListTransactions(Header):
    """7701: open transactions, oldest first, from an offset of the half queue on."""

    state: str = ""
    producer_group: str = ""
    from_offset: Int64 = 0
    count: Int32 = 100


class NamedTransaction(Header):
    """7702, 7711, 7713: a transaction by its id; 7702 and 7711 also by that of a half message."""

    transaction_id: str


class DecideTransaction(Header):
    """7703: an operator's commit or rollback."""

    transaction_id: str
    decision: str
    operator: str
    reason: str


class ResumeCheck(Header):
    """323: a half message, by its offset id."""

    msg_id: str | None = None
    topic: str | None = None


class CheckState(Header):
    """39: the broker asks a producer for the decision about a half message."""

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
    dead_letters: bool | None = None
    """Whether the pull is meant to read dead letters, whose topics permit writing only. A field of
    txmq."""


class PullAnswer(Header):
    """The next offset and the queue's bounds; part of every answer to a pull."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


class QueueHeader(Header):
    """30, 31, 32: one queue."""

    topic: str
    queue_id: Int32


class OffsetByTime(Header):
    """29: the message stored nearest to a time, or the first or last one within a boundary."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class OffsetQuery(Header):
    """14: a group's offset."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class OffsetCommit(Header):
    """15: a group commits its offset."""

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
    """The answer to 12: the last update of the key index."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class MessagePosition(Header):
    """33: one message by its position in the log."""

    offset: Int64
    topic: str | None = None


class ClientGroups(Header, rename={"client_id": "clientID"}):
    """35: a client leaves."""

    client_id: str
    producer_group: str | None = msgspec.field(default=None, name="producerGroup")
    consumer_group: str | None = msgspec.field(default=None, name="consumerGroup")


class GroupHeader(Header):
    """38, 40, 203, 208: one consumer group; 208 may add a topic."""

    consumer_group: str
    topic: str | None = None


class NamedGroup(Header):
    """204, 343, 352: a group, under the names that those requests use."""

    producer_group: str | None = None
    group: str | None = None


class ConsumeStatsQuery(Header):
    """208: a group's offsets in one topic, in several joined by ``;``, or in all."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class BrokerStatsQuery(Header):
    """317: all groups' offsets, in ordered topics or in all."""

    is_order: bool


class CorrectionQuery(Header):
    """308: the lowest offset of a topic's groups, optionally without some of them."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneOffset(Header):
    """314: copy one group's offsets to another group."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueueEntriesQuery(Header):
    """321: a queue's index entries."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class DeleteGroup(Header):
    """207: delete a consumer group, and its offsets if either flag is set; releases of RocketMQ
    name it differently.
    """

    group_name: str
    remove_offset: bool | None = None
    clean_offset: bool | None = None


class TopicAndGroup(Header):
    """303, 221: a topic as one group sees it."""

    topic: str
    group: str


class SubscriptionQuery(Header):
    """345: a group's subscription to a topic."""

    group: str
    topic: str | None = None


class ConsumerStatusQuery(Header):
    """223: the offsets that a group's clients report; the last field is a client id."""

    topic: str
    group: str
    client_addr: str | None = None


class TopicHeader(Header):
    """One topic."""

    topic: str


class TopicSettings(Header):
    """17: create or change a topic."""

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
    """222, 220: reset a group's offsets in a topic; RocketMQ 5 can name a queue and an offset."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class ConsumeDirectly(Header):
    """307, 309: a request to one consumer for a state report or for handling a message."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    jstack_enable: bool | None = None


class ReplyPush(Header):
    """326: the broker pushes a reply to the producer that waits for it."""

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
    """The answer to 26: the version of the settings, a data version as JSON."""

    version: str


class StatsQuery(Header):
    """315: one counter."""

    stats_name: str
    stats_key: str


class RouteQuery(Header):
    """105: the route of a topic."""

    topic: str
    accept_standard_json_only: bool | None = None


class BrokerRegistration(Header):
    """103: a broker registers."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int64 | None = None
    heartbeat_timeout_millis: Int64 | None = None
    proof: str | None = msgspec.field(name="txmqProof", default=None)
    """Proves that the sender has this broker's data. A field of txmq."""


class RegistrationAnswer(Header):
    """The answer to 103: for a replica, its master's addresses."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerUnregistration(Header):
    """104 and 322: one broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    proof: str | None = msgspec.field(name="txmqProof", default=None)


class BrokerHeartbeat(Header):
    """904: a broker is alive and its topics are unchanged."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64 | None = None


class BrokerMembersQuery(Header):
    """901: the replicas of a broker."""

    cluster_name: str
    broker_name: str


class NamedBroker(Header):
    """205 and 327: all replicas of one broker."""

    broker_name: str


class WritePermissionAnswer(Header):
    """205 and 327: the number of changed topics; each request has its own name for it."""

    wipe_topic_count: int | None = None
    add_topic_count: int | None = None


class TopicDeletion(Header):
    """216: delete a topic's route, in one cluster or in all."""

    topic: str
    cluster_name: str | None = None


class ClusterHeader(Header):
    """224: one cluster."""

    cluster: str


class DataVersionAnswer(Header):
    """322: whether the caller's topics differ from the registered ones."""

    changed: bool


class KeyValue(Header):
    """100, 101, 102, 219: an entry of a name server's key-value table."""

    namespace: str
    key: str | None = None
    value: str | None = None
