"""The transactional outbox: messages that are committed with a database, and sent by relays.

What waits is a row of :mod:`.table`; how a row gets in stands in :mod:`.adding`, and how it gets
out in :mod:`.relay`. Needs the extra ``txmq[sql]``.
"""

from __future__ import annotations

from txmq.outbox.table import Outbox

__all__ = ["Outbox"]
