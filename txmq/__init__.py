"""Distributed transactions on half messages, over a broker that speaks RocketMQ's protocol.

Everything an application needs has its name here; every error is in :mod:`txmq.errors`, strategies
of sharing queues are in ``txmq.allocation``, and the same names without ``await`` in
:mod:`txmq.blocking`. What speaks to brokers is imported when it is first asked for: a program that
only needs messages does not wait for it.
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
    from txmq.client.admin import Admin
    from txmq.client.asking import Reply, reply_to
    from txmq.client.client import Client
    from txmq.client.consumer.pull import PullConsumer
    from txmq.client.consumer.push import PushConsumer
    from txmq.client.consumer.scheduled import PullContext, ScheduledPull
    from txmq.client.producer import Producer
    from txmq.client.settings import (
        ClientSettings,
        ConsumerSettings,
        ProducerSettings,
        StartFrom,
    )
    from txmq.client.telemetry import Telemetry
    from txmq.client.values import PulledBatch, PullOutcome, SendResult, SendStatus
    from txmq.outbox import Outbox
    from txmq.outbox.relay import Relay
    from txmq.outbox.settings import RelaySettings
    from txmq.transaction.listener import HalfMessage, TransactionListener
    from txmq.transaction.manager import TransactionManager
    from txmq.transaction.producer import TransactionProducer
    from txmq.transaction.resources import SQLResource, XAResource
    from txmq.transaction.settings import ManagerSettings, TransactionSettings
    from txmq.transaction.state import (
        LocalTransactionState,
        TransactionOutcome,
        TransactionState,
    )
    from txmq.transaction.work import Transaction

__all__ = [
    "DEAD_LETTER",
    "Admin",
    "Client",
    "ClientSettings",
    "ConsumerSettings",
    "Effect",
    "HalfMessage",
    "Later",
    "LocalTransactionState",
    "LogPosition",
    "ManagerSettings",
    "Message",
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
    "ReceivedMessage",
    "Relay",
    "RelaySettings",
    "Reply",
    "SQLResource",
    "ScheduledPull",
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
    "errors",
    "reply_to",
]

__version__ = "0.1.0"

_LATER: Final = {
    "Admin": "txmq.client.admin",
    "Client": "txmq.client.client",
    "Reply": "txmq.client.asking",
    "reply_to": "txmq.client.asking",
    "Telemetry": "txmq.client.telemetry",
    "PullConsumer": "txmq.client.consumer.pull",
    "PushConsumer": "txmq.client.consumer.push",
    "PullContext": "txmq.client.consumer.scheduled",
    "ScheduledPull": "txmq.client.consumer.scheduled",
    "Producer": "txmq.client.producer",
    "ClientSettings": "txmq.client.settings",
    "ConsumerSettings": "txmq.client.settings",
    "ProducerSettings": "txmq.client.settings",
    "StartFrom": "txmq.client.settings",
    "PullOutcome": "txmq.client.values",
    "PulledBatch": "txmq.client.values",
    "SendResult": "txmq.client.values",
    "SendStatus": "txmq.client.values",
    "Outbox": "txmq.outbox",
    "Relay": "txmq.outbox.relay",
    "RelaySettings": "txmq.outbox.settings",
    "HalfMessage": "txmq.transaction.listener",
    "TransactionListener": "txmq.transaction.listener",
    "TransactionManager": "txmq.transaction.manager",
    "Transaction": "txmq.transaction.work",
    "TransactionProducer": "txmq.transaction.producer",
    "SQLResource": "txmq.transaction.resources",
    "XAResource": "txmq.transaction.resources",
    "ManagerSettings": "txmq.transaction.settings",
    "TransactionSettings": "txmq.transaction.settings",
    "LocalTransactionState": "txmq.transaction.state",
    "TransactionOutcome": "txmq.transaction.state",
    "TransactionState": "txmq.transaction.state",
}


_WITH_SQL: Final = {
    "txmq.outbox",
    "txmq.outbox.relay",
    "txmq.outbox.settings",
    "txmq.transaction.resources",
}


def __getattr__(name: str) -> object:
    if name == "allocation":
        return import_module("txmq.client.allocation")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
    except ModuleNotFoundError as problem:
        if _LATER[name] not in _WITH_SQL:
            raise
        raise errors.ConfigError(f"{problem.name} is missing: pip install 'txmq[sql]'") from problem
    return found


def __dir__() -> list[str]:
    return __all__
