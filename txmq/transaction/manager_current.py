"""The transaction that runs here, and that there is one at a time."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from txmq.errors import UsageError
from txmq.protocol import properties
from txmq.transaction.listener import Draft, Half, HalfMessage
from txmq.transaction.state import TransactionOutcome

__all__ = ["Entered", "Transaction", "current", "refuse_another"]

S = TypeVar("S")


@dataclass(slots=True)
class Transaction(Generic[S]):
    """A transaction whose local part runs, of a :class:`txmq.TransactionManager`."""

    half: Half
    """Its half message, or what becomes of that."""
    session: S
    """What the local transaction writes with; leave commit and rollback to the manager."""
    outcome: TransactionOutcome | None = None
    """What became of it, once that is known."""
    is_over: bool = False

    @property
    def xid(self) -> str:
        """Its id."""
        return self.half.id

    @property
    def message(self) -> HalfMessage:
        """Its message, which nobody sees yet.

        Raises:
            UsageError: It has none yet: that is made from what the function returns.
        """
        half = self.half.half if isinstance(self.half, Draft) else self.half
        if half is None:
            raise UsageError(f"transaction {self.xid} has no message yet: it has no result yet")
        return half

    @property
    def group(self) -> str:
        """The producer group that answers for it."""
        if isinstance(self.half, Draft):
            return self.half.group
        return self.half.properties[properties.PRODUCER_GROUP]


_CURRENT: Final[ContextVar[Transaction[Any] | None]] = ContextVar("txmq_transaction", default=None)


def current() -> Transaction[Any] | None:
    """The transaction of this task or thread, or of the one that began it."""
    found = _CURRENT.get()
    # A task that was begun inside and outlives it has kept its context.
    return None if found is None or found.is_over else found


class Entered:
    """While inside, a transaction is the current one."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction[Any]) -> None:
        self._transaction = transaction

    def __enter__(self) -> None:
        _CURRENT.set(self._transaction)

    def __exit__(self, *_: object) -> None:
        self._transaction.is_over = True
        _CURRENT.set(None)


def refuse_another() -> None:
    """See that none runs here.

    Raises:
        UsageError: One does.
    """
    if (found := current()) is not None:
        raise UsageError(
            f"transaction {found.xid} runs here already, and transactions are not nested: write "
            "with its session, and further messages into an outbox, a table"
        )
