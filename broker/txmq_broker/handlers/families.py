"""The families of request handlers."""

from __future__ import annotations

from typing import Protocol

from txmq.remoting.dispatch import Handler
from txmq_broker.handlers.groups import GroupHandlers
from txmq_broker.handlers.offsets import OffsetHandlers
from txmq_broker.handlers.progress import ProgressHandlers
from txmq_broker.handlers.query import QueryHandlers
from txmq_broker.handlers.recall import RecallHandlers
from txmq_broker.handlers.returns import ReturnHandlers
from txmq_broker.handlers.send import SendHandlers
from txmq_broker.handlers.settings import SettingHandlers
from txmq_broker.handlers.statistics import StatisticsHandlers
from txmq_broker.handlers.topics import TopicHandlers
from txmq_broker.handlers.transaction_history import TransactionHistoryHandlers
from txmq_broker.handlers.transactions import TransactionHandlers
from txmq_broker.parts import Parts

__all__ = ["HandlerFamily", "plain_families"]


class HandlerFamily(Protocol):
    """The handlers of one family of requests."""

    def table(self) -> dict[int, Handler]:
        """The handlers by request code."""
        ...


def plain_families(parts: Parts) -> list[HandlerFamily]:
    """Handlers that need only the broker's parts."""
    sends = SendHandlers(parts)
    return [
        sends,
        ReturnHandlers(parts, sends.topic_of_group),
        RecallHandlers(parts),
        TransactionHandlers(parts),
        TransactionHistoryHandlers(parts),
        OffsetHandlers(parts),
        QueryHandlers(parts),
        TopicHandlers(parts),
        GroupHandlers(parts),
        ProgressHandlers(parts),
        StatisticsHandlers(parts),
        SettingHandlers(parts),
    ]
