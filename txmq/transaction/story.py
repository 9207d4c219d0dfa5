"""The nine steps of a transaction, as log lines in their order; ``DEBUG`` shows them.

They are those of the classic transfer between two banks: the producer manages the transaction, the
broker coordinates it, and the local transaction is the resource's.
"""

from __future__ import annotations

import logging
from enum import Enum

__all__ = ["Step", "tell"]

log = logging.getLogger(__name__)


class Step(Enum):
    """What happens, with room for what it is about."""

    OPENED = 1, "it is opened by group %s"
    SENT = 2, "its message for %s is sent"
    STORED = 3, "the broker stores it at %s, where nobody sees it"
    REPORTED = 4, "the broker reports %s"
    CALLED = 5, "the local transaction is run%s"
    SAID = 6, "the local transaction says %s"
    HEARD = 7, "the producer hears %s"
    TOLD = 8, "the broker is told %s"
    CONFIRMED = 9, "it is %s"


def tell(xid: str, step: Step, about: object = "") -> None:
    """Write a step down."""
    if log.isEnabledFor(logging.DEBUG):
        number, text = step.value
        log.debug("transaction %s, step %d: %s", xid, number, text % about)
