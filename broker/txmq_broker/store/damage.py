"""Damage that a broker met while it served the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from txmq.errors import CorruptRecord, TxmqError
from txmq.text import RepeatedLines

__all__ = ["MetDamage"]

log = logging.getLogger(__name__)


class MetDamage:
    """Counts reads that met damage, and reports them.

    Attributes:
        reads: The number of reads that met damage since the start.
        found: Called at each of them with the position of the damage in the log. A member of a
            broker set has another copy to read from; by default nothing happens.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.found: Callable[[int], None] = lambda _position: None
        self._lines = RepeatedLines()

    def note(self, error: CorruptRecord) -> None:
        """Note that a read met damage; the log has a line for each place, not for each read."""
        self.reads += 1
        if (times := self._lines.note(str(error.position))) is not None:
            log.error("%s%s", error, times)
        self.found(error.position)

    def note_error(self, error: TxmqError) -> None:
        """Note an error that ended a request, if the cause is damage."""
        if isinstance(error, CorruptRecord):
            self.note(error)
