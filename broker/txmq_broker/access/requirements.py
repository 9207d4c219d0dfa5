"""The permissions that each request of a broker or name server needs, by request code. Pure.

A code without an entry is refused, so a new request needs a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from txmq.protocol.bodies import Heartbeat, LockRequest, SubscriptionCheck
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import EndTransaction
from txmq.protocol.topics import DLQ, RETRY, TRACES
from txmq_broker.access.accounts import Account, Permission
from txmq_broker.core.topics import CLOSED_TO_CLIENTS

__all__ = [
    "CLIENT_REQUESTS",
    "REGISTRATIONS",
    "REQUIREMENTS",
    "MessageTopics",
    "Need",
    "Requirement",
    "is_met",
]

PUB, SUB = Permission.PUB, Permission.SUB
EITHER: Final = PUB | SUB


class Need(NamedTuple):
    """A permission that a request needs: for a topic, for a group, or an administrator's."""

    kind: str
    """``topic``, ``group`` or ``admin``."""
    name: str = ""
    permission: Permission = SUB

    def __str__(self) -> str:
        if self.kind == "admin":
            return "an administrator"
        words = {PUB: "PUB", SUB: "SUB", EITHER: "PUB or SUB"}
        return f"{words[self.permission]} of {self.kind} {self.name}"


class MessageTopics(NamedTuple):
    """Finds the topics of stored messages, for requests that name a message by its position."""

    at: Callable[[int], str | None]
    """The topic of the message at a position of the log."""
    of_halves: Callable[[EndTransaction], Iterable[str]]
    """The topics of the open half messages that an END names."""


NO_MESSAGES: Final = MessageTopics(lambda _: None, lambda _: ())

Requirement: TypeAlias = Callable[[Command, MessageTopics], Iterable[Need]]
"""Returns the permissions that a request needs; none if any account is enough."""

_ADMIN: Final = (Need("admin"),)


def is_met(need: Need, account: Account) -> bool:
    """Whether an account has a permission.

    A retry or dead-letter topic belongs to its group, and a topic that only the broker writes to
    belongs to administrators. Every account may send traces.
    """
    kind, name, permission = need
    if kind == "admin":
        return account.is_admin
    if kind == "group":
        return account.may_use_group(name)
    for prefix in (RETRY, DLQ):
        if name.startswith(prefix):
            return account.may_use_group(name.removeprefix(prefix))
    if name in CLOSED_TO_CLIENTS:
        return account.is_admin
    return (name == TRACES and permission == PUB) or account.may_use_topic(name, permission)


def _account(_request: Command, _topics: MessageTopics) -> Iterable[Need]:
    return ()


def _admin(_request: Command, _topics: MessageTopics) -> Iterable[Need]:
    return _ADMIN


def _of_fields(*needs: Need) -> Requirement:
    """Needs whose names are in fields of the header; a missing field adds no need.

    A handler itself refuses a request that lacks a required field.
    """

    def requirement(request: Command, _topics: MessageTopics) -> Iterable[Need]:
        fields = request.field_map()
        return [need._replace(name=name) for need in needs if (name := fields.get(need.name))]

    return requirement


def _topic(field: str, permission: Permission) -> Need:
    return Need("topic", field, permission)


def _group(field: str) -> Need:
    return Need("group", field)


def _heartbeat(request: Command, _topics: MessageTopics) -> Iterable[Need]:
    for consumer in Heartbeat.read(request.body).consumer_data_set:
        yield Need("group", consumer.group_name)
        for subscription in consumer.subscription_data_set:
            yield Need("topic", subscription.topic)


def _lock(request: Command, _topics: MessageTopics) -> Iterable[Need]:
    return [Need("group", LockRequest.read(request.body).consumer_group)]


def _filter_check(request: Command, _topics: MessageTopics) -> Iterable[Need]:
    check = SubscriptionCheck.read(request.body)
    return [Need("group", check.group), Need("topic", check.subscription_data.topic)]


def _end(request: Command, topics: MessageTopics) -> Iterable[Need]:
    return [Need("topic", topic, PUB) for topic in topics.of_halves(request.read(EndTransaction))]


def _message_at(*needs: Need) -> Requirement:
    """Needs of fields, and SUB of the topic of the message at the field ``offset``."""
    of_fields = _of_fields(*needs)

    def requirement(request: Command, topics: MessageTopics) -> Iterable[Need]:
        offset = request.field_map().get("offset", "")
        found = topics.at(int(offset)) if offset.isdecimal() else None
        return [*of_fields(request, topics), *([] if found is None else [Need("topic", found)])]

    return requirement


_CODE = RequestCode
_TOPIC_OR_GROUP: Final = (_topic("topic", SUB), _group("consumerGroup"))
_IN_TOPIC: Final = _of_fields(_topic("topic", SUB))
_IN_GROUP: Final = _of_fields(_group("consumerGroup"), _group("group"))
_IN_BOTH: Final = _of_fields(*_TOPIC_OR_GROUP, _group("group"))
_SEND: Final = _of_fields(_topic("topic", PUB))
_SEND_SHORT: Final = _of_fields(_topic("b", PUB))

REQUIREMENTS: Final[Mapping[int, Requirement]] = {
    # Producers
    _CODE.SEND_MESSAGE: _SEND,
    _CODE.SEND_MESSAGE_V2: _SEND_SHORT,
    _CODE.SEND_BATCH_MESSAGE: _SEND_SHORT,
    _CODE.SEND_DELAYED_HALF: _SEND_SHORT,
    _CODE.RECALL_MESSAGE: _SEND,
    _CODE.END_TRANSACTION: _end,
    # Replies share the cluster's topic; the request itself proves who may answer.
    _CODE.SEND_REPLY_MESSAGE: _account,
    _CODE.SEND_REPLY_MESSAGE_V2: _account,
    # Consumers
    _CODE.PULL_MESSAGE: _IN_BOTH,
    _CODE.LITE_PULL_MESSAGE: _IN_BOTH,
    _CODE.QUERY_MESSAGE: _IN_TOPIC,
    _CODE.VIEW_MESSAGE_BY_ID: _message_at(),
    _CODE.CONSUMER_SEND_MSG_BACK: _message_at(_group("group")),
    _CODE.QUERY_CONSUMER_OFFSET: _IN_BOTH,
    _CODE.UPDATE_CONSUMER_OFFSET: _IN_BOTH,
    _CODE.SEARCH_OFFSET_BY_TIMESTAMP: _IN_TOPIC,
    _CODE.GET_MAX_OFFSET: _IN_TOPIC,
    _CODE.GET_MIN_OFFSET: _IN_TOPIC,
    _CODE.GET_EARLIEST_MSG_STORETIME: _IN_TOPIC,
    _CODE.LOCK_BATCH_MQ: _lock,
    _CODE.UNLOCK_BATCH_MQ: _lock,
    _CODE.CHECK_CLIENT_CONFIG: _filter_check,
    _CODE.QUERY_ASSIGNMENT: _account,
    # All clients
    _CODE.HEART_BEAT: _heartbeat,
    _CODE.UNREGISTER_CLIENT: _IN_GROUP,
    _CODE.GET_CONSUMER_LIST_BY_GROUP: _IN_GROUP,
    _CODE.GET_ROUTEINFO_BY_TOPIC: _account,
    _CODE.GET_BROKER_CLUSTER_INFO: _account,
    _CODE.GET_BROKER_MEMBER_GROUP: _account,
    _CODE.GET_KV_CONFIG: _account,
    _CODE.GET_KVLIST_BY_NAMESPACE: _account,
    # What an application may read about its own topics and groups
    _CODE.GET_TOPIC_CONFIG: _of_fields(_topic("topic", EITHER)),
    _CODE.GET_TOPIC_STATS_INFO: _of_fields(_topic("topic", EITHER)),
    _CODE.QUERY_TOPIC_CONSUME_BY_WHO: _of_fields(_topic("topic", EITHER)),
    _CODE.GET_SUBSCRIPTIONGROUP_CONFIG: _IN_GROUP,
    _CODE.GET_CONSUMER_CONNECTION_LIST: _IN_GROUP,
    _CODE.GET_CONSUME_STATS: _IN_GROUP,
    _CODE.QUERY_TOPICS_BY_CONSUMER: _IN_GROUP,
    _CODE.QUERY_SUBSCRIPTION_BY_CONSUMER: _IN_GROUP,
    _CODE.QUERY_CONSUME_TIME_SPAN: _IN_BOTH,
    _CODE.QUERY_CONSUME_QUEUE: _IN_TOPIC,
    **dict.fromkeys(
        (
            _CODE.LIST_TRANSACTIONS,
            _CODE.SHOW_TRANSACTION,
            _CODE.SHOW_TRANSACTION_HISTORY,
            _CODE.LIST_TRANSACTION_MESSAGES,
            _CODE.DECIDE_TRANSACTION,
            _CODE.RECHECK_TRANSACTION,
            _CODE.RECHECK_TRANSACTIONS,
            _CODE.FOLLOW_LOG,
            _CODE.NOTE_COPIED,
            _CODE.FETCH_SPANS,
            _CODE.SHOW_COPIES,
            _CODE.CHANGE_SET,
            _CODE.LIST_AUDIT,
            _CODE.LIST_DELAYED,
            _CODE.RECALL_DELAYED,
            _CODE.SHOW_SETTINGS,
            _CODE.RESUME_CHECK_HALF_MESSAGE,
            _CODE.UPDATE_AND_CREATE_TOPIC,
            _CODE.DELETE_TOPIC_IN_BROKER,
            _CODE.GET_ALL_TOPIC_CONFIG,
            _CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            _CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            _CODE.DELETE_SUBSCRIPTIONGROUP,
            _CODE.GET_ALL_CONSUMER_OFFSET,
            _CODE.INVOKE_BROKER_TO_RESET_OFFSET,
            _CODE.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            _CODE.GET_CONSUMER_RUNNING_INFO,
            _CODE.CONSUME_MESSAGE_DIRECTLY,
            _CODE.QUERY_CORRECTION_OFFSET,
            _CODE.CLONE_GROUP_OFFSET,
            _CODE.SKIP_DAMAGED,
            _CODE.GET_BROKER_CONSUME_STATS,
            _CODE.GET_PRODUCER_CONNECTION_LIST,
            _CODE.GET_ALL_PRODUCER_INFO,
            _CODE.UPDATE_BROKER_CONFIG,
            _CODE.UPDATE_AND_CREATE_ACL_CONFIG,
            _CODE.DELETE_ACL_CONFIG,
            _CODE.GET_BROKER_CLUSTER_ACL_INFO,
            _CODE.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            _CODE.GET_BROKER_CLUSTER_ACL_CONFIG,
            _CODE.GET_BROKER_CONFIG,
            _CODE.GET_BROKER_RUNTIME_INFO,
            _CODE.VIEW_BROKER_STATS_DATA,
            _CODE.CLEAN_EXPIRED_CONSUMEQUEUE,
            _CODE.CLEAN_UNUSED_TOPIC,
            _CODE.DELETE_EXPIRED_COMMITLOG,
            _CODE.COUNT_TOPICS,
            # Name servers
            _CODE.REGISTER_BROKER,
            _CODE.UNREGISTER_BROKER,
            _CODE.BROKER_HEARTBEAT,
            _CODE.QUERY_DATA_VERSION,
            _CODE.PUT_KV_CONFIG,
            _CODE.DELETE_KV_CONFIG,
            _CODE.WIPE_WRITE_PERM_OF_BROKER,
            _CODE.ADD_WRITE_PERM_OF_BROKER,
            _CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            _CODE.GET_TOPICS_BY_CLUSTER,
            _CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            _CODE.GET_UNIT_TOPIC_LIST,
            _CODE.GET_HAS_UNIT_SUB_TOPIC_LIST,
            _CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            _CODE.DELETE_TOPIC_IN_NAMESRV,
            _CODE.REGISTER_TOPIC_IN_NAMESRV,
            _CODE.UPDATE_NAMESRV_CONFIG,
            _CODE.GET_NAMESRV_CONFIG,
        ),
        _admin,
    ),
}

CLIENT_REQUESTS: Final = frozenset(
    int(code) for code, requirement in REQUIREMENTS.items() if requirement is not _admin
)
"""The requests of producers and consumers; all others are for administrators."""

REGISTRATIONS: Final = frozenset(
    (
        _CODE.REGISTER_BROKER,
        _CODE.UNREGISTER_BROKER,
        _CODE.BROKER_HEARTBEAT,
        _CODE.QUERY_DATA_VERSION,
    )
)
"""The requests of brokers to a name server; stock brokers cannot sign them."""
