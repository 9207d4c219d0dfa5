"""Databases as parts of a transaction; needs the extra ``txmq[sql]``.

:mod:`.sql` and :mod:`.xa` are the resources, :mod:`.fence` is the row that decides;
:mod:`txmq.databases` has an adapter for each library.
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
