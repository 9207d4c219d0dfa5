"""Every wire name, copied from the tables of the protocol and compared letter by letter.

``!`` marks what the reference decoder requires. A class here may require less, where clients
are known to leave a field out; these exceptions are listed with their reason.
"""

import msgspec
import pytest

from txmq.protocol import bodies, headers, operations
from txmq.protocol.bodies import Body, MessageQueue
from txmq.protocol.headers import Header

SEND = (
    "producerGroup! topic! defaultTopic! defaultTopicQueueNums! queueId! sysFlag! bornTimestamp! "
    "flag! properties reconsumeTimes unitMode maxReconsumeTimes batch bname"
)

HEADERS = {
    "SendMessage": SEND,
    "SendMessageV2": "a! b! c! d! e! f! g! h! i j k l m n",
    "SignedSend": "a! b! c! d! e! f! g! h! i j k l m n AccessKey! Signature!",
    "SendAnswer": "msgId! queueId! queueOffset! transactionId recallHandle",
    "RecallMessage": "topic! recallHandle! producerGroup bname",
    "RecallAnswer": "msgId!",
    "SendBack": (
        "offset! group! delayLevel! originMsgId originTopic unitMode maxReconsumeTimes reason"
    ),
    "EndTransaction": (
        "producerGroup! tranStateTableOffset! commitLogOffset! commitOrRollback! "
        "fromTransactionCheck msgId! transactionId topic others"
    ),
    "ListTransactions": "state producerGroup fromOffset count",
    "NamedTransaction": "transactionId!",
    "DecideTransaction": "transactionId! decision! operator! reason!",
    "ResumeCheck": "msgId topic",
    "CheckState": "tranStateTableOffset! commitLogOffset! msgId transactionId offsetMsgId",
    "PullMessage": (
        "consumerGroup! topic! queueId! queueOffset! maxMsgNums! sysFlag! commitOffset! "
        "suspendTimeoutMillis! subVersion! subscription expressionType maxMsgBytes deadLetters"
    ),
    "PullAnswer": "suggestWhichBrokerId! nextBeginOffset! minOffset! maxOffset!",
    "QueueHeader": "topic! queueId!",
    "OffsetByTime": "topic! queueId! timestamp! boundaryType",
    "OffsetQuery": "consumerGroup! topic! queueId! setZeroIfNotFound",
    "OffsetCommit": "consumerGroup! topic! queueId! commitOffset!",
    "OffsetAnswer": "offset!",
    "TimestampAnswer": "timestamp!",
    "MessageQuery": "topic! key! maxNum! beginTimestamp! endTimestamp!",
    "QueryAnswer": "indexLastUpdateTimestamp! indexLastUpdatePhyoffset!",
    "MessagePosition": "offset! topic",
    "ClientGroups": "clientID! producerGroup consumerGroup",
    "GroupHeader": "consumerGroup! topic",
    "NamedGroup": "producerGroup group",
    "ConsumeStatsQuery": "consumerGroup! topic topicList",
    "BrokerStatsQuery": "isOrder!",
    "CorrectionQuery": "compareGroup! topic! filterGroups",
    "CloneOffset": "srcGroup! destGroup! topic offline",
    "QueueEntriesQuery": "topic! queueId! index! count! consumerGroup",
    "DeleteGroup": "groupName! removeOffset cleanOffset",
    "TopicAndGroup": "topic! group!",
    "SubscriptionQuery": "group! topic",
    "ConsumerStatusQuery": "topic! group! clientAddr",
    "TopicHeader": "topic!",
    "TopicSettings": (
        "topic! defaultTopic! readQueueNums! writeQueueNums! perm! topicFilterType! topicSysFlag "
        "order! attributes"
    ),
    "ResetOffset": "topic! group! timestamp! isForce! queueId offset",
    "ReplyPush": (
        "producerGroup! topic! defaultTopic! defaultTopicQueueNums! queueId! sysFlag! "
        "bornTimestamp! flag! bornHost! storeHost! storeTimestamp! properties reconsumeTimes "
        "unitMode"
    ),
    "BrokerConfigAnswer": "version!",
    "ConsumeDirectly": "consumerGroup! clientId msgId jstackEnable",
    "StatsQuery": "statsName! statsKey!",
    "RouteQuery": "topic! acceptStandardJsonOnly",
    "BrokerRegistration": (
        "brokerName! brokerAddr! clusterName! haServerAddr! brokerId! compressed bodyCrc32 "
        "heartbeatTimeoutMillis txmqProof"
    ),
    "RegistrationAnswer": "haServerAddr masterAddr",
    "BrokerUnregistration": "brokerName! brokerAddr! clusterName! brokerId! txmqProof",
    "ListAudit": "before sinceMs untilMs person action refused count",
    "ListDelayed": "level fromMs after count",
    "RecallDelayed": "topic! recallHandle! operator! reason!",
    "SkipDamaged": "consumerGroup! topic! queueId! offset! through! operator! reason!",
    "RecheckTransaction": "transactionId! operator reason",
    "RecheckTransactions": "state producerGroup fromOffset operator reason",
    "RecheckedTransactions": "rechecked! nextOffset!",
    "AccountChange": (
        "accessKey! secretKey whiteRemoteAddress admin defaultTopicPerm defaultGroupPerm "
        "topicPerms groupPerms"
    ),
    "AccountName": "accessKey!",
    "AddressesChange": "globalWhiteAddrs! aclFileFullPath",
    "AccountsVersion": "version! allAclFileVersion! brokerName! brokerAddr! clusterName!",
    "BrokerHeartbeat": "brokerName! brokerAddr! clusterName! brokerId",
    "BrokerMembersQuery": "clusterName! brokerName!",
    "NamedBroker": "brokerName!",
    "WritePermissionAnswer": "wipeTopicCount addTopicCount",
    "TopicDeletion": "topic! clusterName",
    "ClusterHeader": "cluster!",
    "DataVersionAnswer": "changed!",
    "KeyValue": "namespace! key value",
}

LENIENT = {
    "EndTransaction": {"msgId"},  # found by offset; the id is only shown
    "TopicSettings": {"topicFilterType", "order"},  # ali-ons and Go tools leave them out
    "ResetOffset": {"isForce"},  # absent in requests to consumers
}

BODIES = {
    "SubscriptionData": (
        "topic subString tagsSet codeSet subVersion expressionType classFilterMode"
    ),
    "ProducerRegistration": "groupName",
    "ConsumerRegistration": (
        "groupName consumeType messageModel consumeFromWhere subscriptionDataSet unitMode"
    ),
    "HeldQueue": "commitOffset cachedMsgMinOffset cachedMsgMaxOffset cachedMsgCount "
    "cachedMsgSizeInMiB locked droped lastPullTimestamp lastConsumeTimestamp",
    "ConsumedDirectly": "order autoCommit consumeResult remark spentTimeMills",
    "Heartbeat": "clientID producerDataSet consumerDataSet",
    "AssignmentQuery": "consumerGroup clientId",
    "SubscriptionCheck": "clientId group subscriptionData",
    "BrokerMembers": "brokerMemberGroup",
    "ConsumerIds": "consumerIdList",
    "TransactionEntry": (
        "transactionId state producerGroup topic queueId halfOffset commitLogOffset offsetMsgId "
        "keys storedMs checks clientId isBeingDecided xid"
    ),
    "OpenTransactions": "transactions open parked ofGroup",
    "TransactionMessages": "messages",
    "ClientConnection": "clientAddr clientId language version",
    "ConsumerConnections": (
        "connectionSet consumeFromWhere consumeType messageModel subscriptionTable"
    ),
    "ProducerConnections": "connectionSet",
    "GroupList": "groupList",
    "LockRequest": "clientId consumerGroup mqSet",
    "LockedQueues": "lockOKMQSet",
    "DataVersion": "timestamp counter stateVersion",
    "TopicConfig": (
        "topicName readQueueNums writeQueueNums perm topicFilterType topicSysFlag order"
    ),
    "TopicConfigs": "dataVersion topicConfigTable",
    "RegistrationBody": "topicConfigSerializeWrapper filterServerList",
    "GroupConfig": (
        "groupName consumeEnable consumeFromMinEnable consumeBroadcastEnable retryQueueNums "
        "retryMaxTimes brokerId whichBrokerWhenConsumeSlowly notifyConsumerIdsChangedEnable"
    ),
    "GroupConfigs": "dataVersion subscriptionGroupTable",
    "GroupConfigList": "groupConfigList",
    "QueueRoute": "brokerName readQueueNums writeQueueNums perm topicSysFlag",
    "BrokerRoute": "brokerName brokerAddrs cluster",
    "TopicRoute": "queueDatas brokerDatas filterServerTable orderTopicConf",
    "ClusterView": "brokerAddrTable clusterAddrTable",
    "TopicCounts": "topics deadLetterGroups deadLetters",
    "TopicNames": "topicList brokerAddr",
    "TextTable": "table",
    "OffsetPair": "brokerOffset consumerOffset lastTimestamp pullOffset",
    "QueueEntry": "physicOffset physicSize tagsCode",
    "QueueEntries": "queueData maxQueueIndex minQueueIndex filterData subscriptionData",
    "SubscriptionAnswer": "group topic subscriptionData",
    "CounterWindow": "sum tps avgpt",
    "CounterView": "statsMinute statsHour statsDay",
    "QueueStats": "minOffset maxOffset lastUpdateTimestamp",
    "ConsumeStats": "consumeTps",
    "ConsumeTimeSpan": ("messageQueue minTimeStamp maxTimeStamp consumeTimeStamp delayTime"),
    "ConsumeTimeSpans": "consumeTimeSpanSet",
    "ConsumerOffsets": "offsetTable skippedDamage",
    "ConsumerState": "properties subscriptionSet",
    "RegisteredProducer": "clientId remoteIP language version lastUpdateTimestamp",
    "AllProducers": "data",
    "CorrectionOffsets": "correctionOffsets",
    "AuditedRequest": "atMs request peer account fields body refused",
    "AuditPage": "entries next",
    "DelayedEntry": (
        "dueMs level topic queueId messageId keys tags size storedMs offsetMsgId "
        "recallHandle problem"
    ),
    "DelayLevelEntry": "level delayMs waiting",
    "DelayedPage": "messages levels waiting next",
    "SettingEntry": "name value key default source canChange",
    "SettingsView": "settings",
    "CheckEntry": "askedMs clientId address answer answeredMs",
    "RecheckEntry": "atMs operator account address reason",
    "DecisionEntry": "kind source atMs reason offsetMsgId",
    "TransactionHistory": (
        "transaction bornMs bornHost decisions checks checkMax nextCheckMs "
        "waitsForProducer producers rechecks"
    ),
    "PlainAccount": (
        "accessKey whiteRemoteAddress admin defaultTopicPerm defaultGroupPerm topicPerms groupPerms"
    ),
    "Accounts": "globalWhiteAddrs plainAccessConfigs",
}


def every(base):
    return [base] + [leaf for child in base.__subclasses__() for leaf in every(child)]


def shapes_of(module, base):
    """The classes of the module itself: others may have classes for files, which are never sent."""
    return {
        shape.__name__: shape
        for shape in every(base)
        if shape.__module__ == module.__name__ and shape is not base
    }


SHAPES = shapes_of(headers, Header) | shapes_of(operations, Header)
BODY_SHAPES = shapes_of(bodies, Body) | shapes_of(operations, Body)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_header_has_the_names_of_the_protocol(name):
    row = HEADERS[name].split()

    assert SHAPES[name].__struct_encode_fields__ == tuple(field.rstrip("!") for field in row)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_header_requires_the_fields_that_the_reference_decoder_requires(name):
    row = HEADERS[name].split()
    required = {
        field.encode_name for field in msgspec.structs.fields(SHAPES[name]) if field.required
    }

    expected = {field.rstrip("!") for field in row if field.endswith("!")}
    assert required == expected - LENIENT.get(name, set())


def test_every_class_has_a_row_in_the_tables():
    assert set(SHAPES) == set(HEADERS)
    assert set(BODY_SHAPES) == set(BODIES)


@pytest.mark.parametrize("name", sorted(BODY_SHAPES))
def test_a_body_has_the_names_of_the_protocol(name):
    assert BODY_SHAPES[name].__struct_encode_fields__ == tuple(BODIES[name].split())


def test_a_queue_has_the_names_of_the_protocol_in_java_s_order():
    assert MessageQueue.__struct_encode_fields__ == ("brokerName", "queueId", "topic")


@pytest.mark.parametrize(("module", "base"), [(headers, Header), (bodies, Body)])
def test_every_header_and_body_class_is_public(module, base):
    assert set(shapes_of(module, base)) <= set(module.__all__)
