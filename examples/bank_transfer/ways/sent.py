"""What is known of a transfer once a way has been taken with it."""

from __future__ import annotations

from typing import NamedTuple

from examples.bank_transfer.books import State

__all__ = ["Sent"]


class Sent(NamedTuple):
    """What is known now."""

    state: State | None
    """None where nobody knows yet; then a broker asks, until somebody does."""
    xid: str = ""
    problem: Exception | None = None
