"""The same transfer in three ways, which differ in how both banks agree."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Way"]


class Way(StrEnum):
    """A way to make the debit at one bank and the credit at the other one fact."""

    HALF = "half"
    """A half message, which CCB receives if the debit commits."""
    OUTBOX = "outbox"
    """A message that is committed with the debit, and sent by a relay."""
    XA = "xa"
    """Both databases prepare, and both commit."""
