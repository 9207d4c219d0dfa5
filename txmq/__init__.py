"""Distributed transactions on half messages, over a broker that speaks RocketMQ's protocol.

This module exports everything an application needs. Errors are in :mod:`txmq.errors`, queue
allocation strategies in ``txmq.allocation``, and the same names without ``await`` in
:mod:`txmq.blocking`. The clients are imported on first use, so that a program which only needs
messages does not wait for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from txmq import errors
from txmq.errors import Effect, TxmqError
from txmq.message import (
    DEAD_LETTER,
    Later,
    LogPosition,
    Message,
    Queue,
    QueueOffset,
    ReceivedMessage,
)

if TYPE_CHECKING:
    from txmq.client import allocation
    from txmq.client.admin.admin import Admin
    from txmq.client.body import encode_body
    from txmq.client.client import Client
    from txmq.client.consume.pull_consumer import PullConsumer
    from txmq.client.consume.push_consumer import PushConsumer
    from txmq.client.consume.scheduled_pull import PullContext, ScheduledPull
    from txmq.client.middleware import Middleware, ReceiveNext, SendNext
    from txmq.client.observe.telemetry import Telemetry
    from txmq.client.send.producer import Producer
    from txmq.client.send.request_reply import Reply, reply_to
    from txmq.client.settings import (
        ClientSettings,
        ConsumerSettings,
        ProducerSettings,
        StartFrom,
    )
    from txmq.client.values import PulledBatch, PullOutcome, SendResult, SendStatus
    from txmq.outbox import Outbox
    from txmq.outbox.relay import Relay
    from txmq.outbox.settings import RelaySettings
    from txmq.outbox.table import create_outbox
    from txmq.security.signatures import Credentials
    from txmq.security.tls import ClientTls
    from txmq.transaction.listener import TransactionListener
    from txmq.transaction.machine import Transaction
    from txmq.transaction.manager import TransactionManager
    from txmq.transaction.message import MessageTemplate
    from txmq.transaction.producer import TransactionProducer
    from txmq.transaction.resources import Fence, SQLResource, XAResource
    from txmq.transaction.resources.schema import create_fence
    from txmq.transaction.settings import ManagerSettings, TransactionSettings
    from txmq.transaction.state import (
        HalfMessage,
        LocalTransactionState,
        TransactionOutcome,
        TransactionState,
    )

__all__ = [
    "DEAD_LETTER",
    "Admin",
    "Client",
    "ClientSettings",
    "ClientTls",
    "ConsumerSettings",
    "Credentials",
    "Effect",
    "Fence",
    "HalfMessage",
    "Later",
    "LocalTransactionState",
    "LogPosition",
    "ManagerSettings",
    "Message",
    "MessageTemplate",
    "Middleware",
    "Outbox",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullContext",
    "PullOutcome",
    "PulledBatch",
    "PushConsumer",
    "Queue",
    "QueueOffset",
    "ReceiveNext",
    "ReceivedMessage",
    "Relay",
    "RelaySettings",
    "Reply",
    "SQLResource",
    "ScheduledPull",
    "SendNext",
    "SendResult",
    "SendStatus",
    "StartFrom",
    "Telemetry",
    "Transaction",
    "TransactionListener",
    "TransactionManager",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionSettings",
    "TransactionState",
    "TxmqError",
    "XAResource",
    "__version__",
    "allocation",
    "create_fence",
    "create_outbox",
    "encode_body",
    "errors",
    "reply_to",
]

__version__ = "0.1.0"

_LATER: Final = {
    "Admin": "txmq.client.admin.admin",
    "Client": "txmq.client.client",
    "encode_body": "txmq.client.body",
    "ClientTls": "txmq.security.tls",
    "Credentials": "txmq.security.signatures",
    "Reply": "txmq.client.send.request_reply",
    "reply_to": "txmq.client.send.request_reply",
    "Telemetry": "txmq.client.observe.telemetry",
    "PullConsumer": "txmq.client.consume.pull_consumer",
    "PushConsumer": "txmq.client.consume.push_consumer",
    "PullContext": "txmq.client.consume.scheduled_pull",
    "ScheduledPull": "txmq.client.consume.scheduled_pull",
    "Middleware": "txmq.client.middleware",
    "ReceiveNext": "txmq.client.middleware",
    "SendNext": "txmq.client.middleware",
    "Producer": "txmq.client.send.producer",
    "ClientSettings": "txmq.client.settings",
    "ConsumerSettings": "txmq.client.settings",
    "ProducerSettings": "txmq.client.settings",
    "StartFrom": "txmq.client.settings",
    "PullOutcome": "txmq.client.values",
    "PulledBatch": "txmq.client.values",
    "SendResult": "txmq.client.values",
    "SendStatus": "txmq.client.values",
    "Outbox": "txmq.outbox",
    "create_outbox": "txmq.outbox.table",
    "Relay": "txmq.outbox.relay",
    "RelaySettings": "txmq.outbox.settings",
    "HalfMessage": "txmq.transaction.state",
    "TransactionListener": "txmq.transaction.listener",
    "TransactionManager": "txmq.transaction.manager",
    "Transaction": "txmq.transaction.machine",
    "TransactionProducer": "txmq.transaction.producer",
    "Fence": "txmq.transaction.resources",
    "SQLResource": "txmq.transaction.resources",
    "create_fence": "txmq.transaction.resources.schema",
    "XAResource": "txmq.transaction.resources",
    "ManagerSettings": "txmq.transaction.settings",
    "MessageTemplate": "txmq.transaction.message",
    "TransactionSettings": "txmq.transaction.settings",
    "LocalTransactionState": "txmq.transaction.state",
    "TransactionOutcome": "txmq.transaction.state",
    "TransactionState": "txmq.transaction.state",
}


def __getattr__(name: str) -> object:
    if name == "allocation":
        return import_module("txmq.client.allocation")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
