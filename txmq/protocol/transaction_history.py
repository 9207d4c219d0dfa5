"""The answer to 7711: what a broker knows about one transaction, open or decided."""

from __future__ import annotations

from txmq.protocol.bodies import Body, TransactionEntry

__all__ = ["CheckEntry", "DecisionEntry", "RecheckEntry", "TransactionHistory"]


class CheckEntry(Body):
    """A check that the broker sent to a producer."""

    asked_ms: int
    client_id: str
    address: str
    answer: str = ""
    """``unknown``, ``silent``, ``lost`` or ``decided``; empty while the check is open."""
    answered_ms: int = 0


class RecheckEntry(Body):
    """An operator's request to check the transaction again."""

    at_ms: int
    operator: str
    """The person, by the name in the request; empty if it has none."""
    account: str
    """The account that sent the request; empty without one."""
    address: str
    reason: str


class DecisionEntry(Body):
    """A marker in the log: a commit, a rollback or the parking of the transaction."""

    kind: str
    """``committed``, ``rolled_back`` or ``parked``."""
    source: str
    """``producer``, ``check``, ``operator`` or ``broker``."""
    at_ms: int
    reason: str = ""
    """The operator and the reason, if an operator decided."""
    offset_msg_id: str = ""
    """The place of the visible message, if the marker is it."""


class TransactionHistory(Body):
    """A transaction, its decisions, its latest checks, and what comes next."""

    transaction: TransactionEntry
    """``state`` may also be ``committed`` or ``rolled back``."""
    born_ms: int
    born_host: str
    """The address of the producer's connection."""
    decisions: list[DecisionEntry]
    checks: list[CheckEntry]
    """The latest checks since the start of the broker, oldest first."""
    check_max: int
    next_check_ms: int = 0
    """When the broker asks again; 0 if it asks no more, or does not know."""
    waits_for_producer: bool = False
    """True if a check is due, and no producer of the group can be asked."""
    producers: int = 0
    """The connected producers of the group."""
    rechecks: list[RecheckEntry] = []
    """The latest requests to check it again, since the start of the broker, oldest first."""
