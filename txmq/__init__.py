"""Distributed transactions on half messages, over a broker that speaks RocketMQ's protocol.

This module holds the names everybody needs: messages, queues and the root of the errors. A client
is in :mod:`txmq.client`, every error in :mod:`txmq.errors`.
"""

from __future__ import annotations

from txmq import errors
from txmq.errors import Effect, TxmqError
from txmq.message import LogPosition, Message, Queue, QueueOffset, ReceivedMessage

__all__ = [
    "Effect",
    "LogPosition",
    "Message",
    "Queue",
    "QueueOffset",
    "ReceivedMessage",
    "TxmqError",
    "__version__",
    "errors",
]

__version__ = "0.1.0"
