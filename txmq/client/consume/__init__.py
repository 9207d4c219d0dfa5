"""Consumers: members of groups that share the queues of their topics.

Reading order: ``subscription`` (pure), ``fetcher`` (one queue), ``offset_store`` and ``assignment``
(which queues). Then how handlers run: ``handler``, ``concurrent_workers``, ``orderly_workers``; or
how a caller polls: ``pull_assignment``. ``push_consumer``, ``pull_consumer`` and ``scheduled_pull``
are public; the first two are a ``group_consumer``.
"""

from __future__ import annotations

from txmq.client.consume.pull_consumer import PullConsumer
from txmq.client.consume.push_consumer import PushConsumer
from txmq.client.consume.scheduled_pull import PullContext, ScheduledPull
from txmq.message import DEAD_LETTER, Later

__all__ = ["DEAD_LETTER", "Later", "PullConsumer", "PullContext", "PushConsumer", "ScheduledPull"]
