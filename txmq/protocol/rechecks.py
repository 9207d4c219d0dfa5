"""The requests that have a broker check transactions again, 7704 and 7709."""

from __future__ import annotations

from typing import Final

from txmq.protocol.headers import Header, Int32, Int64

__all__ = [
    "RECHECK_REASON_BYTES_MAX",
    "RecheckTransaction",
    "RecheckTransactions",
    "RecheckedTransactions",
]

RECHECK_REASON_BYTES_MAX: Final = 256
"""The operator's name and reason; the broker refuses longer texts."""


class RecheckTransaction(Header):
    """7704: check an open transaction again, by its id or the id of its half message."""

    transaction_id: str
    operator: str = ""
    """The person who asks, by the name that the client gives."""
    reason: str = ""


class RecheckTransactions(Header):
    """7709: check open transactions again, from an offset of the half queue on."""

    state: str = ""
    producer_group: str = ""
    from_offset: Int64 = 0
    operator: str = ""
    """The person who asks, by the name that the client gives."""
    reason: str = ""


class RecheckedTransactions(Header):
    """The answer to 7709."""

    rechecked: Int32
    """The number of transactions that the broker checks."""
    next_offset: Int64
    """Where the next request continues; -1 if there are no more."""
