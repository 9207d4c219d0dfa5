"""The database of a producer group, as far as transactions go: one row for each, never changed.

It outlives every crash of the machines that use it. A row says how a local transaction ended, and
the first to insert it wins: a check that finds none inserts "rolled back", and the local
transaction that comes too late can then no longer commit.
"""

from __future__ import annotations

from tests.simulation.history import Decided, History

__all__ = ["Ledger"]


class Ledger:
    """The rows of one group, and in which mood its producers are about each transaction."""

    def __init__(self, group: str, history: History) -> None:
        self.group = group
        self.moods: dict[str, str] = {}
        self.asked: dict[str, int] = {}
        self._history = history
        self._rows: dict[str, bool] = {}

    def insert(self, at: float, xid: str, committed: bool, by: str) -> bool:
        """Insert an outcome unless there is one; what stands there now."""
        if xid not in self._rows:
            self._rows[xid] = committed
            self._history.add(Decided(at, self.group, xid, committed, by))
        return self._rows[xid]

    def find(self, xid: str) -> bool | None:
        """What stands there, if anything does."""
        return self._rows.get(xid)

    def ask(self, xid: str) -> int:
        """Note that a producer was asked about a transaction; how often that makes."""
        self.asked[xid] = self.asked.get(xid, 0) + 1
        return self.asked[xid]
