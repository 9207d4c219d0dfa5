"""The commands of RocketMQ's mqadmin and our equivalents, for ``--help`` and a reference page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["EQUIVALENTS", "Equivalent", "help_line"]


class Equivalent(NamedTuple):
    """txmq's equivalent of a command of mqadmin."""

    commands: tuple[str, ...] = ()
    """Without ``txmq``; none if there is no equivalent."""
    text: str = ""
    """What differs, or why txmq has no equivalent."""


_CONTROLLER: Final = Equivalent(text="txmq has no controller: etcd keeps the leases of broker sets")
_ROCKSDB: Final = Equivalent(text="txmq keeps nothing in RocksDB")
_COLD: Final = Equivalent(text="txmq does not limit reads of old data by group")
_CONTAINER: Final = Equivalent(text="each `txmq serve` is one broker; start or stop its process")
_STATIC: Final = Equivalent(text="txmq has no static topics")
_ACL_2: Final = "txmq has RocketMQ 4's access control: an account has its permissions itself"

EQUIVALENTS: Final[Mapping[str, Equivalent]] = {
    "addBroker": _CONTAINER,
    "addWritePerm": Equivalent(("cluster undrain",)),
    "allocateMQ": Equivalent(
        ("group status",), "shows the division that the consumers have, instead of computing one"
    ),
    "brokerConsumeStats": Equivalent(("group monitor", "group progress")),
    "brokerStatus": Equivalent(("broker status",)),
    "checkMsgSendRT": Equivalent(
        ("message send",), "the time is that of one message; clients measure their own sends"
    ),
    "checkRocksdbCqWriteProgress": _ROCKSDB,
    "cleanBrokerMetadata": Equivalent(("cluster remove",)),
    "cleanExpiredCQ": Equivalent(text="the entries of a queue are deleted with their messages"),
    "cleanUnusedTopic": Equivalent(
        text="`txmq topic delete` removes a topic's data; RocketMQ's tool can remove late offsets"
    ),
    "cloneGroupOffset": Equivalent(("group clone",), "one topic at a time"),
    "clusterAclConfigVersion": Equivalent(("acl show",), "reads the file of accounts"),
    "clusterList": Equivalent(("cluster list", "cluster status", "broker status")),
    "clusterRT": Equivalent(("message send",), "as for `checkMsgSendRT`; `/metrics` has latencies"),
    "consumeMessage": Equivalent(("message pull",), "no group's offset moves"),
    "consumerConnection": Equivalent(("group clients", "topic clients")),
    "consumerProgress": Equivalent(
        ("group progress", "group monitor"), "of one group, or of all groups"
    ),
    "consumerStatus": Equivalent(("group status",), "without stack traces"),
    "copyAcl": Equivalent(text=_ACL_2),
    "copyUser": Equivalent(("acl add",), "at all brokers of a cluster at once"),
    "createAcl": Equivalent(("acl add",), _ACL_2),
    "createUser": Equivalent(("acl add",)),
    "deleteAcl": Equivalent(("acl add",), _ACL_2),
    "deleteAclConfig": Equivalent(("acl remove",)),
    "deleteExpiredCommitLog": Equivalent(
        ("broker config set",), "files go each day at `deleteWhen`, and when the disk gets full"
    ),
    "deleteKvConfig": Equivalent(text="as for `updateKvConfig`"),
    "deleteSubGroup": Equivalent(("group delete",)),
    "deleteTopic": Equivalent(("topic delete",)),
    "deleteUser": Equivalent(("acl remove",)),
    "dumpCompactionLog": Equivalent(text="txmq has no compacted topics"),
    "electMaster": Equivalent(("cluster promote",)),
    "exportConfigs": Equivalent(("broker config get",), "with `--all --json`"),
    "exportMetadata": Equivalent(("topic list", "group list"), "with `--all --json`"),
    "exportMetadataInRocksDB": _ROCKSDB,
    "exportMetrics": Equivalent(("broker status",), "with `--all --json`"),
    "exportPopRecord": Equivalent(text="as for `setConsumeMode`"),
    "getAcl": Equivalent(("acl show", "acl test")),
    "getBrokerConfig": Equivalent(("broker config get",)),
    "getBrokerEpoch": Equivalent(("cluster status",)),
    "getColdDataFlowCtrInfo": _COLD,
    "getConsumerConfig": Equivalent(("group list",), "with `--match NAME --json`"),
    "getControllerConfig": _CONTROLLER,
    "getControllerMetaData": _CONTROLLER,
    "getNamesrvConfig": Equivalent(
        text="a name server has the options with which `txmq names` started"
    ),
    "getSyncStateSet": Equivalent(("cluster status",)),
    "getUser": Equivalent(("acl list",)),
    "haStatus": Equivalent(("cluster status",)),
    "listAcl": Equivalent(("acl list",)),
    "listUser": Equivalent(("acl list",)),
    "printMsg": Equivalent(("message pull",)),
    "printMsgByQueue": Equivalent(("message pull",), "with `--queue broker:number`"),
    "producer": Equivalent(("producer list",)),
    "producerConnection": Equivalent(("producer list",), "with `--group`"),
    "queryCq": Equivalent(
        ("message pull",), "shows messages of a queue; RocketMQ's tool shows bare index entries"
    ),
    "queryMsgById": Equivalent(
        ("message view", "message consume-directly"), "the second for its options `-g` and `-d`"
    ),
    "queryMsgByKey": Equivalent(("message query",)),
    "queryMsgByOffset": Equivalent(("message pull",), "with `--queue` and `--offset`"),
    "queryMsgByUniqueKey": Equivalent(("message view",), "with `--topic`"),
    "queryMsgTraceById": Equivalent(("message trace", "trace tail"), "the second follows new ones"),
    "remappingStaticTopic": _STATIC,
    "removeBroker": _CONTAINER,
    "removeColdDataFlowCtrGroupConfig": _COLD,
    "resetMasterFlushOffset": Equivalent(text="followers tell their leader what they have synced"),
    "resetOffsetByTime": Equivalent(("group reset",)),
    "rocksDBConfigToJson": _ROCKSDB,
    "sendMessage": Equivalent(("message send",)),
    "sendMsgStatus": Equivalent(("message send",), "shows the result of one send"),
    "setCommitLogReadAheadMode": Equivalent(text="txmq does not map its log into memory"),
    "setConsumeMode": Equivalent(text="txmq has no pop consumers"),
    "skipAccumulatedMessage": Equivalent(("group skip",)),
    "startMonitoring": Equivalent(("group monitor",), "with `--watch`, or `--lag-max` in scripts"),
    "statsAll": Equivalent(("stats",)),
    "topicClusterList": Equivalent(("topic route", "cluster list")),
    "topicList": Equivalent(("topic list",)),
    "topicRoute": Equivalent(("topic route",)),
    "topicStatus": Equivalent(("topic status",)),
    "updateAcl": Equivalent(("acl add",), _ACL_2),
    "updateAclConfig": Equivalent(("acl add",)),
    "updateBrokerConfig": Equivalent(("broker config set",)),
    "updateColdDataFlowCtrGroupConfig": _COLD,
    "updateControllerConfig": _CONTROLLER,
    "updateGlobalWhiteAddr": Equivalent(
        ("acl add",), "permits addresses for an account, with `--unsigned-from`, not for all"
    ),
    "updateKvConfig": Equivalent(
        text="name servers take the request from RocketMQ's tool; no command of txmq needs it"
    ),
    "updateNamesrvConfig": Equivalent(text="as for `getNamesrvConfig`"),
    "updateOrderConf": Equivalent(
        ("topic create", "topic update"), "with `--order`, which keeps all queues of the topic"
    ),
    "updateStaticTopic": _STATIC,
    "updateSubGroup": Equivalent(("group create",)),
    "updateSubGroupList": Equivalent(("group create",), "one group at a time"),
    "updateTopic": Equivalent(("topic create", "topic update")),
    "updateTopicList": Equivalent(("topic create", "topic update"), "one topic at a time"),
    "updateTopicPerm": Equivalent(("topic permit",)),
    "updateUser": Equivalent(("acl add",)),
    "wipeWritePerm": Equivalent(("cluster drain",)),
}
"""By mqadmin's name: all of RocketMQ 4.9.8 and 5.3."""


def help_line(command: str) -> str:
    """The line of a command's help that names mqadmin's; empty if mqadmin has none.

    Args:
        command: The command, without ``txmq``.
    """
    names = [name for name, found in EQUIVALENTS.items() if command in found.commands]
    return f"As mqadmin's {', '.join(names)}." if names else ""
