"""What a producer says of a transaction, what it hears, and what is known then. Pure.

One table says it all: from the local transaction's answer and what became of its END follows the
outcome. A pair that is missing is a conflict, which nobody can settle any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Any, Final

from txmq.client.values import SendResult
from txmq.errors import UsageError
from txmq.message import Queue, QueueOffset
from txmq.protocol.codes import SysFlag
from txmq.protocol.headers import CheckState, EndTransaction
from txmq.protocol.message_id import position_in

__all__ = [
    "OUTCOMES",
    "SPELLINGS",
    "LocalTransactionState",
    "Reply",
    "TransactionOutcome",
    "TransactionState",
    "end_of",
    "end_of_check",
]


class LocalTransactionState(Enum):
    """What a local transaction came to; the values are what an END says."""

    COMMIT = int(SysFlag.COMMITTED)
    """It has committed; in RocketMQ ``COMMIT_MESSAGE``."""
    ROLLBACK = int(SysFlag.ROLLED_BACK)
    """It never will; in RocketMQ ``ROLLBACK_MESSAGE``."""
    UNKNOWN = 0
    """That is not known now, and shall be asked again; in RocketMQ ``UNKNOW``."""


class TransactionState(Enum):
    """What is known of a transaction."""

    COMMITTED = "committed"
    """Both sides are: consumers see the message, or will once the broker has heard."""
    ROLLED_BACK = "rolled back"
    """Neither side is, and nobody ever sees the message."""
    UNKNOWN = "unknown"
    """The local transaction did not say; the broker will ask."""


class Reply(Enum):
    """What a broker says to an END."""

    TAKEN = "taken"
    COMMITTED = "was committed"
    """It was, before; so it stays."""
    ROLLED_BACK = "was rolled back"
    REFUSED = "refused"
    """It is not decided by this; the broker asks again, or keeps it for an operator."""
    NONE = "none"
    """Nothing: it may have been heard or not, or there was nothing to say."""


_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_COMMITTED, _ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK

OUTCOMES: Final[Mapping[tuple[LocalTransactionState, Reply], tuple[TransactionState, bool]]] = {
    (_COMMIT, Reply.TAKEN): (_COMMITTED, True),
    (_COMMIT, Reply.COMMITTED): (_COMMITTED, True),
    (_COMMIT, Reply.REFUSED): (_COMMITTED, False),
    (_COMMIT, Reply.NONE): (_COMMITTED, False),
    (_ROLLBACK, Reply.TAKEN): (_ROLLED_BACK, True),
    (_ROLLBACK, Reply.ROLLED_BACK): (_ROLLED_BACK, True),
    (_ROLLBACK, Reply.REFUSED): (_ROLLED_BACK, False),
    (_ROLLBACK, Reply.NONE): (_ROLLED_BACK, False),
    # Whatever is said to "unknown": this producer does not know.
    **dict.fromkeys(
        product([LocalTransactionState.UNKNOWN], Reply), (TransactionState.UNKNOWN, False)
    ),
}
"""The state, and whether the broker has acknowledged it, by what was said and what was heard."""

SPELLINGS: Final = {
    LocalTransactionState.COMMIT: "COMMIT_MESSAGE",
    LocalTransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    LocalTransactionState.UNKNOWN: "UNKNOW",
}
"""How traces and logs of stock clients name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOutcome:
    """What became of a transaction, as far as its producer knows."""

    state: TransactionState
    xid: str
    """The transaction's id: its message's unique key."""
    sent: SendResult | None
    """What the broker said of the half message, if one was sent."""
    is_acknowledged: bool
    """Whether the broker has said that it is decided so. Otherwise the broker asks this producer's
    group, and is told the same."""
    problem: Exception | None = None
    """What the local transaction raised, or why the broker has not acknowledged."""
    result: Any = None
    """What a function of a :class:`~txmq.TransactionManager` returned, if it has committed."""

    @property
    def message_id(self) -> str:
        """The message's id, by which it is found once it can be seen; the ``xid``."""
        return self.xid

    @property
    def half(self) -> SendResult:
        """What the broker said of the half message; its offset is one among half messages.

        Raises:
            UsageError: None was sent: its message would have been made from a result.
        """
        if self.sent is None:
            raise UsageError(f"transaction {self.xid} was rolled back before it had a message")
        return self.sent

    @property
    def queue(self) -> Queue:
        """Where the message is seen once it is committed."""
        return self.half.queue

    @property
    def half_offset(self) -> QueueOffset:
        """The place of the half message among all of its broker."""
        return self.half.offset


def end_of(group: str, half: SendResult, state: LocalTransactionState) -> EndTransaction:
    """The END of a transaction whose half message was just sent.

    Raises:
        RemoteProtocolError: The broker did not say where the half message lies.
    """
    return EndTransaction(
        producer_group=group,
        tran_state_table_offset=half.offset,
        commit_log_offset=position_in(half.offset_id),
        commit_or_rollback=state.value,
        msg_id=half.id,
        transaction_id=half.transaction_id or half.id,
        topic=half.queue.topic,
    )


def end_of_check(
    group: str, topic: str, xid: str, asked: CheckState, state: LocalTransactionState
) -> EndTransaction:
    """The END that answers a check, about the half message where the broker says it is now."""
    return EndTransaction(
        producer_group=group,
        tran_state_table_offset=asked.tran_state_table_offset,
        commit_log_offset=asked.commit_log_offset,
        commit_or_rollback=state.value,
        from_transaction_check=True,
        msg_id=asked.msg_id or xid,
        transaction_id=asked.transaction_id or xid,
        topic=topic,
    )
