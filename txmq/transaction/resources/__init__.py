"""Databases as parts of a transaction; needs the extra ``txmq[sql]``.

:mod:`.fence` and :mod:`.steps` do the work of a resource; :mod:`txmq.databases` has an adapter for
each kind of connection.
"""

from __future__ import annotations

from txmq.settings.extras import named_extra

with named_extra():
    from txmq.transaction.resources.fence import Fence, check_horizon
    from txmq.transaction.resources.sql import SQLResource
    from txmq.transaction.resources.xa import InDoubtBranch, Look, Recovered, XAResource

__all__ = [
    "Fence",
    "InDoubtBranch",
    "Look",
    "Recovered",
    "SQLResource",
    "XAResource",
    "check_horizon",
]
