"""Databases as parts of a transaction; needs the extra ``txmq[sql]``.

What a resource does stands in :mod:`.fence` and :mod:`.steps`, how each kind of connection is used
in a door of :mod:`txmq.databases`.
"""

from __future__ import annotations

from txmq.transaction.resources.fence import Fence, check_horizon_s
from txmq.transaction.resources.sql import SQLResource
from txmq.transaction.resources.xa import InDoubtBranch, Look, Recovered, XAResource

__all__ = [
    "Fence",
    "InDoubtBranch",
    "Look",
    "Recovered",
    "SQLResource",
    "XAResource",
    "check_horizon_s",
]
