"""What can be chosen about the tour."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.bank_transfer.ways import Way
from txmq.errors import ConfigError

__all__ = ["TourSettings"]

ACCOUNTS_MIN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TourSettings:
    """How many customers want how much, and what goes wrong.

    Raises:
        ConfigError: A value cannot work.
    """

    transfers: int = 400
    accounts: int = 200
    """At both banks together, the half of them at each."""
    rate: float = 0.0
    """Transfers a second at most; as many as there can be where it is 0."""
    concurrent: int = 16
    """Customers who wait for an answer at once."""
    seed: int = 0
    """Decides who sends how much to whom, who is killed when, and what comes twice."""
    kills: int = 1
    """How often each program is killed."""
    copies: int = 20
    """How many messages are delivered once more than they were sent."""
    ways: tuple[Way, ...] = ()
    """How transfers are made; all that the databases allow where it is empty."""
    postgres: str = ""
    """The URL of a PostgreSQL server, where two databases are made; SQLite where it is empty."""
    redis: str = ""
    """The URL of a Redis that stands before the tables of what is done."""
    directory: Path | None = None
    """Where books, log and messages are kept; they are gone afterwards where it is none."""
    is_reconciled: bool = True
    """Whether the ledgers are reconciled in the end, where there is a Java for it."""
    patience_s: float = 60.0
    """How long nothing may move, once everything has been asked for."""

    def __post_init__(self) -> None:
        """See that the values can work."""
        least = {"transfers": 1, "accounts": ACCOUNTS_MIN, "concurrent": 1, "kills": 0, "copies": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} is at least {bound}, not {getattr(self, name)}")
        if not 0 <= self.rate < float("inf"):
            raise ConfigError(f"a rate of {self.rate} is none")
        if not self.patience_s > 0:
            raise ConfigError(f"patience for {self.patience_s} s is none")
        if Way.XA in self.ways and not self.postgres:
            raise ConfigError("XA needs PostgreSQL for both banks: give --postgres URL")

    @property
    def chosen_ways(self) -> tuple[Way, ...]:
        """How transfers are made."""
        return self.ways or (
            (Way.HALF, Way.OUTBOX, Way.XA) if self.postgres else (Way.HALF, Way.OUTBOX)
        )
