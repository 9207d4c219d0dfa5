"""The names and prefixes of topics with a special meaning."""

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
"""The prefix of a group's retry topic: messages the group failed to handle and receives again."""

DLQ: Final = "%DLQ%"
"""The prefix of a group's dead-letter topic: messages the group failed to handle too often."""

TRACES: Final = "RMQ_SYS_TRACE_TOPIC"
"""The topic of clients' traces of sent and handled messages, if tracing is on."""

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""The topic under which half messages appear."""

OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""The topic under which decisions appear."""

PARKED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""The topic of parked half messages."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic of messages that wait for a delay level."""

WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"
"""The topic of messages that wait for a time of their own."""

WAITING_TOPICS: Final = (SCHEDULE_TOPIC, WHEEL_TOPIC)
