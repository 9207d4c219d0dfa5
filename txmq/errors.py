"""Every error txmq raises on purpose, in one tree.

    TxmqError
    ├─ ConfigError                wrong or unknown setting (also ValueError)
    ├─ UsageError                 called in the wrong state
    ├─ LimitExceeded              which limit, its value, what was offered
    ├─ BatchCutShort              some of many messages are stored, then one part failed
    ├─ FilterUnsupported          a broker takes no conditions on properties
    ├─ RollBack                   a local transaction says that nothing came of it
    ├─ TransactionOverdue         a local transaction took too long
    ├─ TransactionConflict        a transaction was decided otherwise before
    ├─ ResourceError              the database's part of a transaction
    │   ├─ FenceMissing · FenceOutdated · FenceElsewhere · FenceUnsafe
    │   ├─ RolledBackByCheck · CommittedBefore · TransactionExpired · TransactionBroken
    │   └─ OutcomeUnknown · DatabaseFailed · TwoPhaseUnavailable · TableMissing
    ├─ KeyInProgress              the same is being done by somebody else now
    ├─ KeyConflict                the same key came with something else
    ├─ VersionGap                 versions in between have not come yet
    ├─ TokenRefused               a token that was not issued here, or is too old
    ├─ LeaseLost                  what was done took longer than its lease
    ├─ ReconcileRefused           a reconciliation cannot run on what it was given
    ├─ ProtocolError              bytes break the protocol
    │   ├─ LocalProtocolError     our fault
    │   └─ RemoteProtocolError    the peer's fault
    ├─ TransportError
    │   ├─ ConnectFailed · ConnectionLost · RequestTimeout
    ├─ BrokerRefused              a response code with its remark; one leaf per code
    └─ StoreError
        ├─ CorruptRecord · DamagedFile · ForeignFile · LogTooShort
        └─ DiskFull · WriteFailed · SyncFailed · DirectoryInUse

Each leaf says two things that a caller of a messaging system needs: ``retryable``, does trying the
same again make sense, and ``effect``, may the operation have taken effect all the same. A refusal
is raised by the broker's own code and by a client that receives its code, so both sides share one
word.
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
    """What is known of an operation that failed."""

    NONE = "none"
    MAYBE = "maybe"
    APPLIED = "applied"


class TxmqError(Exception):
    """Any error txmq raises on purpose."""

    retryable: ClassVar[bool] = False
    effect: Effect = Effect.NONE


class ConfigError(TxmqError, ValueError):
    """A setting is unknown or has a value that cannot work."""


class UsageError(TxmqError):
    """Something was called in the wrong state: not started, closed, or wrongly nested."""


class LimitExceeded(TxmqError):
    """Something offered is larger than a limit allows."""

    def __init__(self, limit: str, value: int, offered: int) -> None:
        super().__init__(f"{limit} is at most {value}, not {offered}")
        self.limit = limit
        self.value = value
        self.offered = offered


class BatchCutShort(TxmqError):
    """Messages were sent in several parts, and one of these failed after others were stored."""

    effect = Effect.MAYBE

    def __init__(self, results: Sequence[object], count: int, error: TxmqError) -> None:
        super().__init__(f"{len(results)} of {count} messages are stored, then: {error}")
        self.results = tuple(results)
        """What the broker said of the first messages; the others are unknown or not sent."""


class FilterUnsupported(TxmqError):
    """A broker takes no conditions on properties; ``enablePropertyFilter`` is off."""


class RollBack(TxmqError):
    """A local transaction raises it to roll back; any other exception leaves the outcome open."""


class TransactionOverdue(TxmqError):
    """A local transaction took longer than its time limit, and was rolled back on both sides."""


class TransactionConflict(TxmqError):
    """A check or an operator decided a transaction before its producer did, and otherwise. That
    decision stays: its message and its local transaction do not agree.
    """

    effect = Effect.APPLIED

    def __init__(self, xid: str, said: str, decided: str) -> None:
        super().__init__(f"transaction {xid} was {decided} before it was told {said}")
        self.xid = xid
        self.said = said
        self.decided = decided


class ResourceError(TxmqError):
    """A database could not do its part of a transaction."""


class FenceMissing(ResourceError):
    """The database has no fence table; ``txmq schema create`` makes it."""


class FenceOutdated(ResourceError):
    """The fence table was made by another version of txmq."""


class FenceElsewhere(ResourceError):
    """The fence table of this session is another one than the one that was verified at start."""


class FenceUnsafe(ResourceError):
    """The fence would not hold: what is written is not kept, or is kept without a commit."""


class RolledBackByCheck(ResourceError):
    """A check has rolled this transaction back; its local transaction came too late to commit."""


class CommittedBefore(ResourceError):
    """An earlier local transaction of the same id has committed; nothing is done a second time."""

    effect = Effect.APPLIED


class TransactionExpired(ResourceError):
    """The transaction is older than what the fence table still remembers; nothing was done."""


class TransactionBroken(ResourceError):
    """The database gave up before the end, after an error that was caught. Nothing remains."""


class OutcomeUnknown(ResourceError):
    """The local transaction may have committed, or not; a check will find out."""

    effect = Effect.MAYBE


class DatabaseFailed(ResourceError):
    """The database did not answer, or not with what was asked; nothing was changed."""

    retryable = True


class TwoPhaseUnavailable(ResourceError):
    """A database prepares no transactions, or has no room for one more; nothing was done."""


class TableMissing(ResourceError):
    """The database has no such table, or an older one; ``txmq schema create`` makes it."""


class KeyInProgress(TxmqError):
    """Somebody else is at work on this key; come again later. Nothing was done."""

    retryable = True


class KeyConflict(TxmqError):
    """This key came before with something else, which was done. Nothing was done now."""


class VersionGap(TxmqError):
    """A version came before one that belongs in front of it; nothing was done."""

    retryable = True


class TokenRefused(TxmqError):
    """This token was not issued here, or is too old; nothing was done."""


class LeaseLost(TxmqError):
    """Something was done, and took longer than it had leave to: it may be done a second time."""

    effect = Effect.APPLIED


class ReconcileRefused(TxmqError):
    """A reconciliation cannot run on what it was given; no result was written."""


class ProtocolError(TxmqError):
    """Bytes that do not follow the protocol."""


class LocalProtocolError(ProtocolError):
    """We were asked to write something the protocol cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The peer wrote something the protocol does not allow; its connection is closed."""


class TransportError(TxmqError):
    """The way to the peer failed."""


class ConnectFailed(TransportError):
    """No connection could be opened; nothing was sent."""

    retryable = True


class ConnectionLost(TransportError):
    """The connection broke while an answer was awaited; the peer may have acted on the request."""

    retryable = True
    effect = Effect.MAYBE


class RequestTimeout(TransportError):
    """No answer came in time; the peer may have acted on the request, or may still do so."""

    retryable = True
    effect = Effect.MAYBE


class BrokerRefused(TxmqError):
    """The broker, or a name server, answered with a code other than success."""

    code: ClassVar[int] = -1

    def __init__(self, remark: str = "") -> None:
        super().__init__(remark or (self.__doc__ or "").split("\n", 1)[0])
        self.remark = remark


class InternalError(BrokerRefused):
    """The broker failed inside, or used this code because the protocol has no better one."""

    code = 1
    retryable = True
    effect = Effect.MAYBE


class BrokerBusy(BrokerRefused):
    """The broker has more work than it takes on; nothing was stored."""

    code = 2
    retryable = True


class RequestNotSupported(BrokerRefused):
    """This request code is not served here."""

    code = 3


class TransactionFailed(BrokerRefused):
    """The transaction request could not be carried out."""

    code = 4


class FlushTimeout(BrokerRefused):
    """The message is stored, but was not on the disk in time."""

    code = 10
    effect = Effect.APPLIED


class ReplicaUnavailable(BrokerRefused):
    """The message is stored here, but no replica was there to take it."""

    code = 11
    effect = Effect.APPLIED


class ReplicaTimeout(BrokerRefused):
    """The message is stored here, but a replica did not confirm it in time."""

    code = 12
    effect = Effect.APPLIED


class MessageIllegal(BrokerRefused):
    """The message breaks a rule: too large, malformed, or of a kind that cannot be stored."""

    code = 13


class ServiceUnavailable(BrokerRefused):
    """The broker takes no writes now: its disk is full, or it is shutting down."""

    code = 14
    retryable = True


class VersionNotSupported(BrokerRefused):
    """The peer's protocol version is not served."""

    code = 15


class NoPermission(BrokerRefused):
    """The topic, the group or the broker does not permit this."""

    code = 16


class TopicNotFound(BrokerRefused):
    """There is no such topic, and it may not be created by using it."""

    code = 17


class TopicExists(BrokerRefused):
    """The topic is there already."""

    code = 18


class PullNotFound(BrokerRefused):
    """No message has arrived behind this offset."""

    code = 19
    retryable = True


class PullRetryImmediately(BrokerRefused):
    """No message matched in the stretch that was scanned; go on at the next offset."""

    code = 20
    retryable = True


class OffsetMoved(BrokerRefused):
    """The offset lies outside the queue; go on at the offset that came with the answer."""

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
        """The character of the expression, counted from 1, at which it goes wrong, if it is said.

        RocketMQ says it in none of its answers.
        """
        found = re.search(r"\bat position (\d{1,9})\b", self.remark)
        return None if found is None else int(found[1])


class SubscriptionMissing(BrokerRefused):
    """The group has not told the broker of this subscription (yet)."""

    code = 24
    retryable = True


class SubscriptionStale(BrokerRefused):
    """The broker knows an older version of this subscription."""

    code = 25
    retryable = True


class GroupNotFound(BrokerRefused):
    """There is no such consumer group, and it may not be created by using it."""

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
    """A field of the request has a value that cannot be."""

    code = 29


class ShouldCommit(BrokerRefused):
    """A rollback came for a transaction that is committed; the decision stands."""

    code = 200


class ShouldRollBack(BrokerRefused):
    """A commit came for a transaction that is rolled back; the decision stands."""

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
    """The peer sends faster than it is allowed to."""

    code = 215
    retryable = True


class IllegalOperation(BrokerRefused):
    """The request contradicts itself or what the broker knows."""

    code = 604


class UnknownRefusal(BrokerRefused):
    """The answer carries a code this version of txmq has no name for."""

    effect = Effect.MAYBE

    def __init__(self, remark: str = "", *, response_code: int = -1) -> None:
        super().__init__(f"code {response_code}: {remark}")
        self.response_code = response_code


_BY_CODE: dict[int, type[BrokerRefused]] = {
    leaf.code: leaf for leaf in BrokerRefused.__subclasses__() if leaf.code >= 0
}


def refusal(code: int, remark: str) -> BrokerRefused:
    """The error that stands for a response code."""
    leaf = _BY_CODE.get(code)
    if leaf is None:
        return UnknownRefusal(remark, response_code=code)
    return leaf(remark)


class StoreError(TxmqError):
    """The broker's log could not do what was asked."""


class CorruptRecord(StoreError):
    """Bytes of the log differ from those that were written, before the end that a crash may cut."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"the log is damaged at position {position}: {reason}")
        self.position = position
        self.reason = reason


class DamagedFile(StoreError):
    """A file beside the log is damaged, missing, or another broker's, and nothing replaces it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DiskFull(StoreError):
    """The disk has no room left; nothing of this write remains."""

    retryable = True


class WriteFailed(StoreError):
    """The disk refused a write; nothing of it remains."""

    retryable = True


class SyncFailed(StoreError):
    """The disk failed to make writes durable. The broker stops: what is on the disk is unknown."""

    effect = Effect.MAYBE


class DirectoryInUse(StoreError):
    """Another broker has this data directory open."""


class ForeignFile(DamagedFile):
    """A file in the data directory was written for the log of another broker."""

    def __init__(self, path: str, log: int, expected: int) -> None:
        whose = f"it belongs to the log {log:016x} of another broker, this directory to the log"
        what_to_do = "put the right file back, or restore the directory from a backup"
        super().__init__(path, f"{whose} {expected:016x}; {what_to_do}")


class LogTooShort(StoreError):
    """Other files prove that the log held more. Nothing was changed, no offset was given again."""
