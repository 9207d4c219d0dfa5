"""Everything one can ask of a cluster in single requests, under one name.

The calls are grouped in modules by what they are about; this class only joins them. It keeps
nothing and tries nothing twice.
"""

from __future__ import annotations

from txmq.client.admin.dead_letters import DeadLetterCalls
from txmq.client.admin.groups import GroupCalls
from txmq.client.admin.lookups import LookupCalls
from txmq.client.admin.messages import MessageCalls
from txmq.client.admin.offsets import OffsetCalls
from txmq.client.admin.topics import TopicCalls
from txmq.client.admin.transactions import TransactionCalls

__all__ = ["Admin"]


class Admin(
    DeadLetterCalls,
    TopicCalls,
    GroupCalls,
    OffsetCalls,
    MessageCalls,
    LookupCalls,
    TransactionCalls,
):
    """Orders and questions to brokers and name servers, over an open session."""
