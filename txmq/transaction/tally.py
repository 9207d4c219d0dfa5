"""What a transactional producer has seen since it was opened."""

from __future__ import annotations

from dataclasses import dataclass

from txmq.transaction.state import LocalTransactionState, TransactionOutcome, TransactionState

__all__ = ["TransactionTally"]


@dataclass(slots=True)
class TransactionTally:
    """Counters; they only grow."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    unacknowledged: int = 0
    """Decisions that a broker may not have heard; it will ask."""
    conflicts: int = 0
    """Decisions that came after the contrary one, here or in a check."""
    checks: int = 0
    """Questions that came."""
    checks_committed: int = 0
    checks_rolled_back: int = 0
    checks_unknown: int = 0
    checks_dropped: int = 0
    """Questions that found no room."""
    checks_hung: int = 0
    """Handlers that took too long."""

    def ended(self, outcome: TransactionOutcome) -> None:
        """Count a transaction."""
        match outcome.state:
            case TransactionState.COMMITTED:
                self.committed += 1
            case TransactionState.ROLLED_BACK:
                self.rolled_back += 1
            case TransactionState.UNKNOWN:
                self.unknown += 1
                return
        if not outcome.is_acknowledged:
            self.unacknowledged += 1

    def answered(self, state: LocalTransactionState) -> None:
        """Count a check."""
        match state:
            case LocalTransactionState.COMMIT:
                self.checks_committed += 1
            case LocalTransactionState.ROLLBACK:
                self.checks_rolled_back += 1
            case LocalTransactionState.UNKNOWN:
                self.checks_unknown += 1
