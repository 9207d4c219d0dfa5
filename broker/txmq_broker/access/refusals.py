"""Logs refused requests, and records those of operators, without letting strangers flood either."""

from __future__ import annotations

import logging

from txmq.protocol.command import Command
from txmq.remoting.connection import Connection
from txmq.text import RepeatedLines
from txmq_broker.access.audit import AUDITED, AuditLog

__all__ = ["Refusals"]

log = logging.getLogger(__name__)


class Refusals:
    """Counts equal refusals: the first, the tenth, the hundredth and so on are noted.

    Args:
        audit: Where refused requests of operators are recorded.

    Attributes:
        count: The refusals since the start.
    """

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._audit = audit
        self._lines = RepeatedLines()
        self.count = 0

    def note(
        self, connection: Connection, request: Command, reason: str, *, kind: str = ""
    ) -> None:
        """Note a refusal.

        Args:
            connection: Where the request came from.
            request: The request.
            reason: Why it was refused.
            kind: What refusals count as equal; by default those with the same reason. A reason
                with text that a stranger chooses needs one.
        """
        self.count += 1
        refusal = f"refused request {request.code} of {connection.host}: {reason}"
        times = self._lines.note(f"{request.code} {connection.host} {kind or reason}")
        if times is None:
            return
        log.warning("%s%s", refusal, times)
        if self._audit is not None and request.code in AUDITED:
            # Each entry is synced and takes room, so a stranger must not write as many.
            self._audit.note(connection, request, refused=f"{reason}{times}")
