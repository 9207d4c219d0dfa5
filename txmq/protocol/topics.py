"""Topics that clients and brokers know by name, or by the beginning of it."""

from __future__ import annotations

from typing import Final

__all__ = [
    "DLQ",
    "HALF_TOPIC",
    "OP_TOPIC",
    "PARKED_TOPIC",
    "RETRY",
    "SCHEDULE_TOPIC",
    "TRACES",
    "WAITING_TOPICS",
    "WHEEL_TOPIC",
]

RETRY: Final = "%RETRY%"
"""With a group's name behind it: what the group could not handle and is given again."""

DLQ: Final = "%DLQ%"
"""With a group's name behind it: what the group has failed at too often."""

TRACES: Final = "RMQ_SYS_TRACE_TOPIC"
"""What clients leave behind of each message they sent or handled, where that is wanted."""

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Under which half messages are shown."""

OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Under which decisions are shown."""

PARKED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages about which nobody could be asked for too long."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""What waits for as long as a delay level says."""

WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"
"""What waits for a time of its own."""

WAITING_TOPICS: Final = (SCHEDULE_TOPIC, WHEEL_TOPIC)
