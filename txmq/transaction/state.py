"""The states of a transaction at its producer, and the tables that connect them. Pure.

Two tables decide. :data:`TRANSITIONS` says which step may follow which. :data:`OUTCOMES` maps the
local transaction's state and the broker's reply to the END to the outcome; a missing pair is a
conflict, which an operator must resolve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import product
from typing import Any, Final

from txmq.client.values import SendResult, SendStatus
from txmq.errors import LimitExceeded, OutcomeUnknown, RollBack, UsageError
from txmq.limits import MESSAGES_OF_TRANSACTION_MAX
from txmq.message import XID, Message, Queue, QueueOffset
from txmq.protocol.codes import SysFlag

__all__ = [
    "OUTCOMES",
    "SPELLINGS",
    "TRANSITIONS",
    "EndReply",
    "HalfMessage",
    "LocalTransactionState",
    "Phase",
    "TransactionOutcome",
    "TransactionState",
    "TransactionTally",
    "Verb",
    "check_count",
    "doubt_of",
    "half_message",
]


class Phase(StrEnum):
    """How far a transaction has come at its producer."""

    NEW = "has not begun"
    BEGUN = "has begun"
    """Its half message is stored."""
    UNSENT = "runs without a half message"
    """Its local transaction runs first, because the result makes the message."""
    WORKING = "runs"
    """Its local transaction runs, or has run and is not decided yet."""
    DECIDED = "is decided"
    """The broker receives the decision, if there is one."""
    SETTLED = "is settled"
    """It has an outcome."""


class Verb(StrEnum):
    """A step of a transaction."""

    BEGIN = "begin"
    WORK = "work"
    DECIDE = "decide"
    SETTLE = "settle"


TRANSITIONS: Final[Mapping[tuple[Phase, Verb], Phase]] = {
    (Phase.NEW, Verb.BEGIN): Phase.BEGUN,
    (Phase.BEGUN, Verb.WORK): Phase.WORKING,
    (Phase.WORKING, Verb.DECIDE): Phase.DECIDED,
    (Phase.DECIDED, Verb.SETTLE): Phase.SETTLED,
    # The local transaction runs elsewhere, or not at all: the half message is not stored safely.
    (Phase.BEGUN, Verb.DECIDE): Phase.DECIDED,
    # The result makes the message, so its half message is sent during the local transaction.
    (Phase.NEW, Verb.WORK): Phase.UNSENT,
    (Phase.UNSENT, Verb.BEGIN): Phase.WORKING,
    (Phase.UNSENT, Verb.DECIDE): Phase.DECIDED,
    # The local transaction has added messages.
    (Phase.WORKING, Verb.BEGIN): Phase.WORKING,
}
"""The phase that each allowed step leads to."""


class LocalTransactionState(Enum):
    """How a local transaction ended; the values are those of an END on the wire."""

    COMMIT = int(SysFlag.COMMITTED)
    """It has committed; in RocketMQ ``COMMIT_MESSAGE``."""
    ROLLBACK = int(SysFlag.ROLLED_BACK)
    """It will never commit; in RocketMQ ``ROLLBACK_MESSAGE``."""
    UNKNOWN = 0
    """Not known yet, so the broker asks again; in RocketMQ ``UNKNOW``."""


class TransactionState(Enum):
    """What the producer knows about the end of a transaction."""

    COMMITTED = "committed"
    """Both sides committed: consumers see the message, or will see it once the broker knows."""
    ROLLED_BACK = "rolled back"
    """Neither side committed, and no consumer ever sees the message."""
    UNKNOWN = "unknown"
    """The state of the local transaction is not known; the broker will ask."""


class EndReply(Enum):
    """A broker's reply to an END."""

    TAKEN = "taken"
    COMMITTED = "was committed"
    """The transaction was committed before, and stays so."""
    ROLLED_BACK = "was rolled back"
    REFUSED = "refused"
    """The END leaves the transaction open; the broker checks again, or parks it for an operator."""
    NONE = "none"
    """No reply: the END may have arrived or not, or there was none to send."""


_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_COMMITTED, _ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK

OUTCOMES: Final[Mapping[tuple[LocalTransactionState, EndReply], tuple[TransactionState, bool]]] = {
    (_COMMIT, EndReply.TAKEN): (_COMMITTED, True),
    (_COMMIT, EndReply.COMMITTED): (_COMMITTED, True),
    (_COMMIT, EndReply.REFUSED): (_COMMITTED, False),
    (_COMMIT, EndReply.NONE): (_COMMITTED, False),
    (_ROLLBACK, EndReply.TAKEN): (_ROLLED_BACK, True),
    (_ROLLBACK, EndReply.ROLLED_BACK): (_ROLLED_BACK, True),
    (_ROLLBACK, EndReply.REFUSED): (_ROLLED_BACK, False),
    (_ROLLBACK, EndReply.NONE): (_ROLLED_BACK, False),
    # After "unknown", the broker's reply tells this producer nothing new.
    **dict.fromkeys(
        product([LocalTransactionState.UNKNOWN], EndReply), (TransactionState.UNKNOWN, False)
    ),
}
"""The outcome, and whether the broker has acknowledged it, by local state and reply."""

SPELLINGS: Final = {
    LocalTransactionState.COMMIT: "COMMIT_MESSAGE",
    LocalTransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    LocalTransactionState.UNKNOWN: "UNKNOW",
}
"""The names in traces and logs of stock clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage(Message):
    """A stored message that no consumer sees yet, because its transaction is undecided."""

    id: str
    """The message's id. That of a transaction's first message is also the transaction's."""
    sent: SendResult
    others: tuple[HalfMessage, ...] = ()
    """The transaction's other messages, for a listener."""

    @property
    def key(self) -> str:
        """The first of its keys, or its id if it has no key."""
        return self.keys[0] if self.keys else self.id

    @property
    def xid(self) -> str:
        """The transaction's id, by which checks name it. Store it with the writes of the local
        transaction.
        """
        return self.properties.get(XID, self.id)

    def doubt(self) -> UsageError | None:
        """Why its local transaction must not commit; ``None`` if all messages of its transaction
        are stored safely.
        """
        return doubt_of((self.sent, *(other.sent for other in self.others)))


def half_message(message: Message, sent: SendResult) -> HalfMessage:
    """A stored half message, with its marks and the broker's answer."""
    return HalfMessage(
        topic=message.topic, body=message.body, tags=message.tags, keys=message.keys,
        properties=message.properties, flag=message.flag, id=sent.id, sent=sent,
    )  # fmt: skip


def doubt_of(sent: Iterable[SendResult]) -> UsageError | None:
    """See :meth:`HalfMessage.doubt`."""
    # Like stock producers, give up a message that exists only in the broker's memory.
    for one in sent:
        if one.status is not SendStatus.OK:
            return UsageError(f"the half message is stored, but not safely: {one.status.name}")
    return None


def check_count(count: int) -> None:
    """Refuse too many messages of one transaction.

    Raises:
        LimitExceeded: There are too many.
    """
    if count > MESSAGES_OF_TRANSACTION_MAX:
        raise LimitExceeded(
            "the number of a transaction's messages", MESSAGES_OF_TRANSACTION_MAX, count
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOutcome:
    """What the producer knows about the end of a transaction, with its message and result."""

    state: TransactionState
    xid: str
    """The transaction's id: the unique key of its first message."""
    sent: tuple[SendResult, ...] = ()
    """The brokers' answers to its half messages; empty if none was sent."""
    is_acknowledged: bool
    """Whether all its brokers have confirmed the decision. Otherwise a broker asks this producer's
    group, and receives the same decision."""
    problem: Exception | None = None
    """The exception of the local transaction, or why the broker has not confirmed."""
    result: Any = None
    """The return value of a :class:`~txmq.TransactionManager`'s function that has committed."""

    def unwrap(self) -> Any:
        """The result of the function, if the transaction has committed.

        Raises:
            RollBack: It is rolled back; if the function raised a ``RollBack``, it is that one.
            OutcomeUnknown: It may have committed; look up the result later by the ``xid``.
        """
        if self.state is TransactionState.COMMITTED:
            return self.result
        if self.state is TransactionState.UNKNOWN:
            raise OutcomeUnknown(
                f"transaction {self.xid} may have committed; a check will find out"
            ) from self.problem
        if isinstance(self.problem, RollBack):
            raise self.problem
        raise RollBack(f"transaction {self.xid} is rolled back") from self.problem

    @property
    def message_id(self) -> str:
        """The id of its first message once it is visible: the ``xid``."""
        return self.xid

    @property
    def half(self) -> SendResult:
        """The broker's answer to the first half message; its offset counts half messages.

        Raises:
            UsageError: No half message was sent: the result would have made it.
        """
        if not self.sent:
            raise UsageError(f"transaction {self.xid} was rolled back before it had a message")
        return self.sent[0]

    @property
    def queue(self) -> Queue:
        """The queue in which its first message is visible once it is committed."""
        return self.half.queue

    @property
    def half_offset(self) -> QueueOffset:
        """The half message's offset among all half messages of its broker."""
        return self.half.offset


@dataclass(slots=True)
class TransactionTally:
    """The counters of a transactional producer since it was opened."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    unacknowledged: int = 0
    """Decisions that the broker may not have received; it will ask."""
    conflicts: int = 0
    """Decisions of transactions or checks that contradict an earlier one."""
    checks: int = 0
    """Checks received."""
    checks_committed: int = 0
    checks_rolled_back: int = 0
    checks_unknown: int = 0
    checks_dropped: int = 0
    """Checks that found no room in the queue."""
    checks_hung: int = 0
    """Checks whose handler took too long."""

    def add(self, state: TransactionState, is_acknowledged: bool) -> None:
        """Count an outcome."""
        if state is TransactionState.UNKNOWN:
            self.unknown += 1
            return
        if state is TransactionState.COMMITTED:
            self.committed += 1
        else:
            self.rolled_back += 1
        if not is_acknowledged:
            self.unacknowledged += 1
