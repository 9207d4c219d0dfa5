"""Everything one can ask of a cluster in single requests, under one name.

The calls are grouped in modules by what they are about; this class only joins them. It keeps
nothing and tries nothing twice.
"""

from __future__ import annotations

from txmq.client.dead_letters import DeadLetterCalls
from txmq.client.groups import GroupCalls
from txmq.client.lookups import LookupCalls
from txmq.client.messages import MessageCalls
from txmq.client.offsets import OffsetCalls
from txmq.client.topics import TopicCalls
from txmq.client.transactions import TransactionCalls

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
