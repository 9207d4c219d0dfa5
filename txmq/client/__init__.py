"""The client's side: sessions, routes, and single requests to brokers and name servers.

Reading order: :mod:`routes` (pure), :mod:`session`, :mod:`envelope` (pure), then :mod:`messages`,
:mod:`topics`, :mod:`groups`, :mod:`offsets`, :mod:`lookups`, :mod:`transactions` and
:mod:`cluster`, which :class:`~txmq.client.admin.admin.Admin` joins.
"""

from __future__ import annotations

from txmq.client.admin.admin import Admin
from txmq.client.routes import Route
from txmq.client.session import Session
from txmq.client.values import (
    BrokerInfo,
    ConnectedClient,
    GroupConnections,
    OffsetMove,
    OpenTransaction,
    PulledBatch,
    PullOutcome,
    QueueProgress,
    QueueStatus,
    SendResult,
    SendStatus,
)

__all__ = [
    "Admin",
    "BrokerInfo",
    "ConnectedClient",
    "GroupConnections",
    "OffsetMove",
    "OpenTransaction",
    "PullOutcome",
    "PulledBatch",
    "QueueProgress",
    "QueueStatus",
    "Route",
    "SendResult",
    "SendStatus",
    "Session",
]
