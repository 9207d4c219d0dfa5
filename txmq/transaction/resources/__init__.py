"""Databases as parts of a transaction; needs the extra ``txmq[sql]``.

The only place that knows SQLAlchemy and psycopg. What a resource does stands in :mod:`.fence` and
:mod:`.steps`, how each kind of connection is used in a door: :mod:`.alchemy`, :mod:`.psycopg`.
"""

from __future__ import annotations

from txmq.transaction.resources.fence import Fence, check_horizon_s
from txmq.transaction.resources.sql import SQLResource

__all__ = ["Fence", "SQLResource", "check_horizon_s"]
