"""The errors of txmq, in one tree.

    TxmqError
    ├─ ConfigError                wrong or unknown setting (also ValueError)
    ├─ UsageError                 called in the wrong state
    ├─ LimitExceeded              which limit, its value, what was offered
    ├─ BatchCutShort              part of a send is stored, then a later part failed
    ├─ FilterUnsupported          the broker accepts no SQL92 filters
    ├─ RollBack                   a local transaction asks for a rollback
    ├─ TransactionOverdue         a local transaction exceeded its time limit
    ├─ TransactionConflict        the transaction was decided differently before
    ├─ ResourceError              the database's part of a transaction
    │   ├─ FenceMissing · FenceOutdated · FenceElsewhere · FenceUnsafe
    │   ├─ RolledBackByCheck · CommittedBefore · TransactionExpired · TransactionBroken
    │   └─ OutcomeUnknown · DatabaseFailed · TwoPhaseUnavailable · TableMissing
    ├─ KeyInProgress · KeyConflict · VersionGap · TokenRefused · LeaseLost    guards
    ├─ PayloadInvalid             a message's body does not fit its handler
    ├─ ReconcileRefused           a reconciliation cannot run on its input
    ├─ ProtocolError              bytes violate the protocol
    │   └─ LocalProtocolError · RemoteProtocolError     this side's fault, the peer's fault
    ├─ TransportError             ConnectFailed · ConnectionLost · RequestTimeout
    ├─ BrokerRefused              a response code with its remark; one class per code
    └─ StoreError
        ├─ CorruptRecord · DamagedFile · ForeignFile · LogTooShort
        └─ DiskFull · WriteFailed · SyncFailed · DirectoryInUse

Each class states two facts: ``retryable`` says whether the same call may succeed later, and
``effect`` says whether the failed operation may have taken effect. The broker raises a refusal, and
the client that receives its code raises the same class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

__all__ = [
    "BatchCutShort",
    "BrokerBusy",
    "BrokerRefused",
    "CommittedBefore",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumeTimeout",
    "ConsumerOffline",
    "CorruptRecord",
    "DamagedFile",
    "DatabaseFailed",
    "DirectoryInUse",
    "DiskFull",
    "Effect",
    "FenceElsewhere",
    "FenceMissing",
    "FenceOutdated",
    "FenceUnsafe",
    "FilterDataMissing",
    "FilterDataStale",
    "FilterUnsupported",
    "FlowControlled",
    "FlushTimeout",
    "ForeignFile",
    "GroupNotFound",
    "IllegalOperation",
    "InternalError",
    "InvalidParameter",
    "KeyConflict",
    "KeyInProgress",
    "LeaseLost",
    "LimitExceeded",
    "LocalProtocolError",
    "LogTooShort",
    "MessageIllegal",
    "NoPermission",
    "NotFound",
    "OffsetMoved",
    "OutcomeUnknown",
    "PayloadInvalid",
    "ProtocolError",
    "PullNotFound",
    "PullRetryImmediately",
    "ReconcileRefused",
    "RemoteProtocolError",
    "ReplicaTimeout",
    "ReplicaUnavailable",
    "RequestNotSupported",
    "RequestTimeout",
    "ResourceError",
    "RollBack",
    "RolledBackByCheck",
    "ServiceUnavailable",
    "ShouldCommit",
    "ShouldRollBack",
    "StoreError",
    "SubscriptionInvalid",
    "SubscriptionMissing",
    "SubscriptionStale",
    "SyncFailed",
    "TableMissing",
    "TokenRefused",
    "TopicExists",
    "TopicNotFound",
    "TransactionBroken",
    "TransactionConflict",
    "TransactionExpired",
    "TransactionFailed",
    "TransactionGroupWrong",
    "TransactionOverdue",
    "TransportError",
    "TwoPhaseUnavailable",
    "TxmqError",
    "UnknownRefusal",
    "UsageError",
    "VersionGap",
    "VersionNotSupported",
    "WriteFailed",
    "refusal",
]


class Effect(Enum):
    """The effect that a failed operation may have had."""

    NONE = "none"
    MAYBE = "maybe"
    APPLIED = "applied"


class TxmqError(Exception):
    """The base of all errors of txmq."""

    retryable: ClassVar[bool] = False
    effect: Effect = Effect.NONE


class ConfigError(TxmqError, ValueError):
    """A setting is unknown or its value is invalid."""


class UsageError(TxmqError):
    """A call came in the wrong state: before the start, after the close, or wrongly nested."""


class LimitExceeded(TxmqError):
    """A value exceeds a limit."""

    def __init__(self, limit: str, value: int, offered: int) -> None:
        super().__init__(f"{limit} is at most {value}, not {offered}")
        self.limit = limit
        self.value = value
        self.offered = offered


class BatchCutShort(TxmqError):
    """A send went out in several parts, and one failed after earlier parts were stored."""

    effect = Effect.MAYBE

    def __init__(self, results: Sequence[object], count: int, error: TxmqError) -> None:
        super().__init__(f"{len(results)} of {count} messages are stored, then: {error}")
        self.results: tuple[object, ...] = tuple(results)
        """The broker's answers for the first messages; the others are in doubt or unsent."""


class FilterUnsupported(TxmqError):
    """The broker accepts no SQL92 filters: its ``enablePropertyFilter`` is off."""


class RollBack(TxmqError):
    """Raise it in a local transaction to roll back; other exceptions leave it in doubt."""


class TransactionOverdue(TxmqError):
    """A local transaction exceeded its time limit. It and its message were rolled back."""


class TransactionConflict(TxmqError):
    """A check or an operator decided a transaction differently before its producer did. That
    decision stays: the message and the local transaction disagree.
    """

    effect = Effect.APPLIED

    def __init__(self, xid: str, said: str, decided: str) -> None:
        super().__init__(f"transaction {xid} {decided} before the producer sent {said}")
        self.xid = xid
        self.said = said
        self.decided = decided


class ResourceError(TxmqError):
    """A database failed its part of a transaction."""


class FenceMissing(ResourceError):
    """The database has no fence table; create one with ``txmq schema create``."""


class FenceOutdated(ResourceError):
    """Another version of txmq created the fence table."""


class FenceElsewhere(ResourceError):
    """This session sees a different fence table than the one verified at start."""


class FenceUnsafe(ResourceError):
    """The fence would not work: the database drops writes, or keeps them without a commit."""


class RolledBackByCheck(ResourceError):
    """A check rolled this transaction back before its local transaction could commit."""


class CommittedBefore(ResourceError):
    """An earlier local transaction with the same id committed; this one did nothing."""

    effect = Effect.APPLIED


class TransactionExpired(ResourceError):
    """The fence table no longer keeps rows as old as this transaction; nothing was done."""


class TransactionBroken(ResourceError):
    """The database cannot commit, for example after an error that the code caught. Nothing remains
    of the transaction.
    """


class OutcomeUnknown(ResourceError):
    """The local transaction may have committed; a check will find out."""

    effect = Effect.MAYBE


class DatabaseFailed(ResourceError):
    """The database did not answer, or gave an unexpected answer; nothing was changed."""

    retryable = True


class TwoPhaseUnavailable(ResourceError):
    """A database cannot prepare a transaction, or has no free slot for it; nothing was done."""


class TableMissing(ResourceError):
    """The table is missing or outdated; create it with ``txmq schema create``."""


class KeyInProgress(TxmqError):
    """Another worker is processing this key; try again later. Nothing was done."""

    retryable = True


class KeyConflict(TxmqError):
    """This key was used before with other content. Nothing was done now."""


class PayloadInvalid(TxmqError):
    """A message's body does not fit the type its handler declares; the handler was not called."""


class VersionGap(TxmqError):
    """An earlier version has not arrived yet; nothing was done."""

    retryable = True


class TokenRefused(TxmqError):
    """This token was not issued here, or has expired; nothing was done."""


class LeaseLost(TxmqError):
    """The work was done but outlasted its lease: another worker may repeat it."""

    effect = Effect.APPLIED


class ReconcileRefused(TxmqError):
    """A reconciliation cannot run on its input; no result was written."""


class ProtocolError(TxmqError):
    """Bytes violate the protocol."""


class LocalProtocolError(ProtocolError):
    """The caller asked to send a value that the protocol cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that violate the protocol; its connection is closed."""


class TransportError(TxmqError):
    """The connection to the peer failed."""


class ConnectFailed(TransportError):
    """No connection could be opened; nothing was sent."""

    retryable = True


class ConnectionLost(TransportError):
    """The connection broke before the answer came; the peer may have acted on the request."""

    retryable = True
    effect = Effect.MAYBE


class RequestTimeout(TransportError):
    """No answer came in time; the peer may have acted on the request, or may still act."""

    retryable = True
    effect = Effect.MAYBE


class BrokerRefused(TxmqError):
    """The broker or a name server answered with an error code."""

    code: ClassVar[int] = -1

    def __init__(self, remark: str = "") -> None:
        super().__init__(remark or (self.__doc__ or "").split("\n", 1)[0])
        self.remark = remark


class InternalError(BrokerRefused):
    """The broker failed internally, or the protocol has no better code for the refusal."""

    code = 1
    retryable = True
    effect = Effect.MAYBE


class BrokerBusy(BrokerRefused):
    """The broker is overloaded; nothing was stored."""

    code = 2
    retryable = True


class RequestNotSupported(BrokerRefused):
    """The server does not serve this request code."""

    code = 3


class TransactionFailed(BrokerRefused):
    """The transaction request failed."""

    code = 4


class FlushTimeout(BrokerRefused):
    """The message is stored, but was not synced to disk in time."""

    code = 10
    effect = Effect.APPLIED


class ReplicaUnavailable(BrokerRefused):
    """The message is stored here, but no replica was available to copy it."""

    code = 11
    effect = Effect.APPLIED


class ReplicaTimeout(BrokerRefused):
    """The message is stored here, but a replica did not confirm it in time."""

    code = 12
    effect = Effect.APPLIED


class MessageIllegal(BrokerRefused):
    """The message is invalid: too large, malformed, or of a kind that cannot be stored."""

    code = 13


class ServiceUnavailable(BrokerRefused):
    """The broker accepts no writes now: its disk is full or failed, or it is shutting down."""

    code = 14
    retryable = True


class VersionNotSupported(BrokerRefused):
    """The server does not support the peer's protocol version."""

    code = 15


class NoPermission(BrokerRefused):
    """The topic, the group or the broker does not permit this."""

    code = 16


class TopicNotFound(BrokerRefused):
    """The topic does not exist, and sending to it may not create it."""

    code = 17


class TopicExists(BrokerRefused):
    """The topic exists already."""

    code = 18


class PullNotFound(BrokerRefused):
    """No message has arrived behind this offset."""

    code = 19
    retryable = True


class PullRetryImmediately(BrokerRefused):
    """No message in the scanned range matched; continue at the next offset."""

    code = 20
    retryable = True


class OffsetMoved(BrokerRefused):
    """The offset lies outside the queue; continue at the offset in the answer."""

    code = 21
    retryable = True


class NotFound(BrokerRefused):
    """The query found nothing."""

    code = 22


class SubscriptionInvalid(BrokerRefused):
    """The filter expression does not parse."""

    code = 23

    @property
    def position(self) -> int | None:
        """The position in the expression, counted from 1, where parsing failed.

        ``None`` if the answer does not state it; RocketMQ's answers never do.
        """
        found = re.search(r"\bat position (\d{1,9})\b", self.remark)
        return None if found is None else int(found[1])


class SubscriptionMissing(BrokerRefused):
    """The broker does not know this subscription of the group yet."""

    code = 24
    retryable = True


class SubscriptionStale(BrokerRefused):
    """The broker knows an older version of this subscription."""

    code = 25
    retryable = True


class GroupNotFound(BrokerRefused):
    """The consumer group does not exist, and using it may not create it."""

    code = 26


class FilterDataMissing(BrokerRefused):
    """The broker holds no compiled filter for this subscription."""

    code = 27
    retryable = True


class FilterDataStale(BrokerRefused):
    """The compiled filter is older than the subscription."""

    code = 28
    retryable = True


class InvalidParameter(BrokerRefused):
    """A field of the request has an invalid value."""

    code = 29


class ShouldCommit(BrokerRefused):
    """The transaction was committed before, so it cannot be rolled back."""

    code = 200


class ShouldRollBack(BrokerRefused):
    """The transaction was rolled back before, so it cannot be committed."""

    code = 201


class TransactionGroupWrong(BrokerRefused):
    """The transaction belongs to another producer group."""

    code = 203


class ConsumerOffline(BrokerRefused):
    """No consumer of the group is connected."""

    code = 206


class ConsumeTimeout(BrokerRefused):
    """The consumer did not answer in time."""

    code = 207
    effect = Effect.MAYBE


class FlowControlled(BrokerRefused):
    """The peer exceeds the rate it is allowed to send at."""

    code = 215
    retryable = True


class IllegalOperation(BrokerRefused):
    """The request contradicts itself or the broker's state."""

    code = 604


class UnknownRefusal(BrokerRefused):
    """The answer carries a code that this version of txmq does not know."""

    effect = Effect.MAYBE

    def __init__(self, remark: str = "", *, response_code: int = -1) -> None:
        super().__init__(f"code {response_code}: {remark}")
        self.remark = remark
        self.response_code = response_code


_BY_CODE: dict[int, type[BrokerRefused]] = {
    leaf.code: leaf for leaf in BrokerRefused.__subclasses__() if leaf.code >= 0
}


def refusal(code: int, remark: str) -> BrokerRefused:
    """The error for a response code."""
    leaf = _BY_CODE.get(code)
    if leaf is None:
        return UnknownRefusal(remark, response_code=code)
    return leaf(remark)


class StoreError(TxmqError):
    """An operation on the broker's log failed."""


class CorruptRecord(StoreError):
    """The log is damaged before its end; a crash can only cut the end."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"the log is damaged at position {position}: {reason}")
        self.position = position
        self.reason = reason


class DamagedFile(StoreError):
    """A file next to the log is damaged, missing or foreign, and has no replacement."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DiskFull(StoreError):
    """The disk is full; the write left nothing behind."""

    retryable = True


class WriteFailed(StoreError):
    """The disk refused a write, which left nothing behind."""

    retryable = True


class SyncFailed(StoreError):
    """A sync failed. The broker stops, because the disk's contents are unknown."""

    effect = Effect.MAYBE


class DirectoryInUse(StoreError):
    """Another broker has this data directory open."""


class ForeignFile(DamagedFile):
    """A file in the data directory belongs to another broker's log."""

    def __init__(self, path: str, log: int, expected: int) -> None:
        whose = f"it belongs to the log {log:016x} of another broker, this directory to the log"
        what_to_do = "put the right file back, or restore the directory from a backup"
        super().__init__(path, f"{whose} {expected:016x}; {what_to_do}")


class LogTooShort(StoreError):
    """Other files prove that the log was longer. The broker did not start and changed nothing, so
    that no offset is reused.
    """
