"""What the parts of a broker have in common."""

from __future__ import annotations

from typing import Protocol

from txmq.remoting.dispatch import Handler

__all__ = ["HandlerFamily"]


class HandlerFamily(Protocol):
    """The handlers of one family of requests."""

    def table(self) -> dict[int, Handler]:
        """The handlers by request code."""
        ...
