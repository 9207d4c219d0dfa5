"""RocketMQ's names for a broker's settings: what each means here, or why it means nothing.

All broker settings of RocketMQ 4.2 to 5.3 are here. So this broker starts with a ``broker.conf``
that is in use, or refuses it and names the line that asks for a feature that does not exist here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from txmq.protocol.topics import TRACES
from txmq.remoting.pool import split_address
from txmq.settings.loading import Alias, Derived, ForeignName, OneValue, Unused

__all__ = ["NAMES", "milliseconds", "percent"]

_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_LOOKS_LIKE_MS: Final = 1000
_SoFar = Callable[[str], Any]
_Notice = Callable[[str], None]


# How values are read


def _truth(value: object) -> object:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text


def _whole(value: object, unit: str, least: int = 1, most: int | None = None) -> int:
    text = str(value).strip()
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise ValueError(
            f"a whole number {unit}, {least} or more"
            if most is None
            else f"a whole number {unit} from {least} to {most}"
        )
    return int(text)


def _hours(value: object) -> object:
    return f"{_whole(value, 'of hours')}h"


def _hours_of_day(value: object) -> object:
    text = str(value).strip()
    for hour in text.split(";"):
        if not (hour.strip().isdecimal() and int(hour) < 24):
            raise ValueError("hours from 0 to 23, separated by ';', such as 04 or 04;16")
    return text


def percent(value: object) -> float:
    """A fraction of 1, written as a whole number of percent.

    Raises:
        ValueError: It is not one; the text says what is accepted.
    """
    return _whole(value, "as a percentage", 1, 100) / 100


def milliseconds(value: object) -> object:
    """A duration, written as a whole number of milliseconds, 1 or more.

    Raises:
        ValueError: It is not one; the text says what is accepted.
    """
    return f"{_whole(value, 'of milliseconds')}ms"


def _milliseconds_or_duration(value: object) -> object:
    text = str(value).strip()
    return f"{text}ms" if _NUMBER.fullmatch(text) else value


def _seconds_or_duration(value: object) -> object:
    text = str(value).strip()
    if _NUMBER.fullmatch(text) and float(text) >= _LOOKS_LIKE_MS:
        raise ValueError("seconds, or a duration with its unit such as 60s or 60000ms")
    return value


def _check_interval(value: object, so_far: _SoFar, notice: _Notice) -> Mapping[str, object]:
    del so_far
    text = str(value).strip()
    key = "transaction.check_interval"
    if not _NUMBER.fullmatch(text):
        return {key: value}
    if float(text) >= _LOOKS_LIKE_MS:
        return {key: f"{text}ms"}
    notice(
        f"transactionCheckInterval={text} counts as {text} seconds, as tutorials write it; "
        f"RocketMQ itself counts milliseconds. Write {text}s or {text}ms"
    )
    return {key: f"{text}s"}


def _flush(value: object) -> object:
    modes = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    if str(value).strip() not in modes:
        raise ValueError(" or ".join(modes))
    return modes[str(value).strip()]


_ROLES: Final[Mapping[str, Mapping[str, object]]] = {
    "ASYNC_MASTER": {"replication.role": "leader"},
    "SYNC_MASTER": {"replication.role": "leader", "replication.mode": "sync"},
    "SLAVE": {"replication.role": "follower"},
}


def _role(value: object, *_: object) -> Mapping[str, object]:
    if str(value).strip() not in _ROLES:
        raise ValueError(" or ".join(_ROLES))
    return _ROLES[str(value).strip()]


def _member(value: object, *_: object) -> Mapping[str, object]:
    number = _whole(value, "as the number of a replica", 0)
    return {"replication.member": str(number)} if number else {}


def _disk_mark(value: object, so_far: _SoFar, notice: _Notice) -> Mapping[str, object]:
    wanted, forced = percent(value), so_far("retention.force_above")
    if wanted > forced:
        notice(
            f"diskMaxUsedSpaceRatio={value} counts as {forced:.0%}: above "
            "diskSpaceCleanForciblyRatio files are deleted in any case"
        )
    return {"retention.delete_above": min(wanted, forced)}


def _with_accounts(value: object, so_far: _SoFar, notice: _Notice) -> dict[str, object]:
    del notice
    if _truth(value) == "false":
        return {"acl": ""}
    if not so_far("acl"):
        raise ValueError("true only if acl names the file of accounts before it")
    return {}


def _need_client_certificate(value: object, so_far: _SoFar, notice: _Notice) -> dict[str, object]:
    del notice
    text = str(value).strip().lower()
    if text in ("none", "false"):
        return {"tls.client_ca": ""}
    if text not in ("require", "true"):
        raise ValueError("require or none: a certificate that may be absent proves nothing")
    if not so_far("tls.client_ca"):
        raise ValueError("require only if tls.server.trustCertPath names the authorities before it")
    return {}


def _no_halves(value: object, so_far: _SoFar, notice: _Notice) -> Mapping[str, object]:
    del so_far, notice
    return {"transaction.pending_max": 0} if _truth(value) == "true" else {}


# Addresses: listenPort, brokerIP1 and bindAddress together are our listen and advertise


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen_port(value: object, so_far: _SoFar, notice: _Notice) -> Mapping[str, object]:
    del notice
    port = _whole(value, "as a port", 0, 65535)
    return {
        key: _joined(split_address(so_far(key))[0], port)
        for key in ("listen", "advertise")
        if so_far(key)
    }


def _client_address(value: object, so_far: _SoFar, notice: _Notice) -> Mapping[str, object]:
    del notice
    address = _numeric(value)
    host, port = split_address(so_far("listen"))
    if str(address) == host:
        return {}
    if address.is_loopback:
        return {"listen": _joined(str(address), port)}
    # As in RocketMQ: clients connect to this address, and something else may translate it to ours.
    every = "::" if address.version == 6 else "0.0.0.0"  # noqa: S104  # bindAddress can say less
    return {"listen": _joined(every, port), "advertise": _joined(str(address), port)}


def _bind_address(value: object, so_far: _SoFar, notice: _Notice) -> Mapping[str, object]:
    del notice
    return {"listen": _joined(str(_numeric(value)), split_address(so_far("listen"))[1])}


def _numeric(value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(str(value).strip())
    except ValueError:
        raise ValueError("a numeric address such as 192.0.2.1") from None


# The names

_KEPT: Final[dict[str, ForeignName]] = {
    "brokerName": Alias("name"),
    "brokerClusterName": Alias("cluster"),
    "namesrvAddr": Alias("names", text="with any, no own name server is run"),
    "listenPort": Derived(("listen", "advertise"), _listen_port, "the port of both"),
    "brokerIP1": Derived(
        ("listen", "advertise"),
        _client_address,
        "the address that clients receive; unless it is a loopback address, the broker then "
        "listens on every address, as RocketMQ does",
    ),
    "bindAddress": Derived(("listen",), _bind_address, "the address alone, over `brokerIP1`"),
    "storePathRootDir": Alias("data"),
    "brokerRole": Derived(
        ("replication.role", "replication.mode"), _role, "`ASYNC_MASTER`, `SYNC_MASTER` or `SLAVE`"
    ),
    "brokerId": Derived(("replication.member",), _member, "from 1 on the name of a follower"),
    "slaveTimeout": Alias("replication.wait_max", milliseconds, "milliseconds"),
    "slaveReadEnable": Alias("replication.reads", _truth),
    "accessMessageInMemoryMaxRatio": Alias("replication.far_behind", percent, "percent"),
    "flushDiskType": Alias("store.flush", _flush, "`SYNC_FLUSH` or `ASYNC_FLUSH`"),
    "flushIntervalCommitLog": Alias("store.flush_interval", milliseconds, "milliseconds"),
    "mappedFileSizeCommitLog": Alias("store.segment_size", text="bytes"),
    "mapedFileSizeCommitLog": Alias("store.segment_size", text="bytes"),
    "fileReservedTime": Alias("retention.keep", _hours, "hours"),
    "deleteWhen": Alias("retention.delete_at", _hours_of_day, "hours of the day, separated by `;`"),
    "diskSpaceWarningLevelRatio": Alias("retention.refuse_above", percent, "percent"),
    "diskSpaceCleanForciblyRatio": Alias("retention.force_above", percent, "percent"),
    "diskMaxUsedSpaceRatio": Derived(
        ("retention.delete_above",),
        _disk_mark,
        "percent; no more than `diskSpaceCleanForciblyRatio` has an effect",
    ),
    "maxMessageSize": Alias("topics.message_size_max", text="bytes"),
    "defaultTopicQueueNums": Alias("topics.queues"),
    "autoCreateTopicEnable": Alias("topics.auto_create", _truth),
    "autoCreateSubscriptionGroup": Alias("topics.auto_create_groups", _truth),
    "traceTopicEnable": Alias("topics.traces", _truth),
    "enablePropertyFilter": Alias("filter.sql", _truth),
    "messageDelayLevel": Alias("delay.levels"),
    "timerMaxDelaySec": Alias("delay.longest", text="seconds"),
    "longPollingEnable": Alias("long_polling", _truth),
    "shortPollingTimeMills": Alias("short_polling", milliseconds, "milliseconds"),
    "transactionTimeOut": Alias(
        "transaction.timeout", _milliseconds_or_duration, "milliseconds, or with a unit"
    ),
    "transactionTimeout": Alias(
        "transaction.timeout",
        _seconds_or_duration,
        "seconds: the spelling and the unit of tutorials, which RocketMQ itself ignores",
    ),
    "transactionCheckMax": Alias("transaction.check_max"),
    "transactionCheckInterval": Derived(
        ("transaction.check_interval",),
        _check_interval,
        "milliseconds, or with a unit; a number below 1000 counts seconds, as in tutorials, "
        "and the start says so",
    ),
    "aclEnable": Derived(
        ("acl",), _with_accounts, "`true` needs `acl`, the file of accounts; `false` takes it away"
    ),
    "tls.server.mode": Alias("tls.mode"),
    "tls.server.certPath": Alias("tls.certificate"),
    "tls.server.keyPath": Alias("tls.key"),
    "tls.server.trustCertPath": Alias(
        "tls.client_ca", text="with it, client certificates are required"
    ),
    "tls.server.need.client.auth": Derived(
        ("tls.client_ca",),
        _need_client_certificate,
        "`require` needs `tls.client_ca`; `none` takes it away",
    ),
    "tls.server.authClient": Derived(
        ("tls.client_ca",),
        _need_client_certificate,
        "`true` needs `tls.client_ca`; `false` takes it away",
    ),
    "rejectTransactionMessage": Derived(
        ("transaction.pending_max",), _no_halves, "`true` sets it to 0"
    ),
}

_NO_COPIES: Final = "copies follow replication.mode and replication.min_in_sync"
_NO_ACCESS: Final = (
    "the access control of RocketMQ 5 does not exist here; set acl to a file of accounts, as in "
    "RocketMQ's plain_acl.yml"
)
_OWN_CONNECTIONS: Final = (
    "the connections of the broker to name servers take TXMQ_TLS and the variables after it; the "
    "ports take tls.mode"
)
_NO_TEMPLATE: Final = "the topics named after the broker and its cluster are always there"

_FIXED: Final[dict[str, ForeignName]] = {
    "authenticationEnabled": OneValue("false", _NO_ACCESS),
    "authorizationEnabled": OneValue("false", _NO_ACCESS),
    "tls.test.mode.enable": OneValue("false", "TLS needs a certificate; set tls.certificate"),
    "tls.server.keyPassword": OneValue("", "write the key without a password, for its owner alone"),
    "tls.config.file": OneValue("", "write the lines of that file into this one"),
    "useTLS": OneValue("false", _OWN_CONNECTIONS),
    "tls.enable": OneValue("false", _OWN_CONNECTIONS),
    "tls.client.authServer": OneValue("true", _OWN_CONNECTIONS),
    "tls.client.trustCertPath": OneValue("", _OWN_CONNECTIONS),
    "tls.client.certPath": OneValue("", _OWN_CONNECTIONS),
    "tls.client.keyPath": OneValue("", _OWN_CONNECTIONS),
    "tls.client.keyPassword": OneValue("", _OWN_CONNECTIONS),
    "allAckInSyncStateSet": OneValue("false", _NO_COPIES),
    "duplicationEnable": OneValue("false", _NO_COPIES),
    "enableControllerMode": OneValue("false", _NO_COPIES),
    "enableDLegerCommitLog": OneValue("false", _NO_COPIES),
    "enableSlaveActingMaster": OneValue("false", _NO_COPIES),
    "inSyncReplicas": OneValue("1", _NO_COPIES),
    "minInSyncReplicas": OneValue("1", _NO_COPIES),
    "totalReplicas": OneValue("1", _NO_COPIES),
    "retryAnotherBrokerWhenNotStoreOK": OneValue(
        "false",
        "a broker cannot do it, a producer can: ProducerSettings(retry_not_safe=True), or in Java "
        "producer.setRetryAnotherBrokerWhenNotStoreOK(true)",
    ),
    "brokerPermission": OneValue("6", "permissions belong to topics, and `txmq topic` sets them"),
    "brokerTopicEnable": OneValue("true", _NO_TEMPLATE),
    "clusterTopicEnable": OneValue("true", _NO_TEMPLATE),
    "msgTraceTopicName": OneValue(
        TRACES, "make another topic with txmq topic create NAME, and name it in the clients"
    ),
    "cleanFileForciblyEnable": OneValue(
        "true",
        "a disk that fills up always costs the oldest files first; diskSpaceCleanForciblyRatio "
        "says from where on",
    ),
    "fetchNamesrvAddrByAddressServer": OneValue(
        "false", "name servers are not looked up at an HTTP address; give namesrvAddr"
    ),
    "litePullMessageEnable": OneValue("true", "pulls of both kinds are always answered"),
    "rejectPullConsumerEnable": OneValue("false", "pull consumers cannot be turned away"),
    "defaultMessageRequestMode": OneValue("PULL", "consuming by pop does not exist here"),
    "enableLmq": OneValue("false", "light queues do not exist here"),
    "enableMultiDispatch": OneValue("false", "a message lies in one queue of one topic"),
    "messageStorePlugIn": OneValue("", "the store has no plug-ins"),
    "startAcceptSendRequestTimeStamp": OneValue("0", "sends are taken from the start"),
}


class _Group(NamedTuple):
    """Names without a meaning here, and the reason that they share."""

    why: str
    names: str


_UNUSED: Final = (
    _Group(
        "one event loop serves every request: there are no thread pools, no queues in front of "
        "them and no locks between them",
        """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums
        adminBrokerThreadPoolQueueCapacity asyncSendEnable batchDispatchRequestThreadPoolNums
        brokerFastFailureEnable clientAsyncSemaphoreValue clientCallbackExecutorThreads
        clientManagerThreadPoolQueueCapacity clientManageThreadPoolNums clientOnewaySemaphoreValue
        clientWorkerThreads consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
        debugLockEnable disableCallbackExecutor disableNettyWorkerGroup dispatchCqCacheNum
        dispatchCqThreads dispatchFromSenderThread enableAsyncReput enableFastChannelEventProcess
        enableNetWorkFlowControl endTransactionPoolQueueCapacity endTransactionThreadPoolNums
        heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode
        litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
        loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
        maxAsyncPutMessageRequests osPageCacheBusyTimeOutMills processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums
        putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity replyThreadPoolQueueCapacity
        sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
        serverCallbackExecutorThreads serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
        serverSelectorThreads serverWorkerThreads spinLockCollisionRetreatOptimalDegree
        syncFlushTimeout topicQueueLockNum useABSLock useReentrantLockWhenPutMessage
        waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
        waitTimeMillsInTransactionQueue
        """,
    ),
    _Group(
        "asyncio and the operating system size the buffers of connections; silent clients are "
        "dropped after RocketMQ's own default of two minutes",
        """
        channelExpiredTimeout channelNotActiveInterval clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
        clientSocketSndBufSize connectTimeoutMillis enableReconnectForGoAway
        enableShutdownGracefully isScanAvailableNameSrv maxReconnectIntervalTimeSeconds
        printChannelGroups printChannelGroupsMinNum serverChannelMaxIdleTimeSeconds
        serverPooledByteBufAllocatorEnable serverSocketBacklog serverSocketRcvBufSize
        serverSocketSndBufSize shutdownWaitTimeSeconds socksProxyConfig subscriptionExpiredTimeout
        useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark
        """,
    ),
    _Group(
        "the log is written and synced by flushDiskType, is checked by checksums whenever it is "
        "read, and the broker always keeps its indexes and rebuilds them where they are missing",
        """
        bitMapLengthConsumeQueueExt checkCRCOnRecover cleanResourceInterval
        commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
        correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval dataReadAheadEnable
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax
        destroyMapedFileIntervalForcibly enableConsumeQueueExt enabledAppendPropCRC
        enableLogConsumeQueueRepeatedlyBuildWhenRecover enableRunningFlagsInFlush
        fastFailIfNoBufferInStorePool flushCommitLogLeastPages flushCommitLogThoroughInterval
        flushCommitLogTimed flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
        flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile forceVerifyPropCRC
        mapedFileSizeConsumeQueue mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt
        mapperFileSizeBatchConsumeQueue maxBatchDeleteFilesNum maxHashSlotNum maxIndexNum
        maxRecoveryCommitlogFiles messageIndexEnable messageIndexSafe
        putConsumeQueueDataByFileChannel recheckReputOffsetFromCq recoverConcurrently
        recoverThreadPoolNums redeleteHangedFileInterval searchBcqByCacheEnable
        transientStorePoolEnable transientStorePoolSize travelCqFileNumWhenGetMessage
        wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable writeWithoutMmap
        """,
    ),
    _Group(
        "files are not mapped into memory, so there is nothing to swap out and no cold data to "
        "slow down",
        """
        cgColdReadThreshold cleanSwapedMapInterval coldCtrStrategyEnable coldDataFlowControlEnable
        coldDataScanEnable commitLogForceSwapMapInterval commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum globalColdReadThreshold logicQueueForceSwapMapInterval
        logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSwapEnable
        usePIDColdCtrStrategy
        """,
    ),
    _Group(
        "everything lies in one directory, storePathRootDir: the log in `log`, indexes in "
        "`index`, tables in `config`; log lines go to stderr",
        """
        abortFile brokerConfigPath isolateLogEnable logicalDiskSpaceCleanForciblyThreshold
        readOnlyCommitLogStorePaths replicasPerDiskPartition rocketmqHome storeCheckpoint
        storePathBrokerIdentity storePathCommitLog storePathConsumeQueue storePathDLedgerCommitLog
        storePathEpochFile storePathIndex
        """,
    ),
    _Group(
        "an answer to a pull has fixed limits on its messages and bytes",
        """
        accessMessageInMemoryHotRatio defaultQueryMaxNum maxConsumeQueueScan
        maxFilterMessageSize maxMsgsNumBatch maxTransferBytesOnMessageInDisk
        maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
        maxTransferCountOnMessageInMemory pullBatchMaxMessageCount readUnCommitted
        transferMsgByHeap
        """,
    ),
    _Group(
        "filters are compiled when a consumer first uses them, and need no tuning",
        """
        enableCalcFilterBitMap expectConsumerNumUseFilter filterDataCleanTimeSpan filterServerNums
        filterSupportRetry maxErrorRateOfBloomFilter
        """,
    ),
    _Group(
        "a message can always wait for any time up to timerMaxDelaySec, and can always be "
        "recalled while it waits",
        """
        allowRecallWhenBrokerNotWriteable delayOffsetUpdateVersionStep disappearTimeAfterStart
        enableScheduleAsyncDeliver flushDelayOffsetInterval mappedFileSizeTimerLog maxDelayTime
        recallMessageEnable scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked timerCheckMetricsWhen
        timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics
        timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs
        timerGetMessageThreadNum timerInterceptDelayLevel timerMetricSmallThreshold
        timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot
        timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelEnable
        """,
    ),
    _Group(
        "the broker always asks about undecided transactions, and decisions are part of the log: "
        "there is no topic of half messages to batch or compact",
        """
        checkTransactionMessageEnable transactionOpBatchInterval transactionOpMsgMaxSize
        """,
    ),
    _Group(
        "consuming by pop does not exist here; clients pull",
        """
        appendAckAsync appendCkAsync cleanOfflineBrokerInterval defaultPopShareQueueNum
        enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
        enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
        enableRetryTopicV2 enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem
        loadBalancePollNameServerInterval maxPopPollingSize popCkMaxBufferSize
        popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut
        popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
        popConsumerKVServiceLog popFromRetryProbability popInflightMessageThreshold
        popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
        popPollingSize popResponseReturnActualRetryTopic popReviveMaxAttemptTimes
        popReviveMaxReturnSizePerRead retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs
        reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime serverLoadBalancerEnable
        skipWhenCKRePutReachMaxTimes
        """,
    ),
    _Group(
        "light queues and batch queues do not exist here",
        """
        enableBatchPush enableLmqStats isEnableBatchPush maxLmqConsumeQueueNum
        """,
    ),
    _Group(
        "topics are not compacted",
        """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
        compactionThreadNum enableCompaction maxOffsetMapSize
        """,
    ),
    _Group(
        "consumers are always notified of changes in their group, and offsets are saved every "
        "few seconds",
        """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond consumerFallbehindThreshold
        consumerOffsetUpdateVersionStep disableConsumeIfConsumerReadSlowly
        enableBroadcastOffsetStore enableCleanExpiredOffset enableCreateSysGroup
        flushConsumerOffsetHistoryInterval flushConsumerOffsetInterval
        notifyConsumerIdsChangedEnable realTimeNotifyConsumerChange useServerSideResetOffset
        useStaticSubscription
        """,
    ),
    _Group(
        "topic names have one limit, any topic takes messages of every kind, and the broker's "
        "own topics are always protected",
        """
        autoMessageVersionOnTopicLen clearRetryTopicWhenDeleteTopic enableMixedMessageType
        maxTopicLength validateSystemTopicWhenUpdateTopic
        """,
    ),
    _Group(
        "answers name the region `DefaultRegion` and tracing as on; replies to requests are "
        "passed on to the requester and never stored",
        """
        regionId storeReplyMessageEnable traceOn
        """,
    ),
    _Group(
        "the broker registers all its topics with every name server, at each change and every "
        "30 seconds; host names are resolved at each new connection",
        """
        compatibleWithOldNameSrv compressedRegister enableRegisterProducer
        enableSingleTopicRegister enableSplitMetadata enableSplitRegistration
        fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval forceRegister
        registerBrokerTimeoutMills registerNameServerPeriod splitMetadataSize
        splitRegistrationSize updateNameServerAddrPeriod
        """,
    ),
    _Group(
        "statistics are always counted, and `txmq` and `mqadmin` show them; nothing is exported "
        "or billed",
        """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount
        commercialBigCount commercialEnable commercialSizePerMsg commercialTimerCount
        commercialTransCount enableConnectionMetrics enableDetailStat enableLagAndDlqMetrics
        enableMessageStoreMetrics enableRemotingMetrics enableRequestMetrics
        enableScheduleMessageStats enableStatsMetrics enableTransactionMetrics
        estimateAccumulation maxStatsIdleTimeInMinutes metricGrpcExporterIntervalInMills
        metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExporterType
        metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
        metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort
        sampleCountThreshold sampleSteps transactionMetricFlushInterval
        """,
    ),
    _Group(
        "only the settings that the reference lists can be changed while the broker runs",
        """
        configBlackList
        """,
    ),
    _Group(
        "followers copy over the port of the clients, and the coordinator decides who leads",
        """
        asyncLearner brokerElectionPriority brokerHeartbeatInterval brokerIP2
        brokerNotActiveTimeoutMillis checkSyncStateSetPeriod controllerAddr
        controllerHeartBeatTimeoutMills diskFallRecorded dLegerGroup dLegerPeers dLegerSelfId
        enableAutoInSyncReplicas enableRemoteEscape fetchControllerAddrByDnsLookup forwardTimeout
        haFlowControlEnable haHousekeepingInterval haListenPort haMasterAddress haMaxGapNotInSync
        haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize
        isBrokerContainer isInBrokerContainer maxChecksumRange maxHaTransferByteInSecond
        maxSlaveResendLength offsetCheckInSlave preferredLeaderId sendHeartbeatTimeoutMillis
        skipPreOnline syncBrokerMemberGroupPeriod
        syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFromLastFile
        syncMasterFlushOffsetWhenStartup
        """,
    ),
    _Group(
        "accounts come from the file in `acl`; the settings of RocketMQ 5's access control are "
        "refused where they would turn it on",
        """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath
        authenticationMetadataProvider authenticationProvider authenticationStrategy
        authenticationWhitelist authorizationMetadataProvider authorizationProvider
        authorizationStrategy authorizationWhitelist clusterName configName initAuthenticationUser
        innerClientAuthenticationCredentials migrateAuthFromV1Enabled
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
        userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
        """,
    ),
    _Group(
        "the log and its indexes have one layout, described in docs/adr; there is no other "
        "store to choose",
        """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin
        combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
        combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType configManagerVersion
        enableAcceleratedRecovery enableBuildConsumeQueueConcurrently enableRocksDBLog
        memTableFlushInterval memTableFlushIntervalMs realTimePersistRocksDBConfig
        rocksdbCompressionType rocksdbCQDoubleWriteEnable rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec storeType
        """,
    ),
)

NAMES: Final[Mapping[str, ForeignName]] = {
    **_KEPT,
    **_FIXED,
    **{name: Unused(why) for why, names in _UNUSED for name in names.split()},
}
"""Every name, those with a meaning first. A name that builds on another one comes after it."""
