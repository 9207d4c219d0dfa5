"""Consumers: members of groups that share the queues of their topics.

Reading order: :mod:`subscription` and :mod:`window` (pure), :mod:`intake` (one queue),
:mod:`offsets`, :mod:`members` and :mod:`holdings` (which queues), then how messages are worked on:
:mod:`handling`, :mod:`concurrent`, :mod:`locks`, :mod:`orderly`; or how they are asked for:
:mod:`shelf`, :mod:`places`. :mod:`push`, :mod:`pull` and :mod:`scheduled` put them together.
"""

from __future__ import annotations

from txmq.client.consume.pull_consumer import PullConsumer
from txmq.client.consume.push_consumer import PushConsumer
from txmq.client.consume.scheduled_pull import PullContext, ScheduledPull
from txmq.message import DEAD_LETTER, Later

__all__ = [
    "DEAD_LETTER",
    "Later",
    "PullConsumer",
    "PullContext",
    "PushConsumer",
    "ScheduledPull",
]
