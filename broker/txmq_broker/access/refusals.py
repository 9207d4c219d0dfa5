"""Logs refused requests, and records those of operators, without letting strangers flood either."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from txmq.protocol.command import Command
from txmq.remoting.connection import Connection
from txmq_broker.access.audit import AUDITED, AuditLog

__all__ = ["Refusals"]

log = logging.getLogger(__name__)

_REFUSALS_KEPT: Final = 1000
"""Different refusals that are counted; a stranger can make any number of them."""


class Refusals:
    """Counts equal refusals: the first, the tenth, the hundredth and so on are noted.

    Args:
        audit: Where refused requests of operators are recorded.
    """

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._audit = audit
        self._counts: Counter[str] = Counter()

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
        refusal = f"refused request {request.code} of {connection.host}: {reason}"
        equal = f"{request.code} {connection.host} {kind or reason}"
        if len(self._counts) >= _REFUSALS_KEPT and equal not in self._counts:
            self._counts.clear()
        self._counts[equal] += 1
        count = self._counts[equal]
        if count != 10 ** (len(str(count)) - 1):
            return
        times = f" ({count} times)" if count > 1 else ""
        log.warning("%s%s", refusal, times)
        if self._audit is not None and request.code in AUDITED:
            # Each entry is synced and takes room, so a stranger must not write as many.
            self._audit.note(connection, request, refused=f"{reason}{times}")
