"""All single requests to a cluster in one class, with one base class per subject."""

from __future__ import annotations

from txmq.client.admin.brokers import BrokerCalls
from txmq.client.admin.dead_letters import DeadLetterCalls
from txmq.client.admin.groups import GroupCalls
from txmq.client.admin.transactions import TransactionCalls

__all__ = ["Admin"]


class Admin(BrokerCalls, GroupCalls, DeadLetterCalls, TransactionCalls):
    """Administrative requests to brokers and name servers. It keeps no state and never retries.

    Args:
        session: An open session.
    """
