"""The client: sessions and single requests live here, and each task of a program has a subpackage.

Reading order: ``routes`` (pure), ``session``, ``send_request`` (pure), ``admin``; then
``cluster_client``, ``send``, ``observe`` and ``consume``. ``client`` builds on all of them.
"""

from __future__ import annotations

from txmq.client.admin.admin import Admin
from txmq.client.routes import Route
from txmq.client.session import Session
from txmq.client.values import (
    BrokerCopies,
    BrokerInfo,
    CheckReport,
    ConnectedClient,
    ConsumerReport,
    FollowerCopy,
    FormerMember,
    GroupConnections,
    GroupLag,
    HandledMessage,
    HeldQueueReport,
    OffsetMove,
    OpenTransaction,
    PulledBatch,
    PullOutcome,
    QueueProgress,
    QueueStatus,
    RecheckReport,
    SendResult,
    SendStatus,
    TopicTraffic,
    TransactionDecision,
    TransactionReport,
    WaitingRetries,
    WholeTransaction,
)

__all__ = [
    "Admin",
    "BrokerCopies",
    "BrokerInfo",
    "CheckReport",
    "ConnectedClient",
    "ConsumerReport",
    "FollowerCopy",
    "FormerMember",
    "GroupConnections",
    "GroupLag",
    "HandledMessage",
    "HeldQueueReport",
    "OffsetMove",
    "OpenTransaction",
    "PullOutcome",
    "PulledBatch",
    "QueueProgress",
    "QueueStatus",
    "RecheckReport",
    "Route",
    "SendResult",
    "SendStatus",
    "Session",
    "TopicTraffic",
    "TransactionDecision",
    "TransactionReport",
    "WaitingRetries",
    "WholeTransaction",
]
