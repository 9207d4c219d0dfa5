"""Topics that clients and brokers know by name, or by the beginning of it."""

from __future__ import annotations

from typing import Final

__all__ = ["DLQ", "RETRY", "TRACES"]

RETRY: Final = "%RETRY%"
"""With a group's name behind it: what the group could not handle and is given again."""

DLQ: Final = "%DLQ%"
"""With a group's name behind it: what the group has failed at too often."""

TRACES: Final = "RMQ_SYS_TRACE_TOPIC"
"""What clients leave behind of each message they sent or handled, where that is wanted."""
