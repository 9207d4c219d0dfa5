"""The request for checks of many transactions, 7709, and its answer."""

from __future__ import annotations

from txmq.protocol.headers import Header, Int32, Int64

__all__ = ["RecheckTransactions", "RecheckedTransactions"]


class RecheckTransactions(Header):
    """7709: check open transactions again, from an offset of the half queue on."""

    state: str = ""
    producer_group: str = ""
    from_offset: Int64 = 0


class RecheckedTransactions(Header):
    """The answer to 7709."""

    rechecked: Int32
    """The number of transactions that the broker checks."""
    next_offset: Int64
    """Where the next request continues; -1 if there are no more."""
