"""All single requests to a cluster, in one class. The modules group the calls by subject; this
class only joins them. It keeps no state and never retries.
"""

from __future__ import annotations

from txmq.client.admin.accounts import AccountCalls
from txmq.client.admin.brokers import BrokerCalls
from txmq.client.admin.consumers import ConsumerCalls
from txmq.client.admin.dead_letters import DeadLetterCalls
from txmq.client.admin.lookups import LookupCalls
from txmq.client.admin.messages import MessageCalls
from txmq.client.admin.offsets import OffsetCalls
from txmq.client.admin.operations import OperationCalls
from txmq.client.admin.traffic import TrafficCalls
from txmq.client.admin.transactions import TransactionCalls

__all__ = ["Admin"]


class Admin(
    AccountCalls,
    BrokerCalls,
    ConsumerCalls,
    DeadLetterCalls,
    TrafficCalls,
    OffsetCalls,
    MessageCalls,
    LookupCalls,
    OperationCalls,
    TransactionCalls,
):
    """Administrative requests to brokers and name servers, over an open session."""
