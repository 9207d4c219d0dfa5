"""Transactions: a message becomes visible if, and only if, its sender's local transaction commits.

Built on the client, which does not depend on it.
"""

from txmq.transaction.listener import TransactionListener
from txmq.transaction.machine import Transaction
from txmq.transaction.manager import TransactionManager
from txmq.transaction.message import MessageTemplate
from txmq.transaction.producer import TransactionProducer
from txmq.transaction.settings import ManagerSettings, TransactionSettings
from txmq.transaction.state import (
    HalfMessage,
    LocalTransactionState,
    TransactionOutcome,
    TransactionState,
)

__all__ = [
    "HalfMessage",
    "LocalTransactionState",
    "ManagerSettings",
    "MessageTemplate",
    "Transaction",
    "TransactionListener",
    "TransactionManager",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionSettings",
    "TransactionState",
]
