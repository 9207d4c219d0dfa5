"""The transactional outbox: messages committed with a database, then sent by relays.

A waiting message is a row of :mod:`.table`, which also inserts it; :mod:`.relay` publishes
and deletes them. Needs the extra ``txmq[sql]``.
"""

from __future__ import annotations

from txmq.settings.extras import named_extra

with named_extra():
    from txmq.outbox.table import Outbox

__all__ = ["Outbox"]
