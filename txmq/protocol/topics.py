"""The names and prefixes of topics with a special meaning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = [
    "DLQ",
    "HALF_TOPIC",
    "OF_THE_SYSTEM",
    "OP_TOPIC",
    "PARKED_TOPIC",
    "RETRY",
    "SCHEDULE_TOPIC",
    "TRACES",
    "WAITING_TOPICS",
    "WHEEL_TOPIC",
    "topics_of_brokers",
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
"""The topic of messages that wait for an exact delivery time."""

WAITING_TOPICS: Final = (SCHEDULE_TOPIC, WHEEL_TOPIC)

OF_THE_SYSTEM: Final = (
    "TBW102",
    "SELF_TEST_TOPIC",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "SCHEDULE_TOPIC_XXXX",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "RMQ_SYS_",
    "rmq_sys_",
    RETRY,
    DLQ,
)
"""The prefixes of system, retry and dead-letter topics."""


def topics_of_brokers(brokers: Iterable[tuple[str, str]]) -> set[str]:
    """The internal topics of brokers, given each broker's name and cluster."""
    found: set[str] = set()
    for name, cluster in brokers:
        found |= {name, cluster, f"{cluster}_REPLY_TOPIC"}
    return found
